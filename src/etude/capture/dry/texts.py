"""Texts of operators, each once: shapes, types and values of what they are given and make, as PyTorch's own execution
traces spell them; and what an operator's schema says of it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etude.capture.dry.tensors import tensors_in

TYPE_NAMES = {
    "float64": "double",
    "float32": "float",
    "bfloat16": "c10::BFloat16",
    "float16": "c10::Half",
    "int64": "long int",
    "int32": "int",
    "int16": "short int",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
    "float8_e4m3fn": "c10::Float8_e4m3fn",
    "float8_e5m2": "c10::Float8_e5m2",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
}
"""Types as PyTorch's own execution traces spell them."""
NO_WORK = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "lift_fresh", "_unsafe_view"),
        *("_local_scalar_dense", "resize_", "set_", "is_same_size", "record_stream", "is_pinned", "_reshape_alias"),
        *("alias", "detach_"),
    )
)
"""Operators that only make or look at a tensor."""


@dataclass(frozen=True, slots=True)
class WrappedNumber:
    """A number of the program where an operator takes a tensor: PyTorch makes one of it."""

    value: bool | int | float | complex


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """What the schema of an operator says."""

    name: str
    arguments: tuple[tuple[str, bool], ...]
    """The name of each, and whether a number there is made a tensor."""
    written: frozenset[int]
    """Places of arguments that it writes to."""
    works: bool
    talks: bool
    """Whether it may be a communication."""


def operator_facts(function: Any) -> OperatorFacts:
    schema = function._schema
    views = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    space = schema.name.partition("::")[0]
    infos = enumerate(argument.alias_info for argument in schema.arguments)
    return OperatorFacts(
        schema.name,
        tuple((argument.name, argument.type.kind() == "TensorType") for argument in schema.arguments),
        frozenset(place for place, info in infos if info is not None and info.is_write),
        not (views or schema.name in NO_WORK or space in ("prim", "profiler")),
        space in ("c10d", "_c10d_functional"),
    )


class OperatorTexts:
    """Texts by number, each once."""

    def __init__(self, torch: Any) -> None:
        self.words: list[str] = []
        self._tensor = torch.Tensor
        self._numbers: dict[Any, int] = {}
        self._given: dict[Any, tuple[int, int, int, int]] = {}

    def put(self, key: Any, make: Callable[[], str] | None = None) -> int:
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self._add(key if make is None else make())
        return found

    def made(self, tensors: list[Any]) -> tuple[int, int]:
        """(Shapes, types) of what an operator makes."""
        return (
            self.put(("s", *[t.shape for t in tensors]), lambda: json.dumps([list(t.shape) for t in tensors])),
            self.put(("t", *[t.dtype for t in tensors]), lambda: json.dumps([_type(t) for t in tensors])),
        )

    def given(self, values: list[Any], tensors: list[Any]) -> tuple[int, int, int, int]:
        """(Shapes, types, values, strides) of what an operator is given; its tensors go to `tensors`."""
        key, tensor = tuple([self._part(value, tensors) for value in values]), self._tensor
        found = self._given.get(key)
        if found is None:
            found = self._given[key] = (
                self._add(json.dumps([_shape(value, tensor) for value in values])),
                self._add(json.dumps([_type(value) for value in values])),
                self._add(json.dumps([_value(value, tensor) for value in values])),
                self._add(json.dumps([_stride(value, tensor) for value in values])),
            )
        return found

    def _add(self, text: str) -> int:
        self.words.append(text)
        return len(self.words) - 1

    def _part(self, value: Any, tensors: list[Any]) -> Any:
        if isinstance(value, self._tensor):
            tensors.append(value)
            return value.shape, value.stride(), value.dtype
        kind = type(value)
        if kind is int or kind is bool or value is None:
            return kind, value
        if isinstance(value, (list, tuple)):
            return tuple([self._part(item, tensors) for item in value])
        return kind.__name__, str(value)


def operator_values(facts: OperatorFacts, args: Any, kwargs: Any) -> tuple[list[Any], list[int]]:
    """(Arguments in the order of the schema, the place of each.)"""
    values = [
        WrappedNumber(value) if is_tensor and isinstance(value, (bool, int, float, complex)) else value
        for value, (_, is_tensor) in zip(args, facts.arguments, strict=False)
    ]
    places = list(range(len(values)))
    if kwargs:
        for place in range(len(args), len(facts.arguments)):
            name, is_tensor = facts.arguments[place]
            if name in kwargs:
                value, number = kwargs[name], (bool, int, float, complex)
                values.append(WrappedNumber(value) if is_tensor and isinstance(value, number) else value)
                places.append(place)
    return values, places


def _shape(value: Any, tensor: Any) -> Any:
    if isinstance(value, tensor):
        return list(value.shape)
    if isinstance(value, (list, tuple)) and tensors_in(value, tensor):
        return [_shape(item, tensor) for item in value]
    return []


def _stride(value: Any, tensor: Any) -> Any:
    if isinstance(value, tensor):
        return list(value.stride())
    if isinstance(value, (list, tuple)) and tensors_in(value, tensor):
        return [_stride(item, tensor) for item in value]
    return []


def _type(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    if dtype is not None and hasattr(value, "shape"):
        name = str(dtype).removeprefix("torch.")
        return f"Tensor({TYPE_NAMES.get(name, name)})"
    if isinstance(value, (list, tuple)):
        return f"GenericList[{','.join(_type(item) for item in value)}]"
    if isinstance(value, WrappedNumber):
        return _WRAPPED_TYPES[type(value.value)]
    return {bool: "Bool", int: "Int", float: "Double", str: "String", type(None): "None"}.get(type(value), "None")


_WRAPPED_TYPES = {
    bool: "Tensor(bool)",
    int: "Tensor(long int)",
    float: "Tensor(double)",
    complex: "Tensor(c10::complex<double>)",
}


def _value(value: Any, tensor: Any) -> Any:
    if isinstance(value, tensor):
        return []
    if isinstance(value, WrappedNumber):
        return _value(value.value, tensor)
    if isinstance(value, (list, tuple)):
        return [_value(item, tensor) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return value if isinstance(value, float) and value - value == 0 else str(value)
