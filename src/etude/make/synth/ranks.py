"""Structure of a job that is learned from: which ranks run which role, their groups and peers, and which groups grow in
a larger job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.make.synth.learned import COLUMNS, LearnedRole, Template
from etude.make.synth.programs import FIELDS, LearnedProgram
from etude.model import graph
from etude.model.job import Job
from etude.model.schema import UNKNOWN


def template_of(
    job: Job, programs: Sequence[LearnedProgram], roles: Sequence[Sequence[int]], learned: Sequence[LearnedRole]
) -> Template:
    """How the ranks of a job are combined. Roles are lists of programs; the first of each is the learned one."""
    members = [job.groups.members[a:b] for a, b in zip(job.groups.start[:-1], job.groups.start[1:], strict=True)]
    role_of = np.empty(len(job), np.int64)
    of_program = np.empty(len(job), np.int64)
    for number, role in enumerate(roles):
        for i in role:
            role_of[programs[i].ranks], of_program[programs[i].ranks] = number, i
    group_tables, peer_tables = [], []
    for number in range(len(roles)):
        ranks = np.flatnonzero(role_of == number)
        slots = [(programs[i].group_slots, programs[i].peer_slots) for i in of_program[ranks].tolist()]
        groups = [job.group_of[job.group_start[r] + own] for r, (own, _) in zip(ranks, slots, strict=True)]
        peers = [job.peer_of[job.peer_start[r] + own] - r for r, (_, own) in zip(ranks, slots, strict=True)]
        group_tables.append(np.stack(groups).astype(np.int64))
        peer_tables.append(np.stack(peers).astype(np.int64))
    used = np.unique(np.concatenate([table.ravel() for table in group_tables]))
    members = [members[g] for g in used.tolist()]
    group_tables = [np.searchsorted(used, table) for table in group_tables]
    grows, axis = _growing(members, role_of, group_tables, [programs[role[0]] for role in roles])
    return Template(
        ranks=len(job),
        nodes=job.nodes,
        roles=tuple(learned),
        role_of=runs(role_of),
        groups=[_arithmetic(m) for m in members],
        group_of=[runs(slot) for table in group_tables for slot in table.T],
        peer_of=[runs(slot) for table in peer_tables for slot in table.T],
        grows=grows,
        axis=axis,
    )


def runs(values: NDArray[Any]) -> list[tuple[int, int]]:
    """(times, value), one after another."""
    if not len(values):
        return []
    first = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1])
    return list(zip(np.diff(np.append(first, len(values))).tolist(), values[first].tolist(), strict=True))


def _arithmetic(members: NDArray[Any]) -> list[tuple[int, int, int]]:
    """Runs of (first, stride, count)."""
    found: list[tuple[int, int, int]] = []
    at = 0
    while at < len(members):
        steps = np.diff(members[at:])
        same = np.flatnonzero(steps != steps[0]) if len(steps) else steps
        count = 1 if not len(steps) else 1 + (int(same[0]) if len(same) else len(steps))
        found.append((int(members[at]), int(steps[0]) if count > 1 else 1, count))
        at += count
    return found


def _growing(
    members: list[NDArray[Any]], role_of: I64, tables: Sequence[I64], programs: Sequence[LearnedProgram]
) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """Groups that are longer in a larger job: data parallelism, and all groups in which two of its members meet.

    It is identified by its purpose: of the groups of ranks alike, those whose collectives the rest of the step waits
    for least. Gradients are summed for the optimizer; what tensor-parallel ranks sum, the next layer needs.
    """
    home = np.full(len(role_of), -1, np.int64)
    for role, (table, program) in enumerate(zip(tables, programs, strict=True)):
        slot = _data_parallel(program, [members[g] for g in table[0].tolist()], role_of)
        if slot is None:
            return (), None
        home[role_of == role] = table[:, slot]
    used = np.unique(np.concatenate([table.ravel() for table in tables])).tolist()
    grows = tuple(g for g in used if len(np.unique(home[members[g]])) < len(members[g]))
    return grows, _axis(home, members)


def _data_parallel(program: LearnedProgram, groups: list[NDArray[Any]], role_of: I64) -> int | None:
    """The slot for gradients: among those with similar ranks, and a significant amount to send, the one that delays
    others least. Without similar ranks, any slot."""
    height = _heights(program)
    sent = program.values[0][:, COLUMNS.index("in_bytes")].astype(np.float64)
    sent[sent == UNKNOWN] = 0.0
    group = program.what[:, FIELDS.index("group")]
    total = np.array([sent[group == slot].sum() for slot in range(len(groups))])
    found = []
    for slot, members in enumerate(groups):
        if len(members) > 1 and total[slot] > 0.01 * total.max():
            calls = group == slot
            waited = float((height[calls] * sent[calls]).sum() / total[slot])
            found.append((bool((role_of[members] != role_of[members[0]]).any()), waited, slot))
    return min(found)[2] if found else None


def _axis(home: I64, members: list[NDArray[Any]]) -> tuple[int, int] | None:
    """(stride, size) of groups that form an axis in the numbering of ranks; None if they do not."""
    first = members[int(home[0])]
    stride, size = int(first[1] - first[0]), len(first)
    if stride < 1 or len(home) % (stride * size):
        return None
    rank = np.arange(len(home))
    block = rank // (stride * size) * stride + rank % stride
    distinct = np.unique(np.stack([block, home], 1), axis=0)
    fits = len(distinct) == len(home) // size and all(len(members[g]) == size for g in np.unique(home))
    return (stride, size) if fits and all((np.diff(members[g]) == stride).all() for g in np.unique(home)) else None


def _heights(program: LearnedProgram) -> I64:
    """Nodes on the longest path from each place to the end."""
    frees = graph.successors(program.trace)
    start, rows = frees.start.tolist(), frees.rows.tolist()
    height = [0] * len(program)
    for row in reversed(program.order.tolist()):
        height[row] = max((height[other] + 1 for other in rows[start[row] : start[row + 1]]), default=0)
    return np.array(height, np.int64)[program.order]
