"""CPU time between the operators of a program: Python, modules, autograd, tensor wrappers.

On a CPU, operators take their own time when they are played. What the host did between them appears in a recording as
gaps, which the profiler made longer. By how much depends on the machine and its load, so it is measured in a unit taken
from the recording itself: the time from the start of an event to the start of the first event inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import F64, I64, Bool

GAP_UNITS: Final = 10.0
EVENT_UNITS: Final = 1.0
"""What the profiler adds to a gap, and what it adds for each event in the gap, in units of `unit_ns`
(`benchmarks/fit_host_cpu.py`)."""
LEAST_PART: Final = 0.3
"""If less than this part of the gaps remains, the gaps are taken to be the profiler's own time: the remainder would be
a small difference of large numbers."""
SHORTEST_NS: Final = 5_000
"""Shorter pauses are postponed, since a pause itself takes some time."""
LONGEST_NS: Final = 1_500_000
"""Longer gaps are not played: another process had the core, or data was read or written."""


class Busy:
    """Time in which the host was in an operator or waited, as intervals. The given intervals may overlap."""

    def __init__(self, begins_ns: I64, ends_ns: I64) -> None:
        order = np.argsort(begins_ns, kind="stable")
        begins, ends = begins_ns[order], np.maximum(ends_ns, begins_ns)[order]
        until = np.maximum.accumulate(ends)
        first = np.ones(len(begins), np.bool_)
        first[1:] = begins[1:] > until[:-1]
        self.begins = begins[first]
        self.ends = until[np.append(np.flatnonzero(first)[1:] - 1, len(until) - 1)] if len(until) else until
        self._before = np.concatenate(([0], np.cumsum(self.ends - self.begins)))

    def free_ns(self, moments_ns: I64) -> I64:
        """Time outside all intervals up to each moment, in ns from an arbitrary origin."""
        at = np.searchsorted(self.begins, moments_ns, "right")
        over = np.maximum(np.append(self.ends, 0)[at - 1] - moments_ns, 0) * (at > 0)
        found: I64 = moments_ns - (self._before[at] - over)
        return found

    def has(self, moments_ns: I64) -> Bool:
        """Whether each moment is inside an interval. The start of an interval is inside, its end is not."""
        at = np.searchsorted(self.begins, moments_ns, "right")
        found: Bool = (at > 0) & (np.append(self.ends, 0)[at - 1] > moments_ns)
        return found

    def since(self, moments_ns: I64) -> I64:
        """The end of the last interval before each moment; the moment itself if it is inside an interval or has none
        before it."""
        at = np.searchsorted(self.ends, moments_ns, "right")
        found: I64 = np.where(self.has(moments_ns) | (at == 0), moments_ns, np.append(self.ends, 0)[at - 1])
        return found


def mostly_inside(busy: Busy, moments_ns: I64) -> Bool:
    """For each moment, whether more than half of the time since the previous one was in an interval."""
    ordered = np.maximum.accumulate(moments_ns)
    passed = np.diff(ordered, prepend=ordered[:1])
    outside = np.diff(busy.free_ns(ordered), prepend=busy.free_ns(ordered[:1]))
    found: Bool = (passed > 0) & (2 * outside < passed)
    return found


def waited(busy: Busy, ends_ns: I64, needed_ns: I64) -> tuple[Busy, I64]:
    """Adds waits for communication that ended at `ends_ns` and was first needed at `needed_ns`: if no operator ran
    between the two, the host waited from the end of the previous operator until the communication ended. Returns the
    extended intervals, and the moment at which each wait was over."""
    idle = (needed_ns >= ends_ns) & ~busy.has(ends_ns)
    idle &= busy.free_ns(needed_ns) - busy.free_ns(ends_ns) == needed_ns - ends_ns
    begins, ends = busy.since(ends_ns[idle]), ends_ns[idle]
    found = Busy(np.concatenate((busy.begins, begins)), np.concatenate((busy.ends, ends)))
    return found, np.where(idle, ends_ns, needed_ns)


def unit_ns(parent: NDArray[np.int32] | I64, start_ns: I64, events: Bool) -> float:
    """Time from the start of an event to the start of the first event inside it. The lower quartile is used, because
    the profiler's share of that time is wanted. 0 if no event is inside another."""
    rows = np.flatnonzero(events)
    rows = rows[(parent[rows] >= 0) & events[np.maximum(parent[rows], 0)]]
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    outer, first = np.unique(parent[rows], return_index=True)
    return float(np.percentile(start_ns[rows[first]] - start_ns[outer], 25)) if len(outer) else 0.0


def pauses_ns(free_ns: I64, events: I64, unit: float) -> I64:
    """The program's own time before each step, from the gap before it and the number of profiler events in the gap. All
    zero if Python is only a small part of the gaps."""
    gaps = np.where(free_ns > LONGEST_NS, 0, free_ns)
    rest = np.maximum(gaps - unit * (GAP_UNITS + EVENT_UNITS * events), 0)
    found: I64 = np.rint(rest).astype(np.int64)
    return found if rest.sum() > LEAST_PART * gaps.sum() else np.zeros_like(found)


def python_ns(recorded_ns: I64, light: Sequence[tuple[I64, I64]], calls: Bool, event_ns: F64, pass_ns: F64) -> I64:
    """The program's own time before each step, from the gaps of light steps and the events in them; a call counts as
    one more event (the end of one call and the start of the next). Gaps are scaled to the median of `pass_ns`; of the
    light steps the median is taken, the lower one of two. A gap is at most as long as the same gap in the window, where
    the profiler added more: anything longer means that another process had the core."""
    as_usual = np.median(pass_ns) / pass_ns
    gaps = np.stack(
        [
            (np.minimum(free, recorded_ns) - each_ns * (events + calls)) * by
            for (free, events), each_ns, by in zip(light, event_ns, as_usual, strict=True)
        ]
    )
    found: I64 = np.rint(np.sort(gaps, axis=0)[(len(gaps) - 1) // 2]).astype(np.int64)
    return found


def without_waits(gaps_ns: I64, after_waits: Bool, worked_ns: float) -> I64:
    """Shortens gaps so that their sum is no more than the time the thread worked in them. The longest gaps in which it
    waited for communication are cut first, then the longest of all."""
    found = gaps_ns.copy()
    for where in (after_waits, np.ones_like(after_waits)):
        over = float(found.sum()) - max(worked_ns, 0.0)
        if over > 0:
            found[where] = np.minimum(found[where], _level(found[where], float(found[where].sum()) - over))
    return found


def _level(lengths: I64, total: float) -> int:
    """The length to which all longer entries must be cut for the sum to be `total`."""
    left, several = max(total, 0.0), np.sort(lengths)
    below = np.concatenate(([0], np.cumsum(several)))[:-1]
    reached = below + several * np.arange(len(several), 0, -1)  # the sum if all were cut to this length
    at = int(np.searchsorted(reached, left, "right"))
    return (
        int((left - below[at]) / (len(several) - at)) if at < len(several) else int(several[-1]) if len(several) else 0
    )


def pauses_before(python: F64, own: F64, shortest: float, pause: float) -> I64:
    """Length of the player's pause before each step so that it takes as long as the program. The program takes `python`
    before a step, the player takes `own`, and an empty pause takes `pause`; all in the unit of the result, which is a
    whole number. If the player is late at one step, it catches up at the next ones; a pause shorter than `shortest` is
    postponed."""
    ahead = np.cumsum(python - own).tolist()
    found = np.zeros(len(ahead), np.int64)
    paused = 0.0
    for step, wanted in enumerate(ahead):
        if wanted - paused >= shortest:
            found[step] = round(wanted - paused - pause)
            paused = wanted
    return found
