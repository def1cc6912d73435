"""From a Trace to the bytes of one `.et` file. Fields are written in order of their numbers, as protobuf does."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator

import numpy as np
from numba import njit
from numpy.typing import NDArray

from etude.errors import TraceError
from etude.model import text
from etude.model.schema import COLUMN, OWNED, OWNED_INDEX, UNKNOWN, Collective, Kind
from etude.model.text import prefix
from etude.model.trace import Attr, Layout, Trace
from etude.store.et_decode import Decoded
from etude.store.et_irregular import delimited
from etude.store.et_kernels import VALUE_WIRE

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]

_BLOCK = 1 << 18

Rows = namedtuple("Rows", "source_id kind name io start_us duration_us io_text layout cell_start")
Edges = namedtuple("Edges", "data_start data ctrl_start ctrl source_id missing id_base")
Program = namedtuple("Program", "start kind column prefix_start prefix_len prefix_word")
"""Layouts laid flat: entry i of a layout writes prefix bytes, then a value of `kind` from owned[column] or a cell."""

_FULL, _RANGE = -1, -2


def complete_layouts(trace: Trace, start_ns: I64) -> tuple[tuple[Layout, ...], NDArray[np.int32]]:
    """Layouts in which every recorded value of a column that travels as an attribute has one."""
    n = len(trace)
    have_of = np.array(
        [sum(1 << OWNED_INDEX[a.column] for a in layout if a.column) for layout in trace.layouts] or [0], np.int64
    )
    need = np.zeros(n, np.int64)
    for index, c in enumerate(OWNED):
        need |= _needed(trace, start_ns, c.name).astype(np.int64) << index
    lacking = need & ~have_of[trace.layout] if n else need
    rows = np.flatnonzero(lacking)
    if not len(rows):
        return trace.layouts, trace.layout
    layouts, layout = list(trace.layouts), trace.layout.copy()
    keys, inverse = np.unique(np.stack([layout[rows], lacking[rows]], 1), axis=0, return_inverse=True)
    for number, (old, bits) in enumerate(keys.tolist()):
        added = tuple(Attr(c.attr, c.attr_kind, column=c.name) for i, c in enumerate(OWNED) if bits >> i & 1)
        layouts.append(layouts[old] + added)
        layout[rows[inverse.ravel() == number]] = len(layouts) - 1
    return tuple(layouts), layout


def _needed(trace: Trace, start_ns: I64, name: str) -> NDArray[np.bool_]:
    if name in ("duration_ns", "start_ns"):
        ns = start_ns if name == "start_ns" else trace.duration_ns
        return (ns != UNKNOWN) & ((ns % 1000 != 0) | (ns == 0))
    value: NDArray[np.generic] = getattr(trace, name)
    if name == "collective":
        return (value != Collective.NONE) & (value != Collective.OTHER)  # type: ignore[comparison-overlap]
    return value != COLUMN[name].default  # type: ignore[comparison-overlap]


def _program(layouts: tuple[Layout, ...]) -> tuple[Program, list[str]]:
    """The flat program, and the columns it reads, in the order of `owned`."""
    start, kinds, columns, prefix_start, prefix_len = [0], [], [], [], []
    used: dict[str, int] = {}
    prefixes = bytearray()
    for layout in layouts:
        for a in layout:
            raw = delimited(1, a.name.encode()) if a.name else b""
            raw += (delimited(2, a.doc.encode()) if a.doc else b"") + a.unknown
            if a.kind:
                raw += text.varint((a.kind + 2) << 3 | int(VALUE_WIRE[a.kind]))
            prefix_start.append(len(prefixes))
            prefix_len.append(len(raw))
            prefixes += raw
            kinds.append(int(a.kind))
            columns.append(used.setdefault(a.column, len(used)) if a.column else -1)
        start.append(len(kinds))
    flat = (np.array(x, np.int64) for x in (start, kinds, columns, prefix_start, prefix_len))
    return Program(*flat, text.words(text.pad(bytes(prefixes)))), list(used)


class Owned:
    """Values of the columns that travel as attributes, as they go on the wire, a block of rows at a time."""

    def __init__(self, decoded: Decoded, names: list[str], group_offset: I64, tag_base: int) -> None:
        self._d, self._names, self._group_offset, self._tag_base = decoded, names, group_offset, tag_base
        self.is_group = np.array([n == "group" for n in names] + [False])

    def block(self, a: int, b: int) -> I64:
        out = np.empty((len(self._names) + 1, b - a), np.int64)
        for row, name in enumerate(self._names):
            out[row] = self.column(name, a, b)
        return out

    def column(self, name: str, a: int, b: int) -> NDArray[np.generic]:
        if name == "start_ns":
            return self._d.start_ns[a:b]
        value = getattr(self._d.trace, name)[a:b]
        if name == "collective":
            return value.astype(np.int64) - 1
        if name == "group":
            return np.append(self._group_offset, 0)[value]
        if name in ("src", "dst"):
            return np.append(self._d.peers, 0)[value]
        if name == "tag" and self._tag_base:
            return np.where(value >= 0, value + self._tag_base, value)
        return value  # type: ignore[no-any-return]


@njit(cache=True, inline="always")
def _put_varint(out, p, value):  # type: ignore[no-untyped-def]
    while value > np.uint64(127):
        out[p] = np.uint8(value & np.uint64(127)) | np.uint8(128)
        value >>= np.uint64(7)
        p += 1
    out[p] = np.uint8(value)
    return p + 1


@njit(cache=True, inline="always")
def _varint_len(value):  # type: ignore[no-untyped-def]
    n = 1
    while value > np.uint64(127):
        value >>= np.uint64(7)
        n += 1
    return n


@njit(cache=True, inline="always")
def _copy(word, a, length, out_word, p):  # type: ignore[no-untyped-def]
    """`length` bytes; may write up to 7 more behind them, which the caller's spare room takes."""
    n = 0
    while n < length:
        out_word[p + n] = word[a + n]
        n += 8
    return p + length


@njit(cache=True, inline="always")
def _deps(out, p, tag, begin, end, dep, ids, missing, base):  # type: ignore[no-untyped-def]
    total = 0
    for e in range(begin, end):
        value = ids[dep[e]] if dep[e] >= 0 else missing[~dep[e]]
        total += _varint_len(value + base)
    out[p] = tag
    p = _put_varint(out, p + 1, np.uint64(total))
    for e in range(begin, end):
        value = ids[dep[e]] if dep[e] >= 0 else missing[~dep[e]]
        p = _put_varint(out, p, value + base)
    return p


@njit(cache=True, inline="always")
def _wire_value(kind, value):  # type: ignore[no-untyped-def]
    """(what goes out as a varint, fits): an integer value of a kind."""
    if kind == 7 or kind == 11:
        return np.uint64(value), True
    if kind == 13 or kind == 15:
        fits = kind == 15 or -2147483648 <= value <= 2147483647
        return np.uint64((value << 1) ^ (value >> 63)), fits
    if kind == 5:
        return np.uint64(value), -2147483648 <= value <= 2147483647
    if kind == 9:
        return np.uint64(value), 0 <= value <= 4294967295
    return np.uint64(value), 0 <= value <= 1  # bool


@njit(cache=True, nogil=True)
def write_rows(heap, word, side, side_word, rows, edges, program, owned, is_group, cells, extra_row, extra,
               first, row, x, out, out_word):  # type: ignore[no-untyped-def]  # fmt: skip
    """Nodes from `row` (rows.* begin at node `first`) until the block ends or `out` is full.

    Returns (next row, next extra, bytes written, status); status 0 or _RANGE. One long function for the same reason
    as the decoder."""
    source_id, kinds, names, ios = rows.source_id, rows.kind, rows.name, rows.io
    start_us, duration_us, io_text = rows.start_us, rows.duration_us, rows.io_text
    layouts, cell_start = rows.layout, rows.cell_start
    data_start, data, ctrl_start, ctrl = edges.data_start, edges.data, edges.ctrl_start, edges.ctrl
    ids, missing, id_base = edges.source_id, edges.missing, edges.id_base
    e_start, e_kind, e_column = program.start, program.kind, program.column
    e_prefix, e_prefix_len, prefix_word = program.prefix_start, program.prefix_len, program.prefix_word
    p = np.int64(0)
    room = len(out) - 64
    guess = np.int64(2)
    count = len(kinds)
    while row - first < count:
        i = row - first
        begin = p
        # what the node takes at most, but for text, lists and attributes, which are measured as they come
        need = 96 + 10 * (data_start[row + 1] - data_start[row] + ctrl_start[row + 1] - ctrl_start[row])
        if p + need > room:
            return row, x, begin, 0
        p += guess
        body = p
        value_u = source_id[i] + id_base
        if value_u:
            out[p] = 0x08
            p = _put_varint(out, p + 1, value_u)
        if names[i] >= 0:
            a, n = prefix(heap, names[i])
            if n:
                total = a + n - names[i]
                if p + total + need > room:
                    return row, x, begin, 0
                out[p] = 0x12
                p = _copy(word, names[i], total, out_word, p + 1)
        kind = kinds[i]
        if 1 < kind < 9:
            out[p] = 0x18
            out[p + 1] = kind - 1
            p += 2
        if ctrl_start[row + 1] > ctrl_start[row]:
            p = _deps(out, p, 0x22, ctrl_start[row], ctrl_start[row + 1], ctrl, ids, missing, id_base)
        if data_start[row + 1] > data_start[row]:
            p = _deps(out, p, 0x2A, data_start[row], data_start[row + 1], data, ids, missing, id_base)
        if start_us[i]:
            out[p] = 0x30
            p = _put_varint(out, p + 1, np.uint64(start_us[i]))
        if duration_us[i]:
            out[p] = 0x38
            p = _put_varint(out, p + 1, np.uint64(duration_us[i]))
        full = False
        for way in range(2):
            if ios[i] & (1 << way) == 0:
                continue
            total = np.int64(0)
            for f in range(3):
                offset = io_text[3 * way + f, i]
                if offset >= 0:
                    a, n = prefix(heap, offset)
                    if n:
                        total += 1 + a + n - offset
            if p + total + 64 > room:
                full = True
                break
            out[p] = 0x42 if way == 0 else 0x4A
            p = _put_varint(out, p + 1, np.uint64(total))
            for f in range(3):
                offset = io_text[3 * way + f, i]
                if offset >= 0:
                    a, n = prefix(heap, offset)
                    if n:
                        out[p] = 0x0A + 8 * f
                        p = _copy(word, offset, a + n - offset, out_word, p + 1)
        if full:
            return row, x, begin, 0
        cell = cell_start[i]
        layout = layouts[i]
        for entry in range(e_start[layout], e_start[layout + 1]):
            value_kind = e_kind[entry]
            column = e_column[entry]
            value = np.int64(0)
            if column >= 0:
                value = owned[column, i]
            elif value_kind:
                value = cells[cell]
                cell += 1
            n = e_prefix_len[entry]
            if value_kind == 0:
                if p + n + 64 > room:
                    full = True
                    break
                out[p] = 0x52
                p = _put_varint(out, p + 1, np.uint64(n))
                p = _copy(prefix_word, e_prefix[entry], n, out_word, p)
                continue
            wire = VALUE_WIRE[value_kind]
            if wire == 2:
                from_side = column >= 0 and is_group[column]
                a, length = prefix(side, value) if from_side else prefix(heap, value)
                size = a + length - value
                if p + n + size + 64 > room:
                    full = True
                    break
                out[p] = 0x52
                p = _put_varint(out, p + 1, np.uint64(n + size))
                p = _copy(prefix_word, e_prefix[entry], n, out_word, p)
                p = _copy(side_word, value, size, out_word, p) if from_side else _copy(word, value, size, out_word, p)
                continue
            if p + n + 64 > room:
                full = True
                break
            out[p] = 0x52
            if wire == 0:
                raw, fits = _wire_value(value_kind, value)
                if not fits:
                    return row, x, begin, _RANGE
                p = _put_varint(out, p + 1, np.uint64(n + _varint_len(raw)))
                p = _copy(prefix_word, e_prefix[entry], n, out_word, p)
                p = _put_varint(out, p, raw)
            else:
                size = 8 if wire == 1 else 4
                if size == 4 and not (-2147483648 <= value <= 4294967295):
                    return row, x, begin, _RANGE
                p = _put_varint(out, p + 1, np.uint64(n + size))
                p = _copy(prefix_word, e_prefix[entry], n, out_word, p)
                out_word[p] = np.uint64(value)
                p += size
        if full:
            return row, x, begin, 0
        if x < len(extra_row) and extra_row[x] == row:
            a, n = prefix(heap, extra[x])
            if p + n + 64 > room:
                return row, x, begin, 0
            p = _copy(word, a, n, out_word, p)
            x += 1
        if p == body:  # a reader may take a message of length 0 for the end of the file
            out[p] = 0x08
            out[p + 1] = 0
            p += 2
        length = p - body
        size = np.int64(_varint_len(np.uint64(length)))
        if size < guess:
            for b in range(length):
                out[begin + size + b] = out[body + b]
        elif size > guess:
            for b in range(length - 1, -1, -1):
                out[begin + size + b] = out[body + b]
        guess = size
        _put_varint(out, begin, np.uint64(length))
        p = begin + size + length
        row += 1
    return row, x, p, 0


def encode_parts(decoded: Decoded, *, id_base: int = 0, tag_base: int = 0) -> Iterator[U8]:
    """The file's bytes, part by part; each part is valid until the next is asked for."""
    trace, start_ns = decoded.trace, decoded.start_ns
    metadata = decoded.metadata or b"\x0a\x00"  # an explicit empty version: some readers stop at a length of 0
    yield np.frombuffer(text.varint(len(metadata)) + metadata, np.uint8)
    layouts, layout = complete_layouts(trace, start_ns)
    program, names = _program(layouts)
    writer = text.HeapWriter()
    group_offset = writer.put_all(list(decoded.group_names))
    side = writer.heap()
    owned = Owned(decoded, names, group_offset, tag_base)
    counts = np.array([sum(a.in_cell for a in entry) for entry in layouts], np.int64)
    edges = Edges(trace.data_start, trace.data, trace.ctrl_start, trace.ctrl, trace.source_id, trace.missing,
                  np.uint64(id_base))  # fmt: skip
    word, side_word = text.words(trace.heap), text.words(side)
    out = np.empty(1 << 22, np.uint8)
    cell = row = x = 0
    for first in range(0, len(trace), _BLOCK):
        stop = min(first + _BLOCK, len(trace))
        cell_start = np.zeros(stop - first + 1, np.int64)
        np.cumsum(counts[layout[first:stop]], out=cell_start[1:])
        rows = _rows(trace, start_ns, layout, cell_start[:-1] + cell, first, stop)
        cell += int(cell_start[-1])
        values = owned.block(first, stop)
        while row < stop:
            row, x, size, status = write_rows(
                trace.heap, word, side, side_word, rows, edges, program, values, owned.is_group,
                trace.cells, trace.extra_row, trace.extra, first, row, x, out, text.words(out),
            )  # fmt: skip
            if status == _RANGE:
                raise TraceError(f"node {row}: a value does not fit the type of its attribute")
            if size == 0:
                out = np.empty(len(out) * 4, np.uint8)
                continue
            yield out[:size]


def _rows(trace: Trace, start_ns: I64, layout: NDArray[np.int32], cells: I64, a: int, b: int) -> Rows:
    io_text = np.empty((6, b - a), np.int64)
    for i, name in enumerate(("in_values", "in_shapes", "in_types", "out_values", "out_shapes", "out_types")):
        io_text[i] = getattr(trace, name)[a:b]
    return Rows(
        trace.source_id[a:b],
        trace.kind[a:b],
        np.ascontiguousarray(trace.name[a:b]),
        np.ascontiguousarray(trace.io[a:b]),
        micros(start_ns[a:b]),
        micros(trace.duration_ns[a:b]),
        io_text,
        layout[a:b],
        cells,
    )


def micros(ns: I64) -> I64:
    """Rounded to µs, halves up; 0 where unknown."""
    known = np.where(ns == UNKNOWN, 0, ns)
    if (known < 0).any():
        raise TraceError(f"negative time {int(known.min())} ns cannot be written", hint="times in `.et` are unsigned")
    return known // 1000 + (known % 1000 >= 500)


def encode(decoded: Decoded, *, id_base: int = 0, tag_base: int = 0) -> bytearray:
    """The whole file in memory."""
    out = bytearray()
    for part in encode_parts(decoded, id_base=id_base, tag_base=tag_base):
        out += memoryview(part)
    return out


assert Kind.OTHER == 9
