"""A fleet run as a folder: `fleet.json`, the record of `etude fleet --json`, and a Parquet file for each table.

| table | a row for |
|---|---|
| events | each fault |
| states | each stretch of time that the job spent in one state |
| jobs | each job |
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from etude.base.errors import FormatError
from etude.base.files import writing

RECORD: Final = "fleet.json"
FORMAT: Final = "etude fleet 1"


@dataclass(frozen=True, slots=True, eq=False)
class FleetFolder:
    record: dict[str, Any]
    tables: dict[str, pa.Table]


def write_fleet(
    tables: dict[str, pa.Table], record: dict[str, Any], path: str | PathLike[str], *, force: bool = False
) -> None:
    import msgspec
    import pyarrow.parquet as pq

    with writing(path, force=force) as place:
        place.mkdir()
        for name, table in tables.items():
            pq.write_table(table, place / f"{name}.parquet", compression="zstd")
        whole = {"format": FORMAT, "tables": sorted(tables), **record}
        (place / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(whole)) + b"\n")


def is_fleet(path: str | PathLike[str]) -> bool:
    return (Path(path) / RECORD).is_file()


def read_fleet(path: str | PathLike[str]) -> FleetFolder:
    import msgspec
    import pyarrow.parquet as pq

    place = Path(path)
    try:
        record = msgspec.json.decode((place / RECORD).read_bytes())
        kind = record.pop("format", None) if isinstance(record, dict) else None
        if kind != FORMAT:
            raise FormatError("is not a fleet run that this version knows", path=place / RECORD)
        tables = {str(name): pq.read_table(place / f"{name}.parquet") for name in record.pop("tables")}
    except (OSError, KeyError, TypeError, msgspec.DecodeError, pa.ArrowException) as problem:
        raise FormatError(f"is not a fleet run: {str(problem).splitlines()[0]}", path=path) from None
    return FleetFolder(record, tables)
