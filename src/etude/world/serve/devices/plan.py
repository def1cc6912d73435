"""Placement of ready calls: the earliest finish over the frontier, alone or with lookahead.

Without lookahead the pair of a call and a device (or several, if the call may be split) that ends first is taken, then
the next. With a horizon of H generations the pairs that end first are each tried: the rest of the frontier and H
generations after it are placed by earliest finish on a copy of the state, and the pair is taken with which the calls of
the horizon, each with the chain after it, end soonest: by the latest and the mean of them.

Only calls that begin at once are placed; others wait and are planned again at the next event.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.kernels.compile import kernel
from etude.world.serve.devices.graph import NEVER
from etude.world.serve.devices.state import copied, put, terms_of

TRIED: Final = 12
"""Pairs whose future is evaluated."""
WINDOW: Final = 16
"""Calls of the frontier in a lookahead, those that were ready first."""
HORIZON_CALLS: Final = 96
"""Most calls that a lookahead places."""


@kernel
def best_of(g, s, c, now, chosen):
    """The earliest end of a call and the number of its parts; their devices go to `chosen`, in order of their ends."""
    devices = len(g.kind)
    best, count = np.int64(NEVER), 0
    for d in range(devices):
        end = terms_of(g, s, c, d, 1, now).finish
        if end < best:
            best, count, chosen[0] = end, 1, d
    if g.shards[c] == 1:
        return best, count
    ends = np.empty(devices, np.int64)
    for parts in range(2, g.shards[c] + 1):
        for d in range(devices):
            ends[d] = terms_of(g, s, c, d, parts, now).finish
        order = np.argsort(ends, kind="mergesort")
        end = ends[order[parts - 1]]
        if end < NEVER and end + g.hand_ns[c] * (parts - 1) // parts < best:
            best, count = end + g.hand_ns[c] * (parts - 1) // parts, parts
            for i in range(parts):
                chosen[i] = order[i]
    return best, count


@kernel
def first_end(g, s, waiting, left, now, chosen):
    """The waiting call that ends first: its position in the list, and its parts."""
    best, at, parts = np.int64(NEVER), -1, 0
    mine = np.empty(len(g.kind), np.int64)
    for i in range(len(waiting)):
        if left[i]:
            end, count = best_of(g, s, waiting[i], now, mine)
            if end < best:
                best, at, parts = end, i, count
                chosen[: len(mine)] = mine
    return at, parts


@kernel
def _open(g, s, c, depth, deep, calls, size, most):
    """Calls whose dependencies all have an end once c has one, with their ready times; tools end by themselves."""
    stack = np.empty(len(g.model), np.int64)
    stack[0] = c
    top = 1
    while top:
        top -= 1
        one = stack[top]
        for e in range(g.child_start[one], g.child_start[one + 1]):
            child = g.child[e]
            s.missing[child] -= 1
            if s.missing[child]:
                continue
            s.ready[child] = 0
            for p in range(g.parent_start[child], g.parent_start[child + 1]):
                s.ready[child] = max(s.ready[child], s.finish[g.parent[p]])
            if g.tool_ns[child] >= 0:
                s.finish[child] = s.ready[child] + g.tool_ns[child]
                stack[top] = child
                top += 1
            elif depth < most and size < len(calls):
                calls[size], deep[size] = child, depth + 1
                size += 1
    return size


@kernel
def future_of(g, s, calls, deep, size, first, parts, chosen, horizon, now):
    """When the calls of the horizon end, each with the chain after it: the latest plus the mean. The first one is
    placed as given, the others by earliest finish. Changes the state and the lists."""
    left = np.ones(len(calls), np.bool_)
    mine = chosen.copy()
    latest, total, done, at = np.int64(0), 0.0, 0, first
    while at >= 0:
        left[at] = False
        end = put(g, s, calls[at], mine, parts, now) + g.tail_ns[calls[at]]
        latest, total, done = max(latest, end), total + end, done + 1
        size = _open(g, s, calls[at], deep[at], deep, calls, size, horizon)
        at, parts = first_end(g, s, calls[:size], left[:size], now, mine)
    return latest + total / done


@kernel
def ahead(g, s, waiting, left, coming, horizon, now, chosen):
    """As `first_end`, but the one with the best future among the pairs that end first. `coming` are calls with a known
    later ready time."""
    devices = len(g.kind)
    calls, deep = np.empty(HORIZON_CALLS, np.int64), np.zeros(HORIZON_CALLS, np.int64)
    place, size = np.empty(WINDOW, np.int64), 0
    for i in range(len(waiting)):
        if left[i] and size < WINDOW:
            calls[size], place[size] = waiting[i], i
            size += 1
    ends = np.full(size * (devices + 1), NEVER, np.int64)
    mine = np.empty(devices, np.int64)
    for i in range(size):
        end, parts = best_of(g, s, calls[i], now, mine)
        if parts > 1:
            ends[i * (devices + 1) + devices] = end
        for d in range(devices):
            ends[i * (devices + 1) + d] = terms_of(g, s, calls[i], d, 1, now).finish
    frontier = size
    for i in range(min(len(coming), HORIZON_CALLS - size)):
        calls[size], deep[size] = coming[i], 1
        size += 1
    order = np.argsort(ends, kind="mergesort")
    best, at, count = np.inf, -1, 0
    for k in range(min(TRIED, frontier * (devices + 1))):
        if ends[order[k]] >= NEVER:
            break
        i, d, parts = order[k] // (devices + 1), order[k] % (devices + 1), 1
        if d == devices:
            _, parts = best_of(g, s, calls[i], now, mine)
        else:
            mine[0] = d
        score = future_of(g, copied(s), calls.copy(), deep.copy(), size, i, parts, mine, horizon, now)
        if score < best:
            best, at, count = score, place[i], parts
            chosen[: len(mine)] = mine
    return at, count


@kernel
def begins(g, s, waiting, coming, horizon, now, chosen):
    """The next call that should begin at once: its position in the list, and its parts; -1: none should."""
    plan, left = copied(s), np.ones(len(waiting), np.bool_)
    while True:
        if plan.free.min() > now:
            return -1, 0
        if horizon:
            at, parts = ahead(g, plan, waiting, left, coming, horizon, now, chosen)
        else:
            at, parts = first_end(g, plan, waiting, left, now, chosen)
        if at < 0:
            return -1, 0
        for i in range(parts):
            if plan.free[chosen[i]] <= now:
                return at, parts
        left[at] = False
        put(g, plan, waiting[at], chosen, parts, now)
