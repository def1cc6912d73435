"""The groups that a job uses and what they cost: who has to come, where they sit, which links they cross."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from etude.base.errors import ClusterError, UsageError
from etude.cost.groups import GroupShape, group_shape
from etude.kernels.arrays import F64, I32, I64, Bool
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
    group, of_use, users = np.unique(uses.group, return_inverse=True, return_counts=True)
    number: dict[GroupShape, int] = {}
    shape, factor = np.zeros(len(group), np.int32), np.ones(len(group))
    lacks, partial = np.zeros(len(group), bool), np.zeros(len(group), bool)
    order = np.argsort(of_use.reshape(-1), kind="stable")
    first = np.concatenate([[0], np.cumsum(users)])
    for g, name in enumerate(group.tolist()):
        known = np.arange(job.world_size, dtype=np.int32) if name == WORLD else job.groups.ranks(name)
        if known is None:
            members = job.ranks[np.unique(uses.at[order[first[g] : first[g + 1]]])]
            partial[g] = True
        else:
            members = np.unique(known)
            here = int((positions(job, members.astype(np.int64)) >= 0).sum())
            lacks[g], partial[g] = here > users[g], here < len(members)
        shape[g] = number.setdefault(_shape(system, members, _name(job, name)), len(number))
        factor[g] = _slowest(members, options, f"group `{_name(job, name)}`")
    return UsedGroups(
        group.astype(np.int32), of_use.reshape(-1).astype(np.int32), shape, factor, lacks, partial, tuple(number)
    )


def _shape(system: System, members: I32, name: str) -> GroupShape:
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


def _slowest(members: I32, options: Options, who: str) -> float:
    worst = 1.0
    for (a, b), factor in options.slow_pairs:
        if a in members and b in members:
            if math.isinf(factor):
                raise _failed(a, b, who)
            worst = max(worst, factor) if worst != 1.0 else factor
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
    a, b = system.device_of(src), system.device_of(dst)
    hops = []
    for level in system.levels:
        apart = np.abs(a % level.size - b % level.size)
        if level.kind == LevelKind.RING:
            apart = np.minimum(apart, level.size - apart)
        hops.append(apart if level.kind in LINED else (apart > 0).astype(np.int64))
        a, b = a // level.size, b // level.size
    inverse = np.unique(np.stack(hops, 1), axis=0, return_inverse=True)[1]
    return inverse.reshape(-1).astype(np.int32)
