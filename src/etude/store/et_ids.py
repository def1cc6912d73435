"""Kernels that turn the ids of dependencies into rows."""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel


@kernel(allocates=False, inline="llvm")
def _scattered(value):
    """A hash of an id whose low bits depend on all of them, so that no plain pattern of ids collides."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@kernel
def rows_of(ids, rank_start, edge_start, targets, rows):
    """Row within its rank of each target id (the first row that has it), -1 where none has.

    Rank r owns rows rank_start[r]:rank_start[r+1] of ids; edge_start gives each row's span of targets."""
    largest = 0
    for r in range(len(rank_start) - 1):
        largest = max(largest, rank_start[r + 1] - rank_start[r])
    table = np.empty(0, np.int32)
    for r in range(len(rank_start) - 1):
        first, stop = rank_start[r], rank_start[r + 1]
        n = stop - first
        dense = True
        for i in range(1, n):
            if ids[first + i] != ids[first] + np.uint64(i):
                dense = False
                break
        if dense:
            for e in range(edge_start[first], edge_start[stop]):
                k = targets[e] - ids[first]
                rows[e] = np.int32(k) if k < np.uint64(n) else np.int32(-1)
            continue
        if len(table) == 0:
            room = 16
            while room < 2 * largest:
                room *= 2
            table = np.empty(room, np.int32)
        size = 16
        while size < 2 * n:
            size *= 2
        mask = np.uint64(size - 1)
        table[:size] = -1
        for i in range(n):
            slot = _scattered(ids[first + i]) & mask
            while table[slot] >= 0 and ids[first + table[slot]] != ids[first + i]:
                slot = (slot + np.uint64(1)) & mask
            if table[slot] < 0:
                table[slot] = i
        for e in range(edge_start[first], edge_start[stop]):
            slot = _scattered(targets[e]) & mask
            while table[slot] >= 0 and ids[first + table[slot]] != targets[e]:
                slot = (slot + np.uint64(1)) & mask
            rows[e] = table[slot]


@kernel(allocates=False)
def number_missing(rank_start, edge_start, targets, rows, lost, lost_start):
    """Write ~k for the k-th of its rank's missing ids (ascending in lost[lost_start[r]:]) where rows are -1."""
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
