"""What a step of the program takes and how busy its devices are: the figures that everything else is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from etude.analyse.breakdown import part_measures
from etude.analyse.rank_table import MOST_ROWS
from etude.kernels.arrays import distinct_values
from etude.model.job import Job
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN
from etude.model.timing import Origin

__all__ = ["ESTIMATED", "PROGRAM", "RECORDED", "is_under_profiler", "program_figures", "times_of"]

PROGRAM, ESTIMATED, RECORDED = "program", "estimated", "recorded"
_PROFILED: Final = "profiler"
"""What the source of a recording is called."""
_KERNELS: Final = 0.2
"""Part by which kernels may be slower in a recording: a device that is kept waiting lowers its clocks."""


def times_of(job: Job) -> str:
    """Whose times a job has: those of the program, an estimate of them, or those that were recorded."""
    measured = job.timing is not None and job.timing.origin == Origin.MEASURED
    recorded = measured or _PROFILED in job.provenance.get("source_format", "")
    return job.provenance.get("timing", RECORDED if recorded else PROGRAM)


def is_under_profiler(job: Job) -> bool:
    """Whether its times are known to be those under a profiler. A `.et` file does not say whose it has."""
    return "timing" not in job.provenance and _PROFILED in job.provenance.get("source_format", "")


def program_figures(run: Run) -> dict[str, Any]:
    """`timing`: whose times these are; `step_ns` and `busy_share` of the slowest rank; `ranks`: of each, or of the
    first one of each class of ranks where there are very many. Of an estimate
    also `low` and `high` of both. `recorded_step_ns`: under the profiler, where that is another.

    etude.extend.program_figures(run)["step_ns"]
    """
    one_each = len(run.job.ranks) <= MOST_ROWS
    ranks = []
    for part in run.parts():
        at, figures = part.at if one_each else part.at[:1], _figures(part)
        ranks += [{"rank": rank, **figures} for rank in run.job.ranks[at].tolist()]
    ranks.sort(key=lambda one: one["rank"])
    slowest = max(ranks, key=lambda one: one["step_ns"], default={"step_ns": None, "busy_share": None})
    found: dict[str, Any] = {"timing": times_of(run.job)}
    found |= {name: slowest[name] for name in ("step_ns", "busy_share")}
    told = run.job.provenance
    if "anchored" in told:
        found["anchored"] = told["anchored"] == "yes"
    if "timing_recorded_step_ns" in told:
        found["recorded_step_ns"] = int(told["timing_recorded_step_ns"])
    if found["timing"] == ESTIMATED and slowest["busy_share"] is not None and slowest["step_ns"] is not None:
        low, high = _range(told, slowest["step_ns"])
        busy_ns = slowest["busy_share"] * slowest["step_ns"]
        least = busy_ns if found["anchored"] else (1 - _KERNELS) * busy_ns
        found["low"] = {"step_ns": low, "busy_share": min(least / high, 1.0)}
        found["high"] = {"step_ns": high, "busy_share": min(busy_ns / max(low, 1), 1.0)}
    return found | {"ranks": ranks}


def _range(told: Mapping[str, str], step_ns: int) -> tuple[int, int]:
    """The least and most that a step takes; relative to this step where the estimate is."""
    scale = step_ns / int(told["timing_step_ns"]) if "timing_step_ns" in told else 1.0
    return round(scale * int(told["timing_low_ns"])), round(scale * int(told["timing_high_ns"]))


def _figures(part: RunPart) -> dict[str, Any]:
    """A step of the ranks of a part, and the share of it in which they are busy."""
    figures, step = part_measures(part), part.trace.step[part.timed & (part.trace.step != UNKNOWN)]
    span, count = figures["span_ns"] or 0, max(len(distinct_values(step)), 1)
    return {"step_ns": round(span / count), "busy_share": 1 - figures["idle_ns"] / span if span else None}
