"""Kernels that extract the skeleton of an `.et` file: ids, kinds, positions and dependencies, and nothing else."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.compile import kernel
from etude.kernels.varint import read_varint
from etude.store.et_wire import BAD, BAD_LENGTH, BAD_TAG, BAD_VARINT, MAX_DEPTH, skip_field

ROW, EDGE, AT, STATUS, NEED = range(5)
DONE, MORE, GROW = 0, 1, 2
_HASH = np.uint64(0x9E3779B97F4A7C15)


class FileWindow(NamedTuple):
    """Part of a file."""

    u8: NDArray[np.uint8]
    end: int  # bytes of it that are filled
    left: int  # bytes of the file behind them
    base: int  # byte of the file that u8[0] is


class SkeletonRows(NamedTuple):
    """Values kept of each message."""

    places: NDArray[np.int64]
    ids: NDArray[np.uint64]
    kinds: NDArray[np.uint8]
    dep_start: NDArray[np.int64]
    dep: NDArray[np.uint64]


@kernel
def scan(window, rows, data, ctrl, cur):
    """Messages from u8[cur[AT]:end] on, with their data and control dependencies, if wanted.

    Stops with cur[STATUS]: DONE at `end`, MORE when the message at cur[AT] lies partly behind it, GROW when the arrays
    are full (cur[NEED] is the size of the message), or a problem. Packed and single numbers count; of a field given
    twice the last does, as in protobuf."""
    u8, end, left, base = window.u8, window.end, window.left, window.base
    places, ids, kinds, dep_start, dep = rows.places, rows.ids, rows.kinds, rows.dep_start, rows.dep
    row, edge, p = cur[ROW], cur[EDGE], cur[AT]
    stack = np.empty(MAX_DEPTH, np.uint64)
    status = DONE
    while p < end:
        length, q = read_varint(u8, p, min(end, p + 10))
        if q < 0:
            status = MORE if left > 0 and end - p < 10 else BAD_VARINT
            break
        if length > np.uint64(end - q):
            status = MORE if length <= np.uint64(end - q + left) else BAD_LENGTH
            break
        stop = q + np.int64(length)
        if row + 1 >= len(places) or edge + np.int64(length) > len(dep):
            status = GROW
            cur[NEED] = np.int64(length)
            break
        e, id_, kind = edge, np.uint64(0), np.uint64(0)
        while q < stop:
            tag, q = read_varint(u8, q, min(stop, q + 5))
            if q < 0:
                status = BAD_VARINT
                break
            wire, field = tag & np.uint64(7), tag >> np.uint64(3)
            if wire == np.uint64(0):
                value, q = read_varint(u8, q, stop)
                if q < 0:
                    status = BAD_VARINT
                    break
                if field == np.uint64(1):
                    id_ = value
                elif field == np.uint64(3):
                    kind = value & np.uint64(0xFFFFFFFF)
                elif (field == np.uint64(4) and ctrl) or (field == np.uint64(5) and data):
                    dep[e] = value
                    e += 1
            elif wire == np.uint64(2):
                size, q = read_varint(u8, q, stop)
                if q < 0 or size > np.uint64(stop - q):
                    status = BAD_LENGTH
                    break
                last = q + np.int64(size)
                if (field == np.uint64(4) and ctrl) or (field == np.uint64(5) and data):
                    while q < last:
                        value, q = read_varint(u8, q, last)
                        if q < 0:
                            status = BAD_VARINT
                            break
                        dep[e] = value
                        e += 1
                    if status != DONE:
                        break
                q = last
            else:
                q = skip_field(u8, q, stop, tag, MAX_DEPTH, stack)
                if q < 0:
                    status = BAD - q
                    break
            if field == np.uint64(0):
                status = BAD_TAG
                break
        if status != DONE:
            break
        places[row], ids[row] = base + p, id_
        kinds[row] = np.uint8(kind) + np.uint8(1) if kind < np.uint64(8) else np.uint8(9)
        row += 1
        edge = e
        dep_start[row] = edge
        p = stop
    cur[ROW], cur[EDGE], cur[AT], cur[STATUS] = row, edge, p, status


@kernel(allocates=False)
def resolve(ids, dep, rows, table):
    """Rows (the first that has the id) for ids, -1: no node has it. `rows` may be the same memory as `dep`, which is
    read ahead of the writes. Returns (how many have none, the first such position, its id)."""
    n = len(ids)
    lost, first, lost_id = 0, -1, np.uint64(0)
    dense = len(table) == 0
    mask = np.uint64(max(len(table), 1) - 1)
    if not dense:
        for i in range(n):
            slot = (ids[i] * _HASH >> np.uint64(20)) & mask
            while table[slot] >= 0 and ids[table[slot]] != ids[i]:
                slot = (slot + np.uint64(1)) & mask
            if table[slot] < 0:
                table[slot] = i
    for e in range(len(dep)):
        wanted = dep[e]
        row = np.int32(-1)
        if dense:
            if n > 0 and wanted - ids[0] < np.uint64(n):
                row = np.int32(wanted - ids[0])
        else:
            slot = (wanted * _HASH >> np.uint64(20)) & mask
            while table[slot] >= 0 and ids[table[slot]] != wanted:
                slot = (slot + np.uint64(1)) & mask
            row = table[slot]
        if row < 0:
            lost += 1
            if first < 0:
                first, lost_id = e, wanted
        rows[e] = row
    return lost, first, lost_id


@kernel
def is_dense(ids):
    """Whether the ids count up by one."""
    same = 0
    for i in range(len(ids)):
        same += ids[i] == ids[0] + np.uint64(i)
    return same == len(ids)
