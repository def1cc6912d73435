"""The oracle for `.et` files: protobuf messages built from the project's own `chakra.proto`.

    metadata, nodes = read_messages("trace.0.et")     # a path or bytes; gzip is seen by its magic
    data = write_messages(metadata, nodes)

The schema is parsed here, by hand, so that neither protoc nor generated code is needed. `SCHEMA` is the schema as it
is; `BYTES_SCHEMA` has `bytes` for every `string`, so that it also reads names that are not UTF-8.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

PROTO = Path(__file__).resolve().parents[1] / "src" / "etude" / "store" / "chakra.proto"
GZIP_MAGIC = b"\x1f\x8b"


class Malformed(ValueError):
    """Bytes that are no `.et` file."""


@dataclass(frozen=True)
class Schema:
    """Message classes by name."""

    classes: dict[str, type[Message]]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.classes[name]
        except KeyError:
            raise AttributeError(name) from None


def parse_proto(text: str, *, strings_as_bytes: bool = False) -> descriptor_pb2.FileDescriptorProto:
    """Messages, enums, oneofs and repeated fields of a proto3 file; no imports, options, maps or nested messages."""
    text = re.sub(r"//[^\n]*", "", text)
    tokens = re.findall(r'"[^"]*"|[A-Za-z_][\w.]*|-?\d+|[{}=;]', text)
    enums = set(re.findall(r"\benum\s+(\w+)", text))
    file = descriptor_pb2.FileDescriptorProto(syntax="proto3")
    at = 0

    def take(*expected: str) -> str:
        nonlocal at
        token = tokens[at]
        at += 1
        if expected and token not in expected:
            raise ValueError(f"chakra.proto: `{token}` where {' or '.join(expected)} was expected")
        return token

    def field(message: descriptor_pb2.DescriptorProto, oneof: int | None) -> None:
        kind = take()
        repeated = kind == "repeated"
        if repeated:
            kind = take()
        if strings_as_bytes and kind == "string":
            kind = "bytes"
        entry = message.field.add(name=take())
        take("=")
        entry.number = int(take())
        take(";")
        entry.label = entry.LABEL_REPEATED if repeated else entry.LABEL_OPTIONAL
        scalar = f"TYPE_{kind.upper()}"
        if scalar in entry.Type.keys():
            entry.type = entry.Type.Value(scalar)
        else:
            entry.type = entry.TYPE_ENUM if kind in enums else entry.TYPE_MESSAGE
            entry.type_name = f".{file.package}.{kind}"
        if oneof is not None:
            entry.oneof_index = oneof

    def message() -> None:
        body = file.message_type.add(name=take())
        take("{")
        while tokens[at] != "}":
            if tokens[at] != "oneof":
                field(body, None)
                continue
            take("oneof")
            body.oneof_decl.add(name=take())
            take("{")
            while tokens[at] != "}":
                field(body, len(body.oneof_decl) - 1)
            take("}")
        take("}")

    def enum() -> None:
        body = file.enum_type.add(name=take())
        take("{")
        while tokens[at] != "}":
            value = body.value.add(name=take())
            take("=")
            value.number = int(take())
            take(";")
        take("}")

    while at < len(tokens):
        word = take("syntax", "package", "message", "enum")
        if word == "syntax":
            take("=")
            take('"proto3"')
            take(";")
        elif word == "package":
            file.package = take()
            take(";")
        elif word == "message":
            message()
        else:
            enum()
    return file


def build(text: str, *, strings_as_bytes: bool = False) -> Schema:
    """Message classes in a pool of their own, so that they meet no other copy of the schema."""
    file = parse_proto(text, strings_as_bytes=strings_as_bytes)
    file.name = "chakra.proto"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [m.name for m in file.message_type]
    classes = {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{n}")) for n in names}
    return Schema(classes)


SCHEMA = build(PROTO.read_text(encoding="utf-8"))
BYTES_SCHEMA = build(PROTO.read_text(encoding="utf-8"), strings_as_bytes=True)
GlobalMetadata = SCHEMA.GlobalMetadata
Node = SCHEMA.Node
Attribute = SCHEMA.Attribute
IOInfo = SCHEMA.IOInfo
VALUE_KINDS: tuple[str, ...] = tuple(f.name for f in Attribute.DESCRIPTOR.oneofs_by_name["value"].fields)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The value at `at` and where the next byte is."""
    value = 0
    for k in range(10):
        if at + k >= len(data):
            raise Malformed(f"byte {at}: the file ends inside a message length")
        byte = data[at + k]
        value |= (byte & 0x7F) << (7 * k)
        if byte < 0x80:
            return value, at + k + 1
    raise Malformed(f"byte {at}: a message length of more than 10 bytes")


def varint(value: int) -> bytes:
    """Base-128, least significant first; `value` is taken modulo 2**64."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def inflate(data: bytes) -> bytes:
    """What a gzip stream holds, or the data as they are."""
    if not data.startswith(GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise Malformed(f"gzip: {error}") from error


def split(data: bytes) -> Iterator[bytes]:
    """The messages of a stream, not yet parsed."""
    at = 0
    while at < len(data):
        size, start = read_varint(data, at)
        if size > len(data) - start:
            raise Malformed(f"byte {at}: a message of {size} bytes where {len(data) - start} are left")
        yield data[start : start + size]
        at = start + size


def read_messages(source: str | Path | bytes, *, schema: Schema = SCHEMA) -> tuple[Any, list[Any]]:
    """GlobalMetadata and the Nodes of a file. A message of length zero is an all-default node, not the end."""
    data = inflate(bytes(source) if isinstance(source, (bytes, bytearray, memoryview)) else Path(source).read_bytes())
    if not data:
        raise Malformed("byte 0: the file is empty")
    messages: list[Any] = []
    try:
        for k, body in enumerate(split(data)):
            message = schema.Node() if k else schema.GlobalMetadata()
            message.ParseFromString(body)
            messages.append(message)
    except DecodeError as error:
        raise Malformed(f"message {len(messages)}: {error}") from error
    return messages[0], messages[1:]


def write_messages(metadata: Any, nodes: Iterable[Any]) -> bytes:
    """A stream of messages, each behind its length."""
    out = []
    for message in (metadata, *nodes):
        body = message.SerializeToString(deterministic=True)
        out += [varint(len(body)), body]
    return b"".join(out)


def same(a: Any, b: Any) -> bool:
    """Equal in every field, presence of submessages, order of lists, bits of floats, and unknown fields.

    Serialised bytes are compared because `==` holds NaN different from itself and -0.0 the same as 0.0. Unknown fields
    may come in another order.
    """
    if a.SerializeToString(deterministic=True) == b.SerializeToString(deterministic=True):
        return True
    return bool(a == b) and _known(a) == _known(b)


def _known(message: Any) -> bytes:
    copy = type(message)()
    copy.CopyFrom(message)
    copy.DiscardUnknownFields()
    return copy.SerializeToString(deterministic=True)


def difference(a: tuple[Any, list[Any]], b: tuple[Any, list[Any]]) -> str:
    """The first message in which two files differ, in words; empty when they are the same."""
    if len(a[1]) != len(b[1]):
        return f"{len(a[1])} nodes against {len(b[1])}"
    for k, (left, right) in enumerate(zip((a[0], *a[1]), (b[0], *b[1]), strict=True)):
        if not same(left, right):
            which = f"node {k - 1}" if k else "metadata"
            raw = (left.SerializeToString(deterministic=True).hex(), right.SerializeToString(deterministic=True).hex())
            return f"{which} differs:\n{left}\nagainst\n{right}\nas bytes {raw[0]}\nagainst  {raw[1]}"
    return ""
