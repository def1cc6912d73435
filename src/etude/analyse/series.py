"""A series of times as trend + cycle + residual, and what comes next.

The trend is a level, or a straight drift, between changes of level; the cycle repeats after a period; the residual is
the rest, so the three add up to the series, of whole nanoseconds exactly. All three are robust: outliers only affect
the residual.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.analyse.changes import LEAST, Change, change_points, noise
from etude.analyse.periods import find_period, profile
from etude.base.errors import UsageError
from etude.kernels.arrays import F64

__all__ = ["SeriesParts", "decompose", "forecast", "level_and_drift", "spread"]


ROUNDS: Final = 4
"""Iterations that separate trend and cycle."""
DRIFTS: Final = 4.0
"""Standard errors between the first and the last third of a level from which it drifts."""
THIRDS: Final = 9
"""Samples from which a level may drift."""
ROUNDING: Final = 1e-9
"""Fraction of a series below which the rest is rounding."""
ALIKE: Final = 0.95
"""Highest autocorrelation assumed for a residual."""


@dataclass(frozen=True, slots=True, eq=False)
class SeriesParts:
    """trend + cycle + residual = series, exactly where the series is of whole numbers."""

    trend: NDArray[Any]
    cycle: NDArray[Any]
    residual: NDArray[Any]
    period: int
    """Period of the cycle in samples; 0 where there is none."""
    changes: tuple[Change, ...]
    slope: float
    """Growth of the last level per sample; 0 where it does not drift."""


def decompose(values: NDArray[Any], *, period: int | None = None, least: float = LEAST) -> SeriesParts:
    """The parts of a series. `period` is the number of samples in a cycle, 0 for none, None to look for one; `least`
    as in `change_points`. Integers give integers, anything else floats."""
    values = np.asarray(values)
    if values.ndim != 1 or not np.isfinite(values.astype(np.float64)).all():
        raise UsageError("a series must be one-dimensional, without missing values")
    if period is not None and (period < 0 or period == 1 or 2 * period > len(values)):
        raise UsageError(
            f"a cycle of {period} samples in a series of {len(values)}", hint="2 samples or more, and two whole cycles"
        )
    x = values.astype(np.float64)
    if not len(x):
        return _rounded(values, x, x, 0, [], 0.0)
    fits = [_fit(x, start, period, least) for start in _starts(x, period)]
    best = min(fits, key=lambda fit: fit.cost)
    return _rounded(values, best.trend, best.cycle, best.period, best.changes, best.slope)


def spread(parts: SeriesParts) -> float:
    """Standard deviation of the residual over the mean of the series: 0.02 is 2 %."""
    series = parts.trend + parts.cycle + parts.residual
    mean = abs(float(series.mean())) if len(series) else 0.0
    return float(np.std(parts.residual) / mean) if mean else 0.0


def forecast(parts: SeriesParts, samples: int) -> F64:
    """The next samples of a series: its last level with its drift, which levels off over as long as it was seen, its
    cycle, and the last residual damped by its autocorrelation."""
    if not len(parts.trend):
        raise UsageError("an empty series has no forecast")
    ahead = np.arange(1, samples + 1)
    last = parts.changes[-1].at if parts.changes else 0
    seen = max(len(parts.trend) - last, 2)
    fades = 1 - 1 / seen
    drift = parts.slope * fades * (1 - fades**ahead) / (1 - fades)
    found = float(parts.trend[-1]) + drift
    if parts.period:
        cycle = parts.cycle.astype(np.float64)
        phase = (len(cycle) - 1 + ahead) % parts.period
        found = found + cycle[phase]
    rest = parts.residual.astype(np.float64)
    cut = np.clip(rest, -3 * noise(rest) or 0.0, 3 * noise(rest) or 0.0)
    square = float((cut * cut).sum())
    alike = float((cut[1:] * cut[:-1]).sum()) / square if square else 0.0
    if alike > 2 / np.sqrt(len(rest)):
        found = found + cut[-1] * min(alike, ALIKE) ** ahead
    return np.asarray(found, np.float64)


# -- trend and cycle ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    trend: F64
    cycle: F64
    period: int
    changes: list[Change]
    slope: float
    cost: float


def _starts(x: F64, period: int | None) -> Iterator[F64]:
    """Initial trends: it matters whether a cycle or a change is fitted first."""
    yield np.full(len(x), np.median(x))
    if period == 0:
        return
    slope = _thirds(x)[0]
    line = slope * np.arange(len(x))
    yield line + np.median(x - line)
    yield level_and_drift(x, change_points(x))[0]


def _fit(x: F64, trend: F64, period: int | None, least: float) -> _Fit:
    """Fits trend and cycle alternately until they are stable."""
    cycle, found, slope = np.zeros(len(x)), 0, 0.0
    changes: list[Change] = []
    for _ in range(ROUNDS):
        found = find_period(x - trend) if period is None else period
        cycle = _cycle(x - trend, found)
        changes = change_points(x - cycle, least=least)
        before, (trend, slope, lines) = trend, level_and_drift(x - cycle, changes)
        if np.array_equal(before, trend):
            break
    rest = float(np.abs(x - trend - cycle).mean())
    floor = ROUNDING * max(float(np.abs(x).max()), 1e-300)
    numbers = 1 + 2 * len(changes) + lines + (len(np.unique(cycle)) if found else 0)
    cost = 2 * len(x) * float(np.log(rest + floor)) + numbers * float(np.log(len(x)))
    return _Fit(trend, cycle, found, changes, slope, cost)


def _cycle(x: F64, period: int) -> F64:
    """The cycle of a series around a constant level, as long as the series; without what noise explains of it."""
    if not period:
        return np.zeros(len(x))
    raw = np.resize(profile(x, period, 0.0), len(x))
    cycles = len(x) / period
    left = noise(x - raw) * np.sqrt(cycles / (cycles - 1))  # the median of few cycles contains part of the noise
    if left <= ROUNDING * float(np.abs(x).max(initial=0.0)):
        return raw
    return np.resize(profile(x, period, left), len(x))


def level_and_drift(x: F64, changes: list[Change]) -> tuple[F64, float, int]:
    """(level or drift between changes, slope of the last one, how many drift)."""
    trend, slope, lines = np.empty(len(x)), 0.0, 0
    bounds = [0, *(c.at for c in changes), len(x)]
    for first, last in pairwise(bounds):
        part = x[first:last]
        slope, error = _thirds(part)
        slope = slope if abs(slope) > DRIFTS * error else 0.0
        lines += slope != 0
        line = slope * np.arange(len(part))
        trend[first:last] = line + np.median(part - line)
    return trend, slope, lines


def _thirds(x: F64) -> tuple[float, float]:
    """Slope from the middle of the first third to that of the last, and its standard error."""
    third = len(x) // 3
    if len(x) < THIRDS:
        return 0.0, np.inf
    apart = len(x) - third
    slope = (float(np.median(x[-third:])) - float(np.median(x[:third]))) / apart
    line = x - slope * np.arange(len(x))
    wide = max(noise(line), float(np.median(np.abs(line - np.median(line)))) * 1.4826)
    return slope, 1.2533 * wide * np.sqrt(2 / third) / apart


def _rounded(
    values: NDArray[Any], trend: F64, cycle: F64, period: int, changes: list[Change], slope: float
) -> SeriesParts:
    """The residual is the rest of the series itself, so that rounding loses nothing."""
    if np.issubdtype(values.dtype, np.integer):
        whole = values.astype(np.int64)
        trend_ = np.rint(trend).astype(np.int64)
        half = float(np.median(trend - trend_)) if period else 0.0  # a median of two may end in .5
        cycle_ = np.rint(cycle + half).astype(np.int64)
        return SeriesParts(trend_, cycle_, whole - trend_ - cycle_, period, tuple(changes), slope)
    return SeriesParts(trend, cycle, values - trend - cycle, period, tuple(changes), slope)
