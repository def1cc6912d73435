"""Re-timing of a run whose order is frozen. Arrays only; every index was checked before.

An event is a start or an end of a node (row r has events 2r and 2r + 1), or the moment in which a collective has all
of its members. It happens when all that it waits for has happened, and so much later (`add`).
"""

import numpy as np

from etude.analyse.path_kernels import FRAME, HOST, LAUNCH, _last_ended, _waited_inside
from etude.kernels.compile import kernel

OF_LAUNCH, OF_GAP = 1, 2
"""What the time before a start is: the way from a launch, or time that nothing explains."""


@kernel
def edges_of_run(start, end, role, dep_start, dep, why, lane_prev, columns, unknown):
    """(later event, earlier event, time between them) of one run, and what each start waited without a reason."""
    n = len(start)
    most = len(dep) + 5 * n
    after, before, weight = np.empty(most, np.int64), np.empty(most, np.int64), np.zeros(most, np.int64)
    size = 0
    delay = np.zeros(n, np.uint8)
    run_of, shift = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for row in range(n):
        if start[row] == unknown or end[row] == unknown:
            continue
        now = start[row]
        best, launched = np.int64(unknown), False
        for e in range(dep_start[row], dep_start[row + 1] + 1):
            d = dep[e] if e < dep_start[row + 1] else lane_prev[row]
            if d < 0 or d == row or start[d] == unknown or end[d] == unknown or start[d] > now:
                continue
            frame = role[d] & FRAME != 0
            by_end = not frame and end[d] <= now
            after[size], before[size] = 2 * row, 2 * d + by_end
            if not by_end and not frame:
                weight[size] = now - start[d]
            released = end[d] if by_end else start[d] + weight[size]
            size += 1
            if released > best:
                best, launched = released, e < dep_start[row + 1] and why[e] == LAUNCH
        if best < now and not launched and role[row] & HOST == 0:
            other, _ = _last_ended(0, now, run_of, shift, columns)
            if other >= 0 and end[other] > best and start[other] < now:  # of one instant nobody knows who was first
                after[size], before[size] = 2 * row, 2 * other + 1
                size += 1
                best = end[other]
        if best != unknown and best < now:
            delay[row] = OF_LAUNCH if launched else OF_GAP
        after[size], before[size] = 2 * row + 1, 2 * row
        size += 1
        if role[row] & HOST and role[row] & FRAME == 0:
            waited = _waited_inside(0, row, end[row], run_of, shift, columns, unknown)
            if waited >= 0:
                after[size], before[size] = 2 * row + 1, 2 * waited + 1
                weight[size] = min(end[row] - end[waited], 0)  # clocks of host and device differ by a little
                size += 1
    return after[:size], before[:size], weight[:size], delay


@kernel
def in_order(first, before, by_time):
    """Events so that each comes after those it waits for; what waits in a circle goes by time."""
    n = len(first) - 1
    left = np.diff(first)
    count = np.zeros(n + 1, np.int64)
    for e in range(len(before)):
        count[before[e] + 1] += 1
    begin = np.cumsum(count)
    later, fill = np.empty(len(before), np.int64), begin[:-1].copy()
    for i in range(n):
        for e in range(first[i], first[i + 1]):
            later[fill[before[e]]] = i
            fill[before[e]] += 1
    order, size = np.empty(n, np.int64), 0
    for i in range(n):
        if left[i] == 0:
            order[size] = i
            size += 1
    done, at = 0, 0
    while size < n:
        while done < size:
            i = order[done]
            done += 1
            for e in range(begin[i], begin[i + 1]):
                left[later[e]] -= 1
                if left[later[e]] == 0:
                    order[size] = later[e]
                    size += 1
        while size < n and at < n and left[by_time[at]] <= 0:
            at += 1
        if size < n:
            left[by_time[at]] = 0
            order[size] = by_time[at]
            size += 1
    return order


@kernel
def times(order, first, before, weight, add, recorded, found):
    """When each event happens; one that waits for nothing, as recorded."""
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
def ready_at(first, before, weight, recorded):
    """The latest of what each event waits for, as recorded; the event's own time where it waits for nothing."""
    found = recorded.copy()
    for i in range(len(found)):
        for e in range(first[i], first[i + 1]):
            at = recorded[before[e]] + weight[e]
            found[i] = at if e == first[i] else max(found[i], at)
    return found
