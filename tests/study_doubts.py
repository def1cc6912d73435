"""Checks that would hold whatever was simulated: those that hold with results exchanged between points, or with the
results of the neutral run in their place."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from etude.decide.study.checks import checked
from etude.decide.study.spec import StudySpec

Row = Mapping[str, Any]


def doubtful(spec: StudySpec, rows: Sequence[Row], neutral: Sequence[Row], draws: int = 5) -> dict[str, list[str]]:
    """Shape checks by name, with the exchanges under which they hold all the same."""
    found: dict[str, list[str]] = {}
    for how, exchanged in exchanges(spec, rows, neutral, draws):
        for check in checked(spec, exchanged):
            if check["kind"] == "shape" and check["ok"] is True:
                found.setdefault(check["name"], []).append(how)
    return found


def exchanges(
    spec: StudySpec, rows: Sequence[Row], neutral: Sequence[Row], draws: int
) -> Iterator[tuple[str, list[Row]]]:
    """Every metric of a point together: the neutral ones, and permutations that leave no point its own."""
    names = [metric.name for metric in spec.metrics]

    def taking(sources: Sequence[Row]) -> list[Row]:
        return [{**row, **{n: other[n] for n in names}} for row, other in zip(rows, sources, strict=True)]

    yield "neutral", taking(neutral)
    yield "reversed", taking(rows[::-1])
    draw = np.random.default_rng(0)
    for k in range(draws if len(rows) > 2 else 0):
        order = draw.permutation(len(rows))
        while (order == np.arange(len(rows))).any():
            order = draw.permutation(len(rows))
        yield f"permuted {k}", taking([rows[i] for i in order])
