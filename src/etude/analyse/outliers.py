"""Who is slower than the others, since when, and how sure that is: medians over peers, so that few cannot mislead.

A sample is one time of one unit (a rank, a group, a pair of ranks), of one key (what it did), in one segment (a step).
Only samples of one key are compared, so units may do different things and different amounts of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.model.distinct import distinct

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

SURE: Final = 5.0
"""Standard errors above its peers from which a unit is named."""
MOST_NAMED: Final = 4
"""One in so many may be slower than the others."""
LIKELY: Final = 3.5
"""Standard errors from which a unit may have a share in what another one shows."""
LEAST_PART: Final = 0.5
"""Part of a unit's fullest segment that a segment must have to count: one that was cut short says little."""
LEAST_SIGMA: Final = 1e-3
"""Spread below which nothing is told apart."""
LIKES: Final = 3
"""Units that must have done the same for one of them to be called slow: of two one cannot say which is right."""
LEAST_SAMPLES: Final = 1
"""Samples below which nothing is said of a unit."""
LEAST_SHRINK: Final = 0.5
"""An error is not taken for less than this part of what samples tell."""
AS_EXPECTED: Final = 1.2
"""Units whose means differ by up to this times what their errors let expect do not differ."""
SLACK: Final = 1.3
"""A spread that is less than expected is taken for so much more than it looks."""
MANY: Final = 8
"""Units whose spread is known well enough without that of their samples."""
GOES_ON: Final = 0.5
"""Part of a slow-down that the rest of the run must show for it to be one all along."""
SHRUNK: Final = ((2, 3, 4, 5, 6, 8, 16, 64), (1.41, 2.15, 1.39, 1.38, 1.28, 1.2, 1.08, 1.0))
"""Of so many normal samples the scaled median distance from their own middle is too small by this factor."""
MEDIAN_ERROR: Final = 1.2533
"""Standard error of a median over that of a mean."""


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """How much slower units were than their peers in each segment: units x segments, NaN where unknown."""

    log_slower: F64
    error: F64
    """Standard error of each, from how much the samples of a unit and key vary among themselves."""
    grain: float = 0.0
    """What rounding of the times may have done to all of a unit's samples alike."""


@dataclass(frozen=True, slots=True)
class Slow:
    """A unit that is slower than its peers in the segments first to last."""

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


def weighted_median(group: I64, value: F64, weight: F64, groups: int) -> F64:
    """Value in each group with half of the weight on either side; NaN where there is none."""
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
    """(how far each sample lies from the middle of its peers, by which factor such distances are too small of each
    key). Likes are the samples of its key, and where all units have a key equally often, those that come in the same
    place of the unit's order, so that what is called alike and is not (the first and the second of two copies) is not
    compared. Samples of a unit are in the order in which they ran."""
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
    aligned = (least == most) & (having >= LIKES)
    names, which = distinct([k, np.where(aligned[k], number, -1)])
    log = log_time[order]
    middle = grouped_median(which, log, len(names))
    # of two units the middle lies between them: the faster one is the measure of the slower
    each = grouped_median(np.repeat(np.arange(len(first)), count), log, len(first))
    fastest = np.full(keys, np.inf)
    np.minimum.at(fastest, k[first], each)
    rest = np.empty(len(k))
    rest[order] = log - np.where((having == 2)[k], fastest[k], middle[which])
    return rest, np.where(aligned, np.interp(having, *SHRUNK), 1.0)


def profile(
    unit: I64, key: I64, segment: I64, log_time: F64, shape: tuple[int, int, int], *, step_ns: int = 1
) -> Profile:
    """The weighted middle over keys of the middle over samples: what makes one key slower (a busy expert) is not what
    makes a unit slow, and the more units differ in a key anyway, the less it says. Keys that one unit alone has are
    compared with themselves over time. `step_ns` is what times were rounded to."""
    units, keys, segments = shape
    rest, shrunk = residuals(unit, key, log_time, keys)
    place = unit * segments + segment
    cell = place * keys + key
    used, inverse = np.unique(cell, return_inverse=True)
    inverse = inverse.reshape(-1)
    of_cell = grouped_median(inverse, rest, len(used))
    in_cell = np.sqrt(np.maximum(grouped_median(used % keys, np.bincount(inverse).astype(np.float64), keys), 1))
    own = _own_spread(unit, key, rest, units, keys)
    with np.errstate(invalid="ignore"):
        spread = 1.4826 * grouped_median(used % keys, np.abs(of_cell), keys)
        spread[shared(unit, key, keys) < LIKES] = 0.0  # of two, one of which is slow, that is the slow-down
        spread = np.maximum(np.maximum(np.nan_to_num(spread), own / np.nan_to_num(in_cell, nan=1.0)), LEAST_SIGMA)
        grain = step_ns / 2 / np.exp(np.nan_to_num(grouped_median(key, log_time, keys)))
        # a spread that few samples tell may be larger than it looks
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


def rounded_to(times_ns: I64) -> int:
    """1,000 where all times are whole microseconds, else 1."""
    return 1000 if len(times_ns) and not (times_ns % 1000).any() else 1


def _own_spread(unit: I64, key: I64, rest: F64, units: int, keys: int) -> F64:
    """How far samples of one unit and key lie from their middle, as a standard deviation, by key; of keys that nobody
    has twice, as of the others. Where nothing was seen twice nobody knows: infinite, unless there are many units,
    whose spread says as much."""
    names, number = np.unique(unit * keys + key, return_inverse=True)
    number = number.reshape(-1)
    several = (np.bincount(number) > 1)[number]
    if not several.any():
        return np.full(keys, np.inf if units < MANY else 0.0)
    away = np.abs(rest - grouped_median(number, rest, len(names))[number])
    found = 1.4826 * grouped_median(key[several], away[several], keys)
    return np.where(np.isnan(found), 1.4826 * float(np.median(away[several])), found)


def shows(profiled: Profile, one: Slow) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(units that are likely slow as that one is in its stretch, units that are not)."""
    window = profiled.log_slower[:, one.first : one.last + 1]
    known = ~np.isnan(window)
    count = np.maximum(known.sum(axis=1), 1)
    mean = np.where(known, window, 0.0).sum(axis=1) / count
    error = np.sqrt(np.where(known, profiled.error[:, one.first : one.last + 1] ** 2, 0.0).sum(axis=1)) / count
    half = GOES_ON * np.log(one.factor)
    some = known.any(axis=1)
    return some & (mean > half) & (mean > LIKELY * error), some & (mean < half) & (half - mean > error)


def slow_units(profiled: Profile, least: float) -> list[Slow]:
    """Units that are slower than the others by the factor 1 + least or more, for one stretch of segments, and stand out
    from them."""
    return standing_out(slower_units(profiled, least), int((~np.isnan(profiled.log_slower)).any(axis=1).sum()))


def slower_units(profiled: Profile, least: float) -> list[Slow]:
    """Units that are slower than the others, be they as many as they are."""
    found = profiled.log_slower
    known = ~np.isnan(found)
    if not known.any() or np.isinf(profiled.error).any():
        return []
    error, between = _errors(profiled, known)
    named = []
    for unit, row in enumerate(found):
        best = _best_window(row, error[unit], float(between[unit]), np.log1p(least))
        if best is not None:
            score, mean, first, last = best
            seen = np.flatnonzero(~np.isnan(row))
            outside = row[seen[(seen < first) | (seen > last)]]
            if len(outside) and outside.mean() > GOES_ON * mean:
                mean, first, last = float(row[seen].mean()), int(seen[0]), int(seen[-1])
            doubt = 0.5 * erfc(max(score - SURE / 2, 0.0) / sqrt(2)) * len(found)
            whole = bool(first <= seen[0] and last >= seen[-1])
            others = int(known[:, first : last + 1].any(axis=1).sum()) - 1
            sure = min(1 - doubt, 1 - 0.5**others, 0.999) if others else min(1 - doubt, 0.999)
            named.append(Slow(unit, float(np.exp(mean)), first, last, whole, max(sure, 0.5)))
    return named


def _errors(profiled: Profile, known: NDArray[np.bool_]) -> tuple[F64, F64]:
    """(error of each unit in each segment, what does not become less with more segments). Where units vary more from
    segment to segment than their samples tell, or differ more from one another, their errors are as much larger."""
    found, units = profiled.log_slower, int(known.any(axis=1).sum())
    error = np.maximum(profiled.error, LEAST_SIGMA)
    if units >= LIKES:
        # what many units show is the better measure, also where it is less than their samples let expect
        wide = _scaled_deviation((found / error)[known])
        least = 1.0 if units < MANY or known.sum() < 2 * MANY else LEAST_SHRINK
        error = error * max(wide, min(1.0, max(least, SLACK * wide)))
    count = np.maximum(known.sum(axis=1), 1)
    mean = np.where(known, found, 0.0).sum(axis=1) / count
    whole = np.sqrt(np.where(known, error**2, 0.0).sum(axis=1)) / count
    seen = known.any(axis=1)
    wider = _scaled_deviation((mean / np.maximum(whole, LEAST_SIGMA * LEAST_SIGMA))[seen]) if units > 4 else 0.0
    wider /= AS_EXPECTED
    return error, np.maximum(whole * sqrt(max(wider * wider - 1, 0.0)), profiled.grain)


def _scaled_deviation(values: F64) -> float:
    """Median absolute deviation, as a standard deviation."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def standing_out(named: list[Slow], units: int) -> list[Slow]:
    """Where many are slower than the rest, now one and now another, that is how these units vary: of those only one
    that is much slower than all others is told."""
    if len(named) <= max(1, units // MOST_NAMED):
        return named
    first, second = sorted(named, key=lambda one: -one.factor)[:2]
    return [first] if np.log(first.factor) > 2 * np.log(second.factor) else []


def _best_window(row: F64, error: F64, between: float, least: float) -> tuple[float, float, int, int] | None:
    """(score, mean, first, last) of the stretch in which the unit stands out most, if it does."""
    seen = np.flatnonzero(~np.isnan(row))
    total = np.concatenate([[0.0], np.cumsum(row[seen])])
    doubt = np.concatenate([[0.0], np.cumsum(error[seen] ** 2)])
    best = None
    for i in range(len(seen)):
        for j in range(i + 1, len(seen) + 1):
            mean = (total[j] - total[i]) / (j - i)
            score = mean / sqrt((doubt[j] - doubt[i]) / (j - i) ** 2 + between**2)
            if mean > least and score > SURE and (best is None or score > best[0]):
                best = score, mean, int(seen[i]), int(seen[j - 1])
    return best


def shared(unit: I64, key: I64, keys: int) -> I64:
    """How many units each key was seen in."""
    pairs, _ = distinct([key, unit])
    return np.bincount(pairs[:, 0], minlength=keys)


def families(unit: I64, key: I64, units: int) -> I64:
    """Units that can be compared, directly or not: they share keys. A number for each unit."""
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
    """Middle of each family of three or more in each segment, beside its units; 0 elsewhere."""
    units, segments = values.shape
    known = ~np.isnan(values)
    at = family[:, None] * segments + np.arange(segments)[None, :]
    middle = grouped_median(at[known], values[known], units * segments)
    several = np.bincount(at[known], minlength=units * segments) > 2
    return np.where(several, np.nan_to_num(middle), 0.0)[at]
