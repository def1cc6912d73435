"""edit: a job with edits applied, one after another.

An edit is computed once for each program and each set of values of its own, and ranks that shared a trace still share
one. Recorded times belong to the original job, and are dropped from a changed one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import CycleError, UsageError
from etude.cost.collectives import p2p_time_ns
from etude.cost.groups import GroupShape, group_shape
from etude.cost.ops import OpClass
from etude.cost.tiers.transfers import tier_of
from etude.cost.traces import ops_of
from etude.kernels.arrays import I64
from etude.machine.system import System
from etude.make.transform.edits.below import Below, beside, check_room
from etude.make.transform.edits.definition import Definition, Freed, Here, Parties
from etude.make.transform.edits.exposure import Exposure
from etude.make.transform.edits.spoken import Edit
from etude.make.transform.edits.table import TABLE
from etude.make.transform.rewrite import ProgramView, Rewriting, Selector
from etude.make.transform.rewrite.selector import WORLD
from etude.model.as_recorded import without_recorded
from etude.model.check.findings import Finding, FindingList, classes
from etude.model.check.groups import check_collectives, check_groups
from etude.model.check.messages import check_messages
from etude.model.graph import find_cycle
from etude.model.job import VALUE_COLUMNS, Job
from etude.model.match import match
from etude.model.schema import UNKNOWN, Kind
from etude.model.timing import Timing
from etude.model.trace import Trace

Said = str | Edit
Columns = dict[str, NDArray[Any]]
Times = Callable[[Job], Timing | None]
"""When the nodes of a job run: a simulation of it."""


@dataclass(frozen=True, slots=True)
class EditStep:
    """The effect of one edit. Bytes are those of all communication of all ranks."""

    edit: Edit
    nodes: int
    """Selected nodes, over all ranks."""
    bytes_before: int
    bytes_after: int
    freed: tuple[Freed, ...] = ()
    """Memory that is no longer needed in the device."""

    def record(self) -> dict[str, Any]:
        found = {
            "name": self.edit.name,
            "edit": str(self.edit),
            "nodes": self.nodes,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
        }
        return found | ({"freed_bytes": max(one.size_bytes for one in self.freed)} if self.freed else {})


@dataclass(frozen=True, slots=True, eq=False)
class Edited:
    job: Job
    steps: tuple[EditStep, ...]
    notes: tuple[str, ...]
    """Assumptions."""


def edit(job: Job, *edits: Said | Iterable[Said], system: System | None = None, times: Times | None = None) -> Job:
    """The job with these edits, in their order; `system` is what `when=pays` judges by, and `times`, as
    `lambda job: etude.simulate(job, system).timing`, how it sees what of a call is hidden.

    etude.edit(job, "compress group=dp ratio=2")
    """
    return apply_edits(job, _flat(edits), system=system, times=times).job


def apply_edits(job: Job, edits: Sequence[Said], *, system: System | None = None, times: Times | None = None) -> Edited:
    """The edited job, the effect of each edit, and the assumptions made.

    `times`: asked by `when=pays`, which then counts what of a call nothing hides; without, calls are judged alone.
    """
    steps, notes, below = [], dict[str, None](), list[Below]()
    for one in [Edit.parse(given) if isinstance(given, str) else given for given in edits]:
        before, freed = communicated_bytes(job), list[Freed]()
        definition, arguments = TABLE[one.name], one.arguments()
        try:
            if definition.whole is not None:
                changed, nodes, said = definition.whole(job, one.select, **arguments)
                notes |= dict.fromkeys(said)
            else:
                asked = times(job) if times is not None and arguments.get("when") == "pays" else None
                exposed = Exposure(job, asked) if asked is not None else None
                applied = _Applied(job, one.select, definition, arguments, system, notes, exposed, freed, below)
                changed, nodes = applied.found()
                applied.note_narrower(one)
        except UsageError as problem:
            where = problem.where or f"edit `{one.name}`"
            raise UsageError(problem.problem, where=where, hint=problem.hint) from None
        if not nodes and definition.whole is None:
            notes[_nothing_selected(job, one)] = None
        if changed is not job:
            changed = _marked(job, changed, one)
        steps.append(EditStep(one, nodes, before, communicated_bytes(changed), tuple(freed)))
        job = changed
    return Edited(job, tuple(steps), tuple(notes))


def _nothing_selected(job: Job, one: Edit) -> str:
    """The message for an edit that has nothing to change. Raises UsageError if no group or no operator of the job has
    a name that it selects."""
    said = f"`{one}` selects no nodes"
    groups = sorted({name.partition(".")[0] for name in job.groups.names if name} | {WORLD})
    if one.select.group and not one.select.groups_named(job.groups.names) and not one.select.groups_named([WORLD]):
        raise UsageError(f"{said}: no group has that name", hint=f"groups of this job: {', '.join(groups[:12])}")
    names = {str(name) for trace in job.traces for name in trace.coded("name")[1]} if one.select.op else set()
    missing = [op for op in one.select.op if not any(fnmatchcase(name, op) for name in names)]
    if one.select.op and len(missing) == len(one.select.op):
        near = [match for op in missing for match in get_close_matches(op, sorted(names), 1)]
        hint = f"did you mean op={','.join(near)}?" if near else "`etude kernels RUN` lists names"
        raise UsageError(f"{said}: no operator has that name", hint=hint)
    return said


def _flat(edits: Iterable[Said | Iterable[Said]]) -> list[Said]:
    return [one for given in edits for one in ([given] if isinstance(given, str | Edit) else given)]


def _marked(job: Job, changed: Job, one: Edit) -> Job:
    """The job with a note on the edit, and without recorded times."""
    before = job.provenance.get("edits", "")
    said = f"{before}; {one}" if before else str(one)
    traces = tuple(without_recorded(trace) for trace in changed.traces)
    return changed.replace(traces=traces, provenance={**job.provenance, "edits": said}, timing=None)


def communicated_bytes(job: Job) -> int:
    """Bytes that all ranks pass to collectives and messages."""
    total, known = 0, dict[tuple[int, int], int]()
    for i, rank in enumerate(job.ranks.tolist()):
        own = job.values.get(rank, {}).get("in_bytes")
        key = int(job.trace_of[i]), id(own)
        if key not in known:
            trace = job.traces[key[0]]
            sent = (trace.in_bytes if own is None else own)[(trace.kind == Kind.COLL) | (trace.kind == Kind.SEND)]
            known[key] = sum(sent[sent != UNKNOWN].tolist())
        total += known[key]
    return total


# -- programs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Class:
    """Ranks that an edit treats alike."""

    at: I64
    """Positions among those present."""
    trace: int
    own: Columns


@dataclass(frozen=True, slots=True, eq=False)
class _Applied:
    """One edit of a job, program by program."""

    job: Job
    select: Selector
    definition: Definition
    arguments: dict[str, Any]
    system: System | None
    notes: dict[str, None]
    exposed: Exposure | None
    freed: list[Freed]
    below: list[Below]

    @property
    def kind(self) -> str:
        """The kind of nodes that it works on if `kind` is not given."""
        narrower = "" if self.select.op else self.definition.narrower(**self.arguments)
        return narrower or self.definition.selects

    def note_narrower(self, one: Edit) -> None:
        """Says what was taken and what was left, if the edit works on fewer nodes than it could."""
        if self.select.kind or self.kind == self.definition.selects:
            return
        taken, left = 0, Counter[str]()
        for ranks in _classes(self.job, self.select, None, []):
            view = self._view(ranks)
            rows, widest = (self.select.rows(view, kind) for kind in (self.kind, self.definition.selects))
            numbers = ops_of(view.trace).op_class[np.setdiff1d(widest, rows)]
            taken += len(rows) * len(ranks.at)
            for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
                left[OpClass(int(number)).key if number else "other"] += int(count) * len(ranks.at)
        if left:
            rest, wider = ", ".join(f"{name} {count:,}" for name, count in left.most_common()), self.definition.selects
            self.notes[
                f"`{one}` selects kind={self.kind}: {taken:,} of {taken + left.total():,} nodes of {wider}. "
                f"The others stay as they are: {rest}; kind={wider} selects them too"
            ] = None

    def _view(self, one: _Class) -> ProgramView:
        trace = self.job.traces[one.trace].replace(**one.own) if one.own else self.job.traces[one.trace]
        ranks = self.job.ranks[one.at]
        return ProgramView(trace=trace, group_names=_names(self.job, int(ranks[0]), trace), ranks=ranks)

    def found(self) -> tuple[Job, int]:
        """(the edited job, nodes that were selected)"""
        job, select = self.job, self.select
        asked = self.definition.parties
        parties = asked(job, **self.arguments) if asked is not None else None
        more = [self.exposed.codes()] if self.exposed is not None else []
        more += [parties.role, job.tag_base] if parties is not None else []
        beside = self._beside()
        more += [beside] if beside is not None else []
        made = []
        nodes = 0
        for one in _classes(job, select, self.system if self.definition.timed else None, more):
            rewriting, selected = self._rewritten(one, parties, 1 if beside is None else int(beside[one.at[0]]))
            nodes += selected * len(one.at)
            made.append((one, rewriting))
        if all(rewriting.is_nothing for _, rewriting in made):
            return job, nodes
        check_room(job, self.system, self.below)
        changed = _assembled(job, made, parties)
        if select.ranks or any(rewriting.may_break for _, rewriting in made):
            _refuse_broken(job, changed)
        return changed, nodes

    def _beside(self) -> I64 | None:
        """If the edit names a tier: how many selected ranks share it with each."""
        name = self.arguments.get(self.definition.tier) if self.definition.tier else None
        if self.system is None or name not in [tier.name for tier in self.system.tiers]:
            return None
        job, uses = self.job, np.zeros(len(self.job.ranks), np.bool_)
        for one in _classes(job, self.select, None, []):
            uses[one.at] = len(self.select.rows(self._view(one), self.kind)) > 0
        return beside(job, self.system, tier_of(self.system, str(name)), uses)

    def _rewritten(self, one: _Class, parties: Parties | None, beside: int) -> tuple[Rewriting, int]:
        job, definition = self.job, self.definition
        assert definition.rewrite is not None
        view, first = self._view(one), int(one.at[0])
        trace, ranks, names = view.trace, view.ranks, view.group_names
        rows = self.select.rows(view, self.kind)
        rewriting = Rewriting(trace)
        if len(rows):
            here = Here(
                job=job, trace=trace, ranks=ranks, rows=rows, made=rewriting, system=self.system, notes=self.notes,
                groups=names, role=None if parties is None else int(parties.role[first]),
                exposed_ns=None if self.exposed is None else self.exposed.of(first), freed=self.freed,
                below=self.below, beside=beside,
            )  # fmt: skip
            definition.rewrite(here, **self.arguments)
        return rewriting, len(rows)


def _names(job: Job, rank: int, trace: Trace) -> tuple[tuple[str, ...], ...]:
    """For each group slot: its label, its group's name, and `world` if that is all ranks."""
    found = []
    for label, group in zip(trace.group_slots, job.group_slots(rank).tolist(), strict=True):
        members = job.groups.ranks(group)
        everyone = (WORLD,) if members is not None and len(members) == job.world_size else ()
        found.append((label, job.groups.names[group], *everyone))
    return tuple(found)


def _classes(job: Job, select: Selector, system: System | None, more: Sequence[I64]) -> list[_Class]:
    """Ranks by trace, own values, what their groups, peers and numbers mean to the edit, and by `more`; for each trace
    those without values first."""
    key = np.zeros((len(job.ranks), 3 + len(more)), np.int64)
    key[:, 0] = job.trace_of
    own: dict[tuple[tuple[str, int], ...], int] = {}
    for rank, values in job.values.items():
        said = tuple(sorted((column, id(array)) for column, array in values.items()))
        key[job.index(rank), 1] = own.setdefault(said, len(own) + 1)
    key[:, 2] = _bound(job, select, system)
    for column, codes in enumerate(more, 3):
        key[:, column] = codes
    _, first, which = np.unique(key, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(which.reshape(-1), kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(which.reshape(-1), minlength=len(first)))[:-1])
    return [
        _Class(at, int(job.trace_of[at[0]]), dict(job.values.get(int(job.ranks[at[0]]), {}))) for at in parts if len(at)
    ]


def _bound(job: Job, select: Selector, system: System | None) -> I64:
    """A number for each rank: equal if groups have the same sizes and match the selector alike, and if communication
    takes the same time on the system, if one is given."""
    shapes: dict[GroupShape, int] = {}
    of_group = np.zeros((len(job.groups), 3), np.int64)
    for group, name in enumerate(job.groups.names):
        members = job.groups.ranks(group)
        of_group[group, 0] = -1 if members is None else len(members)
        of_group[group, 1] = bool(select.group) and select.groups_named([name])
        if system is not None and members is not None and len(members):
            of_group[group, 2] = shapes.setdefault(group_shape(system, np.unique(members)), len(shapes))
    kind = np.unique(of_group, axis=0, return_inverse=True)[1].reshape(-1) if len(of_group) else np.zeros(0, np.int64)
    parts = [_coded_rows(job.group_start, kind[job.group_of])]
    if system is not None and len(job.peer_of):
        parts.append(_coded_rows(job.peer_start, _distances(job, system)))
    if select.ranks:
        chosen = [any(low <= rank <= high for low, high in select.ranks) for rank in job.ranks.tolist()]
        if not any(chosen):
            raise UsageError("no rank is selected", hint=f"the job has {len(job.ranks):,} ranks")
        parts.append(np.array(chosen, np.int64))
    return np.unique(np.stack(parts, 1), axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _distances(job: Job, system: System) -> I64:
    """Distance of each peer, by the times of messages of two sizes."""
    rank = np.repeat(job.ranks, np.diff(job.peer_start)).astype(np.int64)
    inside = (job.peer_of >= 0) & (job.peer_of < job.world_size)
    peer = np.where(inside, job.peer_of, rank)
    times = np.stack([p2p_time_ns(system, a, b, s) for a, b in ((rank, peer), (peer, rank)) for s in (0, 1 << 20)], 1)
    return np.unique(times, axis=0, return_inverse=True)[1].reshape(-1)


def _coded_rows(start: I64, values: NDArray[Any]) -> I64:
    """A number for each row of a ragged table: equal for equal rows."""
    width = int(np.diff(start).max(initial=0))
    table = np.full((len(start) - 1, width + 1), -1, np.int64)
    row = np.repeat(np.arange(len(start) - 1), np.diff(start))
    table[row, np.arange(len(values)) - start[row]] = values
    return np.unique(table, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _assembled(job: Job, made: list[tuple[_Class, Rewriting]], parties: Parties | None) -> Job:
    """The job of rewritten programs: those of one trace that differ only in values share one again."""
    traces: list[Trace] = []
    known: dict[tuple[int, bytes], int] = {}
    trace_of = job.trace_of.copy()
    values: dict[int, Columns] = {}
    talks = np.zeros(len(job.ranks), bool)
    """Ranks with an additional peer."""
    for one, rewriting in made:
        talks[one.at] = rewriting.more_peers
        key = one.trace, rewriting.signature()
        number = known.setdefault(key, len(traces))
        trace_of[one.at] = number
        if number == len(traces):
            traces.append(rewriting.trace())
            continue
        shared, own = traces[number], rewriting.values()
        differ = {c: own[c] for c in VALUE_COLUMNS if not np.array_equal(own[c], getattr(shared, c))}
        if differ:
            values |= dict.fromkeys(job.ranks[one.at].tolist(), differ)
    changed: dict[str, Any] = {"traces": tuple(traces), "trace_of": trace_of, "values": values}
    if parties is not None and talks.any():
        ends = job.peer_start[1:][talks]
        changed["peer_of"] = np.insert(job.peer_of, ends, parties.peer[talks])
        changed["peer_start"] = job.peer_start + np.concatenate([[0], np.cumsum(talks)])
    return job.replace(**changed)


# -- what an edit may not do -------------------------------------------------------------------------------------------


def _refuse_broken(job: Job, changed: Job) -> None:
    """Refuses an edit after which nodes wait for one another, or ranks no longer agree on their communication."""
    for trace in changed.traces:
        cycle = find_cycle(trace)
        if len(cycle):
            if any(len(find_cycle(old)) for old in job.traces):
                break
            ids = ", ".join(str(i) for i in trace.source_id[cycle[:4]].tolist())
            raise CycleError(f"nodes would wait for one another: {ids}, ...", hint="select other calls")
    before = {finding.kind for finding in _disagreements(job)}
    for finding in _disagreements(changed):
        if finding.kind not in before and finding.severity == "error":
            hint = "an edit of communication must select it on all of its members"
            raise UsageError(f"ranks would no longer agree: {finding.what}", hint=hint)


def _disagreements(job: Job) -> list[Finding]:
    report, matching = FindingList(job), match(job)
    same = classes(job.trace_of)
    check_groups(report, same, matching)
    check_collectives(report, matching)
    check_messages(report, same, matching)
    return report.sorted()
