"""Checks that would hold whatever was simulated: those that hold with results exchanged between points, or with the
results of the neutral run in their place."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from etude.decide.study.checks import checked
from etude.decide.study.spec import StudySpec

Row = Mapping[str, Any]
DRAWS = 40


def held_with_neutral(spec: StudySpec, rows: Sequence[Row], neutral: Sequence[Row]) -> set[str]:
    """Shape checks that hold with the results of the neutral run in the place of each point's own."""
    return _held(spec, _taking(spec, rows, neutral))


def held_when_exchanged(spec: StudySpec, rows: Sequence[Row], draws: int = DRAWS) -> dict[str, float]:
    """Shape checks that hold with results exchanged between points, and the part of the exchanges with which they do:
    the order turned round, and permutations that leave no point its own."""
    found: dict[str, int] = {}
    orders = list(_orders(len(rows), draws))
    for order in orders:
        for name in _held(spec, _taking(spec, rows, [rows[i] for i in order])):
            found[name] = found.get(name, 0) + 1
    return {name: n / len(orders) for name, n in found.items()}


def _held(spec: StudySpec, rows: Sequence[Row]) -> set[str]:
    return {check["name"] for check in checked(spec, rows) if check["kind"] == "shape" and check["ok"] is True}


def _taking(spec: StudySpec, rows: Sequence[Row], sources: Sequence[Row]) -> list[Row]:
    """Every metric of a point together."""
    names = [metric.name for metric in spec.metrics]
    return [{**row, **{n: other[n] for n in names}} for row, other in zip(rows, sources, strict=True)]


def _orders(size: int, draws: int) -> Iterator[list[int]]:
    yield list(range(size))[::-1]
    draw = np.random.default_rng(0)
    for _ in range(draws if size > 2 else 0):
        order = draw.permutation(size)
        while (order == np.arange(size)).any():
            order = draw.permutation(size)
        yield order.tolist()
