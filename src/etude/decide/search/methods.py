"""Local search over finite axes: steepest descent from several places, and annealing. Both request many points at once,
to keep workers busy, and never one twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

Point = tuple[int, ...]
"""Index of the value on each axis."""
Score = Callable[[Sequence[Point]], Sequence[float]]
"""Points -> score of each, less is better; infinite if infeasible."""
STARTS: Final = 4
CHAINS: Final = 8
STEPS: Final = 60
"""Default steps of each chain."""


@dataclass(slots=True)
class AskedPoints:
    """Points requested so far."""

    score: Score
    known: dict[Point, float] = field(default_factory=dict)

    def __call__(self, points: Sequence[Point]) -> list[float]:
        new = [p for p in dict.fromkeys(points) if p not in self.known]
        if new:
            self.known |= dict(zip(new, self.score(new), strict=True))
        return [self.known[p] for p in points]

    def best(self) -> Point:
        """Ties: the first in the order of the axes."""
        return min(self.known, key=lambda p: (self.known[p], p))


def neighbours(point: Point, axes: Sequence[Sequence[Any]]) -> list[Point]:
    """Points with another value on one axis, or with the values of two axes exchanged if both have both."""
    found = [
        (*point[:i], v, *point[i + 1 :]) for i, values in enumerate(axes) for v in range(len(values)) if v != point[i]
    ]
    for i in range(len(axes)):
        for j in range(i + 1, len(axes)):
            mine, other = axes[i][point[i]], axes[j][point[j]]
            if mine != other and mine in axes[j] and other in axes[i]:
                swapped = list(point)
                swapped[i], swapped[j] = list(axes[i]).index(other), list(axes[j]).index(mine)
                found.append(tuple(swapped))
    return list(dict.fromkeys(found))


def greedy_swap(axes: Sequence[Sequence[Any]], score: Score, *, seed: int = 0, starts: int = STARTS) -> Point:
    """The best of several descents: each goes to its best neighbour as long as that is better. The first starts at the
    first value of every axis, the others at random points from `seed`."""
    asked, draw = AskedPoints(score), np.random.default_rng(seed)
    at = [_start(axes, asked, draw, first=k == 0) for k in range(starts)]
    going = list(dict.fromkeys(at))
    while going:
        around = [neighbours(point, axes) for point in going]
        asked([p for some in around for p in some])
        onward = []
        for point, some in zip(going, around, strict=True):
            best = min(some, key=lambda p: (asked.known[p], p), default=point)
            if asked.known[best] < asked.known[point]:
                onward.append(best)
        going = list(dict.fromkeys(onward))
    return asked.best()


def anneal(
    axes: Sequence[Sequence[Any]], score: Score, *, seed: int = 0, steps: int = STEPS, chains: int = CHAINS
) -> Point:
    """The best of several chains. A chain accepts a neighbour that is better, and one that is worse by a fraction p of
    its score with probability exp(-p / t), where t falls from 0.2 to 0.002."""
    asked, draw = AskedPoints(score), np.random.default_rng(seed)
    at = [_start(axes, asked, draw, first=k == 0) for k in range(chains)]
    for step in range(steps):
        heat = 0.2 * 0.01 ** (step / max(steps - 1, 1))
        around = [neighbours(point, axes) for point in at]
        chosen = [some[int(draw.integers(len(some)))] if some else p for p, some in zip(at, around, strict=True)]
        chances = draw.random(chains)
        for k, value in enumerate(asked(chosen)):
            before = asked.known[at[k]]
            if value <= before or (math.isfinite(value) and chances[k] < _chance(before, value, heat)):
                at[k] = chosen[k]
    return asked.best()


def _chance(before: float, value: float, heat: float) -> float:
    return math.exp(-(value - before) / max(abs(before), 1e-300) / heat)


def _start(axes: Sequence[Sequence[Any]], asked: AskedPoints, draw: np.random.Generator, *, first: bool) -> Point:
    """The first values, or random ones until they are feasible."""
    if first:
        point: Point = (0,) * len(axes)
        asked([point])
        return point
    for _ in range(32):
        point = tuple(int(draw.integers(len(values))) for values in axes)
        if math.isfinite(asked([point])[0]):
            break
    return point


METHODS: Final[dict[str, Callable[..., Point]]] = {"greedy": greedy_swap, "anneal": anneal}
