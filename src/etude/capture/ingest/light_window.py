"""A window of a recording: calls, activities and steps, in order of time.

The light window of `etude collect` is one, and so is a full recording by its calls and activities alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from etude.base.errors import TraceError
from etude.capture.ingest.light_kernels import FULL_NS
from etude.kernels.arrays import F64, I64, Bool

OPERATOR, CALL, ACTIVITY = 0, 1, 2
STEP: Final = "ProfilerStep#"
WAITS: Final = ("Synchronize", "Memcpy", "Malloc", "Free")
"""Parts of the names of calls that may wait for the device."""


@dataclass(frozen=True, slots=True, eq=False)
class LightWindow:
    """Events of the light window in order of time; times of day in ns."""

    name: I64
    names: tuple[str, ...]
    kind: I64
    thread: I64
    correlation: I64
    start_ns: I64
    end_ns: I64
    steps_ns: tuple[tuple[int, int], ...]
    on_device: bool
    event_ns: tuple[float, ...]
    """What the profiler added to an event, of each step; on a CPU."""
    call_ns: float = 0.0
    """What the profiler added to a call of the driver; on a device, of older recordings."""
    launch_ns: float = 0.0
    """What it added to a call that launches something; those that launch nothing cost next to nothing."""

    @classmethod
    def of(cls, told: Mapping[str, Any], where: str = "") -> LightWindow | None:
        """The window of a file of `etude collect`; None of one that has no steps or no clock, as older ones."""
        try:
            column: dict[str, Any] = {
                key: np.array(told[key], np.int64) for key in ("name", "kind", "thread", "correlation")
            }
            start, end = (np.array(told[key], np.int64) + int(told["base_ns"]) for key in ("start_ns", "end_ns"))
            steps = tuple((int(a), int(b)) for a, b in told["marks_ns"])
            if not steps or not len(start):
                return None
            if len({len(start), len(end), *map(len, column.values())}) > 1:
                raise ValueError("columns of different lengths")
            if not 0 <= column["name"].min() <= column["name"].max() < len(told["names"]):
                raise ValueError("an event without a name")
            return cls(
                **column, names=tuple(told["names"]), start_ns=start, end_ns=end, steps_ns=steps,
                on_device=bool(told["device"]), event_ns=tuple(float(one) for one in told.get("event_ns", ())),
                call_ns=float(told.get("call_ns", 0.0)), launch_ns=float(told.get("launch_ns", 0.0)),
                starts=tuple(int(one) for one in told.get("starts", (0,))),
            )  # fmt: skip
        except KeyError:
            return None
        except (TypeError, ValueError, OverflowError) as problem:
            raise TraceError(f"is not the light window of a recording: {problem}", where=where) from None

    starts: tuple[int, ...] = (0,)
    """Steps in which its profiler starts: on a device they do not count where there are others."""

    alone: bool = False
    """No other rank waits for this one: any of its steps may stand for the others."""

    chosen: tuple[int, ...] = ()
    """Steps that stand for all, if they were chosen."""

    def used(self) -> list[int]:
        """Steps that count."""
        if self.chosen:
            return list(self.chosen)
        every = range(len(self.steps_ns))
        return [which for which in every if not self.on_device or which not in self.starts] or list(every)

    def typical_ns(self) -> float:
        """What a step takes: the median, on a device the lower quartile, since under a profiler hosts are slow more
        often."""
        lengths = [self.length_ns(which) for which in self.used()]
        return float(np.percentile(lengths, 25 if self.on_device else 50))

    def run(self, steps: int, step_ns: float) -> tuple[int, ...]:
        """This number of steps, one after the other, whose average is nearest to `step_ns`."""
        used = self.used()
        length = {which: self.length_ns(which) for which in used}
        runs = [
            used[i : i + steps] for i in range(len(used)) if used[i : i + steps] == [*range(used[i], used[i] + steps)]
        ]
        if not runs:
            runs = [[which] for which in used]
        return tuple(min(runs, key=lambda one: abs(np.mean([length[which] for which in one]) - step_ns)))

    def weights(self) -> F64:
        """For each call, how many times `profiler_ns` recording it took: once, or, where the cost of a launch is known,
        not at all if it launches nothing."""
        calls = self.kind == CALL
        if not self.launch_ns:
            return np.ones(int(calls.sum()))
        launched = self.correlation[(self.kind == ACTIVITY) & (self.correlation > 0)]
        return np.isin(self.correlation[calls], launched).astype(np.float64)

    @property
    def profiler_ns(self) -> float:
        """What recording added to a call that counts."""
        return self.launch_ns or self.call_ns

    @property
    def step_ns(self) -> float:
        """Time of a step, the mean of those that count."""
        return float(np.mean([self.length_ns(which) for which in self.used()]))

    @property
    def device_step_ns(self) -> float:
        """Time of a step of the device: from its first activity to its last one, by the number of steps."""
        within = (self.kind == ACTIVITY) & (self.start_ns >= self.steps_ns[0][0])
        begin, end = self.start_ns[within], self.end_ns[within]
        return float(end.max() - begin.min()) / len(self.steps_ns) if len(begin) else self.step_ns

    @property
    def busy_ns(self) -> int:
        """How long the device did anything."""
        rows = np.flatnonzero(self.kind == ACTIVITY)
        rows = rows[np.argsort(self.start_ns[rows], kind="stable")]
        start, until = self.start_ns[rows], np.maximum.accumulate(self.end_ns[rows])
        before = np.concatenate([start[:1], until[:-1]])
        return int(np.maximum(until - np.maximum(start, before), 0).sum())

    def length_ns(self, which: int) -> int:
        """Time of one step: from its begin, or from the end of what was launched before it, to the end of all that it
        launched."""
        begin, end = self.steps_ns[which]
        if not self.on_device:
            return end - begin
        since = self._done_ns(self.steps_ns[which - 1][0], begin) if which else begin
        return max(end, self._done_ns(begin, end)) - max(since, begin)

    def _done_ns(self, begin_ns: int, end_ns: int) -> int:
        """When all is done that was launched in an interval."""
        calls = (self.kind == CALL) & (self.start_ns >= begin_ns) & (self.start_ns < end_ns) & (self.correlation > 0)
        launched = (self.kind == ACTIVITY) & np.isin(self.correlation, self.correlation[calls])
        return int(self.end_ns[launched].max(initial=end_ns))

    def period_ns(self, which: int, following: int) -> int:
        """Time from a step to the one that is to follow it: as it was, or until all that it launched is done."""
        begin, end = self.steps_ns[which]
        if following == which + 1 and self.on_device:
            return self.steps_ns[following][0] - begin
        return max(end, self._done_ns(begin, end)) - begin


def may_wait(light: LightWindow) -> Bool:
    """Calls that may wait for the device: by their names, or because they take long (a full queue)."""
    named = np.array([any(word in name for word in WAITS) for name in light.names] + [False])[light.name]
    return named | (light.end_ns - light.start_ns > FULL_NS)
