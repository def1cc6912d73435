"""Causes across lanes and ranks, as flows between slices; and counters over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from etude.kernels.arrays import I64
from etude.model import graph
from etude.model.job import Job
from etude.model.match import match
from etude.tell.view.slices import Slices, Sort

MOST_PER_SLICE = 256
"""Most flows of one slice; the rest is left out."""


@dataclass(frozen=True, slots=True, eq=False)
class SliceFlows:
    """Slice i takes part in the flows id[start[i]:start[i+1]]; a flow runs through its slices in order of time."""

    start: I64
    id: I64


@dataclass(frozen=True, slots=True, eq=False)
class Counter:
    """A value that holds from one time to the next."""

    rank: int
    name: str
    unit: str
    time_ns: I64
    value: I64


def flows_of(job: Job, slices: Slices) -> SliceFlows:
    """Dependencies between lanes of a rank, sends with their receives, and the members of each collective."""
    place = [np.zeros(0, np.int64)] * len(job.ranks)
    for at in np.unique(slices.at).tolist():
        rows = np.flatnonzero(slices.at == at)
        place[at] = np.full(len(job.traces[int(job.trace_of[at])]), -1, np.int64)
        place[at][slices.node[rows]] = rows
    who, flow = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    used = 0
    for slice_ids, flow_ids in (*_across_lanes(job, slices, place), *_across_ranks(job, place)):
        known = slice_ids >= 0
        who.append(slice_ids[known])
        flow.append(flow_ids[known] + used)
        used += int(flow_ids.max(initial=-1)) + 1
    return _by_slice(np.concatenate(who), np.concatenate(flow), len(slices))


Pairs = tuple[I64, I64]


def _across_lanes(job: Job, slices: Slices, place: list[I64]) -> Iterator[Pairs]:
    for at, of_node in enumerate(place):
        if not len(of_node):
            continue
        dep = graph.dependencies(job.traces[int(job.trace_of[at])])
        node = np.repeat(np.arange(len(dep)), np.diff(dep.start))
        before = np.where(dep.rows < 0, -1, of_node[dep.rows])
        after = of_node[node]
        crosses = (before >= 0) & (after >= 0)
        crosses[crosses] = slices.lane[before[crosses]] != slices.lane[after[crosses]]
        ends = np.stack([before[crosses], after[crosses]], 1)
        yield ends.ravel(), np.repeat(np.arange(len(ends)), 2)


def _across_ranks(job: Job, place: list[I64]) -> Iterator[Pairs]:
    found = match(job)
    sides = found.sides
    for group in np.unique(found.uses.group).tolist():
        uses = np.flatnonzero(found.uses.group == group)
        if len(uses) < 2:
            continue
        rows = [sides.rows[sides.span(side)] for side in found.uses.side[uses].tolist()]
        present = [(place[at], r) for at, r in zip(found.uses.at[uses].tolist(), rows, strict=True) if len(place[at])]
        if present:  # every member's k-th call is flow k of the group
            yield np.concatenate([of[r] for of, r in present]), np.concatenate([np.arange(len(r)) for _, r in present])
    for link in np.flatnonzero(found.links.pairing >= 0).tolist():
        pair = int(found.links.pairing[link])
        span = slice(int(found.pairings.start[pair]), int(found.pairings.start[pair + 1]))
        src, dst = place[int(found.links.src_at[link])], place[int(found.links.dst_at[link])]
        if len(src) and len(dst):
            send, recv = sides.rows[found.pairings.send_at[span]], sides.rows[found.pairings.recv_at[span]]
            ends = np.stack([src[send], dst[recv]], 1)
            yield ends.ravel(), np.repeat(np.arange(len(ends)), 2)


def _by_slice(who: I64, flow: I64, slices: int) -> SliceFlows:
    """As CSR, without flows of a single slice."""
    members = np.bincount(flow) if len(flow) else np.zeros(0, np.int64)
    kept = members[flow] > 1
    who, flow = who[kept], flow[kept]
    order = np.argsort(who, kind="stable")
    who, flow = who[order], flow[order]
    start = np.searchsorted(who, np.arange(slices + 1))
    within = np.arange(len(who)) - start[who]
    who, flow = who[within < MOST_PER_SLICE], flow[within < MOST_PER_SLICE]
    return SliceFlows(np.searchsorted(who, np.arange(slices + 1)).astype(np.int64), flow.astype(np.int64))


def running(slices: Slices) -> list[Counter]:
    """How many slices of device work run at a time, a counter for each rank and sort."""
    found = []
    rank_of = np.array([lane.rank for lane in slices.lanes] or [0], np.int32)[slices.lane]
    for rank in np.unique(rank_of).tolist():
        for sort in (Sort.COMPUTE, Sort.COPY, Sort.COMMUNICATION, Sort.MEMORY):
            rows = np.flatnonzero((rank_of == rank) & (slices.sort == sort) & (slices.end_ns > slices.start_ns))
            if not len(rows):
                continue
            times = np.concatenate([slices.start_ns[rows], slices.end_ns[rows]])
            steps = np.repeat(np.array([1, -1]), len(rows))
            time, where = np.unique(times, return_inverse=True)
            value = np.cumsum(np.bincount(where, steps)).astype(np.int64)
            changed = np.flatnonzero(np.diff(value, prepend=-1))
            found.append(Counter(rank, f"{sort.label} running", "", time[changed], value[changed]))
    return found
