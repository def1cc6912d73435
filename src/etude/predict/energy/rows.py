"""Rows of measured power, each predicted: cases of an energy counter, or models that an engine serves."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from etude.errors import EtudeError, FormatError
from etude.predict.energy.cases import case_w
from etude.predict.energy.decode import served_row

Row = Mapping[str, str]


def energy_rows(path: str | PathLike[str], *, system: str = "") -> list[dict[str, Any]]:
    """A record for each row: its number from 1, its name, and `measured` beside `predicted`; or why it is `refused`."""
    where = fspath(path)
    try:
        with open(where, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as problem:
        raise FormatError(str(getattr(problem, "strerror", problem)).lower(), where=where) from None
    served = bool(rows) and "avg_batch_size" in rows[0]
    if rows and not served and not {"name", "kind"} <= set(rows[0]):
        raise FormatError(
            "the columns of neither kind of row are there",
            where=where,
            hint="name, kind (an energy counter); or model, gpu, num_gpus, avg_batch_size, avg_output_len",
        )
    return [_record(number, row, served, system) for number, row in enumerate(rows, 1)]


def _record(number: int, row: Row, served: bool, system: str) -> dict[str, Any]:
    record: dict[str, Any] = {"row": number, "name": row.get("model" if served else "name", "")}
    try:
        return record | (_served(row) if served else _counted(row, system or "dgx-h200"))
    except (EtudeError, KeyError, ValueError) as problem:
        text = problem.problem if isinstance(problem, EtudeError) else f"{type(problem).__name__}: {problem}"
        return record | {"refused": text}


def _served(row: Row) -> dict[str, Any]:
    measured = {"mean_w": row.get("avg_power_watts"), "energy_per_token_j": row.get("energy_per_token_joules")}
    return {"measured": _numbers(measured), "predicted": served_row(row).figures()}


def _counted(row: Row, system: str) -> dict[str, Any]:
    watts, joules = case_w(row, system)
    measured = {"mean_w": row.get("mean_w"), "energy_j_per_call": row.get("energy_j_per_call")}
    return {"measured": _numbers(measured), "predicted": {"mean_w": watts, "energy_j_per_call": joules}}


def _numbers(given: Mapping[str, str | None]) -> dict[str, float]:
    return {name: float(value) for name, value in given.items() if value}
