"""Rollout: a section that generates tokens, pass by pass, for another one to train on; and the weights that come back.

Prompts and answers work as in `etude generate serve`: each data-parallel copy is an instance, and samples are
assigned to these round robin. A sample is done with the pass of its last token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from etude.base.errors import UsageError
from etude.cost.ops import width as bytes_each
from etude.kernels.arrays import I64
from etude.make.generate.blocks.shard import Block
from etude.make.generate.model.open import open_model
from etude.make.generate.model.shape import Model
from etude.make.generate.nodes import Book
from etude.make.generate.plan import Plan
from etude.make.generate.ranks import RankGrid
from etude.make.generate.schedules import schedule
from etude.make.generate.sections.anchors import Anchors
from etude.make.generate.sections.placed import PlacedSection
from etude.make.generate.sections.reshard import ReshardMessages
from etude.make.generate.sections.spec import Section, Sections
from etude.make.generate.serving.answers import product_flops
from etude.make.generate.serving.batching import ModelPass
from etude.make.generate.serving.job import ServedJob, serve
from etude.make.generate.serving.ops import PassFragments
from etude.make.generate.serving.options import Serving
from etude.make.generate.serving.program import in_turn, stage_layers
from etude.make.generate.serving.requests import Request
from etude.make.generate.train.job import Generated
from etude.make.generate.train.lengths import LONGEST, Lengths
from etude.make.generate.train.memory import Memory
from etude.make.generate.train.rounds import is_round_robin
from etude.make.generate.train.stage import StageLayout
from etude.model.schema import Kind


def place_rollout(given: Sections, name: str, ranks: range) -> PlacedSection:
    """The single section, on ranks from 0."""
    section, where = given.sections[name], f"{given.name}: {name}"
    plan = Plan.from_dict({**section.plan, "gpus": len(ranks)}, f"{where}: plan")
    model, serving = open_model(section.model), Serving.from_dict(section.serving, f"{where}: serving")
    if serving.disaggregate or serving.speculate:
        hint = "leave out `disaggregate` and `speculate`"
        raise UsageError("an instance of a rollout handles both prompts and outputs", where=where, hint=hint)
    lengths = Lengths.parse(section.output).stream(given.seed, LONGEST)
    asked = [Request(section.prompt, length) for length in islice(lengths, given.batch)]
    if given.batch % plan.dp:
        raise UsageError(
            f"{given.batch} samples cannot be divided over {plan.dp} instances", where=where, hint="use a multiple"
        )
    equal = len(set(asked)) == 1
    if equal:
        serving = Serving.from_dict({**section.serving, "prefill": section.prompt, "decode": asked[0].output - 1,
                                     "batch": given.batch // plan.dp})  # fmt: skip
    found = serve(model, plan, serving, requests=None if equal else asked, name=given.name)
    slot, done = _done(found, given.batch)
    return PlacedSection(name, section, _generated(found), ranks, slot, waits=False, last_pass=done)


def longest(section: Section) -> int:
    """Tokens of the longest answer."""
    return int(Lengths.parse(section.output).tokens.max())


def last_rows(placed: PlacedSection) -> Anchors:
    """The last row of the passes that end samples, on the last stage. Instances have different programs if their
    samples differ."""
    plan, job, passes = placed.found.plan, placed.found.job, placed.last_pass
    assert passes is not None
    at = RankGrid.of(plan).at
    rows, own = np.full((plan.pp, passes.shape[1]), -1, np.int64), np.full((plan.gpus, passes.shape[1]), -1, np.int64)
    rows[plan.pp - 1] = 0
    known: dict[int, I64] = {}
    for rank in np.flatnonzero(at["pp"] == plan.pp - 1).tolist():
        number = int(job.trace_of[rank])
        if number not in known:
            trace = job.traces[number]
            works = np.flatnonzero((trace.cpu != 1) & (trace.kind == int(Kind.COMP)))
            known[number] = np.full(int(trace.step.max()) + 1, -1, np.int64)
            known[number][trace.step[works]] = works
        mine = passes[at["dp"][rank]]
        own[rank] = np.where(mine >= 0, known[number][mine], -1)
    return Anchors(rows, own, placed.ranks.start)


def _done(found: ServedJob, batch: int) -> tuple[I64, I64]:
    """Slot of each sample, and the passes with which micro-batches of samples are done: those that end with one pass of
    an instance form one."""
    dp = found.plan.dp
    ends = np.zeros(batch, np.int64)
    alike = len({id(instance) for instance in found.instances}) == 1
    for copy, instance in enumerate(found.instances):
        for number, (at, _, one, _) in enumerate(in_turn(instance.batches)):
            for span in one.spans:
                if span.last or not span.prompt:
                    ends[instance.requests[at][span.request] + (copy if alike else 0)] = number
    sample, slot = np.arange(batch), np.zeros(batch, np.int64)
    per = [np.unique(ends[sample % dp == d]) for d in range(dp)]
    passes = np.full((dp, max(map(len, per))), -1, np.int64)
    for d, mine in enumerate(per):
        passes[d, : len(mine)] = mine
        slot[sample % dp == d] = np.searchsorted(mine, ends[sample % dp == d]) * dp + d
    return slot, passes


def _generated(found: ServedJob) -> Generated:
    """Sums and memory, in the form of a training job."""
    plan = found.plan
    empty = np.zeros(1, np.int64)
    memory = Memory(found.weights_bytes, 0, 0, empty + found.kv_bytes, empty + found.working_bytes, empty)
    return Generated(
        model=found.model,
        plan=plan,
        job=found.job,
        layout=StageLayout(schedule("gpipe", ranks=plan.pp, micro_batches=1), {}, _stages(found), 0, frozenset()),
        params=found.params,
        model_flops=product_flops(found),
        memory=(memory,) * plan.pp,
    )


def _stages(found: ServedJob) -> tuple[tuple[Block, ...], ...]:
    served, one = found.served, ModelPass((), 1)
    layers = stage_layers(served.model.layers, found.plan.pp)
    return tuple(tuple(PassFragments(served, Book(), mine).blocks(one)) for mine in layers)


# -- weights -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WeightPiece:
    """Weights of an op: the whole, and the number of parts on each side."""

    params: int
    expert: bool
    held: int
    needed: int


def weights(trainer: PlacedSection, rollout: PlacedSection, where: str) -> ReshardMessages:
    """Transfers from the ranks that trained weights to those that generate tokens: to each its part, without what it
    holds, and from one of several copies. Micro-batches are numbers of pipeline ranks."""
    one, other = trainer.found, rollout.found
    if is_round_robin(one.plan):
        raise UsageError(
            f"`{trainer.name}` has its weights in the host's memory", where=where, hint="use another schedule"
        )
    _check_same(one.model, other.model, trainer.name, rollout.name, where)
    rows = [np.zeros((3, 0), np.int64)]
    for holder, stage in _homes(one).items():
        for needer, blocks in enumerate(other.layout.stages):
            pieces = _pieces(stage, [*blocks, *_table(other, needer)])
            rows += [_sizes(piece, (trainer, holder), (rollout, needer)) for piece in pieces]
    source, target, size = np.concatenate(rows, axis=1)
    pair, which = np.unique(source << 32 | target, return_inverse=True)
    source, target = pair >> 32, pair & (1 << 32) - 1
    at, to = (RankGrid.of(p.found.plan).at["pp"] for p in (trainer, rollout))
    sums = np.bincount(which, weights=size, minlength=len(pair)).astype(np.int64)
    return ReshardMessages(source, target, at[source - trainer.ranks.start], to[target - rollout.ranks.start], sums)


def _check_same(a: Model, b: Model, one: str, other: str, where: str) -> None:
    plain = [m.replace(name="", params="", source="", assumed="", predict_layers=0, seq=0) for m in (a, b)]
    if plain[0] != plain[1]:
        hint = "use the same model for both"
        raise UsageError(f"weights of `{one}` ({a.name}) do not fit `{other}` ({b.name})", where=where, hint=hint)


def _homes(found: Generated) -> dict[int, list[Block]]:
    """Blocks by pipeline rank; blocks on several ranks are assigned to one."""
    taken: set[int] = set()
    homes: dict[int, list[Block]] = {}
    for rank, held in enumerate(found.layout.schedule.held):
        homes[rank] = [b for s in held if s not in taken for b in found.layout.stages[s]]
        taken |= set(held)
    return homes


def _table(found: Generated, stage: int) -> list[Block]:
    """The embedding, if a tied head needs it on another stage."""
    return list(found.layout.stages[0][:1]) if stage and found.model.tied and stage + 1 == found.plan.pp else []


def _pieces(held: list[Block], needed: list[Block]) -> Iterator[WeightPiece]:
    """Ops with weights that both have, equal ones merged."""
    known = {(b.name, op.part): op for b in held for op in b.ops if op.params}
    sums: dict[tuple[bool, int, int], int] = {}
    for block in needed:
        for op in block.ops:
            if op.params and (block.name, op.part) in known:
                mine = known[block.name, op.part]
                key = op.expert, round(mine.params / mine.local_params), round(op.params / op.local_params)
                sums[key] = sums.get(key, 0) + op.params
    for (expert, a, b), params in sums.items():
        yield WeightPiece(params, expert, a, b)


def _sizes(piece: WeightPiece, holds: tuple[PlacedSection, int], needs: tuple[PlacedSection, int]) -> I64:
    """From which rank of the job to which, and bytes; a column each."""
    (one, holder), (other, needer) = holds, needs
    plan, size = one.found.plan, bytes_each(other.found.plan.dtype)
    shards = plan.expert_shards if piece.expert else plan.shards
    at, part = RankGrid.of(plan).at, _part(one.found.plan, piece.held, piece.expert)
    shard = (at["edp"] if piece.expert else at["copy"]) % shards
    mine = np.flatnonzero(at["pp"] == holder)
    wanted = np.flatnonzero(RankGrid.of(other.found.plan).at["pp"] == needer)
    theirs = _part(other.found.plan, piece.needed, piece.expert)
    # In units of 1 / (held · shards · needed) of the whole: each has an interval.
    begin = (part[mine] * shards + shard[mine]) * piece.needed
    from_, to = theirs[wanted] * piece.held * shards, (theirs[wanted] + 1) * piece.held * shards
    common = np.minimum(begin[:, None] + piece.needed, to) - np.maximum(begin[:, None], from_)
    whole = piece.held * shards * piece.needed
    moved = np.ceil(np.maximum(common, 0) * piece.params * size / whole).astype(np.int64)
    source, target = mine + one.ranks.start, wanted + other.ranks.start
    holds_it = (source[:, None] == target) & (moved > 0)
    keep = np.zeros_like(moved)
    for start in np.unique(begin):  # copies of one interval: who needs it and holds none takes it from one of them
        copies = np.flatnonzero(begin == start)
        turn = copies[np.arange(len(wanted)) % len(copies)]
        asks = ~holds_it[copies].any(axis=0)
        keep[turn[asks], np.flatnonzero(asks)] = moved[turn[asks], np.flatnonzero(asks)]
    a, b = np.nonzero(keep)
    return np.stack([source[a], target[b], keep[a, b]])


def _part(plan: Plan, ways: int, expert: bool) -> I64:
    """The part of each rank, of weights split `ways` ways."""
    at = RankGrid.of(plan).at
    if expert:
        return (at["ep"].astype(np.int64) * plan.etp + at["etp"]) * ways // (plan.ep * plan.etp)
    return at["tp"].astype(np.int64) * ways // plan.tp
