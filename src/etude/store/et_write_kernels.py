"""Kernels that write `.et` bytes from columns; each sees arrays only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64, U8, U64
from etude.kernels.compile import kernel
from etude.kernels.varint import put_varint, varint_length
from etude.model.text import prefix
from etude.store.et_wire import VALUE_WIRE


class NodeRows(NamedTuple):
    """Columns of a block of nodes."""

    first: int  # the node of row 0
    source_id: U64
    kind: U8
    name: I64
    io: U8
    start_us: I64
    duration_us: I64
    io_text: I64
    layout: NDArray[np.int32]
    cell_start: I64


class EdgeIds(NamedTuple):
    data_start: I64
    data: NDArray[np.int32]
    ctrl_start: I64
    ctrl: NDArray[np.int32]
    source_id: U64
    missing: U64
    id_base: np.uint64


class LayoutProgram(NamedTuple):
    """Flattened layouts: entry i of a layout writes prefix bytes, then a value of `kind` from owned[column] or a
    cell."""

    start: I64
    kind: I64
    column: I64
    prefix_start: I64
    prefix_len: I64
    prefix_word: U64


class AttributeValues(NamedTuple):
    """Values of attributes."""

    owned: I64  # a row for each column that is written as an attribute
    in_side: NDArray[np.bool_]  # whose text is in the second heap
    cells: I64


class Texts(NamedTuple):
    """The heap of the trace and the second heap, as bytes and as words."""

    heap: U8
    word: U64
    side: U8
    side_word: U64


class Extras(NamedTuple):
    """Fields of some nodes that the schema does not know."""

    row: NDArray[np.int32]
    offset: I64


class Buffer(NamedTuple):
    bytes: U8
    word: U64


ROW, EXTRA, SIZE = 0, 1, 2
"""Cells of a cursor: the next node, the next extra, and bytes written."""
OUT_OF_RANGE = -2


@kernel(allocates=False, inline="llvm")
def _copy(word, a, length, out_word, p):
    """Copies `length` bytes; may write up to 7 more after them, which must be spare room."""
    n = 0
    while n < length:
        out_word[p + n] = word[a + n]
        n += 8
    return p + length


@kernel(allocates=False, inline="llvm")
def _deps(out, p, tag, begin, end, dep, ids, missing, base):
    total = 0
    for e in range(begin, end):
        value = ids[dep[e]] if dep[e] >= 0 else missing[~dep[e]]
        total += varint_length(value + base)
    out[p] = tag
    p = put_varint(out, p + 1, np.uint64(total))
    for e in range(begin, end):
        value = ids[dep[e]] if dep[e] >= 0 else missing[~dep[e]]
        p = put_varint(out, p, value + base)
    return p


@kernel(allocates=False, inline="llvm")
def _wire_value(kind, value):
    """(the varint to write, whether it fits) for an integer value of a kind."""
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


@kernel(allocates=False)
def _stop(cursor, row, extra, size, status):
    cursor[ROW], cursor[EXTRA], cursor[SIZE] = row, extra, size
    return status


@kernel(allocates=False)
def write_rows(texts, rows, edges, program, values, extras, buffer, cursor):
    """Writes nodes from cursor[ROW] until the block ends or the buffer is full; returns 0 or OUT_OF_RANGE. One long
    function for the same reason as the decoder."""
    row, x = cursor[ROW], cursor[EXTRA]
    heap, word, side, side_word = texts.heap, texts.word, texts.side, texts.side_word
    owned, in_side, cells, extra_row, extra = values.owned, values.in_side, values.cells, extras.row, extras.offset
    out, out_word, first = buffer.bytes, buffer.word, rows.first
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
        # the most that the node takes, without text, lists and attributes, which are measured one by one
        need = 96 + 10 * (data_start[row + 1] - data_start[row] + ctrl_start[row + 1] - ctrl_start[row])
        if p + need > room:
            return _stop(cursor, row, x, begin, 0)
        p += guess
        body = p
        value_u = source_id[i] + id_base
        if value_u:
            out[p] = 0x08
            p = put_varint(out, p + 1, value_u)
        if names[i] >= 0:
            a, n = prefix(heap, names[i])
            if n:
                total = a + n - names[i]
                if p + total + need > room:
                    return _stop(cursor, row, x, begin, 0)
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
            p = put_varint(out, p + 1, np.uint64(start_us[i]))
        if duration_us[i]:
            out[p] = 0x38
            p = put_varint(out, p + 1, np.uint64(duration_us[i]))
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
            p = put_varint(out, p + 1, np.uint64(total))
            for f in range(3):
                offset = io_text[3 * way + f, i]
                if offset >= 0:
                    a, n = prefix(heap, offset)
                    if n:
                        out[p] = 0x0A + 8 * f
                        p = _copy(word, offset, a + n - offset, out_word, p + 1)
        if full:
            return _stop(cursor, row, x, begin, 0)
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
                p = put_varint(out, p + 1, np.uint64(n))
                p = _copy(prefix_word, e_prefix[entry], n, out_word, p)
                continue
            wire = VALUE_WIRE[value_kind]
            if wire == 2:
                from_side = column >= 0 and in_side[column]
                a, length = prefix(side, value) if from_side else prefix(heap, value)
                size = a + length - value
                if p + n + size + 64 > room:
                    full = True
                    break
                out[p] = 0x52
                p = put_varint(out, p + 1, np.uint64(n + size))
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
                    return _stop(cursor, row, x, begin, OUT_OF_RANGE)
                p = put_varint(out, p + 1, np.uint64(n + varint_length(raw)))
                p = _copy(prefix_word, e_prefix[entry], n, out_word, p)
                p = put_varint(out, p, raw)
            else:
                size = 8 if wire == 1 else 4
                if size == 4 and not (-2147483648 <= value <= 4294967295):
                    return _stop(cursor, row, x, begin, OUT_OF_RANGE)
                p = put_varint(out, p + 1, np.uint64(n + size))
                p = _copy(prefix_word, e_prefix[entry], n, out_word, p)
                out_word[p] = np.uint64(value)
                p += size
        if full:
            return _stop(cursor, row, x, begin, 0)
        if x < len(extra_row) and extra_row[x] == row:
            a, n = prefix(heap, extra[x])
            if p + n + 64 > room:
                return _stop(cursor, row, x, begin, 0)
            p = _copy(word, a, n, out_word, p)
            x += 1
        if p == body:  # a reader may take a message of length 0 for the end of the file
            out[p] = 0x08
            out[p + 1] = 0
            p += 2
        length = p - body
        size = np.int64(varint_length(np.uint64(length)))
        if size < guess:
            for b in range(length):
                out[begin + size + b] = out[body + b]
        elif size > guess:
            for b in range(length - 1, -1, -1):
                out[begin + size + b] = out[body + b]
        guess = size
        put_varint(out, begin, np.uint64(length))
        p = begin + size + length
        row += 1
    return _stop(cursor, row, x, p, 0)
