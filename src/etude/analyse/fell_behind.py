"""Which rank an aborted run waits for, if no call was recorded as hanging: the member that has done less than the
others since the last collective that all of them reached.

    rank 0   gemm  sum  gemm  norm        a sum follows, which never ends and was never recorded
    rank 1   gemm  sum  gemm  norm
    rank 2   gemm  sum  gemm              this one never reaches it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.analyse.device_work import on_device
from etude.analyse.operations import CollectiveCalls, group_name
from etude.kernels.arrays import I64, Bool
from etude.model.job import Job
from etude.model.match import WORLD
from etude.model.run import Run
from etude.model.schema import UNKNOWN
from etude.model.use import Use, uses

__all__ = ["MissingRank", "fell_behind", "members_of"]


CUT: Final = 0.6
"""Confidence if it lacks one node, which the end of the recording may have cut off."""
BEHIND: Final = 0.8
"""Confidence if it lacks more."""
LEAST: Final = 3
"""Smallest group in which one member can be said to be behind."""


@dataclass(frozen=True, slots=True)
class MissingRank:
    rank: int
    confidence: float
    evidence: str
    since: int | None = None
    """First step without it, if steps are known."""


@dataclass(frozen=True, slots=True)
class _Behind:
    rank: int
    group: int
    ran: int
    others: int


def fell_behind(run: Run, found: CollectiveCalls, waits: Bool) -> Iterator[MissingRank]:
    """Groups whose members did the same until their last call, and of which all but one did the same since then."""
    job = run.job
    groups = {group: members_of(job, found, group) for group in np.unique(found.group).tolist()}
    starts = _computed(run) if groups else []
    some = [one for group in groups if (one := _behind(job, found, (group, groups[group]), starts)) is not None]
    named = {one.rank for one in some}
    first = {one.group: one.rank for one in some}
    for one in some:
        # if a member is behind because it waits in another group, the member that is behind there is reported
        beside = {g: {*m.tolist()} for g, m in groups.items() if g != one.group and one.rank in m}
        mine = [g for g, members in beside.items() if members <= named]
        if waits[int(np.searchsorted(job.ranks, one.rank))] or any(first.get(g) != one.rank for g in mine):
            continue
        evidence = (
            f"has run {one.ran} kernels since the last collective of group `{group_name(job, one.group)}` of "
            f"{len(groups[one.group])} ranks, and all others {one.others}: it never reached the next"
        )
        yield MissingRank(one.rank, BEHIND if one.others - one.ran > 1 else CUT, evidence)


def _behind(
    job: Job, found: CollectiveCalls, group: tuple[int, NDArray[np.signedinteger]], starts: list[I64]
) -> _Behind | None:
    """The member that has run fewer kernels than all others since the last call, if the others have run equally
    many."""
    at = np.flatnonzero(np.isin(job.ranks, group[1]))
    last = int(np.flatnonzero(found.group == group[0])[-1])
    span = slice(int(found.first[last]), int(found.first[last + 1]))
    ends = found.end_ns[span]
    if len(at) < LEAST or len(at) != len(group[1]) or not np.array_equal(found.at[span], at) or (ends == UNKNOWN).any():
        return None  # some are absent or have fewer calls: other checks report that
    before = [int(np.searchsorted(starts[a], end)) for a, end in zip(at.tolist(), ends.tolist(), strict=True)]
    after = np.array([len(starts[a]) - b for a, b in zip(at.tolist(), before, strict=True)])
    one = int(np.argmin(after))
    others = np.unique(np.delete(after, one))
    if len(set(before)) > 1 or len(others) > 1 or after[one] >= others[0]:
        return None
    return _Behind(int(job.ranks[at[one]]), group[0], int(after[one]), int(others[0]))


def _computed(run: Run) -> list[I64]:
    """By position: when each rank's kernels began, in order."""
    found: list[I64] = [np.zeros(0, np.int64)] * len(run.job.ranks)
    for part in run.parts():
        use = uses(part.trace)
        starts = np.sort(part.start_ns[on_device(part, use) & (use == Use.COMPUTE)])
        for at in part.at.tolist():
            found[at] = starts
    return found


def members_of(job: Job, found: CollectiveCalls, group: int) -> NDArray[np.signedinteger]:
    """Members of a group: as the job says, otherwise those seen in its calls."""
    if group == WORLD:
        return np.arange(job.world_size)
    known = job.groups.ranks(group)
    if known is not None and len(known):
        return known
    return job.ranks[np.unique(found.at[np.isin(found.of, np.flatnonzero(found.group == group))])]
