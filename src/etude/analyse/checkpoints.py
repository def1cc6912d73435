"""How fast ranks write to storage: the memory nodes of a trace that store, by rank and step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from etude.analyse.grouping import table
from etude.analyse.measures import time_by_bits
from etude.model.run import Run
from etude.model.schema import UNKNOWN, Kind

__all__ = ["checkpoints"]


def checkpoints(run: Run) -> pa.Table:
    """One row per rank and step that stores: rank, step (null where not known), stores, size_bytes, time_ns in which at
    least one was in progress, bytes_per_s over that time. Stores without a size or without a time do not count."""
    rows: list[dict[str, Any]] = []
    for part in run.parts():
        trace = part.trace
        sized = (trace.tensor_bytes != UNKNOWN) & (trace.tensor_bytes > 0)
        stores = np.flatnonzero((trace.kind == Kind.MEM_STORE) & part.timed & sized)
        for step in np.unique(trace.step[stores]).tolist():
            mine = stores[trace.step[stores] == step]
            busy = int(time_by_bits(part, mine, np.ones(len(mine), np.uint8), 1)[1])
            moved = int(trace.tensor_bytes[mine].sum())
            one = {"step": None if step == UNKNOWN else step, "stores": len(mine), "size_bytes": moved}
            one |= {"time_ns": busy, "bytes_per_s": moved / busy * 1e9 if busy else None}
            rows += [{"rank": int(run.job.ranks[i])} | one for i in part.at.tolist()]
    rows.sort(key=lambda row: (row["rank"], -1 if row["step"] is None else row["step"]))
    kinds = dict.fromkeys(("rank", "step", "stores", "size_bytes", "time_ns"), pa.int64())
    return table(rows, kinds | {"bytes_per_s": pa.float64()})
