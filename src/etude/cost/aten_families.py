"""Which formula of `cost.ops` each PyTorch operator follows. What is not here stays unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from etude.cost import ops
from etude.cost.aten_inputs import Inputs, Shape, width_of
from etude.cost.ops import OpClass, Work

Family = Callable[[Inputs], Work]

# -- products ----------------------------------------------------------------------------------------------------------


def _mm(first: int) -> Family:
    def work(i: Inputs) -> Work:
        (m, k), (_, n) = i.shape(first), i.shape(first + 1)
        return ops.matmul(m, n, k, dtype=i.dtype)

    return work


def _bmm(first: int) -> Family:
    def work(i: Inputs) -> Work:
        (b, m, k), (_, _, n) = i.shape(first), i.shape(first + 1)
        return ops.matmul(m, n, k, batch=b, dtype=i.dtype)

    return work


def _linear(i: Inputs) -> Work:
    *rows, k = i.shape(0)
    return ops.matmul(prod(rows), i.shape(1)[0], k, dtype=i.dtype)


def _matmul(i: Inputs) -> Work:
    """Any number of dimensions; a matrix on the right is one for all."""
    *rows, k = i.shape(0)
    *batch, _, n = i.shape(1)
    if not batch:
        return ops.matmul(prod(rows), n, k, dtype=i.dtype)
    return ops.matmul(rows[-1], n, k, batch=max(prod(rows[:-1]), prod(batch)), dtype=i.dtype)


def _mv(first: int) -> Family:
    def work(i: Inputs) -> Work:
        m, k = i.shape(first)
        return ops.matmul(m, 1, k, dtype=i.dtype)

    return work


def _dot(i: Inputs) -> Work:
    (k,) = i.shape(0)
    return ops.matmul(1, 1, k, dtype=i.dtype)


# -- attention ---------------------------------------------------------------------------------------------------------


def _attention(first: int = 0, *, backward: bool = False, heads_last: bool = False) -> Family:
    """batch x heads x length x head size, or heads behind the length. Causal or not, all pairs count, as is usual."""

    def work(i: Inputs) -> Work:
        query, key = i.shape(first), i.shape(first + 1)
        if heads_last:
            (b, queries, h, d), (_, keys, kv_heads, _) = query, key
        else:
            (b, h, queries, d), (_, kv_heads, keys, _) = query, key
        return ops.attention(
            queries, keys, heads=h, head_size=d, batch=b, kv_heads=kv_heads, causal=False, backward=backward,
            dtype=i.dtype,
        )  # fmt: skip

    return work


# -- convolution -------------------------------------------------------------------------------------------------------


def _convolved(size: Shape, kernel: Shape, stride: list[int], padding: list[int], dilation: list[int]) -> Shape:
    def at(given: list[int], axis: int) -> int:
        return given[axis] if len(given) > 1 else given[0]

    return [
        (n + 2 * at(padding, a) - at(dilation, a) * (k - 1) - 1) // at(stride, a) + 1
        for a, (n, k) in enumerate(zip(size, kernel, strict=True))
    ]


def _convolution(stride: int, padding: int, dilation: int, groups: int, transposed: int = 0) -> Family:
    """Where among the arguments each lies."""

    def work(i: Inputs) -> Work:
        (batch, channels, *size), (out, _, *kernel) = i.shape(0), i.shape(1)
        if transposed and str(i.values[transposed]) == "True":
            raise ValueError("transposed")
        made = _convolved(size, kernel, i.numbers(stride), i.numbers(padding), i.numbers(dilation))
        return ops.convolution(batch, channels, out, made, kernel, in_size=size, groups=i.number(groups), dtype=i.dtype)

    return work


def _convolution_backward(i: Inputs) -> Work:
    """One product for the input's gradient, one for the weight's, each as much as forward; the last list says which."""
    (batch, out, *made), (_, channels, *size), (_, _, *kernel) = i.shape(0), i.shape(1), i.shape(2)
    forward = ops.convolution(batch, channels, out, made, kernel, in_size=size, groups=i.number(9), dtype=i.dtype)
    mask = i.values[10]
    wanted = str(mask).replace("[", "").replace("]", "").split(",")[:2]
    count = sum(text.strip().lower() == "true" for text in wanted)
    return replace(forward, flops=count * forward.flops, size_bytes=count * forward.size_bytes)


# -- rows: normalisation, softmax --------------------------------------------------------------------------------------


def _rows(make: Callable[..., Work], argument: int = 0) -> Family:
    def work(i: Inputs) -> Work:
        *rows, wide = i.shape(argument)
        return make(prod(rows), wide, dtype=i.dtype)

    return work


def _channels(i: Inputs) -> Work:
    """Batch norm: one mean and one variance for each channel."""
    batch, channels, *size = i.shape(0)
    return ops.normalisation(channels, batch * prod(size), dtype=i.dtype, affine=False)


def _backward(forward: Family) -> Family:
    """Of what reads once and writes once: reads the gradient too, and does about twice as much."""

    def work(i: Inputs) -> Work:
        done = forward(i)
        return replace(done, flops=2 * done.flops, size_bytes=done.size_bytes * 3 // 2)

    return work


# -- elements ----------------------------------------------------------------------------------------------------------


def _elements(shapes: Sequence[Shape]) -> int:
    return sum(prod(shape) for shape in shapes)


def _size(i: Inputs, argument: int) -> int:
    """Bytes of the tensors of an argument; 0 of one that is none."""
    shapes, types = i.shapes[argument], i.types[argument]
    if not shapes or not types:
        return 0
    widths = [width_of(name) for name in types]
    if not all(widths):
        raise ValueError(argument)
    each = widths if len(widths) == len(shapes) else [widths[0]] * len(shapes)
    return sum(prod(shape) * width for shape, width in zip(shapes, each, strict=True))


def _broadcast(shapes: Sequence[Shape]) -> int:
    """Elements of what tensors of these shapes are broadcast to."""
    axes = max(map(len, shapes))
    padded = [[1] * (axes - len(shape)) + shape for shape in shapes]
    return prod(max(column) if 0 not in column else 0 for column in zip(*padded, strict=True))


def _pointwise(flops_each: int = 1, op_class: OpClass = OpClass.ELEMENTWISE) -> Family:
    """Reads every tensor it is given and writes one as large as they are together broadcast."""

    def work(i: Inputs) -> Work:
        single = [a for a, shapes in enumerate(i.shapes) if len(shapes) == 1]
        if not i.shapes or not i.shapes[0]:
            raise ValueError("no tensor")
        made = _broadcast([i.shape(a) for a in single])
        width = ops.width(i.dtype)
        read = sum(_size(i, a) if i.types[a] else int(prod(i.shape(a)) * width) for a in single)
        written = made * (width_of(i.types[0][0]) if i.types[0] else int(width))
        return Work(op_class=op_class, flops=flops_each * made, size_bytes=read + written, dtype=i.dtype)

    return work


def _foreach(flops_each: int = 1) -> Family:
    """The same on lists of tensors: reads all lists, writes the first."""

    def work(i: Inputs) -> Work:
        size = sum(_size(i, a) for a in range(len(i.shapes)))
        made = _elements(i.shapes[0])
        if not made or not size:
            raise ValueError("no shapes")
        return Work(op_class=OpClass.ELEMENTWISE, flops=flops_each * made, size_bytes=size + _size(i, 0), dtype=i.dtype)

    return work


def _copy(i: Inputs) -> Work:
    """Into the first from the second, of a type of its own."""
    made = prod(i.shape(0))
    source = i.width(1) if len(i.types) > 1 and i.types[1] else i.width(0)
    return Work(op_class=OpClass.COPY, flops=0, size_bytes=made * (i.width(0) + source), dtype=i.dtype)


def _clone(i: Inputs) -> Work:
    return Work(op_class=OpClass.COPY, flops=0, size_bytes=2 * _size(i, 0), dtype=i.dtype)


def _cat(i: Inputs) -> Work:
    if not _elements(i.shapes[0]):
        raise ValueError("no shapes")
    return _clone(i)


def _fill(i: Inputs) -> Work:
    """Writes, reads nothing."""
    return Work(op_class=OpClass.COPY, flops=0, size_bytes=prod(i.shape(0)) * i.width(0), dtype=i.dtype)


def _reduction(i: Inputs) -> Work:
    """Reads all; what it writes is small beside it."""
    made = prod(i.shape(0))
    return Work(op_class=OpClass.REDUCTION, flops=made, size_bytes=made * i.width(0), dtype=i.dtype)


def _picked(i: Inputs) -> Work:
    """The loss of a classifier reads of each row the one element that its 8-byte target names."""
    rows = prod(i.shape(1))
    return Work(op_class=OpClass.REDUCTION, flops=rows, size_bytes=rows * (i.width(0) + 8), dtype=i.dtype)


# -- tables and optimizers ---------------------------------------------------------------------------------------------


def _embedding(i: Inputs) -> Work:
    return ops.embedding(prod(i.shape(1)), i.shape(0)[-1], dtype=i.dtype)


def _index_select(i: Inputs) -> Work:
    return ops.embedding(prod(i.shape(2)), prod(i.shape(0)[1:]), dtype=i.dtype)


def _embedding_backward(i: Inputs) -> Work:
    return ops.embedding(prod(i.shape(1)), i.shape(0)[-1], backward=True, dtype=i.dtype)


def _optimizer(kind: str) -> Family:
    """Lists of parameters, gradients, moments."""

    def work(i: Inputs) -> Work:
        parameters = _elements(i.shapes[0])
        if not parameters:
            raise ValueError("no shapes")
        moments = _size(i, 2) + (_size(i, 3) if kind == "adamw" else 0)
        held = kind if kind == "adamw" or moments else "sgd"
        done = ops.optimizer(parameters, kind=held, dtype=i.dtype)
        return replace(done, size_bytes=2 * _size(i, 0) + _size(i, 1) + 2 * moments)

    return work


# -- the table ---------------------------------------------------------------------------------------------------------

_UNARY: Final = ("relu", "neg", "abs", "sqrt", "rsqrt", "reciprocal", "clamp", "clamp_min", "clamp_max", "sign", "ceil",
                 "floor", "round", "logical_not", "bitwise_not", "tril", "triu", "dropout",
                 "native_dropout")  # fmt: skip
_BINARY: Final = ("add", "sub", "rsub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge",
                  "bitwise_and", "bitwise_or", "logical_and", "logical_or", "remainder", "masked_fill", "where",
                  "threshold_backward", "mse_loss_backward", "native_dropout_backward")  # fmt: skip
_TERNARY: Final = ("lerp", "addcmul", "addcdiv")
_CURVES: Final = ("gelu", "silu", "sigmoid", "tanh", "exp", "log", "erf", "sin", "cos", "pow", "hardswish", "mish",
                  "elu", "leaky_relu", "softplus", "gelu_backward", "silu_backward", "sigmoid_backward",
                  "tanh_backward")  # fmt: skip
_REDUCTIONS: Final = ("sum", "mean", "max", "min", "amax", "amin", "argmax", "argmin", "norm", "linalg_vector_norm",
                      "prod", "all", "any", "var", "std", "cumsum", "mse_loss")  # fmt: skip


def _each(names: Sequence[str], family: Family) -> dict[str, Family]:
    """An operator and its in-place form."""
    return {f"aten::{name}{ending}": family for name in names for ending in ("", "_")}


_SDPA: Final = "aten::_scaled_dot_product"
FAMILIES: Final[dict[str, Family]] = {
    "aten::mm": _mm(0),
    "aten::_scaled_mm": _mm(0),
    "aten::addmm": _mm(1),
    "aten::addmm_": _mm(1),
    "aten::_addmm_activation": _mm(1),
    "aten::bmm": _bmm(0),
    "aten::baddbmm": _bmm(1),
    "aten::baddbmm_": _bmm(1),
    "aten::mv": _mv(0),
    "aten::addmv": _mv(1),
    "aten::dot": _dot,
    "aten::linear": _linear,
    "aten::mkldnn_linear": _linear,
    "aten::matmul": _matmul,
    "aten::scaled_dot_product_attention": _attention(),
    **{f"{_SDPA}_{kind}": _attention() for kind in ("flash_attention", "efficient_attention", "cudnn_attention",
                                                   "fused_attention_overrideable", "flash_attention_for_cpu")},
    **{f"{_SDPA}_{kind}_backward": _attention(1, backward=True)
       for kind in ("flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable",
                    "flash_attention_for_cpu")},
    "aten::_cudnn_attention_forward": _attention(),
    "aten::_cudnn_attention_backward": _attention(1, backward=True),
    "aten::_flash_attention_forward": _attention(heads_last=True),
    "aten::_flash_attention_backward": _attention(1, backward=True, heads_last=True),
    "aten::_efficient_attention_forward": _attention(heads_last=True),
    "aten::_efficient_attention_backward": _attention(1, backward=True, heads_last=True),
    "aten::convolution": _convolution(3, 4, 5, 8, transposed=6),
    "aten::_convolution": _convolution(3, 4, 5, 8, transposed=6),
    "aten::cudnn_convolution": _convolution(3, 2, 4, 5),
    "aten::miopen_convolution": _convolution(4, 3, 5, 6),
    "aten::mkldnn_convolution": _convolution(4, 3, 5, 6),
    "aten::convolution_backward": _convolution_backward,
    "aten::layer_norm": _rows(ops.normalisation),
    "aten::native_layer_norm": _rows(ops.normalisation),
    "aten::rms_norm": _rows(ops.normalisation),
    "aten::_fused_rms_norm": _rows(ops.normalisation),
    "aten::native_layer_norm_backward": _backward(_rows(ops.normalisation)),
    "aten::rms_norm_backward": _backward(_rows(ops.normalisation)),  # as generated traces have it
    "aten::_fused_rms_norm_backward": _backward(_rows(ops.normalisation)),
    **{f"aten::{kind}batch_norm": _channels for kind in ("native_", "cudnn_", "miopen_", "_native_")},
    **{f"aten::{kind}batch_norm_backward": _backward(_channels) for kind in ("native_", "cudnn_", "miopen_")},
    "aten::native_group_norm": _channels,
    "aten::softmax": _rows(ops.softmax),
    "aten::log_softmax": _rows(ops.softmax),
    "aten::_softmax": _rows(ops.softmax),
    "aten::_log_softmax": _rows(ops.softmax),
    "aten::_softmax_backward_data": _backward(_rows(ops.softmax)),
    "aten::_log_softmax_backward_data": _backward(_rows(ops.softmax)),
    **_each((*_UNARY, *_BINARY), _pointwise()),
    **_each(_TERNARY, _pointwise(3)),
    **_each(_CURVES, _pointwise(ops.ACTIVATION_FLOPS, OpClass.ACTIVATION)),
    **{f"aten::{name}": _reduction for name in _REDUCTIONS},
    "aten::nll_loss_forward": _picked,
    **{f"aten::_foreach_{name}{ending}": _foreach()
       for name in ("add", "sub", "mul", "div", "sqrt", "neg", "reciprocal") for ending in ("", "_")},
    "aten::_foreach_copy_": _foreach(0),
    **{f"aten::_foreach_{name}{ending}": _foreach(3) for name in _TERNARY for ending in ("", "_")},
    "aten::copy_": _copy,
    "aten::_to_copy": _clone,
    "aten::clone": _clone,
    "aten::contiguous": _clone,
    "aten::cat": _cat,
    "aten::stack": _cat,
    "aten::fill_": _fill,
    "aten::zero_": _fill,
    "aten::embedding": _embedding,
    "aten::index_select": _index_select,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::_fused_adamw_": _optimizer("adamw"),
    "aten::_fused_adam_": _optimizer("adamw"),
    "aten::_fused_sgd_": _optimizer("momentum"),
}  # fmt: skip
"""Operators whose work follows from what they were given."""

MADE_OF_OTHERS: Final = frozenset(
    {"aten::linear", "aten::matmul", "aten::scaled_dot_product_attention", "aten::layer_norm", "aten::rms_norm",
     "aten::softmax", "aten::log_softmax", "aten::clone", "aten::contiguous", "aten::embedding", "aten::stack"}
)  # fmt: skip
"""Of these the operators that they call do the work, as a rule; they count where none of those is known."""
