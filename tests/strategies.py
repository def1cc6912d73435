"""Hypothesis strategies for `.et` files, and the raw wire writer behind them.

`et_files()` gives files as bytes that protobuf accepts, in encodings that its serialiser would never write: fields out
of order or given twice, padded varints, packed and unpacked numbers in one list, known fields with a foreign wire type,
fields and groups from a future schema. `plain_files()` gives the same content as the usual writers encode it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = 0, 1, 2, 3, 4, 5
MAX_FIELD = (1 << 29) - 1
U64 = (1 << 64) - 1

# field number of the scalar -> (name, how it travels, bits); the list of the same kind has the next number
SCALARS: dict[int, tuple[str, str, int]] = {
    3: ("double", "f", 64),
    5: ("float", "f", 32),
    7: ("int32", "v", 32),
    9: ("int64", "v", 64),
    11: ("uint32", "v", 32),
    13: ("uint64", "v", 64),
    15: ("sint32", "z", 32),
    17: ("sint64", "z", 64),
    19: ("fixed32", "f", 32),
    21: ("fixed64", "f", 64),
    23: ("sfixed32", "f", 32),
    25: ("sfixed64", "f", 64),
    27: ("bool", "v", 1),
    29: ("string", "s", 0),
    31: ("bytes", "b", 0),
}
NUMBER = {name: field for field, (name, _, _) in SCALARS.items()}


# ---- the wire


def varint(value: int, pad: int = 0) -> bytes:
    """`value` modulo 2**64, with `pad` needless bytes as far as ten bytes allow."""
    value &= U64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(min(pad, 10 - len(out))):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


def tag(field: int, wire: int) -> bytes:
    return varint(field << 3 | wire)


def number(field: int, value: int, pad: int = 0) -> bytes:
    return tag(field, VARINT) + varint(value, pad)


def block(field: int, body: bytes) -> bytes:
    return tag(field, LENGTH) + varint(len(body)) + body


def text(field: int, value: str) -> bytes:
    return block(field, value.encode("utf-8"))


def packed(field: int, values: Sequence[int]) -> bytes:
    return block(field, b"".join(varint(v) for v in values))


def attribute(name: str, kind: str, value: Any) -> bytes:
    """A plain attribute: `kind` is one of the 15 scalars (`int64`), a list (`int64_list`), or empty for no value."""
    body = text(1, name)
    if kind.endswith("_list"):
        field = NUMBER[kind[:-5]] + 1
        body += block(field, list_body(kind[:-5], value))
    elif kind:
        body += scalar(NUMBER[kind], kind, value)
    return body


def raw_value(kind: str, value: Any) -> bytes:
    """A value as it stands in a packed list or behind its tag."""
    if kind in ("string", "bytes"):
        raw = value.encode("utf-8") if kind == "string" else value
        return varint(len(raw)) + raw
    if kind == "double":
        return struct.pack("<d", value)
    if kind == "float":
        return struct.pack("<f", value)
    if kind.startswith(("fixed", "sfixed")):
        wide = kind.endswith("64")
        return int(value & (U64 if wide else 0xFFFFFFFF)).to_bytes(8 if wide else 4, "little")
    return varint(zigzag(value) if kind.startswith("sint") else int(value))


def wire_of(kind: str) -> int:
    if kind in ("string", "bytes"):
        return LENGTH
    if kind == "double" or kind in ("fixed64", "sfixed64"):
        return FIXED64
    if kind == "float" or kind in ("fixed32", "sfixed32"):
        return FIXED32
    return VARINT


def scalar(field: int, kind: str, value: Any) -> bytes:
    return tag(field, wire_of(kind)) + raw_value(kind, value)


def list_body(kind: str, values: Sequence[Any]) -> bytes:
    if kind in ("string", "bytes"):
        return b"".join(scalar(1, kind, v) for v in values)
    return block(1, b"".join(raw_value(kind, v) for v in values)) if values else b""


def node(
    id: int = 0,
    name: str = "",
    type: int = 0,
    ctrl: Sequence[int] = (),
    data: Sequence[int] = (),
    micros: tuple[int, int] = (0, 0),
    io: tuple[bytes | None, bytes | None] = (None, None),
    attributes: Sequence[bytes] = (),
) -> bytes:
    """A node as protobuf's serialiser writes it: defaults left out, fields in order, numbers packed."""
    parts = [number(1, id) if id else b"", text(2, name) if name else b"", number(3, type) if type else b""]
    parts += [packed(f, deps) for f, deps in ((4, ctrl), (5, data)) if deps]
    parts += [number(f, m) for f, m in zip((6, 7), micros, strict=True) if m]
    parts += [block(f, body) for f, body in zip((8, 9), io, strict=True) if body is not None]
    return b"".join(parts) + b"".join(block(10, a) for a in attributes)


def metadata(version: str = "", attributes: Sequence[bytes] = ()) -> bytes:
    return (text(1, version) if version else b"") + b"".join(block(2, a) for a in attributes)


def stream(messages: Sequence[bytes]) -> bytes:
    """A file: each message behind its length."""
    return b"".join(varint(len(m)) + m for m in messages)


# ---- values

EDGES = [0, 1, 2, 9, 10, 127, 128, 255, 1 << 14, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 53) + 1]
EDGES += [(1 << 63) - 1, 1 << 63, U64 - 1, U64]
texts = st.one_of(
    st.sampled_from(["", "a", "aten::mm", "пример", "模型", "\U0001f600", "\x00", "e\u0301", "\ud7ff\ue000\U0010ffff"]),
    st.text(max_size=12),
    st.text(alphabet="ab", min_size=120, max_size=140),
)
uint64s = st.one_of(st.integers(0, 300), st.sampled_from(EDGES), st.integers(0, U64))
int64s = uint64s.map(lambda v: v - (1 << 64) if v >> 63 else v)
uint32s = uint64s.map(lambda v: v & 0xFFFFFFFF)
int32s = uint32s.map(lambda v: v - (1 << 32) if v >> 31 else v)
VALUES: dict[str, SearchStrategy[Any]] = {
    "double": st.floats(),
    "float": st.floats(width=32),
    "int32": int32s,
    "int64": int64s,
    "uint32": uint32s,
    "uint64": uint64s,
    "sint32": int32s,
    "sint64": int64s,
    "fixed32": uint32s,
    "fixed64": uint64s,
    "sfixed32": int32s,
    "sfixed64": int64s,
    "bool": st.booleans(),
    "string": texts,
    "bytes": st.binary(max_size=12),
}
KINDS = tuple(VALUES)
node_types = st.one_of(st.integers(0, 7), st.sampled_from([8, 99, (1 << 31) - 1, -1, -(1 << 31)]))
wide_types = st.sampled_from([1 << 31, 1 << 32, 1 << 40, (1 << 40) + 4, (1 << 63) + 7, U64])  # cut to 32 bits


# ---- irregular pieces


@st.composite
def future_fields(draw: DrawFn, known: int, depth: int = 2) -> bytes:
    """One field with a number above `known`, of any wire type; groups nest."""
    field = draw(st.one_of(st.integers(known + 1, known + 40), st.sampled_from([1000, 1 << 20, MAX_FIELD])))
    wire = draw(st.sampled_from([VARINT, FIXED64, LENGTH, FIXED32, *([GROUP] if depth else [])]))
    if wire == GROUP:
        inner = draw(st.lists(future_fields(0, depth - 1), max_size=2))
        return tag(field, GROUP) + b"".join(inner) + tag(field, END_GROUP)
    return tag(field, wire) + draw(_payloads(wire))


def _payloads(wire: int) -> SearchStrategy[bytes]:
    if wire == VARINT:
        return st.builds(varint, uint64s, st.integers(0, 3))
    if wire == LENGTH:
        return st.binary(max_size=20).map(lambda b: varint(len(b)) + b)
    size = 8 if wire == FIXED64 else 4
    return st.binary(min_size=size, max_size=size)


@st.composite
def foreign_fields(draw: DrawFn, wires: dict[int, set[int]]) -> bytes:
    """A known field number with a wire type that it cannot have: protobuf keeps it as unknown."""
    field = draw(st.sampled_from(sorted(wires)))
    wire = draw(st.sampled_from(sorted({VARINT, FIXED64, LENGTH, FIXED32} - wires[field])))
    return tag(field, wire) + draw(_payloads(wire))


@st.composite
def shuffled(draw: DrawFn, pieces: list[bytes], odd: bool, known: int, wires: dict[int, set[int]]) -> bytes:
    """The fields of a message in their order, or, when odd, in any order among fields from the future."""
    if not odd:
        return b"".join(pieces)
    extra = draw(st.lists(st.one_of(future_fields(known), foreign_fields(wires)), max_size=2))
    pieces = pieces + extra
    if draw(st.booleans()):
        pieces = draw(st.permutations(pieces))
    return b"".join(pieces)


@st.composite
def numbers(draw: DrawFn, field: int, values: list[int], odd: bool) -> list[bytes]:
    """A repeated varint field: packed, or in runs that are packed, single, empty, or padded."""
    if not odd:
        return [packed(field, values)] if values else []
    pieces, at = [], 0
    while at < len(values):
        run = draw(st.integers(0, 3))
        pad = draw(st.integers(0, 2))
        pieces.append(block(field, b"".join(varint(v, pad) for v in values[at : at + run])) if run else b"")
        if not run:
            pieces[-1] = number(field, values[at], pad)
        at += max(run, 1)
    return pieces


LIST_WIRES = {k: {1: {LENGTH, wire_of(k)}} for k in KINDS}
ATTRIBUTE_WIRES = {1: {LENGTH}, 2: {LENGTH}}
ATTRIBUTE_WIRES |= {f: {wire_of(n)} for f, (n, _, _) in SCALARS.items()} | {f + 1: {LENGTH} for f in SCALARS}
IO_WIRES = {1: {LENGTH}, 2: {LENGTH}, 3: {LENGTH}}
NODE_WIRES = {1: {VARINT}, 2: {LENGTH}, 3: {VARINT}, 4: {VARINT, LENGTH}, 5: {VARINT, LENGTH}, 6: {VARINT}, 7: {VARINT}}
NODE_WIRES |= {8: {LENGTH}, 9: {LENGTH}, 10: {LENGTH}}
METADATA_WIRES = {1: {LENGTH}, 2: {LENGTH}}


@st.composite
def lists(draw: DrawFn, kind: str, odd: bool) -> bytes:
    """The body of a `*List` message."""
    values = draw(st.lists(VALUES[kind], max_size=5))
    if not odd:
        return list_body(kind, values)
    pieces = []
    while values:
        run = draw(st.integers(1, len(values)))
        single = kind in ("string", "bytes") or draw(st.booleans())
        pieces += [scalar(1, kind, v) for v in values[:run]] if single else [list_body(kind, values[:run])]
        values = values[run:]
    # an order of its own only for what is not in the list, so that the runs stay readable when a case shrinks
    return draw(shuffled(pieces, odd, 1, LIST_WIRES[kind]))


@st.composite
def values(draw: DrawFn, odd: bool) -> bytes:
    """One of the 30 kinds of value."""
    kind = draw(st.sampled_from(KINDS))
    if draw(st.booleans()):
        return block(NUMBER[kind] + 1, draw(lists(kind, odd)))
    if odd and wire_of(kind) == VARINT and draw(st.booleans()):  # more bits than the kind has
        return number(NUMBER[kind], draw(uint64s), draw(st.integers(0, 3)))
    return scalar(NUMBER[kind], kind, draw(VALUES[kind]))


# ---- what the tools write

INTEGERS = ("int32", "int64", "uint32", "uint64", "sint64", "fixed64")
TOOL_KINDS: dict[str, tuple[str, ...]] = {
    "is_cpu_op": ("bool", "int32", "int64", "uint32"),
    "comm_type": ("int64", "int32", "uint64", ""),
    "comm_size": ("int64", "uint64", "int32"),
    "tensor_size": ("uint64", "int64"),
    "num_ops": ("int64", "uint64"),
    "comm_src": ("int32", "int64", "uint32"),
    "comm_dst": ("int32", "int64", "uint32"),
    "comm_tag": ("int32", "int64", "uint32"),
    "comm_priority": ("int32", "int64"),
    "pg_name": ("string", "int64", "int32", "bytes", ""),
    "involved_dim": ("bool_list", "int32_list", "string"),
    "rf_id": INTEGERS,
    "fw_parent": INTEGERS,
    "seq_id": INTEGERS,
    "scope": INTEGERS,
    "tid": INTEGERS,
    "fw_tid": INTEGERS,
    "stream": INTEGERS,
    "op_schema": ("string", "bytes"),
    "op_type": ("string",),
    "inputs": ("string_list", ""),
    "outputs": ("string_list", ""),
    "start_ns": ("int64", "uint64"),
    "duration_ns": ("int64", "uint64", "sint64"),
    "dep_why": ("string", "string_list", "bytes", ""),
}
small = st.integers(-1, 12)


@st.composite
def tool_attributes(draw: DrawFn, micros: tuple[int, int]) -> bytes:
    """An attribute that Chakra tools write, in one of the kinds they are found in, sometimes of another."""
    name = draw(st.sampled_from(sorted(TOOL_KINDS)))
    kind = draw(st.sampled_from([*TOOL_KINDS[name], *TOOL_KINDS[name][:1] * 3]))
    if name in ("start_ns", "duration_ns"):
        exact = micros[name == "duration_ns"] * 1000
        value = exact + draw(st.sampled_from([0, 0, 499, -499, 500, -500, 501, -501, 1000, 123_456]))
        return attribute(name, kind, max(value, 0) & ((1 << 63) - 1))
    if not kind:
        return attribute(name, "", None)
    if kind.endswith("_list"):
        return attribute(name, kind, draw(st.lists(VALUES[kind[:-5]], max_size=3)))
    if name == "dep_why" and kind == "string":  # letters that may fit the edges
        return attribute(name, kind, draw(st.text("-ltp?", max_size=3)))
    plain = kind in ("int32", "int64", "sint64") and draw(st.booleans())
    return attribute(name, kind, draw(small if plain else VALUES[kind]))


@st.composite
def attributes(draw: DrawFn, odd: bool, micros: tuple[int, int] = (0, 0)) -> bytes:
    """The body of an attribute."""
    if draw(st.integers(0, 2)):
        return draw(tool_attributes(micros))
    # few names, so that they meet again within a node and, in other kinds, in the next
    name = draw(st.one_of(st.sampled_from(["a", "b", "tid", "comm_type", "pg_name"]), texts))
    pieces = [text(1, name)] if name or odd else []
    doc = draw(st.one_of(st.just(""), texts))
    pieces += [text(2, doc)] if doc or (odd and draw(st.booleans())) else []
    count = draw(st.sampled_from([0, 1, 1, 1, 2, 3] if odd else [0, 1, 1, 1]))
    pieces += [draw(values(odd)) for _ in range(count)]
    if odd and draw(st.booleans()):
        pieces.append(text(1, draw(texts)))
    return draw(shuffled(pieces, odd, 32, ATTRIBUTE_WIRES))


@st.composite
def io_infos(draw: DrawFn, odd: bool) -> bytes:
    """The body of an IOInfo, often empty."""
    if not odd:
        return b"".join(text(f, t) for f in (1, 2, 3) if (t := draw(texts)))
    fields = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=4))
    return draw(shuffled([text(f, draw(texts)) for f in fields], odd, 3, IO_WIRES))


@st.composite
def nodes(draw: DrawFn, odd: bool) -> bytes:
    """The body of a node; empty for the all-default one."""
    if draw(st.integers(0, 15)) == 0:
        return b""
    odd = odd and draw(st.booleans())
    pad = draw(st.integers(0, 2)) if odd else 0
    number_, name, kind = draw(uint64s), draw(texts), draw(node_types | wide_types if odd else node_types)
    micros = (draw(uint64s), draw(uint64s))
    pieces = [number(1, number_, pad)] if number_ or odd else []
    pieces += [text(2, name)] if name or odd else []
    pieces += [number(3, kind, pad)] if kind or odd else []
    for field in (4, 5):
        pieces += draw(numbers(field, draw(st.lists(uint64s, max_size=4)), odd))
    pieces += [number(f, m, pad) for f, m in zip((6, 7), micros, strict=True) if m or odd]
    for field in (8, 9):
        count = draw(st.sampled_from([0, 1, 1, 2] if odd else [0, 1]))
        pieces += [block(field, draw(io_infos(odd))) for _ in range(count)]
    pieces += [block(10, draw(attributes(odd, micros))) for _ in range(draw(st.integers(0, 5)))]
    if odd and draw(st.booleans()):  # the last one wins
        pieces.append(
            draw(st.sampled_from([number(1, number_ + 1), text(2, "again"), number(3, 4), number(6, 0), number(7, 5)]))
        )
    return draw(shuffled(pieces, odd, 10, NODE_WIRES))


@st.composite
def metadatas(draw: DrawFn, odd: bool) -> bytes:
    versions = draw(st.lists(texts, max_size=2 if odd else 1))
    pieces = [text(1, v) for v in versions if v or odd]
    pieces += [block(2, draw(attributes(odd))) for _ in range(draw(st.integers(0, 3)))]
    return draw(shuffled(pieces, odd, 2, METADATA_WIRES))


def _files(odd: bool) -> SearchStrategy[bytes]:
    messages = st.tuples(metadatas(odd), st.lists(nodes(odd), max_size=5))
    files = messages.map(lambda parts: stream([parts[0], *parts[1]]))
    # 31 bytes of metadata that begin with a field 17 would read as gzip
    return files.filter(lambda data: data[:2] != b"\x1f\x8b")


def et_files() -> SearchStrategy[bytes]:
    """Any file that protobuf reads."""
    return st.one_of(_files(odd=True), _files(odd=True), _files(odd=False))


def plain_files() -> SearchStrategy[bytes]:
    """Files in the encoding of the usual writers."""
    return _files(odd=False)
