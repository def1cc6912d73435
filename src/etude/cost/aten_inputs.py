"""Arguments of a PyTorch operator, from the texts in a trace: shapes, types, values."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

Shape = list[int]

_TYPES: Final = {
    "double": "fp64",
    "float": "fp32",
    "bfloat16": "bf16",
    "half": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2": "fp8",
    "float8_e5m2fnuz": "fp8",
    "float4_e2m1fn_x2": "fp4",
    "signed char": "int8",
    "unsigned char": "int8",
}
_WIDTHS: Final = {
    "double": 8, "float": 4, "bfloat16": 2, "half": 2, "signed char": 1, "unsigned char": 1, "bool": 1,
    "char": 1, "byte": 1, "short": 2, "short int": 2, "int": 4, "long": 8, "long int": 8,
    "complex<float>": 8, "complex<double>": 16,
}  # fmt: skip
_NARROW: Final = re.compile(r"float(8|4_e2m1)", re.IGNORECASE)
_TENSOR: Final = re.compile(r"Tensor\(([^()]*)\)")


def _bare(name: str) -> str:
    return name.strip().lower().removeprefix("c10::")


def tensor_types(text: Any) -> list[str]:
    """Types of the tensors of one argument: `Tensor(float)`, `GenericList[Tensor(float),...]`, or a bare `float`."""
    found = [_bare(name) for name in _TENSOR.findall(str(text))]
    return found or ([_bare(str(text))] if _bare(str(text)) in _WIDTHS or _NARROW.search(str(text)) else [])


def width_of(name: str) -> int:
    """Bytes of an element of a bare type; 0 if unknown. An element of `float4_e2m1fn_x2` is a pair."""
    return 1 if _NARROW.match(name) else _WIDTHS.get(name, 0)


def dtype_of(in_types: str) -> str:
    """Data type of the first tensor that has one: `Tensor(c10::BFloat16)` is `bf16`; empty if unknown."""
    return first_dtype([tensor_types(text) for text in listed(in_types)])


def first_dtype(types: list[list[str]]) -> str:
    return next((_TYPES[name] for names in types for name in names if name in _TYPES), "")


def shapes_of(in_shapes: str) -> list[Shape]:
    """Shapes of the inputs, in order; empty for an input that is not a tensor. Empty if the text is not a list."""
    return [list(s) if _is_shape(s) else [] for s in listed(in_shapes)]


def listed(text: str) -> list[Any]:
    """The list in a text, as written by JSON or Python; empty if there is none."""
    try:
        given = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        try:
            given = ast.literal_eval(text) if text else []
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return []
    return list(given) if isinstance(given, (list, tuple)) else []


def _is_shape(given: Any) -> bool:
    return isinstance(given, (list, tuple)) and all(isinstance(n, int) and n >= 0 for n in given)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Arguments of an operator: shapes and types of the tensors of each, and the other values."""

    shapes: list[list[Shape]]
    types: list[list[str]]
    values: list[Any]
    dtype: str
    """Type of the first tensor, as in `cost.ops`; `fp32` if unknown."""
    causal: bool | None = None
    """Whether attention is causal, according to its kernel; None if unknown."""

    def shape(self, argument: int) -> Shape:
        (found,) = self.shapes[argument]
        return found

    def width(self, argument: int) -> int:
        """Bytes of an element; ValueError if unknown."""
        found = width_of(self.types[argument][0]) if self.types[argument] else 0
        if not found:
            raise ValueError(argument)
        return found

    def numbers(self, argument: int) -> list[int]:
        """A list of numbers among the arguments, e.g. strides; ValueError if not recorded."""
        given = self.values[argument]
        given = listed(given) if isinstance(given, str) else given
        if not isinstance(given, list) or not all(isinstance(n, int) for n in given):
            raise ValueError(argument)
        return given

    def number(self, argument: int) -> int:
        given = self.values[argument]
        return int(given)


def shapes_of_argument(given: Any, types: list[str]) -> list[Shape]:
    """One shape for a tensor, several for a list of tensors, none for anything else; a scalar tensor has the shape
    []."""
    if _is_shape(given):
        return [list(given)] if given or types else []
    return [list(s) for s in given if _is_shape(s)] if isinstance(given, (list, tuple)) else []
