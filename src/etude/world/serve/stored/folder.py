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

For images (`etude serve images`) the tables are `requests` and `tasks`: tasks of groups of devices. `schema.py` has the
types and ranges that are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.base.results import read_head, read_results, write_results
from etude.world.serve.images.results import image_tables
from etude.world.serve.images.serving import ServedImages
from etude.world.serve.results import request_table
from etude.world.serve.serving import Served
from etude.world.serve.stored.schema import ABOUT, IMAGES, SCHEMAS, SERVED, WORKFLOW
from etude.world.serve.workflow.results import session_table, task_table
from etude.world.serve.workflow.run import WorkflowRun

RECORD: Final = "served.json"
HINT: Final = "`etude serve ... -o FOLDER` writes one"


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
        write_results(path, RECORD, IMAGES, record, image_tables(served), force=force)
        return
    if served.passes is None:
        raise UsageError("the passes of this stream were not kept")
    tables = {"requests": request_table(served), "passes": served.passes, "replicas": replica_table(served)}
    write_results(path, RECORD, SERVED, record, tables, force=force)


def write_workflow(ran: WorkflowRun, record: dict[str, Any], path: str | PathLike[str], *, force: bool = False) -> None:
    """`record` is the summary, with the settings."""
    tables = {"sessions": session_table(ran), "tasks": task_table(ran)}
    write_results(path, RECORD, WORKFLOW, record, tables, force=force)


def read_served(path: str | PathLike[str]) -> ServedFolder:
    """What a folder holds, checked. Raises FormatError."""
    head = read_head(Path(path) / RECORD, {name: one.version for name, one in SCHEMAS.items()}, ABOUT, HINT)
    return ServedFolder(*read_results(head, SCHEMAS[head.name]))
