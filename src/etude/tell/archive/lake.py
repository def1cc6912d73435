"""A folder of Parquet files, one for each run and table, that several may write to at a time.

    lake/runs/3f0c….parquet   lake/metrics/3f0c….parquet   lake/steps/…   collectives/…   findings/…   cards/…

A file is called after the fingerprint of its run. It is written under another name in `.writing`, brought to disk and
then renamed, so it is there in full or not at all; two that add the same run write the same files. The row in `runs`
comes last: what was cut off half-way is not listed, and adding the run again completes it. Nothing is ever changed in
place; `compact` puts many files together. The file `0.parquet` of a table has its columns and no rows, so that a
pattern always finds one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from etude.base.errors import FormatError, UsageError
from etude.base.files import note_open
from etude.store.sql import quoted, select
from etude.tell.archive.compact import Compacted, compact
from etude.tell.archive.packs import EMPTY, TRIES, WRITING, Listing, is_single, listing, locked, names, packed
from etude.tell.archive.schema import TABLES
from etude.tell.archive.writing import put

if TYPE_CHECKING:
    from etude.model.run import Run
    from etude.tell.archive.entry import LakeEntry

_PATTERN: Final = re.compile(r"[*?\[\]{}]")
_HINT: Final = f"tables: {', '.join(TABLES)}; `DESCRIBE runs` lists the columns of one"


@dataclass(frozen=True, slots=True)
class Lake:
    """The archive in a folder."""

    folder: Path

    def __contains__(self, run: str) -> bool:
        runs = self.folder / "runs"
        return (runs / f"{run}.parquet").is_file() or (runs.is_dir() and any(run in held for held in packed(runs)))

    def __len__(self) -> int:
        """Runs that are there in full."""
        return len(self._runs())

    def add(self, run: Run | LakeEntry, *, force: bool = False) -> bool:
        """Puts a run in, or what `entry_of` said of one; False where it is there already. `force` writes its rows
        again."""
        entry = _entry(run)
        if not is_single(entry.run):
            raise UsageError(f"`{entry.run}` is not a fingerprint of a run")
        self._prepare()
        with locked(self.folder, alone=False):
            if entry.run in self and not force:
                return False
            for name in reversed(TABLES):  # `runs` is first in the table and last on disk
                rows = entry.tables[name]
                if len(rows) or force:
                    put(self.folder, name, entry.run, [rows])
        return True

    def compact(self, advance: Callable[[int], None] = lambda amount: None) -> Compacted:
        """Puts the files of many runs together. Others may add and ask meanwhile."""
        self._check()
        return compact(self.folder, advance)

    def query(self, sql: str, *, seconds: float | None = None) -> pa.Table:
        """The result of one SELECT over the tables; rows of runs that are not there in full do not show."""
        self._check()
        for _ in range(TRIES):
            files = _Files(self.folder.resolve(), listing(self.folder))
            try:
                return files.ask(sql, seconds)
            except (FormatError, UsageError):
                if not files.gone():
                    raise  # else a compaction took files away meanwhile: their rows are in others now
        raise UsageError("its files keep changing", where=str(self.folder))

    def _runs(self) -> frozenset[str]:
        return listing(self.folder).runs if (self.folder / "runs").is_dir() else frozenset()

    def _check(self) -> None:
        missing = [name for name in TABLES if not (self.folder / name / f"{EMPTY}.parquet").is_file()]
        if missing:
            raise UsageError("is not an archive", where=str(self.folder), hint="`etude archive add RUN` creates one")

    def _prepare(self) -> None:
        """Makes an empty archive of a folder that is new, empty or an archive; anything else is left alone."""
        if all((self.folder / name / f"{EMPTY}.parquet").is_file() for name in TABLES):
            return
        if self.folder.exists():
            strange = sorted({e.name for e in os.scandir(self.folder)} - {*TABLES, WRITING})
            if strange:
                raise UsageError(
                    f"contains `{strange[0]}`, and is not an archive", where=str(self.folder), hint="give a new folder"
                )
        for name, schema in TABLES.items():
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            put(self.folder, name, EMPTY, [schema.empty_table()])


def _entry(run: Run | LakeEntry) -> LakeEntry:
    from etude.model.run import Run  # here, since asking an archive needs no analysis

    if not isinstance(run, Run):
        return run
    from etude.tell.archive.entry import entry_of

    return entry_of(run)


class _Files:
    """The files that a query reads, table by table."""

    def __init__(self, folder: Path, found: Listing) -> None:
        self.folder = folder
        replaced = list(zip(found.packs, found.packed, found.replaced(), strict=True))
        whole = {EMPTY, *found.singles, *(pack for pack, _, gone in replaced if not gone)}
        self.whole = {name: sorted(whole & names(folder / name)) for name in TABLES}
        self.parts = [(pack, gone) for pack, runs, gone in replaced if gone and gone != runs]
        """Packs of which some runs are in a newer file."""

    def gone(self) -> bool:
        used = [self._path(name, file) for name, files in self.whole.items() for file in files]
        used += [self._path(name, pack) for name in TABLES for pack, _ in self.parts]
        return not all(map(os.path.exists, used))

    def ask(self, sql: str, seconds: float | None) -> pa.Table:
        import duckdb

        with duckdb.connect(":memory:") as connection:
            try:
                for name in TABLES:
                    self._view(connection, name)
                connection.execute(f"SET allowed_directories = [{quoted(str(self.folder))}]")
            except duckdb.Error as problem:
                raise FormatError(str(problem).splitlines()[0], path=self.folder) from None
            return select(connection, sql, hint=_HINT, seconds=seconds)

    def _view(self, connection: Any, name: str) -> None:
        parts = [f"SELECT * FROM {self._source(connection, name, self.whole[name])}"]
        for pack, gone in self.parts:
            runs = ", ".join(map(quoted, sorted(gone)))
            parts.append(f"SELECT * FROM {self._source(connection, name, [pack])} WHERE run NOT IN ({runs})")
        connection.execute(f"CREATE VIEW {name} AS {' UNION ALL '.join(parts)}")

    def _source(self, connection: Any, name: str, files: list[str]) -> str:
        paths = [self._path(name, file) for file in files]
        for path in paths:
            note_open(path)
        if _PATTERN.search(str(self.folder)):  # DuckDB would take the folder's name for a pattern
            from pyarrow import dataset

            label = f"files_{name}_{files[0].replace('-', '_')}"
            connection.register(label, dataset.dataset(paths, schema=TABLES[name], format="parquet"))
            return label
        return f"read_parquet([{', '.join(map(quoted, paths))}])"

    def _path(self, name: str, file: str) -> str:
        return str(self.folder / name / f"{file}.parquet")
