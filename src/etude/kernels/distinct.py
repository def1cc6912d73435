"""Equal rows of a table of whole numbers, found with a hash table: no sort, however many there are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.kernels.compile import kernel


def numbered_rows(rows: NDArray[np.signedinteger]) -> tuple[I64, I64]:
    """(number of each row, where each number is first): equal rows get equal numbers, by their first appearance."""
    number = np.empty(len(rows), np.int64)
    first = np.empty(len(rows), np.int64)
    room = 1 << max(len(rows) * 2 - 1, 1).bit_length()
    found = number_rows(np.ascontiguousarray(rows), number, first, np.full(room, -1, np.int32))
    return number, first[:found].copy()


def sorted_rows(rows: NDArray[np.signedinteger]) -> tuple[NDArray[np.signedinteger], I64]:
    """(the distinct rows, ascending; the row of each in them), as `np.unique` of an axis."""
    number, first = numbered_rows(rows)
    distinct = rows[first]
    order = np.lexsort(distinct.T[::-1])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return distinct[order], rank[number]


@kernel
def number_rows(rows, number, first, table):
    """Fills `number` and `first`, returns how many rows differ. `table` is empty, its length a power of two."""
    mask, found = np.uint64(len(table) - 1), 0
    for i in range(len(rows)):
        x = np.uint64(0x9E3779B97F4A7C15)
        for k in range(rows.shape[1]):
            x = (x ^ np.uint64(np.int64(rows[i, k]))) * np.uint64(0xBF58476D1CE4E5B9)
            x = x ^ (x >> np.uint64(29))
        at = np.int64(x & mask)
        while table[at] >= 0:
            other, k = first[table[at]], 0
            while k < rows.shape[1] and rows[i, k] == rows[other, k]:
                k += 1
            if k == rows.shape[1]:
                break
            at = np.int64(np.uint64(at + 1) & mask)
        if table[at] < 0:
            table[at] = found
            first[found] = i
            found += 1
        number[i] = table[at]
    return found
