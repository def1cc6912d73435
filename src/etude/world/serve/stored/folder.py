"""A served stream as a folder: `served.json`, the record of `etude serve --json`, and a Parquet file for each table.

| table | a row for |
|---|---|
| requests | each request, in order of arrival |
| passes | each pass, in the order in which they start |
| replicas | each replica |

For a workflow the record is that of `etude serve workflow --json`, and the tables are these:

| table | a row for |
|---|---|
| sessions | each session |
| tasks | each call of a model or a tool |

For images (`etude serve images`) the tables are `requests` and `tasks`: tasks of groups of devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.base.errors import FormatError, UsageError
from etude.base.files import writing
from etude.world.serve.images.results import image_tables
from etude.world.serve.images.serving import ServedImages
from etude.world.serve.results import request_table
from etude.world.serve.serving import Served
from etude.world.serve.workflow.results import session_table, task_table
from etude.world.serve.workflow.run import WorkflowRun

RECORD: Final = "served.json"
FORMAT: Final = "etude served 1"
WORKFLOW: Final = "etude workflow 1"
IMAGES: Final = "etude images 1"
TABLES: Final = {
    FORMAT: ("requests", "passes", "replicas"),
    WORKFLOW: ("sessions", "tasks"),
    IMAGES: ("requests", "tasks"),
}


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


def write_served(
    served: Served | ServedImages, record: dict[str, Any], path: str | PathLike[str], *, force: bool = False
) -> None:
    """`record` is the summary, with the settings."""
    if isinstance(served, ServedImages):
        _write(image_tables(served), {"format": IMAGES, **record}, path, force=force)
        return
    if served.passes is None:
        raise UsageError("the passes of this stream were not kept")
    tables = {"requests": request_table(served), "passes": served.passes, "replicas": replica_table(served)}
    _write(tables, {"format": FORMAT, **record}, path, force=force)


def write_workflow(ran: WorkflowRun, record: dict[str, Any], path: str | PathLike[str], *, force: bool = False) -> None:
    """`record` is the summary, with the settings."""
    tables = {"sessions": session_table(ran), "tasks": task_table(ran)}
    _write(tables, {"format": WORKFLOW, **record}, path, force=force)


def _write(tables: dict[str, pa.Table], record: dict[str, Any], path: str | PathLike[str], *, force: bool) -> None:
    import msgspec
    import pyarrow.parquet as pq

    with writing(path, force=force) as place:
        place.mkdir()
        for name, table in tables.items():
            pq.write_table(table, place / f"{name}.parquet", compression="zstd")
        (place / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")


def read_served(path: str | PathLike[str]) -> ServedFolder:
    import msgspec
    import pyarrow.parquet as pq

    place = Path(path)
    try:
        record = msgspec.json.decode((place / RECORD).read_bytes())
        kind = record.pop("format", None) if isinstance(record, dict) else None
        if kind not in TABLES:
            raise FormatError("is not a served stream that this version knows", path=place / RECORD)
        tables = {name: pq.read_table(place / f"{name}.parquet") for name in TABLES[kind]}
    except (OSError, msgspec.DecodeError, pa.ArrowException) as problem:
        raise FormatError(f"is not a served stream: {str(problem).splitlines()[0]}", path=path) from None
    return ServedFolder(record, tables)
