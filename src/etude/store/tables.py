"""Tables that are not jobs: CSV and Parquet files of metrics, signals, work."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from etude.base.errors import FormatError, UsageError

SUFFIXES = (".csv", ".parquet")


def is_table(path: Path) -> bool:
    """Whether a file has the name of a table."""
    return path.suffix in SUFFIXES and not path.is_dir()


def read_table(path: Path) -> pa.Table:
    """A CSV file with a header, or a Parquet file."""
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"a table cannot be read from `{path.suffix or path.name}`", where=str(path), hint=".csv, .parquet"
        )
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
