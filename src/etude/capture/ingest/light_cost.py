"""A window as it would be without what its profiler added: the host is faster, and activities follow when they may."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from etude.capture.ingest import light_kernels as k
from etude.capture.ingest.light_window import ACTIVITY, CALL, LightWindow, may_wait
from etude.kernels.arrays import F64, I64, Bool, sort_order

MOST_NS: Final = 200_000.0
"""Most that a profiler is taken to add to a call or an event."""


class _Calls(NamedTuple):
    start: I64
    end: I64
    cost: I64
    after: I64
    first: I64
    waits: Bool


class _Activities(NamedTuple):
    start: I64
    end: I64
    stream: I64
    by_end: I64
    streams: int


def without_cost(light: LightWindow, cost_ns: float, weight: F64 | None = None) -> LightWindow:
    """The window of a device as it would be if its profiler took no time in each call, or `weight` times that: the host
    is faster, activities follow when they may, and calls that wait for the device wait for it as before."""
    return CallsOfDevice(light).without(cost_ns, weight) if light.on_device and cost_ns > 0 else light


class CallsOfDevice:
    """Calls of a window of a device, its steps as calls that take no time, and the activities that each launched."""

    def __init__(self, light: LightWindow) -> None:
        self.light = light
        self.calls = calls = np.flatnonzero(light.kind == CALL)
        marks = np.array(light.steps_ns, np.int64).reshape(-1)
        at = np.concatenate([light.start_ns[calls], marks])
        is_mark = np.arange(len(at)) >= len(calls)
        self.order = order = np.lexsort((~is_mark, at))  # a step that begins with a call begins before it
        self.at, self.is_mark = at[order], is_mark[order]
        self.until = np.concatenate([light.end_ns[calls], marks])[order]
        own = np.concatenate([light.correlation[calls], np.full(len(marks), -1)])[order]
        rows, call = _launched(light, own)
        by_call = sort_order(call, light.start_ns[rows])
        self.rows, call = rows[by_call], call[by_call]
        streams, stream = np.unique(light.thread[self.rows], return_inverse=True)
        self.first = np.searchsorted(call, np.arange(len(order) + 1)).astype(np.int64)
        start, end = light.start_ns[self.rows], light.end_ns[self.rows]
        by_end = np.argsort(end, kind="stable")
        self.activities = _Activities(start, end, stream.astype(np.int64), by_end, len(streams))
        lag = start - self.at[call] if len(call) else np.zeros(0, np.int64)
        self.latency = max(int(np.percentile(lag, 10)), 0) if len(lag) else 0
        self.waits = np.append(may_wait(light)[calls], np.zeros(len(marks), bool))[order]

    def before(self, moments: I64) -> I64:
        """Position of the last call that began by each moment; -1: none."""
        return np.searchsorted(self.at, moments, "right") - 1

    def without(self, cost_ns: float, weight: F64 | None = None, after: tuple[I64, F64] | None = None) -> LightWindow:
        """The window without a cost in each call, or `weight` times that; `after`: costs, each after the call at that
        position (`before`)."""
        light, calls, order, is_mark = self.light, self.calls, self.order, self.is_mark
        marks = len(order) - len(calls)
        each = cost_ns * (np.ones(len(calls)) if weight is None else weight)
        cost = np.append(np.rint(each), np.zeros(marks)).astype(np.int64)[order]
        of_calls = _Calls(self.at, self.until, cost, _after(len(order), after), self.first, self.waits)
        found = k.eased(of_calls, self.activities, self.latency)
        start, end = light.start_ns.copy(), light.end_ns.copy()
        start[calls[order[~is_mark]]], end[calls[order[~is_mark]]] = found[0][~is_mark], found[1][~is_mark]
        start[self.rows], end[self.rows] = found[2], found[3]
        moved = np.empty(marks, np.int64)
        moved[order[is_mark] - len(calls)] = found[0][is_mark]
        steps = tuple((int(a), int(b)) for a, b in moved.reshape(-1, 2))
        return replace(light, start_ns=start, end_ns=end, steps_ns=steps)


def _launched(light: LightWindow, own: I64) -> tuple[I64, I64]:
    """Activities, and positions in `own` of the calls that launched them. One whose call is not known goes with what
    its stream did before; without that it was launched before all of them."""
    rows = np.flatnonzero(light.kind == ACTIVITY)
    rows = rows[sort_order(light.thread[rows], light.start_ns[rows])]
    known = (light.correlation[rows] > 0) & np.isin(light.correlation[rows], own)
    before = np.maximum.accumulate(np.where(known, np.arange(len(rows)), 0))
    placed = known[before] & (light.thread[rows] == light.thread[rows[before]])
    by_number = np.argsort(own, kind="stable")
    at = by_number[np.searchsorted(own[by_number], light.correlation[rows[before]], "right") - 1]
    return rows, np.where(placed, at, 0)


def _after(calls: int, cost: tuple[I64, F64] | None) -> I64:
    """Costs summed from each call to the next one; what is before the first is left out."""
    if cost is None:
        return np.zeros(calls, np.int64)
    return np.rint(np.bincount(cost[0] + 1, cost[1], minlength=calls + 1)[1:]).astype(np.int64)


def fitted(light: LightWindow, step_ns: float, weight: F64 | None = None) -> tuple[LightWindow, float]:
    """The window with the cost of a call with which a step takes `step_ns`, and that cost; with the least that makes it
    as short as it can be where the device takes longer."""
    if light.step_ns <= step_ns or not light.on_device:
        return light, 0.0
    low, high = 0.0, MOST_NS
    launched = CallsOfDevice(light)
    step_ns = max(step_ns, 1.002 * launched.without(high, weight).step_ns)
    for _ in range(24):
        middle = (low + high) / 2
        if launched.without(middle, weight).step_ns > step_ns:
            low = middle
        else:
            high = middle
    return launched.without(high, weight), high
