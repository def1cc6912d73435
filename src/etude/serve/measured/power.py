"""Power of rows of measured serving, by the same costs of passes as their times."""

from __future__ import annotations

from os import PathLike
from typing import Any, Final

from etude.errors import EtudeError
from etude.serve.measured.rows import STACK, read_rows, steady, steady_figures
from etude.serve.stacks import serving_stack

FIGURES: Final = {"mean_w": "avg_power_watts", "energy_per_token_j": "energy_per_token_joules"}
"""Figures, and the columns that have them measured."""


def power_rows(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """A record for each row: its number from 1, its model, and what is `measured` of it beside what is `predicted`;
    or why it is `refused`. Nothing measured is read for the prediction."""
    found = []
    for place, row in enumerate(read_rows(path), 1):
        record: dict[str, Any] = {"row": place, "name": row["model"]}
        try:
            predicted = steady_figures(steady(row), serving_stack(STACK, row["gpu"].lower()))
            measured = {name: float(row[column]) for name, column in FIGURES.items() if row.get(column)}
            record |= {"measured": measured, "predicted": {name: predicted[c] for name, c in FIGURES.items()}}
            record["predicted"]["pass_ms"] = predicted["median_itl_ms"]
        except (EtudeError, ValueError) as problem:
            record["refused"] = problem.problem if isinstance(problem, EtudeError) else str(problem)
        found.append(record)
    return found
