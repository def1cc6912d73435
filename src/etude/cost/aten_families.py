"""Which formula of `cost.ops` each PyTorch operator follows. Other operators stay unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from etude.base.shapes import names_in
from etude.cost import ops
from etude.cost.aten_inputs import Inputs, Shape, width_of
from etude.cost.aten_matrix import MATRIX_FAMILIES, Family
from etude.cost.ops import OpClass, Work

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
    """Backward of an op that reads once and writes once: reads the gradient too, and does about twice as much."""

    def work(i: Inputs) -> Work:
        done = forward(i)
        return replace(done, flops=2 * done.flops, size_bytes=done.size_bytes * 3 // 2)

    return work


# -- elements ----------------------------------------------------------------------------------------------------------


def _elements(shapes: Sequence[Shape]) -> int:
    return sum(prod(shape) for shape in shapes)


def _size(i: Inputs, argument: int) -> int:
    """Bytes of the tensors of an argument; 0 if it is not a tensor."""
    shapes, types = i.shapes[argument], i.types[argument]
    if not shapes or not types:
        return 0
    widths = [width_of(name) for name in types]
    if not all(widths):
        raise ValueError(argument)
    each = widths if len(widths) == len(shapes) else [widths[0]] * len(shapes)
    return sum(prod(shape) * width for shape, width in zip(shapes, each, strict=True))


def _broadcast(shapes: Sequence[Shape]) -> int:
    """Elements of the broadcast of tensors of these shapes."""
    axes = max(map(len, shapes))
    padded = [[1] * (axes - len(shape)) + shape for shape in shapes]
    return prod(max(column) if 0 not in column else 0 for column in zip(*padded, strict=True))


def _pointwise(takes: int, flops_each: int = 1, op_class: OpClass = OpClass.ELEMENTWISE) -> Family:
    """Reads every tensor it is given and writes one of their broadcast shape. A tensor after the arguments that it
    `takes` is its output."""

    def work(i: Inputs) -> Work:
        single = [a for a, shapes in enumerate(i.shapes[:takes]) if len(shapes) == 1]
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
    """Copies into the first from the second, which may have another type."""
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
    """Writes only."""
    return Work(op_class=OpClass.COPY, flops=0, size_bytes=prod(i.shape(0)) * i.width(0), dtype=i.dtype)


def _reduction(i: Inputs) -> Work:
    """Reads all; its output is small in comparison."""
    made = prod(i.shape(0))
    return Work(op_class=OpClass.REDUCTION, flops=made, size_bytes=made * i.width(0), dtype=i.dtype)


def _picked(i: Inputs) -> Work:
    """The loss of a classifier reads one element of each row, selected by an 8-byte target."""
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

_UNARY: Final = names_in("""
    relu neg abs sqrt rsqrt reciprocal sign ceil floor round logical_not bitwise_not tril triu dropout native_dropout
""")
_BINARY: Final = names_in("""
    add sub rsub mul div maximum minimum eq ne lt le gt ge bitwise_and bitwise_or logical_and logical_or remainder
    clamp_min clamp_max threshold_backward native_dropout_backward
""")
_OF_THREE: Final = ("clamp", "masked_fill", "where", "mse_loss_backward")
_TERNARY: Final = ("lerp", "addcmul", "addcdiv")
_CURVES: Final = names_in("""
    gelu silu sigmoid tanh exp log erf sin cos hardswish mish elu leaky_relu softplus
""")
_CURVES_OF_TWO: Final = ("pow", "gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward")
_REDUCTIONS: Final = names_in("""
    sum mean max min amax amin argmax argmin norm linalg_vector_norm prod all any var std cumsum mse_loss
""")


def _each(names: Sequence[str], family: Family) -> dict[str, Family]:
    """An operator and its in-place form."""
    return {f"aten::{name}{ending}": family for name in names for ending in ("", "_")}


FAMILIES: Final[dict[str, Family]] = {
    **MATRIX_FAMILIES,
    "aten::layer_norm": _rows(ops.normalisation),
    "aten::native_layer_norm": _rows(ops.normalisation),
    "aten::rms_norm": _rows(ops.normalisation),
    "aten::_fused_rms_norm": _rows(ops.normalisation),
    "aten::native_layer_norm_backward": _backward(_rows(ops.normalisation)),
    "aten::rms_norm_backward": _backward(_rows(ops.normalisation)),  # as in generated traces
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
    **_each(_UNARY, _pointwise(1)),
    **_each(_BINARY, _pointwise(2)),
    **_each(_OF_THREE, _pointwise(3)),
    **_each(_TERNARY, _pointwise(3, 3)),
    **_each(_CURVES, _pointwise(1, ops.ACTIVATION_FLOPS, OpClass.ACTIVATION)),
    **_each(_CURVES_OF_TWO, _pointwise(2, ops.ACTIVATION_FLOPS, OpClass.ACTIVATION)),
    **{f"aten::{name}": _reduction for name in _REDUCTIONS},
    "aten::nll_loss_forward": _picked,
    **{
        f"aten::_foreach_{name}{ending}": _foreach()
        for name in ("add", "sub", "mul", "div", "sqrt", "neg", "reciprocal")
        for ending in ("", "_")
    },
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
}
"""Operators whose work follows from their arguments."""

MADE_OF_OTHERS: Final = frozenset(
    {"aten::linear", "aten::matmul", "aten::conv1d", "aten::conv2d", "aten::conv3d",
     "aten::scaled_dot_product_attention", "aten::layer_norm", "aten::rms_norm", "aten::softmax", "aten::log_softmax",
     "aten::clone", "aten::contiguous", "aten::embedding", "aten::stack"}
)  # fmt: skip
"""For these the operators that they call usually do the work; they count if none of those is known."""
