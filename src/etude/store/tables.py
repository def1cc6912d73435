"""Tables that are not jobs: CSV and Parquet files of metrics, signals, work."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa

from etude.base.errors import FormatError, UsageError
from etude.base.files import note_open
from etude.base.results import TableSchema
from etude.base.results import read_table as read_checked
from etude.base.shapes import AMOUNT, COUNT, TEXT, WHOLE, of_each

SUFFIXES = (".csv", ".parquet")
LINK_STATISTICS: Final = {
    "links": TableSchema(
        {
            "link": TEXT,
            **of_each(COUNT, "from_ns to_ns operations"),
            "utilisation": AMOUNT,
            **of_each(AMOUNT, "under_way waiting"),
        }
    ),
    "visits": TableSchema({"link": TEXT, **of_each(COUNT, "operation size_bytes came_ns begin_ns end_ns")}),
    "operations": TableSchema(
        {
            **of_each(TEXT, "what group"),
            **of_each(COUNT, "operation size_bytes members"),
            **of_each(WHOLE, "came_ns begin_ns end_ns"),
        }
    ),
}
"""Tables of `etude simulate --link-stats`."""
_LINKS_OF_PACKETS: Final = TableSchema(
    {
        "link": TEXT,
        **of_each(COUNT, "from_ns to_ns most_queue_bytes marks cut dropped pauses"),
        **of_each(AMOUNT, "utilisation queue_bytes paused"),
    }
)


def read_link_statistics(folder: Path) -> dict[str, pa.Table]:
    """The tables that `etude simulate --link-stats` wrote."""
    hint = "`etude simulate JOB --system NAME --network flow --link-stats FOLDER` writes them"
    known = {"etude link statistics": 1}
    schemas = LINK_STATISTICS
    if _has_column(folder / "links.parquet", "queue_bytes"):
        schemas = schemas | {"links": _LINKS_OF_PACKETS}
    return {
        name: read_checked(folder / f"{name}.parquet", schema, "statistics of links", hint=hint, known=known)
        for name, schema in schemas.items()
    }


def _has_column(path: Path, column: str) -> bool:
    """Whether a Parquet file that can be read has it."""
    from pyarrow import parquet

    try:
        return column in parquet.read_schema(path).names
    except (OSError, pa.ArrowException):
        return False


def is_table(path: Path) -> bool:
    """Whether a file has the name of a table."""
    return path.suffix in SUFFIXES and not path.is_dir()


def read_table(path: Path) -> pa.Table:
    """A CSV file with a header, or a Parquet file."""
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"a table cannot be read from `{path.suffix or path.name}`", where=str(path), hint=".csv, .parquet"
        )
    note_open(path)
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            found = parquet.read_table(path)
        else:
            from pyarrow import csv

            found = csv.read_csv(path)
        names = found.column_names
    except OSError as problem:
        raise UsageError(str(problem.strerror or problem).lower(), where=str(path)) from None
    except (pa.ArrowException, UnicodeDecodeError) as problem:
        raise FormatError(str(problem).splitlines()[0], path=path) from None
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise FormatError(f"two columns have the name `{twice}`", path=path)
    if not len(found):
        raise FormatError("has no rows", path=path)
    return found
