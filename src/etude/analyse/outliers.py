"""Who is slower than the others, since when, and how sure that is: medians over likes, so that few cannot mislead.

A sample is one time of one unit (a rank, a group, a pair of ranks), of one key (what it did), in one segment (a step).
Only samples of one key are compared, so units may do different things and different amounts of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

SURE: Final = 6.0
"""Standard errors above its likes from which a unit is named."""
LEAST_PART: Final = 0.5
"""Part of a unit's fullest segment that a segment must have to count: one that was cut short says little."""
LEAST_SIGMA: Final = 1e-3
"""Spread below which nothing is told apart."""


@dataclass(frozen=True, slots=True)
class Slow:
    """A unit that is slower than its likes in the segments first to last."""

    unit: int
    factor: float
    first: int
    last: int
    whole: bool
    """In all segments that it was seen in."""
    confidence: float


def grouped_median(key: I64, value: F64, groups: int) -> F64:
    """Median of the values of each key; NaN where there is none."""
    order = np.lexsort((value, key))
    key, value = key[order], value[order]
    first = np.searchsorted(key, np.arange(groups))
    count = np.searchsorted(key, np.arange(groups), "right") - first
    found = np.full(groups, np.nan)
    some = count > 0
    low, high = first[some] + (count[some] - 1) // 2, first[some] + count[some] // 2
    found[some] = (value[low] + value[high]) / 2
    return found


def profile(unit: I64, key: I64, segment: I64, log_time: F64, shape: tuple[int, int, int]) -> F64:
    """Log of how much slower each unit was than its likes in each segment (units x segments); NaN where unknown.

    The middle over keys of the middle over samples: what makes one key slower (a busy expert) is not what makes a unit
    slow. Keys that one unit alone has are compared with themselves over time.
    """
    units, keys, segments = shape
    center = grouped_median(key, log_time, keys)
    rest = log_time - center[key]
    cell = (unit * segments + segment) * keys + key
    used, inverse = np.unique(cell, return_inverse=True)
    of_cell = grouped_median(inverse.reshape(-1), rest, len(used))
    found = grouped_median(used // keys, of_cell, units * segments).reshape(units, segments)
    samples = np.bincount(unit * segments + segment, minlength=units * segments).reshape(units, segments)
    found[samples < LEAST_PART * samples.max(axis=1, keepdims=True)] = np.nan
    with np.errstate(all="ignore"):
        return found - _middle(found, axis=0)[None, :] if units > 2 else found


def slow_units(found: F64, least: float) -> list[Slow]:
    """Units that are slower than the others by the factor 1 + least or more, for one stretch of segments."""
    known = ~np.isnan(found)
    if not known.any():
        return []
    sigma = max(1.4826 * float(np.nanmedian(np.abs(found - np.nanmedian(found)))), LEAST_SIGMA)
    means = np.array([np.mean(row[~np.isnan(row)]) if (~np.isnan(row)).any() else np.nan for row in found])
    between = 1.4826 * float(np.nanmedian(np.abs(means - np.nanmedian(means)))) if len(means) > 4 else 0.0
    named = []
    for unit, row in enumerate(found):
        best = _best_window(row, sigma, between, np.log1p(least))
        if best is not None:
            score, mean, first, last = best
            seen = np.flatnonzero(~np.isnan(row))
            doubt = 0.5 * erfc(max(score - SURE / 2, 0.0) / sqrt(2)) * len(found)
            whole = bool(first <= seen[0] and last >= seen[-1])
            named.append(Slow(unit, float(np.exp(mean)), first, last, whole, max(min(1 - doubt, 0.999), 0.5)))
    return named


def _best_window(row: F64, sigma: float, between: float, least: float) -> tuple[float, float, int, int] | None:
    """(score, mean, first, last) of the stretch in which the unit stands out most, if it does."""
    seen = np.flatnonzero(~np.isnan(row))
    total = np.concatenate([[0.0], np.cumsum(row[seen])])
    best = None
    for i in range(len(seen)):
        for j in range(i + 1, len(seen) + 1):
            mean = (total[j] - total[i]) / (j - i)
            score = mean / max(sigma / sqrt(j - i), between)
            if mean > least and score > SURE and (best is None or score > best[0]):
                best = score, mean, int(seen[i]), int(seen[j - 1])
    return best


def _middle(values: F64, axis: int) -> F64:
    """nanmedian that does not complain of empty columns."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nan_to_num(np.asarray(np.nanmedian(values, axis=axis)))
