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
LIKES: Final = 3
"""Units that must have done the same for one of them to be called slow: of two one cannot say which is right."""
LEAST_SAMPLES: Final = 8
"""Samples below which nothing is said of a unit."""
MEDIAN_ERROR: Final = 1.2533
"""Standard error of a median over that of a mean."""


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """How much slower units were than their likes in each segment: units x segments, NaN where unknown."""

    log_slower: F64
    error: F64
    """Standard error of each, from how much the samples of a unit and key vary among themselves."""


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


def profile(unit: I64, key: I64, segment: I64, log_time: F64, shape: tuple[int, int, int]) -> Profile:
    """The middle over keys of the middle over samples: what makes one key slower (a busy expert) is not what makes a
    unit slow. Keys that one unit alone has are compared with themselves over time."""
    units, keys, segments = shape
    center = grouped_median(key, log_time, keys)
    rest = log_time - center[key]
    cell = (unit * segments + segment) * keys + key
    used, inverse = np.unique(cell, return_inverse=True)
    of_cell = grouped_median(inverse.reshape(-1), rest, len(used))
    found = grouped_median(used // keys, of_cell, units * segments).reshape(units, segments)
    samples = np.bincount(unit * segments + segment, minlength=units * segments).reshape(units, segments)
    found[samples < LEAST_PART * samples.max(axis=1, keepdims=True)] = np.nan
    found[samples.sum(axis=1) < LEAST_SAMPLES] = np.nan
    with np.errstate(all="ignore"):
        slower = found - _middle(found, axis=0)[None, :] if units > 2 else found
        error = MEDIAN_ERROR * _own_spread(unit * keys + key, rest) / np.sqrt(np.maximum(samples, 1))
    return Profile(slower, error)


def _own_spread(what: I64, rest: F64) -> float:
    """How far samples of one unit and key lie from their middle, as a standard deviation; infinite where nothing was
    seen twice, for then nobody knows."""
    names, number = np.unique(what, return_inverse=True)
    number = number.reshape(-1)
    several = (np.bincount(number) > 1)[number]
    if not several.any():
        return float("inf")
    middle = grouped_median(number, rest, len(names))
    return 1.4826 * float(np.median(np.abs(rest - middle[number])[several]))


def slow_units(profiled: Profile, least: float) -> list[Slow]:
    """Units that are slower than the others by the factor 1 + least or more, for one stretch of segments."""
    found = profiled.log_slower
    known = ~np.isnan(found)
    if not known.any() or np.isinf(profiled.error).any():
        return []
    sigma = max(1.4826 * float(np.nanmedian(np.abs(found - np.nanmedian(found)))), LEAST_SIGMA)
    means = np.array([np.mean(row[~np.isnan(row)]) if (~np.isnan(row)).any() else np.nan for row in found])
    between = 1.4826 * float(np.nanmedian(np.abs(means - np.nanmedian(means)))) if len(means) > 4 else 0.0
    named = []
    for unit, row in enumerate(found):
        error = np.maximum(profiled.error[unit], sigma)
        best = _best_window(row, error, between, np.log1p(least))
        if best is not None:
            score, mean, first, last = best
            seen = np.flatnonzero(~np.isnan(row))
            doubt = 0.5 * erfc(max(score - SURE / 2, 0.0) / sqrt(2)) * len(found)
            whole = bool(first <= seen[0] and last >= seen[-1])
            others = int(known[:, first : last + 1].any(axis=1).sum()) - 1
            sure = min(1 - doubt, 1 - 0.5**others, 0.999) if others else min(1 - doubt, 0.999)
            named.append(Slow(unit, float(np.exp(mean)), first, last, whole, max(sure, 0.5)))
    return named


def _best_window(row: F64, error: F64, between: float, least: float) -> tuple[float, float, int, int] | None:
    """(score, mean, first, last) of the stretch in which the unit stands out most, if it does."""
    seen = np.flatnonzero(~np.isnan(row))
    total = np.concatenate([[0.0], np.cumsum(row[seen])])
    doubt = np.concatenate([[0.0], np.cumsum(error[seen] ** 2)])
    best = None
    for i in range(len(seen)):
        for j in range(i + 1, len(seen) + 1):
            mean = (total[j] - total[i]) / (j - i)
            score = mean / max(sqrt(doubt[j] - doubt[i]) / (j - i), between)
            if mean > least and score > SURE and (best is None or score > best[0]):
                best = score, mean, int(seen[i]), int(seen[j - 1])
    return best


def shared(unit: I64, key: I64, keys: int) -> I64:
    """How many units each key was seen in."""
    pairs = np.unique(np.stack([key, unit], 1), axis=0)
    return np.bincount(pairs[:, 0], minlength=keys)


def _middle(values: F64, axis: int) -> F64:
    """nanmedian that does not complain of empty columns."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nan_to_num(np.asarray(np.nanmedian(values, axis=axis)))
