"""Kernels that turn `.et` bytes into columns. Each sees arrays only and never reads past a message's end.

Regular messages (every real file) are decoded here in one pass. What is legal protobuf but unusual (fields repeated,
out of order inside an attribute, newer than the schema) is flagged as irregular and rewritten by et_irregular.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64, U8
from etude.kernels.compile import kernel
from etude.kernels.varint import read_varint
from etude.model.text import same_bytes
from etude.store.et_wire import (
    BAD,
    BAD_LENGTH,
    BAD_TEXT,
    BAD_VARINT,
    DONE,
    GROW_ROWS,
    MAX_DEPTH,
    MAX_MICROS,
    VALUE_WIRE,
    check_list,
    is_utf8,
    skip_field,
)

# -- columns that are filled only if the file has them -----------------------------------------------------------------
IO_FIRST, START_US, DURATION_US, OWNED_FIRST = 0, 6, 7, 8

# -- cursor cells ------------------------------------------------------------------------------------------------------
ROW, DATA, CTRL, CELLS, STATES, LAYOUTS, STATUS, AT, IRREGULAR = range(9)
CURSOR_SIZE = 9

# -- status ------------------------------------------------------------------------------------------------------------
GROW_TRIE = 2
_IRREGULAR = -2
_GROW = -3


class Out(NamedTuple):
    """Columns of nodes."""

    source_id: NDArray[np.uint64]
    kind: U8
    name: I64
    io: U8
    lazy: I64  # a row for each column that is filled only if the file has it
    lazy_seen: U8
    lazy_default: I64
    layout: NDArray[np.int32]
    data_start: I64
    ctrl_start: I64
    irregular: U8


class Pools(NamedTuple):
    """Columns with any number of values per node."""

    data: NDArray[np.uint64]
    ctrl: NDArray[np.uint64]
    cells: I64


class Names(NamedTuple):
    """Attributes held by a column: their names one after the other, and whether they are text."""

    bytes: U8
    start: I64
    is_text: NDArray[np.bool_]


class Trie(NamedTuple):
    """Attribute sequences seen so far. A state is an attribute after its predecessors; its key is the bytes of the
    attribute message before the value (name, doc string, unknown fields, the value's tag)."""

    start: I64
    length: I64
    kind: I64
    owner: I64
    parent: I64
    predicted: I64
    second: I64
    layout: I64
    table: I64
    stack: NDArray[np.uint64]  # groups within a skipped unknown field


@kernel(allocates=False)
def _owner(u8, start, length, kind, parent, trie, names):
    """The lazy column that holds this attribute, or -1: by name and kind, and each column once in a node."""
    for k in range(len(names.is_text)):
        if names.start[k + 1] - names.start[k] != length:
            continue
        same = True
        for b in range(length):
            if u8[start + b] != names.bytes[names.start[k] + b]:
                same = False
                break
        if not same:
            continue
        column = OWNED_FIRST + k
        if names.is_text[k]:
            if kind != 27:
                return -1
        elif not (5 <= kind <= 25 and kind % 2 == 1):
            return -1
        state = parent
        while state > 0:
            if trie.owner[state] == column:
                return -1
            state = trie.parent[state]
        return column
    return -1


@kernel(allocates=False)
def _find_state(u8, word, a, e, state, trie, names, cur):
    """The state after `state` for the attribute message at [a, e), made if new. < 0: irregular, grow, or bad."""
    q = a
    stage = 0
    name_at = name_len = np.int64(0)
    kind = 0
    while q < e:
        tag_at = q
        tag, q = read_varint(u8, q, min(e, q + 5))
        if q < 0:
            return np.int64(BAD - BAD_VARINT)
        field, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
        if wire == 2 and field <= 2 and field >= 1:
            length, q = read_varint(u8, q, e)
            if q < 0 or length > np.uint64(e - q):
                return np.int64(BAD - BAD_LENGTH)
            if stage >= field:
                return np.int64(_IRREGULAR)
            stage = field
            if not is_utf8(u8, word, q, q + np.int64(length)):
                return np.int64(BAD - BAD_TEXT)
            if field == 1:
                name_at, name_len = q, np.int64(length)
            q += np.int64(length)
        elif 3 <= field <= 32 and wire == VALUE_WIRE[field - 2]:
            kind = field - 2
            if q - tag_at != (1 if tag < np.uint64(128) else 2):
                return np.int64(_IRREGULAR)
            break
        else:
            stage = 3
            q = skip_field(u8, q, e, tag, MAX_DEPTH - 1, trie.stack)
            if q < 0:
                return q
    length = q - a
    h = np.uint64(state) * np.uint64(0x9E3779B97F4A7C15)
    for p in range(a, q):
        h = (h ^ np.uint64(u8[p])) * np.uint64(0x100000001B3)
    h ^= h >> np.uint64(29)
    mask = len(trie.table) - 1
    slot = np.int64(h & np.uint64(mask))
    while trie.table[slot] >= 0:
        s = np.int64(trie.table[slot])
        same = trie.parent[s] == state and trie.length[s] == length and trie.kind[s] == kind
        if same and same_bytes(word, trie.start[s], a, length):
            return s
        slot = (slot + 1) & mask
    s = cur[STATES]
    if s == len(trie.start):
        return np.int64(_GROW)
    cur[STATES] = s + 1
    trie.table[slot] = s
    trie.start[s], trie.length[s], trie.kind[s], trie.parent[s] = a, length, kind, state
    trie.predicted[s] = trie.second[s] = -1
    trie.layout[s] = -1
    trie.owner[s] = _owner(u8, name_at, name_len, kind, state, trie, names) if kind else -2
    return s


@kernel(allocates=False)
def rehash_trie(u8, trie, used):
    mask = len(trie.table) - 1
    for s in range(1, used):
        h = np.uint64(trie.parent[s]) * np.uint64(0x9E3779B97F4A7C15)
        for p in range(trie.start[s], trie.start[s] + trie.length[s]):
            h = (h ^ np.uint64(u8[p])) * np.uint64(0x100000001B3)
        h ^= h >> np.uint64(29)
        slot = np.int64(h & np.uint64(mask))
        while trie.table[slot] >= 0:
            slot = (slot + 1) & mask
        trie.table[slot] = s


@kernel(allocates=False)
def _fill(lazy, lazy_seen, lazy_default, column):
    lazy_seen[column] = 1
    lazy[column, :] = lazy_default[column]


@kernel(allocates=False)
def _value(u8, word, kind, q, e, stack):
    """(64 bits of a cell, status): 0 fine, 1 irregular (bytes after the value), else a problem."""
    wire = VALUE_WIRE[kind]
    if wire == 0:
        raw, q = read_varint(u8, q, e)
        if q < 0:
            return np.int64(0), BAD_VARINT
        if kind == 25:
            value = np.int64(raw != np.uint64(0))
        elif kind == 5:
            value = np.int64(np.int32(np.uint32(raw & np.uint64(0xFFFFFFFF))))
        elif kind == 9:
            value = np.int64(raw & np.uint64(0xFFFFFFFF))
        elif kind == 13:
            low = raw & np.uint64(0xFFFFFFFF)
            value = np.int64(low >> np.uint64(1)) ^ -np.int64(low & np.uint64(1))
        elif kind == 15:
            value = np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
        else:
            value = np.int64(raw)
        return value, 0 if q == e else 1
    if wire == 2:
        length, r = read_varint(u8, q, e)
        if r < 0 or length > np.uint64(e - r):
            return np.int64(0), BAD_LENGTH
        if kind == 27:
            if not is_utf8(u8, word, r, r + np.int64(length)):
                return np.int64(0), BAD_TEXT
        elif kind != 29:
            problem = check_list(u8, word, kind, r, r + np.int64(length), stack)
            if problem:
                return np.int64(0), problem
        return q, 0 if r + np.int64(length) == e else 1
    size = 8 if wire == 1 else 4
    if q + size > e:
        return np.int64(0), BAD_LENGTH
    if wire == 1:
        value = np.int64(word[q])
    elif kind == 21:
        value = np.int64(np.int32(np.uint32(word[q] & np.uint64(0xFFFFFFFF))))
    else:
        value = np.int64(word[q] & np.uint64(0xFFFFFFFF))
    return value, 0 if q + size == e else 1


@kernel(allocates=False, inline="llvm")
def _is_next(word, a, length, start, n, kind):
    """Whether the attribute message of `length` bytes at a matches the state with these n key bytes at `start`."""
    return n <= length and same_bytes(word, a, start, n) and (kind != 0 or n == length)


@kernel(allocates=False)
def _clear(lazy, lazy_seen, lazy_default, row):
    """Undoes what a node wrote before it turned out irregular, or before a restart."""
    for column in range(len(lazy_seen)):
        if lazy_seen[column]:
            lazy[column, row] = lazy_default[column]


@kernel(allocates=False)
def decode(u8, word, starts, ends, stop, out, pools, trie, names, cur):
    """Decodes nodes from cur[ROW] up to `stop`; returns early with cur[STATUS] set to what is needed.

    One long function on purpose: arrays taken out of their tuples once and kept in registers are three times as fast as
    calls that pass them on.
    """
    out_id, out_kind, out_name, out_io, out_layout = out.source_id, out.kind, out.name, out.io, out.layout
    lazy, lazy_seen, lazy_default, irregular = out.lazy, out.lazy_seen, out.lazy_default, out.irregular
    data_start, ctrl_start = out.data_start, out.ctrl_start
    data, ctrl, cells = pools.data, pools.ctrl, pools.cells
    t_start, t_length, t_kind, t_owner = trie.start, trie.length, trie.kind, trie.owner
    t_predicted, t_second, t_layout = trie.predicted, trie.second, trie.layout
    data_room, ctrl_room, cell_room = len(data), len(ctrl), len(cells)
    row = cur[ROW]
    at_data, at_ctrl, at_cell = cur[DATA], cur[CTRL], cur[CELLS]
    while row < stop:
        p, end = starts[row], ends[row]
        room = end - p
        if at_data + room > data_room or at_ctrl + room > ctrl_room or at_cell + room > cell_room:
            cur[STATUS] = GROW_ROWS
            break
        d, c, x = at_data, at_ctrl, at_cell
        source_id = np.uint64(0)
        kind = np.uint8(1)
        name = np.int64(-1)
        io = 0
        seen = 0
        state = np.int64(0)
        status = 0
        at = p
        while p < end:
            at = p
            tag = u8[p]
            p += 1
            if tag == 0x52:
                length_u, a = read_varint(u8, p, end)
                if a < 0 or length_u > np.uint64(end - a):
                    status = BAD_LENGTH
                    break
                length = np.int64(length_u)
                e = a + length
                child = t_predicted[state]
                if child >= 0 and not _is_next(word, a, length, t_start[child], t_length[child], t_kind[child]):
                    child = np.int64(-1)
                if child < 0:
                    child = t_second[state]
                    if child >= 0 and not _is_next(word, a, length, t_start[child], t_length[child], t_kind[child]):
                        child = np.int64(-1)
                    t_second[state] = t_predicted[state]
                    t_predicted[state] = child
                if child < 0:
                    child = _find_state(u8, word, a, e, state, trie, names, cur)
                    if child < 0:
                        status = 1 if child == _IRREGULAR else (_GROW if child == _GROW else BAD - child)
                        break
                    t_predicted[state] = child
                state = child
                value_kind = t_kind[child]
                p = e
                if value_kind == 0:
                    continue
                q = a + t_length[child]
                if value_kind == 7 or value_kind == 11 or value_kind == 25:  # nearly all values of real traces
                    raw, q = read_varint(u8, q, e)
                    if q != e:
                        status = BAD_VARINT if q < 0 else 1
                        break
                    value = np.int64(raw != np.uint64(0)) if value_kind == 25 else np.int64(raw)
                else:
                    value, status = _value(u8, word, value_kind, q, e, trie.stack)
                    if status != 0:
                        break
                column = t_owner[child]
                if column >= 0:
                    if lazy_seen[column] == 0:
                        _fill(lazy, lazy_seen, lazy_default, column)
                    lazy[column, row] = value
                else:
                    cells[x] = value
                    x += 1
            elif tag == 0x22 or tag == 0x2A:
                length_u, p = read_varint(u8, p, end)
                if p < 0 or length_u > np.uint64(end - p):
                    status = BAD_LENGTH
                    break
                last = p + np.int64(length_u)
                while p < last:
                    value_u, p = read_varint(u8, p, last)
                    if p < 0:
                        status = BAD_VARINT
                        break
                    if tag == 0x22:
                        ctrl[c] = value_u
                        c += 1
                    else:
                        data[d] = value_u
                        d += 1
                if status != 0:
                    break
            elif tag == 0x42 or tag == 0x4A:
                bit = 1 if tag == 0x42 else 2
                if io & bit:
                    status = 1
                    break
                io |= bit
                length_u, p = read_varint(u8, p, end)
                if p < 0 or length_u > np.uint64(end - p):
                    status = BAD_LENGTH
                    break
                last = p + np.int64(length_u)
                first = IO_FIRST + (0 if bit == 1 else 3)
                texts = 0
                while p < last:
                    tag = u8[p]
                    field = 0 if tag == 0x0A else (1 if tag == 0x12 else (2 if tag == 0x1A else 3))
                    if field == 3 or texts & (1 << field):
                        status = 1
                        break
                    texts |= 1 << field
                    length_u, q = read_varint(u8, p + 1, last)
                    if q < 0 or length_u > np.uint64(last - q):
                        status = BAD_LENGTH
                        break
                    e = q + np.int64(length_u)
                    if not is_utf8(u8, word, q, e):
                        status = BAD_TEXT
                        break
                    if lazy_seen[first + field] == 0:
                        _fill(lazy, lazy_seen, lazy_default, first + field)
                    lazy[first + field, row] = p + 1
                    p = e
                if status != 0:
                    break
            elif tag == 0x12:
                if name >= 0:
                    status = 1
                    break
                name = p
                length_u, p = read_varint(u8, p, end)
                if p < 0 or length_u > np.uint64(end - p):
                    status = BAD_LENGTH
                    break
                e = p + np.int64(length_u)
                if not is_utf8(u8, word, p, e):
                    status = BAD_TEXT
                    break
                p = e
            elif tag == 0x08 or tag == 0x18 or tag == 0x20 or tag == 0x28 or tag == 0x30 or tag == 0x38:
                value_u, p = read_varint(u8, p, end)
                if p < 0:
                    status = BAD_VARINT
                    break
                if tag == 0x20:
                    ctrl[c] = value_u
                    c += 1
                    continue
                if tag == 0x28:
                    data[d] = value_u
                    d += 1
                    continue
                if seen & (1 << (tag >> 3)):
                    status = 1
                    break
                seen |= 1 << (tag >> 3)
                if tag == 0x08:
                    source_id = value_u
                elif tag == 0x18:
                    if value_u > np.uint64(7):
                        status = 1
                        break
                    kind = np.uint8(value_u) + np.uint8(1)
                else:
                    if value_u > np.uint64(MAX_MICROS):
                        status = 1
                        break
                    column = START_US if tag == 0x30 else DURATION_US
                    if lazy_seen[column] == 0:
                        _fill(lazy, lazy_seen, lazy_default, column)
                    lazy[column, row] = np.int64(value_u)
            else:
                status = 1
                break
        if status != 0:
            cur[AT] = at
            _clear(lazy, lazy_seen, lazy_default, row)
            if status != 1:
                cur[STATUS] = GROW_TRIE if status == _GROW else status
                break
            irregular[row] = 1
            cur[IRREGULAR] += 1
            source_id, kind, name, io, state = np.uint64(0), np.uint8(1), np.int64(-1), 0, np.int64(0)
            d, c, x = at_data, at_ctrl, at_cell
        out_id[row], out_kind[row], out_name[row], out_io[row] = source_id, kind, name, np.uint8(io)
        if t_layout[state] < 0:
            t_layout[state] = cur[LAYOUTS]
            cur[LAYOUTS] += 1
        out_layout[row] = t_layout[state]
        at_data, at_ctrl, at_cell = d, c, x
        row += 1
        data_start[row], ctrl_start[row] = d, c
    else:
        cur[STATUS] = DONE
    cur[ROW], cur[DATA], cur[CTRL], cur[CELLS] = row, at_data, at_ctrl, at_cell
