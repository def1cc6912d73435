"""How far ranks differ anyway: hosts from one another, single times of a rank from its usual ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from math import log
from typing import Final

import numpy as np

from etude.analyse.own_times import WorkLevels
from etude.kernels.arrays import F64, I64

__all__ = ["host_spread", "stage_middle", "wild_ranks"]

FEW_HOSTS: Final = 4
"""For this number of hosts the spread is doubled: it is not known well."""
MANY: Final = 256
"""Hosts of which each two are compared."""
LEAST_APART: Final = 0.01
"""By how much hosts differ at least."""
RARE: Final = 1e-7
"""Probability by chance below which a rank has too many times that are far off."""
OFTEN: Final = 2.5
"""How many times as often as its peers' they must be."""


def host_spread(levels: F64, stage: I64) -> float:
    """How far hosts differ from one another anyway, by pairs of one stage: few peers lie near their own middle. Of few
    hosts it is not known."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        own = np.nanmedian(levels, axis=1)
    known = np.isfinite(own)
    values, of = own[known], stage[known]
    pairs = np.concatenate([_differences(values[of == one]) for one in np.unique(of)]) if len(of) else np.zeros(0)
    seen = 1.0484 * float(np.median(pairs)) if len(pairs) else 0.0
    return max(seen, LEAST_APART) * (1 + FEW_HOSTS / max(len(values), 1))


def _differences(values: F64) -> F64:
    """How far each two of at most MANY of these are apart."""
    some = values[:: -(-len(values) // MANY)] if len(values) else values
    one, other = np.triu_indices(len(some), 1)
    return np.abs(some[one] - some[other])


def stage_middle(values: F64, stage: I64) -> F64:
    """The middle of each stage over the whole run: what all its ranks are above their peers, by how it was chosen."""
    found = np.zeros(len(values))
    for one in np.unique(stage).tolist():
        mine = values[stage == one]
        found[stage == one] = float(np.nanmedian(mine)) if np.isfinite(mine).any() else 0.0
    return found[:, None]


def wild_ranks(levels: WorkLevels, named: set[int]) -> Iterator[tuple[int, float, float, float]]:
    """Ranks of which many single times are far off, though the others' are not: (row, part of its times, that of its
    peers, share of its time)."""
    count, far = levels.samples.astype(float), levels.far.astype(float)
    good = count >= 50
    if good.sum() < 3:
        return
    total = np.nansum(levels.total_ns, axis=1)
    with np.errstate(all="ignore"):
        rate, share = far / count, levels.far_ns / total
    usual = float(np.median(rate[good]))
    middle = float(np.median(share[good]))
    wide = 1.4826 * float(np.median(np.abs(rate[good] - usual)))
    for row in np.flatnonzero(good).tolist():
        if row in named or share[row] - middle < 0.008 or rate[row] < OFTEN * usual + 0.005:
            continue
        expected = max(usual + wide, 0.5 / count[row]) * count[row]
        chance = _at_least(int(far[row]), expected) + log(max(good.sum(), 1))
        if chance < log(RARE) and (rate[row] - usual) > 6 * wide:
            yield row, float(rate[row]), usual, float(share[row] - middle)


def _at_least(seen: int, expected: float) -> float:
    """Upper bound (Chernoff) of the logarithm of the probability of this many events or more, where fewer are
    expected."""
    if seen <= expected:
        return 0.0
    return seen - expected - seen * log(seen / expected)
