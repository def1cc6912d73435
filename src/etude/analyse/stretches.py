"""Which units are slower than the others, in which segments, and with what confidence: during the whole run, since a
step, for a while, in every k-th step, or slower than their own past.

Uses the profile of `outliers`: the slow-down of each unit in each segment, and its error.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.analyse.outliers import LEAST_SIGMA, MANY, PEERS, Profile
from etude.kernels.arrays import F64, Bool

SURE: Final = 5.0
"""Standard errors above its peers from which a unit is reported."""
SURER: Final = 6.0
"""The same where more is tested: periods, or a unit's own past, which no peers confirm."""
MOST_NAMED: Final = 4
"""At most one in this many units may be slower than the others."""
LIKELY: Final = 3.5
"""Standard errors from which a unit may share in what another one shows."""
LEANS: Final = 2.0
"""Standard errors from which it probably does, if all others are known not to."""
LEAST_SHRINK: Final = 0.5
"""Lower bound of an error, as a fraction of the error from samples."""
AS_EXPECTED: Final = 1.2
"""Units whose means differ by up to this times their expected error do not differ."""
SLACK: Final = 1.3
"""A spread that is smaller than expected is raised by this factor."""
GOES_ON: Final = 0.5
"""Fraction of a slowdown that the rest of the run must show for it to count as one of the whole run."""
STEADY: Final = 0.8
"""Fraction of its segments in which a unit that is always slow is slower by half of its slow-down or more."""
MOSTLY: Final = 2 / 3
"""The same for any stretch: one outlying segment does not make a stretch."""
AT_LEAST: Final = 3
"""Fewest segments of a stretch that can be called steady, periodic, or slower than before."""
BEFORE: Final = 2
"""Fewest segments outside a stretch from which a unit can be slower in it than otherwise."""
LONGEST: Final = 16
"""Longest period of a repeated slow-down, in segments."""
SPARED: Final = 0.2
"""Fraction of all units that must be as fast as before for the others to be slower than before."""


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
    every: int = 1
    """In every n-th of these segments."""
    steady: bool = False
    """Slow in nearly all of them."""
    before: bool = False
    """Slower than itself in the other segments, not than its peers."""
    uneven: bool = False
    """Units have different amounts of work, which was allowed for."""

    def segments(self, count: int) -> Bool:
        """The slow ones of `count` segments."""
        found = np.full(count, self.whole)
        found[self.first : self.last + 1 : self.every] = True
        return found


class _Stretch(NamedTuple):
    score: float
    mean: float
    first: int
    last: int
    every: int = 1


def slow_units(profiled: Profile, least: float) -> list[Slow]:
    """Units that are slower than the others by the factor 1 + least or more for one stretch of segments, and clearly
    so."""
    return standing_out(slower_units(profiled, least), int((~np.isnan(profiled.log_slower)).any(axis=1).sum()))


def slower_units(profiled: Profile, least: float) -> list[Slow]:
    """Units that are slower than the others, however many."""
    found = profiled.log_slower
    known = ~np.isnan(found)
    if not known.any() or np.isinf(profiled.error).any():
        return []
    error, between = _errors(profiled, known)
    named = []
    for unit, row in enumerate(found):
        best = _periodic(row, error[unit], np.log1p(least))
        best = best or _best_window(row, error[unit], float(between[unit]), np.log1p(least))
        if best is not None:
            named.append(_slow(unit, row, best, known))
    return named


def _slow(unit: int, row: F64, best: _Stretch, known: Bool) -> Slow:
    score, mean, first, last, every = best
    seen = np.flatnonzero(~np.isnan(row))
    outside = row[seen[(seen < first) | (seen > last)]]
    if every == 1 and len(outside) and outside.mean() > GOES_ON * mean:
        mean, first, last = float(row[seen].mean()), int(seen[0]), int(seen[-1])
    doubt = 0.5 * erfc(max(score - SURE / 2, 0.0) / sqrt(2)) * len(known)
    whole = bool(first <= seen[0] and last >= seen[-1] and every == 1)
    others = int(known[:, first : last + 1].any(axis=1).sum()) - 1
    sure = min(1 - doubt, 1 - 0.5**others, 0.999) if others else min(1 - doubt, 0.999)
    inside = row[first : last + 1 : every]
    inside = inside[~np.isnan(inside)]
    steady = bool((inside > mean / 2).mean() >= STEADY)
    last = len(row) - 1 if every == 1 and last >= seen[-1] else last  # it may last until the end
    return Slow(unit, float(np.exp(mean)), first, last, whole, max(sure, 0.5), every, steady)


def slower_than_before(profiled: Profile, least: float) -> list[Slow]:
    """Units that are slower in a stretch than in the rest of the run, where others are not. The profile is that of
    units by themselves: what each took, over what it usually takes."""
    found = profiled.log_slower
    known = ~np.isnan(found)
    if np.isinf(profiled.error).any():
        return []
    named = []
    # samples of a unit that became slow differ for that reason, those of others only by chance
    error = np.maximum(profiled.error.min(axis=0), LEAST_SIGMA)
    for unit, row in enumerate(found):
        best = _periodic(row, error, np.log1p(least))
        best = best or _own_window(row, _own_error(row, error), np.log1p(least))
        if best is not None:
            sure = _slow(unit, row, best, known).confidence
            factor = float(np.exp(best.mean))
            named.append(Slow(unit, factor, best.first, best.last, False, sure, best.every, steady=True, before=True))
    if not named:
        return []
    spared = int(known.any(axis=1).sum()) - len(named)
    return named if spared >= max(1.0, SPARED * (spared + len(named))) else []


def standing_out(named: list[Slow], units: int) -> list[Slow]:
    """If many are slower than the rest, now one and now another, units simply vary: then only one that is much slower
    than all others is reported. Less than half may be slow in nearly all segments."""
    clear = all(one.steady and one.last - one.first >= AT_LEAST - 1 for one in named)
    if len(named) <= max(1, units // MOST_NAMED) or (2 * len(named) < units and clear):
        return named
    first, second = sorted(named, key=lambda one: -one.factor)[:2]
    return [first] if np.log(first.factor) > 2 * np.log(second.factor) else []


def shows(profiled: Profile, one: Slow) -> tuple[Bool, Bool, Bool]:
    """(units that are likely slow in the same stretch, units that probably are, units that are not)."""
    inside = slice(one.first, one.last + 1, one.every)
    window = profiled.log_slower[:, inside]
    known = ~np.isnan(window)
    count = np.maximum(known.sum(axis=1), 1)
    some = known.any(axis=1)
    middle = np.zeros(len(window))
    middle[some] = np.nanmedian(window[some], axis=1)  # an outlying segment does not count
    error = np.sqrt(np.where(known, profiled.error[:, inside] ** 2, 0.0).sum(axis=1)) / count
    half = GOES_ON * np.log(one.factor)
    slow, fast = some & (middle > half), some & (middle < half)
    return slow & (middle > LIKELY * error), slow & (middle > LEANS * error), fast & (half - middle > error)


def _errors(profiled: Profile, known: Bool) -> tuple[F64, F64]:
    """(error of each unit in each segment, the part that does not shrink with more segments). Where units vary more
    from segment to segment than their samples, or differ more from one another, their errors are raised."""
    found, units = profiled.log_slower, int(known.any(axis=1).sum())
    error = np.maximum(profiled.error, LEAST_SIGMA)
    if units >= PEERS:
        # the spread of many units is the better measure, also if it is less than expected from samples
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


# -- stretches of one unit ---------------------------------------------------------------------------------------------


class _Sums(NamedTuple):
    """Sums over every window of the seen segments: rows are the first, columns the last segment (inclusive)."""

    length: F64
    """0 or less if the window is empty."""
    total: F64
    square: F64


def _windows(row: F64, error: F64) -> _Sums:
    at = np.arange(len(row))
    total, square = np.cumsum(row), np.cumsum(error**2)
    return _Sums(
        (at[None, :] - at[:, None] + 1).astype(np.float64),
        total[None, :] - (total - row)[:, None],
        np.maximum(square[None, :] - (square - error**2)[:, None], LEAST_SIGMA**2),
    )


def _best_window(row: F64, error: F64, between: float, least: float) -> _Stretch | None:
    """The stretch in which the unit differs most from the others, if any."""
    seen = np.flatnonzero(~np.isnan(row))
    x = _without_spikes(row[seen], error[seen])
    sums = _windows(x, error[seen])
    count = np.maximum(sums.length, 1.0)
    mean = sums.total / count
    score = mean / np.sqrt(sums.square / count**2 + between**2)
    score[(sums.length < min(AT_LEAST, -(-len(seen) // 3))) | (mean <= least)] = -np.inf
    best = _largest(score, mean, seen, SURE)
    if best is None:
        return None
    inside = x[(seen >= best.first) & (seen <= best.last)]
    return best if (inside > best.mean / 2).sum() >= max(MOSTLY * len(inside), min(AT_LEAST, len(inside))) else None


def _without_spikes(x: F64, error: F64) -> F64:
    """A single segment far above its neighbours is not a stretch: it is clipped to their range."""
    if len(x) < AT_LEAST:
        return x
    centre = np.clip(np.arange(len(x)), 1, len(x) - 2)
    middle = np.median([x[centre - 1], x[centre], x[centre + 1]], axis=0)
    return np.minimum(x, middle + LIKELY * error)


def _own_error(row: F64, error: F64) -> F64:
    """Error of a unit's own segments: that of its samples, or how much it changes from one to the next."""
    seen = row[~np.isnan(row)]
    wide = _scaled_deviation(np.diff(seen)) / sqrt(2) if len(seen) > 1 else 0.0
    return np.maximum(np.maximum(error, LEAST_SIGMA), wide)


def _own_window(row: F64, error: F64, least: float) -> _Stretch | None:
    """The stretch in which the unit is most above its own other segments, if it is there in nearly all of them, and in
    hardly any other."""
    seen = np.flatnonzero(~np.isnan(row))
    x, n = row[seen], len(seen)
    if n < 2 * AT_LEAST:
        return None
    spread = error[seen]
    sums = _windows(x, spread)
    inside, outside = np.maximum(sums.length, 1.0), np.maximum(n - sums.length, 1.0)
    mean = sums.total / inside - (x.sum() - sums.total) / outside
    score = mean / np.sqrt(sums.square / inside**2 + np.maximum((spread**2).sum() - sums.square, 0.0) / outside**2)
    score[(sums.length < AT_LEAST) | (n - sums.length < BEFORE) | (mean <= least)] = -np.inf
    best = _largest(score, mean, seen, SURER)
    if best is None:
        return None
    within = (seen >= best.first) & (seen <= best.last)
    return best if _parted(x, within, x[~within].mean() + best.mean / 2) else None


def _largest(score: F64, mean: F64, seen: NDArray[np.intp], sure: float) -> _Stretch | None:
    i, j = np.unravel_index(int(np.argmax(score)), score.shape) if score.size else (0, 0)
    if not score.size or score[i, j] <= sure:
        return None
    return _Stretch(float(score[i, j]), float(mean[i, j]), int(seen[i]), int(seen[j]))


def _periodic(row: F64, error: F64, least: float) -> _Stretch | None:
    """Every n-th segment, if the unit is slow in nearly all of those and in hardly any other."""
    seen = np.flatnonzero(~np.isnan(row))
    x, square = row[seen], error[seen] ** 2
    best = None
    for every in range(2, min(LONGEST, len(row) // AT_LEAST) + 1 if len(row) >= AT_LEAST * AT_LEAST else 2):
        phase = seen % every
        count = np.bincount(phase, minlength=every).astype(np.float64)
        rest = np.maximum(len(x) - count, 1.0)
        total, doubt = np.bincount(phase, x, every), np.bincount(phase, square, every)
        apart = total / np.maximum(count, 1.0) - (x.sum() - total) / rest
        spread = doubt / np.maximum(count, 1.0) ** 2 + (square.sum() - doubt) / rest**2
        score = apart / np.sqrt(np.maximum(spread, np.finfo(np.float64).tiny))  # simulated times have no spread
        score[(count < AT_LEAST) | (rest < AT_LEAST) | (apart <= least)] = -np.inf
        one = int(np.argmax(score))
        if score[one] == -np.inf:
            continue
        inside = phase == one
        half = x[~inside].mean() + apart[one] / 2
        if score[one] > max(SURER, best.score if best else 0.0) and _parted(x, inside, half):
            at = seen[inside]
            best = _Stretch(float(score[one]), float(apart[one]), int(at[0]), int(at[-1]), every)
    return best


def _parted(x: F64, inside: Bool, half: float) -> bool:
    """Whether nearly all inside are above, and nearly all others below."""
    return bool((x[inside] > half).mean() >= STEADY and (x[~inside] < half).mean() >= STEADY)
