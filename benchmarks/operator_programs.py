"""Programs that call operators one after another, each in several sizes: for the names that few programs have.

They are no models. What `fit_framework.py --add` takes from them is what the device and PyTorch itself take; the Python
between calls is theirs alone, and is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

Step = Callable[[], Any]
Call = Callable[[Any], Any]

MANY = ((1 << 17,), (1 << 21,), (1 << 24,), (1 << 26,))
ROWS = ((256, 512), (2048, 2048), (16384, 2048), (65536, 1024))
IMAGES = ((8, 64, 32, 32), (16, 128, 64, 64), (32, 64, 128, 128))
VOLUMES = ((1, 16, 16, 16, 16), (2, 32, 32, 32, 32), (2, 32, 64, 64, 64))
SERIES = ((8, 64, 512), (16, 256, 2048), (64, 128, 8192))


def _made(shape: tuple[int, ...], kind: str = "float32") -> Any:
    import torch

    return torch.rand(shape, device="cuda", dtype=getattr(torch, kind)).add_(0.1).requires_grad_()


def _step(calls: Iterable[tuple[Call, Iterable[tuple[int, ...]]]], kinds: tuple[str, ...] = ("float32",)) -> Step:
    """Each call with each shape and type, forward and, where the result has a gradient, backward."""
    import torch

    held = [(call, _made(shape, kind)) for call, shapes in calls for shape in shapes for kind in kinds]
    weight = torch.nn.Parameter(torch.zeros(8, device="cuda"))
    optimizer = torch.optim.SGD([weight], 1e-3)

    def step() -> None:
        for call, given in held:
            found = call(given)
            if isinstance(found, torch.Tensor) and found.requires_grad:
                torch.autograd.grad(found, given, torch.ones_like(found), allow_unused=True)
        weight.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _of_two(call: Callable[[Any, Any], Any]) -> Call:
    return lambda x: call(x, x.detach().flip(0))


def activations(times: int = 1) -> Step:
    from torch.nn import functional

    names = (
        "leaky_relu",
        "elu",
        "selu",
        "softplus",
        "sigmoid",
        "mish",
        "hardtanh",
        "relu6",
        "logsigmoid",
        "softsign",
        "hardshrink",
        "softshrink",
        "celu",
    )
    return _step([(getattr(functional, name), MANY) for name in names], ("float32", "bfloat16"))


def arithmetic(times: int = 1) -> Step:
    import torch

    names = (
        "exp",
        "expm1",
        "log1p",
        "log2",
        "erf",
        "sign",
        "reciprocal",
        "floor",
        "round",
        "atan",
        "square",
        "exp2",
        "sigmoid",
        "isnan",
        "isfinite",
        "logical_not",
        "tan",
        "acos",
        "lgamma",
        "digamma",
        "erfinv",
    )
    pairs = ("maximum", "minimum", "atan2", "remainder", "fmod", "logaddexp", "le", "logical_and", "hypot", "dist")
    calls = [getattr(torch, name) for name in names]
    calls += [_of_two(getattr(torch, name)) for name in pairs]
    calls += [
        lambda x: torch.lerp(x, x.detach(), 0.3),
        lambda x: torch.addcmul(x, x.detach(), x.detach()),
        lambda x: torch.addcdiv(x, x.detach(), x.detach()),
        lambda x: x.clamp_min(0.3),
        lambda x: (x > 0.5) & (x < 0.9),
        lambda x: (x > 0.5) | (x < 0.2),
        lambda x: x.detach().exp_(),
    ]
    return _step([(call, MANY) for call in calls])


def reductions(times: int = 1) -> Step:
    import torch

    calls: list[Call] = [
        lambda x: x.amax(-1),
        lambda x: x.amin(0),
        lambda x: x.max(-1)[0],
        lambda x: x.min(-1)[0],
        lambda x: x.var(-1),
        lambda x: x.std(-1),
        lambda x: torch.var_mean(x, -1)[0],
        lambda x: x.prod(-1),
        lambda x: x.norm(dim=-1),
        lambda x: torch.linalg.vector_norm(x),
        lambda x: x.logsumexp(-1),
        lambda x: x.cumprod(-1),
        lambda x: x.argmax(-1),
        lambda x: x.argmin(-1),
        lambda x: x.cummax(-1)[0],
        lambda x: x.median(-1)[0],
        lambda x: (x > 0.5).all(),
        lambda x: (x > 0.5).any(-1),
        lambda x: torch.aminmax(x.detach())[0],
        lambda x: x.sort(-1)[0],
        lambda x: torch.nn.functional.normalize(x, dim=-1),
        lambda x: x.softmax(0),
        lambda x: x.logcumsumexp(-1),
        lambda x: (x > 0.5).count_nonzero(),
    ]
    return _step([(call, ROWS[:3]) for call in calls], ("float32", "bfloat16"))


def norms(times: int = 1) -> Step:
    import torch
    from torch import nn
    from torch.nn import functional

    def group(x: Any) -> Any:
        return functional.group_norm(x, 8, x.new_ones(x.shape[1]), x.new_zeros(x.shape[1]))

    def rms(x: Any) -> Any:
        return functional.rms_norm(x, x.shape[-1:], x.new_ones(x.shape[-1]))

    def batch(x: Any) -> Any:
        return functional.batch_norm(x, None, None, x.new_ones(x.shape[1]), x.new_zeros(x.shape[1]), training=True)

    cudnn = torch.backends.cudnn.flags

    def native(x: Any) -> Any:
        with cudnn(enabled=False):
            return batch(x)

    weights = nn.utils.parametrizations.weight_norm(nn.Linear(1024, 4096)).cuda()
    each = [
        (group, (*IMAGES, *VOLUMES, *SERIES)),
        (functional.instance_norm, (*IMAGES, *VOLUMES)),
        (rms, ROWS),
        (native, (*IMAGES, *VOLUMES)),
        (batch, VOLUMES),
        (lambda x: functional.local_response_norm(x, 5), IMAGES[:2]),
        (weights, ((64, 1024), (512, 1024), (4096, 1024))),
    ]
    return _step(each)


def norms_16(times: int = 1) -> Step:
    from torch.nn import functional

    def group(x: Any) -> Any:
        return functional.group_norm(x, 8, x.new_ones(x.shape[1]), x.new_zeros(x.shape[1]))

    def rms(x: Any) -> Any:
        return functional.rms_norm(x, x.shape[-1:], x.new_ones(x.shape[-1]))

    return _step(
        [(group, (*IMAGES, *VOLUMES)), (rms, ROWS), (functional.instance_norm, (*IMAGES, *VOLUMES))], ("bfloat16",)
    )


def pools(times: int = 1) -> Step:
    import torch
    from torch.nn import functional

    def grid(x: Any) -> Any:
        places = torch.rand(x.shape[0], x.shape[2], x.shape[3], 2, device="cuda") * 2 - 1
        return functional.grid_sample(x, places, align_corners=False)

    flat: list[Call] = [
        lambda x: functional.adaptive_avg_pool2d(x, 7),
        lambda x: functional.adaptive_max_pool2d(x, 7),
        lambda x: functional.avg_pool2d(x, 2),
        lambda x: functional.max_pool2d(x, 2),
        lambda x: functional.interpolate(x, scale_factor=2),
        grid,
        lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic"),
        lambda x: functional.pixel_shuffle(x, 2),
        lambda x: functional.pad(x, (1, 1, 1, 1), mode="reflect"),
        lambda x: functional.pad(x, (1, 1, 1, 1), mode="replicate"),
        lambda x: functional.unfold(x, 3, padding=1),
        lambda x: functional.channel_shuffle(x, 4),
        lambda x: functional.lp_pool2d(x, 2, 2),
    ]
    deep: list[Call] = [
        lambda x: functional.max_pool3d(x, 2),
        lambda x: functional.avg_pool3d(x, 2),
        lambda x: functional.interpolate(x, scale_factor=2),
        lambda x: functional.interpolate(x, scale_factor=2, mode="trilinear"),
        lambda x: functional.adaptive_avg_pool3d(x, 4),
    ]
    line: list[Call] = [
        lambda x: functional.max_pool1d(x, 2),
        lambda x: functional.avg_pool1d(x, 2),
        lambda x: functional.interpolate(x, scale_factor=2),
        lambda x: functional.interpolate(x, scale_factor=2, mode="linear"),
        lambda x: functional.adaptive_avg_pool1d(x, 8),
    ]
    return _step([*((c, IMAGES) for c in flat), *((c, VOLUMES) for c in deep), *((c, SERIES) for c in line)])


def losses(times: int = 1) -> Step:
    import torch
    from torch.nn import functional

    names = (
        "mse_loss",
        "smooth_l1_loss",
        "huber_loss",
        "l1_loss",
        "binary_cross_entropy_with_logits",
        "soft_margin_loss",
        "poisson_nll_loss",
    )
    calls: list[Call] = [_of_two(getattr(functional, name)) for name in names]
    calls += [
        lambda x: functional.binary_cross_entropy(x.clamp(0, 1), x.detach().clamp(0, 1)),
        lambda x: functional.kl_div(x.log_softmax(-1), x.detach().softmax(-1), reduction="batchmean"),
        lambda x: functional.cosine_similarity(x, x.detach().flip(0)),
        lambda x: functional.pairwise_distance(x, x.detach().flip(0)),
        lambda x: torch.cdist(x[:256, :64], x.detach()[-512:, :64]),
    ]
    return _step([(call, ROWS) for call in calls])


def places(times: int = 1) -> Step:
    """Reading and writing by index."""
    import torch

    def chosen(x: Any) -> Any:
        return torch.randint(x.shape[0], (x.shape[0],), device="cuda")

    def into(x: Any, how: str) -> Any:
        return torch.zeros_like(x).scatter_reduce(0, chosen(x)[:, None].expand_as(x), x, how)

    calls: list[Call] = [
        lambda x: x.index_select(0, chosen(x)),
        lambda x: x.detach().index_add(0, chosen(x), x),
        lambda x: x.detach().index_copy(0, torch.randperm(len(x), device="cuda"), x),
        lambda x: into(x, "sum"),
        lambda x: into(x, "amax"),
        lambda x: x.tril(),
        lambda x: x.triu(),
        lambda x: x.flip(0),
        lambda x: x.gather(1, x.detach().long()),
        lambda x: torch.stack([x, x, x]),
        lambda x: torch.stack([x, x], -1),
        lambda x: x.take_along_dim(x.detach().long(), 1),
        lambda x: x.masked_scatter(x.detach() > 0.5, x.detach()),
        lambda x: x.repeat_interleave(2, 0),
        lambda x: x.unfold(1, 8, 4).contiguous(),
        lambda x: x.diff(dim=1),
        lambda x: torch.bucketize(x.detach(), x.detach()[0].sort()[0]),
        lambda x: torch.nn.functional.one_hot(chosen(x) % 64, 64),
        lambda x: torch.diag_embed(x[:16, :64]),
        lambda x: x.roll(1, 0),
        lambda x: torch.meshgrid(x[:, 0], x[0], indexing="ij")[0].contiguous(),
        lambda x: x.tile(2),
    ]
    return _step([(call, ROWS[:3]) for call in calls])


def tables(times: int = 1) -> Step:
    """Tables of embeddings, alone and added up."""
    import torch
    from torch.nn import functional

    def bags(x: Any, each: int, mode: str = "sum") -> Any:
        ids = torch.randint(len(x), (each * 8192,), device="cuda")
        return functional.embedding_bag(ids, x, torch.arange(0, len(ids), each, device="cuda"), mode=mode)

    calls: list[Call] = [functools.partial(bags, each=one) for one in (1, 4, 32)]
    calls += [
        functools.partial(bags, each=4, mode="mean"),
        functools.partial(bags, each=4, mode="max"),
        lambda x: functional.embedding(torch.randint(len(x), (8192,), device="cuda"), x),
    ]
    return _step([(call, ((10_000, 64), (200_000, 64), (1_000_000, 32))) for call in calls])


def chance(times: int = 1) -> Step:
    import torch

    calls: list[Call] = [
        torch.randn_like,
        torch.rand_like,
        lambda x: torch.randint_like(x, 100),
        lambda x: torch.bernoulli(x.detach().clamp(0, 1)),
        lambda x: torch.randperm(len(x), device="cuda"),
        lambda x: torch.randint(100, x.shape, device="cuda"),
        lambda x: torch.randn(x.shape, device="cuda"),
        lambda x: torch.empty_like(x).exponential_(),
        lambda x: torch.nn.functional.dropout(x, 0.1),
        lambda x: torch.linspace(0, 1, len(x), device="cuda"),
        lambda x: torch.nn.functional.alpha_dropout(x, 0.1, True),
    ]
    return _step([(call, MANY) for call in calls])


def spectra(times: int = 1) -> Step:
    import torch

    def there(x: Any) -> Any:
        return torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1])

    def both(x: Any) -> Any:
        found = torch.fft.rfft2(x)
        return torch.fft.irfft2(found * found.detach(), s=x.shape[-2:])

    def sound(x: Any) -> Any:
        return torch.stft(
            x.flatten(0, -2), 512, 128, return_complex=True, window=torch.hann_window(512, device="cuda")
        ).abs()

    return _step([(there, (*ROWS[:3], *SERIES)), (both, IMAGES), (sound, SERIES)])


def products(times: int = 1) -> Step:
    """Products and attention that few models have."""
    import torch
    from torch.nn import functional

    def attended(x: Any) -> Any:
        return functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    def flash(x: Any) -> Any:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            return functional.scaled_dot_product_attention(x.bfloat16(), x.bfloat16(), x.bfloat16())

    def plain(x: Any) -> Any:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return functional.scaled_dot_product_attention(x, x, x)

    heads = ((4, 8, 128, 64), (8, 16, 512, 64), (4, 16, 2048, 128))
    calls: list[tuple[Call, Any]] = [
        (attended, heads),
        (flash, heads),
        (plain, heads[:2]),
        (lambda x: x @ x[0], ROWS[:3]),
        (lambda x: x[0] @ x[1], ROWS[:3]),
        (lambda x: torch.outer(x[:, 0], x[0]), ROWS[:2]),
        (lambda x: torch.einsum("bi,bj->ij", x[:, :256], x[:, :256]), ROWS[:3]),
        (lambda x: torch.baddbmm(x, x, x.transpose(1, 2)), ((8, 128, 128), (32, 256, 256), (64, 512, 512))),
    ]
    return _step(calls)


def volumes(times: int = 1) -> Step:
    """Convolutions of volumes, of series, and transposed ones."""
    import torch
    from torch import nn

    def each(made: Callable[..., Any], shapes: Iterable[tuple[int, ...]]) -> list[tuple[Call, Any]]:
        return [(made(shape[1], 2 * shape[1], 3, padding=1).cuda(), (shape,)) for shape in shapes]

    calls = [
        *each(nn.Conv3d, (*VOLUMES, (2, 64, 48, 48, 48))),
        *each(nn.Conv1d, SERIES),
        *each(nn.ConvTranspose2d, IMAGES),
        *each(nn.ConvTranspose3d, VOLUMES),
    ]
    step = _step(calls)

    def mixed() -> None:
        step()
        with torch.autocast("cuda", torch.float16):
            step()

    return mixed


def cells(times: int = 1) -> Step:
    """Cells of recurrent networks, called one by one."""
    from torch import nn

    sizes = ((32, 256), (128, 512), (512, 1024))
    made = [
        (kind(width, width).cuda(), rows, width)
        for rows, width in sizes
        for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell)
    ]
    calls: list[tuple[Call, Any]] = []
    for cell, rows, width in made:
        calls.append(
            (lambda x, cell=cell: found[0] if isinstance(found := cell(x), tuple) else found, ((rows, width),))
        )
    return _step(calls)


def optimizers(times: int = 1) -> Step:
    """A step of many: in one call, on lists, one by one; norms of gradients and scaled losses."""
    import torch
    from torch import nn, optim

    def model() -> Any:
        return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()

    made = [
        (optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
        (optim.SGD, {"lr": 1e-3, "fused": True}),
        (optim.Adam, {"fused": True}),
        (optim.Adam, {}),
        (optim.RMSprop, {}),
        (optim.Adagrad, {}),
        (optim.NAdam, {}),
        (optim.Adamax, {}),
        (optim.Adadelta, {}),
        (optim.AdamW, {"amsgrad": True}),
        (optim.RAdam, {}),
        (optim.Rprop, {}),
        (optim.ASGD, {}),
    ]
    held = [(one := model(), kind(one.parameters(), **given)) for kind, given in made]
    scaler, given = torch.amp.GradScaler("cuda"), torch.randn(256, 1024, device="cuda")

    def step() -> None:
        for number, (one, optimizer) in enumerate(held):
            loss = one(given).mean()
            if number == 0:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(one.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                torch.nn.utils.clip_grad_value_(one.parameters(), 1.0)
                optimizer.step()
            optimizer.zero_grad()

    return step


OPERATORS = (
    activations,
    arithmetic,
    reductions,
    norms,
    norms_16,
    pools,
    losses,
    places,
    tables,
    chance,
    spectra,
    products,
    volumes,
    cells,
    optimizers,
)
