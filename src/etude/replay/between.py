"""Time of a CPU between the operators of a program: Python, modules, autograd, wrappers of tensors.

On a CPU operators take their own time when they are played. What the host did between them is in a recording as gaps,
which the profiler made longer. How much differs with the machine and what else it does, so it is counted in a unit that
the recording itself has: the time from the begin of an event to that of the first event inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

GAP_UNITS: Final = 10.0
EVENT_UNITS: Final = 1.0
"""What the profiler adds to a gap, and for each event in it (`benchmarks/fit_host_cpu.py`)."""
LEAST_PART: Final = 0.3
"""Where less of the gaps is left they are the profiler's: the rest would be a small difference of large numbers."""
SHORTEST_NS: Final = 5_000
"""A pause takes some time by itself."""
LONGEST_NS: Final = 1_500_000
"""In a longer gap another process had the core, or something was read or written: it is not played."""


class Busy:
    """Time in which the host was in an operator, or waited: intervals, which may overlap."""

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
        """Time up to each moment that is in none of the intervals, from an origin of its own."""
        at = np.searchsorted(self.begins, moments_ns, "right")
        over = np.maximum(np.append(self.ends, 0)[at - 1] - moments_ns, 0) * (at > 0)
        found: I64 = moments_ns - (self._before[at] - over)
        return found

    def has(self, moments_ns: I64) -> Bool:
        """Whether each moment is in one of the intervals, begins included."""
        at = np.searchsorted(self.begins, moments_ns, "right")
        found: Bool = (at > 0) & (np.append(self.ends, 0)[at - 1] > moments_ns)
        return found

    def since(self, moments_ns: I64) -> I64:
        """Where the free time begins that a moment is in; the moment itself where it is in none."""
        at = np.searchsorted(self.ends, moments_ns, "right")
        found: I64 = np.where(self.has(moments_ns) | (at == 0), moments_ns, np.append(self.ends, 0)[at - 1])
        return found


def waited(busy: Busy, ends_ns: I64, needed_ns: I64) -> tuple[Busy, I64]:
    """With the waits for communication that ended at `ends_ns` and was first needed at `needed_ns`: where no operator
    is between the two, the host waited from the operator before until the communication had ended. Second: when each
    wait was over."""
    idle = (needed_ns >= ends_ns) & ~busy.has(ends_ns)
    idle &= busy.free_ns(needed_ns) - busy.free_ns(ends_ns) == needed_ns - ends_ns
    begins, ends = busy.since(ends_ns[idle]), ends_ns[idle]
    found = Busy(np.concatenate((busy.begins, begins)), np.concatenate((busy.ends, ends)))
    return found, np.where(idle, ends_ns, needed_ns)


def unit_ns(parent: NDArray[np.int32] | I64, start_ns: I64, events: Bool) -> float:
    """From the begin of an event to that of the first event inside it: the lower quartile, since it is the profiler's
    time that is wanted. 0 where no event is inside another."""
    rows = np.flatnonzero(events)
    rows = rows[(parent[rows] >= 0) & events[np.maximum(parent[rows], 0)]]
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    outer, first = np.unique(parent[rows], return_index=True)
    return float(np.percentile(start_ns[rows[first]] - start_ns[outer], 25)) if len(outer) else 0.0


def pauses_ns(free_ns: I64, events: I64, unit: float) -> I64:
    """Of each step the time of the program before it, from the gap there and the events of the profiler in it; all 0
    where Python is no large part of the gaps."""
    gaps = np.where(free_ns > LONGEST_NS, 0, free_ns)
    rest = np.maximum(gaps - unit * (GAP_UNITS + EVENT_UNITS * events), 0)
    found: I64 = np.rint(rest).astype(np.int64)
    return found if rest.sum() > LEAST_PART * gaps.sum() else np.zeros_like(found)


def python_ns(recorded_ns: I64, light: Sequence[tuple[I64, I64]], calls: Bool, event_ns: F64, pass_ns: F64) -> I64:
    """Of each step the time of the program before it, from the gaps in light steps and the events in them, to which the
    end of one call and the begin of the next add one: the median, the lower one of two, of gaps as they would be with
    the median of `pass_ns`. What is longer than the same gap in the window, where the profiler added more, was
    something else that had the core."""
    as_usual = np.median(pass_ns) / pass_ns
    gaps = np.stack([
        (np.minimum(free, recorded_ns) - each_ns * (events + calls)) * by
        for (free, events), each_ns, by in zip(light, event_ns, as_usual, strict=True)
    ])  # fmt: skip
    found: I64 = np.rint(np.sort(gaps, axis=0)[(len(gaps) - 1) // 2]).astype(np.int64)
    return found


def without_waits(gaps_ns: I64, after_waits: Bool, worked_ns: float) -> I64:
    """Gaps that are together no longer than the thread worked in them: the longest of those in which it waited for a
    communication are cut first, then the longest of all."""
    found = gaps_ns.copy()
    for where in (after_waits, np.ones_like(after_waits)):
        over = float(found.sum()) - max(worked_ns, 0.0)
        if over > 0:
            found[where] = np.minimum(found[where], _level(found[where], float(found[where].sum()) - over))
    return found


def _level(lengths: I64, total: float) -> int:
    """What all are cut to if they are to be so long together."""
    left, several = max(total, 0.0), np.sort(lengths)
    below = np.concatenate(([0], np.cumsum(several)))[:-1]
    reached = below + several * np.arange(len(several), 0, -1)  # all cut to this one
    at = int(np.searchsorted(reached, left, "right"))
    return (
        int((left - below[at]) / (len(several) - at)) if at < len(several) else int(several[-1]) if len(several) else 0
    )


def pauses_before(python: F64, own: F64, shortest: float, pause: float) -> I64:
    """How long a player works before each step to take as long as the program, where a step takes the program `python`
    and the player `own`, and a pause of no length `pause`: all in one unit, which a pause is a whole number of. What
    the player is late at one step it makes up for at the next ones; a pause shorter than `shortest` is made later."""
    ahead = np.cumsum(python - own).tolist()
    found = np.zeros(len(ahead), np.int64)
    paused = 0.0
    for step, wanted in enumerate(ahead):
        if wanted - paused >= shortest:
            found[step] = round(wanted - paused - pause)
            paused = wanted
    return found
