"""Ranks that follow the choices of another rank: leaders and followers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from etude.base.errors import MismatchError
from etude.kernels.arrays import I32, I64
from etude.model.schema import AGREE, ValueKind
from etude.run.simulate.lower import Lowered
from etude.run.simulate.programs import agrees


class Agreements(NamedTuple):
    """For each instance: its leader, and a linked list of its followers; -1 is none."""

    leader: I64
    follower: I64
    next_follower: I64


def agreements(lowered: Lowered, program: I32) -> Agreements:
    """Leaders and followers, from the `AGREE` attribute of nodes. Ranks that agree run the same program."""
    found = Agreements(*(np.full(len(program), -1, np.int64) for _ in Agreements._fields))
    job, slots = lowered.job, dict[int, tuple[int, int]]()
    for t, trace in enumerate(job.traces):
        if agrees(trace):
            nodes, place = trace.attr_cells()[AGREE, ValueKind.INT64]
            slots[t] = (int(trace.group[nodes[0]]), int(place[0])) if len(nodes) else (-1, -1)
    if not slots:
        return found
    position = {rank: at for at, rank in enumerate(job.ranks.tolist())}
    for instance in reversed(range(len(program))):
        at = int(lowered.classes.first[instance])
        leader = _leader(lowered, at, *slots.get(int(job.trace_of[at]), (-1, -1)))
        leader_at = position.get(leader, at)  # an absent rank leads none
        leads = int(lowered.classes.of[leader_at])
        if leads == instance:
            continue
        _check_alike(lowered, program, instance, leads)
        found.leader[instance], found.next_follower[instance] = leads, found.follower[leads]
        found.follower[leads] = instance
    return found


def _leader(lowered: Lowered, at: int, slot: int, place: int) -> int:
    """The rank whose choices the rank at this position follows; -1: none."""
    if slot < 0:
        return -1
    rank = int(lowered.job.ranks[at])
    members = lowered.job.groups.ranks(int(lowered.job.group_slots(rank)[slot]))
    return -1 if members is None or not 0 <= place < len(members) else int(members[place])


def _check_alike(lowered: Lowered, program: I32, instance: int, leader: int) -> None:
    start, rows = lowered.programs.start, lowered.programs.tables.rows
    one, other = (rows["lane"][start[p] : start[p + 1]] for p in (program[instance], program[leader]))
    if not np.array_equal(one, other):
        ranks = lowered.job.ranks[lowered.classes.first[[instance, leader]]].tolist()
        problem = f"rank {ranks[0]} must follow the order of rank {ranks[1]}, but runs another program"
        raise MismatchError(problem, hint="use `relax` without `agree`, or ranks of a group that run the same program")
