"""generate_sections(sections, gpus): one job of all sections, and what each of them is by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.cost.ops import width as bytes_each
from etude.errors import UsageError
from etude.generate.blocks.ops import Phase
from etude.generate.blocks.recompute import is_layer
from etude.generate.model.open import open_model
from etude.generate.model.shape import Family
from etude.generate.plan import Plan
from etude.generate.ranks import Grid
from etude.generate.sections.reshard import Messages, Side, Spread, messages
from etude.generate.sections.spec import Border, Carries, Deal, Section, Sections
from etude.generate.sections.weave import Ends, Part, Woven, weave
from etude.generate.train.job import Generated, generate
from etude.generate.train.lengths import Dealt, with_lengths
from etude.model.job import DEFAULT_METADATA, Groups, Job
from etude.model.schema import Kind
from etude.model.totals import totals
from etude.model.trace import Trace

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A section by itself: its job, on ranks from 0, and where these are in the whole."""

    name: str
    section: Section
    found: Generated
    ranks: range
    slot: I64
    """Of each sample of the step: micro_batch · dp + its data-parallel rank; -1 where there is no work."""
    waits: bool
    """For gradients, before it goes backward."""

    @property
    def busy_samples(self) -> int:
        return int((self.slot >= 0).sum())

    @property
    def model_flops(self) -> int:
        return round(self.found.model_flops * self.busy_samples / len(self.slot))

    @property
    def fullest(self) -> float:
        """Samples of the fullest micro-batch over those of a usual one."""
        usual = self.found.plan.micro_batch // self.section.per_sample
        return int(np.bincount(self.slot[self.slot >= 0], minlength=1).max()) / usual

    def peaks(self) -> list[int]:
        """Memory of each pipeline rank at most."""
        return [
            m.static_bytes + ceil(int((m.activations + m.working).max(initial=0)) * max(self.fullest, 0.0))
            for m in self.found.memory
        ]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sectioned:
    """A job of sections. Sums are over all ranks; memory is the maximum over ranks."""

    job: Job
    sections: tuple[Placed, ...]
    border_bytes: Mapping[str, tuple[int, int]]
    """Of each border, there and back."""
    border_held: I64
    """Bytes of activations that each rank has received and not used yet, at most: those of a micro-batch, or all where
    one section is done before the other begins."""
    gpus: int
    batch: int

    @property
    def params(self) -> int:
        return sum(s.found.params for s in self.sections)

    @property
    def model_flops(self) -> int:
        return sum(s.model_flops for s in self.sections)

    @property
    def tokens(self) -> int:
        """Of the last section: what the others are for."""
        last = self.sections[-1]
        return last.busy_samples * last.section.per_sample * last.found.plan.seq

    @property
    def memory_peak_bytes(self) -> int:
        held = self.border_held.copy()
        for s in self.sections:
            held[s.ranks.start : s.ranks.stop] += np.array(s.peaks())[Grid.of(s.found.plan).at["pp"]]
        return int(held.max())

    def summary(self) -> dict[str, Any]:
        each = {
            s.name: {
                "model": s.found.model.name, "mode": s.section.mode, "ranks": len(s.ranks), "first_rank": s.ranks.start,
                "params": s.found.params, "samples": s.busy_samples, "model_flops": s.model_flops,
                "memory_peak_bytes": max(s.peaks()),
            }
            for s in self.sections
        }  # fmt: skip
        borders = {name: {"forward_bytes": a, "backward_bytes": b} for name, (a, b) in self.border_bytes.items()}
        whole = totals(self.job, params=self.params, memory_peak_bytes=self.memory_peak_bytes)
        return whole | {"sections": each, "borders": borders}


def generate_sections(given: Sections, *, gpus: int = 0, name: str = "") -> Sectioned:
    """The job of one step. One section and no border is the job of its plan, unchanged."""
    gpus = gpus or given.gpus or sum(s.gpus for s in given.sections.values())
    ranks = given.ranks(gpus)
    placed = tuple(_placed(given, n, ranks[n]) for n in given.sections)
    done = {b: _travels(b, given, placed) for b in given.borders}
    sizes = {f"{b.source}-{b.target}": (_sum(there), _sum(back)) for b, (there, back) in done.items()}
    if len(placed) == 1:
        job = placed[0].found.job
    else:
        job = _joined(name or given.name, placed, gpus, done)
    held = _held(placed, [there for there, _ in done.values() if there], gpus)
    return Sectioned(job=job, sections=placed, border_bytes=sizes, border_held=held, gpus=gpus, batch=given.batch)


def _held(placed: tuple[Placed, ...], travels: list[Travel], gpus: int) -> I64:
    total = np.zeros(gpus, np.int64)
    for travel in travels:
        m = travel.messages
        shared = placed[travel.source].ranks == placed[travel.target].ranks
        micro = np.zeros_like(m.target_micro) if shared else m.target_micro
        each = np.zeros((gpus, travel.wanted.rows.shape[1]), np.int64)
        np.add.at(each, (m.target, micro), m.size_bytes)
        total += each.max(axis=1)
    return total


def _sum(found: Travel | None) -> int:
    return int(found.messages.size_bytes.sum()) if found else 0


# -- sections ----------------------------------------------------------------------------------------------------


def _placed(given: Sections, name: str, ranks: range) -> Placed:
    section, waits = given.sections[name], given.takes_gradients(name)
    plan = _plan(given, name, section, len(ranks), waits)
    model = open_model(section.model)
    found = generate(model, plan, head=given.has_head(name))
    slot = _slots(plan, section, _active(given, name), given.batch)
    if (slot < 0).any():
        found = _with_samples(found, slot, section.per_sample)
    return Placed(name, section, found, ranks, slot, waits)


def _plan(given: Sections, name: str, section: Section, gpus: int, waits: bool) -> Plan:
    own: dict[str, Any] = {"schedule": "gpipe"} if waits else {}
    own |= section.plan
    if waits and own["schedule"] != "gpipe":
        raise UsageError(
            f"`{name}` goes backward when gradients come back: its schedule is gpipe, not {own['schedule']}",
            where=given.name,
        )
    own["micro_batch"] = own.get("micro_batch", 1) * section.per_sample
    more = {"gpus": gpus, "global_batch": given.batch * section.per_sample, "train": section.train}
    return Plan.from_dict(own | more, f"{given.name}: {name}: plan")


def _active(given: Sections, name: str) -> I64:
    """Samples that a section has work for: the first of an order of its own, whatever their number is."""
    order = np.random.default_rng([given.seed, list(given.sections).index(name)]).permutation(given.batch)
    return np.sort(order[: round(given.sections[name].active * given.batch)])


def _slots(plan: Plan, section: Section, active: I64, batch: int) -> I64:
    """Slot of each sample, micro_batch · dp + data-parallel rank, or -1: dealt in turn to the ranks, and on each of
    them to its micro-batches; or as samples stand in the batch, which is the same where all are active."""
    slot = np.full(batch, -1, np.int64)
    if section.deal == Deal.OWN or len(active) == batch:
        slot[active] = active // (plan.micro_batch // section.per_sample)
        return slot
    turn, rank = np.divmod(np.arange(len(active)), plan.dp)
    slot[active] = turn * plan.micro_batches // max(-(-len(active) // plan.dp), 1) * plan.dp + rank
    return slot


def _with_samples(found: Generated, slot: I64, per_sample: int) -> Generated:
    """Micro-batches with as many samples as they have."""
    plan = found.plan
    count = np.bincount(slot[slot >= 0], minlength=plan.dp * plan.micro_batches)
    samples = count.reshape(plan.micro_batches, plan.dp).T * per_sample
    tokens, pairs = samples * plan.seq, samples * (plan.seq * (plan.seq + 1) // 2)
    dealt = Dealt(samples, tokens, pairs, tokens, pairs, plan.micro_batches)
    return replace(found, job=with_lengths(found.job, plan, dealt))


# -- borders -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Anchors:
    """The row of each micro-batch on each pipeline rank that a border is tied to; -1 where it is on another."""

    rows: I64

    @property
    def home(self) -> I64:
        """Pipeline rank of each micro-batch."""
        return np.asarray((self.rows >= 0).argmax(axis=0), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Travel:
    """Messages of a border in one direction, and the rows that they belong to."""

    messages: Messages
    source: int
    target: int
    sent: Anchors
    wanted: Anchors


def _travels(border: Border, given: Sections, placed: tuple[Placed, ...]) -> tuple[Travel | None, Travel | None]:
    names = list(given.sections)
    a, b = names.index(border.source), names.index(border.target)
    one, other = placed[a], placed[b]
    model, plan = one.found.model, one.found.plan
    logits = border.carries == Carries.LOGITS
    tokens = border.tokens or plan.seq * one.section.per_sample
    wide = border.width or (model.vocab if logits else model.hidden)
    made = _anchors(one.found, *(("head.logits",) if logits else (_layer(one.found, -1),)), Phase.FORWARD, first=False)
    used = _anchors(other.found, "head.loss" if logits else other.found.layout.stages[0][0].name, Phase.FORWARD)
    for anchors, placed_, what in ((made, one, border.carries), (used, other, "loss" if logits else "input")):
        if not (anchors.rows >= 0).any(axis=0).all():
            raise UsageError(f"`{placed_.name}` has no {what} that a border could be tied to", where=given.name)
    there = _one_way(a, b, (one, other), (made, used), logits, (tokens, wide))
    back = None
    if one.waits and not logits:
        ends = _anchors(other.found, _layer(other.found, 0), Phase.INPUT, first=False)
        begins = _anchors(one.found, _layer(one.found, -1), Phase.INPUT)
        back = _one_way(b, a, (other, one), (ends, begins), logits, (tokens, wide))
    return there, back


def _one_way(
    a: int, b: int, sides: tuple[Placed, Placed], anchors: tuple[Anchors, Anchors], logits: bool, size: tuple[int, int]
) -> Travel:
    holds, needs = (_side(p, x, logits) for p, x in zip(sides, anchors, strict=True))
    found = messages(holds, needs, *size, bytes_each(sides[0].found.plan.dtype))
    return Travel(found, a, b, *anchors)


def _side(placed: Placed, anchors: Anchors, logits: bool) -> Side:
    plan = placed.found.plan
    at = Grid.of(plan).at
    table = np.empty((plan.pp, plan.dp, plan.tp, plan.cp), np.int64)
    table[at["pp"], at["dp"], at["tp"], at["cp"]] = np.arange(plan.gpus) + placed.ranks.start
    spread = Spread(plan, placed.found.model.family in (Family.DECODER, Family.ENCODER_DECODER), logits)
    return Side(spread, table[anchors.home], placed.slot)


def _layer(found: Generated, number: int) -> str:
    return [b.name for stage in found.layout.stages for b in stage if is_layer(b)][number]


def _anchors(found: Generated, module: str, phase: Phase, *, first: bool = True) -> Anchors:
    """The first or last device row of each micro-batch in a module and phase, on each pipeline rank."""
    rows = np.full((found.plan.pp, found.plan.micro_batches), -1, np.int64)
    for rank, trace in enumerate(found.job.traces):
        codes, words = trace.coded("module")
        phases, labels = trace.coded("phase")
        inside = np.array([w == module or w.startswith(f"{module}.") for w in words] + [False])[codes]
        inside &= np.array([label == phase.label for label in labels] + [False])[phases]
        inside &= (trace.cpu != 1) & (trace.micro_batch >= 0) & (trace.kind != int(Kind.RECV))
        at = np.flatnonzero(inside)
        at = at[::-1] if first else at  # the last one written stays
        rows[rank, trace.micro_batch[at]] = at
    return Anchors(rows)


# -- the whole ---------------------------------------------------------------------------------------------------


def _joined(
    name: str, placed: tuple[Placed, ...], gpus: int, done: Mapping[Border, tuple[Travel | None, Travel | None]]
) -> Job:
    on = [[s for s, p in enumerate(placed) if r in p.ranks] for r in range(gpus)]
    tags = np.cumsum([0] + [max(int(t.tag.max(initial=0)) for t in p.found.job.traces) + 1 for p in placed])
    ends, names = _ends(placed, on, done, int(tags[-1]))
    made: dict[Any, tuple[int, Woven]] = {}
    trace_of, values, peers = np.empty(gpus, np.int32), {}, []
    parts: dict[Any, Part] = {}
    for rank in range(gpus):
        mine, other = ends[rank]
        key = (tuple((s, _program(placed[s], rank)) for s in on[rank]), mine.structure())
        if key not in made:
            for turn, (s, program) in enumerate(key[0]):
                where = s, program, turn, len(on[rank])
                if where not in parts:
                    parts[where] = _part(placed[s], program, turn, len(on[rank]), int(tags[s]))
            one = [parts[s, program, turn, len(on[rank])] for turn, (s, program) in enumerate(key[0])]
            made[key] = len(made), weave(one, mine, names)
        number, woven = made[key]
        trace_of[rank] = number
        values[rank] = _values(woven, placed, on[rank], rank, mine)
        peers.append(np.concatenate([*(_peers(placed[s], rank) for s in on[rank]), other]))
    return _job(name, placed, on, [w.trace for _, w in made.values()], trace_of, values, peers)


def _program(placed: Placed, rank: int) -> int:
    return int(placed.found.job.trace_of[rank - placed.ranks.start])


def _peers(placed: Placed, rank: int) -> I64:
    return placed.found.job.peer_slots(rank - placed.ranks.start) + placed.ranks.start


def _part(placed: Placed, program: int, turn: int, of: int, tag_base: int) -> Part:
    """A program with its turns: forward at its place, and what waits for gradients after all others."""
    trace = placed.found.job.traces[program]
    turns = np.full(len(trace), turn, np.int64)
    if placed.waits:
        phases, labels = trace.coded("phase")
        turns[~np.array([w == Phase.FORWARD.label for w in labels] + [False])[phases]] = 2 * of - 1 - turn
    return Part(trace, turns, tag_base, placed.name)


def _ends(
    placed: tuple[Placed, ...],
    on: list[list[int]],
    done: Mapping[Border, tuple[Travel | None, Travel | None]],
    tag: int,
) -> tuple[list[tuple[Ends, I64]], list[str]]:
    """Ends of messages of every rank, with the ranks behind their slots, and the names of borders."""
    columns: list[list[I64]] = []
    for number, pair in enumerate(done.values()):
        for back, travel in enumerate(pair):
            if travel is None:
                continue
            m = travel.messages
            tags = tag + m.source_micro * travel.wanted.rows.shape[1] + m.target_micro
            tag += travel.sent.rows.shape[1] * travel.wanted.rows.shape[1]
            for sends in (True, False):
                section, anchors = (travel.source, travel.sent) if sends else (travel.target, travel.wanted)
                rank, peer = (m.source, m.target) if sends else (m.target, m.source)
                micro = m.source_micro if sends else m.target_micro
                row = anchors.rows[anchors.home[micro], micro]
                same = np.full(len(m), 1, np.int64)
                columns.append([rank, same * section, row, same * sends, peer, tags, micro, same * back, same * number,
                                m.size_bytes])  # fmt: skip
    table = np.concatenate([np.stack(c) for c in columns], axis=1) if columns else np.zeros((10, 0), np.int64)
    table = table[:, np.lexsort((table[5], table[3], table[2], table[1], table[0]))]
    bounds = np.searchsorted(table[0], np.arange(len(on) + 1))
    found = []
    for rank, sections in enumerate(on):
        _, section, row, sends, peer, tags, micro, behind, border, size = table[:, bounds[rank] : bounds[rank + 1]]
        ranks, first, slot = np.unique(peer, return_index=True, return_inverse=True)
        turn = np.argsort(np.argsort(first))  # slots in the order in which they come
        part = np.searchsorted(np.array(sections), section)
        one = Ends(part, row, sends > 0, turn[slot], tags, micro, behind > 0, border, size)
        found.append((one, ranks[np.argsort(first)]))
    return found, [f"border.{b.source}-{b.target}" for b in done]


def _values(woven: Woven, placed: tuple[Placed, ...], on: list[int], rank: int, ends: Ends) -> dict[str, NDArray[Any]]:
    """What a rank has that its program does not say: the values of its sections, the sizes of its messages."""
    found: dict[str, NDArray[Any]] = {}
    for rows, s in zip(woven.rows, on, strict=True):
        for column, own in placed[s].found.job.values.get(rank - placed[s].ranks.start, {}).items():
            found.setdefault(column, getattr(woven.trace, column).copy())[rows] = own
    if len(ends) and (woven.trace.in_bytes[woven.ends] != ends.size_bytes).any():
        found.setdefault("in_bytes", woven.trace.in_bytes.copy())[woven.ends] = ends.size_bytes
    return found


def _job(
    name: str, placed: tuple[Placed, ...], on: list[list[int]], traces: list[Trace], trace_of: NDArray[np.int32],
    values: Mapping[int, Mapping[str, NDArray[Any]]], peers: list[I64],
) -> Job:  # fmt: skip
    gpus, jobs = len(on), [p.found.job for p in placed]
    first = np.cumsum([0] + [len(j.groups) for j in jobs])
    entries = [
        (f"{p.name}.{label}", (j.groups.members[a:b] + p.ranks.start).tolist())
        for p, j in zip(placed, jobs, strict=True)
        for label, a, b in zip(j.groups.names, j.groups.start[:-1].tolist(), j.groups.start[1:].tolist(), strict=True)
    ]
    bound = [
        np.concatenate([jobs[s].group_slots(r - placed[s].ranks.start) + first[s] for s in on[r]]) for r in range(gpus)
    ]

    def starts(rows: list[Any]) -> I64:
        return np.cumsum([0] + [len(row) for row in rows]).astype(np.int64)

    return Job(
        name=name,
        traces=tuple(traces),
        ranks=np.arange(gpus, dtype=np.int32),
        trace_of=trace_of,
        groups=Groups.of(entries),
        group_start=starts(bound),
        group_of=np.concatenate(bound).astype(np.int32),
        peer_start=starts(peers),
        peer_of=np.concatenate(peers).astype(np.int64),
        id_base=np.zeros(gpus, np.uint64),
        tag_base=np.zeros(gpus, np.int64),
        world_size=gpus,
        metadata=(DEFAULT_METADATA,),
        metadata_of=np.zeros(gpus, np.int32),
        values={rank: v for rank, v in values.items() if v},
        provenance={"tool": "etude generate", "sections": ", ".join(p.name for p in placed)},
    )
