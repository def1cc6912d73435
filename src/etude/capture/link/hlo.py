"""Compiled XLA programs (HloProto) as far as their collectives go: what each one sends, how much, and among whom.

HloProto         hlo_module 1
HloModuleProto   name 1, computations 3                     HloComputationProto  instructions 2
instruction      name 1, opcode 2, shape 3, replica_groups 49, source_target_pairs 52, collective_device_list 87,
                 iota_collective_device_list 92, mesh_axes_replica_group_list 93
shape            element_type 2, dimensions 3, tuple_shapes 4
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, Final

import numpy as np

from etude.base.errors import FormatError
from etude.capture.link.kernel_names import xla_collective
from etude.capture.link.recording import PERMUTE, Talk
from etude.kernels.varint import decode_varint
from etude.model.schema import UNKNOWN

_ELEMENTS: Final = {
    1: ("Bool", 1), 2: ("Char", 1), 3: ("Short", 2), 4: ("Int", 4), 5: ("Long", 8), 6: ("Byte", 1), 7: ("UInt16", 2),
    8: ("UInt32", 4), 9: ("UInt64", 8), 10: ("Half", 2), 11: ("Float", 4), 12: ("Double", 8), 15: ("ComplexFloat", 8),
    16: ("BFloat16", 2), 18: ("ComplexDouble", 16), 19: ("Float8_e5m2", 1), 20: ("Float8_e4m3fn", 1),
    24: ("Float8_e5m2fnuz", 1), 25: ("Float8_e4m3fnuz", 1),
}  # fmt: skip
"""XLA's PrimitiveType -> PyTorch's name, bytes of an element."""
_MOST_IDS: Final = 1 << 24
Field = tuple[int, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HloCollective:
    """One instruction that communicates."""

    collective: str
    dtype: str
    in_bytes: int
    out_bytes: int
    groups: tuple[tuple[int, ...], ...] = ()
    """Empty: all devices together; one empty group: given in an unreadable way."""
    pairs: tuple[tuple[int, int], ...] = ()
    """(source, target) of a permutation."""

    def talk(self, rank: int, world: int) -> Talk:
        """The collective as seen by one device."""
        if self.collective == PERMUTE:
            to = next((target for source, target in self.pairs if source == rank), -1)
            source = next((source for source, target in self.pairs if target == rank), -1)
            return Talk(collective=PERMUTE, dtype=self.dtype, in_bytes=self.in_bytes, out_bytes=self.out_bytes,
                        to=to, source=source)  # fmt: skip
        members = next((group for group in self.groups if rank in group), ())
        if not self.groups and world > 1:
            members = tuple(range(world))
        into, out = self.in_bytes, self.out_bytes
        if into == UNKNOWN and members and out != UNKNOWN:
            into = out // len(members) if self.collective == "all_gather" else out * len(members)
        return Talk(collective=self.collective, dtype=self.dtype, in_bytes=into, out_bytes=out, members=members)


@dataclass(frozen=True, slots=True)
class Module:
    """A compiled program: its collectives by the names of their instructions."""

    name: str
    collectives: dict[str, HloCollective] = field(default_factory=dict)


def read_module(data: bytes, path: str = "") -> Module:
    """A program from its HloProto; a damaged one is refused."""
    try:
        return _module(memoryview(data))
    except (IndexError, TypeError, ValueError) as problem:
        raise FormatError(f"a compiled program in it cannot be read: {problem}", path=path) from None


def _fields(data: Any) -> Iterator[Field]:
    if not isinstance(data, memoryview):
        raise ValueError("a number where a message is due")
    p = 0
    while p < len(data):
        key, p = decode_varint(data, p)
        wire = key & 7
        if wire == 0:
            value, p = decode_varint(data, p)
            yield key >> 3, value
            continue
        if wire not in (1, 2, 5):
            raise ValueError(f"wire type {wire}")
        length, p = decode_varint(data, p) if wire == 2 else (8 if wire == 1 else 4, p)
        if p + length > len(data):
            raise ValueError("cut short")
        yield key >> 3, data[p : p + length]
        p += length


def _text(value: Any) -> str:
    if not isinstance(value, memoryview):
        raise ValueError("a number where a text is due")
    return value.tobytes().decode("utf-8", "replace")


def _module(proto: memoryview) -> Module:
    name, found = "", {}
    for number, module in _fields(proto):
        if number != 1:
            continue
        for part, value in _fields(module):
            if part == 1:
                name = _text(value)
            elif part == 3:
                for inner, instruction in _fields(value):
                    if inner == 2 and (one := _instruction(instruction)) is not None:
                        found[one[0]] = one[1]
    return Module(name, found)


def _instruction(data: memoryview) -> tuple[str, HloCollective] | None:
    """(name, collective) of an instruction that communicates. Its name and opcode come first."""
    texts: dict[int, str] = {}
    shape: memoryview | None = None
    groups: list[tuple[int, ...]] = []
    pairs: list[tuple[int, int]] = []
    what = half = ""
    for number, value in _fields(data):
        if number in (1, 2):
            texts[number] = _text(value)
        if number == 2:
            opcode = texts.get(1, "") if texts[2] == "async-start" else texts[2]
            what, half = xla_collective(opcode)
            if not what or half == "done":
                return None
        elif number == 3:
            shape = value
        elif number == 49:
            groups += _replica_groups(value)
        elif number == 87:
            groups += _device_list(value)
        elif number == 92:
            groups += _iota(value)
        elif number == 93:
            groups += _along_axes(value)
        elif number == 52:
            ends = dict(_fields(value))
            pairs.append((int(ends.get(1, 0)), int(ends.get(2, 0))))
    if not what or shape is None:
        return None
    dtype, size = _size(shape, half == "start" and what != "all_reduce")
    scattered = what in ("all_gather", "reduce_scatter")
    return texts.get(1, ""), HloCollective(
        collective=what,
        dtype=dtype,
        in_bytes=UNKNOWN if scattered else size,
        out_bytes=size,
        groups=tuple(groups),
        pairs=tuple(pairs),
    )


def _size(shape: memoryview, is_pair: bool) -> tuple[str, int]:
    """(data type, bytes) of a shape; only the results if it begins with the operands."""
    element, parts = 0, []
    dims: tuple[int, ...] = ()
    for number, value in _fields(shape):
        if number == 2:
            element = value
        elif number == 3:
            dims = (*dims, *_packed(value))
        elif number == 4:
            parts.append(value)
    if parts:
        sizes = [_size(part, False) for part in (parts[1:2] if is_pair and len(parts) > 1 else parts)]
        kinds = {dtype for dtype, _ in sizes if dtype}
        known = all(size != UNKNOWN for _, size in sizes)
        return (kinds.pop() if len(kinds) == 1 else ""), sum(size for _, size in sizes) if known else UNKNOWN
    dtype, width = _ELEMENTS.get(element, ("", 0))
    return dtype, prod(dims) * width if width else UNKNOWN


def _packed(value: Any) -> tuple[int, ...]:
    """A repeated number: packed, or one of several fields."""
    if isinstance(value, int):
        return (value,)
    found, p = [], 0
    while p < len(value):
        number, p = decode_varint(value, p)
        found.append(number)
    return tuple(found)


def _replica_groups(data: memoryview) -> list[tuple[int, ...]]:
    return [tuple(i for number, value in _fields(data) if number == 1 for i in _packed(value))]


def _device_list(data: memoryview) -> list[tuple[int, ...]]:
    """Groups listed one by one, or as an array of ids that is reshaped and transposed (iota)."""
    found: list[tuple[int, ...]] = []
    for number, value in _fields(data):
        if number == 1:
            found += _replica_groups(value)
        elif number == 2:
            found += _iota(value)
    return found


def _iota(data: memoryview) -> list[tuple[int, ...]]:
    count, size = 0, 0
    dims: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    for number, value in _fields(data):
        if number == 1:
            count = value
        elif number == 2:
            size = value
        elif number == 3:
            dims += _packed(value)
        elif number == 4:
            order += _packed(value)
    if not 0 < count * size <= _MOST_IDS or prod(dims) != count * size:
        return [()]
    ids = np.arange(count * size).reshape(dims)
    return [tuple(row) for row in (ids.transpose(order) if order else ids).reshape(count, size).tolist()]


def _along_axes(data: memoryview) -> list[tuple[int, ...]]:
    """Groups along axes of a mesh of devices, or along parts of them: on an axis of 8, `pre 2, size 2` is the middle
    digit of a device's position on it, read as 2 x 2 x 2."""
    mesh = next((value for number, value in _fields(data) if number == 1), memoryview(b""))
    sizes = [int(dict(_fields(value)).get(2, 1)) for number, value in _fields(mesh) if number == 1]
    ids = [i for number, value in _fields(mesh) if number == 2 for i in _packed(value)]
    parts: dict[int, list[tuple[int, int]]] = {}
    for number, value in _fields(data):
        if number == 2:
            ref = dict(_fields(value))
            axis, part = int(ref.get(1, 0)), dict(_fields(ref[2])) if 2 in ref else {}
            if not 0 <= axis < len(sizes):
                return [()]
            parts.setdefault(axis, []).append((int(part.get(1, 1)), int(part.get(2, sizes[axis]))))
    dims: list[int] = []
    grouped: list[int] = []
    for axis, size in enumerate(sizes):
        cuts = sorted({1, size, *(edge for pre, n in parts.get(axis, ()) for edge in (pre, pre * n))})
        for low, high in pairwise(cuts):
            if high % low or high > size:
                return [()]
            if any(pre <= low and high <= pre * n for pre, n in parts.get(axis, ())):
                grouped.append(len(dims))
            dims.append(high // low)
    total = prod(sizes)
    if not sizes or not 0 < total <= _MOST_IDS or (ids and len(ids) != total):
        return [()]
    places = np.array(ids or range(total)).reshape(dims)
    order = [i for i in range(len(dims)) if i not in grouped] + grouped
    each = prod(dims[i] for i in grouped)
    return [tuple(row) for row in places.transpose(order).reshape(-1, each).tolist()]
