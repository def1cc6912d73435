"""CUDA graphs: each replay with the call that made it, what was around the call, and what ran."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.analyse.grouping import table
from etude.analyse.launches import launched
from etude.kernels.intervals import merged
from etude.model.run import Run, RunPart

__all__ = ["graph_replays"]


CALLS: Final = "GraphLaunch"


def graph_replays(run: Run) -> pa.Table:
    """One row per replay: rank, node (of the call), call, under (the operator or annotation around it, innermost),
    step, kernels (device work of any kind), start_ns, span_ns (first start to last end), busy_ns, delay_ns (from the
    end of the call to the first start, not below 0)."""
    rows: list[dict[str, Any]] = []
    for part in run.parts():
        found = _replays(part)
        rows += [{"rank": int(run.job.ranks[i])} | row for i in part.at.tolist() for row in found]
    rows.sort(key=lambda row: (row["rank"], row["start_ns"]))
    text, whole = pa.string(), pa.int64()
    names = {"rank": pa.int32(), "node": whole, "call": text, "under": text, "step": whole, "kernels": whole}
    return table(rows, names | dict.fromkeys(("start_ns", "span_ns", "busy_ns", "delay_ns"), whole))


def _replays(part: RunPart) -> list[dict[str, Any]]:
    found = launched(part, CALLS)
    order = np.argsort(found.call, kind="stable")
    call, node = found.call[order], found.node[order]
    calls, first = np.unique(call, return_index=True)
    bounds = np.append(first, len(call))
    trace = part.trace
    rows = []
    for i, at in enumerate(calls.tolist()):
        mine = node[bounds[i] : bounds[i + 1]]
        start, end = part.start_ns[mine], part.end_ns[mine]
        begins, ends = merged(start, end)
        parent, step = int(trace.parent[at]), int(trace.step[at])
        rows.append(
            {
                "node": at,
                "call": trace.text("name", at),
                "under": trace.text("name", parent) if parent >= 0 else None,
                "step": step if step >= 0 else None,
                "kernels": len(mine),
                "start_ns": int(start.min()),
                "span_ns": int(end.max() - start.min()),
                "busy_ns": int((ends - begins).sum()),
                "delay_ns": max(int(start.min() - part.end_ns[at]), 0),
            }
        )
    return rows
