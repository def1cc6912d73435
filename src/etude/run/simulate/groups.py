"""The groups that a job uses and what they cost: who has to come, where they sit, which links they cross."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from etude.base.errors import ClusterError, UsageError
from etude.cost.groups import GroupShape, group_shape, group_shapes
from etude.kernels.arrays import F64, I32, I64, Bool
from etude.kernels.csr import starts
from etude.kernels.distinct import AT_ONCE, numbered_rows
from etude.machine.system import LINED, LevelKind, System
from etude.model.job import Job
from etude.model.match import WORLD, Matching, positions
from etude.run.simulate.options import Options


@dataclass(frozen=True, slots=True, eq=False)
class UsedGroups:
    """Groups on which some rank issues a collective, by their number in the job."""

    group: I32
    of_use: I32
    """For each entry of matching.uses its row here."""
    shape: I32
    """Row of `shapes`: groups of one shape have the same costs."""
    factor: F64
    """Factor of the slowest link between two members."""
    lacks: Bool
    """A member that is present issues nothing on it."""
    partial: Bool
    """Members are absent, or not known at all."""
    shapes: tuple[GroupShape, ...]


def used_groups(job: Job, matching: Matching, system: System, options: Options) -> UsedGroups:
    uses = matching.uses
    bounds = starts(uses.group)[: None if len(uses.group) else 1]  # uses are ordered by group
    group, users = uses.group[bounds[:-1]], np.diff(bounds)
    of_use = np.repeat(np.arange(len(group)), users)
    owner, member, known = _members(job, matching, group, of_use)
    size = np.bincount(owner, minlength=len(group))
    here = np.bincount(owner[positions(job, member) >= 0], minlength=len(group))
    start = np.concatenate([[0], np.cumsum(size)])
    try:
        shape, shapes = group_shapes(system, member, start)
    except UsageError:
        for name, a, b in zip(group.tolist(), start[:-1].tolist(), start[1:].tolist(), strict=True):
            _shape(system, member[a:b], _name(job, name))
        raise
    return UsedGroups(
        group,
        of_use.astype(np.int32),
        shape,
        _slowest(job, group, owner, member, options),
        known & (here > users),
        ~known | (here < size),
        shapes,
    )


def _members(job: Job, matching: Matching, group: I32, of_use: I64) -> tuple[I64, I64, Bool]:
    """(row of the group, member) of all members, ascending; those that use it if its members are unknown. And of which
    groups they are known."""
    groups, named = job.groups, group != WORLD
    known = ~named
    known[named] = groups.known[group[named]]
    listed = np.flatnonzero(named & known)
    length = np.diff(groups.start)[group[listed]]
    owner = [np.repeat(listed, length)]
    first = groups.start[group[listed]]
    member = [groups.members[np.arange(length.sum()) - np.repeat(np.cumsum(length) - length - first, length)]]
    for row in np.flatnonzero(~named).tolist():
        owner.append(np.full(job.world_size, row))
        member.append(np.arange(job.world_size, dtype=np.int32))
    some = ~known[of_use]
    owner.append(of_use[some])
    member.append(job.ranks[matching.uses.at[some]])
    rows, ranks = np.concatenate(owner, dtype=np.int64), np.concatenate(member, dtype=np.int64)
    del owner, member
    if ((rows[1:] < rows[:-1]) | ((rows[1:] == rows[:-1]) & (ranks[1:] <= ranks[:-1]))).any():
        low = min(int(ranks.min()), 0)
        span = int(ranks.max()) - low + 1
        key = np.unique(rows * span + ranks - low)
        rows, ranks = key // span, key % span + low
    return rows, ranks, known


def _shape(system: System, members: I64, name: str) -> GroupShape:
    try:
        return group_shape(system, members)
    except UsageError as problem:
        raise UsageError(problem.problem, where=f"group `{name}`", hint=problem.hint) from None


def members_of(job: Job, matching: Matching, groups: UsedGroups, row: int) -> I64:
    """Ranks of the group of a row, in its order; those that use it if its members are unknown."""
    name = int(groups.group[row])
    known = np.arange(job.world_size) if name == WORLD else job.groups.ranks(name)
    if known is None:
        known = job.ranks[np.unique(matching.uses.at[groups.of_use == row])]
    return np.asarray(known, np.int64)


def _name(job: Job, group: int) -> str:
    return "world" if group == WORLD else job.groups.names[group]


def _slowest(job: Job, group: I32, owner: I64, member: I64, options: Options) -> F64:
    """Factor of the slowest link between two members, of each group."""
    worst = np.ones(len(group))
    for (a, b), factor in options.slow_pairs:
        both = np.intersect1d(owner[member == a], owner[member == b])
        if math.isinf(factor) and len(both):
            raise _failed(a, b, f"group `{_name(job, int(group[both[0]]))}`")
        worst[both] = np.where(worst[both] != 1.0, np.maximum(worst[both], factor), factor)
    return worst


def link_factors(src: I64, dst: I64, options: Options) -> F64:
    """Factor on the messages of each pair of ranks."""
    factor = np.ones(len(src))
    for (a, b), slow in options.slow_pairs:
        hit = ((src == a) & (dst == b)) | ((src == b) & (dst == a))
        if math.isinf(slow) and hit.any():
            raise _failed(a, b, "a message")
        factor[hit] = slow
    return factor


def _failed(a: int, b: int, who: str) -> ClusterError:
    return ClusterError(
        f"the link between ranks {a} and {b} has failed, but {who} needs it",
        hint="closed forms cannot route around it: `--network flow` or `links` can; or give the link a factor",
    )


def link_distance(system: System, src: I64, dst: I64) -> I32:
    """A number for each pair of ranks, equal where messages between them cost the same: hops at each level."""
    every = np.zeros(len(src), np.int64)  # hops of all levels in one number, which is less than the devices
    for low in range(0, len(src), AT_ONCE):
        part = slice(low, low + AT_ONCE)
        a, b, hops = system.device_of(src[part]), system.device_of(dst[part]), every[part]
        for level in system.levels:
            apart = np.abs(a % level.size - b % level.size)
            if level.kind == LevelKind.RING:
                apart = np.minimum(apart, level.size - apart)
            hops *= level.size
            hops += apart if level.kind in LINED else apart > 0
            a, b = a // level.size, b // level.size
    return numbered_rows(every[:, None])[0].astype(np.int32)
