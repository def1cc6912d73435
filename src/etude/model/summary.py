"""Summary: what is in a job, in numbers. Sums are over all ranks, shared traces counted once for each rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.trace import Trace


def summary(job: Job) -> dict[str, Any]:
    """ranks, world_size, nodes, nodes_by_kind, collectives, span_ns and more; plain Python values."""
    times = np.bincount(job.trace_of, minlength=len(job.traces)).astype(np.int64)
    kinds = sum((t * _counts(trace.kind, len(Kind)) for t, trace in zip(times, job.traces, strict=True)),
                np.zeros(len(Kind), np.int64))  # fmt: skip
    span = job.timing.span() if job.timing is not None else None
    edges = {
        name: int(sum(t * len(getattr(trace, name)) for t, trace in zip(times, job.traces, strict=True)))
        for name in ("data", "ctrl")
    }
    return {
        "name": job.name,
        "ranks": len(job.ranks),
        "world_size": job.world_size,
        "distinct_traces": len(job.traces),
        "nodes": job.nodes,
        "nodes_by_kind": {k.wire_name: int(kinds[k]) for k in Kind if kinds[k]},
        "data_dependencies": edges["data"],
        "ctrl_dependencies": edges["ctrl"],
        "collectives": _collectives(job, times),
        "p2p": _p2p(job),
        "flops": _total(job, "flops", Kind.COMP),
        "duration_ns": _total(job, "duration_ns", None),
        "span_ns": None if span is None else span[1] - span[0],
        "groups": len(job.groups),
        "group_sizes": _group_sizes(job),
    }


def _counts(values: NDArray[np.uint8], size: int) -> NDArray[np.int64]:
    return np.bincount(values, minlength=size)[:size].astype(np.int64)


def _own_values(job: Job, column: str) -> bool:
    return any(column in own for own in job.values.values())


def _weighted(job: Job, column: str) -> list[tuple[int, Trace]]:
    """(number of ranks, trace) pairs whose sum over `column` is the job's; rank by rank where ranks have own values."""
    if _own_values(job, column):
        return [(1, job.trace(rank)) for rank in job.ranks.tolist()]
    times = np.bincount(job.trace_of, minlength=len(job.traces))
    return list(zip(times.tolist(), job.traces, strict=True))


def _known_sum(values: NDArray[np.int64]) -> int:
    """Exact: Python's integers do not overflow."""
    known = values[values != UNKNOWN]
    high, low = known >> 31, known & 0x7FFFFFFF
    return (int(high.sum()) << 31) + int(low.sum())


def _collectives(job: Job, times: NDArray[np.int64]) -> list[dict[str, Any]]:
    count = np.zeros(len(Collective), np.int64)
    size = [0] * len(Collective)
    for weight, trace in _weighted(job, "in_bytes"):
        rows = trace.kind == Kind.COLL
        which, in_bytes = trace.collective[rows], trace.in_bytes[rows]
        count += weight * _counts(which, len(Collective))
        for c in np.unique(which).tolist():
            size[c] += weight * _known_sum(in_bytes[which == c])
    return [{"type": c.name, "count": int(count[c]), "bytes": size[c]} for c in Collective if count[c]]


def _p2p(job: Job) -> dict[str, int]:
    sends = receives = size = 0
    for weight, trace in _weighted(job, "in_bytes"):
        is_send = trace.kind == Kind.SEND
        sends += weight * int(is_send.sum())
        receives += weight * int((trace.kind == Kind.RECV).sum())
        size += weight * _known_sum(trace.in_bytes[is_send])
    return {"sends": sends, "recvs": receives, "bytes_sent": size}


def _total(job: Job, column: str, kind: Kind | None) -> int | None:
    """Sum of a column's known values; None if none is known."""
    total, any_known = 0, False
    for weight, trace in _weighted(job, column):
        values = getattr(trace, column)
        values = values if kind is None else values[trace.kind == kind]
        if len(values) and (values != UNKNOWN).any():
            any_known = True
            total += weight * _known_sum(values)
    return total if any_known else None


def _group_sizes(job: Job) -> dict[str, int]:
    """Size in ranks -> number of groups of that size; `unknown` where the source did not say."""
    sizes = np.diff(job.groups.start)
    found = {str(s): int(((sizes == s) & job.groups.known).sum()) for s in np.unique(sizes[job.groups.known]).tolist()}
    unknown = int((~job.groups.known).sum())
    return found | ({"unknown": unknown} if unknown else {})
