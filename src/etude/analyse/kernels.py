"""Kernels of the analyses: arrays in, arrays out. Every index is checked before it comes here."""

import numpy as np

from etude.kernels.compile import kernel


@kernel
def time_by_mask(start, end, bits, width):
    """Time in which exactly the classes of a mask run, for each mask of `width` classes; 0 is time in which none does.

    Interval i belongs to the classes whose bits are set in bits[i]. Time runs from the first start to the last end.
    """
    total = np.zeros(1 << width, np.int64)
    if len(start) == 0:
        return total
    opened, closed = np.argsort(start), np.argsort(end)
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


@kernel
def merged(start, end):
    """The union of intervals as disjoint intervals, ascending: (starts, ends). Touching ones become one."""
    first, last = np.empty(len(start), np.int64), np.empty(len(start), np.int64)
    count = 0
    for i in np.argsort(start):
        if count and start[i] <= last[count - 1]:
            last[count - 1] = max(last[count - 1], end[i])
        else:
            first[count], last[count] = start[i], end[i]
            count += 1
    return first[:count].copy(), last[:count].copy()


@kernel
def covered(start, end, order, group, groups):
    """Length of the union of the intervals of each group; `order` goes by start."""
    total, until = np.zeros(groups, np.int64), np.full(groups, np.iinfo(np.int64).min, np.int64)
    for i in order:
        g = group[i]
        if end[i] > until[g]:
            total[g] += end[i] - max(start[i], until[g])
            until[g] = end[i]
    return total


@kernel
def add_to_callers(parent, rows, value, total):
    """Adds the value of each row to all that called it, directly or not."""
    for i in range(len(rows)):
        node = parent[rows[i]]
        steps = 0
        while node >= 0 and steps < len(parent):  # a circle of callers ends, too
            total[node] += value[i]
            node = parent[node]
            steps += 1


@kernel
def outermost(parent, label):
    """Rows that no caller of the same label is above."""
    found = np.ones(len(parent), np.bool_)
    for i in range(len(parent)):
        node = parent[i]
        steps = 0
        while node >= 0 and steps < len(parent):
            if label[node] == label[i]:
                found[i] = False
                break
            node = parent[node]
            steps += 1
    return found
