"""Whether a series is periodic, its period, and the shape of one cycle.

Lags with high autocorrelation are candidates; one is accepted if the other cycles predict each sample better than the
series without cycles does, by more than chance allows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.kernels.arrays import F64, I64

__all__ = ["find_period", "profile"]


CYCLES: Final = 2
"""Whole cycles that a series must have for one to be reported."""
SHORT: Final = 32
"""Lags up to which all are candidates."""
CANDIDATES: Final = 12
"""Longer lags that are candidates: those with the highest autocorrelation."""
SURE: Final = 10.0
"""Gain in likelihood that a period needs, beyond what the best of all lags gains by chance."""
CUT: Final = 6.0
"""Samples further from the median than this many scaled median deviations are clipped."""
NOTHING: Final = 1e-18
"""Fraction of a series' squares below which the rest is rounding."""


def find_period(values: F64) -> int:
    """Period of a series around a constant level, in samples; 0 if it has none."""
    count = len(values)
    if count < 2 * CYCLES:
        return 0
    x = _cut(values - np.median(values))
    x = x - x.mean()
    square = float((x * x).sum())
    if square <= NOTHING * count * float(np.abs(values).max(initial=0.0)) ** 2 or square == 0:
        return 0
    least = square * (count / (count - 1)) ** 2
    lags = _candidates(x)
    left = np.array([max(_unpredicted(x, lag), NOTHING * square) for lag in lags.tolist()])
    gain = count * np.log(least / left)
    sure = gain > 2 * np.log(count) + SURE
    if not sure.any():
        return 0
    # a multiple of the period fits as well as the period: take the shortest lag that fits as well as the best
    good = sure & (gain >= gain[sure].max() - 2)
    return int(lags[good].min())


def profile(values: F64, period: int, sigma: float) -> F64:
    """One cycle of a series around a constant level with noise `sigma`: the median of each phase, without what noise
    explains. Its own median is 0."""
    phase = np.arange(len(values)) % period
    whole = len(values) // period
    full = values[: whole * period].reshape(whole, period)
    rest = np.full((1, period), np.nan)
    rest[0, : len(values) - whole * period] = values[whole * period :]
    with np.errstate(all="ignore"):
        found = np.nanmedian(np.concatenate([full, rest]), axis=0)
    error = 1.2533 * sigma / np.sqrt(np.bincount(phase, minlength=period).mean())
    found = _without_noise(found - np.median(found), error)
    centred: F64 = found - np.median(found)
    return centred


def _cut(x: F64) -> F64:
    scale = 1.4826 * float(np.median(np.abs(x - np.median(x))))
    scale = max(scale, float(np.abs(x).mean()))
    cut: F64 = np.clip(x, -CUT * scale, CUT * scale)
    return cut


def _candidates(x: F64) -> I64:
    """Lags with high autocorrelation of the series or its differences, and their divisors; and all short lags."""
    most = len(x) // CYCLES
    found = set(range(2, min(SHORT, most) + 1))
    for series in (x, np.diff(x)):
        r = _autocorrelation(series)[: most + 2]
        inner = np.arange(1, len(r) - 1)
        peaks = inner[(r[1:-1] >= r[:-2]) & (r[1:-1] >= r[2:])]
        peaks = peaks[np.argsort(-r[peaks], kind="stable")][:CANDIDATES]
        found |= {round(int(p) / part) + off for p in peaks.tolist() for part in (1, 2, 3) for off in (-1, 0, 1)}
    return np.array(sorted(lag for lag in found if 2 <= lag <= most), np.int64)


def _autocorrelation(x: F64) -> F64:
    size = 1 << (2 * len(x) - 1).bit_length()
    spectrum = np.fft.rfft(x - x.mean(), size)
    sums = np.fft.irfft(spectrum * spectrum.conj(), size)[: len(x)]
    r: F64 = sums / np.maximum(np.arange(len(x), 0, -1), 1) / max(float(sums[0]) / len(x), 1e-300)
    return r


def _unpredicted(x: F64, period: int) -> float:
    """Squares of what the other cycles do not predict of each sample."""
    phase = np.arange(len(x)) % period
    count = np.bincount(phase, minlength=period)
    away = x - (np.bincount(phase, x, period) / count)[phase]
    away = away * (count / (count - 1))[phase]
    return float((away * away).sum())


def _without_noise(cycle: F64, error: float) -> F64:
    """A cycle whose samples have this error, in the most compact form: as it is, as a few outstanding phases, or as a
    few waves."""
    if error == 0 or len(cycle) < 3:
        return cycle
    size = len(cycle)
    limit = np.sqrt(2 * np.log(size)) + 1
    waves = np.fft.rfft(cycle)
    strong = np.abs(waves) > limit * error * np.sqrt(size / 2)
    strong[0] = True
    few = np.where(np.abs(cycle) > limit * error, cycle, 0.0)
    ways = (
        (np.fft.irfft(np.where(strong, waves, 0), size), 2 * int(strong[1:].sum())),
        (few, int(np.count_nonzero(few))),
        (cycle, size),
    )
    # what is lost, and twice what noise adds with each number that is kept
    return min(ways, key=lambda way: float(((cycle - way[0]) ** 2).sum()) + 2 * error**2 * way[1])[0]
