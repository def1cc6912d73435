"""From a Trace to the bytes of one `.et` file. Fields are written in ascending order, as protobuf does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.kernels.arrays import I64, U8, as_read
from etude.kernels.varint import encode_varint
from etude.model import reasons, text
from etude.model.schema import UNKNOWN
from etude.model.trace import Layout, Trace, complete_layouts
from etude.store import et_write_kernels as k
from etude.store.et_decode import Decoded
from etude.store.et_irregular import delimited
from etude.store.et_wire import VALUE_WIRE

_BLOCK = 1 << 18


def _program(layouts: tuple[Layout, ...]) -> tuple[k.LayoutProgram, list[str]]:
    """The flattened program, and the columns it reads, in the order of `owned`."""
    start, kinds, columns, prefix_start, prefix_len = [0], [], [], [], []
    used: dict[str, int] = {}
    prefixes = bytearray()
    for layout in layouts:
        for a in layout:
            raw = delimited(1, a.name.encode()) if a.name else b""
            raw += (delimited(2, a.doc.encode()) if a.doc else b"") + a.unknown
            if a.kind:
                raw += encode_varint((a.kind + 2) << 3 | int(VALUE_WIRE[a.kind]))
            prefix_start.append(len(prefixes))
            prefix_len.append(len(raw))
            prefixes += raw
            kinds.append(int(a.kind))
            columns.append(used.setdefault(a.column, len(used)) if a.column else -1)
        start.append(len(kinds))
    program = k.LayoutProgram(
        start=np.array(start, np.int64),
        kind=np.array(kinds, np.int64),
        column=np.array(columns, np.int64),
        prefix_start=np.array(prefix_start, np.int64),
        prefix_len=np.array(prefix_len, np.int64),
        prefix_word=text.words(text.pad(bytes(prefixes))),
    )
    return program, list(used)


class Owned:
    """Values of the columns that are written as attributes, in wire form, a block of rows at a time."""

    def __init__(
        self, decoded: Decoded, names: list[str], group_offset: I64, why_offset: I64, id_base: int, tag_base: int
    ) -> None:
        self._d, self._names, self._group_offset, self._why_offset = decoded, names, group_offset, why_offset
        self._id_base, self._tag_base = id_base, tag_base
        self.in_side = np.array([n in ("group", "dep_why") for n in names] + [False])
        """Columns whose text is not in the trace's heap: bindings of the job, and reasons spelled out for the file."""

    def block(self, a: int, b: int) -> I64:
        out = np.empty((len(self._names) + 1, b - a), np.int64)
        for row, name in enumerate(self._names):
            out[row] = self.column(name, a, b)
        return out

    def column(self, name: str, a: int, b: int) -> NDArray[np.generic]:
        if name == "start_ns":
            return self._d.start_ns[a:b]
        if name == "dep_why":
            return self._why_offset[a:b]
        value = getattr(self._d.trace, name)[a:b]
        if name == "parent":
            ids = self._d.trace.source_id + np.uint64(self._id_base)
            return np.append(ids, np.uint64(0))[value].view(np.int64)
        if name == "collective":
            return value.astype(np.int64) - 1
        if name == "group":
            return np.append(self._group_offset, 0)[value]
        if name in ("src", "dst"):
            return np.append(self._d.peers, 0)[value]
        if name == "tag" and self._tag_base:
            return np.where(value >= 0, value + self._tag_base, value)
        return value


def encode_parts(decoded: Decoded, *, id_base: int = 0, tag_base: int = 0) -> Iterator[U8]:
    """The file's bytes, part by part; each part is valid until the next is requested."""
    trace, start_ns = decoded.trace, decoded.start_ns
    metadata = decoded.metadata or b"\x0a\x00"  # an explicit empty version: some readers stop at a length of 0
    yield np.frombuffer(encode_varint(len(metadata)) + metadata, np.uint8)
    layouts, layout = complete_layouts(trace, start_ns)
    program, names = _program(layouts)
    writer = text.HeapWriter()
    writer.put(b"")  # at 0, for nodes without a group
    group_offset = writer.put_all(list(decoded.group_names))
    side, why_offset = writer.heap(), np.zeros(0, np.int64)
    if "dep_why" in names:
        side, why_offset = reasons.spell(trace, side)
    owned = Owned(decoded, names, group_offset, why_offset, id_base, tag_base)
    counts = np.array([sum(a.in_cell for a in entry) for entry in layouts], np.int64)
    edges = k.EdgeIds(
        trace.data_start, trace.data, trace.ctrl_start, trace.ctrl, trace.source_id, trace.missing, np.uint64(id_base)
    )
    out = np.empty(1 << 22, np.uint8)
    texts = k.Texts(trace.heap, text.words(trace.heap), side, text.words(side))
    extras, cursor = k.Extras(trace.extra_row, trace.extra), np.zeros(3, np.int64)
    cell = 0
    for first in range(0, len(trace), _BLOCK):
        stop = min(first + _BLOCK, len(trace))
        cell_start = np.zeros(stop - first + 1, np.int64)
        np.cumsum(counts[layout[first:stop]], out=cell_start[1:])
        rows = _rows(trace, start_ns, layout, cell_start[:-1] + cell, first, stop)
        cell += int(cell_start[-1])
        values = k.AttributeValues(owned.block(first, stop), owned.in_side, trace.cells)
        while cursor[k.ROW] < stop:
            buffer = k.Buffer(out, text.words(out))
            if k.write_rows(texts, rows, edges, program, values, extras, buffer, cursor) == k.OUT_OF_RANGE:
                raise TraceError(f"node {cursor[k.ROW]}: a value does not fit the type of its attribute")
            if cursor[k.SIZE] == 0:
                out = np.empty(len(out) * 4, np.uint8)
                continue
            yield out[: cursor[k.SIZE]]


def _rows(trace: Trace, start_ns: I64, layout: NDArray[np.int32], cells: I64, a: int, b: int) -> k.NodeRows:
    io_text = np.empty((6, b - a), np.int64)
    for i, name in enumerate(("in_values", "in_shapes", "in_types", "out_values", "out_shapes", "out_types")):
        io_text[i] = getattr(trace, name)[a:b]
    return k.NodeRows(
        a,
        trace.source_id[a:b],
        trace.kind[a:b],
        as_read(trace.name[a:b]),
        as_read(trace.io[a:b]),
        micros(start_ns[a:b]),
        micros(trace.duration_ns[a:b]),
        io_text,
        layout[a:b],
        cells,
    )


def micros(ns: I64) -> I64:
    """Rounded to µs, halves up; 0: unknown."""
    known = np.where(ns == UNKNOWN, 0, ns)
    if (known < 0).any():
        raise TraceError(f"negative time {int(known.min())} ns cannot be written", hint="times in `.et` are unsigned")
    return known // 1000 + (known % 1000 >= 500)


def encode(decoded: Decoded, *, id_base: int = 0, tag_base: int = 0) -> bytearray:
    """The whole file in memory."""
    out = bytearray()
    for part in encode_parts(decoded, id_base=id_base, tag_base=tag_base):
        out += part.data
    return out
