"""A served stream as a folder: `served.json`, the record of `etude serve --json`, and a Parquet file for each table.

| table | a row for |
|---|---|
| requests | each request, in order of arrival |
| passes | each pass, in the order in which they start |
| replicas | each replica |
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.errors import FormatError, UsageError
from etude.files import writing
from etude.serve.results import request_table
from etude.serve.serving import Served

RECORD: Final = "served.json"
FORMAT: Final = "etude served 1"
TABLES: Final = ("requests", "passes", "replicas")


@dataclass(frozen=True, slots=True, eq=False)
class ServedFolder:
    record: dict[str, Any]
    tables: dict[str, pa.Table]


def replica_table(served: Served) -> pa.Table:
    columns = {
        "requests": np.bincount(served.column("REPLICA"), minlength=len(served.state.replica)),
        "passes": served.count("PASSES"),
        "busy_s": served.count("BUSY") / 1e9,
        "blocks": np.full(len(served.state.replica), served.blocks),
        "peak_blocks": served.count("PEAK"),
        "preemptions": served.count("PREEMPTED"),
        "prompt_tokens_read": served.count("READ"),
        "tokens_out": served.count("MADE"),
        "cache_hit_tokens": served.count("FOUND"),
        "evicted_ids": served.count("EVICTED"),
        "energy_beyond_idle_j": served.state.energy_nj / 1e9,
    }
    return pa.table({"replica": np.arange(len(served.state.replica)), **columns})


def write_served(served: Served, record: dict[str, Any], path: str | PathLike[str], *, force: bool = False) -> None:
    """`record` is the summary, with what was asked."""
    import msgspec
    import pyarrow.parquet as pq

    if served.passes is None:
        raise UsageError("the passes of this stream were not kept")
    tables = {"requests": request_table(served), "passes": served.passes, "replicas": replica_table(served)}
    with writing(path, force=force) as place:
        place.mkdir()
        for name, table in tables.items():
            pq.write_table(table, place / f"{name}.parquet", compression="zstd")
        (place / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode({"format": FORMAT, **record})) + b"\n")


def read_served(path: str | PathLike[str]) -> ServedFolder:
    import msgspec
    import pyarrow.parquet as pq

    place = Path(path)
    try:
        record = msgspec.json.decode((place / RECORD).read_bytes())
        tables = {name: pq.read_table(place / f"{name}.parquet") for name in TABLES}
    except (OSError, msgspec.DecodeError, pa.ArrowException) as problem:
        raise FormatError(f"not a served stream: {str(problem).splitlines()[0]}", path=path) from None
    if not isinstance(record, dict) or record.pop("format", None) != FORMAT:
        raise FormatError("not a served stream that this version knows", path=place / RECORD)
    return ServedFolder(record, tables)
