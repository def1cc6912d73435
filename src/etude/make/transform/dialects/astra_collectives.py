"""Collectives that ASTRA-sim aborts on, as others that it can run and that load the fullest port as much.

A barrier is an all-reduce of a byte for each rank. A reduction to one rank takes in at its root what a reduce-scatter
takes in everywhere; a gather, what an all-gather does; a scatter gives out at its root what an all-to-all does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.model.trace import Trace

INSTEAD: Final = {
    Collective.BARRIER: Collective.ALL_REDUCE,
    Collective.REDUCE: Collective.REDUCE_SCATTER,
    Collective.GATHER: Collective.ALL_GATHER,
    Collective.SCATTER: Collective.ALL_TO_ALL,
}


def without_rooted(job: Job) -> Job:
    """The job with these collectives as others."""
    if not any(_calls(trace, one).any() for trace in job.traces for one in INSTEAD):
        return job
    values = {}
    for rank, own in job.values.items():
        trace = job.traces[int(job.trace_of[job.index(rank)])]
        sizes = {"in_bytes": _sizes(job, trace, own["in_bytes"])} if "in_bytes" in own else {}
        values[rank] = {**own, **sizes}
    return replace(job, traces=tuple(_written(job, trace) for trace in job.traces), values=values)


def rooted_notes(job: Job) -> list[str]:
    """What `without_rooted` changes: `barrier (8 nodes) is written as all_reduce`."""
    count: Counter[Collective] = Counter()
    for trace, ranks in zip(job.traces, np.bincount(job.trace_of, minlength=len(job.traces)).tolist(), strict=True):
        count.update({one: ranks * int(_calls(trace, one).sum()) for one in INSTEAD})
    return [
        f"{one.name.lower()} ({count[one]:,} nodes) is written as {INSTEAD[one].name.lower()}, which it can run"
        for one in INSTEAD
        if count[one]
    ]


def _calls(trace: Trace, one: Collective) -> NDArray[np.bool_]:
    return np.asarray((trace.kind == int(Kind.COLL)) & (trace.collective == int(one)))


def _sizes(job: Job, trace: Trace, in_bytes: NDArray[Any]) -> NDArray[Any]:
    return np.where(_calls(trace, Collective.BARRIER), job.world_size, in_bytes)


def _written(job: Job, trace: Trace) -> Trace:
    collective = trace.collective.copy()
    for one, other in INSTEAD.items():
        collective[_calls(trace, one)] = int(other)
    return trace.replace(collective=collective, in_bytes=_sizes(job, trace, trace.in_bytes))
