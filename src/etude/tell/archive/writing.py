"""Files of an archive, written under another name, brought to disk and renamed: there in full or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from etude.tell.archive.packs import WRITING
from etude.tell.archive.schema import TABLES


def put(folder: Path, table: str, name: str, pieces: Iterable[pa.Table]) -> None:
    """Rows of a table, piece by piece, as the file of that name."""
    waiting = folder / WRITING
    waiting.mkdir(parents=True, exist_ok=True)
    temporary = waiting / f"{table}-{os.getpid()}-{secrets.token_hex(8)}"
    try:
        with temporary.open("xb") as file:
            with parquet.ParquetWriter(file, TABLES[table], compression="zstd") as writer:
                for rows in pieces:
                    writer.write_table(rows)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, folder / table / f"{name}.parquet")
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(folder / table)


def sync(folder: Path) -> None:
    """Brings the names of files to disk, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # not on every system
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
