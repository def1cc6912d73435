"""Many files of an archive as a few: a pack of all runs that have files of their own, and of packs that are small.

    1  the pack is written, table by table, `runs` last: from then on it counts
    2  what it replaces is removed, `runs` first

Killed at any moment, every run is there in full, in the old files or in the new ones; the next compaction removes what
was left over. Those who add wait until it is done. Those who ask do not: a query whose files went lists them again.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from etude.base.errors import FormatError
from etude.tell.archive.packs import EMPTY, LOCK, WRITING, Listing, is_pack, is_single, listing, locked, names, number
from etude.tell.archive.schema import TABLES
from etude.tell.archive.writing import put, sync

LARGE: Final = 10_000
"""Runs from which a pack is left as it is."""
ROWS: Final = 1 << 18
"""Rows that are held in memory at a time."""


@dataclass(frozen=True, slots=True)
class Compacted:
    runs: int
    """Runs that were put together."""
    files_before: int
    files_after: int


def compact(folder: Path, advance: Callable[[int], None] = lambda amount: None) -> Compacted:
    """Puts the runs of an archive into few files; `advance` is called for each table that is done."""
    with locked(folder, alone=True):
        before = _files(folder)
        found = listing(folder)
        replaced = found.replaced()
        stale = [p for p, runs, gone in zip(found.packs, found.packed, replaced, strict=True) if runs == gone]
        small = [p for p, runs in zip(found.packs, found.packed, strict=True) if p not in stale and len(runs) < LARGE]
        runs = found.singles.union(*(r for p, r in zip(found.packs, found.packed, strict=True) if p in small))
        if found.singles or len(small) > 1:
            name = f"pack-{max(map(number, found.packs), default=0) + 1:06}-{secrets.token_hex(4)}"
            for table in reversed(TABLES):
                put(folder, table, name, _together(folder, table, found, small))
                advance(1)
            found, stale = listing(folder), stale + small
        else:
            runs = frozenset()
        _remove(folder, found, stale)
        return Compacted(len(runs), before, _files(folder))


def _files(folder: Path) -> int:
    return sum(len(names(folder / table)) for table in TABLES)


def _together(folder: Path, table: str, found: Listing, small: list[str]) -> Iterator[pa.Table]:
    """The rows of a table, in pieces."""
    waiting: list[pa.Table] = []
    held = 0
    for rows in _sources(folder, table, found, small):
        waiting.append(rows)
        held += len(rows)
        if held >= ROWS:
            yield pa.concat_tables(waiting)
            waiting, held = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _sources(folder: Path, table: str, found: Listing, small: list[str]) -> Iterator[pa.Table]:
    for pack, gone in zip(found.packs, found.replaced(), strict=True):
        if pack in small:
            old = pa.array(sorted(gone), pa.string())
            for rows in _pieces(folder / table / f"{pack}.parquet", table):
                yield rows.filter(pc.invert(pc.is_in(rows["run"], old))) if gone else rows
    for run in sorted(found.singles & names(folder / table)):
        yield from _pieces(folder / table / f"{run}.parquet", table)


def _pieces(path: Path, table: str) -> Iterator[pa.Table]:
    schema = TABLES[table]
    try:
        with parquet.ParquetFile(path) as file:
            if file.schema_arrow.names != schema.names:
                raise FormatError("has different columns than this version of Etude writes", path=path)
            for group in range(file.num_row_groups):
                yield file.read_row_group(group).cast(schema)
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise FormatError(str(problem).splitlines()[0], path=path) from None


def _remove(folder: Path, found: Listing, stale: list[str]) -> None:
    """Removes what a newer file contains completely, and truncated files: there is no other writer now."""
    packed = frozenset().union(*found.packed)
    lists = folder / "runs"
    for name in (*stale, *(found.singles & packed)):
        (lists / f"{name}.parquet").unlink(missing_ok=True)
    sync(lists)  # before the rows go that it lists
    listed = names(lists)
    for table in TABLES:
        for name in names(folder / table) - listed - {EMPTY}:
            # a run that is nowhere else was cut off while it was added: adding it again completes it
            if is_pack(name) or (is_single(name) and name in packed):
                (folder / table / f"{name}.parquet").unlink(missing_ok=True)
    for entry in os.scandir(folder / WRITING):
        if entry.name != LOCK:
            os.unlink(entry.path)
