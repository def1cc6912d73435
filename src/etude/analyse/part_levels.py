"""Where only a part of a rank's kernels is slower: of a device whose clock or power is limited the products of matrices
take longer, and what waits for memory does not.

The kinds of kernels of a rank and step, sorted by how far each is above its peers; each has the share of the time that
it takes. No names are read: a part is slower if several kinds are, by about the same, and they are much of the time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from etude.analyse.outliers import grouped_median
from etude.kernels.arrays import F64, I64
from etude.model.distinct import distinct

__all__ = ["PartLevels", "part_levels"]

PART: Final = 0.4
"""Share of the time that a slower part of the kernels takes, at least."""
REST: Final = 0.05
"""Share of the time of those that are least slow: where a clock is 20% lower, few kernels still wait for memory."""
KINDS: Final = 3
"""Fewest kinds of a part: what a rank holds (experts, tables) shows in one or two."""
FEW_STEPS: Final = 6


class PartLevels(NamedTuple):
    """Ranks x steps, as logarithms relative to peers; NaN where there are fewer kinds."""

    upper: F64
    """By how much all kinds of the slowest part, or more, are above their peers."""
    lower: F64
    """... and what the least slow kinds are above theirs, at most."""
    mean: F64
    """Weighted by time."""


def part_levels(cell: I64, kind: I64, away: F64, lasted: F64, shape: tuple[int, int]) -> PartLevels:
    """`away` is how far each time is above its peers, `cell` the number of its rank and step."""
    nothing = np.full(shape, np.nan)
    if not len(cell):
        return PartLevels(nothing, nothing, nothing)
    if shape[1] < FEW_STEPS:  # a single time may be far off by chance
        pairs, group = distinct([cell, kind])
        often = (np.bincount(group, minlength=len(pairs)) > 1)[group]
        cell, kind, away, lasted = cell[often], kind[often], away[often], lasted[often]
        if not len(cell):
            return PartLevels(nothing, nothing, nothing)
    pairs, group = distinct([cell, kind])
    level = grouped_median(group, away, len(pairs))
    time: F64 = np.bincount(group, lasted, len(pairs)).astype(np.float64)
    of = pairs[:, 0].astype(np.int64)
    cells = shape[0] * shape[1]
    total: F64 = np.bincount(of, time, cells).astype(np.float64)
    count: I64 = np.bincount(of, minlength=cells).astype(np.int64)
    upper = _reached(of, -level, time, PART * total, np.minimum(KINDS, count))
    lower = _reached(of, level, time, REST * total, np.minimum(2, count))
    with np.errstate(invalid="ignore"):
        mean = np.bincount(of, time * level, cells) / total
    enough = count > KINDS
    return PartLevels(*(np.where(enough, x, np.nan).reshape(shape) for x in (-upper, lower, mean)))


def _reached(of: I64, value: F64, time: F64, share: F64, fewest: I64) -> F64:
    """By cell the lowest value up to which the values have this much time, and there are that many of them."""
    order = np.lexsort((value, of))
    of, value, time = of[order], value[order], time[order]
    first = np.searchsorted(of, of)
    until = np.cumsum(time)
    until = until - until[first] + time[first]
    good = (until >= share[of] - 1e-6) & (np.arange(len(of)) - first + 1 >= fewest[of])
    found = np.full(len(share), np.nan)
    rows = np.flatnonzero(good)[::-1]  # the first one stays
    found[of[rows]] = value[rows]
    return found
