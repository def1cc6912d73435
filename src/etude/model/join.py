"""Several jobs as one: their ranks on places of their own, everything else unchanged.

    both = join([a, b], [[0, 1, 2, 3], [4, 5, 6, 7]])

Rank r of the k-th job becomes rank places[k][r]. Groups, peers and values follow their ranks; ids and tags stay, since
they belong to a rank. A collective that names no group is one of its own job's world, and not of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import I32, I64, distinct_values
from etude.model.job import MAX_WORLD, Groups, Job, ranges
from etude.model.schema import Kind
from etude.model.timing import Timing, no_times
from etude.model.trace import Trace

Places = Sequence[Sequence[int] | I64]
"""For each job the place of each rank of its world."""
OWN_WORLD = "world"
"""Slot, and name of its group, of collectives that name no group."""


def places_of(jobs: Sequence[Job], given: Places | None = None) -> list[I64]:
    """Where each rank of each world goes: as given, or one job after the other. Refuses places that overlap."""
    if not jobs:
        raise UsageError("no job is given")
    if given is None:
        first = np.cumsum([0] + [job.world_size for job in jobs])
        return [np.arange(job.world_size) + first[k] for k, job in enumerate(jobs)]
    if len(given) != len(jobs):
        raise UsageError(
            f"{len(jobs)} jobs, but places for {len(given)}", hint="give places for every job, or for none"
        )
    places = [np.asarray(ranks, np.int64).reshape(-1) for ranks in given]
    for k, (job, ranks) in enumerate(zip(jobs, places, strict=True)):
        where = f"job {k} (`{job.name}`)"
        if len(ranks) != job.world_size:
            hint = f"--place 0-{job.world_size - 1}"
            raise UsageError(f"{len(ranks)} places for a world of {job.world_size}", where=where, hint=hint)
        if len(ranks) and not 0 <= ranks.min() <= ranks.max() < MAX_WORLD:
            raise UsageError(f"places {ranges(ranks)} are outside any system", where=where)
        if len(distinct_values(ranks)) < len(ranks):
            raise UsageError("two of its ranks have the same place", where=where)
    flat, count = np.unique(np.concatenate(places), return_counts=True)
    if (count > 1).any():
        twice = flat[count > 1]
        both = [k for k, ranks in enumerate(places) if twice[0] in ranks]
        raise UsageError(
            f"jobs {both[0]} and {both[1]} overlap: both are placed on {ranges(twice)}",
            hint="a rank of the system runs one job at a time; without --place jobs get consecutive ranks",
        )
    return places


def join(jobs: Sequence[Job], places: Places | None = None, name: str = "jobs") -> Job:
    """One job of all of them; its world ends with the last place."""
    where = places_of(jobs, places)
    if len(jobs) == 1 and np.array_equal(where[0], np.arange(jobs[0].world_size)):
        return jobs[0]
    moved = [_moved(job, place) for job, place in zip(jobs, where, strict=True)]
    ranks = np.concatenate([job.ranks for job in moved])
    order = np.argsort(ranks, kind="stable")
    firsts = {what: np.cumsum([0] + [len(getattr(job, what)) for job in moved]) for what in ("traces", "metadata")}
    groups = _groups(moved)
    group_of = np.concatenate([job.group_of + first for job, first in zip(moved, groups[1], strict=False)])
    group_start, group_at = _reordered([job.group_start for job in moved], order)
    peer_start, peer_at = _reordered([job.peer_start for job in moved], order)

    def shifted(column: str, what: str) -> I32:
        found = [getattr(job, column) + firsts[what][k] for k, job in enumerate(moved)]
        return np.concatenate(found)[order].astype(np.int32)

    return Job(
        name=name,
        traces=tuple(trace for job in moved for trace in job.traces),
        ranks=ranks[order],
        trace_of=shifted("trace_of", "traces"),
        groups=groups[0],
        group_start=group_start,
        group_of=group_of[group_at].astype(np.int32),
        peer_start=peer_start,
        peer_of=np.concatenate([job.peer_of for job in moved])[peer_at],
        id_base=np.concatenate([job.id_base for job in moved])[order],
        tag_base=np.concatenate([job.tag_base for job in moved])[order],
        world_size=max(int(place.max(initial=-1)) + 1 for place in where),
        metadata=tuple(blob for job in moved for blob in job.metadata),
        metadata_of=shifted("metadata_of", "metadata"),
        values={rank: own for job in moved for rank, own in job.values.items()},
        timing=_timing(moved, order),
        notes=tuple(note for job in jobs for note in job.notes),
    )


def _moved(job: Job, place: I64) -> Job:
    """The same job on other ranks, which may no longer ascend; peers outside the world stay outside."""
    job = _with_own_world(job)
    members = job.groups.members.astype(np.int64)
    inside = (job.peer_of >= 0) & (job.peer_of < len(place))
    peers = np.where(inside, place[np.where(inside, job.peer_of, 0)], np.where(job.peer_of < 0, job.peer_of, MAX_WORLD))
    if len(members) and not 0 <= members.min() <= members.max() < len(place):
        raise UsageError(f"job `{job.name}`: a group has members outside its world of {len(place)}")
    ranks = place[job.ranks]
    order = np.argsort(ranks, kind="stable")
    group_start, group_at = _reordered([job.group_start], order)
    peer_start, peer_at = _reordered([job.peer_start], order)
    timing = job.timing
    if timing is not None:
        clock = timing.clock_offset_ns[order]
        timing = Timing(
            origin=timing.origin, start_ns=timing.start_ns, end_ns=timing.end_ns, block_of=timing.block_of[order],
            clock_offset_ns=clock, aligned=timing.aligned, partial=timing.partial,
        )  # fmt: skip
    return job.replace(
        ranks=ranks[order].astype(np.int32),
        trace_of=job.trace_of[order],
        groups=Groups(job.groups.names, job.groups.start, place[members].astype(np.int32), job.groups.known),
        group_start=group_start,
        group_of=job.group_of[group_at],
        peer_start=peer_start,
        peer_of=peers[peer_at],
        id_base=job.id_base[order],
        tag_base=job.tag_base[order],
        metadata_of=job.metadata_of[order],
        values={int(place[rank]): own for rank, own in job.values.items()},
        timing=timing,
        world_size=int(place.max(initial=-1)) + 1,
    )


def _with_own_world(job: Job) -> Job:
    """The job with a group of all its ranks for collectives without one."""
    nameless = [(trace.kind == Kind.COLL) & (trace.group < 0) for trace in job.traces]
    some = np.array([mask.any() for mask in nameless], bool)
    if not some.any():
        return job
    traces = [_with_slot(t, m) if m.any() else t for t, m in zip(job.traces, nameless, strict=True)]
    more = some[job.trace_of].astype(np.int64)
    group_of = np.insert(job.group_of, job.group_start[1:][more > 0], len(job.groups))
    known = job.groups
    groups = Groups(
        (*known.names, OWN_WORLD),
        np.append(known.start, known.start[-1] + job.world_size),
        np.append(known.members, np.arange(job.world_size)).astype(np.int32),
        np.append(known.known, True),
    )
    start = job.group_start + np.concatenate([[0], np.cumsum(more)])
    return job.replace(traces=tuple(traces), groups=groups, group_start=start, group_of=group_of.astype(np.int32))


def _with_slot(trace: Trace, nameless: NDArray[np.bool_]) -> Trace:
    group = np.where(nameless, np.int32(len(trace.group_slots)), trace.group).astype(np.int32)
    return trace.replace(group=group, group_slots=(*trace.group_slots, OWN_WORLD))


def _groups(jobs: Sequence[Job]) -> tuple[Groups, I64]:
    """All groups, and where those of each job begin."""
    first = np.cumsum([0] + [len(job.groups) for job in jobs])
    sizes = np.concatenate([np.diff(job.groups.start) for job in jobs])
    found = Groups(
        tuple(name for job in jobs for name in job.groups.names),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        np.concatenate([job.groups.members for job in jobs]).astype(np.int32),
        np.concatenate([job.groups.known for job in jobs]),
    )
    return found, first


def _reordered(starts: Sequence[I64], order: I64) -> tuple[I64, I64]:
    """Row starts of one table after the other, its rows in another order: (new starts, where each entry comes from)."""
    count = np.concatenate([np.diff(start) for start in starts])
    first = np.cumsum(count) - count
    start = np.concatenate([[0], np.cumsum(count[order])]).astype(np.int64)
    at = np.repeat(first[order] - start[:-1], count[order]) + np.arange(int(start[-1]))
    return start, at.astype(np.int64)


def _timing(jobs: Sequence[Job], order: I64) -> Timing | None:
    """Recorded times of all jobs, unknown for a job without any."""
    if all(job.timing is None for job in jobs):
        return None
    nodes = [[len(job.traces[t]) for t in job.trace_of.tolist()] for job in jobs]
    times = [job.timing or no_times(own) for job, own in zip(jobs, nodes, strict=True)]
    first = np.cumsum([0] + [len(t.start_ns) for t in times])
    return Timing(
        origin=next(job.timing.origin for job in jobs if job.timing is not None),
        start_ns=tuple(block for t in times for block in t.start_ns),
        end_ns=tuple(block for t in times for block in t.end_ns),
        block_of=np.concatenate([t.block_of + first[k] for k, t in enumerate(times)])[order].astype(np.int32),
        clock_offset_ns=np.concatenate([t.clock_offset_ns for t in times])[order],
        partial=any(t.partial for t in times),
    )
