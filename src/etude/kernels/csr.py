"""Compressed sparse rows: row i has rows[start[i]:start[i+1]]. Turned around, and in an order in which all edges go on.

An entry below 0 leads nowhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.kernels.compile import kernel


def starts(keys: NDArray[Any]) -> NDArray[np.int64]:
    """Where each run of equal keys begins, and the end of all."""
    return np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1, [len(keys)]]).astype(np.int64)


@kernel
def reverse(start, rows):
    """(start, rows) of the rows that have each row: ascending, twice where it is there twice."""
    n = len(start) - 1
    places = np.zeros(n + 2, np.int64)  # one place more: filling moves every start one down
    for k in range(len(rows)):
        if rows[k] >= 0:
            places[rows[k] + 2] += 1
    for i in range(n + 1):
        places[i + 1] += places[i]
    found = np.empty(places[n + 1], rows.dtype)
    fill_reverse(start, rows, places[1:], found)
    return places[: n + 1], found


@kernel(allocates=False)
def fill_reverse(start, rows, place, found):
    """Writes each row to those that it has; place[d] is the next free place of d and ends up behind its last."""
    for i in range(len(start) - 1):
        for k in range(start[i], start[i + 1]):
            d = rows[k]
            if d >= 0:
                found[place[d]] = i
                place[d] += 1


@kernel(allocates=False)
def topological(waits, after_start, after, order):
    """Fills `order` with rows so that each comes after all it waits for, and returns how many: first in, first out,
    from the roots in row order. waits[i] is how many edges lead to row i, and is counted down; above 0 it stays on
    rows on or behind a circle, which are left out. after: who waits for each row."""
    tail = 0
    for i in range(len(waits)):
        if waits[i] == 0:
            order[tail] = i
            tail += 1
    return follow(waits, after_start, after, order, 0, tail)


@kernel(allocates=False)
def follow(waits, after_start, after, order, head, tail):
    """Goes on behind the rows order[head:tail], which wait for nothing any more; returns how many there are then."""
    while head < tail:
        i = order[head]
        head += 1
        for k in range(after_start[i], after_start[i + 1]):
            w = after[k]
            waits[w] -= 1
            if waits[w] == 0:
                order[tail] = w
                tail += 1
    return tail
