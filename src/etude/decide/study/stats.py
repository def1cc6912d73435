"""Tests and intervals of paired differences. SciPy is loaded only where it is asked."""

from collections.abc import Sequence
from math import comb, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

ALPHA: Final = 0.05
DRAWS: Final = 2_000
"""Resamples of a bootstrap."""


def sign_test(differences: Sequence[float]) -> float:
    """Two-sided p of as many of one sign, or more; ties are dropped, and with none left p is 1."""
    above = sum(d > 0 for d in differences)
    below = sum(d < 0 for d in differences)
    n, k = above + below, min(above, below)
    return min(1.0, 2 * sum(comb(n, i) for i in range(k + 1)) / 2**n)


def wilcoxon(differences: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed ranks; ties with 0 are dropped, and with none left p is 1."""
    kept = [d for d in differences if d != 0]
    if not kept:
        return 1.0
    from scipy.stats import wilcoxon as test

    return float(test(kept).pvalue)


TESTS: Final = {"sign": sign_test, "wilcoxon": wilcoxon}


def holm(p_values: Sequence[float], alpha: float = ALPHA) -> list[bool]:
    """Which hypotheses are rejected: the i-th smallest p of m against alpha/(m-i+1), up to the first that fails."""
    m = len(p_values)
    rejected = [False] * m
    for i, at in enumerate(sorted(range(m), key=lambda k: p_values[k])):
        if p_values[at] > alpha / (m - i):
            break
        rejected[at] = True
    return rejected


def bootstrap_ratio(base: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[float, float] | None:
    """95% of the ratios of means, other over base, when pairs are drawn again with replacement. None where a base
    of such a draw is 0: there is no ratio then."""
    n = len(base)
    drawn = np.random.default_rng(0).integers(0, n, (DRAWS, n))
    below = base[drawn].sum(1)
    if not below.all():
        return None
    ratios = other[drawn].sum(1) / below
    low, high = np.percentile(ratios, [100 * ALPHA / 2, 100 * (1 - ALPHA / 2)])
    return float(low), float(high)


def t_ratio(base: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[float, float] | None:
    """Fieller's 95% interval of the ratio of means of pairs, other over base: the ratios r for which Student's test
    does not reject that other - r * base is 0 on average. None where the base is too near 0 to bound them."""
    from scipy.stats import t

    n = len(base)
    if n < 2:
        return None
    means = np.array([base.mean(), other.mean()])
    (of_base, both), (_, of_other) = np.cov(base, other) / n
    reach = float(t.ppf(1 - ALPHA / 2, n - 1)) ** 2
    square = means[0] ** 2 - reach * of_base
    if square <= 0:
        return None
    middle = (means[0] * means[1] - reach * both) / square
    half = sqrt(max(0.0, middle**2 - (means[1] ** 2 - reach * of_other) / square))
    return float(middle - half), float(middle + half)


INTERVALS: Final = {"t": t_ratio, "bootstrap": bootstrap_ratio}
