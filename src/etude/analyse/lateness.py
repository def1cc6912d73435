"""Ranks that come late to collectives: a rank that delays others starts its calls after them, step after step.

Starts are compared on one clock. The median start of the members that are not suspected is when a call could have
begun. If members were recorded as starting together, lateness cannot be seen.
"""

from __future__ import annotations

from enum import Enum
from math import comb
from typing import Final

import numpy as np

from etude.analyse.clocks import offsets
from etude.analyse.late_hosts import waits_inside
from etude.analyse.operations import CollectiveCalls
from etude.analyse.outliers import grouped_median
from etude.analyse.segments import Segments
from etude.analyse.stretches import Slow
from etude.kernels.arrays import F64, I64, Bool
from etude.model.run import Run
from etude.model.schema import UNKNOWN

MOST: Final = 2 / 3
"""Fraction of the steps, or of the calls if there are few steps, in which a rank that delays others comes after
them."""
FEW: Final = 3
"""Fewest steps, or calls, from which lateness is judged."""
ABOVE: Final = 3.0
"""Standard errors by which it is late; one is the spread of the ranks that are not suspected, or its own if that is
larger."""
BY_CHANCE: Final = 0.01
"""... or the largest probability of coming last this often by chance."""
LEAST_PART: Final = 0.5
"""Shortest stretch, as a fraction of a run without steps: less may be part of one step. Also for a run of few steps."""
LEAST_STEPS: Final = 3
"""Fewest steps in which a rank delays others: fewer happen to any rank."""


class Shows(Enum):
    """How a slow rank shows up as late."""

    ALWAYS = 0
    BESIDE_OTHERS = 1
    """As often as any other: devices vary little, and others may have more work."""
    AHEAD = 2
    """Perhaps never: its host runs ahead of its device."""
    AT_FIRST = 3
    """At the first call of a step, and then all wait for one another."""


class Lateness:
    """When members arrive at their calls."""

    def __init__(self, run: Run, found: CollectiveCalls, stretches: Segments) -> None:
        ranks = len(run.job.ranks)
        known = (found.start_ns != UNKNOWN) & (np.diff(found.first) > 1)[found.of]
        offset = offsets(run, found)
        self.at, self.call = found.at[known].astype(np.int64), found.of[known]
        self.start = (found.start_ns[known] + offset[self.at]).astype(np.float64)
        row = found.row[known]
        self.segment = stretches.of_ranks(run, self.at, row) if len(row) else np.zeros(0, np.int64)
        self.count, self.by_step, self.segments = len(found), stretches.by_step, stretches.count
        self.together = not waits_inside(found)
        last, first = np.full(self.count, -np.inf), np.full(self.count, np.inf)
        np.maximum.at(last, self.call, self.start)
        np.minimum.at(first, self.call, self.start)
        is_last = (self.start == last[self.call]) & (last > first)[self.call]
        self.calls = np.bincount(self.at, minlength=ranks)
        size = np.bincount(self.call, minlength=self.count)
        self.fair = np.bincount(self.at, 1 / size[self.call], ranks)
        """How many calls each would be last in by chance."""
        self.last = np.bincount(self.at[is_last], minlength=ranks)
        held = np.bincount(self.at[is_last], (last - first)[self.call[is_last]], ranks)
        self.held_ns = held / np.maximum(self.last, 1)

    def text(self, at: int) -> str:
        if not self.calls[at] or not self.last[at]:
            return ""
        share = 100 * self.last[at] / self.calls[at]
        return f"; it arrives last at {share:.0f}% of its collectives, {self.held_ns[at] / 1e6:.2f} ms after the first"

    def holds_up(self, one: Slow, accused: Bool, shows: Shows) -> bool:
        """Whether it arrives after the members that are not suspected in most of the steps in which it is slow. Also
        true if that cannot be seen: no calls, or members recorded as starting together; and over half of a run also if
        it need not be late, as `shows` says."""
        inside = one.segments(self.segments)
        half = LEAST_PART * self.segments
        if inside.sum() < (min(LEAST_STEPS, half) if self.by_step else half):
            return False
        if self.together or one.uneven or (one.steady and inside.sum() >= half and self._may_be_in_time(one, shows)):
            return True
        mine, usual, each = self._behind(one.unit, accused, inside)
        if len(mine) < FEW:
            return True
        error = max(float(mine.std()), usual) / np.sqrt(len(mine))
        often = int((mine > 0).sum())
        chance = sum(comb(len(mine), k) for k in range(often, len(mine) + 1)) / 2 ** len(mine)
        if shows == Shows.AT_FIRST and each:
            late = float(mine.mean()) > ABOVE * usual / np.sqrt(len(mine))
            if late or self._latest(one.unit, accused, inside):
                return True
        return often >= MOST * len(mine) and (float(mine.mean()) > ABOVE * error or chance < BY_CHANCE)

    def _may_be_in_time(self, one: Slow, shows: Shows) -> bool:
        return shows == Shows.AHEAD or (
            shows == Shows.BESIDE_OTHERS and bool(self.last[one.unit] >= self.fair[one.unit])
        )

    def _late(self, accused: Bool) -> tuple[F64, I64, I64]:
        """How far behind the median of the unsuspected members others start, in ns; which rank, and in which
        segment."""
        others = ~accused[self.at]
        middle = grouped_median(self.call[others], self.start[others], self.count)
        known = ~np.isnan(middle[self.call]) & (self.segment >= 0)
        return (self.start - middle[self.call])[known], self.at[known], self.segment[known]

    def _latest(self, at: int, accused: Bool, inside: Bool) -> bool:
        """Whether it is once much later than any other rank ever is. If the work of others varies, as with experts, a
        rank that was late to a single call is not slow."""
        late, rank, segment = self._late(accused)
        most = np.full(len(accused), -np.inf)
        np.maximum.at(most, rank[inside[segment]], late[inside[segment]])
        others = most[~accused & np.isfinite(most)]
        far = ABOVE * _deviation(others)
        return len(others) > 1 and bool(most[at] > others.max() and most[at] - np.median(others) > far)

    def _behind(self, at: int, accused: Bool, inside: Bool) -> tuple[F64, float, bool]:
        """(how far behind the median of the unsuspected members it starts its calls, in ns; how far those usually are
        from their median; whether that is per call): all calls of a step together, because a rank that is late to the
        first may be on time for the others; per call if there are few steps or none."""
        late, rank, segment = self._late(accused)
        mine = (rank == at) & inside[segment]
        if not self.by_step or len(np.unique(segment[mine])) < FEW:
            return late[mine], _deviation(late[~accused[rank]]), True
        steps = rank * self.segments + segment
        together = np.bincount(steps, late, len(accused) * self.segments).astype(np.float64)
        own, free = np.unique(steps[mine]), np.unique(steps[~accused[rank]])
        return together[own], _deviation(together[free]), False


def _deviation(values: F64) -> float:
    return float(values.std()) if len(values) else 0.0
