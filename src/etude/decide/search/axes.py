"""Spaces of finite axes: a candidate is the index of a value on each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from etude.decide.search.solver import METHODS, CandidateSpace, Trials

Point = tuple[int, ...]
"""Index of the value on each axis."""
DRAWS = 32
"""Random points that are tried as a start, until one is feasible."""


class AxesSpace(CandidateSpace[Point]):
    methods = METHODS
    axes: Sequence[Sequence[Any]]

    def candidates(self) -> Sequence[Point]:
        return list(product(*(range(len(values)) for values in self.axes)))

    def neighbours(self, one: Point) -> Sequence[Point]:
        return neighbours(one, self.axes)

    def starts(self, trials: Trials[Point], draw: np.random.Generator, count: int) -> list[Point]:
        """The first values of all axes, and random ones."""
        first = (0,) * len(self.axes)
        trials.ask([first])
        return [first, *(self._random(trials, draw) for _ in range(count - 1))]

    def _random(self, trials: Trials[Point], draw: np.random.Generator) -> Point:
        for _ in range(DRAWS):
            point = tuple(int(draw.integers(len(values))) for values in self.axes)
            trials.ask([point])
            if math.isfinite(trials.score(point)):
                break
        return point


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
