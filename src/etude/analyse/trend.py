"""Step time over a run, or over many recordings of one job: trend, cycle, residual, changes and a forecast. Ranks are
compared with their own past, and with one another relative to their work."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from etude.analyse.changes import HOLD, LEAST, Change, change_points, noise
from etude.analyse.expected import expected
from etude.analyse.findings import Verdict
from etude.analyse.periods import find_period
from etude.analyse.samples import Samples
from etude.analyse.series import SeriesParts, decompose, level_and_drift, spread
from etude.analyse.series import forecast as continued
from etude.analyse.trend_words import TrendFinding, of_run, told_changes, told_drift, told_period, told_slow
from etude.base.errors import UsageError
from etude.base.units import parse_time
from etude.kernels.arrays import F64

__all__ = ["Trend", "forecast", "record", "trend", "with_verdicts"]


LEAST_SLOW: Final = 0.06
"""Slow-down from which a rank is slower than the others."""
SURE: Final = 5.0
"""Standard errors above the others from which a rank is reported."""
JOINS: Final = 4.0
"""Standard errors from which a rank changes together with another one."""
MOST_NAMED: Final = 4
"""At most one rank in this many may be slower than the others, or drift alone."""
FEWEST: Final = 3
"""Fewest ranks of which one can be slower than the others."""
MOST_AHEAD: Final = 1_000_000
"""Steps that can be forecast."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    step: int
    rank: int | None
    """None: the job as a whole."""
    ratio: float
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class Trend:
    """Findings about samples; `parts` and `explained` add up to the job's values."""

    samples: Samples
    parts: SeriesParts
    explained: NDArray[Any]
    """What the work of each step explains of its value; zeros if the work is unknown or constant."""
    changes: tuple[ChangePoint, ...]
    findings: tuple[TrendFinding, ...]
    used_work: bool


def trend(samples: Samples, *, period: int | None = None, least: float = LEAST, use_work: bool = True) -> Trend:
    """The trend of samples. `period` as in `decompose`; `least` is the smallest change that is reported; `use_work`
    first removes what the amount of work explains, where it is known."""
    if not 0 <= least < 10:
        raise UsageError(f"a least change of {least}", hint="0.03 is 3 %")
    values = samples.job
    work = samples.work if use_work else None
    own, explained = _given_the_work(samples, values, work)
    rest = values - explained
    parts = decompose(rest.astype(np.int64) if samples.whole else rest, period=period, least=least)
    cycle = parts.period or (_period_of_ranks(own) if period is None else 0)
    level = _without_cycle(own, cycle)
    by_rank = _joining(level, _rank_changes(level, least), least)
    changes = [ChangePoint(int(samples.steps[c.at]), None, c.ratio, c.score) for c in parts.changes]
    ranks = samples.ranks.tolist()
    if len(ranks) > 1:
        changes += [ChangePoint(int(samples.steps[c.at]), ranks[r], c.ratio, c.score) for r, c in by_rank]
    changes.sort(key=lambda c: (c.step, -1 if c.rank is None else c.rank))
    found = told_changes(samples, list(parts.changes), by_rank)
    found += told_period(samples, parts, own, cycle, least)
    found += told_drift(samples, parts, _drifting(level, by_rank, least), least)
    named = {rank for finding in found for rank in finding.ranks if finding.kind != "periodic"}
    found += told_slow([(r, f) for r, f in _slow_ranks(own) if ranks[r] not in named], ranks, work is not None)
    return Trend(samples, parts, explained, tuple(changes), tuple(found), work is not None)


def with_verdicts(found: Trend, verdicts: list[Verdict]) -> Trend:
    """The trend of the steps of one run, with the findings of `diagnose` about it."""
    return replace(found, findings=of_run(found.findings, verdicts))


def record(found: Trend) -> dict[str, Any]:
    """A trend as plain values: what `etude trend --json` prints."""
    samples, parts = found.samples, found.parts
    last = parts.trend[-1] if len(parts.trend) else None
    return {
        "value": samples.name,
        "unit": "ns" if samples.whole else "",
        "ranks": samples.ranks.tolist(),
        "steps": samples.steps.tolist(),
        "series": (parts.trend + parts.cycle + parts.residual + found.explained).tolist(),
        "trend": parts.trend.tolist(),
        "cycle": parts.cycle.tolist(),
        "residual": parts.residual.tolist(),
        "work": found.explained.tolist() if found.explained.any() else None,
        "work_known": found.used_work,
        "period": parts.period or None,
        "level": last,
        "slope": parts.slope,
        "change_points": [{"step": c.step, "rank": c.rank, "ratio": c.ratio, "score": c.score} for c in found.changes],
        "residual_spread": spread(parts),
        "findings": [asdict(finding) for finding in found.findings],
    }


# -- ranks -------------------------------------------------------------------------------------------------------------


def _given_the_work(samples: Samples, values: F64, work: F64 | None) -> tuple[F64, NDArray[Any]]:
    """(each rank's own values as they would be with the usual amount of work, what work explains of the job's)."""
    nothing = np.zeros(len(values), np.int64 if samples.whole else np.float64)
    if work is None:
        return samples.own, nothing
    told = expected(samples.own, work)
    own = samples.own * (float(np.nanmedian(told)) / told)
    if samples.own is samples.values:
        return own, _whole(values - np.nanmedian(own, axis=0), samples.whole)
    # a step lasts as long as its slowest rank
    of_job = expected(values, np.nanmax(work, axis=0))
    return own, _whole(of_job - float(np.median(of_job)), samples.whole)


def _whole(values: F64, whole: bool) -> NDArray[Any]:
    return np.rint(values).astype(np.int64) if whole else values


def _period_of_ranks(own: F64) -> int:
    """A period that shows only on the slowest rank of each step."""
    slowest = np.nanmax(own, axis=0)
    return find_period(slowest - np.median(slowest)) if len(own) > 1 else 0


def _without_cycle(own: F64, period: int) -> F64:
    """Each rank's values without the cycle: the median of each phase over the median of the cycle around it."""
    if not period or 2 * period > own.shape[1]:
        return own
    width = 2 * (period // 2) + 1
    padded = np.pad(own, ((0, 0), (width // 2, width // 2)), mode="reflect")
    found = own.copy()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a stretch without values has no median
        for row, values in enumerate(own):
            level = np.nanmedian(sliding_window_view(padded[row], width), axis=1)
            away = np.append(values - level, np.full(-len(values) % period, np.nan))
            cycle = np.nanmedian(away.reshape(-1, period), axis=0)
            found[row] -= np.resize(np.nan_to_num(cycle - np.nanmedian(cycle)), len(values))
    return found


def _rank_changes(own: F64, least: float) -> list[tuple[int, Change]]:
    """(row of the rank, change) of all ranks; places are columns of the samples."""
    found = []
    for row, values in enumerate(own):
        seen = np.flatnonzero(~np.isnan(values))
        told = change_points(values[seen], least=least, among=len(own))
        found += [(row, Change(int(seen[c.at]), c.before, c.after, c.score)) for c in told]
    return found


def _joining(own: F64, found: list[tuple[int, Change]], least: float) -> list[tuple[int, Change]]:
    """Adds ranks that change where another does: a known place needs less evidence than one that is searched for. The
    noise is that of all ranks together; a rank joins with at least half of the change."""
    if not found or len(own) < 2:
        return found
    sigma = float(np.median([noise(values[~np.isnan(values)]) for values in own]))
    joined = list(found)
    for place in sorted({c.at for _, c in found}):
        ratio = float(np.median([c.ratio for _, c in found if c.at == place]))
        if ratio == 1:
            continue
        for row, values in enumerate(own):
            mine = [c.at for r, c in joined if r == row]
            if any(abs(at - place) <= 1 for at in mine):
                continue
            first = max((at for at in mine if at < place), default=0)
            last = min((at for at in mine if at > place), default=len(values))
            change = _change_at(values[first:last], place - first, sigma)
            if change is None or change.score < JOINS or abs(change.ratio - 1) < least:
                continue
            if (change.ratio - 1) / (ratio - 1) > 0.5:
                joined.append((row, replace(change, at=place)))
    return sorted(joined, key=lambda rc: (rc[0], rc[1].at))


def _change_at(values: F64, place: int, sigma: float) -> Change | None:
    """The change at a given place; None if too little is known on one side of it."""
    before, after = (part[~np.isnan(part)] for part in (values[:place], values[place:]))
    if min(len(before), len(after)) < HOLD or sigma == 0:
        return None
    low, high = float(np.median(before)), float(np.median(after))
    score = abs(high - low) / (sigma * float(np.sqrt(1 / len(before) + 1 / len(after))))
    return Change(place, low, high, score)


def _drifting(own: F64, changes: list[tuple[int, Change]], least: float) -> list[tuple[int, float]]:
    """(row, growth over the samples) of ranks that drift away from the others; few of many."""
    if len(own) < FEWEST:
        return []
    changed = {row for row, _ in changes}
    with np.errstate(all="ignore"):
        apart = own / np.nanmedian(own, axis=0)
    found = []
    for row, values in enumerate(apart):
        x = values[~np.isnan(values)]
        if row in changed or not len(x):
            continue
        level, slope, _ = level_and_drift(x, [])
        growth = slope * len(x) / max(float(level[0]), 1e-300)
        if abs(growth) >= max(least, LEAST):
            found.append((row, growth))
    return found if len(found) * MOST_NAMED <= len(own) else []


def _slow_ranks(own: F64) -> list[tuple[int, float]]:
    """(row, factor) of ranks that are slower than the others during the whole run; few of many."""
    if len(own) < FEWEST:
        return []
    with np.errstate(all="ignore"):
        log = np.log(own)
        apart = log - np.nanmedian(log, axis=0)
        middle = np.nanmedian(apart, axis=1)
        count = (~np.isnan(apart)).sum(axis=1)
        within = 1.4826 * np.nanmedian(np.abs(apart - middle[:, None]), axis=1) * 1.2533 / np.sqrt(np.maximum(count, 1))
        middle = middle - np.nanmedian(middle)
        among = 1.4826 * float(np.nanmedian(np.abs(middle)))
        error = np.maximum(np.maximum(within, among), 1e-3)
        named = np.flatnonzero((middle > np.log1p(LEAST_SLOW)) & (middle > SURE * error))
    if len(named) * MOST_NAMED > len(own):
        return []
    return [(row, float(np.exp(middle[row]))) for row in named.tolist()]


def forecast(found: Trend, ahead: str) -> list[dict[str, Any]]:
    """The next steps (`20`), or those of a time (`7d`): their numbers and values, and their start times if times are
    known."""
    steps, start = found.samples.steps, found.samples.start_ns
    known = len(start) > 1 and int(start.min()) > np.iinfo(np.int64).min
    apart_ns = int(np.median(np.diff(start))) if known else 0
    if ahead.isdecimal():
        count = int(ahead)
    elif apart_ns > 0:
        count = -(-parse_time(ahead) // apart_ns)
    else:
        raise UsageError(
            f"--forecast: the number of steps in `{ahead}` is not known", hint="a number of steps, or a time column"
        )
    if not 1 <= count <= MOST_AHEAD:
        raise UsageError(f"--forecast: {count:,} steps", hint=f"1 to {MOST_AHEAD:,}")
    values = continued(found.parts, count)
    numbers = int(steps[-1]) + 1 + np.arange(count)
    rows: list[dict[str, Any]] = [
        {"step": n, "value": round(v) if found.samples.whole else v}
        for n, v in zip(numbers.tolist(), values.tolist(), strict=True)
    ]
    if apart_ns > 0:
        for i, row in enumerate(rows):
            row["start_ns"] = int(start[-1]) + (i + 1) * apart_ns
    return rows
