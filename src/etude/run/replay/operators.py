"""PyTorch operators by their recorded names, and their replacements on another kind of device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from keyword import iskeyword
from typing import Any, Final

import torch

from etude.base.errors import EtudeError

MODULES: Final = {
    "fsdp": "torch.distributed.fsdp",
    "_c10d_functional": "torch.distributed._functional_collectives",
    "torchvision": "torchvision",
}
"""Namespace -> module to import before its operators exist."""
_NOT_QUICK: Final = ("to", "set_", "resize_", "data", "requires_grad_", "new_empty", "lift_fresh")
"""Operators whose Python method does something else than the operator."""


class UnknownOperatorError(EtudeError):
    """The installed PyTorch does not know an operator."""


@dataclass(frozen=True, slots=True)
class BoundOperator:
    """An operator that can be called with the recorded arguments, in order."""

    call: Callable[..., Any]
    single: bool
    """Whether it returns one tensor."""
    flat: bool
    """Whether it returns a tuple, or a list of tensors, without nested lists."""
    quick: Callable[..., Any] | None = None
    """PyTorch's own Python function or method for it, if there is one: about 1 us faster. It does not accept all
    arguments that a recording may have; then it raises TypeError."""
    positional: int = 0
    named: tuple[str, ...] = ()
    """For `quick`: `positional`, the number of arguments passed by position, and the names of the others."""
    dynamic: bool = False
    """Whether the shape of the result depends on values."""


def operator(name: str, device: str) -> Callable[..., Any]:
    """The function to call for `aten::mm` or `aten::add.Tensor` on this kind of device."""
    return remapped(name, device).call


@cache
def remapped(name: str, device: str) -> BoundOperator:
    others = {"cpu": _ON_CPU, "cuda": _ON_CUDA}.get(device, {})
    other = others.get(name.partition(".")[0])
    if other is not None:
        return BoundOperator(other, single=False, flat=True)
    return _bound(name)


def _bound(name: str) -> BoundOperator:
    base, _, overload = name.partition(".")
    namespace = base.partition("::")[0]
    if namespace in MODULES:
        from contextlib import suppress
        from importlib import import_module

        with suppress(ImportError):
            import_module(MODULES[namespace])
    try:
        call, _, tags = torch._C._get_operation_overload(base, overload)
        schema = torch._C._get_schema(base, overload)
    except (RuntimeError, TypeError, ValueError):
        raise UnknownOperatorError(f"`{name}` is not an operator of PyTorch {torch.__version__}") from None
    positional = [a for a in schema.arguments if not a.kwarg_only]
    kinds = [str(r.type) for r in schema.returns]
    single = kinds == ["Tensor"]
    flat = all(kind == "Tensor" or not kind.startswith("List") for kind in kinds) and len(kinds) > 1
    flat = flat or kinds == ["List[Tensor]"]
    named = tuple(a.name for a in schema.arguments[len(positional) :])
    plain = call if not named else _with_names(call, schema, len(positional))
    dynamic = torch.Tag.dynamic_output_shape in tags
    return BoundOperator(plain, single, flat, _quick(base, overload, named), len(positional), named, dynamic)


def _quick(base: str, overload: str, named: tuple[str, ...]) -> Callable[..., Any] | None:
    name = base.removeprefix("aten::")
    if name == base or name in _NOT_QUICK or "out" in overload or any(map(iskeyword, named)):
        return None
    spaces = (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase)
    return next((found for space in spaces if (found := getattr(space, name, None)) is not None), None)


def _with_names(call: Callable[..., Any], schema: Any, positional: int) -> Callable[..., Any]:
    """Wraps an operator so that keyword-only arguments are passed by name."""
    named = [a.name for a in schema.arguments[positional:]]

    def with_names(*args: Any) -> Any:
        return call(*args[:positional], **dict(zip(named, args[positional:], strict=False)))

    return with_names


# -- operators of one device, as what does the same on another ---------------------------------------------------------


def _forward(q: Any, k: Any, v: Any, dropout: float, causal: bool, scale: Any) -> tuple[Any, Any]:
    """Attention on a CPU: the result, and the log-sum-exp."""
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, dropout, causal, attn_mask=None, scale=scale
    )
    return found[0], found[1]


def _backward(grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dropout: float, causal: bool, scale: Any) -> Any:
    rows = lse.reshape(*q.shape[:2], -1)[..., : q.shape[2]].contiguous()
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, rows, dropout, causal, attn_mask=None, scale=scale
    )


def _cudnn(q: Any, k: Any, v: Any, bias: Any, sums: bool, p: float = 0.0, causal: bool = False, mask: bool = False,
           scale: Any = None) -> Any:  # fmt: skip
    out, lse = _forward(q, k, v, p, causal, scale)
    return out, lse.unsqueeze(-1), None, None, q.shape[2], k.shape[2], None, None, None


def _cudnn_backward(grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, seed: Any, offset: Any, bias: Any,
                    cum_q: Any, cum_k: Any, max_q: int, max_k: int, p: float, causal: bool,
                    scale: Any = None) -> Any:  # fmt: skip
    return _backward(grad, q, k, v, out, lse, p, causal, scale)


def _efficient(
    q: Any, k: Any, v: Any, bias: Any, sums: bool, p: float = 0.0, causal: bool = False, scale: Any = None
) -> Any:
    return (*_forward(q, k, v, p, causal, scale), None, None)


def _efficient_backward(grad: Any, q: Any, k: Any, v: Any, bias: Any, out: Any, lse: Any, seed: Any, offset: Any,
                        p: float, wanted: Any, causal: bool = False, scale: Any = None) -> Any:  # fmt: skip
    return (*_backward(grad, q, k, v, out, lse, p, causal, scale), None)


def _flash(q: Any, k: Any, v: Any, p: float = 0.0, causal: bool = False, mask: bool = False, scale: Any = None) -> Any:
    return (*_forward(q, k, v, p, causal, scale), None, None, q.shape[2], k.shape[2], None, None, None)


def _flash_backward(grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, cum_q: Any, cum_k: Any, max_q: int,
                    max_k: int, p: float, causal: bool, seed: Any, offset: Any, scale: Any = None) -> Any:  # fmt: skip
    return _backward(grad, q, k, v, out, lse, p, causal, scale)


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    out, saved_mean, saved_var = torch.ops.aten.native_batch_norm(x, weight, bias, mean, var, training, momentum, eps)
    return out, saved_mean, saved_var, torch.empty(0, dtype=torch.uint8)


def _batch_norm_backward(
    x: Any, grad: Any, weight: Any, mean: Any, var: Any, saved_mean: Any, saved_var: Any, eps: float, *_: Any
) -> Any:
    return torch.ops.aten.native_batch_norm_backward(
        grad, x, weight, mean, var, saved_mean, saved_var, True, eps, [True, True, True]
    )


def _convolution(x: Any, weight: Any, padding: Any, stride: Any, dilation: Any, groups: int, *_: Any) -> Any:
    return (torch.ops.aten.convolution(x, weight, None, stride, padding, dilation, False, [0] * len(stride), groups),)


_ON_CPU: Final[dict[str, Callable[..., Any]]] = {
    "aten::_scaled_dot_product_cudnn_attention": _cudnn,
    "aten::_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
    "aten::_scaled_dot_product_efficient_attention": _efficient,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "aten::_scaled_dot_product_flash_attention": _flash,
    "aten::_scaled_dot_product_flash_attention_backward": _flash_backward,
    "aten::cudnn_batch_norm": _batch_norm,
    "aten::cudnn_batch_norm_backward": _batch_norm_backward,
    "aten::cudnn_convolution": _convolution,
}
"""Operators of CUDA libraries -> equivalents on a CPU."""


def _of_cpu(q: Any, k: Any, v: Any, p: float = 0.0, causal: bool = False, mask: Any = None, scale: Any = None) -> Any:
    found = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, p, causal, scale=scale)
    return found[0], found[1][..., : q.shape[2]].contiguous()


def _of_cpu_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, p: float, causal: bool, mask: Any = None, scale: Any = None
) -> Any:
    rows = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % _SUMS_IN_A_PIECE))
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    return torch.ops.aten._scaled_dot_product_efficient_attention_backward(
        grad, q, k, v, mask, out, rows, seed, seed, p, [True, True, True, False], causal, scale=scale
    )[:3]


_SUMS_IN_A_PIECE: Final = 32
"""The CUDA kernel requires rows of sums padded to a multiple of this."""


def _mkldnn_convolution(x: Any, weight: Any, bias: Any, padding: Any, stride: Any, dilation: Any, groups: int) -> Any:
    return (torch.ops.aten.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups),)


_ON_CUDA: Final[dict[str, Callable[..., Any]]] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _of_cpu,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _of_cpu_backward,
    "aten::mkldnn_convolution": _mkldnn_convolution,
}
"""Operators that only a CPU has -> equivalents on CUDA."""
