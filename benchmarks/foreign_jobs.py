"""Runs with one fault, or none, of jobs that are scheduled stage by stage; a second source, apart from the first.

Each pipeline stage has a list of operations that all its ranks go through (1F1B, tensor, expert, sharded and data
parallel); ranks have a host, a compute stream, one for collectives and one each for sends and receives. Matrix kernels
follow the clock of a device, others its memory. Noise has heavy tails (Student's t), steps of a rank are
autocorrelated, roles differ (first and last stage, first rank of a node, popular experts, long sequences). Switches
join nodes. Ranks that wait for one that never comes stop where they wait. Of Etude only the model of a job is used, to
write it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from foreign_faults import Truth
from numpy.typing import NDArray

from etude.model.build import build_trace
from etude.model.job import Part, assemble
from etude.model.run import Run
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.timing import measured

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

NODE: Final = 8
SIZES = (4, 8, 16, 16, 32, 64, 128, 256, 512, 1024)
STEPS = (1, 2, 4, 8, 14, 30, 60, 120, 200)
MOST = 8_000
"""Ranks x steps of a run."""
SERIAL = ("gradual_one", "gradual_all", "every_nth_one", "every_nth_all", "grows", "burst")
PROGRAMS = ("ddp", "sharded", "pods", "pipeline", "tensor", "experts", "lengths")
KINDS = (
    "rank",
    "rank_power",
    "rank_since",
    "rank_while",
    "node",
    "host_calls",
    "host_of_node",
    "input",
    "input_all",
    "port",
    "pair",
    "switch",
    "burst",
    "every_nth_one",
    "every_nth_all",
    "power_some",
    "stage_since",
    "gradual_one",
    "gradual_all",
    "all_since",
    "clock",
    "grows",
    "mismatch",
    "never_comes",
)
NAMES: Final = {
    "gemm": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off",
    "gemm_back": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nt_n_tilesize256x128x64_execute_segment_k_off",
    "flash": "flash_fwd_kernel_traits_128_128_64_4_bf16",
    "flash_back": "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel_bf16",
    "norm": "vectorized_layer_norm_kernel<c10::BFloat16, float>",
    "act": "vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>",
    "drop": "fused_dropout_kernel_vec<c10::BFloat16, 1, 4>",
    "embed": "indexSelectLargeIndex<c10::BFloat16, long>",
    "loss": "cunn_SoftMaxForward<8, float, float>",
    "expert": "cutlass_grouped_gemm_sm90_bf16",
    "adam": "multi_tensor_apply_kernel<FusedAdamMathFunctor>",
}
MATH: Final = ("gemm", "gemm_back", "flash", "flash_back", "expert")


@dataclass(frozen=True)
class Operation:
    """One entry of the list of a stage."""

    what: str
    """kernel, all (a collective), send, recv, join (compute waits for collectives), load, sync, world."""
    name: str = ""
    us: float = 0.0
    tag: int = 0
    """Of messages: its number in the step."""
    to: int = 0
    """Of messages: stages to the other end."""
    collective: Collective = Collective.NONE
    group: str = ""
    size: int = 0
    waits: bool = True
    """Of collectives: compute waits for it at once."""
    call: str = ""


@dataclass
class Noise:
    spread: float
    """Of a kernel."""
    tail: float
    """Degrees of freedom."""
    rank: float
    drifting: float
    """Of the steps of a rank, autocorrelated."""
    job: float
    rho: float
    role: float
    """How much longer the host of the first rank of a node takes, and how much slower the device of its last one is."""
    hosts: float
    link: float


@dataclass
class Faults:
    """What is added to a healthy machine; arrays are steps x ranks."""

    math: F64
    memory: F64
    call: F64
    """Factor of each call of the host."""
    pause_us: F64
    load_us: F64
    port: dict[int, float] = field(default_factory=dict)
    pair: dict[tuple[int, int], float] = field(default_factory=dict)
    switch: dict[int, float] = field(default_factory=dict)
    """By number of the switch: how much longer what passes through it takes."""
    single: F64 | None = None
    """Steps x ranks: part of the kernels that take 1.4 to 2.6 times as long."""
    mismatch: tuple[int, int, int] = (-1, -1, -1)
    """(rank, step, number of the collective in the step) that asks for half of the bytes."""
    absent: tuple[int, int, int] = (-1, -1, -1)
    """The same, of a rank that never comes."""


class Stage:
    """The ranks of one stage and what they do in each step."""

    def __init__(self, ranks: I64, operations: list[Operation], groups: dict[str, I64], steps: int) -> None:
        self.ranks, self.operations, self.groups = ranks, operations, groups
        count, wide = len(operations), len(ranks)
        self.call = np.full((2, steps, count, wide), np.nan)
        """Start and end of the host's part of each operation, ..."""
        self.device = np.full((2, steps, count, wide), np.nan)
        """... and of the device's."""
        self.host, self.compute, self.collectives, self.sends, self.receives = (np.zeros(wide) for _ in range(5))
        self.next = 0


class Machine:
    def __init__(self, rng: np.random.Generator, ranks: int, steps: int, noise: Noise, nodes_per_switch: int) -> None:
        self.rng, self.ranks, self.steps, self.noise = rng, ranks, steps, noise
        self.switch_of = np.arange(ranks) // NODE // nodes_per_switch
        own = noise.rank * rng.standard_normal(ranks)
        own += np.where(np.arange(ranks) % NODE == NODE - 1, noise.role, 0.0)
        moving = _wander(rng, steps, ranks, noise.rho) * noise.drifting
        together = _wander(rng, steps, 1, noise.rho) * noise.job
        self.level = np.exp(own[None, :] + moving + together)
        self.host_level = np.exp(0.05 * rng.standard_normal(ranks)) * np.where(
            np.arange(ranks) % NODE == 0, 1 + 2 * noise.role, 1.0
        )
        ones, zeros = np.ones((steps, ranks)), np.zeros((steps, ranks))
        self.faults = Faults(ones.copy(), ones.copy(), ones.copy(), zeros.copy(), zeros.copy())
        self.work = np.ones((steps, ranks))
        """Amount of work of each rank and step, as FLOPs say."""
        self.load = np.ones((steps, ranks))
        """Work of experts, that nothing says."""
        self.call_us = float(rng.choice([3.0, 4.0, 6.0]))
        self.hiccup = float(rng.choice([0.0, 0.002, 0.005]))
        self.stages: list[Stage] = []
        self.sent: dict[tuple[int, int, int, int], F64] = {}
        self.met: dict[int, dict[int, F64]] = {}

    def times(self, us: float, mine: I64, step: int, *, math: bool, name: str) -> F64:
        n = self.noise
        off = np.clip(self.rng.standard_t(n.tail, len(mine)), -6, 40)
        factor = self.faults.math if math else self.faults.memory
        took = us * self.level[step, mine] * np.exp(n.spread * off) * factor[step, mine] * self.work[step, mine]
        if name == "expert":
            took = took * self.load[step, mine]
        single = self.faults.single
        if single is not None:
            hit = self.rng.random(len(mine)) < single[step, mine]
            took = np.where(hit, took * self.rng.uniform(1.4, 2.6, len(mine)), took)
        return np.maximum(took, 1.0)

    def slower(self, members: I64, crossing: bool) -> float:
        f = self.faults
        found = [much for rank, much in f.port.items() if crossing and rank in members]
        found += [much for (a, b), much in f.pair.items() if a in members and b in members]
        found += [much for one, much in f.switch.items() if crossing and (self.switch_of[members] == one).any()]
        return max(found, default=1.0)

    def run(self) -> None:
        for step in range(self.steps):
            for stage in self.stages:
                stage.next = 0
                stage.host = stage.host + self.faults.pause_us[step, stage.ranks]
            while any(stage.next < len(stage.operations) for stage in self.stages):
                moved = False
                for number, stage in enumerate(self.stages):
                    while stage.next < len(stage.operations) and self._one(number, stage, step):
                        stage.next += 1
                        moved = True
                assert moved, "the schedule waits for itself"
            self.sent.clear()

    def _one(self, number: int, stage: Stage, step: int) -> bool:
        """Does the next operation of a stage; False if another stage must come first."""
        op, mine = stage.operations[stage.next], stage.ranks
        here = (step, stage.next)
        if op.what == "recv" and (number + op.to, number, op.tag, step) not in self.sent:
            return False
        if op.what == "join":
            stage.compute = np.maximum(stage.compute, stage.collectives)
            return True
        self._call(stage, op, step)
        if op.what in ("load", "sync"):
            return True
        ready = stage.host + 4.0
        if op.what == "kernel":
            start = np.maximum(stage.compute, ready)
            math = any(NAMES[one] == op.name for one in MATH)
            name = "expert" if op.name == NAMES["expert"] else ""
            stage.compute = start + self.times(op.us, mine, step, math=math, name=name)
            stage.device[0][here], stage.device[1][here] = start, stage.compute
        elif op.what == "all":
            self._meet(stage, op, step, ready)
        elif op.what == "send":
            start = np.maximum(np.maximum(stage.compute, stage.sends), ready)
            took = op.us * np.exp(self.noise.link * self.rng.standard_normal(len(mine)))
            other = self.stages[number + op.to].ranks
            slow = np.array(
                [self.slower(np.array(two), True) for two in zip(mine.tolist(), other.tolist(), strict=True)]
            )
            stage.sends = start + took * slow
            stage.device[0][here], stage.device[1][here] = start, stage.sends
            self.sent[number, number + op.to, op.tag, step] = stage.sends
        else:
            start = np.maximum(stage.receives, ready)
            there = self.sent.pop((number + op.to, number, op.tag, step))
            stage.receives = np.maximum(start + 2.0, there + 0.5)
            stage.compute = np.maximum(stage.compute, stage.receives)
            stage.device[0][here], stage.device[1][here] = start, stage.receives
        return True

    def _call(self, stage: Stage, op: Operation, step: int) -> None:
        mine, start = stage.ranks, stage.host
        if op.what == "sync":
            done = np.maximum(np.maximum(stage.compute, stage.collectives), stage.sends)
            stage.host = np.maximum(start, done) + 3.0
        else:
            took = (op.us if op.what == "load" else self.call_us) * self.host_level[mine]
            took = took * self.faults.call[step, mine]
            took = took * np.exp(self.noise.hosts * np.clip(self.rng.standard_t(3, len(mine)), -4, 20))
            took += (self.rng.random(len(mine)) < self.hiccup) * self.rng.pareto(2.5, len(mine)) * 15.0
            stage.host = start + took + (self.faults.load_us[step, mine] if op.what == "load" else 0.0)
        if op.what == "all" and self.faults.absent[1] == step:
            rank, _, which = self.faults.absent
            if rank in mine and _number(stage, stage.next) == which:
                stage.host = np.where(mine == rank, np.inf, stage.host)
        stage.call[0][step, stage.next], stage.call[1][step, stage.next] = start, stage.host

    def _meet(self, stage: Stage, op: Operation, step: int, ready: F64) -> None:
        label, mine = stage.groups[op.group], stage.ranks
        start = np.maximum(np.maximum(stage.compute, stage.collectives), ready)
        count = int(label.max()) + 1
        latest = np.full(count, -np.inf)
        np.maximum.at(latest, label, start)
        took = op.us * np.exp(self.noise.link * np.clip(self.rng.standard_t(4, count), -3, 15))
        f = self.faults
        if f.port or f.pair or f.switch:
            nodes = mine // NODE
            took = took * np.array(
                [
                    self.slower(mine[label == g], len(np.unique(nodes[label == g])) > 1 or not f.switch)
                    for g in range(count)
                ]
            )
        end = latest + took
        if f.mismatch[1] == step and f.mismatch[0] in mine and _number(stage, stage.next) == f.mismatch[2]:
            end[label[int(np.flatnonzero(mine == f.mismatch[0])[0])]] = np.inf
        stage.collectives = end[label] + 0.3 * self.rng.random(len(mine))
        if op.waits:
            stage.compute = np.maximum(stage.compute, stage.collectives)
        here = (step, stage.next)
        stage.device[0][here], stage.device[1][here] = start, stage.collectives


def _number(stage: Stage, at: int) -> int:
    """The how-many-th collective of the step an operation is."""
    return sum(op.what == "all" for op in stage.operations[:at])


def _wander(rng: np.random.Generator, steps: int, wide: int, rho: float) -> F64:
    """Noise with variance 1 whose neighbours are alike."""
    found = np.empty((steps, wide))
    now = rng.standard_normal(wide)
    for s in range(steps):
        found[s] = now
        now = rho * now + np.sqrt(1 - rho * rho) * rng.standard_normal(wide)
    return found


# -- programs ----------------------------------------------------------------------------------------------------------


def kernel(name: str, us: float) -> Operation:
    return Operation("kernel", NAMES[name], us, call="cudaLaunchKernel")


def collective(which: Collective, group: str, mib: float, us: float, *, waits: bool = True) -> Operation:
    return Operation(
        "all",
        f"ncclDevKernel_{which.name.title().replace('_', '')}_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        us,
        collective=which,
        group=group,
        size=int(mib * 2**20),
        waits=waits,
        call=f"c10d::{which.name.lower()}_",
    )


LOAD: Final = Operation("load", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 25.0)
SYNC: Final = Operation("sync", "cudaStreamSynchronize")
JOIN: Final = Operation("join")


def _layer(scale: float) -> list[Operation]:
    return [
        kernel("norm", 18 * scale),
        kernel("gemm", 130 * scale),
        kernel("flash", 70 * scale),
        kernel("gemm", 160 * scale),
        kernel("act", 25 * scale),
    ]


def _layer_back(scale: float) -> list[Operation]:
    return [
        kernel("act", 35 * scale),
        kernel("gemm_back", 320 * scale),
        kernel("flash_back", 150 * scale),
        kernel("gemm_back", 240 * scale),
        kernel("norm", 30 * scale),
    ]


def _built(m: Machine, program: str, scale: float, sync: bool) -> float:
    """Sets the stages of the machine; about how long a step takes, in us."""
    rng, ranks, steps = m.rng, m.ranks, m.steps
    everyone = np.arange(ranks)
    tail = [JOIN, kernel("adam", 110 * scale), *([SYNC] if sync else [])]
    if program in ("ddp", "lengths"):
        ops = [LOAD]
        for _ in range(4):
            ops += _layer(scale)
        ops += [kernel("loss", 60 * scale)]
        for _ in range(4):
            ops += _layer_back(scale)
            ops += [collective(Collective.ALL_REDUCE, "dp", 24, 180 * scale, waits=False)]
        m.stages = [Stage(everyone, ops + tail, {"dp": np.zeros(ranks, np.int64)}, steps)]
        if program == "lengths":
            m.work = np.round(rng.lognormal(0, 0.12, (steps, ranks)), 3)
    elif program in ("sharded", "pods"):
        size = min(NODE if program == "sharded" else 2 * NODE, ranks)
        shard, copies = everyone // size, everyone % size
        ops = [LOAD]
        for _ in range(4):
            ops += [collective(Collective.ALL_GATHER, "shard", 12, 90 * scale, waits=False), JOIN, *_layer(scale)]
        for _ in range(4):
            ops += [collective(Collective.ALL_GATHER, "shard", 12, 90 * scale, waits=False), JOIN]
            ops += [*_layer_back(scale), collective(Collective.REDUCE_SCATTER, "shard", 12, 95 * scale, waits=False)]
            ops += [collective(Collective.ALL_REDUCE, "copies", 3, 60 * scale, waits=False)] if ranks > size else []
        m.stages = [Stage(everyone, ops + tail, {"shard": shard, "copies": copies}, steps)]
    elif program == "experts":
        size = min(NODE, ranks)
        ops = [LOAD]
        to_experts = collective(Collective.ALL_TO_ALL, "ep", 16, 70 * scale)
        for _ in range(3):
            ops += [kernel("norm", 18 * scale), kernel("flash", 90 * scale), to_experts, kernel("expert", 210 * scale)]
            ops += [to_experts, kernel("act", 25 * scale)]
        for _ in range(3):
            ops += [to_experts, kernel("expert", 400 * scale), to_experts, kernel("flash_back", 180 * scale)]
            ops += [kernel("norm", 30 * scale), collective(Collective.ALL_REDUCE, "dp", 8, 110 * scale, waits=False)]
        m.stages = [Stage(everyone, ops + tail, {"ep": everyone // size, "dp": np.zeros(ranks, np.int64)}, steps)]
        popular = rng.lognormal(0, 0.15, ranks)
        m.load = popular[None, :] * rng.lognormal(0, 0.06, (steps, ranks))
    else:
        m.stages = _pipelined(m, program, scale, tail)
    longest = max(sum(op.us for op in stage.operations if op.what == "kernel") for stage in m.stages)
    return longest * (1.15 if len(m.stages) == 1 else 1.6)


def _pipelined(m: Machine, program: str, scale: float, tail: list[Operation]) -> list[Stage]:
    """1F1B: warm-up, one forward and one backward in turn, cool-down."""
    rng, ranks = m.rng, m.ranks
    count = int(rng.choice([n for n in (2, 4, 8) if 2 * n <= ranks]))
    wide = ranks // count
    batches = int(rng.choice([count, 2 * count])) if count < 8 else 8
    held = rng.choice([1.0, 1.0, 1.0, 0.75, 1.25], count)  # stages with a layer more or less
    inner = 4 if wide >= 4 else 2
    found = []
    for s in range(count):
        mine = s * wide + np.arange(wide)
        groups = {"tp": np.arange(wide) // inner, "dp": np.arange(wide) % inner}
        if program == "pipeline":
            groups = {"dp": np.zeros(wide, np.int64)}

        def forward(b: int, s: int = s) -> list[Operation]:
            ops = (
                [kernel("embed", 40 * scale)]
                if s == 0
                else [Operation("recv", "ncclDevKernel_SendRecv", tag=b, to=-1, size=8 << 20, call="c10d::recv_")]
            )
            ops += [
                kernel("norm", 18 * scale),
                kernel("gemm", 150 * scale * held[s]),
                kernel("flash", 80 * scale * held[s]),
            ]
            ops += [collective(Collective.ALL_REDUCE, "tp", 8, 30 * scale)] if program == "tensor" else []
            if s == count - 1:
                return [*ops, kernel("loss", 70 * scale)]
            return [
                *ops,
                Operation("send", "ncclDevKernel_SendRecv", 30 * scale, tag=b, to=1, size=8 << 20, call="c10d::send"),
            ]

        def backward(b: int, s: int = s) -> list[Operation]:
            got = Operation("recv", "ncclDevKernel_SendRecv", tag=1000 + b, to=1, size=8 << 20, call="c10d::recv_")
            ops = [] if s == count - 1 else [got]
            ops += [
                kernel("flash_back", 160 * scale * held[s]),
                kernel("gemm_back", 300 * scale * held[s]),
                kernel("norm", 30 * scale),
            ]
            ops += [collective(Collective.ALL_REDUCE, "tp", 8, 30 * scale)] if program == "tensor" else []
            sent = Operation(
                "send", "ncclDevKernel_SendRecv", 30 * scale, tag=1000 + b, to=-1, size=8 << 20, call="c10d::send"
            )
            return [*ops, kernel("embed", 60 * scale) if s == 0 else sent]

        warm = min(count - s - 1, batches)
        ops = [LOAD]
        for b in range(warm):
            ops += forward(b)
        for b in range(batches - warm):
            ops += forward(warm + b) + backward(b)
        for b in range(batches - warm, batches):
            ops += backward(b)
        ops += [collective(Collective.ALL_REDUCE, "dp", 32, 260 * scale)]
        found.append(Stage(mine, ops + tail, groups, m.steps))
    return found


# -- faults ------------------------------------------------------------------------------------------------------------


def injected(seed: int, kind: str, severity: float) -> tuple[Run, Truth]:
    """A run with this fault. `severity` is how much longer something takes: 1.1 is 10%."""
    rng = np.random.default_rng([77, seed, len(KINDS) if kind == "clean" else KINDS.index(kind)])
    ranks = int(rng.choice(SIZES))
    ranks = max(
        ranks, {"node": 32, "host_of_node": 16, "power_some": 16, "switch": 64, "port": 32, "pair": 16}.get(kind, 4)
    )
    fewest = 14 if kind in SERIAL or kind in ("all_since", "clock", "rank_while") else 1
    fewest = 8 if kind in ("rank_since", "stage_since") else fewest
    fits = [s for s in STEPS if s >= fewest and s * ranks <= MOST] or [max(fewest, 1)]
    steps = int(rng.choice(fits))
    program = str(rng.choice(PROGRAMS))
    program = {"pair": "pipeline", "switch": str(rng.choice(["pods", "pipeline"])), "port": "sharded"}.get(
        kind, program
    )
    program = str(rng.choice(["pipeline", "tensor"])) if kind == "stage_since" else program
    noise = Noise(
        float(rng.choice([0.004, 0.008, 0.015])),
        float(rng.choice([2.5, 4.0, 8.0])),
        float(rng.choice([0.0, 0.003, 0.006])),
        float(rng.choice([0.0, 0.004, 0.008])),
        float(rng.choice([0.0, 0.003, 0.008])),
        float(rng.choice([0.0, 0.6, 0.9])),
        float(rng.choice([0.0, 0.005, 0.01])),
        float(rng.choice([0.05, 0.1])),
        float(rng.choice([0.01, 0.03])),
    )
    m = Machine(rng, ranks, steps, noise, 2)
    scale = float(rng.choice([0.7, 1.0, 2.5]))
    sync = bool(rng.random() < 0.7) or kind in (
        "host_calls",
        "host_of_node",
        "input",
        "input_all",
        "every_nth_one",
        "every_nth_all",
    )
    step_us = _built(m, program, scale, sync)
    who, kinds, since = _fault(m, rng, kind, severity - 1, step_us)
    m.run()
    held = _memory(rng, m, kind, severity - 1, who)
    skew_ns = np.rint(rng.normal(0, 2e5, ranks)) if rng.random() < 0.5 else np.zeros(ranks)
    ppm = rng.normal(0, 1e-8, ranks)
    if kind == "clock":
        last = max(float(np.nanmax(stage.device[1])) for stage in m.stages)
        ppm[list(who)] += rng.choice([-1, 1]) * max(200.0 / last, 20e-6)
    host = bool(rng.random() < 0.75) or kind in ("input", "input_all", "host_calls", "host_of_node")
    run = _Written(m, host, skew_ns, ppm, held).run(f"{kind}-{seed}")
    level = {"rank_power": "power", "power_some": "power", "switch": "switch"}.get(kind, "")
    return run, Truth(kind, kinds, who, program, ranks, steps, severity, since, level)


def _fault(
    m: Machine, rng: np.random.Generator, kind: str, more: float, step_us: float
) -> tuple[tuple[int, ...], tuple[str, ...], int]:
    """(who, what may be said of it, since which step)."""
    f, ranks, steps = m.faults, m.ranks, m.steps
    bad = int(rng.integers(ranks))
    one, everyone = (bad,), tuple(range(ranks))
    nodes = max(ranks // NODE, 1)
    node = int(rng.integers(nodes))
    on_node = tuple(range(node * NODE, min((node + 1) * NODE, ranks)))
    if kind == "rank":
        f.math[:, bad] = f.memory[:, bad] = 1 + more
        return one, ("slow_rank",), 0
    if kind == "rank_power":
        f.math[:, bad] = 1 + more
        return one, ("slow_rank",), 0
    if kind == "rank_since":
        since = int(rng.integers(steps // 3, 2 * steps // 3 + 1))
        f.math[since:, bad] = f.memory[since:, bad] = 1 + more
        return one, ("slow_rank",), since
    if kind == "rank_while":
        since, lasts = int(rng.integers(2, steps // 2)), int(rng.integers(4, max(steps // 3, 5)))
        f.math[since : since + lasts, bad] = f.memory[since : since + lasts, bad] = 1 + more
        return one, ("slow_rank",), since
    if kind == "node":
        f.math[:, on_node] = f.memory[:, on_node] = 1 + more
        return on_node, ("slow_node",), 0
    if kind in ("host_calls", "host_of_node"):
        who = one if kind == "host_calls" else on_node
        f.pause_us[:, who] = more * step_us * rng.uniform(0.85, 1.15, (steps, len(who)))
        f.call[:, who] = 1.5
        return who, ("late_host",), 0
    if kind in ("input", "input_all"):
        who = one if kind == "input" else everyone
        much = (1.0 if kind == "input" else 3.0) * more * step_us
        f.load_us[:, who] = much * rng.uniform(0.7, 1.3, (steps, 1))
        return who, ("loader", "late_host") if kind == "input" else ("loader",), 0
    if kind == "port":
        f.port[bad] = 1 + 4 * more
        return one, ("slow_link",), 0
    if kind == "pair":
        first = int(rng.integers(ranks - len(m.stages[0].ranks)))
        two = (first, first + len(m.stages[0].ranks))
        f.pair[two] = 1 + 4 * more
        return two, ("slow_link",), 0
    if kind == "switch":
        which = int(rng.integers(m.switch_of.max() + 1))
        f.switch[which] = 1 + 4 * more
        return tuple(np.flatnonzero(m.switch_of == which).tolist()), ("slow_link",), 0
    if kind == "burst":
        on = _wander(rng, steps, 1, 0.5)[:, 0] > 0.3
        on[rng.permutation(steps)[: max(4, steps // 4)]] = True
        f.single = np.zeros((steps, ranks))
        f.single[on, bad] = min(1.0, 2.0 * more)
        return one, ("intermittent",), 0
    if kind in ("every_nth_one", "every_nth_all"):
        every = int(rng.choice([k for k in (2, 3, 4, 6, 7, 10) if 3 * k <= steps]))
        at = slice(int(rng.integers(every)), None, every)
        who = one if kind.endswith("one") else everyone
        f.pause_us[at, who] = 2 * more * step_us
        return who, ("periodic",), 0
    if kind == "power_some":
        two = tuple(range(2 * NODE)) if rng.random() < 0.5 and ranks > 4 * NODE else ()
        who = two or tuple(sorted(rng.permutation(ranks)[: max(3, round(rng.choice([0.2, 0.4]) * ranks))].tolist()))
        f.math[:, who] = 1 + more
        return who, ("throttled", "slow_node") if two else ("throttled",), 0
    if kind == "stage_since":
        which = int(rng.integers(len(m.stages)))
        since = int(rng.integers(steps // 3, 2 * steps // 3 + 1))
        who = tuple(m.stages[which].ranks.tolist())
        f.math[since:, who] = f.memory[since:, who] = 1 + more
        return who, ("throttled", "slow_node", "slow_rank"), since
    if kind in ("gradual_one", "gradual_all"):
        who = one if kind.endswith("one") else everyone
        up = (1 + 2 * more * np.arange(steps) / (steps - 1))[:, None]
        f.math[:, who], f.memory[:, who] = up, up
        return who, ("drift",) if kind.endswith("one") else ("drift", "common_change"), 0
    if kind == "all_since":
        since = int(rng.integers(steps // 3, 2 * steps // 3))
        f.math[since:] = f.memory[since:] = 1 + more
        return everyone, ("common_change",), since
    if kind in ("mismatch", "never_comes"):
        stage = next(s for s in m.stages if bad in s.ranks)
        met = [
            i for i, op in enumerate(stage.operations) if op.what == "all" and op.collective != Collective.ALL_TO_ALL
        ]
        met = [i for i in met if _members(stage, stage.operations[i], bad) > 2]
        if not met:  # groups of two: one cannot say who is wrong
            met = [i for i, op in enumerate(stage.operations) if op.what == "all"]
        where = int(rng.integers(steps)), _number(stage, int(rng.choice(met)))
        if kind == "mismatch":
            f.mismatch = (bad, *where)
            return one, ("desync",), where[0]
        f.absent = (bad, *where)
        return one, ("hang",), where[0]
    if kind == "clean":
        return (), (), 0
    return one, ({"clock": "clock_drift", "grows": "leak"}[kind],), 0


def _members(stage: Stage, op: Operation, rank: int) -> int:
    label = stage.groups[op.group]
    return int((label == label[int(np.flatnonzero(stage.ranks == rank)[0])]).sum())


CHUNKS: Final = 4
"""Blocks of activations of a step, given back in the opposite order."""


def _memory(rng: np.random.Generator, m: Machine, kind: str, more: float, who: tuple[int, ...]) -> I64 | None:
    """Bytes that each step leaves behind, steps x ranks; None if memory was not recorded."""
    if kind != "grows" and rng.random() < 0.75:
        return None
    left = np.zeros((m.steps, m.ranks), np.int64)
    left[0] = rng.integers(2 << 30, 6 << 30)
    wobble = rng.integers(-(8 << 20), 8 << 20, (m.steps, m.ranks))
    left[1:] += np.diff(wobble, axis=0)
    if kind == "grows":
        left[1:, list(who)] += int(more * left[0, 0] / max(m.steps - 1, 1))
    return left


# -- the job -----------------------------------------------------------------------------------------------------------


class _Written:
    """Columns of each stage, once; times of each rank."""

    def __init__(self, m: Machine, host: bool, skew_ns: F64, ppm: F64, held: I64 | None) -> None:
        self.m, self.host, self.skew_ns, self.ppm, self.held = m, host, skew_ns, ppm, held
        varies = bool((m.work != 1).any())
        self.flops = varies or m.rng.random() < 0.3

    def run(self, name: str) -> Run:
        parts: list[Part] = []
        starts: list[I64] = []
        lasted: list[I64] = []
        for number, stage in enumerate(self.m.stages):
            self._stage(number, stage, parts, starts, lasted)
        job = assemble(name, parts)
        timing = measured(starts, lasted)
        assert timing is not None
        return Run(job.replace(timing=timing), timing)

    def _stage(self, number: int, stage: Stage, parts: list[Part], starts: list[I64], lasted: list[I64]) -> None:
        m, steps = self.m, self.m.steps
        rows: list[tuple[bool, int]] = []
        """(on the host?, operation) of the rows of a step."""
        for i, op in enumerate(stage.operations):
            if op.what != "join":
                rows += [(True, i)] if self.host else []
                rows += [(False, i)] if op.what not in ("load", "sync") else []
        ops = [stage.operations[i] for _, i in rows]
        hosts = np.array([host for host, _ in rows])
        place = {row: at for at, row in enumerate(rows)}
        before = np.array([place.get((True, i), -1) if not host else -1 for host, i in rows])
        names = [(op.call or op.name) if host else op.name for op, host in zip(ops, hosts, strict=True)]
        words = sorted(set(names))
        kind = np.array([int(Kind.COMP if host else _kind(op)) for op, host in zip(ops, hosts, strict=True)])
        slots = [g for g in stage.groups if any(op.group == g and op.what == "all" for op in ops)]
        peers = sorted({op.to for op in ops if op.what in ("send", "recv")})
        count = len(rows)
        talks = kind >= Kind.SEND
        size = np.array([op.size for op in ops])
        streams = {"kernel": 7, "all": 16, "send": 20, "recv": 24}
        columns: dict[str, Any] = {
            "kind": kind,
            "cpu": hosts.astype(np.int8),
            "thread": np.where(hosts, 4021, UNKNOWN),
            "stream": np.array([UNKNOWN if h else streams[op.what] for op, h in zip(ops, hosts, strict=True)]),
            "collective": np.where(kind == Kind.COLL, [int(op.collective) for op in ops], 0),
            "group": np.array(
                [slots.index(op.group) if k == Kind.COLL else -1 for op, k in zip(ops, kind, strict=True)]
            ),
            "in_bytes": np.where(talks, size, UNKNOWN),
            "out_bytes": np.where(talks, size, UNKNOWN),
            "src": np.array([peers.index(op.to) if k == Kind.RECV else -1 for op, k in zip(ops, kind, strict=True)]),
            "dst": np.array([peers.index(op.to) if k == Kind.SEND else -1 for op, k in zip(ops, kind, strict=True)]),
            "tag": np.array([op.tag if k in (Kind.SEND, Kind.RECV) else -1 for op, k in zip(ops, kind, strict=True)]),
        }
        columns = {name: np.tile(values, steps) for name, values in columns.items()}
        columns["step"] = np.repeat(np.arange(steps), count)
        code = np.tile(np.array([words.index(n) for n in names]), steps)
        edge = np.tile(before, steps)
        edge = np.where(edge >= 0, edge + columns["step"] * count, -1)
        counted = self.flops & (kind == Kind.COMP) & ~hosts
        amount = np.array([max(op.us, 1.0) * 1e8 for op in ops])
        alike = self.held is None and not (m.work != 1).any()
        shared = None
        column = np.array([i for _, i in rows])
        for at, rank in enumerate(stage.ranks.tolist()):
            odd = m.faults.mismatch if rank == m.faults.mismatch[0] else None
            if shared is None or not alike or odd is not None:
                mine = dict(columns)
                flops = np.rint(np.repeat(m.work[:, rank], count) * np.tile(amount, steps))
                mine["flops"] = np.where(np.tile(counted, steps), flops, UNKNOWN).astype(np.int64)
                if odd is not None:
                    met = [i for i, k in enumerate(kind) if k == Kind.COLL]
                    row = odd[1] * count + met[odd[2]]
                    for name in ("in_bytes", "out_bytes"):
                        mine[name] = mine[name].copy()
                        mine[name][row] //= 2
                trace = self._trace(mine, code, words, edge, rank, slots, len(peers))
                shared = trace if alike and odd is None else shared
            else:
                trace = shared
            groups = []
            for slot in slots:
                label = stage.groups[slot]
                members = stage.ranks[label == label[at]]
                groups.append((f"{slot}{number}.{int(label[at])}", members.tolist()))
            other = np.array([int(m.stages[number + to].ranks[at]) for to in peers], np.int64)
            parts.append(Part(rank, trace, groups, other))
            begun = np.where(hosts, stage.call[0][:, column, at], stage.device[0][:, column, at]).reshape(-1)
            ended = np.where(hosts, stage.call[1][:, column, at], stage.device[1][:, column, at]).reshape(-1)
            if self.held is not None:
                begun, ended = self._with_memory(stage, at, begun, ended)
            begun_ns, ended_ns = self._clock(begun, rank), self._clock(ended, rank)
            starts.append(begun_ns)
            lasted.append(np.where((ended_ns == UNKNOWN) | (begun_ns == UNKNOWN), UNKNOWN, ended_ns - begun_ns))

    def _clock(self, us: F64, rank: int) -> I64:
        there = np.isfinite(us)
        ns = np.where(there, us, 0.0) * 1000 * (1 + self.ppm[rank]) + self.skew_ns[rank] + 1e9
        return np.where(there, np.rint(ns).astype(np.int64), UNKNOWN)

    def _trace(
        self, mine: dict[str, Any], code: I64, words: list[str], edge: I64, rank: int, slots: list[str], peers: int
    ) -> Any:
        if self.held is not None:
            n = self.m.steps * 2 * CHUNKS
            words = [*words, "[memory] allocate", "[memory] free"]
            blocks = np.concatenate([_blocks(left) for left in self.held[:, rank].tolist()])
            more = {
                "kind": np.where(blocks >= 0, int(Kind.MEM_LOAD), int(Kind.MEM_STORE)),
                "cpu": np.zeros(n),
                "thread": np.full(n, UNKNOWN),
                "stream": np.full(n, 90),
                "collective": np.zeros(n),
                "step": np.repeat(np.arange(self.m.steps), 2 * CHUNKS),
                **{name: np.full(n, -1) for name in ("group", "src", "dst", "tag")},
                **{name: np.full(n, UNKNOWN) for name in ("in_bytes", "out_bytes", "flops")},
            }
            rows = len(code)
            mine = {name: np.append(mine[name], values) for name, values in more.items()}
            mine["tensor_bytes"] = np.append(np.full(rows, UNKNOWN), np.abs(blocks))
            code = np.append(code, np.where(blocks >= 0, len(words) - 2, len(words) - 1))
            edge = np.append(edge, np.full(n, -1))
        has = edge >= 0
        return build_trace(
            {**mine, "name": (code, words)},
            ctrl=(np.append(0, np.cumsum(has)), edge[has]),
            group_slots=slots,
            peer_slots=peers,
        )

    def _with_memory(self, stage: Stage, at: int, begun: F64, ended: F64) -> tuple[F64, F64]:
        """The host allocates over the first half of what it does in a step, and gives back over the second."""
        first, last = np.nanmin(stage.call[0][:, :, at], axis=1), np.nanmax(stage.call[1][:, :, at], axis=1)
        when = first[:, None] + (last - first)[:, None] * (np.arange(2 * CHUNKS) + 0.5)[None, :] / (2 * CHUNKS)
        return np.append(begun, when.reshape(-1)), np.append(ended, when.reshape(-1) + 0.01)


def _kind(op: Operation) -> Kind:
    return {"all": Kind.COLL, "send": Kind.SEND, "recv": Kind.RECV}.get(op.what, Kind.COMP)


def _blocks(left: int) -> I64:
    """Bytes allocated and given back in a step that leaves this many behind."""
    block = 256 << 20
    found = np.array([block] * CHUNKS + [-block] * CHUNKS, np.int64)
    found[0 if left >= 0 else -1] += left
    return found
