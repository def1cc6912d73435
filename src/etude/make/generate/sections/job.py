"""generate_sections(sections, gpus): one job of all sections, and the job of each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.make.generate.blocks.ops import Phase
from etude.make.generate.ranks import RankGrid
from etude.make.generate.schedules.by_name import schedule
from etude.make.generate.schedules.pipeline import Action
from etude.make.generate.sections.borders import Both, Travel, ends_of, travels
from etude.make.generate.sections.placed import PlacedSection, place
from etude.make.generate.sections.rollout import place_rollout
from etude.make.generate.sections.spec import Border, Sections
from etude.make.generate.sections.weave import MessageEnds, SectionPart, Woven, not_before, weave, when_needed
from etude.model.job import DEFAULT_METADATA, Groups, Job
from etude.model.totals import totals
from etude.model.trace import Trace


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sectioned:
    """A job of sections. Sums are over all ranks; memory is the maximum over ranks."""

    job: Job
    sections: tuple[PlacedSection, ...]
    border_bytes: Mapping[str, tuple[int, int]]
    """Bytes of each border, in both directions."""
    border_held: I64
    """Peak bytes of activations that each rank has received and not used yet: those of a micro-batch, or all if one
    section is done before the other begins."""
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
        """Tokens of the last section, which the others serve."""
        last = self.sections[-1]
        return last.busy_inputs * last.found.plan.seq

    @property
    def memory_peak_bytes(self) -> int:
        held = self.border_held.copy()
        for s in self.sections:
            held[s.ranks.start : s.ranks.stop] += np.array(s.peaks())[RankGrid.of(s.found.plan).at["pp"]]
        return int(held.max())

    def summary(self) -> dict[str, Any]:
        each = {
            s.name: {
                "model": s.found.model.name, "mode": s.section.mode, "ranks": len(s.ranks), "first_rank": s.ranks.start,
                "params": s.found.params, "samples": s.busy_samples, "inputs": s.busy_inputs,
                "model_flops": s.model_flops, "memory_peak_bytes": max(s.peaks()),
            }
            for s in self.sections
        }  # fmt: skip
        borders = {name: {"forward_bytes": a, "backward_bytes": b} for name, (a, b) in self.border_bytes.items()}
        whole = totals(self.job, params=self.params, memory_peak_bytes=self.memory_peak_bytes)
        return whole | {"sections": each, "borders": borders}


def generate_sections(
    given: Sections, *, gpus: int = 0, name: str = "", hosts: Mapping[str, float] | None = None
) -> Sectioned:
    """The job of one step. One section and no border is the job of its plan, unchanged. `hosts`: by section, factors on
    the host's time for an op."""
    gpus = given.world(gpus)
    ranks = given.ranks(gpus)
    placed = tuple(
        place_rollout(given, n, ranks[n]) if s.makes_tokens else place(given, n, ranks, (hosts or {}).get(n, 1.0))
        for n, s in given.sections.items()
    )
    _check_stages(given, placed)
    done = {b: travels(b, given, placed) for b in given.borders}
    sizes = {f"{b.source}-{b.target}": (_sum(there), _sum(back)) for b, (there, back) in done.items()}
    if len(placed) == 1:
        job = placed[0].found.job
    else:
        job = _joined(name or given.name, placed, gpus, done)
    held = _held(placed, [there for there, _ in done.values() if there and not there.early], gpus)
    return Sectioned(job=job, sections=placed, border_bytes=sizes, border_held=held, gpus=gpus, batch=given.batch)


def _check_stages(given: Sections, placed: tuple[PlacedSection, ...]) -> None:
    """Checks that sections of a pipeline on the same ranks have their stages on the same ones."""
    at = [RankGrid.of(p.found.plan).at["pp"] for p in placed if p.chunk[1] > 1]
    if any((one != at[0]).any() for one in at):
        raise UsageError(
            "stages of a joint pipeline are on different ranks", where=given.name, hint="use the same `order`"
        )


def _held(placed: tuple[PlacedSection, ...], travels: list[Travel], gpus: int) -> I64:
    total = np.zeros(gpus, np.int64)
    for travel in travels:
        m = travel.messages
        one, other = placed[travel.source], placed[travel.target]
        shared = one.ranks == other.ranks and one.chunk[1] == 1
        micro = np.zeros_like(m.target_micro) if shared else m.target_micro
        each = np.zeros((gpus, travel.wanted.micro_batches), np.int64)
        np.add.at(each, (m.target, micro), m.size_bytes)
        total += each.max(axis=1)
    return total


def _sum(found: Travel | None) -> int:
    return int(found.messages.size_bytes.sum()) if found else 0


def _joined(name: str, placed: tuple[PlacedSection, ...], gpus: int, done: Mapping[Border, Both]) -> Job:
    on = [[s for s, p in enumerate(placed) if r in p.ranks] for r in range(gpus)]
    tags = np.cumsum([0] + [max(int(t.tag.max(initial=0)) for t in p.found.job.traces) + 1 for p in placed])
    ends, names = ends_of(done, on, int(tags[-1]))
    made: dict[Any, tuple[int, Woven]] = {}
    trace_of, values, peers = np.empty(gpus, np.int32), {}, []
    parts: dict[Any, SectionPart] = {}
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


def _program(placed: PlacedSection, rank: int) -> int:
    return int(placed.found.job.trace_of[rank - placed.ranks.start])


def _peers(placed: PlacedSection, rank: int) -> I64:
    return placed.found.job.peer_slots(rank - placed.ranks.start) + placed.ranks.start


def _part(placed: PlacedSection, program: int, turn: int, of: int, tag_base: int) -> SectionPart:
    """A program with its turns: forward at its position, and what waits for gradients after all others."""
    trace = placed.found.job.traces[program]
    turns = np.full(len(trace), turn, np.int64)
    if placed.chunk[1] > 1:
        return SectionPart(trace, not_before(trace, _joint_turns(placed, program)), tag_base, placed.name, joint=True)
    if placed.joint:  # on ranks of its own, in its own order
        return SectionPart(trace, turns, tag_base, placed.name)
    if placed.waits:
        phases, labels = trace.coded("phase")
        turns[~np.array([w == Phase.FORWARD.label for w in labels] + [False])[phases]] = 2 * of - 1 - turn
        turns = not_before(trace, turns)  # weights gathered again for the backward are cast again
    return SectionPart(trace, turns, tag_base, placed.name)


def _joint_turns(placed: PlacedSection, rank: int) -> I64:
    """Turns of a program's rows in a pipeline of several sections on one rank: the positions of their actions in its
    order. Rows without a micro-batch come when they are needed."""
    plan, trace, (chunk, chunks) = placed.found.plan, placed.found.job.traces[rank], placed.chunk
    whole = schedule(f"interleaved:{chunks}", ranks=plan.pp, micro_batches=plan.micro_batches)
    rows = whole.rows(rank)
    place = np.zeros((2, plan.micro_batches), np.int64)
    mine = np.flatnonzero(whole.stage[rows] // plan.pp == chunk)
    back = (whole.action[rows][mine] != Action.FORWARD).astype(np.int64)
    place[back, whole.micro_batch[rows][mine]] = mine
    phases, labels = trace.coded("phase")
    onward = np.array([w == Phase.FORWARD.label for w in labels] + [False])[phases]
    free, micro = trace.micro_batch < 0, np.clip(trace.micro_batch, 0, plan.micro_batches - 1)
    turns = np.where(free, len(whole.action[rows]), place[(~onward).astype(np.int64), micro])
    return when_needed(trace, turns, free)


def _values(
    woven: Woven, placed: tuple[PlacedSection, ...], on: list[int], rank: int, ends: MessageEnds
) -> dict[str, NDArray[Any]]:
    """Values of a rank that its program does not contain: those of its sections, and the sizes of its messages."""
    found: dict[str, NDArray[Any]] = {}
    for rows, s in zip(woven.rows, on, strict=True):
        for column, own in placed[s].found.job.values.get(rank - placed[s].ranks.start, {}).items():
            found.setdefault(column, getattr(woven.trace, column).copy())[rows] = own
    if len(ends) and (woven.trace.in_bytes[woven.ends] != ends.size_bytes).any():
        found.setdefault("in_bytes", woven.trace.in_bytes.copy())[woven.ends] = ends.size_bytes
    return found


def _job(
    name: str, placed: tuple[PlacedSection, ...], on: list[list[int]], traces: list[Trace], trace_of: NDArray[np.int32],
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
