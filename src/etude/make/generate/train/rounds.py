"""Program and memory of a rank under `roundrobin`: visit by visit, weights are loaded from the host's memory and
gradients stored to it. The optimizer runs on the host at the same time and is not in the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.make.generate.blocks.ops import Op, Phase, Stream, bytes_of, message
from etude.make.generate.blocks.recompute import NOTHING
from etude.make.generate.blocks.shard import Block
from etude.make.generate.plan import Plan
from etude.make.generate.schedules.round_robin import DispatchRounds, RoundRobinOptions, StageCut, cut
from etude.make.generate.train.fragment import BEFORE, Emitter, Fragment, backward
from etude.make.generate.train.memory import Memory, saved
from etude.make.generate.train.program import StepProgram
from etude.make.generate.train.sharing import copies, gather, kinds, reduce
from etude.make.generate.train.stage import StageLayout, quantise
from etude.model.schema import IS_BATCH, UNKNOWN, Kind

NAME = "roundrobin"


def is_round_robin(plan: Plan) -> bool:
    word = plan.schedule.partition(":")[0]
    return word.lower().replace("-", "").replace("_", "") == NAME


def rounds_of(plan: Plan, blocks: Sequence[Block]) -> DispatchRounds:
    """How these blocks are cut and dispatched. Raises UsageError for options that assume weights held by ranks."""
    for given, flag, why in (
        (plan.directives, "directives", "directives define what the ranks of a stage share"),
        (plan.stages, "stages", "stages are cut by the work of blocks"),
        (plan.checkpoint, "checkpoint", "the state is in the host's memory, which writes it"),
        (plan.recompute not in ("none", "full"), "recompute", "a backward stage recomputes all of its forward pass"),
    ):
        if given:
            raise UsageError(
                f"schedule `{plan.schedule}` cannot be combined with --{flag}: {why}", hint=f"leave out --{flag}"
            )
    forward = [float(sum(max(op.flops, 0) for op in b.ops if op.flops != UNKNOWN)) for b in blocks]
    back = [float(sum(max(o.flops, 0) for op in b.ops for o in op.backward if o.flops != UNKNOWN)) for b in blocks]
    both = [f + b for f, b in zip(forward, back, strict=True)]
    first = next((i for i, block in enumerate(blocks) if block.goes_back), len(blocks))
    cuts = cut(forward, both, RoundRobinOptions.parse(plan.schedule), first)
    if len(cuts) * plan.steps < plan.pp:
        raise UsageError(
            f"schedule `{plan.schedule}`: {len(cuts)} stages in {plan.steps} steps leave some of {plan.pp} ranks idle",
            hint=f"--pp {len(cuts) * plan.steps}",
        )
    return DispatchRounds(cuts, plan.pp, plan.micro_batches, plan.steps)


def layout_of_rounds(rounds: DispatchRounds, blocks: Sequence[Block]) -> StageLayout:
    """Layout whose stages are the cuts. No rank has a copy of a tied embedding: the host sums its gradients."""
    stages = tuple(tuple(blocks[c.first : c.last]) for c in rounds.cuts)
    return StageLayout(rounds.schedule(), {}, stages, 0, frozenset())


def costs(layout: StageLayout, rounds: DispatchRounds) -> list[float]:
    """Work of a micro-batch in each cut, in FLOPs."""
    found = []
    for blocks, one in zip(layout.stages, rounds.cuts, strict=True):
        ops = [op for b in blocks for op in b.ops]
        ops += [o for op in ops for o in op.backward] if one.back else []
        found.append(float(sum(max(op.flops, 0) for op in ops if op.flops != UNKNOWN)))
    return found


def round_figures(layout: StageLayout, rounds: DispatchRounds) -> dict[str, Any]:
    """Metrics of the schedule as for other pipelines, with times in FLOPs, and the number of stages."""
    cost = costs(layout, rounds)
    begin, end = rounds.times(cost)
    each = len(rounds.cuts)
    first, last = begin[0::each].ravel(), end[each - 1 :: each].ravel()
    change = np.concatenate([np.ones(len(first), np.int64), -np.ones(len(last), np.int64)])
    order = np.lexsort((change, np.concatenate([first, last])))
    busy = rounds.micro_batches * sum(cost) * rounds.steps
    return {
        "bubble": 1.0 - busy / (rounds.ranks * float(end.max())),
        "in_flight": int(np.cumsum(change[order]).max()),
        "in_flight_on_a_rank": 1,
        "staleness": int(rounds.steps > 1),
        "stages": {"forward": sum(not c.back for c in rounds.cuts), "backward": sum(c.back for c in rounds.cuts)},
    }


@dataclass(slots=True)
class RoundWalk:
    """Writes the program of one rank."""

    plan: Plan
    layout: StageLayout
    rounds: DispatchRounds
    rank: int
    program: StepProgram
    fragments: dict[tuple[int, bool], Fragment] = field(default_factory=dict)
    ops: dict[tuple[object, ...], Op] = field(default_factory=dict)
    """Equal loads, stores and messages share one op of the book."""
    tip: int = BEFORE
    ended: list[int] = field(default_factory=list)
    """Last row of each visit."""
    results: dict[int, list[int]] = field(default_factory=dict)
    """Results of the previous visit, if it was here (one rank): one row per micro-batch."""

    def run(self) -> None:
        for step, number in self.rounds.visits(self.rank):
            self.program.begin(step)
            self._visit(step, number)

    def _visit(self, step: int, number: int) -> None:
        one, blocks = self.rounds.cuts[number], self.layout.stages[number]
        weights = self._upload(blocks)
        made: list[int] = []
        for micro in range(self.plan.micro_batches):
            value = self._pass(step, number, micro, weights)
            made.append(value)
            self._send(step, number, micro, value)
        self.results = {number: made}
        if one.back:
            self._download(blocks)
        self.ended.append(self.tip)

    def _upload(self, blocks: Sequence[Block]) -> list[list[int]]:
        """Loads the weights of each block; starts after the visit before the last, because two stages fit. Returns
        rows."""
        after = [self.ended[-2]] if len(self.ended) > 1 else []
        found = []
        for block in blocks:
            rows = []
            if params := self._own(block):
                op = self._memory(Kind.MEM_LOAD, "upload", bytes_of(params, self.plan.dtype), Phase.FORWARD)
                rows = [self.program.add(op, block.name, ctrl=after)]
                rows = self._whole(block, rows[0]) or rows
            if block.cast_params:
                op = self.ops.setdefault(("cast", block.cast_params), quantise(self.plan, block.cast_params))
                rows = [self.program.add(op, block.name, data=rows)]
            found.append(rows)
        return found

    def _own(self, block: Block, *, trained: bool = False) -> int:
        """Number of a block's weights in the memory of the rank's host: all of them, or its part if copies share
        them."""
        sizes = [(block.local_params(expert=e, trained=trained), e) for e in (False, True)]
        return sum(-(-params // copies(self.plan, expert=e).shards) for params, e in sizes)

    def _whole(self, block: Block, loaded: int) -> list[int]:
        """Gathers of weights of which each copy has loaded a part."""
        groups = [group for group in kinds(self.plan, [block]) if group.shards > 1]
        ops = [gather(self.plan, group, block.local_params(expert=group.expert)) for group in groups]
        return [self.program.add(op, block.name, data=[loaded]) for op in ops]

    def _pass(self, step: int, number: int, micro: int, weights: list[list[int]]) -> int:
        """One micro-batch: forward, or forward and backward. Returns the row of the result."""
        one = self.rounds.cuts[number]
        come = self._receive(step, number, micro)
        if not one.back:
            value = self._place(number, False, micro, come, weights if micro == 0 else [])
            self._keep(one, micro, value)
            return value
        inputs = come if one.fused else self._again(one, micro)
        value = self._place(number, False, micro, inputs, weights if micro == 0 else [])
        return self._place(number, True, micro, [value, *([] if one.fused else come)], [])

    def _place(self, number: int, back: bool, micro: int, values: list[int], weights: list[list[int]]) -> int:
        key = number, back
        if key not in self.fragments:
            blocks, one = self.layout.stages[number], self.rounds.cuts[number]
            again = Phase.RECOMPUTE if one.back and not one.fused else None
            book = self.program.book
            self.fragments[key] = backward(book, blocks, NOTHING) if back else _forward(self.program, blocks, again)
        fragment = self.fragments[key]
        base = self.program.place(fragment, micro, values, [self.tip])
        for position, rows in enumerate(weights):
            if fragment.first[position] < len(fragment):
                self.program.join(base + int(fragment.first[position]), data=rows)
        if fragment.tip != BEFORE:
            self.tip = base + fragment.tip
        return base + fragment.value if fragment.value != BEFORE else (values[-1] if values else BEFORE)

    # -- messages, loads and stores ---------------------------------------------------------------------------

    def _receive(self, step: int, number: int, micro: int) -> list[int]:
        """Rows with the result of the stage dispatched before, or with the loaded batch."""
        if not number:
            return [self._load(micro)] if self.plan.data_loading else []
        source = self.rounds.rank(step, number - 1)
        if source == self.rank:
            return [self.results[number - 1][micro]]
        op = self._message(Kind.RECV, source, number - 1)
        return [self.program.add(op, "pipeline", micro_batch=micro, tag=self._tag(step, number - 1, micro))]

    def _load(self, micro: int) -> int:
        size = 16 * self.plan.micro_batch * max(self.plan.seq, 1) // self.plan.cp  # tokens and labels
        op = self._memory(Kind.MEM_LOAD, "data_loader", size, Phase.FORWARD, IS_BATCH)
        return self.program.add(op, "data", micro_batch=micro)

    def _send(self, step: int, number: int, micro: int, value: int) -> None:
        if number + 1 == len(self.rounds.cuts) or (target := self.rounds.rank(step, number + 1)) == self.rank:
            return
        tag = self._tag(step, number, micro)
        op = self._message(Kind.SEND, target, number)
        self.program.add(op, "pipeline", micro_batch=micro, data=[value], tag=tag)

    def _message(self, kind: Kind, rank: int, number: int) -> Op:
        one = self.rounds.cuts[number]
        size = self._border(one.first if one.back else one.last)
        phase = Phase.INPUT if one.back else Phase.FORWARD
        key = kind, rank, size, phase
        made = message(kind, f"stage{rank}", size, "", Stream.PIPELINE, phase=phase, dtype=self.plan.dtype)
        return self.ops.setdefault(key, made)

    def _border(self, at: int) -> int:
        """Bytes of a micro-batch between blocks at - 1 and at."""
        blocks = [b for c, s in zip(self.rounds.cuts, self.layout.stages, strict=True) if not c.back for b in s]
        blocks += [b for c, s in zip(self.rounds.cuts, self.layout.stages, strict=True) if c.fused for b in s]
        return blocks[at - 1].out_bytes

    def _tag(self, step: int, number: int, micro: int) -> int:
        return 1 + (step * len(self.rounds.cuts) + number) * self.plan.micro_batches + micro

    def _memory(self, kind: Kind, part: str, size: int, phase: Phase, mark: str = "") -> Op:
        stream = Stream.MEMORY if kind == Kind.MEM_LOAD else Stream.STORE
        op = Op(name=part, part=part, kind=kind, size_bytes=size, stream=stream, phase=phase, dtype=self.plan.dtype)
        return self.ops.setdefault((kind, part, size, phase), op.replace(mark=mark) if mark else op)

    def _keep(self, one: StageCut, micro: int, value: int) -> None:
        """Stores the inputs of backward stages on the host."""
        for at in self._borders():
            if one.first < at <= one.last:
                op = self._memory(Kind.MEM_STORE, "activations", self._border(at), Phase.FORWARD)
                self.program.add(op, "pipeline", micro_batch=micro, data=[value])

    def _borders(self) -> list[int]:
        return [c.first for c in self.rounds.cuts if c.back and not c.fused and c.first]

    def _again(self, one: StageCut, micro: int) -> list[int]:
        """Loads the input of a backward stage from the host."""
        if not one.first:
            return []
        op = self._memory(Kind.MEM_LOAD, "activations", self._border(one.first), Phase.RECOMPUTE)
        after = [self.ended[-1]] if self.ended else []
        return [self.program.add(op, "pipeline", micro_batch=micro, ctrl=after)]

    def _download(self, blocks: Sequence[Block]) -> None:
        """Stores the gradients of all micro-batches, summed over the copies, on the host."""
        for block in reversed(blocks):
            done = [self.tip]
            for group in kinds(self.plan, [block], trained=True):
                ops = reduce(self.plan, group, block.local_params(expert=group.expert, trained=True))
                done += [self.program.add(op, block.name, data=[self.tip]) for op in ops]
            if params := self._own(block, trained=True):
                op = self._memory(Kind.MEM_STORE, "gradients", bytes_of(params, self.plan.grad_dtype), Phase.WEIGHT)
                self.program.add(op, block.name, data=done)


def _forward(program: StepProgram, blocks: Sequence[Block], phase: Phase | None) -> Fragment:
    emitter = Emitter(program.book)
    first, last = [], []
    for block in blocks:
        first.append(len(emitter.op))
        for op in block.ops:
            emitter.add(op, block.name, phase)
        last.append(emitter.tip)
    return emitter.done(first, last, range(len(blocks)))


def memory_of_rounds(plan: Plan, layout: StageLayout, rounds: DispatchRounds, rank: int) -> Memory:
    """Weights and gradients of two visits, the current one and the one before; activations of one micro-batch."""
    visits = [number for _, number in rounds.visits(rank)]
    load = layout.routing.fullest([b for n in visits for b in layout.stages[n]]) if layout.routing else 1.0
    weights, gradients = [0], [0]
    held, beside = [], []
    for number in visits:
        blocks, one = layout.stages[number], rounds.cuts[number]
        params = sum(b.local_params(expert=e) for b in blocks for e in (False, True))
        trained = sum(b.local_params(expert=e, trained=True) for b in blocks for e in (False, True))
        weights.append(bytes_of(params, plan.dtype) + 2 * sum(b.cast_params for b in blocks))
        gradients.append(bytes_of(trained, plan.grad_dtype) if one.back else 0)
        every = sum(int(saved(b, NOTHING, load).sum()) for b in blocks)
        held.append(every if one.back else max(b.out_bytes for b in blocks))
        beside.append(max(op.back_bytes or op.temp_bytes for b in blocks for op in b.ops))
    m = plan.micro_batches
    present = _two(gradients)
    activations, working, gradients_there = (
        np.repeat(np.array(column, np.int64), m) for column in (held, beside, present)
    )
    return Memory(max(_two(weights)), max(present), 0, activations, working, gradients_there)


def _two(sizes: list[int]) -> list[int]:
    """For each visit, the sum of its size and that of the one before."""
    return [a + b for a, b in zip(sizes[1:], sizes[:-1], strict=True)]
