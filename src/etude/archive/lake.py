"""A folder of Parquet files, one for each run and table, that several may write to at a time.

    lake/runs/3f0c….parquet   lake/metrics/3f0c….parquet   lake/steps/…   collectives/…   findings/…   cards/…

A file is called after the fingerprint of its run. It is written under another name in `.writing`, brought to disk and
then renamed, so it is there in full or not at all; two that add the same run write the same files. The row in `runs`
comes last: what was cut off half-way is not listed, and adding the run again completes it. Nothing is ever changed in
place. The file `0.parquet` of a table has its columns and no rows, so that a pattern always finds one.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

from etude.archive.entry import Entry
from etude.archive.schema import TABLES
from etude.errors import FormatError, UsageError
from etude.store.sql import quoted, select

WRITING: Final = ".writing"
EMPTY: Final = "0.parquet"
_PATTERN: Final = re.compile(r"[*?\[\]{}]")
_HINT: Final = f"tables: {', '.join(TABLES)}; `DESCRIBE runs` lists the columns of one"


@dataclass(frozen=True, slots=True)
class Lake:
    """The archive in a folder."""

    folder: Path

    def __contains__(self, run: str) -> bool:
        return (self.folder / "runs" / f"{run}.parquet").is_file()

    def __len__(self) -> int:
        """Runs that are there in full."""
        runs = self.folder / "runs"
        return sum(e.name.endswith(".parquet") and e.name != EMPTY for e in os.scandir(runs)) if runs.is_dir() else 0

    def add(self, entry: Entry, *, force: bool = False) -> bool:
        """Puts a run in; False where it is there already. `force` writes its rows again."""
        if not re.fullmatch(r"[0-9a-f]{32}", entry.run):
            raise UsageError(f"`{entry.run}` is not a fingerprint of a run")
        self._prepare()
        if entry.run in self and not force:
            return False
        for name in reversed(TABLES):  # `runs` is first in the table and last on disk
            rows = entry.tables[name]
            if len(rows) or force:
                self._put(rows, self.folder / name / f"{entry.run}.parquet")
        return True

    def query(self, sql: str) -> pa.Table:
        """The result of one SELECT over the tables; rows of runs that are not there in full do not show."""
        import duckdb

        self._check()
        with duckdb.connect(":memory:") as connection:
            try:
                self._views(connection)
            except duckdb.Error as problem:
                raise FormatError(str(problem).splitlines()[0], path=self.folder) from None
            return select(connection, sql, hint=_HINT)

    def _views(self, connection: Any) -> None:
        """A view for each table, over the files of runs that are listed."""
        listed = {entry.name for entry in os.scandir(self.folder / "runs") if entry.name.endswith(".parquet")}
        for name in TABLES:
            place = self.folder.resolve() / name
            files = sorted(listed & {entry.name for entry in os.scandir(place)})
            if _PATTERN.search(str(place)):  # DuckDB would take the folder's name for a pattern
                from pyarrow import dataset

                found = dataset.dataset([str(place / f) for f in files], schema=TABLES[name], format="parquet")
                connection.register(name, found)
            else:
                paths = ", ".join(quoted(str(place / f)) for f in files)
                connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet([{paths}])")
        connection.execute(f"SET allowed_directories = [{quoted(str(self.folder.resolve()))}]")

    def _check(self) -> None:
        missing = [name for name in TABLES if not (self.folder / name / EMPTY).is_file()]
        if missing:
            raise UsageError("is not an archive", where=str(self.folder), hint="`etude archive add RUN` makes one")

    def _prepare(self) -> None:
        """Makes an empty archive of a folder that is new, empty or an archive; anything else is left alone."""
        if all((self.folder / name / EMPTY).is_file() for name in TABLES):
            return
        if self.folder.exists():
            strange = sorted({e.name for e in os.scandir(self.folder)} - {*TABLES, WRITING})
            if strange:
                raise UsageError(
                    f"holds `{strange[0]}`, and is not an archive", where=str(self.folder), hint="give a new folder"
                )
        for name, schema in TABLES.items():
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            self._put(schema.empty_table(), self.folder / name / EMPTY)

    def _put(self, rows: pa.Table, place: Path) -> None:
        waiting = self.folder / WRITING
        waiting.mkdir(parents=True, exist_ok=True)
        temporary = waiting / f"{place.parent.name}-{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with temporary.open("xb") as file:
                parquet.write_table(rows, file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, place)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync(place.parent)


def _sync(folder: Path) -> None:
    """Brings a renamed file's name to disk, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # not on every system
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
