"""Intervals of time: which is inside which, how long any or which of them run, and their union.

An interval goes from its start up to its end and may have no length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.kernels.compile import kernel


@kernel
def nest(first, start, end, may_hold, slack, parent, apart):
    """Fills `parent` with the innermost interval around each, -1 at the top, and `apart` where an interval ends behind
    the one that it began in.

    Intervals first[t]:first[t+1] are of one thread, ordered by start and, longest first, end. What is apart is held by
    what holds all of it, and holds nothing: a caller is there until what it called returns, so the one that it began
    in did not call it. An overlap up to `slack` is rounding, and the end is cut to fit, so that what is inside an
    interval is inside all that are around it.
    """
    stack = np.empty(len(start) + 1, np.int64)
    for thread in range(len(first) - 1):
        depth = 0
        for i in range(first[thread], first[thread + 1]):
            while depth and end[stack[depth - 1]] <= start[i]:
                depth -= 1
            level = depth
            while level and end[i] > end[stack[level - 1]] + slack:
                level -= 1
            parent[i] = stack[level - 1] if level else -1
            apart[i] = level < depth
            if apart[i]:
                continue
            if depth:
                end[i] = min(end[i], end[stack[depth - 1]])
            if may_hold[i]:
                stack[depth] = i
                depth += 1


@kernel
def depths(parent):
    """How many intervals are around each; parents come before what they hold."""
    found = np.zeros(len(parent), np.int32)
    for i in range(len(parent)):
        if parent[i] >= 0:
            found[i] = found[parent[i]] + 1
    return found


def time_by_mask(start: Any, end: Any, bits: Any, width: int) -> Any:
    """Time in which exactly the classes of a mask run, for each mask of `width` classes; 0 is time in which none does.

    Interval i belongs to the classes whose bits are set in bits[i]. Time runs from the first start to the last end.
    """
    # NumPy sorts: a sort inside a kernel takes longer to compile than all the rest of it
    return _time_by_mask(start, end, bits, width, np.argsort(start), np.argsort(end))


@kernel
def _time_by_mask(start, end, bits, width, opened, closed):
    total = np.zeros(1 << width, np.int64)
    if len(start) == 0:
        return total
    alive = np.zeros(width, np.int64)
    mask = 0
    now = start[opened[0]]
    i = 0
    for j in range(len(closed)):
        until = end[closed[j]]
        while i < len(opened) and start[opened[i]] <= until:
            at = start[opened[i]]
            total[mask] += at - now
            now = at
            for b in range(width):
                if bits[opened[i]] >> b & 1:
                    alive[b] += 1
                    mask |= 1 << b
            i += 1
        total[mask] += until - now
        now = until
        for b in range(width):
            if bits[closed[j]] >> b & 1:
                alive[b] -= 1
                if alive[b] == 0:
                    mask &= ~(1 << b)
    return total


def merged(start: Any, end: Any) -> Any:
    """The union of intervals as disjoint intervals, ascending: (starts, ends). Touching ones become one."""
    return _merged(start, end, np.argsort(start))


@kernel
def _merged(start, end, order):
    first, last = np.empty(len(start), np.int64), np.empty(len(start), np.int64)
    count = 0
    for i in order:
        if count and start[i] <= last[count - 1]:
            last[count - 1] = max(last[count - 1], end[i])
        else:
            first[count], last[count] = start[i], end[i]
            count += 1
    return first[:count].copy(), last[:count].copy()


@kernel(allocates=False)
def covered(start, end, order):
    """Length of the union of some intervals; `order` is their rows by start."""
    total, until = np.int64(0), np.int64(np.iinfo(np.int64).min)
    for i in order:
        if end[i] > until:
            total += end[i] - max(start[i], until)
            until = end[i]
    return total
