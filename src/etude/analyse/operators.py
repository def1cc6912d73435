"""Kernels and operators by time: of themselves, and with what they call or launch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.analyse.grouping import Tally, key_kinds, table
from etude.analyse.kernels import add_to_callers, outermost
from etude.analyse.runs import Run, Use, on_device, runs, uses
from etude.model.job import Job
from etude.model.timing import Timing
from etude.model.trace import Trace

I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

SEGMENT = "host"
"""Name of the nodes that are an operator's own time between what it calls."""


def kernels(job: Job, timing: Timing, by: Sequence[str] = ("name", "kind")) -> pa.Table:
    """What runs on the devices, put together by any of `grouping.BY`: count, total_ns, share of the total, mean_ns,
    min_ns, max_ns, std_ns; the longest in all first."""
    tally = Tally(by, ("ns",))
    for run in runs(job, timing):
        use = uses(run.trace)
        rows = np.flatnonzero(on_device(run, use))
        lasted = run.end_ns[rows] - run.start_ns[rows]
        tally.add(run, rows, {"ns": lasted}, use, job.ranks[run.at].tolist())
    found = tally.rows()
    whole = sum(row["total_ns"] for row in found)
    for row in found:
        row["share"] = row["total_ns"] / whole if whole else 0.0
    found.sort(key=lambda row: -row["total_ns"])
    kinds = key_kinds(by) | {
        "count": pa.int64(),
        "total_ns": pa.int64(),
        "share": pa.float64(),
        "mean_ns": pa.float64(),
    }
    return table(found, kinds | {"min_ns": pa.int64(), "max_ns": pa.int64(), "std_ns": pa.float64()})


def operators(job: Job, timing: Timing, by: Sequence[str] = ("name",)) -> pa.Table:
    """What runs on the hosts: count, self_ns (without what it calls), total_ns, and the device time of what it launches
    itself (device_self_ns) or anything below it does (device_total_ns); the longest on the device first. Of operators
    that call others of their name, totals count the outermost."""
    values = ("self_ns", "total_ns", "device_self_ns", "device_total_ns")
    tally = Tally(by, values)
    for run in runs(job, timing):
        rows, columns = _operator_times(run)
        tally.add(run, rows, columns, uses(run.trace), job.ranks[run.at].tolist())
    found = [{key: row.get(key, row.get(f"total_{key}")) for key in (*by, "count", *values)} for row in tally.rows()]
    found.sort(key=lambda row: (-(row["device_self_ns"] or 0), -(row["self_ns"] or 0)))
    return table(found, key_kinds(by) | dict.fromkeys(("count", *values), pa.int64()))


def _operator_times(run: Run) -> tuple[I64, dict[str, I64]]:
    trace, timed = run.trace, run.timed
    host = timed & (trace.cpu == 1) & ~segments(trace)
    lasted = np.where(timed, run.end_ns - np.where(timed, run.start_ns, 0), 0)
    called = np.bincount(trace.parent[host & (trace.parent >= 0)], lasted[host & (trace.parent >= 0)], len(trace))
    direct, below = device_times(run)
    rows = np.flatnonzero(host)
    top = outermost(np.ascontiguousarray(trace.parent), trace.coded("name")[0])
    columns = {"self_ns": lasted - called.astype(np.int64), "total_ns": np.where(top, lasted, 0)}
    columns |= {"device_self_ns": direct, "device_total_ns": np.where(top, below, 0)}
    return rows, {name: column[rows] for name, column in columns.items()}


def segments(trace: Trace) -> Bool:
    """Nodes that are another's own time."""
    codes, words = trace.coded("name")
    if SEGMENT not in words:
        return np.zeros(len(trace), bool)
    return (codes == words.index(SEGMENT)) & (trace.cpu == 1)


def device_times(run: Run) -> tuple[I64, I64]:
    """Device time of what each node launched, and of what it or anything that it calls did."""
    trace, use = run.trace, uses(run.trace)
    rows = np.flatnonzero(on_device(run, use) & (trace.cpu != 1) & (trace.parent >= 0) & (use != Use.NONE))
    lasted = (run.end_ns - run.start_ns)[rows]
    direct, below = np.zeros(len(trace), np.int64), np.zeros(len(trace), np.int64)
    np.add.at(direct, trace.parent[rows], lasted)
    add_to_callers(np.ascontiguousarray(trace.parent), rows, lasted, below)
    return direct, below
