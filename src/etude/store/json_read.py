"""From JSON to the messages of an `.et` file, which the codec then reads, so that the meaning of a file is defined in
one place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from etude.base.errors import FormatError
from etude.kernels.compile import kernel
from etude.kernels.varint import encode_varint
from etude.model.schema import COLUMN, ValueKind
from etude.store.et_irregular import delimited
from etude.store.json_values import FIELD_NAME, Encoder, MappingError, Node, integer, scalar, short, unbase64

V = ValueKind


@dataclass(slots=True)
class JsonMessages:
    """A whole `.et` file, and which JSON value each message came from."""

    data: bytearray
    starts: list[int]
    prefix: str
    first: int = 0
    """The number of the first node in the path."""

    def path(self, offset: int) -> str:
        i = int(np.searchsorted(self.starts, offset, "right")) - 1
        return self.prefix.format(i - 1 + self.first) if i else "$[0]" if self.first else "$.metadata"


def to_messages(data: bytes | memoryview, where: str) -> JsonMessages:
    """Converts any of the three forms to messages."""
    spans = _objects(data, where)
    if len(spans) > 1:
        metadata = _loads(data[spans[0][0] : spans[0][1]], dict[str, Any], where, "$[0]")
        return _stream(metadata, (data[a:b] for a, b in spans[1:]), where, "$[{0}]", offset=1)
    top = _loads(data[spans[0][0] : spans[0][1]], dict[str, msgspec.Raw], where, "$")
    if "workload_graph" in top:
        rows = _loads(top["workload_graph"], list[msgspec.Raw], where, "$.workload_graph")
        found = JsonMessages(bytearray(b"\x00"), [0], "$.workload_graph[{0}]")
        for i, row in enumerate(rows):
            path = found.prefix.format(i)
            _append(found, _feeder_node(_loads(row, dict[str, Any], where, path), where, path))
        return found
    if "nodes" not in top:
        if set(top) <= {"version", "attr", "_raw"}:  # written by the jsonizer for a trace without nodes
            return _stream(_loads(data, dict[str, Any], where, "$"), iter(()), where, "$[{0}]")
        hint = (
            "expected `traceEvents` (PyTorch's profiler), `metadata` and `nodes`, a `workload_graph`, or the "
            "jsonizer's objects"
        )
        raise FormatError("is not a trace", path=where, where="at `$`", hint=hint)
    if extra := set(top) - {"nodes", "metadata"}:
        raise FormatError(f"unknown field `{min(extra)}`", path=where, where="at `$`")
    metadata = _loads(top.get("metadata", b"{}"), dict[str, Any], where, "$.metadata")
    return _stream(metadata, iter(_loads(top["nodes"], list[msgspec.Raw], where, "$.nodes")), where, "$.nodes[{0}]")


def _stream(metadata: dict[str, Any], nodes: Iterator[Any], where: str, prefix: str, offset: int = 0) -> JsonMessages:
    first = metadata_bytes(metadata, where, "$.metadata" if not offset else "$[0]")
    found = JsonMessages(bytearray(encode_varint(len(first)) + first), [0], prefix, offset)
    decoder = msgspec.json.Decoder(Node, strict=False)
    encoder = Encoder()
    for i, raw in enumerate(nodes, offset):
        try:
            body = encoder.node(decoder.decode(raw))
        except msgspec.MsgspecError as problem:
            raise _json_error(problem, where, prefix.format(i)) from None
        except UnicodeDecodeError:
            raise FormatError("text that is not UTF-8", path=where, where=f"at `{prefix.format(i)}`") from None
        except MappingError as problem:
            text, below = problem.args
            raise FormatError(text, path=where, where=f"at `{prefix.format(i)}{below}`") from None
        _append(found, body)
    return found


def _append(found: JsonMessages, body: bytes) -> None:
    found.starts.append(len(found.data))
    body = body or b"\x08\x00"  # a reader may take a message of length 0 for the end of the file
    found.data += short(len(body)) + body


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


@kernel(allocates=False)
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
            raise MappingError(f"unknown field `{min(extra)}`", "")
        version, attrs = metadata.get("version") or "", metadata.get("attr") or []
        if not isinstance(version, str) or not isinstance(attrs, list):
            raise MappingError("expected a version that is text and a list of attributes", "")
        out = delimited(1, version.encode()) if version else b""
        encoder = Encoder()
        for i, attr in enumerate(attrs):
            if not isinstance(attr, dict):
                raise MappingError("expected an object", f".attr[{i}]")
            out += delimited(2, encoder.attr(attr, f".attr[{i}]"))
        return out
    except MappingError as problem:
        raise FormatError(problem.args[0], path=where, where=f"at `{path}{problem.args[1]}`") from None


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
                node.id = integer(value, 0, 2**64, ".Id")
            elif key == "Name":
                node.name = scalar(V.STRING, value, ".Name")
            elif key == "NodeType":
                node.type = integer(value, -(2**31), 2**31, ".NodeType")
            elif key == "runtime":
                node.duration_micros = integer(value, 0, 2**64, ".runtime")
            elif key in _FEEDER_DEPS:
                if not isinstance(value, list):
                    raise MappingError("not a list", f".{key}")
                ids = [integer(v, 0, 2**64, f".{key}[{i}]") for i, v in enumerate(value)]
                setattr(node, _FEEDER_DEPS[key], ids)
            else:
                attrs.append({"name": key, FIELD_NAME[_feeder_kind(key, value)]: value})
        node.attr = attrs
        return encoder.node(node)
    except MappingError as problem:
        raise FormatError(problem.args[0], path=where, where=f"at `{path}{problem.args[1]}`") from None


def _feeder_kind(key: str, value: Any) -> ValueKind:
    if key in _FEEDER:
        return _FEEDER[key]
    for kind, types in ((V.BOOL, bool), (V.INT64, int), (V.DOUBLE, float), (V.STRING, str)):
        if isinstance(value, types):
            return kind
    raise MappingError("neither a number nor text", f".{key}")


assert all(c.attr_kind == _FEEDER[c.attr] for c in COLUMN.values() if c.attr in _FEEDER)
