"""Equal rows of a table of whole numbers, found with a hash table: no sort, however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.kernels.compile import kernel

AT_ONCE: Final = 1 << 18
"""Rows that are looked at together: of a million ranks, tables of all would be most of the memory."""


def slices(start: I64) -> Iterator[tuple[int, int]]:
    """Runs of groups of about `AT_ONCE` rows together; group g has rows start[g]:start[g + 1]."""
    low, groups = 0, len(start) - 1
    while low < groups:
        high = max(int(np.searchsorted(start, start[low] + AT_ONCE, side="right")) - 1, low + 1)
        yield low, high
        low = high


def numbered_rows(rows: NDArray[np.signedinteger]) -> tuple[I64, I64]:
    """(number of each row, where each number is first): equal rows get equal numbers, by their first appearance."""
    number = np.empty(len(rows), np.int64)
    return number, _first(rows, number)


def first_rows(rows: NDArray[np.signedinteger]) -> I64:
    """Where each distinct row is first."""
    return _first(rows, np.empty(0, np.int64))


def _first(rows: NDArray[np.signedinteger], number: I64) -> I64:
    first = np.empty(len(rows), np.int32)
    room = 1 << max(len(rows) * 2 - 1, 1).bit_length()
    found = number_rows(np.ascontiguousarray(rows), number, first, np.full(room, -1, np.int32))
    return first[:found].astype(np.int64)


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
    """Fills `first`, and `number` if there is room in it; returns how many rows differ. `table` is empty, its length a
    power of two."""
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
        if len(number) > 0:
            number[i] = table[at]
    return found
