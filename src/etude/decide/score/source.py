"""Source: what is at a path, as far as its kind can be known from it."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from etude.base.errors import FormatError, UsageError
from etude.store import compressed

HEAD: Final = 1 << 16


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ScoreFile:
    path: Path
    columns: frozenset[str]
    """Of a CSV file; empty for any other."""
    head: bytes
    """First bytes of a file, decompressed; empty for a folder."""

    @property
    def folder(self) -> bool:
        return self.path.is_dir()

    def has(self, *columns: str) -> bool:
        return set(columns) <= self.columns


def look(path: Path) -> ScoreFile:
    if not path.exists():
        raise UsageError("there is no such file or folder", where=str(path))
    if path.is_dir():
        return ScoreFile(path=path, columns=frozenset(), head=b"")
    head = compressed.head(path, HEAD)
    if not head.strip():
        raise FormatError("is empty", path=path)
    return ScoreFile(path=path, columns=_columns(head), head=head)


def _columns(head: bytes) -> frozenset[str]:
    """Names in the first line, if it is one of a CSV file."""
    first = head.partition(b"\n")[0]
    try:
        line = first.decode("utf-8-sig")
        names = next(csv.reader([line], skipinitialspace=True), [])
    except (UnicodeDecodeError, csv.Error):
        return frozenset()
    return frozenset(name.strip() for name in names if name.strip()) if len(names) > 1 else frozenset()
