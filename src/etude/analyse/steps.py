"""Step by step: how long each step took on each rank and where its time went, and how much steps vary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.analyse.breakdown import COMMUNICATION, COMPUTE, use_bits
from etude.analyse.grouping import table
from etude.analyse.runs import Run, on_device, runs, uses
from etude.kernels.intervals import time_by_mask
from etude.model.job import Job
from etude.model.schema import UNKNOWN
from etude.model.timing import Timing

I64 = NDArray[np.int64]

_NAMES = ("rank", "step", "start_ns", "end_ns", "span_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "idle_ns")


def steps(job: Job, timing: Timing) -> pa.Table:
    """A row a rank and step: start_ns and end_ns of its device work on the rank's clock, span_ns, compute_ns, comm_ns,
    exposed_comm_ns, idle_ns. Without recorded steps there are no rows."""
    rows: list[dict[str, Any]] = []
    for run in runs(job, timing):
        found = _steps(run)
        rows += [{"rank": int(job.ranks[i])} | row for i in run.at.tolist() for row in found]
    rows.sort(key=lambda row: (row["rank"], row["step"]))
    return table(rows, dict.fromkeys(_NAMES, pa.int64()))


def _steps(run: Run) -> list[dict[str, Any]]:
    use = uses(run.trace)
    rows = np.flatnonzero(on_device(run, use) & (run.trace.step != UNKNOWN))
    rows = rows[np.argsort(run.trace.step[rows], kind="stable")]
    number, first = np.unique(run.trace.step[rows], return_index=True)
    bounds = np.append(first, len(rows))
    found = []
    for i, step in enumerate(number.tolist()):
        mine = rows[bounds[i] : bounds[i + 1]]
        start, end = run.start_ns[mine], run.end_ns[mine]
        total = time_by_mask(start, end, use_bits(use[mine]), 3)
        mask = np.arange(len(total))
        compute, comm = (mask & COMPUTE) > 0, (mask & COMMUNICATION) > 0
        found.append(
            {
                "step": step,
                "start_ns": int(start.min()),
                "end_ns": int(end.max()),
                "span_ns": int(total.sum()),
                "compute_ns": int(total[compute].sum()),
                "comm_ns": int(total[comm].sum()),
                "exposed_comm_ns": int(total[comm & ~compute].sum()),
                "idle_ns": int(total[0]),
            }
        )
    return found


def step_times(job: Job, timing: Timing) -> pa.Table:
    """A row a rank: steps, mean_ns, std_ns, min_ns, max_ns of the time from the start of one step to that of the next
    (of the last, its span), variation (std over mean) and slowest_step."""
    found = steps(job, timing)
    rank, step = found["rank"].to_numpy(), found["step"].to_numpy()
    start, span = found["start_ns"].to_numpy(), found["span_ns"].to_numpy()
    rows = []
    for r in np.unique(rank).tolist():
        mine = np.flatnonzero(rank == r)
        lasted = np.append(np.diff(start[mine]), span[mine[-1]]).astype(np.float64)
        mean, std = float(lasted.mean()), float(lasted.std(ddof=1)) if len(lasted) > 1 else 0.0
        rows.append(
            {
                "rank": r,
                "steps": len(mine),
                "mean_ns": mean,
                "std_ns": std,
                "min_ns": int(lasted.min()),
                "max_ns": int(lasted.max()),
                "variation": std / mean if mean else 0.0,
                "slowest_step": int(step[mine[np.argmax(lasted)]]),
            }
        )
    whole = dict.fromkeys(("rank", "steps", "min_ns", "max_ns", "slowest_step"), pa.int64())
    names = ("rank", "steps", "mean_ns", "std_ns", "min_ns", "max_ns", "variation", "slowest_step")
    return table(rows, {name: whole.get(name, pa.float64()) for name in names})
