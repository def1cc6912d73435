"""Power of rows of measured serving, from the same pass costs as their times."""

from __future__ import annotations

from os import PathLike
from typing import Any, Final

from etude.base.errors import EtudeError
from etude.world.serve.measured.rows import STACK, read_rows, steady, steady_figures
from etude.world.serve.stacks import serving_stack

FIGURES: Final = {"mean_w": "avg_power_watts", "energy_per_token_j": "energy_per_token_joules"}
"""Metrics, and the columns with their measured values."""


def power_rows(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """A record for each row: its number from 1, its model, and its `measured` and `predicted` values; or why it is
    `refused`. The prediction does not read measured values."""
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
