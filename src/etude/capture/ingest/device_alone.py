"""Times of the device as it was recorded alone, for the calls of a light window.

A light window has the driver's calls, and recording those takes time. The steps that were recorded with activities
alone have the device as it is in the program, and no calls. The activities of a step are the same in both, stream by
stream. So each begins and ends as it did alone, and a call is where the device says: where the device was idle before
an activity, the host launched it just then; where the host waited for the device, it went on when that was done. What
is between two such moments is divided as in the light window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from etude.base.errors import TraceError
from etude.capture.ingest.light_kernels import LONG_NS, NEAR_NS, QUEUED_NS
from etude.capture.ingest.light_window import ACTIVITY, CALL, LightWindow, may_wait
from etude.kernels.arrays import F64, I64, distinct_values

HELD_UP: Final = 2
"""A step that takes this many times the median did something else."""
SAME: Final = 0.9
"""Share of the activities of a step whose names must be the same in both windows."""
OTHERS: Final = {"Memcpy", "Memset"}
"""Names of copies and sets here; PyTorch's go on after them."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceAlone:
    """Activities by start, and the marks of steps, in ns of CUPTI's clock. The profiler starts in the first step."""

    name: I64
    names: tuple[str, ...]
    stream: I64
    start_ns: I64
    end_ns: I64
    marks_ns: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, told: Mapping[str, Any], where: str = "") -> DeviceAlone | None:
        """What a light window's file has of it; None where it has nothing."""
        found = told.get("alone")
        if not found:
            return None
        try:
            columns = {key: np.array(found[key], np.int64) for key in ("name", "stream", "start_ns", "end_ns")}
            marks = tuple(
                (int(a) - int(found["base_ns"]), int(b) - int(found["base_ns"])) for a, b in found["marks_ns"]
            )
            names = tuple(str(one) for one in found["names"])
            if len({len(one) for one in columns.values()}) > 1 or not len(columns["name"]) or len(marks) < 2:
                raise ValueError("columns of different lengths, or no steps")
            if not 0 <= columns["name"].min() <= columns["name"].max() < len(names):
                raise ValueError("an activity without a name")
            return cls(**columns, names=names, marks_ns=marks)
        except (KeyError, TypeError, ValueError, OverflowError) as problem:
            raise TraceError(f"has no activities of a device alone: {problem}", where=where) from None

    def in_step(self) -> tuple[I64, I64] | None:
        """The step of each activity, and its place among those of its stream in that step: every step has as many as
        the others. None where the streams cannot be divided so."""
        step, place = np.empty(len(self.name), np.int64), np.empty(len(self.name), np.int64)
        for stream in distinct_values(self.stream):
            rows = np.flatnonzero(self.stream == stream)
            each, rest = divmod(len(rows), len(self.marks_ns))
            if rest or not each:
                return None
            step[rows], place[rows] = np.divmod(np.arange(len(rows)), each)
        return step, place

    def lengths_ns(self, step: I64) -> I64:
        """Of each step: from its begin, or the end of what was launched before it, to the end of all it launched."""
        done = np.array([begin for begin, _ in self.marks_ns], np.int64)
        np.maximum.at(done, step, self.end_ns)
        end = np.maximum(done, [end for _, end in self.marks_ns])
        begin = np.maximum([begin for begin, _ in self.marks_ns], np.concatenate([done[:1] * 0, done[:-1]]))
        return end - begin

    def typical_ns(self) -> float:
        """Time of a step: the mean of those after the first that nothing held up."""
        divided = self.in_step()
        took = np.diff(self.marks_ns, axis=1)[1:, 0] if divided is None else self.lengths_ns(divided[0])[1:]
        return float(took[took <= HELD_UP * np.median(took)].mean())


def as_alone(light: LightWindow, device: DeviceAlone, step_ns: float = 0.0) -> LightWindow | None:
    """The chosen steps of a light window, with the times of as many steps of the device alone that take `step_ns` on
    average, or as long as they usually do. None where the two do not do the same."""
    used = light.used()
    divided = device.in_step()
    if divided is None or used != [*range(used[0], used[-1] + 1)] or len(used) >= len(device.marks_ns):
        return None
    step, place = divided
    lengths = device.lengths_ns(step)
    wanted = step_ns or device.typical_ns()
    first = min(range(1, len(lengths) - len(used) + 1), key=lambda i: abs(lengths[i : i + len(used)].mean() - wanted))
    pairs = _paired(light, used, device, step - first, place)
    return None if pairs is None else _moved(light, used, device, first, pairs)


def _paired(light: LightWindow, used: list[int], device: DeviceAlone, step: I64, place: I64) -> tuple[I64, I64] | None:
    """Rows of activities of the light window and of the device alone, that are the same."""
    plain = {name: number for number, name in enumerate(device.names)}
    known = np.array([plain.get(_plain(name), -1) for name in light.names] + [-1], np.int64)
    mine: list[I64] = []
    theirs: list[I64] = []
    streams = distinct_values(device.stream)
    by_step = [np.flatnonzero(step == number) for number in range(len(used))]
    for number, which in enumerate(used):
        begin, end = light.steps_ns[which]
        calls = (light.kind == CALL) & (light.start_ns >= begin) & (light.start_ns < end) & (light.correlation > 0)
        rows = np.flatnonzero((light.kind == ACTIVITY) & np.isin(light.correlation, light.correlation[calls]))
        left = {int(stream): by_step[number][device.stream[by_step[number]] == stream] for stream in streams}
        for stream in sorted(distinct_values(light.thread[rows]).tolist(), key=lambda s: s not in left):
            here = rows[light.thread[rows] == stream]
            here = here[np.lexsort((light.end_ns[here], light.start_ns[here]))]
            names = known[light.name[here]]

            def alike(other: I64, here: I64 = here, names: I64 = names) -> float:
                return float((device.name[other] == names).mean()) if len(other) == len(here) else 0.0

            best = stream
            if alike(left.get(stream, place[:0])) < SAME:
                best = max(left, key=lambda s: alike(left[s]), default=None)
            if best is None or alike(left[best]) < SAME:
                return None
            mine.append(here)
            theirs.append(left.pop(best))
        if any(len(rest) for rest in left.values()):
            return None
    return (np.concatenate(mine), np.concatenate(theirs)) if mine else None


def _plain(name: str) -> str:
    return next((kind for kind in OTHERS if name.startswith(kind)), name)


def _moved(light: LightWindow, used: list[int], device: DeviceAlone, first: int, pairs: tuple[I64, I64]) -> LightWindow:
    mine, theirs = pairs
    begin, end = light.steps_ns[used[0]][0], light.steps_ns[used[-1]][1]
    calls = np.flatnonzero((light.kind == CALL) & (light.start_ns >= begin) & (light.start_ns < end))
    marks = np.array([light.steps_ns[which] for which in used], np.int64)
    then = np.array(device.marks_ns[first : first + len(used)], np.int64)
    by_number = calls[np.argsort(light.correlation[calls], kind="stable")]
    launch = by_number[np.searchsorted(light.correlation[by_number], light.correlation[mine])]
    lag = light.start_ns[mine] - light.start_ns[launch]
    latency = max(int(np.percentile(lag, 10)), 0)
    begins = device.start_ns[theirs] - latency

    idle = _idle_before(device)[theirs]
    alone_at, alone_then = light.start_ns[launch][idle], begins[idle]
    waits_at, waits_then = _waits(light, calls, pairs, device)
    at = np.concatenate([alone_at, waits_at, marks.reshape(-1)])
    moments = np.concatenate([alone_then, waits_then, then.reshape(-1)])
    order = np.lexsort((moments, at))
    at, moments = at[order], np.maximum.accumulate(moments[order])

    knots = distinct_values(np.concatenate([light.start_ns[calls], light.end_ns[calls], marks.reshape(-1)]))
    latest = np.full(len(knots), np.iinfo(np.int64).max)
    np.minimum.at(latest, np.searchsorted(knots, light.start_ns[launch]), begins)
    latest = np.minimum.accumulate(latest[::-1])[::-1]  # no later than what it launches, and what comes after it
    found = np.minimum(np.rint(_along(knots, at, moments)).astype(np.int64), latest)

    def moved(moment: I64) -> I64:
        return found[np.searchsorted(knots, moment)]

    rows = np.sort(np.concatenate([calls, mine]))
    start, stop = light.start_ns.copy(), light.end_ns.copy()
    start[calls], stop[calls] = moved(light.start_ns[calls]), moved(light.end_ns[calls])
    start[mine], stop[mine] = device.start_ns[theirs], device.end_ns[theirs]
    rows = rows[np.lexsort((-stop[rows], start[rows]))]
    steps = tuple((int(a), int(b)) for a, b in moved(marks.reshape(-1)).reshape(-1, 2))
    return replace(
        light, name=light.name[rows], kind=light.kind[rows], thread=light.thread[rows], starts=(), chosen=(),
        correlation=light.correlation[rows], start_ns=start[rows], end_ns=stop[rows], steps_ns=steps,
    )  # fmt: skip


def _idle_before(device: DeviceAlone) -> Any:
    """Activities before which the device did nothing, on any stream, for longer than between two that are queued."""
    until = np.maximum.accumulate(device.end_ns)
    return device.start_ns - np.concatenate([device.start_ns[:1] - QUEUED_NS - 1, until[:-1]]) > QUEUED_NS


def _waits(light: LightWindow, calls: I64, pairs: tuple[I64, I64], device: DeviceAlone) -> tuple[I64, I64]:
    """Ends of calls that waited for an activity, and when the device alone was done with it."""
    mine, theirs = pairs
    by_end = np.argsort(light.end_ns[mine], kind="stable")
    ends = light.end_ns[mine][by_end]
    long = calls[may_wait(light)[calls] & (light.end_ns[calls] - light.start_ns[calls] >= LONG_NS)]
    last = np.searchsorted(ends, light.end_ns[long], "right") - 1
    done = ends[np.maximum(last, 0)]
    waited = (last >= 0) & (done > light.start_ns[long]) & (light.end_ns[long] - done <= NEAR_NS)
    long, last, done = long[waited], last[waited], done[waited]
    return light.end_ns[long], device.end_ns[theirs][by_end[last]] + light.end_ns[long] - done


def _along(knots: I64, at: I64, moments: I64) -> F64:
    """Moments at `knots`, of which those at `at` are known: between two in proportion, outside of them as they are."""
    base = at[0]
    found = np.interp((knots - base).astype(np.float64), (at - base).astype(np.float64), moments.astype(np.float64))
    found = np.where(knots < at[0], moments[0] - (at[0] - knots), found)
    return np.where(knots > at[-1], moments[-1] + (knots - at[-1]), found)
