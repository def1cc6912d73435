"""Where a series changes its level for good, or for a while: a series against its own past.

A change is looked for in many intervals of the series, long and short, by how far the means on both sides of a place
lie apart (seeded binary segmentation); the narrowest interval that shows one places it. Single samples that lie far off
cannot make a change: samples are cut to what their neighbours allow first. A ramp is a drift and not a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

__all__ = ["HOLD", "LEAST", "Change", "change_points", "levels", "noise"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

HOLD: Final = 3
"""Samples that a level must last to be one."""
LEAST: Final = 0.03
"""A level that differs by less than this part of the one before is the same."""
LEAST_NOISE: Final = 1e-3
"""Noise is not taken for less than this part of the level: below it nothing is told apart."""
CUT: Final = 3.0
"""Standard deviations from the middle of its neighbours to which a sample is cut."""
SURE: Final = 2.5
"""Standard errors that a change needs beyond those that the best of all places has in noise."""
BLOCKS: Final = 10
"""Blocks of samples whose means tell how much means wander."""
SCALED: Final = 1.4826
"""Standard deviation of normal samples over their median distance from the middle."""


@dataclass(frozen=True, slots=True)
class Change:
    """The level of a series before and from sample `at` on."""

    at: int
    before: float
    after: float
    score: float
    """How many standard errors the two levels lie apart."""

    @property
    def ratio(self) -> float:
        """1.3 is a level 30 % above the one before."""
        return self.after / self.before if self.before else float("inf")


def noise(values: F64) -> float:
    """Standard deviation of a series around its level, from how much neighbours differ: changes of level and slow
    drifts do not enter. Of few samples it is taken for more than they show."""
    if len(values) < 2:
        return 0.0
    step = np.abs(np.diff(values))
    found = SCALED * float(np.median(step)) / np.sqrt(2)
    if found == 0:  # most samples are equal: what the others show, without the largest tenth
        kept = np.sort(step)[: max(len(step) - max(len(step) // 10, 1), 1)]
        found = float(kept.mean())
    few = 1 + 5 / len(step)
    return max(found * few, LEAST_NOISE * abs(float(np.median(values))))


def change_points(values: F64, *, least: float = LEAST, among: int = 1, hold: int = HOLD) -> list[Change]:
    """The changes of a series, first to last. A level lasts `hold` samples or more and differs from the one before by
    the factor 1 + `least` or more, up or down; `among` is how many series are searched for the same answer, so that
    one of many is not named by chance."""
    values = np.asarray(values, np.float64)
    sigma = noise(values)
    if len(values) < 2 * hold or sigma == 0:
        return []
    needed = np.sqrt(2 * np.log(len(values) * max(among, 1))) + SURE
    clean = _cut(values, sigma, hold)
    sigma = _wandering(clean, sigma)
    places = _narrowest(clean, sigma, needed, hold)
    places = _settled(clean, places, hold)
    while True:  # the weakest goes first, and the others are judged again without it
        found = _judged(values, clean, places, sigma)
        weak = [c for c in found if c.score < needed or abs(c.after - c.before) < least * abs(c.before)]
        if not weak:
            return found
        gone = min(weak, key=lambda c: c.score).at
        places = [p for p in places if p != gone]


def levels(values: F64, places: Sequence[int]) -> list[F64]:
    """The samples of each level, one after the other."""
    return np.split(values, list(places))


def _cut(values: F64, sigma: float, hold: int) -> F64:
    """Samples not further from the middle of their neighbours than noise goes."""
    width = 2 * hold - 1
    padded = np.pad(values, width // 2, mode="reflect") if len(values) > width // 2 else values
    middle = np.median(sliding_window_view(padded, width), axis=1)
    cut: F64 = np.clip(values, middle - CUT * sigma, middle + CUT * sigma)
    return cut


def _wandering(clean: F64, sigma: float) -> float:
    """The noise that means of many samples have, as that of one: more where single samples lie far off on one side,
    or where neighbours are alike."""
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
    """Places of changes: of all intervals that show one, the narrowest, then the narrowest without it, and so on."""
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
    """Of intervals of one length: how far the means of both sides of the best place lie apart, in units of the
    standard error of samples with deviation 1, and that place. `total` are sums from the first sample on."""
    k = np.arange(hold, length - hold + 1)
    left = total[start[:, None] + k] - total[start][:, None]
    whole = (total[start + length] - total[start])[:, None]
    apart = np.abs(left / k - (whole - left) / (length - k)) * np.sqrt(k * (length - k) / length)
    best = apart.argmax(axis=1)
    return apart[np.arange(len(start)), best], start + k[best]


def _is_ramp(values: F64, split: int, sigma: float) -> bool:
    """Whether a line says as much of these samples as two levels do."""
    t = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float((t * values).sum() / (t * t).sum())
    line = values - slope * t
    stepped = np.concatenate([part - part.mean() for part in (values[:split], values[split:])])
    return bool(((line - line.mean()) ** 2).sum() <= (stepped**2).sum() + sigma**2)


def _settled(values: F64, places: list[int], hold: int) -> list[int]:
    """Each place moved to where the means of the levels before and behind it lie furthest apart."""
    total = np.concatenate([[0.0], np.cumsum(values - values.mean())])
    found = list(places)
    for i in range(len(found)):
        first = found[i - 1] if i else 0
        last = found[i + 1] if i + 1 < len(found) else len(values)
        if last - first >= 2 * hold:
            found[i] = int(_best_split(total, np.array([first]), last - first, hold)[1][0])
    return found


def _judged(values: F64, clean: F64, places: list[int], sigma: float) -> list[Change]:
    """Changes with the levels on both sides and how sure they are. Where neighbouring samples are alike, so many
    samples say less than they seem to."""
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
    """By what standard errors of means grow where samples are like those before them."""
    square = float((rest * rest).sum())
    if len(rest) < 8 or square == 0:
        return 1.0
    # levels were fitted to these samples, which makes them look less alike than they are
    alike = float((rest[1:] * rest[:-1]).sum()) / square + (1 + changes) / len(rest)
    alike = min(max(alike - 1 / np.sqrt(len(rest)), 0.0), 0.9)
    return float(np.sqrt((1 + alike) / (1 - alike)))
