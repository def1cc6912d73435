"""Where results go: parameters of what prints and of what writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, switch


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """How a record is printed."""

    json: bool = switch("print JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabled:
    """How a table is printed."""

    json: bool = switch("print JSON")
    csv: bool = switch("print CSV")
    md: bool = switch("print a Markdown table")

    def __post_init__(self) -> None:
        if self.json + self.csv + self.md > 1:
            raise UsageError("only one of --json, --csv and --md can be given")


@dataclass(frozen=True, kw_only=True)
class Catalogued:
    """Parameters of what prints a catalogue, or one entry of it."""

    output: Printed = part(Printed)


def entry_name(like: str) -> Any:
    """The argument of what prints one entry."""
    return argument("text", "name in the catalogue, or a file", like=like)


@dataclass(frozen=True, kw_only=True)
class Written:
    """Parameters of a verb that writes: where to, and whether what is there may be replaced."""

    out: str | None = figure("out", "file or folder to write", None, names=("-o",))
    force: bool = switch("replace what is there", needs="out", names=("-f",))


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """Where a result is written."""

    path: Path
    force: bool = False

    @classmethod
    def of(cls, asked: Any) -> OutputPlace | None:
        """The place that `Written` says, or none."""
        return cls.at(asked.out, asked.force)

    @classmethod
    def at(cls, out: str | None, force: bool) -> OutputPlace | None:
        """A place, or none. One that is taken is refused before anything is computed."""
        if out is None:
            return None
        place = cls(Path(out), force)
        is_taken = place.path.is_file() or (place.path.is_dir() and any(place.path.iterdir()))
        if is_taken and not force:
            raise UsageError("exists already", where=out, hint="give another name, or --force to replace it")
        return place
