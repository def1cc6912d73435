"""Re-timing of a run whose order is frozen. Arrays only; every index was checked before.

An event is the start or end of a node (row r has events 2r and 2r + 1), or the moment at which all members of a
collective are present. It happens `add` ns after everything that it waits for has happened.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.analyse.path_kernels import FRAME, HOST, LAUNCH, last_ended, waited_inside
from etude.kernels.compile import kernel
from etude.kernels.csr import follow, reverse, topological
from etude.model.schema import UNKNOWN

OF_LAUNCH, OF_GAP = 1, 2
"""The kind of time before a start: launch delay, or unexplained."""


@kernel
def edges_of_run(columns):
    """(later event, earlier event, time between them) of one run, and the unexplained wait before each start."""
    start, end, role, dep_start = columns.start, columns.end, columns.role, columns.dep_start
    n = len(start)
    most = 2 * len(columns.dep) + 6 * n
    after, before, weight = np.empty(most, np.int64), np.empty(most, np.int64), np.zeros(most, np.int64)
    size = 0
    delay = np.zeros(n, np.uint8)
    for row in range(n):
        if start[row] == UNKNOWN or end[row] == UNKNOWN:
            continue
        now = start[row]
        best, launched = np.int64(UNKNOWN), False
        for e in range(dep_start[row], dep_start[row + 1] + 1):
            in_lane = e == dep_start[row + 1]
            d = columns.lane_prev[row] if in_lane else columns.dep[e]
            if d < 0 or d == row or start[d] == UNKNOWN or end[d] == UNKNOWN or start[d] > now:
                continue
            frame = role[d] & FRAME != 0
            by_end = not frame and end[d] <= now
            after[size], before[size] = 2 * row, 2 * d + by_end
            if not by_end and not frame:
                weight[size] = now - start[d]
            released = end[d] if by_end else start[d] + weight[size]
            size += 1
            if released > best:
                best, launched = released, not in_lane and columns.why[e] == LAUNCH
        if best < now and not launched and role[row] & HOST == 0:
            other = last_ended(columns, now)
            if other >= 0 and end[other] > best and start[other] < now:  # within one instant the order is unknown
                after[size], before[size] = 2 * row, 2 * other + 1
                size += 1
                best = end[other]
        if best != UNKNOWN and best < now:
            delay[row] = OF_LAUNCH if launched else OF_GAP
        after[size], before[size] = 2 * row + 1, 2 * row
        size += 1
        if role[row] & HOST and role[row] & FRAME == 0:
            waited = waited_inside(columns, row, end[row])
            if waited >= 0 and start[waited] >= end[row]:
                size = _held_back(columns, row, waited, after, before, size)
            elif waited >= 0:
                after[size], before[size] = 2 * row + 1, 2 * waited + 1
                weight[size] = min(end[row] - end[waited], 0)  # clocks of host and device differ slightly
                size += 1
    return after[:size], before[:size], weight[:size], delay


@kernel(allocates=False)
def _held_back(columns, row, copy, after, before, size):
    """Edges of a copy call that returns when its copy starts: it waited for what delayed the copy, not for the copy,
    which waits for the call."""
    end, first, last = columns.end, columns.dep_start[copy], columns.dep_start[copy + 1]
    for e in range(first, last + 1):
        d = columns.lane_prev[copy] if e == last else columns.dep[e]
        if d < 0 or d == row or (e < last and columns.why[e] == LAUNCH) or columns.role[d] & FRAME:
            continue
        if end[d] != UNKNOWN and columns.start[row] < end[d] <= end[row]:
            after[size], before[size] = 2 * row + 1, 2 * d + 1
            size += 1
    return size


class Waits(NamedTuple):
    """Event i waits for the events before[first[i]:first[i+1]], each with its delay."""

    first: NDArray[np.int64]
    before: NDArray[np.int64]
    weight: NDArray[np.int64]


@kernel
def in_order(waits, by_time):
    """Events ordered so that each comes after those it waits for; cycles are ordered by time."""
    n = len(waits.first) - 1
    left = np.empty(n, np.int64)
    for i in range(n):  # not `np.diff`, which takes longer to compile than the rest
        left[i] = waits.first[i + 1] - waits.first[i]
    after_start, after = reverse(waits.first, waits.before)
    order = np.empty(n, np.int64)
    size, at = topological(left, after_start, after, order), 0
    while size < n:
        while left[by_time[at]] <= 0:
            at += 1
        left[by_time[at]] = 0
        order[size] = by_time[at]
        size = follow(left, after_start, after, order, size, size + 1)
    return order


@kernel(allocates=False)
def times(order, waits, add, recorded, found):
    """When each event happens; events without dependencies, as recorded."""
    first, before, weight = waits.first, waits.before, waits.weight
    for i in range(len(found)):
        found[i] = recorded[i]
    for i in order:
        if first[i] == first[i + 1]:
            continue
        latest = found[before[first[i]]] + weight[first[i]]
        for e in range(first[i] + 1, first[i + 1]):
            latest = max(latest, found[before[e]] + weight[e])
        found[i] = latest + add[i]


@kernel
def ready_at(waits, recorded):
    """The latest of what each event waits for, as recorded; the event's own time where it waits for nothing."""
    found = recorded.copy()
    for i in range(len(found)):
        for e in range(waits.first[i], waits.first[i + 1]):
            at = recorded[waits.before[e]] + waits.weight[e]
            found[i] = at if e == waits.first[i] else max(found[i], at)
    return found
