"""learn(jobs): a model of what they have in common.

The nodes of a program, each behind what it waits for, become classes: what a node does, where it runs, how large it is.
What it waits for is said by class and how many of that class back; what follows from the rest is left out. Ranks that
ran nearly the same program, and steps that did, are taken for one; by how much they differ in time is learned apart.
Repeats of the sequence are folded. Sizes become quantiles of their class, over all jobs together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

import msgspec
import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64, distinct_values
from etude.make.synth.classes import classes_of, described, sizes
from etude.make.synth.learned import COLUMNS, RARE, VERSION, Learned, Symbol
from etude.make.synth.order import learned_role
from etude.make.synth.programs import FIELDS, LearnedProgram, programs_of
from etude.make.synth.ranks import template_of
from etude.make.synth.spread import late_of, own_share, spread_of
from etude.model.fold import fold
from etude.model.job import Job
from etude.model.schema import NODE, UNKNOWN, Kind

ALIKE: Final = 0.1
"""Fraction of its nodes in which a program or a step may differ from another and still count as the same."""
ALIKE_NS: Final = 0.05
"""The same for their time."""


def learn(jobs: Sequence[Job], at_least: int = 1) -> Learned:
    """What there is to learn of these jobs. `at_least`: nodes that every number must cover.

    learned = etude.extend.learn([job])
    """
    if not jobs:
        raise UsageError("no job to learn from")
    if at_least < 1:
        raise UsageError(f"a minimum of {at_least} nodes per value is not valid", hint="use at least 1")
    jobs = [fold(_whole(job)) for job in jobs]
    words: dict[str, int] = {}
    by_job = [programs_of(job, words) for job in jobs]
    programs = [program for some in by_job for program in some]
    classes, nodes = classes_of(programs, at_least)
    ends = [0, *accumulate(map(len, by_job))]
    roles = [_roles(range(a, b), programs, classes) for a, b in pairwise(ends)]
    host, device, level = spread_of(roles, programs, classes)
    own = own_share(roles, programs, classes, len(nodes))
    book: dict[Symbol, int] = {}
    templates = []
    for job, some, first in zip(jobs, roles, ends, strict=False):
        chosen = [_medoid(role, classes) for role in some]
        block = _block([(programs[i], classes[i]) for i in chosen])
        learned = []
        for i, role in zip(chosen, some, strict=True):
            one = learned_role(programs[i], classes[i], block, book)
            late, slow = late_of([programs[j] for j in role]), level[role].mean(axis=0).round(3).tolist()
            learned.append(msgspec.structs.replace(one, late_ns=late, level=tuple(slow)))
        # The program that was learned comes first in its role.
        ordered = [[i - first, *(j - first for j in role if j != i)] for i, role in zip(chosen, some, strict=True)]
        templates.append(template_of(job, programs[first:], ordered, learned))
    return Learned(
        version=VERSION,
        classes=described(programs, classes, own, nodes, at_least),
        symbols=tuple(book),
        templates=tuple(templates),
        host=host,
        device=device,
        at_least=at_least,
        rare=int((nodes < RARE).sum()),
    )


def _whole(job: Job) -> Job:
    if not job.nodes:
        raise UsageError("has no nodes, so there is nothing to learn", where=job.name)
    if len(job) != job.world_size:
        raise UsageError(f"{len(job)} of {job.world_size} ranks are present, but all are needed", where=job.name)
    for rank in range(len(job)):
        trace, base = job.traces[int(job.trace_of[rank])], int(job.group_start[rank])
        called = distinct_values(trace.group[(trace.kind == Kind.COLL) & (trace.group >= 0)])
        for group in job.group_of[base + called].tolist():
            if not job.groups.known[group]:
                problem = f"the members of group `{job.groups.names[group]}` are not known"
                raise UsageError(problem, where=job.name, hint="give a group file: --groups")
    return job


# -- what is taken for one ---------------------------------------------------------------------------------------


def _roles(numbers: range, programs: Sequence[LearnedProgram], classes: Sequence[I64]) -> list[list[int]]:
    """Programs that make the same calls in the same steps and differ in few of their nodes."""
    found: list[list[int]] = []
    for i in numbers:
        for some in found:
            one, two = programs[i], programs[some[0]]
            if _calls(one) == _calls(two) and _alike((one, classes[i]), (two, classes[some[0]])):
                some.append(i)
                break
        else:
            found.append([i])
    return found


def _calls(program: LearnedProgram, step: int | None = None) -> bytes:
    """What is sent, in order, regardless of the thread."""
    mine = program.talks if step is None else program.talks & (program.step == step)
    what = program.what[mine][:, [FIELDS.index(f) for f in ("kind", "collective", "group", "src", "dst")]]
    return np.column_stack([program.step[mine] if step is None else what[:, 0], what, sizes(program)[mine]]).tobytes()


def _alike(a: tuple[LearnedProgram, I64], b: tuple[LearnedProgram, I64], steps: tuple[int, int] | None = None) -> bool:
    """Whether few of the nodes are in only one of them, these do not take long, and none takes much longer in one."""
    (one, left), (two, right) = a, b
    mine, theirs = np.ones(len(one), bool), np.ones(len(two), bool)
    if steps:
        mine, theirs = one.step == steps[0], two.step == steps[1]
    count = int(max(left.max(initial=0), right.max(initial=0))) + 1
    nodes = [np.bincount(of, minlength=count) for of in (left[mine], right[theirs])]
    took = [np.bincount(left[mine], one.time_ns[mine], count), np.bincount(right[theirs], two.time_ns[theirs], count)]
    usual, total = (took[0] + took[1]) / np.maximum(nodes[0] + nodes[1], 1), max(took[0].sum() + took[1].sum(), 1)
    few = np.abs(nodes[0] - nodes[1])
    same = few.sum() <= ALIKE * (nodes[0].sum() + nodes[1].sum())
    return bool(
        same and (few * usual).sum() <= ALIKE_NS * total and np.abs(took[0] - took[1]).max() <= ALIKE_NS * total
    )


def _medoid(role: Sequence[int], classes: Sequence[I64]) -> int:
    """The program nearest to all."""
    if len(role) < 3:
        return role[0]
    some = role[:16]
    count = max(int(classes[i].max(initial=0)) for i in some) + 1
    nodes = {i: np.bincount(classes[i], minlength=count) for i in some}
    return min(some, key=lambda i: sum(int(np.abs(nodes[i] - nodes[j]).sum()) for j in some))


def _block(roles: Sequence[tuple[LearnedProgram, I64]]) -> tuple[int, int]:
    """(first, end) of the steps that count as one, on all roles: the longest run; (0, 0): there is none."""
    if len({program.steps for program, _ in roles}) > 1:
        return 0, 0
    steps = roles[0][0].steps
    alike = [all(_same_step(p, c, s, s + 1) for p, c in roles) for s in range(steps - 1)]
    best, begin = (0, 0), 0
    for s in range(steps):
        if s == steps - 1 or not alike[s]:
            if s + 1 - begin > best[1] - best[0] and s > begin:
                best = begin, s + 1
            begin = s + 1
    return best


def _same_step(program: LearnedProgram, classes: I64, a: int, b: int) -> bool:
    return _calls(program, a) == _calls(program, b) and _alike((program, classes), (program, classes), (a, b))


# -- what is left behind -----------------------------------------------------------------------------------------


WORDS: Final = {"name": "names", "phase": "phases", "module": "modules"}


def hidden(jobs: Sequence[Job]) -> dict[str, int]:
    """Counts of what the jobs have and a model of them does not."""
    found: dict[str, int] = {}

    def add(what: str, count: int) -> None:
        found[what] = found.get(what, 0) + count

    for job in jobs:
        add("group names", len(job.groups))
        add("metadata", len(job.metadata))
        add("notes and provenance", len(job.notes) + len(job.provenance))
        for trace in job.traces:
            for column in NODE:
                if column.is_text and getattr(trace, column.name).strides != (0,):
                    add(WORDS.get(column.name, "shapes, types, values"), len(trace.coded(column.name)[1]))
            add("attributes", sum(len(nodes) for nodes, _ in trace.attr_cells().values()))
            exact = {int(v) for c in COLUMNS for v in distinct_values(getattr(trace, c)) if v not in (UNKNOWN, 0)}
            add("exact sizes and times", len(exact))
        if job.timing is not None:
            add("recorded start times", sum(int((s != UNKNOWN).sum()) for s in job.timing.start_ns))
    return {what: count for what, count in found.items() if count}
