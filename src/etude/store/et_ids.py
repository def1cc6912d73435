"""Ids of dependencies become rows."""

from __future__ import annotations

import numpy as np

from etude.kernels.arrays import I32, I64, U64
from etude.kernels.compile import kernel


@kernel(allocates=False, inline="llvm")
def _scattered(value):
    """A hash of an id whose low bits depend on all bits, so that regular ids do not collide."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def rows_of(ids: U64, rank_start: I64, edge_start: I64, targets: U64, rows: I32) -> None:
    """Row within its rank of each target id (the first row that has it), -1: none.

    Rank r owns rows rank_start[r]:rank_start[r+1] of ids; edge_start gives each row's span of targets.
    """
    for first, stop in zip(rank_start[:-1].tolist(), rank_start[1:].tolist(), strict=True):
        own = ids[first:stop]
        span = slice(int(edge_start[first]), int(edge_start[stop]))
        if len(own) and np.array_equal(own, own[0] + np.arange(len(own), dtype=np.uint64)):
            place = targets[span] - own[0]  # below the first id it wraps around to a large number
            rows[span] = np.where(place < len(own), place, 2**64 - 1).astype(np.int64)
        else:
            room = 16
            while room < 2 * len(own):
                room *= 2
            _look_up(own, targets[span], np.full(room, -1, np.int32), rows[span])


@kernel(allocates=False)
def _look_up(ids, targets, table, rows):
    """`table` has a power of two of entries, more than there are ids, all -1."""
    mask = np.uint64(len(table) - 1)
    for i in range(len(ids)):
        slot = _scattered(ids[i]) & mask
        while table[slot] >= 0 and ids[table[slot]] != ids[i]:
            slot = (slot + np.uint64(1)) & mask
        if table[slot] < 0:
            table[slot] = i
    for e in range(len(targets)):
        slot = _scattered(targets[e]) & mask
        while table[slot] >= 0 and ids[table[slot]] != targets[e]:
            slot = (slot + np.uint64(1)) & mask
        rows[e] = table[slot]


@kernel(allocates=False)
def number_missing(rank_start, edge_start, targets, rows, lost, lost_start):
    """Writes ~k for the k-th of its rank's missing ids (ascending in lost[lost_start[r]:]) where rows are -1."""
    for r in range(len(rank_start) - 1):
        for e in range(edge_start[rank_start[r]], edge_start[rank_start[r + 1]]):
            if rows[e] < 0:
                low, high = lost_start[r], lost_start[r + 1]
                while low < high:
                    middle = (low + high) // 2
                    if lost[middle] < targets[e]:
                        low = middle + 1
                    else:
                        high = middle
                rows[e] = ~np.int32(low - lost_start[r])
