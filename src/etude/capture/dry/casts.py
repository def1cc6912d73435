"""Autocast on a CUDA device that is not there: which operators take 16-bit numbers and which 32-bit ones.

PyTorch's own rules ask C++ whether a tensor is on the device, and that is answered as for the host (see `fakes`). So
the same rules, as PyTorch documents them for CUDA, stand here in Python, under the same dispatch key.
"""

import warnings
from typing import Any

from etude.base.shapes import names_in

LOWER = names_in("""
    _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input
    convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul
    linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention scaled_dot_product_attention
""")
FULL = names_in("""
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
    pow.Scalar softplus layer_norm native_layer_norm group_norm cosine_similarity poisson_nll_loss cosine_embedding_loss
    nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
    multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist
    cdist renorm logsumexp
""")
FULL_RESULT = names_in("""
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList linalg_vector_norm
""")
"""Those that take a type for their result, which is 32-bit unless the program says otherwise."""
WIDEST = names_in("""
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add cat stack
""")


def set_casts(torch: Any) -> Any:
    """Registers the rules; what is returned keeps them."""
    library = torch.library.Library("aten", "IMPL")
    cache: dict[int, tuple[Any, Any]] = {}
    rules = ((LOWER, _lower), (FULL, _full), (FULL_RESULT, _full_result), (WIDEST, _widest))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that each replaces PyTorch's own is meant
        for names, rule in rules:
            for name in names:
                operator = _operator(torch, name)
                if operator is not None:
                    library.impl(name, _kernel(torch, operator, rule, cache), "AutocastCUDA", allow_override=True)
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        cache.clear()
        clear()

    torch.clear_autocast_cache = clear_both
    return library


def _operator(torch: Any, name: str) -> Any:
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload or "default", None) if packet is not None else None


def _kernel(torch: Any, operator: Any, rule: Any, cache: dict[int, tuple[Any, Any]]) -> Any:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)

    def kernel(*args: Any, **named: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            args, named = rule(torch, operator, args, named, cache)
            return operator(*args, **named)

    return kernel


def _lower(torch: Any, operator: Any, args: Any, named: Any, cache: Any) -> Any:
    dtype = torch.get_autocast_dtype("cuda")

    def cast(tensor: Any) -> Any:
        if tensor.dtype == dtype or tensor.dtype == torch.float64:
            return tensor
        kept = tensor.is_leaf and tensor.requires_grad and tensor.dtype == torch.float32
        if not (kept and torch.is_autocast_cache_enabled()):
            return tensor.to(dtype)
        if id(tensor) not in cache:
            cache[id(tensor)] = tensor, tensor.to(dtype)
        return cache[id(tensor)][1]

    return _each(torch, args, cast), _each(torch, named, cast)


def _full(torch: Any, operator: Any, args: Any, named: Any, cache: Any) -> Any:
    def cast(tensor: Any) -> Any:
        return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor

    return _each(torch, args, cast), _each(torch, named, cast)


def _full_result(torch: Any, operator: Any, args: Any, named: Any, cache: Any) -> Any:
    first = args[0]
    place = [argument.name for argument in operator._schema.arguments].index("dtype")
    given = named.get("dtype", args[place] if len(args) > place else None)
    if given is not None or first.dtype not in (torch.float16, torch.bfloat16):
        return args, named
    return args[:place], {**named, "dtype": torch.float32}


def _widest(torch: Any, operator: Any, args: Any, named: Any, cache: Any) -> Any:
    found: set[Any] = set()

    def note(tensor: Any) -> Any:
        found.add(tensor.dtype)
        return tensor

    _each(torch, args, note)
    if torch.float32 not in found or len(found) < 2:
        return args, named
    return _full(torch, operator, args, named, cache)


def _each(torch: Any, value: Any, cast: Any) -> Any:
    """The same with each floating tensor of the device changed."""
    if isinstance(value, torch.Tensor):
        return cast(value) if value.is_floating_point() and value.device.type == "cuda" else value
    if isinstance(value, (list, tuple)):
        return type(value)(_each(torch, item, cast) for item in value)
    if isinstance(value, dict):
        return {key: _each(torch, item, cast) for key, item in value.items()}
    return value
