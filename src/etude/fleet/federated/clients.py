"""Clients: what each computes with, how it is joined to the server, how often it is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.errors import UsageError
from etude.files import csv_rows
from etude.units import parse_bandwidth

F64 = NDArray[np.float64]
COLUMNS: Final = ("name", "system", "step_s", "down", "up", "available", "drops", "samples", "share")


@dataclass(frozen=True, slots=True, eq=False)
class Clients:
    name: tuple[str, ...]
    step_s: F64
    """Of one local step."""
    down_bytes_per_s: F64
    up_bytes_per_s: F64
    available: F64
    """Chance that a client can be asked in a round."""
    drops: F64
    """Chance that it is asked and never answers."""
    samples: F64
    """What it is drawn by with `weighted`."""
    share: F64
    """Part of the weights that it trains and sends."""

    def __len__(self) -> int:
        return len(self.name)


def read_clients(path: str | PathLike[str], step_of: Callable[[str, float], float] | None = None) -> Clients:
    """A CSV with `down` and `up` (`100Mb/s`), and `step_s` or `system`; `step_of(system, share)` predicts its step."""
    columns, rows = csv_rows(path)
    if unknown := [name for name in columns if name not in COLUMNS]:
        raise UsageError(f"unknown column `{unknown[0]}`", where=str(path), hint=f"known: {', '.join(COLUMNS)}")
    for wanted in ("down", "up"):
        if wanted not in columns:
            raise UsageError(f"has no column `{wanted}`", where=str(path), hint="100Mb/s, of bits, or 12MB/s")
    if "step_s" not in columns and ("system" not in columns or step_of is None):
        raise UsageError("has neither `step_s` nor `system`", where=str(path), hint="what a local step takes")
    if not rows:
        raise UsageError("has no clients", where=str(path))
    share = _figures(rows, "share", path, 1.0)
    known: dict[tuple[str, float], float] = {}
    steps = []
    for number, row in enumerate(rows):
        if row.get("step_s"):
            steps.append(_figure(row, "step_s", f"{path}: row {number}"))
            continue
        key = row.get("system", ""), float(share[number])
        if not key[0] or step_of is None:
            raise UsageError("has neither a `step_s` nor a `system`", where=f"{path}: row {number}")
        if key not in known:
            known[key] = step_of(*key)
        steps.append(known[key])
    available, drops = _figures(rows, "available", path, 1.0), _figures(rows, "drops", path, 0.0)
    for name, values in (("available", available), ("drops", drops), ("share", share)):
        if (values > 1).any():
            raise UsageError(f"{name}: more than 1", where=f"{path}: row {int(np.flatnonzero(values > 1)[0])}")
    if (share <= 0).any():
        raise UsageError("share: nothing to train", where=f"{path}: row {int(np.flatnonzero(share <= 0)[0])}")
    down, up = (
        np.array([_link(row, name, f"{path}: row {k}") for k, row in enumerate(rows)]) for name in ("down", "up")
    )
    names = tuple(row.get("name") or f"client {k}" for k, row in enumerate(rows))
    samples = _figures(rows, "samples", path, 1.0)
    return Clients(names, np.array(steps), down, up, available, drops, samples, share)


def _link(row: dict[str, str], name: str, where: str) -> float:
    try:
        value = parse_bandwidth(row[name])
    except UsageError as problem:
        raise UsageError(f"{name}: {problem.problem}", where=where, hint=problem.hint) from None
    if value <= 0:
        raise UsageError(f"{name}: `{row[name]}` carries nothing", where=where)
    return float(value)


def _figures(rows: list[dict[str, str]], name: str, path: str | PathLike[str], usual: float) -> F64:
    return np.array([_figure(row, name, f"{path}: row {k}") if row.get(name) else usual for k, row in enumerate(rows)])


def _figure(row: dict[str, str], name: str, where: str) -> float:
    try:
        value = float(row[name])
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise UsageError(f"{name}: `{row[name]}` is not a figure that can be", where=where)
    return value
