"""Compiled parts of the official rules. Times are float µs, added in the official order: the last bit decides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.kernels.compile import kernel


@kernel(allocates=False)
def exclusive_durations(ts, dur, thread_start, out):
    """Own time of each operator, sorted by (thread, start, duration): minus the union of later ones within it. Returns
    the first row with a negative own time, -1: none."""
    for t in range(len(thread_start) - 1):
        stop = thread_start[t + 1]
        for i in range(thread_start[t], stop):
            own, end = dur[i], ts[i] + dur[i]
            have, region_start, region_end = False, 0.0, 0.0
            for j in range(i + 1, stop):
                child_end = ts[j] + dur[j]
                if ts[j] >= ts[i] and child_end <= end:
                    if have and ts[j] <= region_end:
                        region_end = max(region_end, child_end)
                    else:
                        if have:
                            own -= region_end - region_start
                        have, region_start, region_end = True, ts[j], child_end
                if end < ts[j]:
                    break
            if have:
                own -= region_end - region_start
            if own < 0:
                return i
            out[i] = own
    return -1


@kernel
def last_before(ts, thread_start, thread, time):
    """The last operator of the other threads to start before `time`; ties go to the first. -1: none."""
    best, best_ts = np.int64(-1), 0.0
    for t in range(len(thread_start) - 1):
        if t == thread:
            continue
        low, high = thread_start[t], thread_start[t + 1]
        k = low + np.searchsorted(ts[low:high], time)
        if k == low or ts[k - 1] <= best_ts:
            continue
        best_ts = ts[k - 1]
        best = low + np.searchsorted(ts[low:high], best_ts)
    return best


@kernel
def handovers(ts, dur, rf_id, thread_start, gap_us, out):
    """For operators sorted by (thread, start): the record-function id that a thread took over from, 0 for none."""
    for t in range(len(thread_start) - 1):
        found = np.int64(0)
        for i in range(thread_start[t], thread_start[t + 1]):
            if i == thread_start[t] or ts[i] - ts[i - 1] - dur[i - 1] > gap_us:
                before = last_before(ts, thread_start, t, ts[i])
                found = np.int64(0) if before < 0 else max(rf_id[before], np.int64(0))
            out[i] = found


class Launches(NamedTuple):
    """A row for each device activity."""

    before: I64  # operators that start before its launch
    thread: I64
    external: I64
    is_nccl: NDArray[np.bool_]


class Operators(NamedTuple):
    """Positions of CPU operators by start, sorted."""

    by_external: I64  # by (thread, external id, position)
    thread: I64  # the keys of that order
    external: I64
    by_thread: I64  # by (thread, position)
    skipped: NDArray[np.bool_]  # of each operator: launches no NCCL kernel


@kernel
def launching_operator(launches, operators, out):
    """For each device activity the position of its operator among CPU operators by start, -1 if none."""
    ops, op_thread, op_external = operators.by_external, operators.thread, operators.external
    by_thread, skipped = operators.by_thread, operators.skipped
    for g in range(len(launches.before)):
        before, thread, external = launches.before[g], launches.thread[g], launches.external[g]
        low = np.searchsorted(op_thread, thread)
        high = np.searchsorted(op_thread, thread, side="right")
        first = low + np.searchsorted(op_external[low:high], external)
        last = low + np.searchsorted(op_external[low:high], external, side="right")
        k = first + np.searchsorted(ops[first:last], before) - 1
        while k >= first and launches.is_nccl[g] and skipped[ops[k]]:
            k -= 1
        if k >= first:
            out[g] = ops[k]
            continue
        k = low + np.searchsorted(by_thread[low:high], before) - 1
        while k >= low and launches.is_nccl[g] and skipped[by_thread[k]]:
            k -= 1
        out[g] = by_thread[k] if k >= low else -1


@kernel
def reachable(caller, root):
    """Rows whose chain of callers ends at `root`."""
    state = np.zeros(len(caller), np.int8)  # 0: not known, 1: on this walk, 2: no, 3: yes
    state[root] = 3
    for i in range(len(caller)):
        k = i
        while k >= 0 and state[k] == 0:
            state[k] = 1
            k = caller[k]
        answer = 3 if k >= 0 and state[k] == 3 else 2
        k = i
        while k >= 0 and state[k] == 1:
            state[k] = answer
            k = caller[k]
    return state == 3


class CallTree(NamedTuple):
    """Nodes by (caller, position): node i calls child[start[i]:start[i + 1]]."""

    start: I64
    child: I64
    is_gpu: NDArray[np.bool_]  # of each node
    handover: I64


@kernel
def program_order(roots, calls, first_dep, second_dep):
    """Each node's data dependencies (-1: none): the operator before it, depth first, and the one handed over from."""
    stack = np.empty(len(calls.is_gpu) + len(roots) + 1, np.int64)
    visited = np.zeros(len(calls.is_gpu), np.bool_)
    for root in roots:
        last, size = np.int64(-1), 1
        stack[0] = root
        while size:
            size -= 1
            node = stack[size]
            if visited[node]:
                continue
            visited[node] = True
            first_dep[node] = last
            if not calls.is_gpu[node]:
                last = node
                if calls.handover[node] >= 0 and calls.handover[node] != first_dep[node]:
                    second_dep[node] = calls.handover[node]
            for k in range(calls.start[node + 1] - 1, calls.start[node] - 1, -1):
                if not visited[calls.child[k]]:
                    stack[size] = calls.child[k]
                    size += 1
