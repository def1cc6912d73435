"""The step of one pipeline rank: goes through its schedule action by action, with exchange of weights and gradients,
and the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from etude.cost.ops import OpClass, Work
from etude.make.generate.blocks.ops import Op, Phase, Stream, bytes_of, collective, compute, message, shapes
from etude.make.generate.blocks.shard import Block
from etude.make.generate.choices import Precision, Scaling
from etude.make.generate.nodes import End, FurtherSum
from etude.make.generate.plan import Plan
from etude.make.generate.schedules.pipeline import Action, PipelineSchedule
from etude.make.generate.train.fragment import BEFORE, Fragment, backward, forward
from etude.make.generate.train.optimizer import norm, state_bytes, update
from etude.make.generate.train.program import StepProgram
from etude.make.generate.train.routing import ExpertRouting
from etude.make.generate.train.sharing import buckets, gather, kept_bytes, kinds, owned, reduce, tensor_sums
from etude.model.schema import IS_BATCH, IS_CHECKPOINT, Collective, Kind

PHASES = {Action.BACKWARD: (Phase.INPUT, Phase.WEIGHT), Action.INPUT: (Phase.INPUT,), Action.WEIGHT: (Phase.WEIGHT,)}


@dataclass(frozen=True, slots=True, eq=False)
class StageLayout:
    """The blocks of each stage, and the pipeline rank of each stage's micro-batch."""

    schedule: PipelineSchedule
    home: dict[tuple[int, int], int]
    """(stage, micro-batch) -> pipeline rank."""
    stages: tuple[tuple[Block, ...], ...]
    tied_params: int
    """Weights of an embedding of which other pipeline ranks have a copy; 0: there is no copy."""
    tied_ranks: frozenset[int]
    """Pipeline ranks that have the embedding and train it."""
    goes_back: int = 0
    """First stage with work in the backward pass."""
    routing: ExpertRouting | None = None
    """Load of expert-parallel ranks; None: equal."""

    def load(self, rank: int) -> float:
        """Load of the fullest expert-parallel rank in the layers of a pipeline rank."""
        mine = (b for stage in self.schedule.held[rank] for b in self.stages[stage])
        return self.routing.fullest(mine) if self.routing else 1.0


@dataclass(slots=True)
class StageWalk:
    """Writes the program of one pipeline rank."""

    plan: Plan
    layout: StageLayout
    rank: int
    program: StepProgram
    fragments: dict[tuple[Action, int], Fragment] = field(default_factory=dict)
    exits: dict[tuple[Action, int, int], int] = field(default_factory=dict)
    """Row with the result of (action, stage, micro-batch)."""
    tips: list[int] = field(default_factory=list)
    """Last rows on the compute stream; two where a forward and a backward pass run at the same time."""
    units: list[int] = field(default_factory=list)
    """Last row of each block run so far."""
    reduced: list[int] = field(default_factory=list)
    """Rows that the optimizer waits for."""
    updated: list[int] = field(default_factory=list)
    """The update of the previous step, or the last gather of the weights after it."""
    graded: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """Rows with the gradients of a stage in a window."""
    fresh: set[int] = field(default_factory=set)
    """Stages whose weights have not been used since they were updated."""
    gathered: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    """Rows that gather the weights of each block, by stage."""
    offset: int = 0
    """Number of micro-batches in the rounds before."""
    messages: dict[tuple[Kind, int, int, Phase], Op] = field(default_factory=dict)
    casts: dict[int, Op] = field(default_factory=dict)

    # -- pieces ------------------------------------------------------------------------------------------

    def fragment(self, action: Action, stage: int) -> Fragment:
        key = action, stage
        if key not in self.fragments:
            blocks = self.layout.stages[stage]
            book = self.program.book
            if action == Action.FORWARD:
                self.fragments[key] = forward(book, blocks)
            else:
                self.fragments[key] = backward(book, blocks, self.plan.twice, PHASES[action])
        return self.fragments[key]

    @property
    def held(self) -> Sequence[int]:
        return self.layout.schedule.held[self.rank]

    def other(self, stage: int, micro_batch: int) -> int:
        return self.layout.home[stage, micro_batch]

    def run(self) -> None:
        """Runs the schedule once for each step, or several times where a step has several rounds of it."""
        count = self.layout.schedule.micro_batches
        for offset in range(0, self.plan.steps * self.plan.micro_batches, count):
            self.offset = offset
            self.program.begin(offset // self.plan.micro_batches)
            self.exits.clear()
            self.reduced = []
            self.program.ends.append(End(self.program.rows, updated=list(self.updated)))
            self._round()
            if not self.layout.schedule.window:
                self._finish(last=offset + count == self.plan.steps * self.plan.micro_batches)

    def _round(self) -> None:
        schedule = self.layout.schedule
        rows = schedule.rows(self.rank)
        steps = zip(
            schedule.action[rows].tolist(),
            schedule.stage[rows].tolist(),
            schedule.micro_batch[rows].tolist(),
            schedule.paired[rows].tolist(),
            strict=True,
        )
        actions = [(Action(a), s, m, p) for a, s, m, p in steps]
        last = self._lasts(actions)
        self._renew()
        paired: list[int] = []
        together = False
        first = second = 0
        for i, (action, stage, micro, pair) in enumerate(actions):
            if action in (Action.REDUCE, Action.UPDATE):
                self._window(action, stage, micro)
                continue
            if schedule.window:
                self.program.begin(micro // self.plan.micro_batches)
            tips, first, second = self.tips, second, self.program.rows
            tip = self._action(action, stage, micro, final=i in last)
            if pair:
                paired, together = [tip], True
                self.tips = tips  # the paired action begins where this one did
            else:
                if together and not self.plan.directives:  # directives rewrite units, row by row
                    self.program.together(first, second, self.program.rows)
                self.tips = [*paired, tip] if together else [tip]
                paired, together = [], False

    def _lasts(self, actions: list[tuple[Action, int, int, bool]]) -> set[int]:
        """Indices of the actions that compute the last weight gradient of a stage before an update."""
        last: dict[tuple[int, int], int] = {}
        window = self.layout.schedule.window or self.layout.schedule.micro_batches
        for i, (action, stage, micro, _) in enumerate(actions):
            if action in (Action.BACKWARD, Action.WEIGHT):
                last[stage, micro // window] = i
        return set(last.values())

    def _renew(self) -> None:
        """Marks all weights as new, at the first step or after an update: they are gathered and cast again."""
        self.fresh = set(self.held)
        self.gathered = self._gather_ahead() if self.plan.zero in (1, 2) and self.plan.overlap_params else {}

    # -- actions ------------------------------------------------------------------------------------------

    def _action(self, action: Action, stage: int, micro: int, *, final: bool) -> int:
        fragment = self.fragment(action, stage)
        begins = stage in self.fresh
        self.fresh.discard(stage)
        come = self.gathered.get(stage, {}) if begins else {}
        weights = {i: come[number] for i, number in enumerate(fragment.blocks.tolist()) if number in come}
        values = self._inputs(action, stage, micro)
        pulled = self._pull(action, stage, fragment)
        cast = self._cast(stage, fragment, weights | pulled) if begins or pulled else {}
        base = self.program.place(fragment, self._number(micro), values, self.tips)
        for position, rows in (weights | pulled | cast).items():
            if fragment.first[position] < len(fragment):
                self.program.join(base + int(fragment.first[position]), data=rows)
        if begins:
            for rows in pulled.values():
                for row in rows:
                    self.program.join(row, data=self.updated)
        self._order_pulls(base, fragment, pulled)
        if self.plan.directives:
            self._note_units(action, stage, micro, fragment, base, opens=begins)
        value = base + fragment.value if fragment.value != BEFORE else (values[-1] if values else BEFORE)
        self.exits[action, stage, micro] = value
        tip = base + fragment.tip if fragment.tip != BEFORE else (self.tips[-1] if self.tips else BEFORE)
        if action in (Action.BACKWARD, Action.WEIGHT):
            before = len(self.reduced)
            self._reduce(stage, fragment, base, micro, final=final)
            if final and self.layout.schedule.window:
                self.graded[stage, micro // self.layout.schedule.window] = [tip, *self.reduced[before:]]
        if action != Action.WEIGHT:
            self._send(action, stage, micro, value)
        return tip

    def _note_units(
        self, action: Action, stage: int, micro: int, fragment: Fragment, base: int, *, opens: bool
    ) -> None:
        """Records for directives where the blocks of this pass begin and end."""
        update = len(self.program.ends) - 1
        about = update, int(action), stage, self._number(micro)
        whole = base, base + len(fragment) - 1, base + fragment.tip, int(opens)
        tips = self.units[len(self.units) - len(fragment.blocks) :]
        for position, number in enumerate(fragment.blocks.tolist()):
            first = int(fragment.first[position])
            at = base + first if first < len(fragment) else -1
            self.program.units.append((*about, number, at, tips[position], *whole))

    def _inputs(self, action: Action, stage: int, micro: int) -> list[int]:
        """Rows with the inputs of an action: received, or computed on this rank before."""
        s = self.layout.stages
        if action == Action.WEIGHT:
            return [self.exits[Action.INPUT, stage, micro]]
        if action == Action.FORWARD:
            if stage == 0:
                return [self._load(micro)] if self.plan.data_loading else []
            return [self._from(Action.FORWARD, stage - 1, micro, s[stage - 1][-1].out_bytes)]
        mine = self.exits[Action.FORWARD, stage, micro]
        if stage == len(s) - 1:
            return [mine]
        return [mine, self._from(action, stage + 1, micro, s[stage][-1].out_bytes)]

    def _from(self, action: Action, source: int, micro: int, size: int) -> int:
        home = self.other(source, micro)
        if home == self.rank:
            for made in (action, Action.BACKWARD, Action.INPUT):
                if (made, source, micro) in self.exits:
                    return self.exits[made, source, micro]
        phase = Phase.FORWARD if action == Action.FORWARD else Phase.INPUT
        op = self._message(Kind.RECV, home, size, phase)
        number = self._number(micro)
        return self.program.add(op, "pipeline", micro_batch=number, tag=self._tag(action, source, micro))

    def _send(self, action: Action, stage: int, micro: int, value: int) -> None:
        target = stage + 1 if action == Action.FORWARD else stage - 1
        if action != Action.FORWARD and target < self.layout.goes_back:
            return
        if not 0 <= target < len(self.layout.stages) or self.other(target, micro) == self.rank:
            return
        phase = Phase.FORWARD if action == Action.FORWARD else Phase.INPUT
        size = self.layout.stages[min(stage, target)][-1].out_bytes
        op = self._message(Kind.SEND, self.other(target, micro), size, phase)
        tag = self._tag(action, stage, micro)
        self.program.add(op, "pipeline", micro_batch=self._number(micro), data=[value], tag=tag)

    def _message(self, kind: Kind, rank: int, size: int, phase: Phase) -> Op:
        """Equal messages share one op of the book."""
        key = kind, rank, size, phase
        if key not in self.messages:
            stream = Stream.PIPELINE if kind == Kind.SEND else Stream.NONE
            self.messages[key] = message(kind, f"stage{rank}", size, "", stream, phase=phase, dtype=self.plan.dtype)
        return self.messages[key]

    def _tag(self, action: Action, source: int, micro: int) -> int:
        back = action != Action.FORWARD
        return 1 + ((self.offset + micro) * len(self.layout.stages) + source) * 2 + back

    def _number(self, micro: int) -> int:
        """Index of a micro-batch in its step."""
        return (self.offset + micro) % self.plan.micro_batches

    def _load(self, micro: int) -> int:
        size = 16 * self.plan.micro_batch * max(self.plan.seq, 1) // self.plan.cp  # tokens and labels
        op = Op(name="data_loader", kind=Kind.MEM_LOAD, size_bytes=size, stream=Stream.MEMORY, mark=IS_BATCH)
        op = self.messages.setdefault((Kind.MEM_LOAD, 0, size, Phase.FORWARD), op)
        return self.program.add(op, "data", micro_batch=self._number(micro))

    # -- weights and gradients -----------------------------------------------------------------------------

    def _gather_ahead(self) -> dict[int, dict[int, list[int]]]:
        """ZeRO 1 and 2: gathers the weights that the last step updated, bucket by bucket, while the forward pass
        begins."""
        found: dict[int, dict[int, list[int]]] = {}
        for stage in self.held:
            blocks = self.layout.stages[stage]
            order = range(len(blocks))
            for group in kinds(self.plan, blocks, trained=True):
                if group.shards == 1:
                    continue
                for params, members in buckets(blocks, order, self.plan.bucket, expert=group.expert):
                    op = gather(self.plan, group, params)
                    row = self.program.add(op, blocks[members[0]].name, data=self.updated)
                    for position in members:
                        found.setdefault(stage, {}).setdefault(position, []).append(row)
        return found

    def _pull(self, action: Action, stage: int, fragment: Fragment) -> dict[int, list[int]]:
        """ZeRO 3: gathers each block's weights before it is used. Rows by position in the fragment."""
        plan = self.plan
        if plan.zero < 3 or action == Action.WEIGHT or (action != Action.FORWARD and not plan.reshard):
            return {}
        blocks = self.layout.stages[stage]
        phase = Phase.FORWARD if action == Action.FORWARD else Phase.INPUT
        found: dict[int, list[int]] = {}
        for position, number in enumerate(fragment.blocks.tolist()):
            for group in kinds(plan, blocks):
                params = blocks[number].local_params(expert=group.expert)
                if params and group.shards > 1:
                    row = self.program.add(gather(plan, group, params, phase), blocks[number].name)
                    found.setdefault(position, []).append(row)
        return found

    def _cast(self, stage: int, fragment: Fragment, come: dict[int, list[int]]) -> dict[int, list[int]]:
        """Casts weights for low-precision products: once a step, and with ZeRO 3 after every gather."""
        blocks = self.layout.stages[stage]
        found: dict[int, list[int]] = {}
        for position, number in enumerate(fragment.blocks.tolist()):
            params = blocks[number].cast_params
            if params:
                op = self.casts.setdefault(params, quantise(self.plan, params))
                row = self.program.add(op, blocks[number].name, data=come.get(position, []), ctrl=self.tips)
                found[position] = [row]
        return found

    def _order_pulls(self, base: int, fragment: Fragment, pulled: dict[int, list[int]]) -> None:
        """Delays the gather of a block's weights until the block `prefetch + 1` places before it is done."""
        ahead = self.plan.prefetch + 1
        for position in range(len(fragment.blocks)):
            if position in pulled and len(self.units) >= ahead:
                for row in pulled[position]:
                    self.program.join(row, ctrl=[self.units[-ahead]])
            tip = int(fragment.last[position])
            self.units.append(base + tip if tip != BEFORE else (self.units[-1] if self.units else BEFORE))

    def _reduce(self, stage: int, fragment: Fragment, base: int, micro: int, *, final: bool) -> None:
        plan = self.plan
        if not final and plan.zero < 2:
            return
        blocks = self.layout.stages[stage]
        order = fragment.blocks.tolist()
        limit = 1 if plan.zero == 3 else plan.bucket
        tip, number = base + fragment.tip, self._number(micro)
        for group in kinds(plan, blocks, trained=True):
            for params, members in buckets(blocks, order, limit, expert=group.expert):
                done = base + int(fragment.last[members[-1]]) if plan.overlap_grads else tip
                for op in reduce(plan, group, params):
                    done = self.program.add(op, blocks[order[members[-1]]].name, micro_batch=number, data=[done])
                self.reduced.append(done)

    def _window(self, action: Action, stage: int, window: int) -> None:
        """All ranks have the gradients of a window: sums them, or updates the weights."""
        schedule = self.layout.schedule
        last = min((window + 1) * schedule.window, schedule.micro_batches)
        self.program.begin((last - 1) // self.plan.micro_batches)
        if action == Action.REDUCE:
            self.reduced += self._sum_copies(stage, self.graded.pop((stage, window), self.tips))
            return
        self._finish(last=last == schedule.micro_batches)
        self.reduced = []
        if last < schedule.micro_batches:
            self._renew()

    def _sum_copies(self, stage: int, waits: list[int]) -> list[int]:
        """Sums the gradients of a stage over the pipeline ranks that hold it."""
        holders, blocks = self.layout.schedule.holders[stage], self.layout.stages[stage]
        params = owned(self.plan, blocks)
        own = (op for block in blocks for op in block.ops if op.local_params)
        tied = self.layout.tied_ranks and (stage == 0 or any(0 < op.tied_params <= op.local_params for op in own))
        if tied:
            params -= -(-self.layout.tied_params // self.plan.shards)  # summed over all ranks that have the embedding
        if len(holders) == 1 or not params:
            return []
        op = self._summed(f"holders{stage}", len(holders), bytes_of(params, self.plan.grad_dtype), "gradients")
        row = self.program.add(op, "pipeline", data=waits)
        pieces = [(sum(b.local_params(expert=e, trained=True) for b in blocks), e) for e in (False, True)]
        self._note_sum(row, [*pieces, *([(-self.layout.tied_params, False)] if tied else [])], updated=True)
        return [row]

    # -- the end of the step ------------------------------------------------------------------------------------------

    def _finish(self, *, last: bool) -> None:
        """Sums the remaining gradients and updates the weights; the next step begins after that. The last update is
        followed by the checkpoint."""
        plan, program = self.plan, self.program
        end = self.program.ends[-1]
        waits = [*self.tips, *self.reduced]
        for add_up in (self._sum_over_tensor, self._mirror, self._sum_tied):
            more = add_up(waits)
            end.awaits += more
            waits += more
        params = sum(owned(plan, self.layout.stages[s]) for s in self.held)
        if not params:
            return
        if plan.clip:
            waits = [program.add(norm(plan, params), "optimizer", data=waits)]
            end.over_params += waits
            if not self.layout.schedule.window and self._others_update():
                op = collective(
                    Collective.ALL_REDUCE,
                    "world",
                    plan.gpus,
                    4,
                    "norm",
                    Stream.REDUCE,
                    phase=Phase.OPTIMIZER,
                    dtype="fp32",
                )
                waits = [program.add(op, "optimizer", data=waits)]
        for op in update(plan, [self.layout.stages[s] for s in self.held], params):
            row = program.add(op, "optimizer", data=waits)
            end.over_params.append(row)
            waits = [row]
        end.awaits.append(end.over_params[0])
        if plan.zero in (1, 2) and not plan.overlap_params:
            row = self._gather_after(row)
        self.tips = self.updated = [row]
        if plan.checkpoint and last:
            op = Op(name="checkpoint", kind=Kind.MEM_STORE, stream=Stream.MEMORY, phase=Phase.OPTIMIZER)
            op = op.replace(size_bytes=self._written_bytes(), mark=IS_CHECKPOINT)
            program.add(op, "checkpoint", data=[row])

    def _others_update(self) -> bool:
        """Whether another rank has trained weights."""
        held = self.layout.schedule.held
        return self.plan.stage_ranks > 1 or any(
            owned(self.plan, self.layout.stages[s]) for rank, mine in enumerate(held) if rank != self.rank for s in mine
        )

    def _written_bytes(self) -> int:
        """Bytes that a rank writes of a checkpoint: weights and optimizer state, of which each copy writes its part."""
        stages, total = [self.layout.stages[s] for s in self.held], 0
        each = state_bytes(self.plan, stages) / max(sum(owned(self.plan, blocks) for blocks in stages), 1)
        for expert in (False, True):
            n = self.plan.expert_replicas if expert else self.plan.replicas
            held = (b for s in self.held for b in self.layout.stages[s])
            params = -(-sum(b.local_params(expert=expert) for b in held) // n)
            total += round(params * each) + bytes_of(params, self.plan.dtype)
        return total

    def _summed(self, slot: str, ranks: int, size: int, part: str) -> Op:
        dtype = self.plan.grad_dtype
        return collective(
            Collective.ALL_REDUCE, slot, ranks, size, part, Stream.REDUCE, phase=Phase.WEIGHT, dtype=dtype
        )

    def _sum_over_tensor(self, waits: list[int]) -> list[int]:
        """Sums the gradients of weights that are not split over tensor-parallel ranks, where each rank computed a
        part."""
        blocks = [b for s in self.held for b in self.layout.stages[s]]
        found = []
        for slot, params in tensor_sums(self.plan, blocks).items():
            op = self._summed(slot, self.plan.tp, kept_bytes(self.plan, params), "replicated")
            found.append(self.program.add(op, "gradients", data=waits))
            self._note_sum(found[-1], [(params, False)])
        return found

    def _mirror(self, waits: list[int]) -> list[int]:
        """Sums the gradients of stages that two (DualPipe) or more pipeline ranks hold; of sharded gradients, the
        shards. With update windows this was done before."""
        schedule, plan = self.layout.schedule, self.plan
        if schedule.window or sum(map(len, schedule.held)) == schedule.stages:
            return []
        if any(len(held) != 2 or sum(held) != schedule.ranks - 1 for held in schedule.held):
            return [row for stage in sorted(self.held) for row in self._sum_copies(stage, waits)]
        params = sum(owned(plan, self.layout.stages[s]) for s in self.held)
        if self.rank in self.layout.tied_ranks:  # summed over all ranks that have the embedding
            params -= -(-self.layout.tied_params // plan.shards)
        if not params:
            return []
        op = self._summed("twins", 2, bytes_of(params, plan.grad_dtype), "gradients")
        row = self.program.add(op, "pipeline", data=waits)
        held = [self.layout.stages[s] for s in self.held]
        pieces = [(sum(b.local_params(expert=e, trained=True) for b in s), e) for s in held for e in (False, True)]
        less = [(-self.layout.tied_params, False)] if self.rank in self.layout.tied_ranks else []
        self._note_sum(row, [*pieces, *less], updated=True)
        return [row]

    def _note_sum(self, row: int, params: list[tuple[int, bool]], *, updated: bool = False) -> None:
        """Records a sum for directives."""
        self.program.ends[-1].sums.append(FurtherSum(row, tuple(params), updated))

    def _sum_tied(self, waits: list[int]) -> list[int]:
        """Sums the gradient of an embedding that several pipeline ranks have."""
        ranks = self.layout.tied_ranks
        if self.rank not in ranks:
            return []
        op = self._summed("ends", len(ranks), kept_bytes(self.plan, self.layout.tied_params), "tied")
        row = self.program.add(op, "embedding", data=waits)
        self._note_sum(row, [(self.layout.tied_params, False)])
        return [row]

    def _gather_after(self, row: int) -> int:
        last = row
        for stage in self.held:
            blocks = self.layout.stages[stage]
            for group in kinds(self.plan, blocks, trained=True):
                if group.shards > 1:
                    params = sum(b.local_params(expert=group.expert, trained=True) for b in blocks)
                    last = self.program.add(gather(self.plan, group, params, Phase.OPTIMIZER), "optimizer", data=[row])
        return last


def quantise(plan: Plan, params: int) -> Op:
    """Op that casts weights to 8 or 4 bits: read once (twice if their maximum is needed), written in two layouts, for
    the forward and the backward products. The product's call issues it."""
    reads = 2 if plan.scaling == Scaling.CURRENT or plan.precision == Precision.FP4 else 1
    size = reads * bytes_of(params, plan.dtype) + 2 * bytes_of(params, plan.product_dtype)
    size += 2 * round(params * plan.weight_scale_bytes)
    w = Work(op_class=OpClass.ELEMENTWISE, flops=params, size_bytes=size, dtype=plan.dtype)
    return compute("aten::_to_copy", "quantise", w, shapes((params,)), shapes((params,)), calls=0.0)
