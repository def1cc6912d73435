"""From JSON to the messages of an `.et` file, which the codec then reads: so that what a file means is decided in one
place."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numba import njit

from etude.errors import FormatError
from etude.model.attrs import encode_list, scalar_to_varint
from etude.model.schema import COLUMN, KIND_TO_WIRE, Kind, ValueKind
from etude.model.text import varint
from etude.store.et_irregular import delimited
from etude.store.et_kernels import VALUE_WIRE

V = ValueKind


def _camel(kind: ValueKind) -> str:
    head, tail = kind.wire_name.split("_")
    return head + tail.capitalize()


FIELD_NAME: Final = {k: _camel(k) for k in V if k}
_KIND: Final = {name: k for k, name in FIELD_NAME.items()}
_TYPE: Final = {k.wire_name: wire for k, wire in KIND_TO_WIRE.items()}
_SMALL: Final = [varint(i) for i in range(1 << 14)]
_RANGE: Final = {
    V.INT32: (-(2**31), 2**31), V.SINT32: (-(2**31), 2**31), V.SFIXED32: (-(2**31), 2**31),
    V.UINT32: (0, 2**32), V.FIXED32: (0, 2**32),
    V.INT64: (-(2**63), 2**63), V.SINT64: (-(2**63), 2**63), V.SFIXED64: (-(2**63), 2**63),
    V.UINT64: (0, 2**64), V.FIXED64: (0, 2**64),
}  # fmt: skip
_FIXED: Final = {V.FIXED32: "<I", V.FIXED64: "<Q", V.SFIXED32: "<i", V.SFIXED64: "<q"}


class _Bad(Exception):
    """(problem, path below the message)."""


class Node(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A node in protobuf's JSON mapping; null is absent."""

    id: int | None = None
    name: str | None = None
    type: str | int | None = None
    ctrl_deps: list[int] | None = None
    data_deps: list[int] | None = None
    start_time_micros: int | None = None
    duration_micros: int | None = None
    inputs: dict[str, str | None] | None = None
    outputs: dict[str, str | None] | None = None
    attr: list[dict[str, Any]] | None = None
    unknown: str | None = msgspec.field(default=None, name="_unknown")


@dataclass(slots=True)
class Messages:
    """A whole `.et` file, and which JSON value each message came from."""

    data: bytearray
    starts: list[int]
    prefix: str

    def path(self, offset: int) -> str:
        i = int(np.searchsorted(self.starts, offset, "right")) - 2
        return self.prefix.format(i) if i >= 0 else "$.metadata"


def to_messages(data: bytes | memoryview, where: str) -> Messages:
    """The messages behind any of the three forms."""
    spans = _objects(data, where)
    if len(spans) > 1:
        metadata = _loads(data[spans[0][0] : spans[0][1]], dict[str, Any], where, "$[0]")
        return _stream(metadata, (data[a:b] for a, b in spans[1:]), where, "$[{0}]", offset=1)
    top = _loads(data[spans[0][0] : spans[0][1]], dict[str, msgspec.Raw], where, "$")
    if "workload_graph" in top:
        rows = _loads(top["workload_graph"], list[msgspec.Raw], where, "$.workload_graph")
        found = Messages(bytearray(b"\x00"), [0], "$.workload_graph[{0}]")
        for i, row in enumerate(rows):
            path = found.prefix.format(i)
            _append(found, _feeder_node(_loads(row, dict[str, Any], where, path), where, path))
        return found
    if "nodes" not in top:
        if set(top) <= {"version", "attr", "_raw"}:  # what the jsonizer writes of a trace of no nodes
            return _stream(_loads(data, dict[str, Any], where, "$"), iter(()), where, "$[{0}]")
        hint = "expected `metadata` and `nodes`, a `workload_graph`, or the jsonizer's objects"
        raise FormatError("is not a Chakra trace in JSON", path=where, where="at `$`", hint=hint)
    if extra := set(top) - {"nodes", "metadata"}:
        raise FormatError(f"unknown field `{min(extra)}`", path=where, where="at `$`")
    metadata = _loads(top.get("metadata", b"{}"), dict[str, Any], where, "$.metadata")
    return _stream(metadata, iter(_loads(top["nodes"], list[msgspec.Raw], where, "$.nodes")), where, "$.nodes[{0}]")


def _stream(metadata: dict[str, Any], nodes: Iterator[Any], where: str, prefix: str, offset: int = 0) -> Messages:
    first = metadata_bytes(metadata, where, "$.metadata" if not offset else "$[0]")
    found = Messages(bytearray(varint(len(first)) + first), [0], prefix.replace("{0}", "{0}") if not offset else prefix)
    decoder = msgspec.json.Decoder(Node, strict=False)
    encoder = Encoder()
    for i, raw in enumerate(nodes, offset):
        try:
            body = encoder.node(decoder.decode(raw))
        except msgspec.MsgspecError as problem:
            raise _json_error(problem, where, prefix.format(i)) from None
        except UnicodeDecodeError:
            raise FormatError("text that is not UTF-8", path=where, where=f"at `{prefix.format(i)}`") from None
        except _Bad as problem:
            text, below = problem.args
            raise FormatError(text, path=where, where=f"at `{prefix.format(i)}{below}`") from None
        _append(found, body)
    return found


def _append(found: Messages, body: bytes) -> None:
    found.starts.append(len(found.data))
    body = body or b"\x08\x00"  # a reader may take a message of length 0 for the end of the file
    found.data += varint(len(body)) + body


def _loads(data: Any, kind: Any, where: str, path: str) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as problem:
        raise _json_error(problem, where, path) from None
    except (UnicodeDecodeError, RecursionError) as problem:
        raise FormatError(f"not JSON: {problem}", path=where, where=f"at `{path}`") from None


def _json_error(problem: Exception, where: str, path: str) -> FormatError:
    """msgspec says `... - at `$.attr[2]``; the path from the top goes in front of it."""
    text, _, below = str(problem).partition(" - at `$")
    return FormatError(text, path=where, where=f"at `{path}{below.rstrip('`')}`")


# -- the pieces of the file --------------------------------------------------------------------------------------------


@njit(cache=True)
def _spans(data, starts, ends, count, p):  # type: ignore[no-untyped-def]
    """Top-level objects from p on; (count, where it stopped): the end, a full table, or a byte that is none."""
    n = len(data)
    while p < n:
        c = data[p]
        if c == 32 or c == 10 or c == 13 or c == 9:
            p += 1
            continue
        if c != 123 or count == len(starts):
            return count, p
        begin = p
        depth = 0
        in_string = False
        while p < n:
            c = data[p]
            if in_string:
                if c == 92:
                    p += 1
                elif c == 34:
                    in_string = False
            elif c == 34:
                in_string = True
            elif c == 123 or c == 91:
                depth += 1
            elif c == 125 or c == 93:
                depth -= 1
                if depth == 0:
                    break
            p += 1
        if p >= n:
            return count, begin
        p += 1
        starts[count], ends[count] = begin, p
        count += 1
    return count, p


def _objects(data: bytes | memoryview, where: str) -> list[tuple[int, int]]:
    """Where the top-level objects lie: one in a JSON document, many in what the jsonizer writes."""
    source = np.frombuffer(data, np.uint8)
    source.flags.writeable = False
    room = 1 << 10
    starts, ends = np.empty(room, np.int64), np.empty(room, np.int64)
    count = at = 0
    if len(source) >= 3 and source[:3].tobytes() == b"\xef\xbb\xbf":
        raise FormatError("begins with a byte order mark", path=where, offset=0, hint="save it as plain UTF-8")
    while True:
        count, at = _spans(source, starts, ends, count, at)
        if at >= len(source):
            break
        if source[at] != ord("{") or count < len(starts):
            problem = "an object that does not end" if source[at] == ord("{") else "not an object"
            raise FormatError(f"not JSON of a trace: {problem}", path=where, offset=at)
        starts, ends = np.resize(starts, 4 * len(starts)), np.resize(ends, 4 * len(ends))
    if not count:
        raise FormatError("the file is empty", path=where, offset=0)
    return list(zip(starts[:count].tolist(), ends[:count].tolist(), strict=True))


# -- messages ----------------------------------------------------------------------------------------------------------


def metadata_bytes(metadata: dict[str, Any], where: str, path: str) -> bytes:
    """GlobalMetadata."""
    try:
        if "_raw" in metadata:
            return unbase64(metadata["_raw"], "._raw")
        if extra := set(metadata) - {"version", "attr"}:
            raise _Bad(f"unknown field `{min(extra)}`", "")
        version, attrs = metadata.get("version") or "", metadata.get("attr") or []
        if not isinstance(version, str) or not isinstance(attrs, list):
            raise _Bad("expected a version that is text and a list of attributes", "")
        out = delimited(1, version.encode()) if version else b""
        encoder = Encoder()
        for i, attr in enumerate(attrs):
            if not isinstance(attr, dict):
                raise _Bad("expected an object", f".attr[{i}]")
            out += delimited(2, encoder.attr(attr, f".attr[{i}]"))
        return out
    except _Bad as problem:
        raise FormatError(problem.args[0], path=where, where=f"at `{path}{problem.args[1]}`") from None


def unbase64(value: Any, below: str) -> bytes:
    try:
        if not isinstance(value, str):
            raise ValueError("not text")
        padded = value.replace("-", "+").replace("_", "/") + "=" * (-len(value) % 4)  # both alphabets, as protobuf
        return base64.b64decode(padded, validate=True)
    except (binascii.Error, ValueError) as problem:
        raise _Bad(f"not base64: {problem}", below) from None


def _short(value: int) -> bytes:
    return _SMALL[value] if 0 <= value < 16384 else varint(value)


class Encoder:
    """Nodes as protobuf messages; what comes before an attribute's value is made once."""

    def __init__(self) -> None:
        self._prefix: dict[tuple[str, str], tuple[bytes, ValueKind]] = {}

    def node(self, n: Node) -> bytes:
        out = []
        if n.id:
            out.append(b"\x08" + _unsigned(n.id, ".id"))
        if n.name:
            raw = n.name.encode()
            out.append(b"\x12" + _short(len(raw)) + raw)
        if n.type:
            out.append(_type(n.type))
        for tag, deps, key in ((b"\x22", n.ctrl_deps, ".ctrlDeps"), (b"\x2a", n.data_deps, ".dataDeps")):
            if deps:
                body = b"".join([_unsigned(d, key) for d in deps])
                out.append(tag + _short(len(body)) + body)
        if n.start_time_micros:
            out.append(b"\x30" + _unsigned(n.start_time_micros, ".startTimeMicros"))
        if n.duration_micros:
            out.append(b"\x38" + _unsigned(n.duration_micros, ".durationMicros"))
        if n.inputs is not None:
            out.append(_io(b"\x42", n.inputs, ".inputs"))
        if n.outputs is not None:
            out.append(_io(b"\x4a", n.outputs, ".outputs"))
        for i, attr in enumerate(n.attr or ()):
            body = self.attr(attr, i)
            out.append(b"\x52" + _short(len(body)) + body)
        if n.unknown:
            out.append(unbase64(n.unknown, "._unknown"))
        return b"".join(out)

    def attr(self, attr: dict[str, Any], place: int | str) -> bytes:
        """An attribute; `place` says where it is in errors."""
        if len(attr) == 2 and (name := attr.get("name")) is not None:
            for key, value in attr.items():
                if key == "name":
                    continue
                found = self._prefix.get((name, key)) if isinstance(name, str) else None
                if found is None:
                    break
                return found[0] + _value(found[1], value, _path(place, key))
        return self._whole_attr(attr, place if isinstance(place, str) else f".attr[{place}]")

    def _whole_attr(self, attr: dict[str, Any], path: str) -> bytes:
        keys = [k for k in attr if k in _KIND and attr[k] is not None]
        known = {"name", "docString", "_unknown", "_bits", "_payload", *_KIND}
        if extra := set(attr) - known:
            raise _Bad(f"unknown field `{min(extra)}`", path)
        if len(keys) > 1:
            raise _Bad(f"both `{keys[0]}` and `{keys[1]}`", path)
        name, doc = attr.get("name") or "", attr.get("docString") or ""
        if not isinstance(name, str) or not isinstance(doc, str):
            raise _Bad("name and docString are text", path)
        head = (delimited(1, name.encode()) if name else b"") + (delimited(2, doc.encode()) if doc else b"")
        if "_unknown" in attr:
            head += unbase64(attr["_unknown"], f"{path}._unknown")
        if not keys:
            return head
        kind = _KIND[keys[0]]
        head += varint((kind + 2) << 3 | int(VALUE_WIRE[kind]))
        if len(attr) == 2 and "name" in attr:
            self._prefix[name, keys[0]] = head, kind
        if "_payload" in attr and kind.is_list:
            raw = unbase64(attr["_payload"], f"{path}._payload")
            return head + varint(len(raw)) + raw
        if "_bits" in attr and kind in (V.DOUBLE, V.FLOAT):
            size = 8 if kind == V.DOUBLE else 4
            return head + _integer(attr["_bits"], 0, 2 ** (8 * size), f"{path}._bits").to_bytes(size, "little")
        return head + _value(kind, attr[keys[0]], f"{path}.{keys[0]}")


def _path(place: int | str, key: str) -> str:
    return f"{place}.{key}" if isinstance(place, str) else f".attr[{place}].{key}"


def _unsigned(value: int, below: str) -> bytes:
    if not 0 <= value < 1 << 64:
        raise _Bad(f"{value} does not fit 64 bits", below)
    return _short(value)


def _type(value: str | int) -> bytes:
    if isinstance(value, str) and value in _TYPE:
        value = _TYPE[value]
    try:
        number = int(value)
    except ValueError:
        raise _Bad(f"no such type `{value}`; known: {', '.join(_TYPE)}", ".type") from None
    if not -(2**31) <= number < 2**31:
        raise _Bad(f"type {number} does not fit 32 bits", ".type")
    return b"\x18" + varint(number) if number else b""


def _io(tag: bytes, io: dict[str, str | None], below: str) -> bytes:
    body = b""
    for number, key in enumerate(("values", "shapes", "types"), 1):
        if io.get(key):
            body += delimited(number, (io[key] or "").encode())
    if extra := set(io) - {"values", "shapes", "types"}:
        raise _Bad(f"unknown field `{min(extra)}`", below)
    return tag + _short(len(body)) + body


def _integer(value: Any, low: int, high: int, below: str) -> int:
    try:
        if isinstance(value, bool) or not isinstance(value, int | str | float) or value != value or value in (
            float("inf"), float("-inf")):  # fmt: skip
            raise ValueError
        number = int(value)
        if isinstance(value, float) and number != value:
            raise ValueError
    except ValueError:
        raise _Bad(f"not an integer: {value!r}", below) from None
    if not low <= number < high:
        raise _Bad(f"{number} is out of range", below)
    return number


def _float(value: Any, kind: ValueKind, below: str) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | str | float):
            raise ValueError
        number = float(value)
        if kind == V.FLOAT:
            struct.pack("<f", number)
    except (ValueError, OverflowError):
        raise _Bad(f"not a {kind.name.lower()}: {value!r}", below) from None
    return number


def _scalar(kind: ValueKind, value: Any, below: str) -> Any:
    """A JSON value as the Python value of a kind."""
    if kind in _RANGE:
        return _integer(value, *_RANGE[kind], below)
    if kind in (V.DOUBLE, V.FLOAT):
        return _float(value, kind, below)
    if kind == V.BOOL:
        if not isinstance(value, bool):
            raise _Bad(f"not true or false: {value!r}", below)
        return value
    if kind == V.BYTES:
        return unbase64(value, below)
    if not isinstance(value, str):
        raise _Bad(f"not text: {value!r}", below)
    return value


def _value(kind: ValueKind, value: Any, below: str) -> bytes:
    """A value as it stands behind its tag."""
    if kind.is_list:
        if not isinstance(value, dict) or set(value) - {"values"} or not isinstance(value.get("values", []), list):
            raise _Bad('expected {"values": [...]}', below)
        one = ValueKind(kind - 1)
        raw = encode_list(kind, [_scalar(one, v, f"{below}.values[{i}]") for i, v in enumerate(value.get("values", []))])
        return _short(len(raw)) + raw
    scalar = _scalar(kind, value, below)
    if kind in (V.STRING, V.BYTES):
        raw = scalar.encode() if kind == V.STRING else scalar
        return _short(len(raw)) + raw
    if kind == V.DOUBLE:
        return struct.pack("<d", scalar)
    if kind == V.FLOAT:
        return struct.pack("<f", scalar)
    if kind in _FIXED:
        return struct.pack(_FIXED[kind], scalar)
    if 0 <= scalar < 16384 and kind not in (V.SINT32, V.SINT64):
        return _SMALL[scalar]
    return scalar_to_varint(kind, scalar)


# -- the feeder's own form ---------------------------------------------------------------------------------------------

_FEEDER: Final = {
    "is_cpu_op": V.BOOL, "num_ops": V.INT64, "tensor_size": V.UINT64, "comm_type": V.INT64, "comm_priority": V.INT32,
    "comm_size": V.INT64, "comm_src": V.INT32, "comm_dst": V.INT32, "comm_tag": V.INT32, "pg_name": V.STRING,
}  # fmt: skip
_FEEDER_DEPS: Final = {"ctrlDeps": "ctrl_deps", "ctrl_deps": "ctrl_deps", "data_deps": "data_deps"}


def _feeder_node(row: dict[str, Any], where: str, path: str) -> bytes:
    """A node of a `workload_graph`: `runtime` is in µs; what the feeder reads as attributes becomes attributes."""
    encoder, node, attrs = Encoder(), Node(), []
    try:
        for key, value in row.items():
            if key == "Id":
                node.id = _integer(value, 0, 2**64, ".Id")
            elif key == "Name":
                node.name = _scalar(V.STRING, value, ".Name")
            elif key == "NodeType":
                node.type = _integer(value, -(2**31), 2**31, ".NodeType")
            elif key == "runtime":
                node.duration_micros = _integer(value, 0, 2**64, ".runtime")
            elif key in _FEEDER_DEPS:
                if not isinstance(value, list):
                    raise _Bad("not a list", f".{key}")
                ids = [_integer(v, 0, 2**64, f".{key}[{i}]") for i, v in enumerate(value)]
                setattr(node, _FEEDER_DEPS[key], ids)
            else:
                attrs.append({"name": key, FIELD_NAME[_feeder_kind(key, value)]: value})
        node.attr = attrs
        return encoder.node(node)
    except _Bad as problem:
        raise FormatError(problem.args[0], path=where, where=f"at `{path}{problem.args[1]}`") from None


def _feeder_kind(key: str, value: Any) -> ValueKind:
    if key in _FEEDER:
        return _FEEDER[key]
    for kind, types in ((V.BOOL, bool), (V.INT64, int), (V.DOUBLE, float), (V.STRING, str)):
        if isinstance(value, types):
            return kind
    raise _Bad("neither a number nor text", f".{key}")


assert Kind.OTHER not in KIND_TO_WIRE
assert all(c.attr_kind == _FEEDER[c.attr] for c in COLUMN.values() if c.attr in _FEEDER)
