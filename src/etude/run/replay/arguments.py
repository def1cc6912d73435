"""The arguments and results of an operator, parsed from the strings that a trace recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

import msgspec

from etude.cost.aten_inputs import listed

DTYPES: Final = {
    "float": "float32", "double": "float64", "c10::BFloat16": "bfloat16", "c10::Half": "float16",
    "long int": "int64", "long": "int64", "int": "int32", "short": "int16", "short int": "int16",
    "signed char": "int8", "unsigned char": "uint8", "bool": "bool", "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128", "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz", "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "unsigned short": "uint16", "unsigned int": "uint32", "unsigned long": "uint64",
}  # fmt: skip
"""Tensor data types: the observer's name -> PyTorch's name."""
_TRUTH: Final = re.compile(r"(?<=[\[ ])(?:True|False)(?=[,\]])")
_ODD_FLOATS: Final = {"inf": "inf", "-inf": "-inf", "nan": "nan", "Infinity": "inf", "-Infinity": "-inf", "NaN": "nan"}


class RecordedTensor(NamedTuple):
    """A tensor as it was recorded."""

    storage: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int
    device: str

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def place(self) -> tuple[int, str]:
        """The storage and its device: memory of two devices may have the same number, for example if both are empty."""
        return self.storage, self.device

    @property
    def extent_bytes(self) -> int:
        """Bytes from the start of the storage to the end of the last element of the tensor."""
        if not self.numel:
            return 0
        stride = self.stride or contiguous(self.shape)
        reach = sum((n - 1) * s for n, s in zip(self.shape, stride, strict=True))
        return (self.offset + reach + 1) * self.itemsize

    @property
    def look(self) -> tuple[Any, ...]:
        return self.offset, self.dtype, self.shape, self.stride


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor, in elements."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments or the results of one call, in order."""

    form: list[Any]
    """In the format of `Calls.form`: `{"t": k}` is the k-th tensor."""
    tensors: list[RecordedTensor]
    whole: bool
    """False if a value was not recorded: an object, or a tensor without a shape."""


NOTHING_GIVEN: Final = Arguments([], [], True)


def arguments(values: str, types: str, shapes: str, strides: str) -> Arguments:
    """Parses the arguments or the results of a node from its four recorded strings."""
    given, kinds = _listed(values), _listed(types)
    if not given and not kinds:
        return NOTHING_GIVEN
    shape_of, stride_of = _listed(shapes), _listed(strides)
    reader = _ArgumentReader([], True)
    form = [
        reader.read(
            value,
            str(kinds[at]) if at < len(kinds) else "",
            shape_of[at] if at < len(shape_of) else None,
            stride_of[at] if at < len(stride_of) else None,
        )
        for at, value in enumerate(given)
    ]
    return Arguments(form, reader.tensors, reader.whole and len(kinds) == len(given))


def _listed(text: str) -> list[Any]:
    """Parses a list in Python's notation. Most lists have no quotes inside their strings and are decoded as JSON, after
    replacing the quotes."""
    if not text:
        return []
    try:
        plain = _TRUTH.sub(lambda found: found[0].lower(), text).replace("'", '"')
        found = msgspec.json.decode(plain)
    except msgspec.MsgspecError:
        return listed(text)
    return found if isinstance(found, list) else []


def _types(text: str) -> list[str]:
    """Splits types at commas, but not at commas inside the brackets of a nested list."""
    if "[" not in text:
        return text.split(",") if text else []
    found, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            found.append(text[begin:at])
            begin = at + 1
    return [*found, text[begin:]]


@dataclass(slots=True)
class _ArgumentReader:
    tensors: list[RecordedTensor]
    whole: bool

    def read(self, value: Any, kind: str, shape: Any, stride: Any) -> Any:
        if kind.startswith("Tensor("):
            return self._tensor(value, kind[7:-1], shape, stride)
        if kind.startswith(("GenericList[", "Tuple[")):
            if not isinstance(value, list):
                self.whole = False
                return None
            inner = _types(kind[kind.index("[") + 1 : -1])
            if len(inner) != len(value):  # the observer truncates long lists
                self.whole = False
                return None
            shapes = shape if isinstance(shape, list) and len(shape) == len(value) else [None] * len(value)
            strides = stride if isinstance(stride, list) and len(stride) == len(value) else [None] * len(value)
            return [self.read(*each) for each in zip(value, inner, shapes, strides, strict=True)]
        return self._plain(value, kind)

    def _plain(self, value: Any, kind: str) -> Any:
        if kind == "None" or value in ("<None>", "<Generator>"):
            return None
        if kind == "Device":
            return {"device": str(value)}
        if kind == "Double" and isinstance(value, str):
            if value not in _ODD_FLOATS:
                self.whole = False
            return {"f": _ODD_FLOATS.get(value, "nan")}
        if kind in ("Int", "Double", "Bool", "String") and not isinstance(value, (list, dict)):
            return float(value) if kind == "Double" and isinstance(value, int) else value
        self.whole = False
        return None

    def _tensor(self, value: Any, kind: str, shape: Any, stride: Any) -> Any:
        if kind.startswith("nullptr"):
            return None
        dtype = DTYPES.get(kind)
        known = isinstance(value, list) and len(value) == 6 and isinstance(shape, list) and dtype is not None
        if not known or any(not isinstance(n, int) for n in shape):
            self.whole = False
            return None
        _, storage, offset, numel, itemsize, device = value
        size = tuple(shape)
        step = tuple(stride) if isinstance(stride, list) and len(stride) == len(shape) else ()
        if prod(size) != numel or dtype is None:
            self.whole = False
            return None
        self.tensors.append(RecordedTensor(storage, offset, dtype, size, step, itemsize, device))
        return {"t": len(self.tensors) - 1}


def without_stream(given: Arguments) -> Arguments:
    """Arguments of a Triton kernel without the last one, which is the stream of its launch. Old releases also recorded
    the grid as a string before it; such a kernel cannot be called, so `whole` is False."""
    plain = bool(given.form) and isinstance(given.form[-1], int) and not any(isinstance(v, str) for v in given.form)
    return Arguments(given.form[:-1], given.tensors, given.whole and plain)


def results(form: list[Any]) -> Iterator[Any]:
    """Yields the results one after the other, with lists flattened, as a player sees them."""
    for value in form:
        if isinstance(value, list):
            yield from results(value)
        else:
            yield value
