"""Predicts rows of an energy counter."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import asdict
from os import PathLike, fspath
from typing import Any

from etude.base.errors import EtudeError, FormatError
from etude.machine import System, open_system
from etude.steps.energy.cases import case_power

Row = Mapping[str, str]


def energy_rows(path: str | PathLike[str], *, system: str = "") -> list[dict[str, Any]]:
    """A record for each row: its number from 1, its name, `measured` and `predicted`; or why it is `refused`."""
    where = fspath(path)
    try:
        with open(where, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as problem:
        raise FormatError(str(getattr(problem, "strerror", problem)).lower(), where=where) from None
    if rows and not {"name", "kind"} <= set(rows[0]):
        hint = "name, kind (an energy counter); or model, gpu, num_gpus, avg_batch_size, avg_output_len"
        raise FormatError("the columns of either kind of row are missing", where=where, hint=hint)
    on = open_system(system or "dgx-h200")
    return [energy_row(number, row, on) for number, row in enumerate(rows, 1)]


def energy_row(number: int, row: Row, on: System) -> dict[str, Any]:
    """The record of one row."""
    record: dict[str, Any] = {"row": number, "name": row.get("name", "")}
    try:
        predicted = asdict(case_power(row, on))
    except (EtudeError, KeyError, ValueError) as problem:
        text = problem.problem if isinstance(problem, EtudeError) else f"{type(problem).__name__}: {problem}"
        return record | {"refused": text}
    return record | {
        "measured": {name: float(row[name]) for name in predicted if row.get(name)},
        "predicted": predicted,
    }
