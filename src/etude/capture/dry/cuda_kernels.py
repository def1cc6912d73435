"""Operators that PyTorch takes on a CUDA device and not elsewhere: attention, softmax, dropout, batch normalisation.

C++ chooses them by the device of a tensor, and finds a fake one on the host (see `fakes`). So functions that choose are
replaced: on a tensor of the device each calls the operator that PyTorch 2.11 and later take there.
"""

import functools
from collections.abc import Callable
from typing import Any

HOPPER = 9
"""Major number from which on PyTorch prefers cuDNN's attention."""


ONE_KERNEL = ("silu_backward", "mish_backward")
"""Operators that are one kernel on a device, and that a build without CUDA takes apart for tensors of one."""
_LIBRARIES: list[Any] = []


def choose_kernels(torch: Any, capability: tuple[int, int]) -> None:
    """Replaces the functions that choose."""
    _keep_whole(torch)
    functional = torch.nn.functional
    attention = functools.partial(_attention, torch, capability[0] >= HOPPER)
    _replace(torch, (functional,), "scaled_dot_product_attention", attention)
    _replace(torch, (functional,), "softmax", functools.partial(_softmax, torch))
    _replace(torch, (functional, torch), "dropout", functools.partial(_dropout, torch))
    _replace(torch, (functional,), "batch_norm", functools.partial(_batch_norm, torch))


def _keep_whole(torch: Any) -> None:
    """Lets a build without CUDA have the kernels. No tensor with numbers comes to them."""

    def nothing(*_: Any) -> Any:
        raise NotImplementedError

    missing = [
        name for name in ONE_KERNEL if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA")
    ]
    if missing:
        _LIBRARIES.append(torch.library.Library("aten", "IMPL", "CUDA"))
    for name in missing:
        _LIBRARIES[-1].impl(name, nothing)


def _replace(torch: Any, owners: tuple[Any, ...], name: str, ours: Callable[..., Any]) -> None:
    for owner in owners:
        original = getattr(owner, name)

        def call(given: Any, *args: Any, original: Any = original, **named: Any) -> Any:
            if not hasattr(given, "fake_mode") or given.device.type != "cuda":
                return original(given, *args, **named)
            return ours(original, given, *args, **named)

        setattr(owner, name, functools.wraps(original)(call))


def _dropout(
    torch: Any, original: Any, given: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    if not training or not 0 < p < 1 or inplace:
        extra = (inplace,) if original.__module__ == "torch.nn.functional" else ()
        return original(given, p, training, *extra)
    return torch.ops.aten.native_dropout.default(given, p, True)[0]


def _softmax(
    torch: Any, original: Any, given: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Any:
    """Of 16-bit numbers in 32 bits it is one kernel."""
    if dim is None or dtype != torch.float32 or given.dtype not in (torch.float16, torch.bfloat16):
        return original(given, dim, _stacklevel, dtype)
    return torch.ops.aten._softmax.default(given, dim, True)


def _batch_norm(
    torch: Any,
    original: Any,
    given: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """cuDNN's where there are weights, and the type is one that it takes."""
    known = weight is not None and bias is not None and running_mean is not None
    if not known or given.dtype == torch.bfloat16 or given.dim() < 2:
        return original(given, running_mean, running_var, weight, bias, training, momentum, eps)
    call = torch.ops.aten.cudnn_batch_norm.default
    return call(given, weight, bias, running_mean, running_var, training, momentum, eps)[0]


def _attention(
    torch: Any,
    prefers_cudnn: bool,
    original: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """cuDNN's from Hopper on and flash attention before it, for 16-bit types; with a mask before Hopper, and for 32-bit
    types, or for values that are narrower than keys, the memory-efficient one."""
    if query.dim() != 4:
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if torch.is_autocast_enabled("cuda"):
        kind = torch.get_autocast_dtype("cuda")
        query, key, value = (tensor.to(kind) for tensor in (query, key, value))
    aten, wide = torch.ops.aten, query.shape[-1]
    half = query.dtype in (torch.float16, torch.bfloat16)
    needs = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    mask = _mask(torch, attn_mask, query)
    learnt = mask is not None and mask.requires_grad
    if learnt:
        return _plain_attention(torch, query, key, value, attn_mask, dropout_p, scale)
    if half and prefers_cudnn and wide <= 128 and wide % 8 == 0:
        call = aten._scaled_dot_product_cudnn_attention.default
        return call(query, key, value, mask, needs, dropout_p, is_causal, False, scale=scale)[0]
    if half and mask is None and wide <= 256 and value.shape[-1] == wide:
        call = aten._scaled_dot_product_flash_attention.default
        return call(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if query.shape[1] != key.shape[1]:
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    if mask is not None:
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    call = aten._scaled_dot_product_efficient_attention.default
    return call(query, key, value, mask, needs, dropout_p, is_causal, scale=scale)[0]


def _mask(torch: Any, mask: Any, query: Any) -> Any:
    """A mask of numbers to add."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=query.dtype, device=query.device))


def _plain_attention(
    torch: Any, query: Any, key: Any, value: Any, mask: Any, dropout_p: float, scale: float | None
) -> Any:
    """Operator by operator, in 32 bits: no kernel has a gradient for the mask."""
    kind, root = query.dtype, (query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    with torch.autocast("cuda", enabled=False):
        query, key, value, mask = (tensor.to(kind).to(torch.float32) for tensor in (query, key, value, mask))
        scores = torch.matmul(query * root, key.transpose(-2, -1) * root).add_(mask)
        shares = torch.ops.aten._safe_softmax.default(scores, -1)
        if dropout_p:
            shares = torch.nn.functional.dropout(shares, dropout_p, True)
        return torch.matmul(shares, value).to(kind)
