"""Clients: their devices, links and availability.

read_clients("clients.csv")                                                            # a row for each
drawn_clients(200, link="7..10Gb/s", step="1..2s", available="0.5..1", seed=0)         # between bounds
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.files import csv_rows
from etude.base.grammar import line
from etude.base.shapes import names_in
from etude.base.units import parse_bandwidth, parse_bytes
from etude.kernels.arrays import F64, I64

COLUMNS: Final = names_in("""
    name system step_s down up available away drops samples share group label memory
""")
ALONE: Final = -1
"""No group, or no label."""
EXAMPLES: Final = {"bandwidth": "7..10Gb/s", "time": "1..2s", "number": "0.5..0.9"}
"""Bounds of each kind of figure."""


@dataclass(frozen=True, slots=True, eq=False)
class Clients:
    name: tuple[str, ...]
    step_s: F64
    """Time of one local step that trains all weights."""
    down_bytes_per_s: F64
    up_bytes_per_s: F64
    available: F64
    """Fraction of the rounds in which a client is available."""
    away: F64
    """Mean length of an absence in rounds; 0: every round is drawn independently."""
    drops: F64
    """Probability that it is asked and never answers."""
    samples: F64
    """Its weight with `weighted` sampling."""
    share: F64
    """Fraction of the weights that it trains and sends."""
    group: I64
    """Which clients go away together; -1: none."""
    label: I64
    """Label of its samples; -1: none."""
    system: tuple[str, ...] = ()
    """System of each, or empty if only `step_s` is known."""
    memory_bytes: F64 | None = None
    """0: as its system says, or no limit."""

    def __len__(self) -> int:
        return len(self.name)

    def with_share(self, share: F64) -> Clients:
        return replace(self, share=share)

    def in_groups(self, count: int, size: int) -> Clients:
        """The first `size` clients are one group, the next ones another."""
        if count * size != len(self):
            raise UsageError(f"{count} groups of {size} are not {len(self)} clients", hint="20x50 of 1,000 clients")
        return replace(self, group=np.arange(len(self), dtype=np.int64) // size)

    def with_labels(self, count: int) -> Clients:
        """Labels by group, or by client where there are no groups."""
        of = np.where(self.group >= 0, self.group, np.arange(len(self)))
        return replace(self, label=of.astype(np.int64) % count)


def alike(name: tuple[str, ...], step_s: F64, down: F64, up: F64, **own: Any) -> Clients:
    """Clients that are always available, train the whole model and have equal weights, except for `own`."""
    ones, none = np.ones(len(name)), np.full(len(name), ALONE, np.int64)
    usual = {"available": ones, "away": 0 * ones, "drops": 0 * ones, "samples": ones, "share": ones}
    return Clients(name, step_s, down, up, **(usual | {"group": none, "label": none} | own))


def drawn_clients(
    count: int, *, link: str, up: str = "", step: str = "1s", available: str = "1", away: float = 0.0, seed: int = 0
) -> Clients:
    """This many clients, each figure uniform between its bounds. `up`: upload rate, if it differs from `link`."""
    rng = np.random.default_rng((seed, 7))
    draws = rng.random((4, count))

    def of(text: str, kind: str, what: str, k: int, scale: float = 1.0) -> F64:
        low, high = (value / scale for value in bounds(text, kind, what))
        return low + (high - low) * draws[k]

    down = of(link, "bandwidth", "--link", 0)
    if (down <= 0).any():
        raise UsageError(f"--link: `{link}` has no bandwidth", hint="--link 7..10Gb/s")
    back = of(up, "bandwidth", "--up", 3) if up else down
    steps = of(step, "time", "--step", 1, 1e9)
    there = of(available, "number", "--available", 2)
    if (there <= 0).any() or (there > 1).any():
        raise UsageError(f"--available: `{available}` is not between 0 and 1", hint="--available 0.5..0.9")
    names = tuple(f"client {k}" for k in range(count))
    return alike(names, steps, down, back, available=there, away=np.full(count, away))


def bounds(text: str, kind: str, what: str) -> tuple[float, float]:
    """`7..10Gb/s`, `7Gb/s..10Gb/s` or one figure of a kind."""
    whole = line(text, what, EXAMPLES[kind])
    first, last = whole.cut("..")
    last = last or first
    if first.text.replace(".", "", 1).isdecimal():
        first = replace(first, text=first.text + last.text.lstrip("0123456789.,_ "))
    low, high = float(first.figure(kind, zero=True)), float(last.figure(kind, zero=True))
    if not low <= high < 1e18:
        raise whole.wrong(f"`{text}` is not an ascending range")
    return low, high


def read_clients(path: str | PathLike[str], step_of: Callable[[str], float] | None = None) -> Clients:
    """A CSV with `down` and `up` (`100Mb/s`), and `step_s` or `system`; `step_of(system)` predicts its step."""
    columns, rows = csv_rows(path)
    if unknown := [name for name in columns if name not in COLUMNS]:
        raise UsageError(f"unknown column `{unknown[0]}`", where=str(path), hint=f"known: {', '.join(COLUMNS)}")
    for wanted in ("down", "up"):
        if wanted not in columns:
            raise UsageError(f"has no column `{wanted}`", where=str(path), hint="100Mb/s (bits) or 12MB/s (bytes)")
    if "step_s" not in columns and ("system" not in columns or step_of is None):
        raise UsageError("has neither `step_s` nor `system`", where=str(path), hint="give the time of a local step")
    if not rows:
        raise UsageError("has no clients", where=str(path))
    share = _figures(rows, "share", path, 1.0)
    known: dict[str, float] = {}
    steps = []
    for number, row in enumerate(rows):
        if row.get("step_s"):
            steps.append(_figure(row, "step_s", f"{path}: row {number}"))
            continue
        system = row.get("system", "")
        if not system or step_of is None:
            raise UsageError("has neither a `step_s` nor a `system`", where=f"{path}: row {number}")
        if system not in known:
            known[system] = step_of(system)
        steps.append(known[system])
    available, drops = _figures(rows, "available", path, 1.0), _figures(rows, "drops", path, 0.0)
    for name, values in (("available", available), ("drops", drops), ("share", share)):
        if (values > 1).any():
            raise UsageError(f"{name}: more than 1", where=f"{path}: row {int(np.flatnonzero(values > 1)[0])}")
    if (share <= 0).any():
        raise UsageError("share: must be above 0", where=f"{path}: row {int(np.flatnonzero(share <= 0)[0])}")
    down, up = (
        np.array([_read(row, name, parse_bandwidth, f"{path}: row {k}") for k, row in enumerate(rows)])
        for name in ("down", "up")
    )
    memory = [
        _read(r, "memory", parse_bytes, f"{path}: row {k}", "8GB") if r.get("memory") else 0.0
        for k, r in enumerate(rows)
    ]
    return Clients(
        name=tuple(row.get("name") or f"client {k}" for k, row in enumerate(rows)), step_s=np.array(steps),
        down_bytes_per_s=down, up_bytes_per_s=up, available=available, drops=drops,
        samples=_figures(rows, "samples", path, 1.0), share=share, away=_figures(rows, "away", path, 0.0),
        group=_numbered(rows, "group"), label=_numbered(rows, "label"),
        system=tuple("" if row.get("step_s") else row.get("system", "") for row in rows),
        memory_bytes=np.array(memory),
    )  # fmt: skip


def _numbered(rows: list[dict[str, str]], name: str) -> I64:
    """Different texts as numbers in order of appearance; nothing is none."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(t, len(known)) if (t := row.get(name)) else ALONE for row in rows], np.int64)


def _read(row: dict[str, str], name: str, parse: Callable[[str], float], where: str, hint: str = "") -> float:
    """A figure with a unit, above 0."""
    try:
        value = float(parse(row[name]))
    except UsageError as problem:
        raise UsageError(f"{name}: {problem.problem}", where=where, hint=hint or problem.hint) from None
    if value <= 0:
        raise UsageError(f"{name}: `{row[name]}` must be above 0", where=where, hint=hint)
    return value


def _figures(rows: list[dict[str, str]], name: str, path: str | PathLike[str], usual: float) -> F64:
    return np.array([_figure(row, name, f"{path}: row {k}") if row.get(name) else usual for k, row in enumerate(rows)])


def _figure(row: dict[str, str], name: str, where: str) -> float:
    try:
        value = float(row[name])
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise UsageError(f"{name}: `{row[name]}` is not a valid value", where=where)
    return value
