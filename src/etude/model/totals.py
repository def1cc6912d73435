"""The numbers of a generated job: what `etude generate --json` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.trace import Trace


def totals(job: Job, *, params: int = 0, memory_peak_bytes: int | None = None) -> dict[str, Any]:
    """Sums over ranks; memory is the maximum over ranks, or if nothing else is known the buffers of its largest
    communication."""
    flops, buffers = 0, 0
    by_type: dict[str, int] = {}
    for trace, ranks in programs(job):
        flops += ranks * int(known(trace.flops).sum())
        sent = known(trace.in_bytes)
        buffers = max(buffers, int((sent + known(trace.out_bytes)).max(initial=0)))
        for name, rows in communication(trace):
            if rows.any():
                by_type[name] = by_type.get(name, 0) + ranks * int(sent[rows].sum())
    return {
        "ranks": len(job),
        "distinct_traces": len(job.traces),
        "nodes": job.nodes,
        "flops": flops,
        "params": params,
        "comm_bytes_by_type": by_type,
        "memory_peak_bytes": buffers if memory_peak_bytes is None else memory_peak_bytes,
    }


def programs(job: Job) -> Iterator[tuple[Trace, int]]:
    """Traces with the values that count, and how many ranks run each."""
    own = np.isin(job.ranks, list(job.values))
    for number, trace in enumerate(job.traces):
        shared = int(((job.trace_of == number) & ~own).sum())
        if shared:
            yield trace, shared
    alike: dict[tuple[int, int], list[int]] = {}  # ranks may share values too
    for rank in job.ranks[own].tolist():
        alike.setdefault((int(job.trace_of[job.index(rank)]), id(job.values[rank])), []).append(rank)
    for ranks in alike.values():
        yield job.trace(ranks[0]), len(ranks)


def communication(trace: Trace) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Communication by type; receives are not counted, since each is the other end of a send."""
    for collective in Collective:
        if collective:
            yield collective.name.lower(), trace.collective == collective
    yield "send", trace.kind == Kind.SEND


def known(column: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(column == UNKNOWN, 0, column)
