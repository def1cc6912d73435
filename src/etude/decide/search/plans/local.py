"""Greedy and anneal over the axes of plans: only requested plans are simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from etude.decide.search.methods import METHODS, Point
from etude.decide.search.plans.bounded import SearchTree, WantedFigures
from etude.decide.search.plans.candidates import Candidates
from etude.decide.search.plans.scores import SCORES
from etude.decide.search.plans.tasks import MEMORY, SCORE

NOT_TRIED: Final = "not tried"


def local(tree: SearchTree, every: Candidates, method: str, seed: int) -> None:
    """Simulates what the method requests; `tree` has the rows."""
    axes = list(tree.space.axes.values())
    sizes = [len(values) for values in axes]
    by_number = {c.number: c for c in every.found}
    met: set[int] = set()
    first = SCORES[tree.space.scores[0]]

    def score(points: Sequence[Point]) -> list[float]:
        numbers = [int(np.ravel_multi_index(point, sizes)) for point in points]
        homes = [every.same.get(number, number) for number in numbers]
        new = [by_number[n] for n in dict.fromkeys(homes) if n in by_number and n not in met]
        met.update(c.number for c in new)
        fits = [c for c, _ in tree.fitting(new, tree.ask(WantedFigures(MEMORY, new))[0])]
        tree.scored(fits, tree.ask(WantedFigures(SCORE, fits))[0])
        rows = [tree.row_of.get(n) for n in homes]
        return [math.inf if row is None else float(first.sign * row[first.column]) for row in rows]

    METHODS[method](axes, score, seed=seed)
    tree.prune(NOT_TRIED, len(every.found) - len(met))
