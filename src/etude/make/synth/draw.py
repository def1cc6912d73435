"""Sizes and times of the nodes of a learned job, drawn from the distributions of their classes. Deterministic by
seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from etude.kernels.arrays import F64, I64, distinct_values
from etude.make.synth.learned import COLUMNS, QUANTILES, Learned, LearnedRole, Sketch, Spread
from etude.make.synth.spread import factors, late
from etude.model.schema import UNKNOWN

PLACES: Final = np.array([0.0, *QUANTILES, 1.0])
NARROW: Final = 1.02
"""If the mean exceeds that of the quantiles by this factor, the largest values make up for it."""
CLASSES, RANKS, FACTORS, LATE = range(4)
"""Purposes of random streams."""


def random(seed: int, what: int, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64((seed, what, number)))


class Draws:
    """The quantile of each node of a program in the distribution of its class."""

    def __init__(self, learned: Learned, of: I64, step: I64, seed: int) -> None:
        self.learned, self.of = learned, of
        self.own = 1.0 - np.sqrt(1.0 - np.array([c.own for c in learned.classes]))[of]
        """Probability of a separate draw: gives that part of the variance."""
        self.place = np.empty(len(of))
        turn = _turns(of, step)
        for number in distinct_values(of).tolist():
            rows = np.flatnonzero(of == number)
            self.place[rows] = _even(random(seed, CLASSES, number), int(turn[rows].max()) + 1)[turn[rows]]

    def values(self) -> dict[str, I64]:
        """Columns of each node, the same on every rank and in every step."""
        return {column: self._at(column, self.place) for column in COLUMNS}

    def times(self, random: np.random.Generator, spread: float) -> I64:
        """Times of each node on one rank."""
        key = random.random(len(self.of))
        order = np.lexsort((key, self.of))
        turn = np.empty(len(self.of), np.int64)
        turn[order] = _turns(self.of[order], np.zeros(len(order), np.int64))
        own = (turn + random.random(len(self.of))) / np.bincount(self.of)[self.of]
        mine = random.random(len(self.of)) < self.own * min(spread, 1.0)
        return self._at("duration_ns", np.where(mine, own, self.place))

    def _at(self, column: str, place: F64) -> I64:
        sketches = [c.sketches.get(column) for c in self.learned.classes]
        table = np.stack([knots(s) if s else np.zeros(len(PLACES)) for s in sketches])
        known = np.array([s is not None for s in sketches])[self.of]
        left = np.clip(np.searchsorted(PLACES, place, side="right") - 1, 0, len(PLACES) - 2)
        part = (place - PLACES[left]) / (PLACES[left + 1] - PLACES[left])
        values = table[self.of, left] * (1 - part) + table[self.of, left + 1] * part
        return np.where(known, np.rint(values).astype(np.int64), UNKNOWN)


def knots(sketch: Sketch) -> F64:
    """Values at PLACES, linear in between. The largest is chosen so that the mean is the learned one."""
    if not sketch.quantiles:
        return np.full(len(PLACES), sketch.mean)
    found = np.array([sketch.quantiles[0], *sketch.quantiles, sketch.quantiles[-1]], np.float64)
    found = np.maximum.accumulate(found)
    width = np.diff(PLACES)
    rest = float((width * (found[:-1] + found[1:]) / 2)[:-1].sum())
    mean = rest + width[-1] * found[-1]
    if sketch.mean > NARROW * mean:  # less could be rounding of mean and quantiles
        found[-1] = max(found[-1], 2 * (sketch.mean - rest) / width[-1] - found[-2])
    mean = float((width * (found[:-1] + found[1:]) / 2).sum())
    return found * (sketch.mean / mean) if mean > 0 else found


def _turns(of: I64, step: I64) -> I64:
    """Number of earlier nodes of its class in its step, for each node."""
    order = np.lexsort((np.arange(len(of)), of, step))
    key = np.stack([step[order], of[order]])
    first = np.concatenate([[True], (np.diff(key, axis=1) != 0).any(axis=0)]) if len(of) else np.zeros(0, bool)
    start = np.flatnonzero(first)
    turn = np.empty(len(of), np.int64)
    turn[order] = np.arange(len(of)) - np.repeat(start, np.diff(np.append(start, len(of))))
    return turn


def _even(random: np.random.Generator, count: int) -> F64:
    """Evenly spread places, in random order: their mean is that of the distribution."""
    found: F64 = (random.permutation(count) + random.random(count)) / count
    return found


class DrawnTimes:
    """Differences between the ranks and steps of a job."""

    def __init__(
        self, learned: Learned, roles: Sequence[LearnedRole], role_of: I64, steps: int, *, seed: int, spread: float
    ) -> None:
        self.seed, self.spread = seed, spread
        self.host = _table(learned.host, len(role_of), steps, random(seed, FACTORS, 0), spread)
        self.device = _table(learned.device, len(role_of), steps, random(seed, FACTORS, 1), spread)
        self.late_ns = np.zeros(len(role_of))
        for number, role in enumerate(roles):
            ranks = np.flatnonzero(role_of == number)
            self.late_ns[ranks] = late(role.late_ns, len(ranks), random(seed, LATE, number), spread)
        self.late_ns -= self.late_ns.min()
        chance = any(c.own for c in learned.classes)
        alike = np.all(self.host == 1) and np.all(self.device == 1) and not self.late_ns.any()
        self.differ = spread > 0 and bool(chance or not alike)

    def random(self, rank: int) -> np.random.Generator:
        return random(self.seed, RANKS, rank)


def _table(learned: Spread, ranks: int, steps: int, random: np.random.Generator, spread: float) -> F64:
    rank, step = factors(learned.rank, ranks, random, spread), factors(learned.step, steps, random, spread)
    both = factors(learned.both, ranks * steps, random, spread).reshape(ranks, steps)
    return rank[:, None] * step[None, :] * both
