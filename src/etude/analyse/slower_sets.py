"""Which ranks of a matrix ranks x steps lie above the others, when, and in which way: always, since a step, for a
while, in every n-th step, more and more, or now and then.

Levels are relative to the middle over the ranks of each step. Where many differ the middle says nothing, so the
reference is the lowest group of ranks that a gap separates from the others. A place in time that was searched for needs
more evidence than one that was not: the limits grow with the number of ranks, steps, periods and phases looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from etude.kernels.arrays import F64, I64, Bool

__all__ = ["FEWEST_STEPS", "SERIES", "Episode", "clean_levels", "common_episodes", "episodes", "stage_changes"]

SURE: Final = 5.0
"""Standard errors by which a rank lies above the others."""
SEARCHED: Final = 2.5
"""Standard errors beyond what the best of all places reaches by chance."""
FEWEST_STEPS: Final = 6
"""Steps from which changes over time are looked for."""
SERIES: Final = 12
"""Steps from which drifts, periods and what happens now and then are looked for."""
PERIODS: Final = 3
HOLD: Final = 3
"""Fewest steps of a stretch."""
REFERENCE: Final = 0.25
"""Fewest of the ranks that can be the reference for the others."""
SHOWN: Final = 0.75
"""Part of its steps in which what is named shows."""
LEAST_STATIC: Final = 0.004
"""Spread of equal devices, as a logarithm: what is known of them before they are seen."""
MOST_CHANGES: Final = 4
CLEARER: Final = 1.1
"""How many times as clear as one change of level a stretch must be, which has two."""
QUARTER: Final = 0.25
LARGE: Final = 8
"""Ranks from which a group may have some that are slower by more or less than most of it."""
QUIET: Final = 0.2
"""Part of the steps in which a stage is as it usually is, at least."""
ENOUGH: Final = 16
"""Ranks from which their spread is known well in a few steps, ..."""
LATER: Final = 2.0
"""... and how many times as far off as the others one must be otherwise, ..."""
LATEST: Final = 3.0
"""... or where single values may be far off by chance; ..."""
MANY: Final = 128
"""... twice that in a single step of more ranks than these, of which one may be interrupted."""


@dataclass(frozen=True, slots=True)
class Episode:
    """Ranks by position that lie above the others."""

    rows: tuple[int, ...]
    pattern: str
    """whole, since, while, drift, periodic, now and then."""
    first: int
    last: int
    """Steps by position, both included."""
    height: float
    """By how much, in the steps in which it shows; of a drift, from its first step to its last."""
    score: float
    """Standard errors above the limit's own scale."""
    every: int = 1
    steps: tuple[int, ...] = ()
    """Positions of the steps in which it shows."""


@dataclass(frozen=True, slots=True, eq=False)
class CleanLevels:
    """Levels with what is known of their noise."""

    values: F64
    sigma: float
    """Spread from step to step of one rank."""
    rho: float
    """Correlation of neighbouring steps."""
    static: float
    """Spread of the ranks' own levels."""
    stage: I64
    """Ranks of one stage are compared."""
    wild: bool = False
    """Single values may be far off by chance."""

    def error(self, count: float) -> float:
        """Standard error of the mean of this many steps of a rank."""
        inflation = (1 + self.rho) / (1 - self.rho) if count > 1 else 1.0
        return float(self.sigma * np.sqrt(min(inflation / max(count, 1), 1.0)))


def clean_levels(values: F64, error: F64, stage: I64, static: float = LEAST_STATIC) -> CleanLevels:
    """Noise of a matrix of levels; `error` is what samples say of each."""
    steps = values.shape[1]
    own = _middle(values, 1)
    apart = values - own[:, None]
    inner = float(np.nanmedian(error)) if np.isfinite(error).any() else 0.0
    if steps >= FEWEST_STEPS:
        jumps = np.diff(values, axis=1)
        by_jump = _mad(jumps) / np.sqrt(2)
        wide = _mad(_without_change(apart)) * np.sqrt(steps / (steps - 2))
        rho = max(0.0, min(0.9, 1 - (by_jump / wide) ** 2)) if wide > 0 else 0.0
        rho = min(0.9, rho + (0.5 / np.sqrt(steps * min(len(values), 16))))
        sigma = max(wide, by_jump, 0.2 * inner)  # the places of a rank that changes differ by that, too
    else:
        rho, sigma = 0.5, max(inner, _mad(apart) * np.sqrt(steps / max(steps - 1, 1)) if steps > 2 else inner)
    return CleanLevels(values, max(sigma, 1e-4), rho, static, stage)


def stage_changes(reference: F64, stage: I64) -> F64:
    """Ranks x steps: by how much the reference of each rank's stage lies above its own lowest level, less what the
    stages have in common. `reference` is the level of a rank less its distance from its peers."""
    names, of = np.unique(stage, return_inverse=True)
    each = np.stack([_middle(reference[of == one], 0) for one in range(len(names))])
    known = np.isfinite(each)
    low = [np.quantile(row[some], QUIET) if some.any() else 0.0 for row, some in zip(each, known, strict=True)]
    each = each - np.array(low)[:, None]
    shared = np.quantile(np.where(known, each, np.inf), REFERENCE, axis=0, method="lower")
    found: F64 = np.where(known, each - shared, 0.0)[of.reshape(-1)]
    return found


def _without_change(x: F64) -> F64:
    """Each row without the change of level that explains most of it, so that a fault is not taken for noise."""
    ranks, steps = x.shape
    filled = np.nan_to_num(x)
    total = np.concatenate([np.zeros((ranks, 1)), np.cumsum(filled, axis=1)], axis=1)
    cut = np.arange(2, steps - 1)
    before, after = total[:, cut] / cut, (total[:, -1:] - total[:, cut]) / (steps - cut)
    best = np.argmax((after - before) ** 2 * cut * (steps - cut), axis=1)
    row = np.arange(ranks)
    low, high, place = before[row, best], after[row, best], cut[best]
    level = np.where(np.arange(steps)[None, :] < place[:, None], low[:, None], high[:, None])
    found: F64 = np.where(np.isfinite(x), x - level, np.nan)
    return found


def episodes(levels: CleanLevels, least: float) -> list[Episode]:
    """Ranks above their peers, the clearest first; a rank and step belongs to one episode."""
    x = levels.values
    known = np.isfinite(x).any(axis=1)
    if known.sum() < 2:
        return []
    found: list[Episode] = []
    ranks, steps = x.shape
    if steps >= FEWEST_STEPS:
        found += _over_time(levels, least)
    taken = np.zeros(ranks, bool)
    taken[[row for one in found for row in one.rows]] = True
    x = _beside_the_rest(x, taken, levels.stage) if taken.any() else x
    means = np.min(x, axis=1) if levels.wild and steps == 2 else _means(x, np.arange(steps))
    rows, height, score = _above(means, levels, steps, least, taken)
    if len(rows):
        found += _whole(rows, height, score, steps)
    return sorted(found, key=lambda one: -one.score)


def _beside_the_rest(x: F64, taken: Bool, stage: I64) -> F64:
    """Levels above those that the ranks of a stage that are not taken have in common in each step: many that are slow
    in some steps move the reference of the others there, and a mean leaves out one such step of one rank and not of
    another."""
    found = x.copy()
    for one in np.unique(stage).tolist():
        rest = np.flatnonzero(~taken & (stage == one))
        if len(rest) > 2:
            found[stage == one] -= np.nan_to_num(_middle(x[rest], 0))
    return found


def _whole(rows: I64, height: F64, score: F64, steps: int) -> list[Episode]:
    every = tuple(range(steps))
    far = 0.1 if len(rows) >= LARGE else 0.0  # of many a few are anywhere
    low, high = np.quantile(height, far), np.quantile(height, 1 - far)
    if len(rows) > 1 and high <= 1.6 * low + 0.01:
        return [
            Episode(
                tuple(sorted(rows.tolist())),
                "whole",
                0,
                steps - 1,
                float(np.median(height)),
                float(np.median(score) if far else score.min()),
                steps=every,
            )
        ]
    return [
        Episode((int(r),), "whole", 0, steps - 1, float(h), float(z), steps=every)
        for r, h, z in zip(rows.tolist(), height.tolist(), score.tolist(), strict=True)
    ]


# -- ranks of one stretch ----------------------------------------------------------------------------------------------


def _above(
    means: F64, levels: CleanLevels, count: float, least: float, left_out: Bool, *, itself: bool = False
) -> tuple[I64, F64, F64]:
    """(ranks above the others, by how much, standard errors) of the means over some steps; of means less those of other
    steps a rank is also compared with `itself`."""
    error = float(np.hypot(levels.static, levels.error(count)))
    height = np.full(len(means), np.nan)
    lower, pairs = np.zeros(len(means), bool), []
    for one in np.unique(levels.stage).tolist():
        rows = np.flatnonzero(np.isfinite(means) & ~left_out & (levels.stage == one))
        if len(rows) < 2:
            continue
        order = rows[np.argsort(means[rows], kind="stable")]
        cut = _lowest_group(means[order], max(0.6 * least, 3.0 * error))
        height[rows] = means[rows] - np.median(means[order[:cut]])
        if len(rows) == 2:
            pairs.append(float(height[order[1]]))
        else:
            lower[order[:cut]] = True
    if len(pairs) == 1 and not itself:  # of two one cannot say which is right
        height[np.isfinite(height) & ~np.isin(levels.stage, levels.stage[lower])] = np.nan
    known = np.abs(height[lower])
    wide = 0.0 if not len(known) else 1.4826 * float(np.median(known)) if len(known) > 3 else float(known.max())
    wide = max(wide, sorted(pairs)[(len(pairs) - 1) // 2] if len(pairs) > 1 else 0.0)  # of two the one that is alike
    spread = float(np.hypot(max(wide, error), error / np.sqrt(max(len(known), 1))))
    limit = SURE if len(known) > 3 else SURE + 1
    with np.errstate(invalid="ignore"):
        chosen = ~lower & (height > least) & (height > limit * spread)
    if levels.values.shape[1] < FEWEST_STEPS and (levels.wild or len(known) < ENOUGH):
        far = LATEST * (1 if len(height) <= MANY or levels.values.shape[1] > 1 else 2)
        chosen &= np.nan_to_num(height) >= _apart(height, far if levels.wild else LATER)
        if levels.wild and chosen.sum() > max(1, REFERENCE * np.isfinite(height).sum()):
            chosen[:] = False  # now one and now another: that is how they vary
    rows = np.flatnonzero(chosen)
    return rows, height[rows], height[rows] / spread


def _apart(height: F64, times: float) -> float:
    """The lowest value that is at least `times` times everything below it: what few steps can show."""
    far = np.sort(np.abs(height[np.isfinite(height)]))
    if len(far) < 2:
        return np.inf
    wide = np.flatnonzero(far[1:] >= times * np.maximum(far[:-1], 1e-9))
    return float(far[1:][wide[-1]]) if len(wide) else np.inf


def _lowest_group(values: F64, limit: float) -> int:
    """How many of these ascending values are the reference of the others: those below the first gap, a quarter of them
    or more, and two at least; of two, the smaller."""
    size = len(values)
    if size == 2:
        return 1
    fewest = max(2, int(np.ceil(REFERENCE * size)))
    gaps = np.flatnonzero(np.diff(values) > limit) + 1
    gaps = gaps[gaps >= fewest]
    return int(gaps[0]) if len(gaps) else size


# -- over time ---------------------------------------------------------------------------------------------------------


def _over_time(levels: CleanLevels, least: float) -> list[Episode]:
    x, found = levels.values, []
    ranks, steps = x.shape
    own = _middle(x, 1)
    limit = np.sqrt(2 * np.log(max(ranks * steps * 4, 2))) + SEARCHED
    given, levels = levels, replace(levels, values=_without_spikes(x, levels.sigma))
    changing = _changing(levels, limit, least)
    done = np.zeros(ranks, bool)
    if steps >= SERIES:
        for row in np.flatnonzero(np.isfinite(x).all(axis=1)).tolist():
            one = _periodic(x[row] - own[row], levels, least, ranks) or (
                _drift(x[row], row, levels, least, limit) if changing[row] else None
            )
            if one is not None:
                found.append(one if one.rows else _with(one, row))
                done[row] = True
        found = _joined_periods(found)
    rows = np.flatnonzero(changing & ~done)
    if len(rows):
        found += _stretches(levels, rows, done, least, limit)
        done[[row for one in found for row in one.rows]] = True
    if steps >= SERIES:
        others = given.values[~done]
        usual = _middle(others, 0) if len(others) else np.zeros(steps)
        for row in np.flatnonzero(~done & np.isfinite(x - usual).any(axis=1)).tolist():
            y = x[row] - usual
            one = _now_and_then(y - np.nanmedian(y), row, levels, least, ranks)
            if one is not None:
                found.append(one)
    return found


def _without_spikes(x: F64, sigma: float) -> F64:
    """Values at most a few spreads from the middle of their neighbours: single steps make no change of level."""
    steps = x.shape[1]
    width = 5 if steps >= 5 else 3
    padded = np.pad(x, ((0, 0), (width // 2, width // 2)), mode="reflect")
    near = np.median(np.lib.stride_tricks.sliding_window_view(padded, width, axis=1), axis=2)
    found: F64 = np.where(np.isfinite(near), np.clip(x, near - 4 * sigma, near + 4 * sigma), x)
    return found


def _with(one: Episode, row: int) -> Episode:
    return Episode((row,), one.pattern, one.first, one.last, one.height, one.score, one.every, one.steps)


def _joined_periods(found: list[Episode]) -> list[Episode]:
    """Ranks with one period and one phase are one episode."""
    joined: dict[tuple[int, int, str], list[Episode]] = {}
    rest = []
    for one in found:
        if one.pattern == "periodic":
            joined.setdefault((one.every, one.steps[0] % one.every, one.pattern), []).append(one)
        else:
            rest.append(one)
    for same in joined.values():
        first = max(same, key=lambda one: one.score)
        rows = tuple(sorted(row for one in same for row in one.rows))
        rest.append(
            Episode(rows, "periodic", first.first, first.last, first.height, first.score, first.every, first.steps)
        )
    return rest


def _changing(levels: CleanLevels, limit: float, least: float) -> Bool:
    """Ranks whose level differs between stretches of the run by more than chance."""
    x = np.where(np.isfinite(levels.values), levels.values, np.nanmedian(levels.values))
    ranks, steps = x.shape
    total = np.concatenate([np.zeros((ranks, 1)), np.cumsum(x, axis=1)], axis=1)
    best = np.zeros(ranks)
    for cut in range(HOLD, steps - HOLD + 1):
        before, after = total[:, cut] / cut, (total[:, -1] - total[:, cut]) / (steps - cut)
        error = np.hypot(levels.error(cut), levels.error(steps - cut))
        best = np.maximum(best, np.where(np.abs(after - before) > 0.7 * least, np.abs(after - before) / error, 0))
    for width in sorted({HOLD, steps // 8, steps // 5, steps // 3} - {0, 1, 2}):
        inside = (total[:, width:] - total[:, :-width]) / width
        outside = (total[:, -1:] - (total[:, width:] - total[:, :-width])) / max(steps - width, 1)
        error = np.hypot(levels.error(width), levels.error(steps - width))
        most = np.abs(inside - outside).max(axis=1)
        best = np.maximum(best, np.where(most > 0.7 * least, most / error, 0))
    found: Bool = best > limit
    return found


def _drift(y: F64, row: int, levels: CleanLevels, least: float, limit: float) -> Episode | None:
    """A straight ramp that explains the series better than a step does."""
    steps = len(y)
    at = np.arange(steps, dtype=np.float64)
    slope, base = np.polyfit(at, y, 1)
    growth = float(slope * (steps - 1))
    error = levels.error(steps) * np.sqrt(12)
    if growth < 1.5 * least or growth / max(error, 1e-12) < limit:
        return None
    ramp = _robust_square(y - base - slope * at, levels.sigma)
    step = min(
        _robust_square(y - np.where(at < cut, np.median(y[:cut]), np.median(y[cut:])), levels.sigma)
        for cut in range(HOLD, steps - HOLD + 1)
    )
    if ramp >= step:
        return None
    return Episode((row,), "drift", 0, steps - 1, growth, growth / error, steps=tuple(range(steps)))


def _robust_square(x: F64, sigma: float) -> float:
    return float(np.minimum(x * x, (4 * sigma) ** 2).sum())


def _periodic(y: F64, levels: CleanLevels, least: float, among: int, most_lag: int = 64) -> Episode | None:
    """One phase of a period that lies above the others in nearly all of its steps, and nothing else does."""
    steps = len(y)
    top = min((steps - 1) // (PERIODS - 1), most_lag)
    tried = among * sum(range(2, top + 1))
    limit = np.sqrt(2 * np.log(max(tried, 2))) + SEARCHED
    sigma = max(levels.sigma, 1e-6)
    half = max(least / 2, 2.0 * sigma)
    y = y - np.quantile(y, QUARTER)  # of a period of two, half of the steps or more are high
    best: Episode | None = None
    high = y > half
    if high.sum() < PERIODS or high.mean() > 0.6:
        return None
    first = np.flatnonzero(high)
    ordered = np.sort(y)
    for lag in range(2, top + 1):
        phases = np.unique(first[: 2 * lag] % lag)
        for phase in phases[
            _may_be_high(y, ordered, lag, max(least, limit * sigma * np.sqrt(1.57 * lag / (steps + lag))))[phases]
        ].tolist():
            mine = np.arange(phase, steps, lag)
            if len(mine) < PERIODS:
                continue
            rest = np.delete(np.arange(steps), mine)
            height = float(np.median(y[mine]) - np.median(y[rest]))
            if height < least:
                continue
            wide = max(sigma, 1.4826 * float(np.median(np.abs(y[rest] - np.median(y[rest])))))
            score = height / (wide * np.sqrt(1.57 / len(mine) + 1.57 / len(rest)))
            above = y > np.median(y[rest]) + height / 2
            if score < limit or above[mine].mean() < 0.8 or above[rest].mean() > 0.25 / lag:
                continue
            if best is None or score > best.score * 1.05:
                best = Episode((), "periodic", phase, int(mine[-1]), height, float(score), lag, tuple(mine.tolist()))
    return best


def _may_be_high(y: F64, ordered: F64, lag: int, least: float) -> Bool:
    """Phases whose middle can be this far above that of the other steps: of those the middle is at least what it would
    be if the highest of all steps were those of the phase."""
    steps = len(y)
    turns = -(-steps // lag)
    table = np.sort(np.append(y, np.full(turns * lag - steps, np.inf)).reshape(turns, lag), axis=0)
    count = np.where(np.arange(lag) < steps - (turns - 1) * lag, turns, turns - 1)
    middle = (table[(count - 1) // 2, np.arange(lag)] + table[count // 2, np.arange(lag)]) / 2
    found: Bool = middle - ordered[np.maximum((steps - count - 1) // 2, 0)] >= least
    return found


def _now_and_then(y: F64, row: int, levels: CleanLevels, least: float, among: int) -> Episode | None:
    """Single steps, again and again, in which the rank is far above the others."""
    limit = max(least, (np.sqrt(2 * np.log(among * len(y))) + 2) * levels.sigma)
    far = np.flatnonzero(y > limit)
    apart = int((np.diff(far) > 1).sum()) + 1
    if apart < PERIODS or len(far) < 0.04 * len(y) or len(far) > 0.5 * len(y):
        return None
    height = float(np.median(y[far]))
    score = height / levels.sigma * np.sqrt(len(far)) / 2
    return Episode((row,), "now and then", int(far[0]), int(far[-1]), height, score, steps=tuple(far.tolist()))


def _stretches(levels: CleanLevels, rows: I64, left_out: Bool, least: float, limit: float) -> list[Episode]:
    """Stretches in which ranks lie above the others, from the places where the matrix changes."""
    x = levels.values
    steps = x.shape[1]
    cuts = _cuts(x[rows], levels, limit, least)
    bounds = [0, *cuts, steps]
    means = np.stack([_means(x, np.arange(a, b)) for a, b in pairwise(bounds)], 1)
    quiet, found = _quiet_reference(means, rows, least), []
    over = np.zeros(means.shape, bool)
    height = np.zeros(means.shape)
    scores = np.zeros(means.shape)
    for e, (a, b) in enumerate(pairwise(bounds)):
        at, much, score = _above(means[:, e] - quiet, levels, b - a, least, left_out, itself=True)
        over[at, e], height[at, e], scores[at, e] = True, much, score
    grouped: dict[bytes, list[int]] = {}
    for row in np.flatnonzero(over.any(axis=1)).tolist():
        grouped.setdefault(over[row].tobytes(), []).append(row)
    for same in grouped.values():
        where = np.flatnonzero(over[same[0]])
        if len(where) == len(bounds) - 1:
            continue
        inside = np.concatenate([np.arange(bounds[e], bounds[e + 1]) for e in where.tolist()])
        rest = np.setdiff1d(np.arange(steps), inside)
        half = float(np.median(height[np.ix_(np.array(same, np.int64), where)])) / 2
        steady = ~over.any(axis=1)
        part = x[np.array(same)] - (_middle(x[steady], 0) if steady.any() else 0.0)
        if np.mean(part[:, inside] > _middle(part[:, rest], 1)[:, None] + half) < SHOWN:
            continue
        pattern = "since" if bounds[int(where[-1]) + 1] == steps and len(where) == where[-1] - where[0] + 1 else "while"
        block = np.ix_(np.array(same, np.int64), where)
        most, sure = float(np.median(height[block])), float(np.median(scores[block].max(axis=1)))
        found.append(
            Episode(tuple(same), pattern, int(inside[0]), int(inside[-1]), most, sure, steps=tuple(inside.tolist()))
        )
    return found


def _quiet_reference(means: F64, rows: I64, least: float) -> F64:
    """Level of each rank in the stretch in which the ranks differ least: what it is without what changes. Of a rank
    that is far off in that one, in the stretch in which it is nearest to the others."""
    apart = np.nan_to_num(means - np.nanmedian(means, axis=0))
    quiet = apart[:, int(np.argmin(np.abs(apart[rows]).max(axis=0)))]
    nearest = apart[np.arange(len(apart)), np.abs(apart).argmin(axis=1)]
    found: F64 = np.where(np.abs(quiet) > least, np.clip(nearest, -least, least), quiet)
    return found


def _cuts(x: F64, levels: CleanLevels, limit: float, least: float) -> list[int]:
    """Places where the level of one of these ranks changes: the best of all, then within its two sides; or both ends of
    a stretch, where that explains more than one place does."""
    steps = len(x[0])
    x = np.where(np.isfinite(x), x, np.nanmedian(x))
    total = np.concatenate([np.zeros((len(x), 1)), np.cumsum(x, axis=1)], axis=1)
    found: list[int] = []
    waiting = [(0, steps)]
    while waiting and len(found) < MOST_CHANGES:
        a, b = waiting.pop(0)
        best, place = 0.0, -1
        for cut in range(a + HOLD, b - HOLD + 1):
            before = (total[:, cut] - total[:, a]) / (cut - a)
            after = (total[:, b] - total[:, cut]) / (b - cut)
            joint = _joint(np.abs(after - before) / np.hypot(levels.error(cut - a), levels.error(b - cut)))
            if joint > best and np.abs(after - before).max() > 0.7 * least:
                best, place = joint, cut
        whole = a == 0 and b == steps
        much, ends = _middle_stretch(total, steps, levels, least) if whole else (0.0, [])
        if whole and much > limit and (much > CLEARER * best or best <= limit):
            found += ends
        elif place >= 0 and best > (limit if whole else 0.7 * limit):
            found.append(place)
            waiting += [(a, place), (place, b)]
    return sorted(set(found))


def _joint(z: F64) -> float:
    """Of the half of the ranks that changed most."""
    return float(np.sqrt((np.sort(z)[-max(1, len(z) // 2) :] ** 2).mean()))


def _middle_stretch(total: F64, steps: int, levels: CleanLevels, least: float) -> tuple[float, list[int]]:
    """(how clearly, both ends) of the stretch that differs most from the rest."""
    best, place = 0.0, (0, 0)
    for width in range(HOLD, steps // 2 + 1):
        inside = (total[:, width:] - total[:, :-width]) / width
        outside = (total[:, -1:] - (total[:, width:] - total[:, :-width])) / (steps - width)
        z = np.abs(inside - outside) / np.hypot(levels.error(width), levels.error(steps - width))
        at = int(np.argmax(z.max(axis=0)))
        much = _joint(z[:, at])
        if much > best and np.abs(inside - outside)[:, at].max() > 0.7 * least:
            best, place = much, (at, at + width)
    return best, [p for p in place if 0 < p < steps]


# -- the job as a whole ------------------------------------------------------------------------------------------------


def common_episodes(y: F64, error: float, least: float) -> list[Episode]:
    """Changes, drifts and periods of one series, of what all ranks do alike; its first step may be left out."""
    if len(y) < SERIES - 1 or not np.isfinite(y).all():
        return []
    levels = clean_levels(y[None, :], np.full((1, len(y)), error), np.zeros(1, np.int64))
    # its own spread is that of the steps between: every second step may be longer
    one = _periodic(y - np.median(y), replace(levels, sigma=max(error, 1e-6)), least, 1)
    if one is not None:
        return [one]
    found = _best_model(y, error, least)
    return [found] if found is not None else []


def _best_model(y: F64, error: float, least: float) -> Episode | None:
    """A change of level or a ramp, whichever explains the series better, if it is surely there. One series has no
    peers: its noise is what the model leaves, and counts for more where neighbouring steps are alike."""
    steps = len(y)
    at = np.arange(steps, dtype=np.float64)
    slope, base = np.polyfit(at, y, 1)
    ways = [(slope * at + base, float(slope * (steps - 1)), np.sqrt(12.0 / steps), 0)]
    for cut in range(HOLD, steps - HOLD + 1):
        low, high = float(y[:cut].mean()), float(y[cut:].mean())
        level = np.where(at < cut, low, high)
        ways.append((level, high - low, np.sqrt(1.0 / cut + 1.0 / (steps - cut)), cut))
    model, height, factor, cut = min(ways, key=lambda way: float(((y - way[0]) ** 2).sum()))
    left = y - model
    rho = float(np.clip((left[1:] * left[:-1]).sum() / max(float((left**2).sum()), 1e-300) + 2 / steps, 0.0, 0.8))
    spread = max(float(np.sqrt((left**2).sum() / (steps - 3))), error)
    score = height / (spread * factor * np.sqrt((1 + rho) / (1 - rho)))
    if height < least * (1 if cut else 1.5) or score < SURE + (0.5 if steps >= 20 else 1.0):
        return None
    every = tuple(range(cut, steps))
    pattern = "since" if cut else "drift"
    return Episode((), pattern, cut, steps - 1, height, float(score), steps=every)


# -- robust figures ----------------------------------------------------------------------------------------------------


def _means(x: F64, columns: I64) -> F64:
    """Mean of each row over some columns, without what lies far off; NaN where nothing is known."""
    part = x[:, columns]
    middle = _middle(part, 1)
    if part.shape[1] < HOLD:
        return middle
    wide = 1.4826 * _middle(np.abs(part - middle[:, None]), 1)
    near = np.abs(part - middle[:, None]) <= 2.5 * wide[:, None] + 1e-12
    count = near.sum(axis=1)
    total = np.where(near, np.nan_to_num(part), 0).sum(axis=1)
    found: F64 = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return found


def _middle(x: F64, axis: int) -> F64:
    some = np.isfinite(x).any(axis=axis)
    found = np.full(some.shape, np.nan)
    if some.any():
        part = np.compress(some, x, axis=1 - axis)
        found[some] = np.nanmedian(part, axis=axis)
    return found


def _mad(x: F64) -> float:
    values = x[np.isfinite(x)]
    return 1.4826 * float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0
