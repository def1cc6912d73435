"""Step by step: how long each step took on each rank and where its time went, and how much steps vary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from etude.analyse.device_work import on_device
from etude.analyse.grouping import table
from etude.analyse.measures import COLUMNS, measures
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN
from etude.model.use import uses

__all__ = ["step_times", "steps"]


_NAMES = ("rank", "step", "start_ns", "end_ns")


def steps(run: Run) -> pa.Table:
    """One row per rank and step: start_ns and end_ns of its device work on the rank's clock, and all measures of it.
    Without recorded steps there are no rows.

    etude.steps(run)
    """
    rows: list[dict[str, Any]] = []
    for part in run.parts():
        found = _steps(part)
        rows += [{"rank": int(run.job.ranks[i])} | row for i in part.at.tolist() for row in found]
    rows.sort(key=lambda row: (row["rank"], row["step"]))
    return table(rows, dict.fromkeys(_NAMES, pa.int64()) | COLUMNS)


def _steps(part: RunPart) -> list[dict[str, Any]]:
    use = uses(part.trace)
    rows = np.flatnonzero(on_device(part, use) & (part.trace.step != UNKNOWN))
    rows = rows[np.argsort(part.trace.step[rows], kind="stable")]
    number, first = np.unique(part.trace.step[rows], return_index=True)
    bounds = np.append(first, len(rows))
    found = []
    for i, step in enumerate(number.tolist()):
        mine = rows[bounds[i] : bounds[i + 1]]
        begun = {"step": step, "start_ns": int(part.start_ns[mine].min()), "end_ns": int(part.end_ns[mine].max())}
        found.append(begun | measures(part, mine, use))
    return found


def step_times(run: Run) -> pa.Table:
    """One row per rank: steps, mean_ns, std_ns, min_ns, max_ns of the time from the start of one step to that of the
    next (for the last, its span), variation (std over mean) and slowest_step."""
    found = steps(run)
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
