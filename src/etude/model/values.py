"""Turns values of ranks into traces of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.model.job import Job


def with_values(job: Job) -> Job:
    """The same ranks, each with a trace that has its own values, and only traces that some rank runs."""
    traces, trace_of = list(job.traces), job.trace_of.copy()
    number: dict[tuple[Any, ...], int] = {}
    for rank, own in job.values.items():
        at = job.index(rank)
        key = (int(job.trace_of[at]), *sorted((column, id(values)) for column, values in own.items()))
        trace_of[at] = number.setdefault(key, len(traces))
        if trace_of[at] == len(traces):
            traces.append(job.trace(rank))
    used, inverse = np.unique(trace_of, return_inverse=True)
    return job.replace(
        traces=tuple(traces[t] for t in used.tolist()), trace_of=inverse.reshape(-1).astype(np.int32), values={}
    )
