"""generate(model, plan): the folded job of one or more training steps, and its totals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.base.units import format_bytes
from etude.cost.ops import width
from etude.make.generate.blocks.families import blocks_of
from etude.make.generate.blocks.ops import GEMMS
from etude.make.generate.blocks.recompute import is_layer
from etude.make.generate.blocks.shard import Block, Shard
from etude.make.generate.blocks.trained import only
from etude.make.generate.blocks.trained import parse as parse_trained
from etude.make.generate.choices import Attention, ContextKind, ContextMap, Dispatch
from etude.make.generate.directives.apply import rewrite
from etude.make.generate.directives.read import read_directives
from etude.make.generate.directives.step import Step
from etude.make.generate.maps.shares import check_sum
from etude.make.generate.model.shape import Family, Model
from etude.make.generate.nodes import Book
from etude.make.generate.plan import Plan
from etude.make.generate.ranks import RankGrid, bind, job_of
from etude.make.generate.schedules.pipeline import in_flight, staleness, times, under_way
from etude.make.generate.schedules.round_robin import DispatchRounds
from etude.make.generate.train.layout import layout_of
from etude.make.generate.train.lengths import LONGEST, Dealt, Lengths, deal, with_lengths, work_of
from etude.make.generate.train.mapped import Mapped, map_of, with_domain, with_map
from etude.make.generate.train.memory import Memory, StageMemory, memory_of, static_of
from etude.make.generate.train.program import StepProgram
from etude.make.generate.train.rounds import (
    RoundWalk,
    is_round_robin,
    layout_of_rounds,
    memory_of_rounds,
    round_figures,
    rounds_of,
)
from etude.make.generate.train.routing import is_uneven, routed, routing_of
from etude.make.generate.train.stage import StageLayout, StageWalk
from etude.make.generate.train.unequal import parts_of, with_parts
from etude.model.graph import cycle_text, find_cycle
from etude.model.job import Job
from etude.model.schema import Kind
from etude.model.totals import totals


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Generated:
    """A job and its totals. Sums are over all ranks; memory is the maximum over ranks."""

    model: Model
    plan: Plan
    job: Job
    layout: StageLayout
    params: int
    """Parameters of the model."""
    model_flops: int
    """FLOPs of the products of the forward and backward passes, without recomputation: the basis of utilisation."""
    memory: tuple[Memory, ...]
    """Memory of each pipeline rank."""
    dealt: Dealt | None = None
    """With samples of different lengths: the work of each data-parallel rank."""
    rounds: DispatchRounds | None = None
    """Under `roundrobin`: which stage is dispatched to which rank."""
    pair_cost: float = 0.0
    """With lengths: work of a pair of query and key, in units of the work of a token."""
    mapped: Mapped | None = None
    """With a map: tokens and pairs of each context-parallel rank."""

    def __repr__(self) -> str:
        return f"Generated(`{self.model.name}`: {self.job!r}, memory {format_bytes(self.memory_peak_bytes)})"

    @property
    def samples(self) -> int:
        return int(self.dealt.samples.sum()) if self.dealt else self.plan.steps * self.plan.batch

    @property
    def tokens(self) -> int:
        """Tokens of all steps, without padding."""
        return int(self.dealt.own_tokens.sum()) if self.dealt else self.plan.steps * self.plan.batch * self.plan.seq

    @property
    def memory_peak_bytes(self) -> int:
        return max(m.peak_bytes for m in self.memory)

    def pipeline(self) -> dict[str, Any]:
        """Metrics of the pipeline schedule alone, with actions of equal time: the idle fraction, the most micro-batches
        in flight, the most whose activations a rank holds (in chunks), and the most updates between the forward and the
        backward pass of a micro-batch."""
        schedule = self.layout.schedule
        if self.rounds:
            return round_figures(self.layout, self.rounds)
        if schedule.ranks == 1:
            return {}
        return {
            "bubble": times(schedule).bubble_share,
            "in_flight": under_way(schedule),
            "in_flight_on_a_rank": int(in_flight(schedule).max()),
            "staleness": staleness(schedule),
        }

    def summary(self) -> dict[str, Any]:
        found = totals(self.job, params=self.params, memory_peak_bytes=self.memory_peak_bytes)
        found |= {"cp_map": self.mapped.summary()} if self.mapped else {}
        return found | ({"assumed": self.model.assumed} if self.model.assumed else {})


def shard_of(model: Model, plan: Plan) -> Shard:
    """The part of the model that one rank sees. Raises UsageError where the plan does not fit the model."""
    samples, seq = plan.micro_batch, plan.seq
    if plan.domain and model.family != Family.CONVNET:
        raise UsageError(
            f"a domain applies only to images, and `{model.name}` is a {model.family}", hint="leave out --domain"
        )
    cut = 1 if plan.domain else plan.cp * (plan.tp if plan.sequence_parallel else 1)
    if (samples * seq) % cut or (seq % plan.cp and not plan.domain):
        raise UsageError(
            f"a sequence of {seq:,} cannot be cut into {cut} equal parts", hint="use another --seq, --cp or --tp"
        )
    gemm = plan.product_dtype
    return Shard(
        samples=samples,
        seq=seq,
        tp=plan.tp,
        sp=plan.sequence_parallel and plan.tp > 1,
        cp=plan.cp,
        domain=plan.domain_of,
        cp_kind="map" if plan.cp_map != ContextMap.NONE else str(plan.cp_kind),
        ep=plan.ep,
        etp=plan.etp,
        ep_node=plan.ep_node if plan.ep > 1 else 0,
        moe_nodes=plan.moe_nodes,
        dtype=plan.dtype,
        gemm_dtype=gemm,
        scaling=str(plan.scaling),
        dispatch_dtype=gemm if plan.dispatch == Dispatch.PRODUCTS else plan.dtype,
        keep_cast=plan.keep_cast,
        loss_dtype=plan.loss_dtype,
        unfused=frozenset(filter(None, plan.unfused.split(","))),
        flash=plan.attention == Attention.FLASH,
        chunks=plan.tp_chunks if plan.tp > 1 else 1,
        capacity=plan.capacity,
        uneven=is_uneven(plan, model.experts),
        grad_bytes=_grad_bytes(plan),
    )


def _grad_bytes(plan: Plan) -> float:
    """Bytes moved per weight when its gradient is computed: read and written where gradients of micro-batches are
    summed."""
    if plan.zero >= 2 and not is_round_robin(plan):  # reduced after each micro-batch
        return width(plan.dtype)
    return width(plan.grad_dtype) * (2 if plan.micro_batches > 1 else 1)


def generate(model: Model, plan: Plan, *, name: str = "", head: bool = True) -> Generated:
    """The job of the plan's steps; without a head it ends with the last layer. Raises UsageError for an impossible
    plan."""
    found = _usual(model, plan, name, head=head)
    if plan.domain:
        return replace(found, job=with_domain(found.job, found.plan))
    done = _with_lengths(found) if plan.lengths else found
    if plan.cp_kind == ContextKind.ULYSSES and (plan.cp_shares or plan.cp_heads):
        return _with_parts(found)
    return _with_map(found, done) if plan.cp_map != ContextMap.NONE else done


def _with_parts(usual: Generated) -> Generated:
    """The job with unequal tokens and heads of context-parallel ranks."""
    model, plan = usual.model, usual.plan
    if not model.heads:
        raise UsageError(f"`{model.name}` has heads of several kinds", hint="leave out --cp-shares and --cp-heads")
    tokens, heads = parts_of(plan, model.heads // plan.tp, model.kv // plan.tp)
    fullest = float(max(tokens.max(), heads.max()))
    memory = tuple(_with_activations(m, fullest) for m in usual.memory)
    return replace(usual, job=with_parts(usual.job, plan, tokens, heads), memory=memory)


def _with_map(usual: Generated, done: Generated) -> Generated:
    """The job with documents that a map distributes over context-parallel ranks; `usual` has samples of equal
    length."""
    plan = usual.plan
    if plan.cp_shares:
        check_sum("cp-shares", plan.cp_shares, plan.seq)
    mapped = map_of(usual.job, plan)
    fullest = float(mapped.tokens.max()) / (plan.micro_batch * plan.seq / plan.cp)
    memory = tuple(_with_activations(m, fullest) for m in usual.memory)
    return replace(done, job=with_map(usual.job, plan, mapped), mapped=mapped, memory=memory)


def _with_activations(memory: Memory, times: float) -> Memory:
    return replace(
        memory,
        activations=np.ceil(memory.activations * times).astype(np.int64),
        working=np.ceil(memory.working * times).astype(np.int64),
    )


def _usual(model: Model, plan: Plan, name: str, *, head: bool = True) -> Generated:
    """The job with samples of equal length."""
    plan, blocks, layout = lay_out(model, plan, head=head)
    directives = read_directives(plan.directives) if plan.directives else []
    book, kept = Book(), plan
    traces, slots = [], []
    rounds = rounds_of(plan, blocks) if is_round_robin(plan) else None
    for rank in range(plan.pp):
        program = StepProgram(book)
        walk = RoundWalk(plan, layout, rounds, rank, program) if rounds else StageWalk(plan, layout, rank, program)
        walk.run()
        nodes = walk.program.nodes()
        if directives:
            step = Step(plan, layout.stages, layout.schedule.held[rank], nodes)
            kept = rewrite(step, directives).memory_plan()
            nodes = step.done()
        trace, groups, peers = nodes.trace(plan.host_ns, graphs=plan.graphs, same_sizes=bool(plan.capacity))
        if directives and len(circle := find_cycle(trace)):
            told = cycle_text([int(trace.source_id[row]) for row in circle])
            raise UsageError(f"a rewrite makes nodes of a rank wait for one another: {told}", where=plan.directives)
        traces.append(trace)
        slots.append((groups, peers))
    grid = RankGrid.of(plan)
    about = {"model": model.name, "schedule": plan.schedule, **plan.case_of(model)}
    values = routed(grid, traces, layout.routing)
    job = job_of(name or model.name, traces, grid.at["pp"], bind(grid, slots), about, values)
    return Generated(
        model=model,
        plan=plan,
        job=job,
        layout=layout,
        params=sum(b.params for b in blocks),
        model_flops=model_flops(model, plan),
        memory=_memory(kept, layout, rounds),
        rounds=rounds,
    )


def _memory(plan: Plan, layout: StageLayout, rounds: DispatchRounds | None) -> tuple[Memory, ...]:
    if rounds:
        return tuple(memory_of_rounds(plan, layout, rounds, r) for r in range(plan.pp))
    alike: dict[Any, StageMemory] = {}
    return tuple(memory_of(plan, layout, r, alike) for r in range(plan.pp))


def _with_lengths(found: Generated) -> Generated:
    """The job with samples of different lengths. Model FLOPs and activations follow; an epoch determines the number of
    steps."""
    plan = found.plan
    pair = work_of(found.job.traces, plan)
    dealt = deal(Lengths.parse(plan.lengths), plan, pair_cost=pair, most_tokens=_room(found))
    if dealt.steps != plan.steps:
        found = _usual(found.model, plan.replace(samples=0, join=False, steps=dealt.steps), found.job.name)
        plan = found.plan
    usual = plan.micro_batch * plan.seq
    whole = usual + pair * plan.micro_batch * (plan.seq * (plan.seq + 1) // 2)
    done = float((dealt.own_tokens + pair * dealt.own_pairs).sum()) / (whole * dealt.tokens.size)
    fullest = float(dealt.tokens.max()) / usual
    return replace(
        found,
        job=with_lengths(found.job, plan, dealt),
        dealt=dealt,
        pair_cost=pair,
        model_flops=round(found.model_flops * done),
        memory=tuple(_with_activations(m, fullest) for m in found.memory),
    )


def _room(found: Generated) -> int:
    """Tokens of a micro-batch that fit the memory budget: all memory that is not static grows with them. Raises
    UsageError if the static memory alone does not fit."""
    limit, plan = found.plan.memory_budget_bytes, found.plan
    if not limit:
        return LONGEST
    tightest = LONGEST
    for rank, memory in enumerate(found.memory):
        if memory.static_bytes >= limit:
            raise UsageError(
                f"a memory budget of {format_bytes(limit)}: weights, gradients and optimizer of pipeline rank {rank} "
                f"take {format_bytes(memory.static_bytes)}",
                hint="use a larger --memory-budget, more --tp, --pp or --zero",
            )
        moving = max(memory.moving_bytes, 1)
        tightest = min(tightest, plan.micro_batch * plan.seq * (limit - memory.static_bytes) // moving)
    return tightest


def lay_out(model: Model, plan: Plan, *, head: bool = True) -> tuple[Plan, list[Block], StageLayout]:
    """The plan with its sequence length, the blocks of a rank, and the layout: all except the nodes."""
    if plan.moe_loads and not model.experts:
        raise UsageError(f"`{model.name}` has no experts", hint="leave out --moe-loads")
    spread = plan.ep > 1 or plan.etp > 1 or plan.moe_skew > 1.0 or plan.capacity > 0.0
    if spread and not (model.experts or model.tables):
        raise UsageError(f"`{model.name}` has no experts", hint="leave out --ep, --etp, --moe-skew and --capacity")
    if plan.ep_node and not model.experts:
        raise UsageError(f"`{model.name}` has no experts", hint="leave out --ep-node")
    if plan.lengths and not plan.seq and model.image:
        longest = int(Lengths.parse(plan.lengths).tokens.max())
        if longest > sequence_of(model):
            problem = f"samples of {longest:,} tokens, and pictures of `{model.name}` have {sequence_of(model):,}"
            raise UsageError(problem, hint=f"--seq {longest}")
    plan = plan.replace(seq=plan.seq or sequence_of(model))
    local = shard_of(model, plan)
    blocks = blocks_of(model, local)
    while not head and not is_layer(blocks[-1]):
        blocks.pop()
    model = model if head else model.replace(tied=False)
    blocks = only(blocks, parse_trained(plan.train), tied=model.tied)
    routing = routing_of(plan, blocks, model.experts, local.rows * model.top_k)
    rounds = is_round_robin(plan)
    layout = layout_of_rounds(rounds_of(plan, blocks), blocks) if rounds else layout_of(plan, blocks)
    return plan, blocks, replace(layout, routing=routing)


def plan_memory(model: Model, plan: Plan, *, moving: bool = True) -> tuple[Memory, ...]:
    """Memory of each pipeline rank, without generating the job. `moving=False`: static bytes only, which is faster."""
    if plan.directives:
        return generate(model, plan).memory
    plan, blocks, layout = lay_out(model, plan)
    if not moving and not is_round_robin(plan):
        return tuple(static_of(plan, layout, rank) for rank in range(plan.pp))
    return _memory(plan, layout, rounds_of(plan, blocks) if is_round_robin(plan) else None)


def sequence_of(model: Model) -> int:
    if model.image and model.patch:
        return model.frames * (model.image // model.patch) ** 2 + (model.family == "vit")
    return model.seq or 1


def model_flops(model: Model, plan: Plan) -> int:
    """FLOPs of the products of all steps as one rank would do them alone: work that several ranks repeat counts
    once."""
    flash = plan.attention == Attention.FLASH
    one = 0
    seq = plan.seq or sequence_of(model)
    blocks = blocks_of(model, Shard(samples=plan.micro_batch, seq=seq, flash=flash))
    for block in only(blocks, parse_trained(plan.train), tied=model.tied):
        for forward in block.ops:
            back = sum(op.flops for op in forward.backward if op.kind == Kind.COMP and is_product(op.name))
            one += back
            if forward.kind == Kind.COMP and is_product(forward.name):
                # Fused attention recomputes its scores in the backward pass: the model needs them once.
                one += forward.flops - (max(back - 2 * forward.flops, 0) if forward.core else 0)
    return one * plan.dp * plan.micro_batches * plan.steps


def is_product(name: str) -> bool:
    return name in GEMMS or "attention" in name or "convolution" in name
