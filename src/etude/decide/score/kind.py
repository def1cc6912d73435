"""Kind: files of measurements that Etude can predict, how to know one and what predicts its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from etude.base.errors import EtudeError, FormatError, UsageError
from etude.base.files import csv_rows
from etude.cost.estimates import Estimate
from etude.decide.score.devices import device_of
from etude.decide.score.source import ScoreFile
from etude.machine import open_system

Figures: TypeAlias = Mapping[str, float]
CsvRow: TypeAlias = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Options of a score. A kind reads some of them; None or empty: not given."""

    model: str = ""
    system: str = ""
    stack: str = ""
    ops: Path | None = None
    tp: int = 0
    ep: int = 0
    replicas: int = 0
    router: str = ""
    precision: str = ""
    kv_dtype: str = ""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Rules of a serving engine, by the names of `Engine`'s fields or their keys."""

    def given(self) -> list[str]:
        """Names of the options that were given."""
        return [name for name in self.__slots__ if getattr(self, name)]


@dataclass(frozen=True, slots=True)
class Item:
    """A row of a file: its number from 1, or the name of a run."""

    label: int | str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRow:
    """Figures of a row, in seconds, bytes, watts and joules; `assumed` is what the row did not state. `estimates` has
    the ranges of those figures that have some."""

    measured: Figures
    predicted: Figures
    assumed: Iterable[str] = ()
    estimates: Mapping[str, Estimate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreKind:
    """`rows` reads a file; `predict` takes one of its rows, and raises an EtudeError where it refuses it."""

    name: str
    doc: str
    """Which files these are."""
    holds: Callable[[ScoreFile], bool]
    rows: Callable[[Path, ScoreRequest], list[Item]]
    predict: Callable[[Item, ScoreRequest], PredictedRow]
    reads: frozenset[str] = frozenset()
    """Options that it reads, by the names of `ScoreRequest`."""
    check: Callable[[ScoreRequest], object] = lambda asked: None
    """Raises an EtudeError for options that no row could be predicted with."""


def check_system(asked: ScoreRequest) -> None:
    if asked.system:
        open_system(asked.system)


def check_device(asked: ScoreRequest) -> None:
    if asked.system:
        device_of(asked.system)


def check_profile(asked: ScoreRequest) -> None:
    if asked.ops is not None and not asked.ops.exists():
        raise UsageError("there is no such database or profile", where=str(asked.ops))


def table_rows(path: Path, asked: ScoreRequest) -> list[Item]:
    """Rows of a CSV file, stripped, numbered from 1."""
    try:
        _, rows = csv_rows(path)
    except EtudeError as problem:
        raise FormatError(problem.problem, where=problem.where, hint=problem.hint) from None
    stripped = [{name: (cell or "").strip() for name, cell in row.items()} for row in rows]
    return [Item(number, row) for number, row in enumerate(stripped, 1)]
