"""Which units are slower than the others, since when, and with which confidence: medians over peers, so that a few
cannot mislead.

A sample is one time of one unit (a rank, a group, a pair of ranks), for one key (what it did), in one segment (a step).
Only samples of one key are compared, so units may do different things and different amounts of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from etude.kernels.arrays import F64, I64, Bool
from etude.model.distinct import distinct

LEAST_PART: Final = 0.5
"""Segments smaller than this fraction of the unit's fullest one do not count: they were cut short."""
LEAST_SIGMA: Final = 1e-3
"""Spread below which values are not distinguished."""
PEERS: Final = 3
"""Fewest units that must have done the same for one of them to be called slow: of two, one cannot say which is
right."""
LEAST_SAMPLES: Final = 1
"""Fewest samples from which a unit is judged."""
MANY: Final = 8
"""From this many units on, their spread is known well enough without that of their samples."""
SHRUNK: Final = ((2, 3, 4, 5, 6, 8, 16, 64), (1.41, 2.15, 1.39, 1.38, 1.28, 1.2, 1.08, 1.0))
"""Factor by which the scaled median deviation of this many normal samples is too small."""
COARSE: Final = 20
"""Times of up to this many clock ticks are spread out before their median is taken."""
GOLDEN: Final = 0.6180339887498949
"""Multiples of it, modulo 1, are evenly distributed for any count."""
MEDIAN_ERROR: Final = 1.2533
"""Standard error of a median over that of a mean."""


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Slow-down of units relative to their peers in each segment: units x segments, NaN where unknown."""

    log_slower: F64
    error: F64
    """Standard error of each, from how much the samples of a unit and key vary among themselves."""
    grain: float = 0.0
    """Effect of rounded times that is common to all of a unit's samples."""


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


def weighted_median(group: I64, value: F64, weight: F64, groups: int) -> F64:
    """Weighted median of each group; NaN where there is none."""
    order = np.lexsort((value, group))
    group, value, weight = group[order], value[order], weight[order]
    found = np.full(groups, np.nan)
    if not len(group):
        return found
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    until = np.append(first[1:], len(group))
    total = np.concatenate([[0.0], np.cumsum(weight)])
    half = (total[first] + total[until]) / 2
    slack = 1e-9 * np.maximum(total[until] - total[first], 1e-300)
    low = np.clip(np.searchsorted(total, half - slack) - 1, first, until - 1)
    high = np.clip(np.searchsorted(total, half + slack) - 1, first, until - 1)
    found[group[first]] = (value[low] + value[high]) / 2
    return found


def residuals(unit: I64, key: I64, log_time: F64, keys: int) -> tuple[F64, F64]:
    """(distance of each sample from the median of its peers, factor by which such distances are too small for each
    key). Peers are the samples of its key; if all units have a key equally often, those at the same position in the
    unit's order, so that different things with one name (the first and the second of two copies) are not compared.
    Samples of a unit are in the order in which they ran."""
    order = np.lexsort((unit, key))
    k, u = key[order], unit[order]
    fresh = np.ones(len(k), bool)
    fresh[1:] = (k[1:] != k[:-1]) | (u[1:] != u[:-1])
    first = np.flatnonzero(fresh)
    count = np.diff(np.append(first, len(k)))
    number = np.arange(len(k)) - np.repeat(first, count)
    least, most, having = np.full(keys, 2**62), np.zeros(keys, np.int64), np.bincount(k[first], minlength=keys)
    np.minimum.at(least, k[first], count)
    np.maximum.at(most, k[first], count)
    aligned = (least == most) & (having >= PEERS)
    names, which = distinct([k, np.where(aligned[k], number, -1)])
    log = log_time[order]
    middle = grouped_median(which, log, len(names))
    # of two units the median is between them: the faster one is the reference
    each = grouped_median(np.repeat(np.arange(len(first)), count), log, len(first))
    fastest = np.full(keys, np.inf)
    np.minimum.at(fastest, k[first], each)
    rest = np.empty(len(k))
    rest[order] = log - np.where((having == 2)[k], fastest[k], middle[which])
    return rest, np.where(aligned, np.interp(having, *SHRUNK), 1.0)


def profile(
    unit: I64, key: I64, segment: I64, log_time: F64, shape: tuple[int, int, int], *, step_ns: int = 1,
    cancels: bool = False,
) -> Profile:  # fmt: skip
    """The weighted median over keys of the median over samples: what slows one key (a busy expert) is not what makes a
    unit slow, and keys that vary more between units weigh less. Keys that only one unit has are compared with
    themselves over time. `step_ns` is the clock tick; `cancels` says that rounding takes from one time what it gives to
    the next, so that the mean of several is right."""
    units, keys, segments = shape
    rest, shrunk = residuals(unit, key, log_time, keys)
    usual = grouped_median(key, log_time, keys)
    if cancels:
        rest = rest + _within_step(log_time, (usual < np.log(COARSE * step_ns))[key], step_ns)
    place = unit * segments + segment
    cell = place * keys + key
    used, inverse = np.unique(cell, return_inverse=True)
    inverse = inverse.reshape(-1)
    of_cell = grouped_median(inverse, rest, len(used))
    in_cell = np.sqrt(np.maximum(grouped_median(used % keys, np.bincount(inverse).astype(np.float64), keys), 1))
    own = _own_spread(unit, key, rest, units, keys)
    with np.errstate(invalid="ignore"):
        spread = 1.4826 * grouped_median(used % keys, np.abs(of_cell), keys)
        spread[shared(unit, key, keys) < PEERS] = 0.0  # for two units of which one is slow, that is the slow-down
        spread = np.maximum(np.maximum(np.nan_to_num(spread), own / np.nan_to_num(in_cell, nan=1.0)), LEAST_SIGMA)
        grain = (not cancels) * step_ns / 2 / np.exp(np.nan_to_num(usual))
        # a spread from few samples may be larger than it looks
        spread = np.maximum(spread * shrunk * (1 + 2 / np.sqrt(np.maximum(np.bincount(key, minlength=keys), 1))), grain)
    weight = 1 / np.where(np.isinf(spread), 1.0, spread)[used % keys]
    found = weighted_median(used // keys, of_cell, weight, units * segments).reshape(units, segments)
    samples = np.bincount(place, minlength=units * segments).reshape(units, segments)
    found[samples < LEAST_PART * samples.max(axis=1, keepdims=True)] = np.nan
    found[samples.sum(axis=1) < LEAST_SAMPLES] = np.nan
    total = np.bincount(used // keys, weight, units * segments)
    cells = np.bincount(used // keys, minlength=units * segments)
    with np.errstate(all="ignore"):
        slower = found - _middle_of_families(found, families(unit, key, units))
        error = np.where(cells > 2, MEDIAN_ERROR, 1.0) * np.sqrt(cells) / np.maximum(total, 1e-300)
    error = np.full_like(error, np.inf) if np.isinf(own).any() else error
    which = np.unique(key)
    weights = 1 / np.where(np.isinf(spread), 1.0, spread)[which]
    rounded = float(np.sqrt(((weights * grain[which]) ** 2).sum()) / weights.sum()) if len(key) else 0.0
    return Profile(slower, error.reshape(units, segments), rounded)


def _within_step(log_time: F64, short: Bool, step_ns: int) -> F64:
    """Offsets that spread short times evenly over the clock tick to which each was rounded, to be added to their
    logarithms. The median of whole ticks is a whole tick and says nothing about a tenth of one; that of spread times
    does."""
    place = (np.arange(len(log_time)) * GOLDEN) % 1 - 0.5
    return np.where(short, np.log1p(place * step_ns / np.exp(log_time)), 0.0)


def rounded_to(times_ns: I64) -> int:
    """1,000 where all times are whole microseconds, else 1."""
    return 1000 if len(times_ns) and not (times_ns % 1000).any() else 1


def _own_spread(unit: I64, key: I64, rest: F64, units: int, keys: int) -> F64:
    """Spread of samples of one unit and key around their median, as a standard deviation, by key; for keys that no unit
    has twice, that of the others. If nothing was seen twice it is infinite, unless there are many units, whose spread
    says as much. For keys of two or three units, one of which may have become slow, at most the distance between
    consecutive samples over root 2, which does not grow with the slow-down."""
    names, number = np.unique(unit * keys + key, return_inverse=True)
    number = number.reshape(-1)
    several = (np.bincount(number) > 1)[number]
    if not several.any():
        return np.full(keys, np.inf if units < MANY else 0.0)
    away = np.abs(rest - grouped_median(number, rest, len(names))[number])
    found = grouped_median(key[several], away[several], keys)
    order = np.argsort(number, kind="stable")
    again = np.diff(number[order]) == 0
    apart = grouped_median(key[order][1:][again], np.abs(np.diff(rest[order]))[again] / np.sqrt(2), keys)
    having = np.bincount(names % keys, minlength=keys)
    found = np.where((having > 1) & (having <= PEERS), np.fmin(found, apart), found)
    return 1.4826 * np.where(np.isnan(found), float(np.median(away[several])), found)


def shared(unit: I64, key: I64, keys: int) -> I64:
    """Number of units that have each key."""
    pairs, _ = distinct([key, unit])
    return np.bincount(pairs[:, 0], minlength=keys)


def families(unit: I64, key: I64, units: int) -> I64:
    """Units that can be compared, directly or not, because they share keys. A number for each unit."""
    label = np.arange(units)
    pairs, _ = distinct([key, unit])
    keys, which = np.unique(pairs[:, 0], return_inverse=True)
    while True:
        least = np.full(len(keys), units)
        np.minimum.at(least, which.reshape(-1), label[pairs[:, 1]])
        fresh = label.copy()
        np.minimum.at(fresh, pairs[:, 1], least[which.reshape(-1)])
        if (fresh == label).all():
            return label
        label = fresh


def _middle_of_families(values: F64, family: I64) -> F64:
    """Median of each family of three or more in each segment, for each of its units; 0 elsewhere."""
    units, segments = values.shape
    known = ~np.isnan(values)
    at = family[:, None] * segments + np.arange(segments)[None, :]
    middle = grouped_median(at[known], values[known], units * segments)
    several = np.bincount(at[known], minlength=units * segments) > 2
    return np.where(several, np.nan_to_num(middle), 0.0)[at]
