"""replicate, shard, gather: what the copies of a model share, as rewrites of a step in which copies are independent.

    replicate   the gradients of the copies are summed: an all-reduce for each bucket, after the last backward pass
    shard       gradients: the sums become reduce-scatters; optimizer: each copy updates its part
    gather      whole weights from their parts: once a step, or before each use of a block

Dense weights and experts have separate copies; a rewrite applies to both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from etude.base.errors import UsageError
from etude.cost.ops import width
from etude.make.generate.blocks.ops import GEMMS, Op, Phase, Stream, collective, shapes
from etude.make.generate.directives.step import Step
from etude.make.generate.plan import Plan
from etude.make.generate.schedules.pipeline import Action
from etude.model.schema import Collective, Kind

ENDS_BACKWARD = (int(Action.BACKWARD), int(Action.WEIGHT))
USES = {"forward": (Action.FORWARD,), "use": (Action.FORWARD, Action.BACKWARD, Action.INPUT)}
"""Passes before which weights are gathered."""


@dataclass(frozen=True, slots=True)
class WeightRing:
    """The ranks that share one kind of weights: `shards` of them have a part each; there are `sets` such groups."""

    expert: bool
    shards: int
    sets: int
    shard_group: str
    set_group: str

    def part(self, params: int) -> int:
        return -(-params // self.shards)


@dataclass(slots=True)
class Sum:
    """One bucket of gradients that is summed after a pass."""

    unit: int
    """Its last block, as a row of the units."""
    members: list[int]
    params: int
    expert: bool
    nodes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class CopySharing:
    """Sharing on one pipeline rank, as set by the directives so far."""

    step: Step
    over: dict[str, str] = field(default_factory=dict)
    """Gradients, optimizer, weights -> the ranks that they are sharded over."""
    sums: list[Sum] = field(default_factory=list)
    each: str = ""
    """Gradients are summed each step, or each micro-batch."""
    gathered: str = ""
    """When weights are gathered: before a step, a forward pass, each use."""
    ahead: int = 0

    def kinds(self) -> list[bool]:
        """Dense weights, experts: those that have copies."""
        plan = self.step.plan
        return [expert for expert in (False, True) if copies(plan, expert=expert) > 1]

    def params(self, unit: int, *, expert: bool, trained: bool = True) -> int:
        """Parameters of a unit's block on this rank."""
        units = self.step.units
        block = self.step.stages[int(units.stage[unit])][int(units.block[unit])]
        return sum(op.local_params for op in block.ops if op.expert == expert and not (trained and op.frozen))

    # -- gradients ---------------------------------------------------------------------------------------------------

    def replicate(self, bucket: int) -> None:
        """Sums the gradients of all copies after the last pass of each step."""
        if self.sums:
            raise UsageError("`replicate` appears twice")
        for passes in self._passes(last=True):
            self._sum_after(passes, bucket)

    def shard_gradients(self, over: str, *, each: str) -> None:
        """Reduce-scatters instead of the all-reduces; for `each` micro-batch separately, if so."""
        if not self.sums:
            raise UsageError("gradients are sharded before they are summed", hint="put `replicate` first")
        self.over["gradients"] = over
        self.each = each
        if each == "micro_batch":
            self._sum_each_micro_batch()
            self._shard_further_sums(over, updated=False)
        for one in self.sums:
            self._put_sum(one, ring(self.step.plan, over, expert=one.expert))

    def _shard_further_sums(self, over: str, *, updated: bool) -> None:
        """Sums over tensor-parallel ranks, twins and ends of a pipeline only cover the parts that a rank has."""
        step, plan = self.step, self.step.plan
        for one in (s for end in step.nodes.ends for s in end.sums if s.updated == updated):
            part = sum(ring(plan, over, expert=e).part(abs(p)) * (1 if p > 0 else -1) for p, e in one.params)
            size = int(part * width(plan.grad_dtype))
            step.change(one.row, step.op(one.row).replace(in_bytes=size, out_bytes=size))

    def overlap_gradients(self) -> None:
        """A sum begins when the gradients of its bucket are complete, not at the end of the pass."""
        for one in self.sums:
            first = one.nodes[0]
            self.step.unjoin(first)
            self.step.join(first, data=[int(self.step.units.tip[one.unit])])

    def _passes(self, *, last: bool) -> list[list[int]]:
        """Units of each backward pass in their order; `last`: those after which a stage's gradients are complete."""
        units = self.step.units
        found: dict[tuple[int, int, int], list[int]] = {}
        for unit in np.flatnonzero(np.isin(units.action, ENDS_BACKWARD)).tolist():
            key = int(units.update[unit]), int(units.stage[unit]), int(units.pass_first[unit])
            found.setdefault(key, []).append(unit)
        if not last:
            return list(found.values())
        final = {(step, stage): key for (step, stage, key) in sorted(found)}
        return [found[step, stage, key] for (step, stage, key) in found if final[step, stage] == key]

    def _sum_after(self, units: Sequence[int], bucket: int) -> None:
        for expert in self.kinds():
            size, members = 0, list[int]()
            for unit in units:
                params = self.params(unit, expert=expert)
                size, members = size + params, [*members, unit] if params else members
                if members and (size >= bucket or unit == units[-1]):
                    one = Sum(members[-1], members, size, expert)
                    self.sums.append(one)
                    self._put_sum(one, whole(self.step.plan, expert=expert))
                    size, members = 0, []

    def _sum_each_micro_batch(self) -> None:
        """The sums of a stage's last pass after each of its passes; a gradient is then written, not added."""
        step, units = self.step, self.step.units
        pattern: dict[tuple[int, int], list[Sum]] = {}
        for one in self.sums:
            pattern.setdefault((int(units.update[one.unit]), int(units.stage[one.unit])), []).append(one)
            for node in one.nodes:
                step.drop(node)
        self.sums = []
        for passed in self._passes(last=False):
            of_block = {int(units.block[u]): u for u in passed}
            for one in pattern.get((int(units.update[passed[0]]), int(units.stage[passed[0]])), []):
                members = [of_block[int(units.block[u])] for u in one.members]
                self.sums.append(Sum(members[-1], members, one.params, one.expert))
        self._write_gradients()

    def _write_gradients(self) -> None:
        """Products that accumulated a gradient write it once, in the type of activations."""
        step, plan = self.step, self.step.plan
        before = width(plan.grad_dtype) * (2 if plan.micro_batches > 1 else 1)
        saved = before - width(plan.dtype)
        for number, op in enumerate(list(step.nodes.book.ops)):
            if op.phase == Phase.WEIGHT and op.side and op.kind == Kind.COMP and op.name in GEMMS:
                at = np.flatnonzero(step.nodes.op == number)
                if len(at):
                    less = op.replace(size_bytes=op.size_bytes - int(_elements(op.out_shapes) * saved))
                    step.nodes.op[at] = step.nodes.book.op(less)

    def _put_sum(self, one: Sum, group: WeightRing) -> None:
        step, units, plan = self.step, self.step.units, self.step.plan
        for node in one.nodes:
            step.drop(node)
        one.nodes = []
        full = group.part(one.params) * group.shards * int(width(plan.grad_dtype))
        ops = []
        if group.shards > 1:
            ops.append(_exchange(Collective.REDUCE_SCATTER, group.shard_group, group.shards, full, plan))
        if group.sets > 1:
            ops.append(_exchange(Collective.ALL_REDUCE, group.set_group, group.sets, full // group.shards, plan))
        stage, block = int(units.stage[one.unit]), int(units.block[one.unit])
        done, last = int(units.pass_tip[one.unit]), int(units.pass_last[one.unit])
        for op in ops:
            done = step.insert(
                op, step.stages[stage][block].name, after=last, micro_batch=int(units.micro[one.unit]), data=[done]
            )
            one.nodes.append(done)
        for node in step.nodes.ends[int(units.update[one.unit])].awaits:
            step.join(node, data=[done])

    # -- the optimizer -----------------------------------------------------------------------------------------------

    def shard_optimizer(self, over: str) -> None:
        """Each copy updates its part: the norm and the update of a step only cover that."""
        self.over["optimizer"] = over
        step = self.step
        before = after = 0
        for stage in step.held:
            for expert in (False, True):
                mine = sum(b.local_params(expert=expert, trained=True) for b in step.stages[stage])
                before += mine
                after += ring(step.plan, over, expert=expert).part(mine)
        for end in step.nodes.ends:
            for node in end.over_params:
                step.change(node, _fewer(step.op(node), before, after))
        self._shard_further_sums(over, updated=True)

    # -- weights -----------------------------------------------------------------------------------------------------

    def shard_weights(self, over: str) -> None:
        """Each copy keeps a part; `gather` puts them together."""
        if any(block.cast_params for stage in self.step.stages for block in stage):
            problem = "directives do not shard weights that are cast to 8 bits: each gather would need its own cast"
            raise UsageError(problem, hint="--zero 3, or --precision bf16")
        self.over["weights"] = over

    def gather(self, before: str, bucket: int, ahead: int) -> None:
        """Whole weights before a step, or before the passes of each block."""
        over = self.over.get("weights") or self.over.get("optimizer", "")
        if not over:
            raise UsageError("weights are gathered, but every copy has them whole", hint="`shard` the weights first")
        if before == "step":
            self._gather_once(over, bucket)
        else:
            self._gather_for_use(over, [int(action) for action in USES[before]], ahead)
        self.gathered, self.ahead = before, ahead

    def _gather_once(self, over: str, bucket: int) -> None:
        """What the last step updated, bucket by bucket, during the start of the forward pass."""
        units = self.step.units
        for number in range(len(self.step.nodes.ends)):
            for stage in self.step.held:
                opening = (units.update == number) & (units.stage == stage) & (units.opens == 1)
                self._gather_buckets(np.flatnonzero(opening).tolist(), over, bucket, number)

    def _gather_buckets(self, units: Sequence[int], over: str, bucket: int, number: int) -> None:
        step, end = self.step, self.step.nodes.ends[number]
        for expert in self.kinds():
            group, size, members = ring(step.plan, over, expert=expert), 0, list[int]()
            for unit in units:
                params = self.params(unit, expert=expert)
                size, members = size + params, [*members, unit] if params else members
                if members and (size >= bucket or unit == units[-1]) and group.shards > 1:
                    op = self._gathering(group, size, Phase.FORWARD)
                    node = step.insert(op, self._name(members[0]), before=end.begin, data=end.updated)
                    for member in members:
                        self._feed(member, node)
                    size, members = 0, []

    def _gather_for_use(self, over: str, wanted: Sequence[int], ahead: int) -> None:
        """A block's weights before each use, while the `ahead` blocks before it run."""
        step, units = self.step, self.step.units
        for unit in range(len(units.action)):
            if int(units.action[unit]) not in wanted:
                continue
            phase = Phase.FORWARD if units.action[unit] == Action.FORWARD else Phase.INPUT
            for expert in self.kinds():
                group = ring(step.plan, over, expert=expert)
                params = self.params(unit, expert=expert, trained=False)
                if params and group.shards > 1:
                    begun = unit - ahead - 1
                    ctrl = [int(units.tip[begun])] if begun >= 0 and units.tip[begun] >= 0 else []
                    data = step.nodes.ends[int(units.update[unit])].updated if units.opens[unit] else []
                    node = step.insert(self._gathering(group, params, phase), self._name(unit),
                                       before=int(units.pass_first[unit]), data=data, ctrl=ctrl)  # fmt: skip
                    self._feed(unit, node)

    def _gathering(self, group: WeightRing, params: int, phase: Phase) -> Op:
        plan = self.step.plan
        full = int(group.part(params) * group.shards * width(plan.dtype))
        return collective(
            Collective.ALL_GATHER,
            group.shard_group,
            group.shards,
            full,
            "weights",
            Stream.GATHER,
            phase=phase,
            dtype=plan.dtype,
        )

    def _feed(self, unit: int, node: int) -> None:
        first = int(self.step.units.first[unit])
        if first >= 0:
            self.step.join(first, data=[node])

    def _name(self, unit: int) -> str:
        units = self.step.units
        return self.step.stages[int(units.stage[unit])][int(units.block[unit])].name

    def memory_plan(self) -> Plan:
        """The plan of flags with the same memory: the ZeRO stage whose parts are all sharded."""
        optimizer = "optimizer" in self.over
        gradients = optimizer and self.each == "micro_batch"
        zero = 3 if gradients and "weights" in self.over else 2 if gradients else int(optimizer)
        plan = self.step.plan.replace(directives="", zero=zero, dp_shard=self.step.plan.dp_shard if zero else 0)
        return plan.replace(prefetch=self.ahead, reshard=self.gathered != "forward") if zero == 3 else plan

    def check(self) -> None:
        """Checks that sharded tensors are gathered where they are used."""
        if "weights" in self.over and self.gathered not in USES:
            raise UsageError(
                "weights are sharded, but not gathered where they are used", hint="gather: {before: use, ahead: 1}"
            )
        if "optimizer" in self.over and not self.gathered:
            hint = "gather: {before: step}"
            raise UsageError("the optimizer is sharded, but the weights that it updates are not gathered", hint=hint)


def copies(plan: Plan, *, expert: bool) -> int:
    """Ranks that have the same weights."""
    return plan.expert_replicas if expert else plan.replicas


def whole(plan: Plan, *, expert: bool) -> WeightRing:
    return WeightRing(expert, 1, copies(plan, expert=expert), "", "edp" if expert else "dp")


def ring(plan: Plan, over: str, *, expert: bool) -> WeightRing:
    """Shards over all copies (`dp`), or over as many as --dp-shard says (`shard`)."""
    n = copies(plan, expert=expert)
    if over == "dp" or n == 1:
        return WeightRing(expert, n, 1, "edp" if expert else "dp", "")
    if not plan.dp_shard:
        raise UsageError("`over: shard` needs the number of copies", hint="--dp-shard 8")
    ways = max(plan.dp_shard * plan.tp // (plan.ep * plan.etp), 1) if expert else plan.dp_shard
    if ways == 1:
        return whole(plan, expert=expert)
    kind = "e" if expert else ""
    if ways >= n:
        return WeightRing(expert, n, 1, "edp" if expert else "dp", "")
    return WeightRing(expert, ways, n // ways, f"{kind}shard", f"{kind}replica")


def _exchange(kind: Collective, group: str, size: int, full: int, plan: Plan) -> Op:
    return collective(kind, group, size, full, "gradients", Stream.REDUCE, phase=Phase.WEIGHT, dtype=plan.grad_dtype)


def _fewer(op: Op, before: int, after: int) -> Op:
    """An op over all parameters, over some of them."""
    if not before:
        return op
    return op.replace(
        flops=op.flops * after // before,
        size_bytes=op.size_bytes * after // before,
        in_shapes=shapes((after,)),
        out_shapes=op.out_shapes if op.out_shapes == shapes((1,)) else shapes((after,)),
    )


def _elements(text: str) -> int:
    """Elements of one shape, as ops write it: [[4096,1024]]."""
    numbers = [int(n) for n in text.replace("[", "").replace("]", "").split(",") if n.strip()]
    return int(np.prod(numbers)) if numbers else 0
