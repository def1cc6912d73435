"""The times of a program, from a window that was recorded with next to nothing, given to the events of the full one.

Both windows are of the same process. In each step the driver's calls of a thread (on a CPU: its operators) are the same
in both, one by one: those are paired by their order and names. A call and what it launched then begin and end as in the
light window. Between two calls the light window's time is divided among the events of the full one in proportion to
their recorded time less what recording them cost, which is the difference of the two windows there.

A recording whose windows do not agree keeps its recorded times, and says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, Final

import numpy as np

from etude.capture.ingest.events import DEVICE, OPERATORS, is_call_category
from etude.capture.ingest.light_window import ACTIVITY, CALL, OPERATOR, STEP, LightWindow
from etude.capture.link.device import DeviceTrace, Ints, RecordedTimes
from etude.kernels.arrays import F64, I64, distinct_values, sort_order
from etude.model.schema import UNKNOWN

AGREES: Final = 0.9
"""Share of the calls of a step that must be the same in both windows."""
MIDDLE: Final = 5_000
"""Longest part of a step in which calls that differ are looked for among those that do not."""
LEFT: Final = 0.05
"""Least part of a recorded interval that stays: no time becomes nothing."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What came of it."""

    steps: int = 0
    paired: int = 0
    """Calls, or operators, that are the same in both windows."""
    of: int = 0
    why_not: str = ""

    @property
    def done(self) -> bool:
        return not self.why_not


def in_program_time(device: DeviceTrace, light: LightWindow, numbers: Sequence[int] = ()) -> tuple[DeviceTrace, Joined]:
    """The recording with the times of the light window; itself, with a reason, where the two do not agree. `numbers`
    are those of its steps, if known."""
    full = _Full(device, light.on_device, numbers)
    if not len(full.steps):
        return device, Joined(why_not="the full window has no steps")
    used = light.used()
    clock, base = _Clock(full), light.steps_ns[used[0]][0]
    at, paired, of = 0, 0, 0  # since `base`: a time of day has more digits than a float
    for number in range(len(full.steps)):
        which = used[number % len(used)]
        begin = light.steps_ns[which][0]
        pairs, count = _pairs(full, number, light, which)
        if len(pairs[0]) < AGREES * count:
            named = full.numbers[number]
            return device, Joined(why_not=f"step {named} does something else than those of the light window")
        eased = _eased(light, which)
        clock.take(number, pairs, eased, at - begin, which)
        paired, of = paired + len(pairs[0]), of + count
        at += eased.period_ns(which, used[(number + 1) % len(used)])
    return clock.moved(base), Joined(len(full.steps), paired, of)


def as_window(device: DeviceTrace, numbers: Sequence[int] = ()) -> tuple[LightWindow, F64] | None:
    """A full recording as a window of its own calls and activities, and how many other events were recorded from each
    call to the next on its thread; None of one without steps or without a device."""
    full = _Full(device, True, numbers)
    calls, activities = np.flatnonzero(full.anchor), np.flatnonzero(full.activity)
    if not full.steps or not len(activities) or not len(calls):
        return None
    rows = np.concatenate([calls, activities])
    kind = np.repeat(np.array([CALL, ACTIVITY], np.int64), [len(calls), len(activities)])
    order = sort_order(full.start[rows], -full.end[rows])
    rows, kind = rows[order], kind[order]
    light = LightWindow(
        device.name[rows].astype(np.int64), device.names, kind,
        np.where(kind == CALL, device.tid[rows], device.stream[rows]), device.correlation[rows],
        full.start[rows] + device.base_ns, full.end[rows] + device.base_ns,
        tuple((a + device.base_ns, b + device.base_ns) for a, b in full.steps), True, (), starts=(),
    )  # fmt: skip
    weight = np.zeros(int((kind == CALL).sum()))
    mine = rows[kind == CALL]
    operators = np.flatnonzero(full.host & ~full.anchor)
    for thread in distinct_values(device.tid[mine]).tolist():
        at = np.flatnonzero(device.tid[mine] == thread)
        events = np.sort(full.start[operators[device.tid[operators] == thread]])
        bounds = np.append(np.searchsorted(events, full.start[mine[at]]), len(events))
        weight[at] = np.diff(bounds)
        weight[at[0]] += bounds[0]
    return light, weight


class _Full:
    """The full window: its steps, and the events by which it is paired."""

    def __init__(self, device: DeviceTrace, on_device: bool, numbers: Sequence[int]) -> None:
        self.device = device
        calls = np.array([is_call_category(c) for c in device.categories] + [False])[device.category]
        shown = device.is_phase("X") & (device.start_ns != UNKNOWN) & (device.tid != UNKNOWN)
        operators = device.is_category(*OPERATORS) & shown
        self.start = device.start_ns
        self.end = device.start_ns + np.maximum(device.duration_ns, 0)
        self.host = operators | (calls & shown)
        self.anchor = (calls & shown) if on_device else operators & ~device.name_has(STEP)
        if not on_device:
            self.anchor &= ~np.isin(
                device.tid, list(_workers(device.tid[operators], device.name[operators], device.names))
            )
        self.activity = device.is_category(*DEVICE) & device.is_phase("X") & (device.start_ns != UNKNOWN)
        rows = np.flatnonzero(operators & device.name_has(STEP))
        said = [device.names[device.name[row]].removeprefix(STEP) for row in rows.tolist()]
        wanted = {str(number) for number in numbers}
        keep = [i for i, one in enumerate(said) if one.isdecimal() and (not wanted or one in wanted)]
        keep.sort(key=lambda i: int(self.start[rows[i]]))
        self.steps = [(int(self.start[rows[i]]), int(self.end[rows[i]])) for i in keep]
        self.numbers = [said[i] for i in keep]
        self.thread = int(device.tid[rows[keep[0]]]) if keep else 0
        self.threads = distinct_values(device.tid[self.host]).tolist()
        self.launched = np.flatnonzero(self.activity & (device.correlation > 0))
        self._anchors: dict[int, I64] = {}

    def anchors(self, number: int, thread: int) -> I64:
        """Rows by which a step of a thread is paired, in order of time, outer before inner."""
        if thread not in self._anchors:
            rows = np.flatnonzero(self.anchor & (self.device.tid == thread))
            self._anchors[thread] = rows[sort_order(self.start[rows], -self.end[rows])]
        rows = self._anchors[thread]
        first, last = np.searchsorted(self.start[rows], self.steps[number])
        return rows[first:last]


def _pairs(full: _Full, number: int, light: LightWindow, which: int) -> tuple[tuple[I64, I64], int]:
    """(rows of the full window, events of the light one) that are the same, and how many there are in the fuller."""
    begin, end = light.steps_ns[which]
    wanted = CALL if light.on_device else OPERATOR
    steps = np.array([name.startswith(STEP) for name in light.names] + [False])[light.name]
    there = np.flatnonzero((light.kind == wanted) & ~steps & (light.start_ns >= begin) & (light.start_ns < end))
    there = there[sort_order(light.start_ns[there], -light.end_ns[there])]
    code = {name: number for number, name in enumerate(light.names)}
    names = np.array([code.get(name, -1) for name in full.device.names] + [-1], np.int64)
    others = _workers(light.thread, light.name, light.names)
    threads = {int(t): there[light.thread[there] == t] for t in distinct_values(light.thread[there]) if t not in others}
    mine = {t: found for t in full.threads if len(found := full.anchors(number, t))}
    rows: list[I64] = []
    events: list[I64] = []
    count = 0
    for thread in sorted(mine, key=lambda t: -len(mine[t])):
        if not threads:
            count += len(mine[thread])
            continue
        here = names[full.device.name[mine[thread]]]
        best = thread if thread in threads else min(threads, key=lambda t: abs(len(threads[t]) - len(here)))
        other = threads.pop(best)
        a, b = _same(here, light.name[other])
        rows.append(mine[thread][a])
        events.append(other[b])
        count += max(len(here), len(other))
    joined = [np.concatenate(one) if one else np.zeros(0, np.int64) for one in (rows, events)]
    return (joined[0], joined[1]), count


def _workers(thread: I64, name: Ints, names: Sequence[str]) -> set[int]:
    """Threads of gloo, which carry out what others ask for. Which of them takes a work is chance, so they are not the
    same in two windows: their works go with the thread that waits for them."""
    work, call = (np.array([one.startswith(kind) for one in names] + [False])[name] for kind in ("gloo:", "c10d::"))
    return set(thread[work].tolist()) - set(thread[call].tolist())


def _same(a: I64, b: I64) -> tuple[I64, I64]:
    """Positions at which two sequences agree, in order."""
    least = min(len(a), len(b))
    head = int(np.argmin(np.append(a[:least] == b[:least], False)))
    tail = int(np.argmin(np.append(a[len(a) - least + head :][::-1] == b[len(b) - least + head :][::-1], False)))
    middle = a[head : len(a) - tail], b[head : len(b) - tail]
    blocks = [(0, 0, head), (len(a) - tail, len(b) - tail, tail)]
    if 0 < max(map(len, middle)) <= MIDDLE:  # in a longer one nothing is looked for: it would take too long
        found = SequenceMatcher(None, middle[0].tolist(), middle[1].tolist(), autojunk=False).get_matching_blocks()
        blocks[1:1] = [(head + one.a, head + one.b, one.size) for one in found]
    first, second = (np.concatenate([np.arange(one[i], one[i] + one[2]) for one in blocks]) for i in (0, 1))
    return first, second


def _eased(light: LightWindow, which: int) -> LightWindow:
    """The window without what its own profiler added to the events of a step, on the thread of the step."""
    if light.on_device or which >= len(light.event_ns) or not light.event_ns[which]:
        return light
    begin, end = light.steps_ns[which]
    inside = (light.start_ns >= begin) & (light.start_ns < end)
    threads, counts = np.unique(light.thread[inside], return_counts=True)
    busiest = inside & (light.thread == threads[np.argmax(counts)])
    edges = np.sort(np.concatenate([light.start_ns[busiest], light.end_ns[busiest]]))
    half = light.event_ns[which] / 2

    def earlier(moment: I64) -> I64:
        return moment - np.rint(half * np.searchsorted(edges, moment, "right")).astype(np.int64)

    until = int(earlier(np.array([end]))[0])
    steps = (*light.steps_ns[:which], (begin, max(until, begin + 1)), *light.steps_ns[which + 1 :])
    start = np.maximum.accumulate(np.where(inside, earlier(light.start_ns), light.start_ns))
    return replace(light, start_ns=start, end_ns=np.maximum(earlier(light.end_ns), start), steps_ns=steps)


def _in_turn(group: I64, start_ns: I64) -> I64:
    """A number for each member of a group, by the order of their starts: those of two windows agree."""
    order = sort_order(group, start_ns)
    turn = np.empty(len(group), np.int64)
    turn[order] = np.arange(len(group)) - np.searchsorted(group[order], group[order])
    return group.astype(np.int64) * (1 << 32) + turn


class _Clock:
    """From moments of the full window to moments of the program, thread by thread and activity by activity."""

    def __init__(self, full: _Full) -> None:
        self.full = full
        self.recorded: dict[int, list[I64]] = {}
        self.program: dict[int, list[I64]] = {}
        self.paired: list[I64] = []
        self.rows: list[I64] = []
        self.begin: list[I64] = []
        self.until: list[I64] = []

    def take(self, number: int, pairs: tuple[I64, I64], light: LightWindow, shift: int, which: int) -> None:
        """A step: its paired events are at those moments of the light step, moved by `shift`."""
        full, (rows, events) = self.full, pairs
        self.paired.append(rows)
        step = light.steps_ns[which]
        begin, end = full.steps[number]
        for thread in distinct_values(full.device.tid[rows]).tolist() if len(rows) else [full.thread]:
            mine = full.device.tid[rows] == thread
            at = np.concatenate([full.start[rows[mine]], full.end[rows[mine]]])
            then = np.concatenate([light.start_ns[events[mine]], light.end_ns[events[mine]]]) + shift
            if thread == full.thread:
                at, then = np.append(at, [begin, end]), np.append(then, [step[0] + shift, step[1] + shift])
            self.recorded.setdefault(thread, []).append(at)
            self.program.setdefault(thread, []).append(then)
        self._activities(rows, events, light, shift)

    def _activities(self, rows: I64, events: I64, light: LightWindow, shift: int) -> None:
        """What paired calls launched, by correlation and order."""
        full = self.full.device
        call, which = np.unique(full.correlation[rows], return_index=True)
        mine = self.full.launched
        mine = mine[np.isin(full.correlation[mine], call)]
        wanted = _in_turn(which[np.searchsorted(call, full.correlation[mine])], self.full.start[mine])
        call, which = np.unique(light.correlation[events], return_index=True)
        theirs = np.flatnonzero((light.kind == ACTIVITY) & (light.correlation > 0) & np.isin(light.correlation, call))
        offered = _in_turn(which[np.searchsorted(call, light.correlation[theirs])], light.start_ns[theirs])
        _, at, there = np.intersect1d(wanted, offered, assume_unique=True, return_indices=True)
        pairs = np.stack([mine[at], theirs[there]], 1)
        self.rows.append(pairs[:, 0])
        self.begin.append(light.start_ns[pairs[:, 1]] + shift)
        self.until.append(light.end_ns[pairs[:, 1]] + shift)

    def moved(self, base_ns: int) -> DeviceTrace:
        """The recording in the program's time, which begins at `base_ns`."""
        full, device = self.full, self.full.device
        start, end = full.start.astype(np.int64).copy(), full.end.astype(np.int64).copy()
        known = device.start_ns != UNKNOWN
        main = self._warp(full.thread)
        start[known], end[known] = main(full.start[known]), main(full.end[known])
        for thread in (t for t in self.recorded if t != full.thread):
            mine, warp = known & (device.tid == thread) & ~full.activity, self._warp(thread)
            start[mine], end[mine] = warp(full.start[mine]), warp(full.end[mine])
        self._place(start, end)
        length = np.where(device.duration_ns >= 0, end - start, device.duration_ns)
        start = np.where(known, start, device.start_ns)
        light = np.zeros(len(device), bool)
        light[np.concatenate([*self.paired, *self.rows, np.zeros(0, np.int64)])] = True
        recorded = RecordedTimes(device.start_ns, device.duration_ns, device.base_ns, light)
        return replace(device, start_ns=start, duration_ns=length, base_ns=base_ns, recorded=recorded)

    def _place(self, start: I64, end: I64) -> None:
        """Activities at their times; those that are not paired by their neighbours on the stream."""
        rows, begin, until = (
            np.concatenate(one) if one else np.zeros(0, np.int64) for one in (self.rows, self.begin, self.until)
        )
        start[rows], end[rows] = begin, until
        paired = np.zeros(len(start), bool)
        paired[rows] = True
        device, full = self.full.device, self.full
        every = np.flatnonzero(full.activity)
        every = every[sort_order(device.stream[every], full.start[every])]
        last = every[np.maximum.accumulate(np.where(paired[every], np.arange(len(every)), 0))]
        beside = ~paired[every] & paired[last] & (device.stream[last] == device.stream[every])
        start[every[beside]] = (end[last] + full.start[every] - full.end[last])[beside]
        rest = every[~paired[every]]
        end[rest] = start[rest] + full.end[rest] - full.start[rest]

    def _warp(self, thread: int) -> Any:
        """(moments of the full window) -> moments of the program, on a thread."""
        at, then = np.concatenate(self.recorded[thread]), np.concatenate(self.program[thread])
        order = sort_order(at, then)
        at, then = at[order], np.maximum.accumulate(then[order])
        last = np.append(np.flatnonzero(np.diff(at)), len(at) - 1)
        at, then = at[last], then[last]
        rows = np.flatnonzero(self.full.host & (self.full.device.tid == thread))
        knots = distinct_values(np.concatenate([at, self.full.start[rows], self.full.end[rows]]))
        origin = int(knots[0])
        knots = knots - origin
        moments = np.rint(_divided(knots, at - origin, then)).astype(np.int64)
        apart = np.arange(len(moments))  # what was one after the other stays so
        moments = np.maximum.accumulate(moments - apart) + apart

        def warp(moment: I64) -> I64:
            moment = moment - origin
            found = np.interp(moment, knots, moments)
            found = np.where(moment < knots[0], moments[0] - (knots[0] - moment), found)
            found = np.where(moment > knots[-1], moments[-1] + (moment - knots[-1]), found)
            return np.rint(found).astype(np.int64)

        return warp


def _divided(knots: I64, at: I64, then: I64) -> F64:
    """Moments of the program at `knots`, of which those at `at` are known to be `then`. What an interval became shorter
    is taken from its pieces alike, since each ends at an event that was recorded; what is left is scaled to fit."""
    inside = (knots >= at[0]) & (knots <= at[-1])
    which = (
        np.clip(np.searchsorted(at, knots, "right") - 1, 0, len(at) - 2) if len(at) > 1 else np.zeros(len(knots), int)
    )
    found = np.empty(len(knots), np.float64)
    found[knots < at[0]] = then[0] - (at[0] - knots[knots < at[0]])
    found[knots > at[-1]] = then[-1] + (knots[knots > at[-1]] - at[-1])
    if len(at) < 2:
        found[inside] = then[0]
        return found
    here, of = knots[inside], which[inside]
    gap = np.diff(here, append=here[-1:]).astype(
        np.float64
    )  # from each knot to the next, which is in the same interval
    of[-1] = len(at) - 2
    gap[-1] = 0
    count = np.bincount(of, gap > 0, minlength=len(at) - 1)
    shorter = np.maximum(np.diff(at) - np.diff(then), 0)
    weight = np.maximum(gap - (shorter / np.maximum(count, 1))[of], LEFT * gap)
    total = np.bincount(of, weight, minlength=len(at) - 1)
    weight *= (np.diff(then) / np.maximum(total, 1e-9))[of]
    along = np.concatenate([[0.0], np.cumsum(weight)[:-1]])
    first = np.searchsorted(here, at[:-1])
    found[inside] = then[:-1][of] + along - along[first][of]
    found[inside] = np.where(here == at[-1], then[-1], found[inside])
    return found
