"""The two timings of a job that has the times of its program: those, and the ones under the profiler.

A node's own times are those of the program: `duration_ns`, and `job.timing`. The columns TWICE_TIMED have what was
recorded in full, on the same nodes. A job of any other times has none of them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.model.job import Job
from etude.model.schema import RECORDED_NS, TWICE_TIMED, ValueKind
from etude.model.timing import Origin, Timing
from etude.model.trace import Trace, constant

TIMES_TOLD: Final = ("timing", "anchored", "timing_recorded_step_ns", "timing_low_ns", "timing_high_ns")
"""Provenance of a job that has the times of its program, or an estimate of them."""


def is_twice_timed(trace: Trace) -> bool:
    """Whether a trace has both the times of the program and those of the recording."""
    return bool(trace.time_source.strides != (0,) and trace.time_source.any())


def has_both_times(job: Job) -> bool:
    """Whether every program of a job has both."""
    return bool(job.traces) and all(is_twice_timed(trace) for trace in job.traces)


def as_recorded(job: Job, where: str = "") -> Job:
    """The job with the times that it had under the profiler; itself, if it has no others."""
    if has_both_times(job):
        return _as_recorded(job)
    if "timing" in job.provenance:
        hint = "the recording has both, and a Parquet job of it: `etude link RECORDING -o job/ --to parquet`"
        if "edits" in job.provenance:
            hint = "an edited job has one timing: `etude edit JOB --as-recorded` edits the other"
        raise UsageError("has the times of the program alone", where=where, hint=hint)
    if job.timing is None or job.timing.origin != Origin.MEASURED:
        raise UsageError("has no recorded times", where=where)
    return job


def _as_recorded(job: Job) -> Job:
    starts = tuple(trace.recorded_start_ns for trace in job.traces)
    ends = tuple(trace.recorded_end_ns for trace in job.traces)
    traces = []
    for trace, start, end in zip(job.traces, starts, ends, strict=True):
        timed = without_recorded(trace).replace(duration_ns=trace.recorded_duration_ns)
        traces.append(with_lengths(timed, end - start))
    values = {rank: {c: v for c, v in own.items() if c != "duration_ns"} for rank, own in job.values.items()}
    return job.replace(
        traces=tuple(traces),
        values={rank: own for rank, own in values.items() if own},
        timing=Timing(
            origin=Origin.MEASURED,
            start_ns=starts,
            end_ns=ends,
            block_of=job.trace_of,
            clock_offset_ns=np.zeros(len(job), np.int64),
        ),
        provenance={key: value for key, value in job.provenance.items() if key not in TIMES_TOLD},
    )


def without_recorded(trace: Trace) -> Trace:
    """The trace with one timing: for what changes its nodes or their times."""
    if not is_twice_timed(trace):
        return trace
    return trace.replace(**{name: constant(name, len(trace)) for name in TWICE_TIMED})


def with_lengths(trace: Trace, length_ns: I64) -> Trace:
    """The attribute RECORDED_NS of the nodes that have it set to these lengths."""
    place = np.full(len(trace.layouts), -1, np.int64)
    for number, layout in enumerate(trace.layouts):
        cell = 0
        for attr in layout:
            if attr.name == RECORDED_NS and attr.kind == ValueKind.INT64:
                place[number] = cell
            cell += attr.in_cell
    rows = np.flatnonzero(place[trace.layout] >= 0)
    cells = trace.cells.copy()
    cells[trace.cell_start()[rows] + place[trace.layout[rows]]] = length_ns[rows]
    return trace.replace(cells=cells)
