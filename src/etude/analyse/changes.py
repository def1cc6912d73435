"""Lasting or temporary changes of level in a series, compared with its own past.

Seeded binary segmentation: many intervals of the series, long and short, are searched for the place where the means on
both sides differ most; the narrowest interval that shows a change places it. Outliers cannot make a change, because
samples are first clipped to the range of their neighbours. A ramp is a drift, not a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from etude.kernels.arrays import F64, I64

__all__ = ["HOLD", "LEAST", "Change", "change_points", "levels", "noise"]


HOLD: Final = 3
"""Shortest level, in samples."""
LEAST: Final = 0.03
"""Levels that differ by less than this fraction are the same."""
LEAST_NOISE: Final = 1e-3
"""Lower bound of the noise, as a fraction of the level."""
CUT: Final = 3.0
"""Samples further than this from the median of their neighbours, in standard deviations, are clipped."""
SURE: Final = 2.5
"""Standard errors by which a change must exceed the best place in pure noise."""
BLOCKS: Final = 10
"""Blocks of samples whose means show how much the mean drifts."""
SCALED: Final = 1.4826
"""Standard deviation of normal samples over their median absolute deviation."""


@dataclass(frozen=True, slots=True)
class Change:
    """The level of a series before and from sample `at` on."""

    at: int
    before: float
    after: float
    score: float
    """Difference of the two levels in standard errors."""

    @property
    def ratio(self) -> float:
        """New level over old level: 1.3 is 30 % above."""
        return self.after / self.before if self.before else float("inf")


def noise(values: F64) -> float:
    """Standard deviation of a series around its level, from differences of neighbours, so that changes of level and
    slow drifts do not count. With few samples the estimate is raised."""
    if len(values) < 2:
        return 0.0
    step = np.abs(np.diff(values))
    found = SCALED * float(np.median(step)) / np.sqrt(2)
    if found == 0:  # most samples are equal: use the others, without the largest tenth
        kept = np.sort(step)[: max(len(step) - max(len(step) // 10, 1), 1)]
        found = float(kept.mean())
    few = 1 + 5 / len(step)
    return max(found * few, LEAST_NOISE * abs(float(np.median(values))))


def change_points(values: F64, *, least: float = LEAST, among: int = 1, hold: int = HOLD) -> list[Change]:
    """The changes of a series, first to last. A level lasts `hold` samples or more and differs from the one before by
    the factor 1 + `least` or more, up or down; `among` is the number of series searched, so that one of many is not
    reported by chance."""
    values = np.asarray(values, np.float64)
    sigma = noise(values)
    if len(values) < 2 * hold or sigma == 0:
        return []
    needed = np.sqrt(2 * np.log(len(values) * max(among, 1))) + SURE
    clean = _cut(values, sigma, hold)
    sigma = _wandering(clean, sigma)
    places = _narrowest(clean, sigma, needed, hold)
    places = _settled(clean, places, hold)
    while True:  # drop the weakest and judge the others again without it
        found = _judged(values, clean, places, sigma)
        weak = [c for c in found if c.score < needed or abs(c.after - c.before) < least * abs(c.before)]
        if not weak:
            return found
        gone = min(weak, key=lambda c: c.score).at
        places = [p for p in places if p != gone]


def levels(values: F64, places: Sequence[int]) -> list[F64]:
    """The samples of each level, in order."""
    return np.split(values, list(places))


def _cut(values: F64, sigma: float, hold: int) -> F64:
    """Samples clipped to the noise around the median of their neighbours."""
    width = 2 * hold - 1
    padded = np.pad(values, width // 2, mode="reflect") if len(values) > width // 2 else values
    middle = np.median(sliding_window_view(padded, width), axis=1)
    cut: F64 = np.clip(values, middle - CUT * sigma, middle + CUT * sigma)
    return cut


def _wandering(clean: F64, sigma: float) -> float:
    """Noise of means of many samples, expressed per sample: higher where outliers are on one side or neighbours are
    correlated."""
    step = np.clip(np.diff(clean), -CUT * np.sqrt(2) * sigma, CUT * np.sqrt(2) * sigma)
    found = max(sigma, float(np.sqrt((step * step).mean() / 2)))
    for width in (4, 8, 16, 32):
        blocks = len(clean) // width
        if blocks < BLOCKS:
            break
        means = clean[: blocks * width].reshape(blocks, width).mean(axis=1)
        found = max(found, SCALED * float(np.median(np.abs(np.diff(means)))) * np.sqrt(width / 2))
    return found


def _narrowest(values: F64, sigma: float, needed: float, hold: int) -> list[int]:
    """Places of changes: the narrowest interval that shows one, then the narrowest without it, and so on."""
    total = np.concatenate([[0.0], np.cumsum(values - values.mean())])
    rows: list[tuple[int, float, int, int, int]] = []
    for length in _lengths(len(values), hold):
        start = np.unique(np.append(np.arange(0, len(values) - length, max(length // 4, 1)), len(values) - length))
        score, places = _best_split(total, start, length, hold)
        seen = np.flatnonzero(score > needed * sigma)
        rows += [
            (length, -float(score[i]), int(start[i]), int(start[i]) + length, int(places[i])) for i in seen.tolist()
        ]
    found: list[int] = []
    for _, _, first, last, place in sorted(rows):
        if any(first < p < last for p in found):
            continue
        if not _is_ramp(values[first:last], place - first, sigma):
            found.append(place)
    return sorted(found)


def _lengths(count: int, hold: int) -> list[int]:
    """Lengths of intervals from all samples down to the shortest that can hold a change, each 0.7 of the one before."""
    found, length = [], float(count)
    while length >= 2 * hold:
        found.append(int(length))
        length *= np.sqrt(0.5)
    return sorted({*found, min(2 * hold, count)})


def _best_split(total: F64, start: I64, length: int, hold: int) -> tuple[F64, I64]:
    """For intervals of one length: the largest difference of the means on both sides of a place, in standard errors of
    samples with deviation 1, and that place. `total` is the cumulative sum."""
    k = np.arange(hold, length - hold + 1)
    left = total[start[:, None] + k] - total[start][:, None]
    whole = (total[start + length] - total[start])[:, None]
    apart = np.abs(left / k - (whole - left) / (length - k)) * np.sqrt(k * (length - k) / length)
    best = apart.argmax(axis=1)
    return apart[np.arange(len(start)), best], start + k[best]


def _is_ramp(values: F64, split: int, sigma: float) -> bool:
    """Whether a line fits these samples as well as two levels do."""
    t = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float((t * values).sum() / (t * t).sum())
    line = values - slope * t
    stepped = np.concatenate([part - part.mean() for part in (values[:split], values[split:])])
    return bool(((line - line.mean()) ** 2).sum() <= (stepped**2).sum() + sigma**2)


def _settled(values: F64, places: list[int], hold: int) -> list[int]:
    """Each place moved to where the levels before and after it differ most."""
    total = np.concatenate([[0.0], np.cumsum(values - values.mean())])
    found = list(places)
    for i in range(len(found)):
        first = found[i - 1] if i else 0
        last = found[i + 1] if i + 1 < len(found) else len(values)
        if last - first >= 2 * hold:
            found[i] = int(_best_split(total, np.array([first]), last - first, hold)[1][0])
    return found


def _judged(values: F64, clean: F64, places: list[int], sigma: float) -> list[Change]:
    """Changes with the levels on both sides and their score. Correlated neighbours count as fewer samples."""
    parts, used = levels(values, places), levels(clean, places)
    rest = np.concatenate([part - np.median(part) for part in used])
    wider = sigma * _inflation(rest, len(places))
    found = []
    for at, (before, after), (left, right) in zip(places, _pairs(parts), _pairs(used), strict=True):
        error = wider * np.sqrt(1 / len(before) + 1 / len(after))
        apart = min(abs(float(left.mean() - right.mean())), abs(float(np.median(right) - np.median(left))))
        found.append(Change(at, float(np.median(before)), float(np.median(after)), float(apart / error)))
    return found


def _pairs(parts: list[F64]) -> list[tuple[F64, F64]]:
    return list(pairwise(parts))


def _inflation(rest: F64, changes: int) -> float:
    """Factor by which autocorrelation widens the standard errors of means."""
    square = float((rest * rest).sum())
    if len(rest) < 8 or square == 0:
        return 1.0
    # levels were fitted to these samples, which makes them look less correlated than they are
    alike = float((rest[1:] * rest[:-1]).sum()) / square + (1 + changes) / len(rest)
    alike = min(max(alike - 1 / np.sqrt(len(rest)), 0.0), 0.9)
    return float(np.sqrt((1 + alike) / (1 - alike)))
