"""What ASTRA-sim needs of `.et` files and a Job does not hold.

- Groups are numbers from 1 on: it reads their names as such.
- What only moves bytes says one operation: its roofline divides by them.
- Collectives have one size on all members: it hangs where one brings more than another. What experts receive depends
  on routing, and what ranks have on the lengths of their samples. In a job every rank says what it sends and receives;
  here all members of such a collective say what the fullest of them moves, which is how long it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.model.trace import Trace

I64 = NDArray[np.int64]
Values = Mapping[str, NDArray[Any]]


def for_astra(job: Job) -> Job:
    """The job as ASTRA-sim can read it."""
    return _with_operations(_numbered(_evened(job)))


def _numbered(job: Job) -> Job:
    names = tuple(str(i + 1) for i in range(len(job.groups)))
    return replace(job, groups=replace(job.groups, names=names))


def _with_operations(job: Job) -> Job:
    traces = tuple(trace.replace(flops=_at_least_one(trace, trace.flops)) for trace in job.traces)
    values = {
        rank: {**own, "flops": _at_least_one(job.traces[int(job.trace_of[job.index(rank)])], own["flops"])}
        if "flops" in own
        else own
        for rank, own in job.values.items()
    }
    return replace(job, traces=traces, values=values)


def _at_least_one(trace: Trace, flops: NDArray[Any]) -> NDArray[Any]:
    return np.where((trace.kind == int(Kind.COMP)) & (flops == 0), 1, flops)


def _evened(job: Job) -> Job:
    """The job with `in_bytes` of collectives alike on their members; itself where they are so already."""
    if not job.values:
        return job
    rows = [_rows(trace) for trace in job.traces]
    sharers = _sharers(job)
    sizes: dict[tuple[int, int, frozenset[int]], I64] = {}
    made: dict[tuple[Any, ...], Values] = {}
    values = dict(job.values)
    for i, rank in enumerate(job.ranks.tolist()):
        number, own = int(job.trace_of[i]), job.values.get(rank, {})
        groups = job.group_of[job.group_start[i] : job.group_start[i + 1]].tolist()
        keys: list[tuple[int, int, frozenset[int]]] = []
        for slot, group in enumerate(groups):
            programs, members = sharers[group]
            if len(programs) == 1 and len(members) > 1 and len(rows[number][slot]):
                key = number, slot, frozenset(members)
                if key not in sizes:
                    sizes[key] = _fullest(job.traces[number], rows[number][slot], list(members.values()))
                keys.append(key)
        if keys:
            whole = (id(own), *keys)
            if whole not in made:
                changes = [(rows[number][key[1]], sizes[key]) for key in keys]
                made[whole] = _with(job.traces[number], own, changes)
            values[rank] = made[whole]
    return replace(job, values=values)


def _rows(trace: Trace) -> list[I64]:
    """Rows of the collectives of each group slot."""
    calls = trace.kind == int(Kind.COLL)
    return [np.flatnonzero(calls & (trace.group == slot)) for slot in range(len(trace.group_slots))]


def _sharers(job: Job) -> dict[int, tuple[set[int], dict[int, Values]]]:
    """Group -> (programs of its members, their distinct values by identity)."""
    found: dict[int, tuple[set[int], dict[int, Values]]] = {}
    for i, rank in enumerate(job.ranks.tolist()):
        own = job.values.get(rank, _NONE)
        for group in job.group_of[job.group_start[i] : job.group_start[i + 1]].tolist():
            programs, members = found.setdefault(group, (set(), {}))
            programs.add(int(job.trace_of[i]))
            members[id(own)] = own
    return found


_NONE: Values = {}


def _fullest(trace: Trace, rows: I64, members: list[Values]) -> I64:
    exchange = trace.collective[rows] == int(Collective.ALL_TO_ALL)
    most = np.zeros(len(rows), np.int64)
    for own in members:
        sent = own.get("in_bytes", trace.in_bytes)[rows]
        got = own.get("out_bytes", trace.out_bytes)[rows]
        most = np.maximum(most, np.where(exchange, np.maximum(sent, got), sent))
    return most


def _with(trace: Trace, own: Values, changes: list[tuple[I64, I64]]) -> Values:
    sent = own.get("in_bytes", trace.in_bytes).copy()
    for rows, size in changes:
        sent[rows] = size
    return {**own, "in_bytes": sent}
