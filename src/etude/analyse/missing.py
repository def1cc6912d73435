"""Participants that never came: who the others wait for when a run stands still."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from etude.analyse.operations import Calls, group_name, group_size
from etude.model.job import Job, ranges
from etude.model.match import WORLD
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.timing import Timing

Bool = NDArray[np.bool_]


def missing(job: Job, timing: Timing, found: Calls) -> Iterator[tuple[int, str]]:
    """(rank, why) of each rank that others wait for in a collective that began and never ended, while it waits for
    nobody itself. A rank that is not in the job at all counts if the others stand in a call that it belongs to."""
    started = found.start_ns != UNKNOWN
    open_ = started & (found.end_ns == UNKNOWN)
    if not open_.any():
        return
    waits = _waiting(job, timing)
    stuck = np.unique(found.of[open_])
    told = set()
    for call in stuck.tolist():
        span = slice(int(found.first[call]), int(found.first[call + 1]))
        group = int(found.group[call])
        here = job.ranks[found.at[span]]
        not_come = here[~started[span]].tolist()
        members = _members(job, group)
        not_come += [r for r in members if r not in set(job.ranks.tolist())]
        for rank in not_come:
            at = int(np.searchsorted(job.ranks, rank))
            absent = at == len(job.ranks) or job.ranks[at] != rank
            if rank in told or (not absent and waits[at]):
                continue
            told.add(rank)
            kind = Collective(int(found.collective[call])).name.lower()
            waiting = ranges(here[open_[span]])
            size = int(group_size(job, found.group[call : call + 1])[0])
            yield (
                rank,
                (
                    f"never came to {kind} {int(found.number[call]) + 1} of group `{group_name(job, group)}` of {size} "
                    f"ranks, in which rank {waiting} waits" + _last_seen(job, timing, at if not absent else -1)
                ),
            )


def _members(job: Job, group: int) -> list[int]:
    if group == WORLD:
        return list(range(job.world_size)) if job.world_size > len(job.ranks) else []
    members = job.groups.ranks(group)
    return [] if members is None else members.tolist()


def _waiting(job: Job, timing: Timing) -> Bool:
    """Ranks that stand in a communication."""
    found = np.zeros(len(job.ranks), bool)
    for at in range(len(job.ranks)):
        start, end = timing.block(at)
        kind = job.traces[int(job.trace_of[at])].kind
        found[at] = ((start != UNKNOWN) & (end == UNKNOWN) & np.isin(kind, (Kind.COLL, Kind.SEND, Kind.RECV))).any()
    return found


def _last_seen(job: Job, timing: Timing, at: int) -> str:
    if at < 0:
        return "; nothing of it was recorded"
    start, end = timing.block(at)
    trace = job.traces[int(job.trace_of[at])]
    running = np.flatnonzero((start != UNKNOWN) & (end == UNKNOWN))
    if len(running):
        return f"; it is still in node {int(running[0])} (`{trace.text('name', int(running[0]))}`)"
    done = np.flatnonzero(end != UNKNOWN)
    if not len(done):
        return "; it never started"
    last = int(done[np.argmax(end[done])])
    return f"; the last that it did is node {last} (`{trace.text('name', last)}`)"
