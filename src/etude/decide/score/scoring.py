"""score(path): each row of a file of measurements, predicted by what `etude predict`, `serve`, `energy`, ... use."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final

from etude.base.errors import EtudeError, FormatError, UsageError
from etude.cost.estimates import columns
from etude.decide.score.kind import Figures, Item, ScoreKind, ScoreRequest
from etude.decide.score.kinds import KINDS
from etude.decide.score.source import look
from etude.decide.score.summary import summary

ENGINE: Final = "engine"
READINGS: Final = (ValueError, KeyError, OverflowError, ZeroDivisionError)
"""What a value that cannot be read raises."""
Advance = Callable[[int], None]
Spelled = Callable[[str], str]
"""Name of an option -> as the one who asked writes it."""


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The rows of one file. A row has `row`, `measured`, `predicted`, `low`, `high`, `low_50`, `high_50`, `basis` and
    `assumed`, or `row` and `refused`."""

    file: Path
    kind: str
    rows: list[dict[str, Any]]
    without_profile: list[dict[str, Any]] = field(default_factory=list)
    """The same rows by the catalogue, where a profile was given."""

    def summary(self) -> dict[str, Any]:
        return summary(self.rows)

    def farther(self) -> dict[str, tuple[float, float]]:
        """Figures that are farther off in the median with the profile than without: both errors, of rows that have
        both predictions."""
        pairs = [
            pair
            for pair in zip(self.rows, self.without_profile, strict=False)
            if "refused" not in pair[0] and "refused" not in pair[1]
        ]
        with_it, without = (summary(list(part)) for part in zip(*pairs, strict=True)) if pairs else ({}, {})
        found = {
            name: (with_it[name]["median"], without[name]["median"])
            for name in with_it
            if name in without and name != "refused"
        }
        return {name: both for name, both in found.items() if both[0] > both[1]}

    def record(self) -> dict[str, Any]:
        found = {"kind": self.kind, "rows": self.rows, "summary": self.summary()}
        if self.without_profile:
            found["without_profile"] = summary(self.without_profile)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRows:
    """The rows of a file that was read, and which of them are predicted."""

    file: Path
    kind: ScoreKind
    items: list[Item]
    """All rows of the file."""
    first: int
    rows: str
    asked: ScoreRequest

    def chosen(self) -> list[Item]:
        """The first rows, those that `rows` names, or all."""
        return selected(self.items, self.first, self.rows, self.file)

    def scored(self, advance: Advance = lambda amount: None) -> Scored:
        records, without = [], []
        plain = None if self.asked.ops is None else replace(self.asked, ops=None)
        for item in self.chosen():
            records.append(predicted_row(self.kind, item, self.asked))
            if plain is not None:
                without.append(predicted_row(self.kind, item, plain))
            advance(1)
        return Scored(file=self.file, kind=self.kind.name, rows=records, without_profile=without)


def score(path: str | PathLike[str], *, advance: Advance = lambda amount: None, **options: Any) -> Scored:
    """Each row of a file, predicted. Options are those of `prepared`."""
    return prepared(path, **options).scored(advance)


def prepared(
    path: str | PathLike[str], *, kind: str = "", first: int = 0, rows: str = "", spelled: Spelled = flag,
    **options: Any,
) -> PreparedRows:  # fmt: skip
    """`kind` instead of the one that the content shows; the `first` rows, or those that `rows` names (`3,7-9`; both
    count from 1). `options` are those of `ScoreRequest`; `spelled` writes their names in messages."""
    place, asked = Path(path), ScoreRequest(**options)
    found = kind_of(place, kind, spelled)
    refuse_unread(found, asked, spelled)
    found.check(asked)
    try:
        items = found.rows(place, asked)
    except READINGS as problem:
        raise FormatError(f"cannot be read as {found.name}: {problem!r}", path=place) from None
    if not items:
        raise FormatError("has no rows", path=place)
    made = PreparedRows(file=place, kind=found, items=items, first=first, rows=rows, asked=asked)
    made.chosen()  # rows that are not there are refused before any is predicted
    return made


def document(scored: Sequence[Scored]) -> dict[str, Any]:
    """The record of one file; of several, `files` with the record and the `file` of each."""
    if len(scored) == 1:
        return scored[0].record()
    return {"files": [{"file": str(one.file), **one.record()} for one in scored]}


def scored_files(
    paths: Sequence[str | PathLike[str]], *, kind: str = "", spelled: Spelled = flag
) -> tuple[list[Path], list[str]]:
    """The files of paths, and notes: a folder that is not itself of a kind means those of its files that are."""
    found: list[Path] = []
    notes: list[str] = []
    for path in map(Path, paths):
        if not path.is_dir() or _recognised(path, kind, spelled) is not None:
            found.append(path)
            continue
        inside = [file for file in sorted(path.iterdir()) if file.is_file() and file.stat().st_size]
        known = [file for file in inside if _recognised(file, kind, spelled) is not None]
        if not known:
            raise unknown(path, kind, spelled)
        notes += [
            f"{file} is not of kind {kind}" if kind else f"{file} is of no known kind"
            for file in inside
            if file not in known
        ]
        found += known
    return found, notes


def kind_of(path: Path, name: str = "", spelled: Spelled = flag) -> ScoreKind:
    """The kind of this name, which the file has to fit, else the one that the content of the file shows."""
    found = _recognised(path, name, spelled)
    if found is None:
        raise unknown(path, name, spelled)
    return found


def _recognised(path: Path, name: str = "", spelled: Spelled = flag) -> ScoreKind | None:
    if name and name not in KINDS:
        raise UsageError(f"unknown kind `{name}`", where=spelled("kind"), hint=f"known: {', '.join(KINDS)}")
    source = look(path)
    return next((kind for kind in KINDS.values() if name in ("", kind.name) and kind.holds(source)), None)


def unknown(path: Path, name: str = "", spelled: Spelled = flag) -> EtudeError:
    if name:
        problem = f"cannot be read as {spelled('kind')} {name}"
        return UsageError(problem, where=str(path), hint=f"{name}: {KINDS[name].doc}")
    known = "; ".join(f"{kind.name} ({kind.doc})" for kind in KINDS.values())
    return FormatError("is not of a kind that can be scored", path=path, hint=f"known: {known}")


def refuse_unread(kind: ScoreKind, asked: ScoreRequest, spelled: Spelled = flag) -> None:
    """Raises UsageError for an option that the kind does not read."""
    for name in asked.given():
        if name in kind.reads:
            continue
        option = next(iter(asked.engine)) if name == ENGINE else name
        readers = [other.name for other in KINDS.values() if name in other.reads]
        hint = f"read by: {', '.join(readers)}" if readers else "leave it out"
        raise UsageError(f"{spelled(option)} is not read by {kind.name}", hint=hint)


def selected(items: list[Item], first: int, rows: str, path: Path) -> list[Item]:
    """The first of the items, or those at the places that a text names."""
    if rows:
        places = [place for place in numbers(rows) if place <= len(items)]
        if not places:
            raise UsageError(f"--rows {rows}: there are {len(items):,} rows", where=str(path))
        items = [items[place - 1] for place in places]
    return items[:first] if first else items


def numbers(text: str) -> list[int]:
    """`3,7-9` as numbers in order."""
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or not 0 < int(low) <= int(high or low) < 1 << 31:
            raise UsageError(f"--rows: `{text}` does not name rows", hint="3,7-9; rows count from 1")
        found |= set(range(int(low), int(high or low) + 1))
    return sorted(found)


def predicted_row(kind: ScoreKind, item: Item, asked: ScoreRequest) -> dict[str, Any]:
    """The record of a row."""
    try:
        found = kind.predict(item, asked)
    except EtudeError as problem:
        return {"row": item.label, "refused": problem.problem}
    except READINGS as problem:
        return {"row": item.label, "refused": f"a value cannot be read: {problem}"}
    return {
        "row": item.label,
        "measured": _plain(found.measured),
        "predicted": _plain(found.predicted),
        **columns(found.estimates),
        "assumed": list(found.assumed),
    }


def _plain(figures: Figures) -> dict[str, float]:
    """Plain finite numbers; a figure that has none is left out."""
    return {name: float(value) for name, value in figures.items() if math.isfinite(value)}
