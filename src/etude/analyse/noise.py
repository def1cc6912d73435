"""How much a measure changed, and how far noise alone could have moved it: a ratio with its 95% interval.

Samples are steps of one run, or runs where a side has several. The ratio is the median of all pairwise ratios (Hodges
and Lehmann), its interval holds the ratios that a rank-sum test at 5% does not reject (exact), and is wider where
consecutive steps are correlated; outliers have no weight. Where there are too few samples for that test, logarithms and
Student's t with one spread for both sides. Where samples can be 0 or below, differences replace ratios.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import comb
from typing import Final

import numpy as np

from etude.kernels.arrays import F64

__all__ = ["Shift", "shift"]


LEVEL: Final = 0.05
BATCHES: Final = 10
"""Consecutive steps are correlated: from twice this many on, medians of this many stretches are compared."""
SERIES: Final = 8
"""Fewest samples of each side from which correlation can be estimated."""
_T975: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t at 97.5% for 1, 2, ... degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Shift:
    """From base to new. Ratio and interval are None where they are not known."""

    base: float
    new: float
    ratio: float | None
    interval: tuple[float, float] | None
    method: str
    """`ranks`, `t`, `exact` (no noise: simulated), or `single` (too few samples to know the noise)."""


def shift(base: F64, new: F64, *, exact: bool = False, series: bool = True) -> Shift:
    """The change of a measure; `exact` samples have no noise, those of a `series` are consecutive."""
    mean_a, mean_b = float(np.mean(base)), float(np.mean(new))
    if exact or len(base) + len(new) < 3:
        ratio = mean_b / mean_a if mean_a else 1.0 if not mean_b else None
        known = (ratio, ratio) if exact and ratio is not None else None
        return Shift(mean_a, mean_b, ratio, known, "exact" if exact else "single")
    a, b = (_batches(base), _batches(new)) if series else (base, new)
    positive = bool((a > 0).all() and (b > 0).all())
    if positive:
        a, b = np.log(a), np.log(b)
    ranks = 2 / comb(len(a) + len(b), len(a)) <= LEVEL
    middle, low, high = _by_ranks(a, b) if ranks else _by_t(a, b)
    method = "ranks" if ranks else "t"
    wider = _wider(a, b) if series else 1.0
    low, high = middle - wider * (middle - low), middle + wider * (high - middle)
    if positive:
        return Shift(mean_a, mean_b, float(np.exp(middle)), (float(np.exp(low)), float(np.exp(high))), method)
    if not mean_a:  # a ratio to 0 is undefined
        return Shift(mean_a, mean_b, 1.0 if not mean_b else None, (1.0, 1.0) if not mean_b else None, method)
    found = [1 + value / mean_a for value in (middle, low, high)]
    return Shift(mean_a, mean_b, found[0], (min(found[1:]), max(found[1:])), method)


def _batches(samples: F64) -> F64:
    if len(samples) < 2 * BATCHES:
        return samples
    return np.array([float(np.median(part)) for part in np.array_split(samples, BATCHES)])


def _wider(a: F64, b: F64) -> float:
    """Factor by which correlation of neighbours widens the interval: a series with correlation r says as much as (1 -
    r) / (1 + r) of independent samples."""
    if min(len(a), len(b)) < SERIES:
        return 1.0
    above, below = 0.0, 0.0
    for x in (a, b):
        apart = x - np.median(x)
        usual = 3 * np.median(np.abs(apart))
        apart = np.clip(apart, -usual, usual)
        apart = apart - apart.mean()
        above, below = above + float((apart[1:] * apart[:-1]).sum()), below + float((apart**2).sum())
    if not below:
        return 1.0
    r = min(max(above / below + 1 / min(len(a), len(b)), 0.0), 0.8)  # of independent samples it is -1/n
    return float(np.sqrt((1 + r) / (1 - r)))


def _by_ranks(a: F64, b: F64) -> tuple[float, float, float]:
    """(middle, low, high) of the shift from a to b."""
    apart = np.sort((b[None, :] - a[:, None]).ravel())
    last = _rejected(len(a), len(b))
    return float(np.median(apart)), float(apart[last - 1]), float(apart[-last])


@cache
def _rejected(m: int, n: int) -> int:
    """The interval goes from the u-th smallest of the m·n differences to the u-th largest: u is the number of values of
    U, the pairs that are the other way round, up to which P(U) is at most 2.5% in all."""
    ways = np.zeros((m + 1, m * n + 1))
    ways[0, 0] = 1  # ways[i, u]: i of the first side among those seen so far, with u pairs the other way round
    for seen in range(m + n):
        after = ways.copy()
        for i in range(min(m, seen + 1), 0, -1):
            others = seen - (i - 1)  # of the second side, that are before this one
            if 0 <= others <= n:
                after[i, others:] = ways[i, others:] + ways[i - 1, : m * n + 1 - others]
            else:
                after[i] = ways[i]
        ways = after
    tail = np.cumsum(ways[m]) / comb(m + n, m)
    return int(np.searchsorted(tail, LEVEL / 2, "right"))


def _by_t(a: F64, b: F64) -> tuple[float, float, float]:
    free = len(a) + len(b) - 2
    middle = float(b.mean() - a.mean())
    spread = np.sqrt(sum(float(((x - x.mean()) ** 2).sum()) for x in (a, b)) / free * (1 / len(a) + 1 / len(b)))
    t = _T975[free - 1] if free <= len(_T975) else 1.96 + 2.5 / free
    return middle, middle - t * spread, middle + t * spread
