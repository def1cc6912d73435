"""The figures that trace benchmarks publish of a run, each as one number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from etude.analyse.breakdown import breakdown
from etude.analyse.collectives import collectives, summarised
from etude.analyse.grouping import table
from etude.analyse.steps import step_times
from etude.model.job import Job
from etude.model.timing import Timing


def metrics(job: Job, timing: Timing) -> pa.Table:
    """Rows of metric, value, unit:

    avg_step_time (mean over ranks of the time from step to step), communication_fraction (communication over span),
    exposed_communication_fraction, compute_comm_overlap (communication that compute hides, of all), idle_fraction,
    load_imbalance_ratio (most compute time of a rank over the mean), coll_call_num, and of each collective
    bus_bandwidth_NAME (mean over sizes of their medians, by calls). What a run does not have is left out.
    """
    spent = {name: column.to_numpy(zero_copy_only=False) for name, column in _columns(breakdown(job, timing)).items()}
    span, comm, compute = (spent[name].astype(np.float64) for name in ("span_ns", "comm_ns", "compute_ns"))
    hidden = comm - spent["exposed_comm_ns"]
    rows: list[dict[str, Any]] = []

    def add(metric: str, value: float, unit: str = "") -> None:
        rows.append({"metric": metric, "value": float(value), "unit": unit})

    steps = step_times(job, timing)
    if len(steps):
        add("avg_step_time", float(np.mean(steps["mean_ns"].to_numpy())) / 1e9, "s")
    if span.sum() > 0:
        add("communication_fraction", comm.sum() / span.sum())
        add("exposed_communication_fraction", spent["exposed_comm_ns"].sum() / span.sum())
        add("idle_fraction", spent["idle_ns"].sum() / span.sum())
    if comm.sum() > 0:
        add("compute_comm_overlap", hidden.sum() / comm.sum())
    if compute.sum() > 0:
        add("load_imbalance_ratio", compute.max() / compute.mean())
    found = summarised(collectives(job, timing)).to_pylist()
    add("coll_call_num", sum(row["calls"] for row in found))
    for name in sorted({row["collective"] for row in found}):
        known = [(row["busbw_bytes_per_s"], row["calls"]) for row in found if row["collective"] == name]
        known = [(rate, calls) for rate, calls in known if rate is not None]
        if known:
            add(f"bus_bandwidth_{name}", np.average([k[0] for k in known], weights=[k[1] for k in known]), "B/s")
    return table(rows, {"metric": pa.string(), "value": pa.float64(), "unit": pa.string()})


def _columns(found: pa.Table) -> dict[str, pa.ChunkedArray]:
    return {name: found[name] for name in found.column_names}
