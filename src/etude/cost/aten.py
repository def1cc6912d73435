"""PyTorch operators as work: FLOPs and bytes from the shapes and types that a trace recorded."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

from etude.cost import ops
from etude.cost.ops import Work

Shape = list[int]

_TYPES: Final = {
    "double": "fp64",
    "float": "fp32",
    "c10::bfloat16": "bf16",
    "bfloat16": "bf16",
    "c10::half": "fp16",
    "half": "fp16",
    "c10::float8_e4m3fn": "fp8",
    "c10::float8_e5m2": "fp8",
    "signed char": "int8",
    "unsigned char": "int8",
}


_LISTED: Final = re.compile(r"""["']([^"']*)["']""")


def dtype_of(in_types: str) -> str:
    """Data type of the first tensor that has one; empty where none is known.

    Host traces write `Tensor(c10::BFloat16)`, device traces a list of types, `["c10::BFloat16", "Scalar"]`."""
    for piece in in_types.replace("'", '"').split("Tensor(")[1:] or _LISTED.findall(in_types):
        known = _TYPES.get(piece.partition(")")[0].strip().lower())
        if known:
            return known
    return ""


def shapes_of(in_shapes: str) -> list[Shape]:
    """Shapes of the inputs, in order; an input that is no tensor has an empty one. Nothing where it is no list."""
    try:
        given = ast.literal_eval(in_shapes) if in_shapes else []
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    if not isinstance(given, (list, tuple)):
        return []
    return [list(s) if _is_shape(s) else [] for s in given]


def _is_shape(given: Any) -> bool:
    return isinstance(given, (list, tuple)) and all(isinstance(n, int) and n >= 0 for n in given)


def _mm(s: Sequence[Shape], dtype: str) -> Work:
    (m, k), (_, n) = s[0], s[1]
    return ops.matmul(m, n, k, dtype=dtype)


def _addmm(s: Sequence[Shape], dtype: str) -> Work:
    return _mm(s[1:], dtype)


def _bmm(s: Sequence[Shape], dtype: str) -> Work:
    (b, m, k), (_, _, n) = s[0], s[1]
    return ops.matmul(m, n, k, batch=b, dtype=dtype)


def _linear(s: Sequence[Shape], dtype: str) -> Work:
    *rows, k = s[0]
    return ops.matmul(prod(rows), s[1][0], k, dtype=dtype)


def _attention(s: Sequence[Shape], dtype: str) -> Work:
    """batch x heads x length x head size; causal or not is not in the shapes, so all pairs count."""
    b, h, queries, d = s[0]
    _, kv_heads, keys, _ = s[1]
    return ops.attention(queries, keys, heads=h, head_size=d, batch=b, kv_heads=kv_heads, causal=False, dtype=dtype)


def _rows(make: Callable[..., Work]) -> Callable[[Sequence[Shape], str], Work]:
    return lambda s, dtype: make(prod(s[0][:-1]), s[0][-1], dtype=dtype)


def _each(make: Callable[..., Work]) -> Callable[[Sequence[Shape], str], Work]:
    return lambda s, dtype: make(prod(s[0]), dtype=dtype)


def _two(s: Sequence[Shape], dtype: str) -> Work:
    elements = [prod(x) for x in s[:2] if x]
    work = ops.elementwise(max(elements), inputs=1, dtype=dtype)
    other = ops.copy(min(elements), dtype=dtype).size_bytes // 2 if len(elements) == 2 else 0
    return replace(work, size_bytes=work.size_bytes + other)


def _embedding(s: Sequence[Shape], dtype: str) -> Work:
    return ops.embedding(prod(s[1]), s[0][-1], dtype=dtype)


FAMILIES: Final[dict[str, Callable[[Sequence[Shape], str], Work]]] = {
    "aten::mm": _mm,
    "aten::addmm": _addmm,
    "aten::bmm": _bmm,
    "aten::linear": _linear,
    "aten::scaled_dot_product_attention": _attention,
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_cudnn_attention": _attention,
    "aten::layer_norm": _rows(ops.normalisation),
    "aten::native_layer_norm": _rows(ops.normalisation),
    "aten::rms_norm": _rows(ops.normalisation),
    "aten::softmax": _rows(ops.softmax),
    "aten::_softmax": _rows(ops.softmax),
    "aten::_log_softmax": _rows(ops.softmax),
    "aten::gelu": _each(ops.activation),
    "aten::silu": _each(ops.activation),
    "aten::sigmoid": _each(ops.activation),
    "aten::tanh": _each(ops.activation),
    "aten::relu": _each(ops.elementwise),
    "aten::add": _two,
    "aten::add_": _two,
    "aten::sub": _two,
    "aten::mul": _two,
    "aten::mul_": _two,
    "aten::div": _two,
    "aten::copy_": _each(ops.copy),
    "aten::clone": _each(ops.copy),
    "aten::embedding": _embedding,
}
"""Operators whose work follows from their inputs' shapes."""


def aten_work(name: str, in_shapes: str, in_types: str) -> Work:
    """The work of an operator; of class NONE with nothing known where its name or its shapes say too little."""
    family = FAMILIES.get(name)
    shapes = shapes_of(in_shapes) if family else []
    if family is None or not shapes:
        return Work()
    dtype = dtype_of(in_types)
    try:
        return family(shapes, dtype) if dtype else replace(family(shapes, "fp32"), size_bytes=Work().size_bytes)
    except (ValueError, IndexError):  # fewer or other dimensions than the family has
        return Work()
