"""Training jobs with one thing wrong, or nothing: tensor, pipeline, data and expert parallel, simulated with noise.

Everything follows from a seed: the plan, uneven pipeline stages, busy experts, what is wrong and since which step.
Times jitter by 3%, the clocks of the ranks differ by up to 1 ms.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.kernels.compile import kernel
from etude.machine import open_system
from etude.model.build import TraceBuilder
from etude.model.graph import dependencies
from etude.model.job import Job, Part, assemble
from etude.model.match import match
from etude.model.run import Run
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.timing import Timing
from etude.model.trace import Trace
from etude.run.simulate.options import JITTER
from etude.run.simulate.run import simulate

I64 = NDArray[np.int64]

SIZES = (8, 16, 32, 64, 128, 256)
KINDS = ("none", "slow_rank", "slow_link", "late_host", "missing_participant")
FACTORS = (1.05, 1.1, 1.2, 1.5)
STEPS = 6
SKEW_NS = 1_000_000
NOISE = 0.03


@dataclass(frozen=True)
class Truth:
    """What was done to a job."""

    kind: str
    factor: float = 1.0
    ranks: tuple[int, ...] = ()
    since: int = 0


@dataclass(frozen=True)
class Plan:
    tp: int
    pp: int
    dp: int
    moe: bool
    layers: tuple[int, ...]
    """Of each stage: they are uneven."""
    micro_batches: int

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.dp

    def rank(self, dp: int, pp: int, tp: int) -> int:
        return (pp * self.dp + dp) * self.tp + tp

    def place(self, rank: int) -> tuple[int, int, int]:
        return rank // self.tp % self.dp, rank // (self.tp * self.dp), rank % self.tp


def plan_of(rng: random.Random, ranks: int) -> Plan:
    tp = rng.choice([t for t in (1, 2, 4, 8) if ranks % t == 0])
    pp = rng.choice([p for p in (1, 2, 4) if (ranks // tp) % p == 0])
    layers = tuple(rng.choice([2, 2, 3]) for _ in range(pp))
    return Plan(tp, pp, ranks // tp // pp, rng.random() < 0.5, layers, 2)


class Program:
    """One stage's trace: a host thread launches kernels on a stream; collectives have a stream of their own."""

    def __init__(self, plan: Plan, stage: int) -> None:
        self.b, self.plan, self.stage, self.step = TraceBuilder(), plan, stage, 0
        self.last: list[int] = []
        for self.step in range(STEPS):
            for mb in range(plan.micro_batches):
                self._pass(mb, forward=True)
            for mb in range(plan.micro_batches):
                self._pass(mb, forward=False)
            self._reduce_gradients()
        self.trace = self.b.build()

    def _launch(self, name: str) -> int:
        return self.b.add(Kind.COMP, f"launch {name}", cpu=1, thread=1, duration_ns=12_000, step=self.step)

    def _kernel(self, name: str, duration_ns: int) -> None:
        deps = [self._launch(name), *self.last]
        flops = duration_ns * 400_000
        self.last = [self.b.add(Kind.COMP, name, data=deps, cpu=0, stream=7, duration_ns=duration_ns, flops=flops,
                                step=self.step)]  # fmt: skip

    def _collective(self, kind: Collective, group: str, size: int) -> None:
        name = f"{group} {kind.name.lower()}"
        deps = [self._launch(name), *self.last]
        self.last = [self.b.add(Kind.COLL, name, data=deps, cpu=0, stream=20, collective=kind, in_bytes=size,
                                group=group, step=self.step)]  # fmt: skip

    def _pass(self, mb: int, *, forward: bool) -> None:
        plan, stage = self.plan, self.stage
        tag = (self.step * plan.micro_batches + mb) * 2 + forward
        before, after = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
        if 0 <= before < plan.pp:
            row = self.b.add(Kind.RECV, "recv", cpu=0, stream=30 + forward, src=before, tag=tag, in_bytes=1 << 24,
                             data=[self._launch("recv")], step=self.step)  # fmt: skip
            self.last = [*self.last, row]
        scale = 1 if forward else 2
        for _ in range(plan.layers[stage]):
            self._kernel("norm", 30_000 * scale)
            self._kernel("attention", 120_000 * scale)
            self._kernel("projection", 80_000 * scale)
            if plan.tp > 1:
                self._collective(Collective.ALL_REDUCE, "tp", 1 << 23)
            self._kernel("norm", 30_000 * scale)
            if plan.moe:
                if plan.dp > 1:
                    self._collective(Collective.ALL_TO_ALL, "dp", 1 << 22)
                self._kernel("expert", 150_000 * scale)
            self._kernel("up", 160_000 * scale)
            self._kernel("activation", 25_000 * scale)
            self._kernel("down", 160_000 * scale)
            if plan.tp > 1:
                self._collective(Collective.ALL_REDUCE, "tp", 1 << 23)
        if 0 <= after < plan.pp:
            self.b.add(Kind.SEND, "send", cpu=0, stream=40 + forward, dst=after, tag=tag, in_bytes=1 << 24,
                       data=[self._launch("send"), *self.last], step=self.step)  # fmt: skip

    def _reduce_gradients(self) -> None:
        if self.plan.dp > 1:
            for _ in range(4):
                self._collective(Collective.ALL_REDUCE, "dp", 1 << 25)
        self._kernel("optimizer", 200_000)


def job_of_plan(plan: Plan) -> Job:
    stages = [Program(plan, p) for p in range(plan.pp)]
    parts = []
    for rank in range(plan.ranks):
        dp, pp, tp = plan.place(rank)
        members = {
            "tp": [plan.rank(dp, pp, t) for t in range(plan.tp)],
            "dp": [plan.rank(d, pp, tp) for d in range(plan.dp)],
        }
        one = stages[pp]
        groups = [(f"{name}{members[name][0]}", members[name]) for name in one.b.groups]
        peers = np.array([plan.rank(dp, stage, tp) for stage in one.b.peers], np.int64)
        parts.append(Part(rank, one.trace, groups, peers))
    return assemble("straggling", parts)


def values_of(rng: random.Random, job: Job, plan: Plan, truth: Truth) -> dict[int, dict[str, I64]]:
    """Durations of ranks that differ: busy experts, and what is slow."""
    values: dict[int, dict[str, I64]] = {}
    for rank in range(plan.ranks):
        trace = job.traces[rank]
        duration = trace.duration_ns.astype(np.float64)
        codes, words = trace.coded("name")
        device = (trace.kind == Kind.COMP) & (trace.cpu == 0)
        changed = False
        if plan.moe:  # an expert is busy for a step, and some are busier than others throughout
            always = rng.lognormvariate(0, 0.15)
            factor = np.array([always * rng.lognormvariate(0, 0.15) for _ in range(STEPS)])
            expert = device & (codes == words.index("expert"))
            duration[expert] *= factor[trace.step[expert]]
            changed = True
        if rank in truth.ranks and truth.kind in ("slow_rank", "late_host"):
            mine = device if truth.kind == "slow_rank" else (trace.kind == Kind.COMP) & (trace.cpu == 1)
            duration[mine & (trace.step >= truth.since)] *= truth.factor
            changed = True
        if changed:
            known = trace.duration_ns != UNKNOWN
            values[rank] = {
                "duration_ns": np.where(known, np.rint(np.where(known, duration, 0)), UNKNOWN).astype(np.int64)
            }
    return values


def draw_truth(rng: random.Random, plan: Plan, kind: str, factor: float) -> Truth | None:
    """What is wrong; None where this plan has no such thing, or nothing like it to compare with."""
    since = rng.choice([0, 0, STEPS // 2])
    if kind == "none":
        return Truth("none")
    if kind == "slow_link":
        pairs = []
        dp, pp, tp = rng.randrange(plan.dp), rng.randrange(plan.pp), rng.randrange(plan.tp)
        if plan.tp > 1 and plan.dp * plan.pp > 1:
            pairs.append((plan.rank(dp, pp, tp), plan.rank(dp, pp, (tp + 1) % plan.tp)))
        if plan.pp > 1 and plan.dp * plan.tp > 1:
            pairs.append((plan.rank(dp, pp, tp), plan.rank(dp, pp + 1 if pp + 1 < plan.pp else pp - 1, tp)))
        if plan.dp > 1 and plan.tp * plan.pp > 1:
            pairs.append((plan.rank(dp, pp, tp), plan.rank((dp + 1) % plan.dp, pp, tp)))
        if not pairs:
            return None
        a, b = rng.choice(pairs)
        return Truth(kind, factor, (min(a, b), max(a, b)))
    if kind == "missing_participant" and plan.tp == 1 and plan.dp == 1:
        return None
    return Truth(kind, factor, (rng.randrange(plan.ranks),), since if kind != "missing_participant" else STEPS // 2)


def straggling(seed: int, ranks: int, kind: str, factor: float) -> tuple[Run, Truth]:
    """The run of a seed: a job with its simulated times on clocks that differ."""
    rng = random.Random(seed)
    while True:
        plan = plan_of(rng, ranks)
        truth = draw_truth(rng, plan, kind, factor)
        if truth is not None:
            break
    job = job_of_plan(plan)
    job = job.replace(values=values_of(rng, job, plan, truth))
    slow = {truth.ranks: truth.factor} if kind == "slow_link" else {}
    system = open_system("dgx-h100").resized(max(ranks, 8))
    timing = simulate(job, system, jitter=dict.fromkeys(JITTER, NOISE), seed=seed, slow_links=slow).timing
    starts, ends = [s.copy() for s in timing.start_ns], [e.copy() for e in timing.end_ns]
    if kind == "missing_participant":
        starts, ends = hung(job, starts, ends, truth)
    for start, end in zip(starts, ends, strict=True):
        skew = rng.randrange(-SKEW_NS, SKEW_NS)
        start[start != UNKNOWN] += skew
        end[end != UNKNOWN] += skew
    block_of = np.arange(len(job.ranks), dtype=np.int32)
    skewed = Timing(origin=timing.origin, start_ns=tuple(starts), end_ns=tuple(ends), block_of=block_of,
                    clock_offset_ns=np.zeros(len(job.ranks), np.int64))  # fmt: skip
    return Run(job, skewed), truth


def hung(job: Job, starts: list[I64], ends: list[I64], truth: Truth) -> tuple[list[I64], list[I64]]:
    """The same run if one rank stops in the middle: what waits for it, directly or not, never ends."""
    length = np.array([len(s) for s in starts])
    base = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    start, end = np.concatenate(starts), np.concatenate(ends)
    edges_from, edges_to = [], []
    for at in range(len(job.ranks)):
        trace: Trace = job.traces[int(job.trace_of[at])]
        dep = dependencies(trace)
        edges_to.append(np.repeat(np.arange(len(trace)), np.diff(dep.start)) + base[at])
        edges_from.append(dep.rows + base[at])
        order = np.lexsort((starts[at], trace.lane))
        same = (trace.lane[order][1:] == trace.lane[order][:-1]) & (trace.lane[order][1:] >= 0)
        edges_from.append(order[:-1][same] + base[at])
        edges_to.append(order[1:][same] + base[at])
    source, target = np.concatenate(edges_from), np.concatenate(edges_to)
    by_source = np.argsort(source, kind="stable")
    after_start = np.searchsorted(source[by_source], np.arange(base[-1] + 1))
    matching = match(job)
    sides, uses = matching.sides, matching.uses
    many = np.diff(sides.start)[uses.side]
    member = np.repeat(np.arange(len(many)), many)
    number = np.arange(len(member)) - np.repeat(np.cumsum(many) - many, many)
    node = base[uses.at[member]] + sides.rows[sides.start[uses.side[member]] + number]
    call = np.unique(np.stack([uses.group[member], number], 1), axis=0, return_inverse=True)[1].reshape(-1)
    call_of = np.full(base[-1], -1, np.int64)
    call_of[node] = call
    by_call = np.argsort(call, kind="stable")
    call_start = np.searchsorted(call[by_call], np.arange(call.max(initial=-1) + 2))
    at = job.index(truth.ranks[0])
    trace = job.traces[int(job.trace_of[at])]
    mine = np.flatnonzero((trace.kind == Kind.COLL) & (trace.step >= truth.since))
    stop = int(mine[np.argmin(starts[at][mine])])
    late = np.flatnonzero(starts[at] >= starts[at][stop]) + base[at]
    _stop(late, start, end, after_start, target[by_source], call_of, call_start, node[by_call], UNKNOWN)
    return list(np.split(start, base[1:-1])), list(np.split(end, base[1:-1]))


@kernel
def _stop(late, start, end, after_start, after, call_of, call_start, call_nodes, unknown):
    """Nodes that never start, and what cannot start or end because of them."""
    never = np.zeros(len(start), np.bool_)
    open_ended = np.zeros(len(start), np.bool_)
    stack = np.empty(len(start) * 2, np.int64)
    top = 0
    for n in late:
        never[n] = True
        stack[top] = n
        top += 1
    while top > 0:
        top -= 1
        n = stack[top]
        for e in range(after_start[n], after_start[n + 1]):
            m = after[e]
            if not never[m]:
                never[m] = True
                stack[top] = m
                top += 1
        if call_of[n] >= 0 and never[n]:
            for i in range(call_start[call_of[n]], call_start[call_of[n] + 1]):
                m = call_nodes[i]
                if not never[m] and not open_ended[m]:
                    open_ended[m] = True
                    stack[top] = m
                    top += 1
    for n in range(len(start)):
        if never[n]:
            start[n] = end[n] = unknown
        elif open_ended[n]:
            end[n] = unknown
