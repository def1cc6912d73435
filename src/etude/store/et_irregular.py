"""Node messages that are legal protobuf but unusual, rewritten one by one into the form that the kernels read.

Protobuf lets a writer repeat a singular field (the last wins, messages merge), set a oneof twice, put fields in any
order and add fields that this schema does not know. None of it may be lost: what the model has no column for is
returned as `extra`, protobuf fields that are written back after the node's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from etude.base.errors import FormatError
from etude.kernels.arrays import as_read
from etude.kernels.varint import decode_varint, encode_varint
from etude.model.schema import ValueKind
from etude.model.text import pad, words
from etude.store.et_wire import MAX_DEPTH, MAX_MICROS, PROBLEM, VALUE_WIRE, check_list


@dataclass(frozen=True, slots=True)
class WireField:
    number: int
    wire: int
    value: int
    """The number of a varint, else the offset of the payload."""
    payload: bytes
    raw: bytes
    """Tag and value as in the file."""
    body: int
    """How many of these bytes follow the tag."""


def fields(data: bytes, where: str, base: int, within: int = 0) -> Iterator[WireField]:
    """The fields of one message; `base` is its position in the file, `within` its nesting depth."""
    p = 0
    while p < len(data):
        start = p
        try:
            tag, p = _tag(data, p)
            body = p
            number, wire = tag >> 3, tag & 7
            value, payload = 0, b""
            if number == 0:
                raise ValueError("not a protobuf field")
            if wire == 0:
                value, p = _checked_varint(data, p)
            elif wire == 1 or wire == 5:
                size = 8 if wire == 1 else 4
                payload, p = data[p : p + size], p + size
            elif wire == 2:
                length, p = _checked_varint(data, p)
                payload, p = data[p : p + length], p + length
            elif wire == 3:
                p = _end_of_group(data, p, number, within + 1)
            else:
                raise ValueError("not a protobuf field")
            if p > len(data):
                raise ValueError("a field runs past the end of its message")
        except (ValueError, IndexError) as problem:
            text = str(problem) if isinstance(problem, ValueError) else "a field runs past the end of its message"
            raise FormatError(text, path=where, offset=base + start) from None
        yield WireField(number, wire, value, payload, data[start:p], p - body)


def _checked_varint(data: bytes, p: int) -> tuple[int, int]:
    value, q = decode_varint(data, p)
    if q - p > 10:
        raise ValueError("a number does not end within its message")
    return value, q


def _tag(data: bytes, p: int) -> tuple[int, int]:
    value, q = decode_varint(data, p)
    if q - p > 5 or value >> 32:
        raise ValueError("not a protobuf field")
    return value, q


def _end_of_group(data: bytes, p: int, number: int, depth: int) -> int:
    if depth > MAX_DEPTH:
        raise ValueError("groups nested too deeply")
    while True:
        tag, p = _tag(data, p)
        wire = tag & 7
        if wire == 4:
            if tag >> 3 != number:
                raise ValueError("not a protobuf field")
            return p
        if wire == 0:
            _, p = _checked_varint(data, p)
        elif wire == 1 or wire == 5:
            p += 8 if wire == 1 else 4
        elif wire == 2:
            length, p = _checked_varint(data, p)
            p += length
        elif wire == 3:
            p = _end_of_group(data, p, tag >> 3, depth + 1)
        else:
            raise ValueError("not a protobuf field")
        if p > len(data):
            raise ValueError("a field runs past the end of its message")


def delimited(number: int, payload: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(payload)) + payload


@dataclass(slots=True)
class _Text:
    """An IOInfo, merged."""

    texts: dict[int, bytes] = field(default_factory=dict)
    unknown: bytearray = field(default_factory=bytearray)

    def merge(self, data: bytes, where: str, base: int) -> None:
        for f in fields(data, where, base, 1):
            if f.wire == 2 and f.number <= 3:
                check_text(f.payload, where, base)
                self.texts[f.number] = f.payload
            else:
                self.unknown += f.raw

    def encode(self) -> bytes:
        return b"".join(delimited(n, t) for n, t in sorted(self.texts.items()))


def check_text(payload: bytes, where: str, base: int) -> None:
    try:
        payload.decode()
    except UnicodeDecodeError:
        raise FormatError("text that is not UTF-8", path=where, offset=base) from None


def check_value(f: WireField, where: str, base: int) -> None:
    """Checks that an attribute's value is well-formed, even if a later one will replace it."""
    kind = ValueKind(f.number - 2)
    if kind == ValueKind.STRING:
        check_text(f.payload, where, base)
    elif kind.is_list:
        heap = as_read(pad(f.payload))
        problem = check_list(heap, words(heap), int(kind), 0, len(f.payload), np.empty(MAX_DEPTH, np.uint64))
        if problem:
            raise FormatError(PROBLEM[problem], path=where, offset=base)


def regular_attribute(data: bytes, where: str, base: int) -> bytes:
    """An attribute with name, doc string, unknown fields and value once each, in this order."""
    name = doc = b""
    unknown, value_raw, merged = bytearray(), b"", bytearray()
    has_name = has_doc = False
    number = 0
    for f in fields(data, where, base, 1):
        if f.wire == 2 and f.number in (1, 2):
            check_text(f.payload, where, base)
            if f.number == 1:
                name, has_name = f.payload, True
            else:
                doc, has_doc = f.payload, True
        elif 3 <= f.number <= 32 and f.wire == int(VALUE_WIRE[f.number - 2]):
            check_value(f, where, base)
            if f.number % 2 == 1:
                value_raw = encode_varint(f.number << 3 | f.wire) + f.raw[len(f.raw) - f.body :]
            elif f.number == number:  # lists merge
                merged += f.payload
            else:
                merged = bytearray(f.payload)
            number = f.number
        else:
            unknown += f.raw
    if number and number % 2 == 0:
        value_raw = delimited(number, bytes(merged))
    head = (delimited(1, name) if has_name else b"") + (delimited(2, doc) if has_doc else b"")
    return head + bytes(unknown) + value_raw


def regular_node(data: bytes, where: str, base: int) -> tuple[bytes, bytes]:
    """(the node as the kernels read it, the extra fields)."""
    numbers: dict[int, int] = {}
    name: bytes | None = None
    ios: dict[int, _Text] = {}
    deps: dict[int, list[int]] = {4: [], 5: []}
    attrs: list[bytes] = []
    extra = bytearray()
    for f in fields(data, where, base):
        if f.number in (1, 3, 6, 7) and f.wire == 0:
            numbers[f.number] = f.value
        elif f.number == 2 and f.wire == 2:
            check_text(f.payload, where, base)
            name = f.payload
        elif f.number in (4, 5) and f.wire == 0:
            deps[f.number].append(f.value)
        elif f.number in (4, 5) and f.wire == 2:
            deps[f.number].extend(_packed(f.payload, where, base))
        elif f.number in (8, 9) and f.wire == 2:
            ios.setdefault(f.number, _Text()).merge(f.payload, where, base)
        elif f.number == 10 and f.wire == 2:
            attrs.append(regular_attribute(f.payload, where, base))
        else:
            extra += f.raw
    out = b""
    for number, value in sorted(numbers.items()):
        if number == 3:
            value &= 0xFFFFFFFF
        keep = value > 7 if number == 3 else number in (6, 7) and value > MAX_MICROS
        wire_value = value | 0xFFFFFFFF00000000 if number == 3 and value >= 2**31 else value
        raw = encode_varint(number << 3) + encode_varint(wire_value)
        if keep:
            extra += raw
        else:
            out += raw
    if name is not None:
        out += delimited(2, name)
    for number, values in deps.items():
        if values:
            out += delimited(number, b"".join(map(encode_varint, values)))
    for number, io in sorted(ios.items()):
        out += delimited(number, io.encode())
        if io.unknown:
            extra += delimited(number, bytes(io.unknown))
    out += b"".join(delimited(10, a) for a in attrs)
    return out, bytes(extra)


def _packed(payload: bytes, where: str, base: int) -> list[int]:
    values, p = [], 0
    try:
        while p < len(payload):
            value, p = _checked_varint(payload, p)
            values.append(value)
    except (ValueError, IndexError):
        raise FormatError("a number does not end within its message", path=where, offset=base) from None
    return values


def extra_time(extra: bytes) -> bool:
    """Whether a start or a duration too large for 64-bit ns is among a node's extra fields."""
    return any(f.number in (6, 7) and f.wire == 0 for f in fields(extra, "", 0))


def extra_type(extra: bytes) -> int | None:
    """The node type among a node's extra fields, signed; None: not there."""
    for f in fields(extra, "", 0):
        if f.number == 3 and f.wire == 0:
            return f.value - 2**64 if f.value >= 2**63 else f.value
    return None
