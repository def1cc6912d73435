"""A recorded timeline of calls and activities, timed again with less time on the host. Arrays only.

Calls are in the order of their starts, whatever their thread: threads of a program take turns. Activities are in the
order of their calls and then of their starts.
"""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel

FLOOR_NS = 300
"""Least time of a call, and between two."""
QUEUED_NS = 3_000
"""An activity that begins within this of the one before it was queued behind that."""
LATE_NS = 50_000
"""A launch takes effect within this, unless the activity waits for something else."""
FULL_NS = 200_000
"""A launch that takes longer waits for room in the queue."""
NEAR_NS = 30_000
"""A call that returns within this of the end of an activity waited for it ..."""
LONG_NS = 15_000
"""... if it took at least this long."""


@kernel
def eased(calls, activities, latency_ns):
    """New starts and ends of calls and of activities. `calls`: start, end, cost, after (the cost from its end to the
    next one), first (activities first[i]:first[i+1] are launched by call i); `activities`: start, end, stream, by_end
    (their order by end). With no cost all is as it was."""
    start, end, cost, first = calls.start, calls.end, calls.cost, calls.first
    a_start, a_end, stream = activities.start, activities.end, activities.stream
    n, m = len(start), len(a_start)
    new_start, new_end = start.copy(), end.copy()
    n_start, n_end = a_start.copy(), a_end.copy()
    ends = np.empty(m, np.int64)
    for j in range(m):
        ends[j] = a_end[activities.by_end[j]]
    last = np.full(activities.streams, -1, np.int64)
    latest, debt = -1, np.int64(0)  # the call before that ended last
    for i in range(n):
        if latest >= 0:
            gap = start[i] - end[latest]
            paid = min(debt, max(gap - FLOOR_NS, 0))
            debt -= paid
            new_start[i] = new_end[latest] + gap - paid
        length = end[i] - start[i]
        debt += cost[i]
        waited = -1
        if calls.waits[i] and length >= LONG_NS:
            at = np.searchsorted(ends, end[i] + 1) - 1
            while at >= 0 and activities.by_end[at] >= first[i + 1]:  # launched later, by another thread
                at -= 1
            if at >= 0 and ends[at] > start[i] and end[i] - ends[at] <= NEAR_NS:
                waited = activities.by_end[at]
        if waited >= 0 and (waited < first[i] or waited >= first[i + 1]):
            done = n_end[waited] + end[i] - a_end[waited]
            new_end[i] = max(new_start[i] + min(length, LONG_NS), done)
            debt = np.int64(0)  # it was paid for by waiting less
        elif waited < 0:
            paid = min(debt, max(length - FLOOR_NS, 0))
            debt -= paid
            new_end[i] = new_start[i] + length - paid
        for j in range(first[i], first[i + 1]):
            before = last[stream[j]]
            lag = a_start[j] - start[i]
            begin = new_start[i] + lag
            if before >= 0:
                apart = a_start[j] - a_end[before]
                if apart <= QUEUED_NS:
                    begin = max(n_end[before] + apart, new_start[i] + min(lag, latency_ns))
                else:
                    if lag > LATE_NS:
                        at = np.searchsorted(ends, a_start[j] + 1) - 1
                        while at >= 0 and activities.by_end[at] >= j:
                            at -= 1
                        if at >= 0 and a_start[j] - ends[at] <= QUEUED_NS:
                            other = activities.by_end[at]
                            begin = max(n_end[other] + a_start[j] - a_end[other], new_start[i] + latency_ns)
                    begin = max(begin, n_end[before])
            n_start[j], n_end[j] = begin, begin + a_end[j] - a_start[j]
            last[stream[j]] = j
        if waited >= first[i] and waited < first[i + 1]:  # its own copy
            new_end[i] = max(new_start[i] + min(length, LONG_NS), n_end[waited] + end[i] - a_end[waited])
            debt = np.int64(0)
        debt += calls.after[i]
        if latest < 0 or end[i] >= end[latest]:
            latest = i
    return new_start, new_end, n_start, n_end
