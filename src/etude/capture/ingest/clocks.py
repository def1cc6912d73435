"""Whether times of different ranks can be compared, and how far their clocks are apart.

Ranks of one machine share a clock, those of several may not. A collective that no member leaves before all have arrived
shows it: if a member was done before another began, the two clocks differ. If the ends of all such collectives are the
same distance apart, within the resolution of clocks, that distance is the clock offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64, Bool
from etude.model.schema import Collective

NOISE_NS: Final = 20_000
"""Times of two processes of one machine agree within this."""
FEWEST: Final = 4
"""Collectives that must agree on an offset."""
_TOGETHER: Final = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.REDUCE_SCATTER_BLOCK,
    Collective.BARRIER,
)
"""Collectives that no member leaves before all have arrived; an all-to-all may have nothing for some."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupCalls:
    """Collectives of one group: one row per member, one column per call."""

    at: I64
    """Position of each member among the ranks."""
    collective: NDArray[np.uint8]
    start_ns: I64
    end_ns: I64

    @property
    def together(self) -> Bool:
        return np.isin(self.collective, _TOGETHER)


@dataclass(frozen=True, slots=True, eq=False)
class Clocks:
    offset_ns: I64
    """Added to a rank's times."""
    differ: Bool
    """differ[a, b]: times of the two are not comparable."""

    def agree(self, at: I64) -> bool:
        return not self.differ[np.ix_(at, at)].any()


def clocks(ranks: int, groups: Sequence[GroupCalls]) -> Clocks:
    offset = _offsets(ranks, groups)
    differ = np.zeros((ranks, ranks), np.bool_)
    for calls in groups:
        start, end = (times[:, calls.together] + offset[calls.at][:, None] for times in (calls.start_ns, calls.end_ns))
        wrong = np.flatnonzero(end.min(axis=0, initial=1 << 62) < start.max(axis=0, initial=-(1 << 62)) - NOISE_NS)
        a, b = calls.at[end[:, wrong].argmin(axis=0)], calls.at[start[:, wrong].argmax(axis=0)]
        differ[a, b] = differ[b, a] = True
    return Clocks(offset, differ)


def _offsets(ranks: int, groups: Sequence[GroupCalls]) -> I64:
    """Offsets along groups, those with most calls first, from a member that has one; 0 if ends are not evenly apart."""
    offset, known = np.zeros(ranks, np.int64), np.zeros(ranks, np.bool_)
    for calls in sorted(groups, key=lambda one: -int(one.together.sum())):
        reference = int(np.flatnonzero(known[calls.at])[0]) if known[calls.at].any() else 0
        known[calls.at[reference]] = True
        end = calls.end_ns[:, calls.together]
        for member in np.flatnonzero(~known[calls.at]).tolist():
            known[calls.at[member]] = True
            apart = end[reference] - end[member]
            if len(apart) >= FEWEST:
                middle = np.median(apart)
                if np.median(np.abs(apart - middle)) <= NOISE_NS:
                    offset[calls.at[member]] = offset[calls.at[reference]] + round(float(middle))
    return offset
