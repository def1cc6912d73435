"""Nodes and attributes from protobuf's JSON mapping to messages."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Any, Final

import msgspec

from etude.kernels.varint import encode_varint
from etude.model.attrs import encode_list, scalar_to_varint
from etude.model.schema import KIND_TO_WIRE, ValueKind
from etude.store.et_irregular import delimited
from etude.store.et_wire import VALUE_WIRE
from etude.store.json_storage import FIELD, TYPES, storage_bytes

V = ValueKind


def _camel(kind: ValueKind) -> str:
    head, tail = kind.wire_name.split("_")
    return head + tail.capitalize()


FIELD_NAME: Final = {k: _camel(k) for k in V if k}
_KIND: Final = {name: k for k, name in FIELD_NAME.items()}
_TYPE: Final = {k.wire_name: wire for k, wire in KIND_TO_WIRE.items()} | {n: wire for wire, n in TYPES.items()}
_SMALL: Final = [encode_varint(i) for i in range(1 << 14)]
_HEAD: Final = [bytes((i & 127 | 128, i >> 7 | 128)) for i in range(1 << 14)]
"""The first two bytes of a longer varint."""
_TAKES: Final[dict[ValueKind, dict[type, bool]]] = {V.DOUBLE: {}, V.FLOAT: {}, V.BOOL: {bool: True}}
_RANGE: Final = {
    V.INT32: (-(2**31), 2**31), V.SINT32: (-(2**31), 2**31), V.SFIXED32: (-(2**31), 2**31),
    V.UINT32: (0, 2**32), V.FIXED32: (0, 2**32),
    V.INT64: (-(2**63), 2**63), V.SINT64: (-(2**63), 2**63), V.SFIXED64: (-(2**63), 2**63),
    V.UINT64: (0, 2**64), V.FIXED64: (0, 2**64),
}  # fmt: skip
_FIXED: Final = {V.FIXED32: "<I", V.FIXED64: "<Q", V.SFIXED32: "<i", V.SFIXED64: "<q"}


class MappingError(Exception):
    """(problem, path below the message)."""


class IO(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    values: str | None = None
    shapes: str | None = None
    types: str | None = None


class Node(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A node in protobuf's JSON mapping; null is absent."""

    id: int | None = None
    name: str | None = None
    type: str | int | None = None
    ctrl_deps: list[int] | None = None
    data_deps: list[int] | None = None
    start_time_micros: int | None = None
    duration_micros: int | None = None
    inputs: IO | None = None
    outputs: IO | None = None
    attr: list[dict[str, Any]] | None = None
    storage: dict[str, Any] | None = None
    unknown: str | None = msgspec.field(default=None, name="_unknown")


def unbase64(value: Any, below: str) -> bytes:
    try:
        if not isinstance(value, str):
            raise ValueError("not text")
        padded = value.replace("-", "+").replace("_", "/") + "=" * (-len(value) % 4)  # both alphabets, as protobuf
        return base64.b64decode(padded, validate=True)
    except (binascii.Error, ValueError) as problem:
        raise MappingError(f"not base64: {problem}", below) from None


def short(value: int) -> bytes:
    if 0 <= value < 16384:
        return _SMALL[value]
    if 0 <= value < 1 << 28:
        return _HEAD[value & 16383] + _SMALL[value >> 14]
    return encode_varint(value)


class _Memo(dict[Any, bytes]):
    """Value -> the whole attribute as in a node, for one (name, kind): attributes repeat."""

    def __init__(self, head: bytes, kind: ValueKind) -> None:
        self.head, self.kind = head, kind
        # 1, 1.0 and true are one dict key, and so are 0.0 and -0.0: each kind is looked up by one type only
        self.takes = _TAKES.get(kind, {str: True, int: True}) if not kind.is_list else {}

    def __missing__(self, value: Any) -> bytes:
        if len(self) > 1 << 16:
            self.clear()
        if self.kind == V.STRING_LIST:
            raws = [v.encode() for v in value]
            raw = b"".join([b"\x0a" + short(len(r)) + r for r in raws])
            body = self.head + short(len(raw)) + raw
        else:
            body = self.head + _value(self.kind, value, "")
        found = self[value] = b"\x52" + short(len(body)) + body
        return found


class Encoder:
    """Nodes as protobuf messages."""

    def __init__(self) -> None:
        self._memo: dict[tuple[str, str], _Memo] = {}

    def node(self, n: Node) -> bytes:
        out = []
        if n.id:
            out.append(b"\x08" + _unsigned(n.id, ".id"))
        if n.name:
            raw = n.name.encode()
            out.append(b"\x12" + short(len(raw)) + raw)
        if n.type:
            out.append(_type(n.type))
        if n.ctrl_deps:
            body = b"".join([_unsigned(d, ".ctrlDeps") for d in n.ctrl_deps])
            out.append(b"\x22" + short(len(body)) + body)
        if n.data_deps:
            body = b"".join([_unsigned(d, ".dataDeps") for d in n.data_deps])
            out.append(b"\x2a" + short(len(body)) + body)
        if n.start_time_micros:
            out.append(b"\x30" + _unsigned(n.start_time_micros, ".startTimeMicros"))
        if n.duration_micros:
            out.append(b"\x38" + _unsigned(n.duration_micros, ".durationMicros"))
        if n.inputs is not None:
            out.append(_io(b"\x42", n.inputs))
        if n.outputs is not None:
            out.append(_io(b"\x4a", n.outputs))
        if n.attr:
            self._attrs(n.attr, out)
        if n.storage is not None:
            out.append(_storage(n.storage))
        if n.unknown:
            out.append(unbase64(n.unknown, "._unknown"))
        return b"".join(out)

    def _attrs(self, attrs: list[dict[str, Any]], out: list[bytes]) -> None:
        memo = self._memo
        for i, attr in enumerate(attrs):
            # name and value, seen before: the usual case
            try:
                (first, name), (key, value) = attr.items()
                known = memo[name, key]
                kind = type(value)
                if first == "name" and known.takes.get(kind):
                    out.append(known[value])
                    continue
                if known.kind == V.STRING_LIST and len(value) == 1:
                    out.append(known[tuple(value["values"])])
                    continue
            except (ValueError, KeyError, TypeError, AttributeError, MappingError):
                pass
            body = self.attr(attr, f".attr[{i}]")
            out.append(b"\x52" + short(len(body)) + body)

    def attr(self, attr: dict[str, Any], path: str) -> bytes:
        """The body of an attribute; `path` is its position for errors."""
        keys = [k for k in attr if k in _KIND and attr[k] is not None]
        known = {"name", "docString", "_unknown", "_bits", "_payload", *_KIND}
        if extra := set(attr) - known:
            raise MappingError(f"unknown field `{min(extra)}`", path)
        if len(keys) > 1:
            raise MappingError(f"both `{keys[0]}` and `{keys[1]}`", path)
        name, doc = attr.get("name") or "", attr.get("docString") or ""
        if not isinstance(name, str) or not isinstance(doc, str):
            raise MappingError("name and docString are text", path)
        head = (delimited(1, name.encode()) if name else b"") + (delimited(2, doc.encode()) if doc else b"")
        if "_unknown" in attr:
            head += unbase64(attr["_unknown"], f"{path}._unknown")
        if not keys:
            return head
        kind = _KIND[keys[0]]
        head += encode_varint((kind + 2) << 3 | int(VALUE_WIRE[kind]))
        if len(attr) == 2 and "name" in attr:
            self._memo.setdefault((name, keys[0]), _Memo(head, kind))
        if "_payload" in attr and kind.is_list:
            raw = unbase64(attr["_payload"], f"{path}._payload")
            return head + encode_varint(len(raw)) + raw
        if "_bits" in attr and kind in (V.DOUBLE, V.FLOAT):
            size = 8 if kind == V.DOUBLE else 4
            return head + integer(attr["_bits"], 0, 2 ** (8 * size), f"{path}._bits").to_bytes(size, "little")
        return head + _value(kind, attr[keys[0]], f"{path}.{keys[0]}")


def _unsigned(value: int, below: str) -> bytes:
    if not 0 <= value < 1 << 64:
        raise MappingError(f"{value} does not fit 64 bits", below)
    return short(value)


def _type(value: str | int) -> bytes:
    if isinstance(value, str) and value in _TYPE:
        value = _TYPE[value]
    try:
        number = int(value)
    except ValueError:
        raise MappingError(f"unknown type `{value}`; known: {', '.join(_TYPE)}", ".type") from None
    if not -(2**31) <= number < 2**31:
        raise MappingError(f"type {number} does not fit 32 bits", ".type")
    return b"\x18" + encode_varint(number) if number else b""


def _storage(given: Any) -> bytes:
    try:
        return delimited(FIELD, storage_bytes(given))
    except ValueError as problem:
        text, below = problem.args
        raise MappingError(text, f".storage{below}") from None


def _io(tag: bytes, io: IO) -> bytes:
    body = b""
    if io.values:
        raw = io.values.encode()
        body = b"\x0a" + short(len(raw)) + raw
    if io.shapes:
        raw = io.shapes.encode()
        body += b"\x12" + short(len(raw)) + raw
    if io.types:
        raw = io.types.encode()
        body += b"\x1a" + short(len(raw)) + raw
    return tag + short(len(body)) + body


def integer(value: Any, low: int, high: int, below: str) -> int:
    try:
        if isinstance(value, bool) or not isinstance(value, int | str | float) or value != value or value in (
            float("inf"), float("-inf")):  # fmt: skip
            raise ValueError
        number = int(value)
        if isinstance(value, float) and number != value:
            raise ValueError
    except ValueError:
        raise MappingError(f"not an integer: {value!r}", below) from None
    if not low <= number < high:
        raise MappingError(f"{number} is out of range", below)
    return number


def _float(value: Any, kind: ValueKind, below: str) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | str | float):
            raise ValueError
        number = float(value)
        if kind == V.FLOAT:
            struct.pack("<f", number)
    except (ValueError, OverflowError):
        raise MappingError(f"not a {kind.name.lower()}: {value!r}", below) from None
    return number


def scalar(kind: ValueKind, value: Any, below: str) -> Any:
    """A JSON value as the Python value of a kind."""
    if kind in _RANGE:
        return integer(value, *_RANGE[kind], below)
    if kind in (V.DOUBLE, V.FLOAT):
        return _float(value, kind, below)
    if kind == V.BOOL:
        if not isinstance(value, bool):
            raise MappingError(f"not true or false: {value!r}", below)
        return value
    if kind == V.BYTES:
        return unbase64(value, below)
    if not isinstance(value, str):
        raise MappingError(f"not text: {value!r}", below)
    return value


def _value(kind: ValueKind, value: Any, below: str) -> bytes:
    """A value as it follows its tag."""
    if kind.is_list:
        if not isinstance(value, dict) or set(value) - {"values"} or not isinstance(value.get("values", []), list):
            raise MappingError('expected {"values": [...]}', below)
        one = ValueKind(kind - 1)
        raw = encode_list(kind, [scalar(one, v, f"{below}.values[{i}]") for i, v in enumerate(value.get("values", []))])
        return short(len(raw)) + raw
    found = scalar(kind, value, below)
    if kind in (V.STRING, V.BYTES):
        raw = found.encode() if kind == V.STRING else found
        return short(len(raw)) + raw
    if kind == V.DOUBLE:
        return struct.pack("<d", found)
    if kind == V.FLOAT:
        return struct.pack("<f", found)
    if kind in _FIXED:
        return struct.pack(_FIXED[kind], found)
    if found >= 0 and kind not in (V.SINT32, V.SINT64):
        return short(found)
    return scalar_to_varint(kind, found)
