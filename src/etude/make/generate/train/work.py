"""Work of a step without its nodes: each op once, and the dependencies that every simulation of it follows.

A compute stream runs in order (see fragment.py), so the actions of a pipeline rank follow one another; an action waits
for the results of the neighbouring stages; collectives of one stream follow one another too. `least_step_ns` follows
only these dependencies, with passes of whole blocks. What it leaves out (messages, other streams, contention on links)
can only add time, so the result is at most the simulated time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from etude.make.generate.blocks.ops import Op, Phase
from etude.make.generate.blocks.recompute import redone
from etude.make.generate.blocks.shard import Block
from etude.make.generate.choices import ContextMap
from etude.make.generate.model.shape import Model
from etude.make.generate.nodes import Book, columns_of
from etude.make.generate.plan import Plan
from etude.make.generate.ranks import RankGrid, bind, job_of
from etude.make.generate.schedules.pipeline import Action
from etude.make.generate.schedules.pipeline import times as unit_times
from etude.make.generate.train.job import lay_out
from etude.make.generate.train.optimizer import norm, update
from etude.make.generate.train.rounds import is_round_robin
from etude.make.generate.train.sharing import buckets, gather, kinds, owned, reduce
from etude.make.generate.train.stage import PHASES, StageLayout
from etude.model.build import build_trace
from etude.model.job import Job
from etude.model.schema import Kind

Times = Callable[[Plan, Sequence[Op]], list[float]]
"""(Plan, ops) -> least time of each op, ns."""
Ends = tuple[float, float]
"""When the value and the tip of a pass are ready, ns after its begin."""
Reduction = tuple[int, tuple[int, ...]]
"""(position of the last block of a bucket in the backward pass, ops that reduce it)."""


def least_step_ns(model: Model, plan: Plan, times: Times, *, alone: bool = False) -> float:
    """Lower bound of a step's time in ns, with the op times of `times`; 0 for plans without a known bound. `alone`:
    without the update and the exchange between copies, so that the bound holds for any sharding."""
    plan, _, layout = lay_out(model, plan)
    if plan.lengths or plan.directives or plan.domain or plan.cp_map != ContextMap.NONE or is_round_robin(plan):
        return 0.0
    if layout.schedule.window:
        return 0.0
    work = PlanWork(plan, layout, alone)
    return ScheduleClock(work, work.costs(times)).step_ns()


@dataclass(slots=True)
class PlanWork:
    """Distinct ops of a plan, and where they are used."""

    plan: Plan
    layout: StageLayout
    alone: bool = False
    book: Book = field(default_factory=Book)
    passes: dict[tuple[int, Action], list[tuple[int, Op]]] = field(default_factory=dict)
    """(id of a block's ops, action) -> (number, op) of its pass."""
    pulls: dict[int, list[list[int]]] = field(default_factory=dict)
    """Stage -> ops that gather the weights, for each block."""
    reductions: dict[int, list[Reduction]] = field(default_factory=dict)
    """Stage -> reductions of a backward pass, in the order in which they are issued."""
    updates: list[list[int]] = field(default_factory=list)
    """For each pipeline rank: the norm, if gradients are clipped, and the update."""

    def __post_init__(self) -> None:
        schedule = self.layout.schedule
        actions = {Action(a) for a in np.unique(schedule.action).tolist()}
        for stage, blocks in enumerate(self.layout.stages):
            for block in blocks:
                for action in actions:
                    self.of_block(block, action)
            self.pulls[stage] = [[] for _ in blocks] if self.alone else self._pulls(blocks)
            self.reductions[stage] = [] if self.alone else self._reductions(blocks)
        self.updates = [[] if self.alone else self._update(rank) for rank in range(schedule.ranks)]

    def of_block(self, block: Block, action: Action) -> list[tuple[int, Op]]:
        key = id(block.ops), action
        if key not in self.passes:
            self.passes[key] = [(self.book.op(op), op) for op in _ops(block, action, self.plan.twice)]
        return self.passes[key]

    def _reductions(self, blocks: Sequence[Block]) -> list[Reduction]:
        plan, found = self.plan, list[Reduction]()
        order = [n for n in reversed(range(len(blocks))) if blocks[n].goes_back]
        for group in kinds(plan, blocks, trained=True):
            for params, members in buckets(blocks, order, 1 if plan.zero == 3 else plan.bucket, expert=group.expert):
                found.append((members[-1], tuple(self.book.op(op) for op in reduce(plan, group, params))))
        return found

    def _pulls(self, blocks: Sequence[Block]) -> list[list[int]]:
        """Ops that gather the weights of each block: with ZeRO 3 in every pass; with ZeRO 1 and 2 in the first forward
        pass, at the first block of each bucket."""
        plan, found = self.plan, [list[int]() for _ in blocks]
        if plan.zero == 3:
            for group in kinds(plan, blocks):
                for position, block in enumerate(blocks):
                    params = block.local_params(expert=group.expert)
                    if params and group.shards > 1:
                        found[position].append(self.book.op(gather(plan, group, params)))
        elif plan.zero and plan.overlap_params:
            for group in kinds(plan, blocks, trained=True):
                if group.shards > 1:
                    for params, members in buckets(blocks, range(len(blocks)), plan.bucket, expert=group.expert):
                        found[members[0]].append(self.book.op(gather(plan, group, params)))
        return found

    def _update(self, rank: int) -> list[int]:
        plan, stages = self.plan, [self.layout.stages[s] for s in self.layout.schedule.held[rank]]
        params = sum(owned(plan, blocks) for blocks in stages)
        ops = [*([norm(plan, params)] if plan.clip else []), *update(plan, stages, params)] if params else []
        return [self.book.op(op) for op in ops]

    def costs(self, times: Times) -> list[float]:
        """Least time of each op, ns. Where experts have unequal load, routed work counts as 0."""
        found = times(self.plan, self.book.ops)
        if self.layout.routing is not None:
            for number, op in enumerate(self.book.ops):
                if op.load or op.group in ("ep", "etp", "ep_in", "ep_out"):
                    found[number] = 0.0
        return found


def job_of_ops(plan: Plan, ops: Sequence[Op]) -> tuple[Job, list[int]]:
    """A job with a single trace that has each of these ops once, in order; and one rank of each pipeline stage."""
    book = Book()
    numbers = np.array([book.op(op) for op in ops], np.int32)
    columns, groups, peers = columns_of(book, numbers)
    trace = build_trace(columns, group_slots=groups, peer_slots=len(peers))
    grid, program = RankGrid.of(plan), np.zeros(plan.gpus, np.int64)
    job = job_of("ops", [trace], program, bind(grid, [(groups, peers)], program), {})
    return job, np.unique(grid.at["pp"], return_index=True)[1].tolist()


@dataclass(slots=True)
class ScheduleClock:
    """Goes through the schedule with the least time of each pass."""

    work: PlanWork
    costs: list[float]
    known: dict[tuple[int, Action, float], Ends] = field(default_factory=dict)
    whole: dict[tuple[int, Action], tuple[Ends, list[float]]] = field(default_factory=dict)
    """Passes of stages that wait for no weights: their ends, and the tip after each block."""
    tip: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    """End of the first of two actions that run at the same time."""
    gathered: list[float] = field(default_factory=list)
    reduced: list[float] = field(default_factory=list)
    units: list[list[float]] = field(default_factory=list)
    """For each pipeline rank: tips after the blocks done so far."""
    done: dict[tuple[bool, int, int], float] = field(default_factory=dict)
    """(forward?, stage, micro-batch) -> when its value is ready."""

    def step_ns(self) -> float:
        plan, schedule = self.work.plan, self.work.layout.schedule
        ranks = schedule.ranks
        self.tip, self.beside, self.gathered, self.reduced = ([0.0] * ranks for _ in range(4))
        self.units = [[] for _ in range(ranks)]
        if plan.steps > 1:  # steps overlap: only each rank's own work in a step is a bound
            return self._busiest() + plan.step_overhead_ns
        rank_of = np.repeat(np.arange(ranks), np.diff(schedule.start))
        order = np.lexsort((np.arange(len(schedule)), unit_times(schedule).begin))
        last = self._lasts(rank_of)
        fresh = {(r, s) for r, held in enumerate(schedule.held) for s in held}
        columns = (rank_of, schedule.action, schedule.stage, schedule.micro_batch, schedule.paired)
        rows = list(zip(*(c.tolist() for c in columns), strict=True))
        for i in order.tolist():
            rank, action, stage, micro, paired = rows[i]
            begins = (rank, stage) in fresh
            fresh.discard((rank, stage))
            self._act(rank, Action(action), stage, micro, paired=paired, begins=begins, final=i in last)
        return self._updated() + plan.step_overhead_ns

    def _lasts(self, rank_of: NDArray[np.int64]) -> set[int]:
        """Rows that compute the last weight gradient of a stage on a rank."""
        schedule, found = self.work.layout.schedule, dict[tuple[int, int], int]()
        for i in np.flatnonzero(np.isin(schedule.action, (Action.BACKWARD, Action.WEIGHT))).tolist():
            found[int(rank_of[i]), int(schedule.stage[i])] = i
        return set(found.values())

    def _act(
        self, rank: int, action: Action, stage: int, micro: int, *, paired: bool, begins: bool, final: bool
    ) -> None:
        begin = max(self.tip[rank], self._ready(action, stage, micro))
        zero = self.work.plan.zero
        pulls = action != Action.WEIGHT and (action == Action.FORWARD or self.work.plan.reshard)
        if (zero == 3 and pulls) or (zero in (1, 2) and begins):
            (value, tip), tips = self._with_weights(rank, action, stage, begin)
        else:
            (value, tip), tips = self._stage(action, stage)
            value, tip, tips = begin + value, begin + tip, [begin + t for t in tips] if final or zero > 1 else []
            if zero == 3:
                self.units[rank] += tips
        if action in (Action.BACKWARD, Action.WEIGHT) and (final or zero >= 2):
            self._reduce(rank, stage, tips)
        if action != Action.WEIGHT:
            self.done[action == Action.FORWARD, stage, micro] = value
        if paired:
            self.beside[rank] = tip
        else:
            self.tip[rank], self.beside[rank] = max(tip, self.beside[rank]), 0.0

    def _ready(self, action: Action, stage: int, micro: int) -> float:
        if action == Action.FORWARD:
            return self.done.get((True, stage - 1, micro), 0.0)
        if action == Action.WEIGHT:
            return self.done.get((False, stage, micro), 0.0)
        return max(self.done.get((True, stage, micro), 0.0), self.done.get((False, stage + 1, micro), 0.0))

    def _order(self, stage: int, action: Action) -> list[int]:
        """Blocks in the order in which an action runs them."""
        blocks = self.work.layout.stages[stage]
        if action == Action.FORWARD:
            return list(range(len(blocks)))
        return [n for n in reversed(range(len(blocks))) if blocks[n].goes_back]

    def _block(self, block: Block, action: Action, value: float, tip: float) -> Ends:
        key = id(block.ops), action, value - tip
        if key not in self.known:
            self.known[key] = _through(self.work.of_block(block, action), self.costs, value - tip)
        return tip + self.known[key][0], tip + self.known[key][1]

    def _stage(self, action: Action, stage: int) -> tuple[Ends, list[float]]:
        if (stage, action) not in self.whole:
            value, tip, tips = 0.0, 0.0, []
            for number in self._order(stage, action):
                value, tip = self._block(self.work.layout.stages[stage][number], action, value, tip)
                tips.append(tip)
            self.whole[stage, action] = (value, tip), tips
        return self.whole[stage, action]

    def _with_weights(self, rank: int, action: Action, stage: int, begin: float) -> tuple[Ends, list[float]]:
        """A pass whose blocks wait for weights that are gathered one after another."""
        plan, blocks, units = self.work.plan, self.work.layout.stages[stage], self.units[rank]
        value = tip = begin
        tips: list[float] = []
        ahead = plan.prefetch + 1
        for number in self._order(stage, action):
            pulls = self.work.pulls[stage][number]
            if pulls:
                since = units[-ahead] if plan.zero == 3 and len(units) >= ahead else 0.0
                self.gathered[rank] = max(self.gathered[rank], since) + sum(self.costs[op] for op in pulls)
                if _holds(self.work.of_block(blocks[number], action)):
                    value, tip = max(value, self.gathered[rank]), max(tip, self.gathered[rank])
            value, tip = self._block(blocks[number], action, value, tip)
            tips.append(tip)
            units.append(tip)
        return (value, tip), tips

    def _reduce(self, rank: int, stage: int, tips: list[float]) -> None:
        for position, ops in self.work.reductions[stage]:
            made = tips[position] if self.work.plan.overlap_grads else tips[-1]
            self.reduced[rank] = max(self.reduced[rank], made) + sum(self.costs[op] for op in ops)

    def _updated(self) -> float:
        """End of the update; with clipping, ranks wait for the norm of all."""
        ready = [max(pair) for pair in zip(self.tip, self.reduced, strict=True)]
        costs = [[self.costs[op] for op in ops] for ops in self.work.updates]
        if self.work.plan.clip and all(costs):
            return max(r + c[0] for r, c in zip(ready, costs, strict=True)) + max(sum(c[1:]) for c in costs)
        return max([*self.gathered, *(r + sum(c) for r, c in zip(ready, costs, strict=True))])

    def _busiest(self) -> float:
        schedule = self.work.layout.schedule
        found = []
        for rank, ops in enumerate(self.work.updates):
            rows = schedule.rows(rank)
            pairs = zip(schedule.stage[rows].tolist(), schedule.action[rows].tolist(), strict=True)
            own = sum(self._stage(Action(a), s)[0][1] for s, a in pairs)
            found.append(own / (2 if schedule.paired[rows].any() else 1) + sum(self.costs[op] for op in ops))
        return max(found)


def _holds(ops: Sequence[tuple[int, Op]]) -> bool:
    """Whether the whole pass waits for its first op."""
    return bool(ops) and ops[0][1].kind == Kind.COMP and not ops[0][1].side


def _ops(block: Block, action: Action, twice: frozenset[str]) -> Iterable[Op]:
    """Ops of a block in an action, in the order in which they are issued."""
    if action == Action.FORWARD:
        yield from block.ops
        return
    if not block.goes_back:
        return
    again = redone(block, twice) if Phase.INPUT in PHASES[action] else {}
    for i in reversed(range(len(block.ops))):
        yield from again.get(i, [])
        yield from (op for op in block.ops[i].backward if op.phase in PHASES[action])


def _through(ops: Sequence[tuple[int, Op]], costs: Sequence[float], lead: float) -> Ends:
    """When value and tip are ready after these ops, with the tip ready at 0 and the value at `lead`. fragment.py says
    what an op waits for."""
    value, tip = lead, 0.0
    pending: dict[str, float] = {}
    for number, op in ops:
        begin = max((pending.get(key, 0.0) for key in op.waits), default=0.0)
        if op.kind != Kind.RECV:
            begin = max(begin, tip, 0.0 if op.side else value)
        end = begin + costs[number]
        if op.kind == Kind.COMP:
            tip = end
            value = value if op.side else end
        elif op.start:
            pending[op.start] = end
        else:
            value = end
    return value, tip
