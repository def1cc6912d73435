"""Runs with one fault, or none, written as jobs with times; shares nothing with what looks for the faults.

Ranks with a host, a compute stream and a communication stream, all ranks at once as arrays. Six programs (data,
sharded, tensor, pipeline, expert, embedding tables), 4 to 1,024 ranks, 1 to 200 steps. Kernels vary by a log-normal
factor, some take 1.3 to 3 times as long, steps of a rank and of the job are autocorrelated, ranks differ by what they
are, stages by what they hold, experts by what they get. Of Etude only the model of a job is used, to write it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.model.build import build_trace
from etude.model.job import Part, assemble
from etude.model.run import Run
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.timing import measured

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

NODE = 8
SIZES = (4, 8, 8, 16, 16, 32, 64, 128, 256, 1024)
STEPS = (1, 3, 6, 12, 25, 50, 100, 200)
MOST = 10_000
"""Ranks x steps of a run."""
SERIAL = ("drift_one", "drift_all", "periodic_one", "periodic_all", "pause_one", "leak", "intermittent")
"""Kinds that are looked for in 12 steps or more."""
PROGRAMS = ("dp", "fsdp", "tp", "pp", "moe", "dlrm")
KINDS = (
    "slow_rank",
    "slow_rank_since",
    "slow_node",
    "slow_port",
    "slow_pair",
    "late_host",
    "loader",
    "loader_all",
    "intermittent",
    "periodic_one",
    "periodic_all",
    "pause_one",
    "throttled",
    "throttled_since",
    "drift_one",
    "drift_all",
    "common_change",
    "clock_drift",
    "leak",
    "desync",
    "hang",
)


@dataclass(frozen=True)
class Truth:
    injected: str
    """One of `KINDS`, or `clean`."""
    kinds: tuple[str, ...]
    """What may be said of it."""
    ranks: tuple[int, ...]
    """Who is to blame; all ranks: what the job does."""
    program: str
    size: int
    steps: int
    severity: float
    since: int = 0
    level: str = ""
    """What has the fault, where its kind does not say so."""


@dataclass
class Noise:
    kernel: float
    wild: float
    """Part of all kernels that take 1.3 to 3 times as long."""
    of_rank: float
    of_step: float
    """Of the job, from step to step."""
    of_rank_step: float
    rho: float
    work: float
    """By how much the work of a step differs from that of the others, on all ranks alike."""


@dataclass
class _Recorded:
    name: str
    kind: int
    start: F64
    end: F64
    step: int
    host: bool = False
    stream: int = 7
    size: int = 0
    group: int = -1
    collective: int = 0
    peer: I64 | None = None
    tag: int = 0
    after: int = -1
    """Event whose end it waits for on the same rank, as the file says."""
    sizes: dict[int, int] = field(default_factory=dict)


class Cluster:
    """The machine as it runs; times in us."""

    def __init__(self, rng: np.random.Generator, ranks: int, steps: int, noise: Noise) -> None:
        self.rng, self.ranks, self.steps, self.noise = rng, ranks, steps, noise
        own = np.exp(noise.of_rank * rng.standard_normal(ranks))
        shared = _ar(rng, steps, 1, noise.rho)[:, 0] * noise.of_step
        single = _ar(rng, steps, ranks, noise.rho) * noise.of_rank_step
        work = 1 + noise.work * rng.uniform(-1, 1, steps)
        self.work = work
        self.level = np.exp(shared[:, None] + single) * own[None, :] * work[:, None]
        self.slow = np.ones((steps, ranks))
        """Fault: how much longer kernels take."""
        self.some: tuple[int, float] | None = None
        """Fault: (rank, part of its kernels that take 1.3 to 3 times as long)."""
        self.call_us = np.zeros((steps, ranks))
        """Fault: what is added to each call of the host."""
        self.load_us = np.zeros((steps, ranks))
        self.pause_us = np.zeros((steps, ranks))
        self.port: dict[int, float] = {}
        self.pair: dict[tuple[int, int], float] = {}
        self.host, self.comp, self.comm = (np.zeros(ranks) for _ in range(3))
        self.found: list[_Recorded] = []
        self.groups: list[NDArray[np.int64]] = []
        self.names: list[str] = []
        self.step = 0
        self.stages = int(rng.choice([s for s in (2, 4, 8) if 2 * s <= ranks]))
        self.launch_us = float(rng.choice([3.0, 5.0, 8.0]))
        self.stall = float(rng.choice([0.0, 0.0, 0.01]))

    def _keep(self, one: _Recorded) -> int:
        self.found.append(one)
        return len(self.found) - 1

    def call(self, name: str, us: float, mine: NDArray[np.bool_] | None = None, more: F64 | None = None) -> int:
        start = self.host.copy()
        took = us * np.exp(0.08 * self.rng.standard_normal(self.ranks)) + self.call_us[self.step]
        if more is not None:
            took = took + more
        if self.stall:
            took += (self.rng.random(self.ranks) < self.stall) * self.rng.exponential(40.0, self.ranks)
        there = np.ones(self.ranks, bool) if mine is None else mine
        self.host = np.where(there, start + took, start)
        return self._keep(_Recorded(name, Kind.COMP, _only(start, there), _only(self.host, there), self.step, True))

    def kernel(self, name: str, us: float | F64, mine: NDArray[np.bool_] | None = None) -> None:
        launch = self.call(f"aten::{name}", self.launch_us, mine)
        n = self.noise
        took = us * self.level[self.step] * np.exp(n.kernel * self.rng.standard_normal(self.ranks))
        wild = self.rng.random(self.ranks) < n.wild
        took = np.where(wild, took * self.rng.uniform(1.3, 3.0, self.ranks), took) * self.slow[self.step]
        if self.some is not None and self.rng.random() < self.some[1]:
            took[self.some[0]] *= self.rng.uniform(1.3, 3.0)
        start = np.maximum(self.comp, self.host + 3.0)
        there = np.ones(self.ranks, bool) if mine is None else mine
        self.comp = np.where(there, start + took, self.comp)
        self._keep(_Recorded(name, Kind.COMP, _only(start, there), _only(start + took, there), self.step, after=launch))

    def link(self, members: NDArray[np.int64]) -> float:
        slow = [f for rank, f in self.port.items() if rank in members]
        slow += [f for (a, b), f in self.pair.items() if a in members and b in members]
        return max(slow, default=1.0)

    def group(self, name: str, members: list[NDArray[np.int64]]) -> list[int]:
        first = len(self.groups)
        self.groups += members
        self.names += [f"{name}{i}" for i in range(len(members))]
        return list(range(first, len(self.groups)))

    def meet(self, what: Collective, size: int, groups: list[int], us: float, blocks: bool = True) -> None:
        launch = self.call(f"c10d::{what.name.lower()}", self.launch_us)
        start = np.maximum(np.maximum(self.comm, self.host + 3.0), self.comp)
        end = start.copy()
        where = np.full(self.ranks, -1)
        for g in groups:
            members = self.groups[g]
            took = us * np.exp(0.02 * self.rng.standard_normal()) * self.link(members)
            took *= self.rng.uniform(1.3, 2.0) if self.rng.random() < 0.005 else 1.0
            end[members] = start[members].max() + took + 0.5 * self.rng.random(len(members))
            where[members] = g
        self.comm = end.copy()
        if blocks:
            self.comp = np.maximum(self.comp, end)
        name = f"ncclDevKernel_{what.name.title().replace('_', '')}_Sum_f32_RING_LL"
        self._keep(
            _Recorded(
                name,
                Kind.COLL,
                start,
                end,
                self.step,
                stream=20,
                size=size,
                collective=int(what),
                peer=where,
                after=launch,
            )
        )

    def send(self, src: NDArray[np.int64], dst: NDArray[np.int64], size: int, us: float, tag: int) -> None:
        ours, theirs = np.zeros(self.ranks, bool), np.zeros(self.ranks, bool)
        ours[src], theirs[dst] = True, True
        first, second = self.call("c10d::send", self.launch_us, ours), self.call("c10d::recv_", self.launch_us, theirs)
        there = np.maximum(np.maximum(self.comm, self.host + 3.0), self.comp)[src]
        here = np.maximum(self.comm, self.host + 3.0)[dst]
        slow = np.array([self.link(np.array(pair)) for pair in zip(src.tolist(), dst.tolist(), strict=True)])
        end = np.maximum(there, here) + us * np.exp(0.02 * self.rng.standard_normal(len(src))) * slow
        self.comm[src], self.comm[dst] = end, end
        self.comp[dst] = np.maximum(self.comp[dst], end)
        for name, kind, mine, others, start, after in (
            ("ncclDevKernel_SendRecv", Kind.SEND, src, dst, there, first),
            ("ncclDevKernel_SendRecv", Kind.RECV, dst, src, here, second),
        ):
            at = np.full((2, self.ranks), np.nan)
            at[0, mine], at[1, mine] = start, end
            peer = np.full(self.ranks, -1)
            peer[mine] = others
            self._keep(
                _Recorded(name, kind, at[0], at[1], self.step, stream=20, size=size, peer=peer, tag=tag, after=after)
            )

    def begin(self, load_us: float) -> None:
        self.host = self.host + self.pause_us[self.step]
        self.call(
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", load_us, more=self.load_us[self.step]
        )

    def finish(self) -> None:
        self.comp = np.maximum(self.comp, self.comm)
        self.kernel("multi_tensor_adam", 90.0)
        start = self.host.copy()
        self.host = np.maximum(self.host, np.maximum(self.comp, self.comm)) + 2.0
        self._keep(_Recorded("cudaDeviceSynchronize", Kind.COMP, start, self.host.copy(), self.step, True))


def _only(values: F64, there: NDArray[np.bool_]) -> F64:
    return np.where(there, values, np.nan)


def _ar(rng: np.random.Generator, steps: int, wide: int, rho: float) -> F64:
    found = rng.standard_normal((steps, wide))
    for s in range(1, steps):
        found[s] = rho * found[s - 1] + np.sqrt(1 - rho**2) * found[s]
    return found


def _parted(ranks: int, size: int) -> list[NDArray[np.int64]]:
    return list(np.arange(ranks).reshape(-1, size))


def _across(ranks: int, size: int) -> list[NDArray[np.int64]]:
    return list(np.arange(ranks).reshape(-1, size).T)


# -- programs ----------------------------------------------------------------------------------------------------------


def _dp(m: Cluster, scale: float) -> None:
    world = m.group("dp", [np.arange(m.ranks)])
    for step in range(m.steps):
        m.step = step
        m.begin(30.0 * scale)
        for layer in range(5):
            m.kernel(f"gemm_{layer % 3}", 150 * scale)
            m.kernel("attention", 80 * scale)
            m.kernel("layer_norm", 20 * scale)
        for _ in range(5):
            m.kernel("gemm_backward", 280 * scale)
            m.kernel("attention_backward", 120 * scale)
            m.meet(Collective.ALL_REDUCE, 8 << 20, world, 140 * scale, blocks=False)
        m.finish()


def _fsdp(m: Cluster, scale: float) -> None:
    size = min(m.ranks, NODE)
    shard = m.group("shard", _parted(m.ranks, size))
    copies = m.group("copies", _across(m.ranks, size)) if m.ranks > size else []
    for step in range(m.steps):
        m.step = step
        m.begin(30.0 * scale)
        for _ in range(4):
            m.meet(Collective.ALL_GATHER, 2 << 20, shard, 50 * scale, blocks=False)
            m.kernel("gemm", 190 * scale)
            m.kernel("attention", 90 * scale)
            m.comp = np.maximum(m.comp, m.comm)
        for _ in range(4):
            m.kernel("gemm_backward", 330 * scale)
            m.kernel("attention_backward", 140 * scale)
            m.meet(Collective.REDUCE_SCATTER, 2 << 20, shard, 70 * scale, blocks=False)
            if copies:
                m.meet(Collective.ALL_REDUCE, 1 << 20, copies, 60 * scale, blocks=False)
        m.finish()


def _tp(m: Cluster, scale: float) -> None:
    size = int(m.rng.choice([4, min(8, m.ranks)]))
    inner = m.group("tp", _parted(m.ranks, size))
    outer = m.group("dp", _across(m.ranks, size)) if m.ranks > size else []
    for step in range(m.steps):
        m.step = step
        m.begin(30.0 * scale)
        for _ in range(5):
            m.kernel("attention", 110 * scale)
            m.meet(Collective.ALL_REDUCE, 4 << 20, inner, 45 * scale)
            m.kernel("mlp", 170 * scale)
            m.meet(Collective.ALL_REDUCE, 4 << 20, inner, 45 * scale)
        for _ in range(5):
            m.kernel("mlp_backward", 320 * scale)
            m.meet(Collective.ALL_REDUCE, 4 << 20, inner, 45 * scale)
        if outer:
            m.meet(Collective.ALL_REDUCE, 16 << 20, outer, 300 * scale)
        m.finish()


def _pp(m: Cluster, scale: float) -> None:
    stages, wide = m.stages, m.ranks // m.stages
    stage = np.arange(m.ranks) // wide
    dp = m.group("dp", _parted(m.ranks, wide))
    held = m.rng.uniform(0.8, 1.25, stages)  # by design, stages take different times
    load, batches = held[stage], 4
    first, last = stage == 0, stage == stages - 1
    for step in range(m.steps):
        m.step = step
        m.begin(30.0 * scale)
        for way in range(2):
            for b in range(batches):
                for s in range(stages) if not way else range(stages - 1, -1, -1):
                    here = stage == s
                    if first[here].any():
                        m.kernel("embedding" if not way else "embedding_backward", 60 * scale, here)
                    for _ in range(2):
                        m.kernel("block" if not way else "block_backward", (1 + way) * 120 * scale * load, here)
                    if last[here].any():
                        m.kernel("head" if not way else "head_backward", 150 * scale, here)
                    goes = s + 1 if not way else s - 1
                    if 0 <= goes < stages:
                        src = np.flatnonzero(here)
                        m.send(src, src + wide * (goes - s), 4 << 20, 25 * scale, tag=1 + way * batches + b)
        m.meet(Collective.ALL_REDUCE, 16 << 20, dp, 200 * scale)
        m.finish()


def _moe(m: Cluster, scale: float) -> None:
    size = min(m.ranks, NODE)
    experts, world = m.group("ep", _parted(m.ranks, size)), m.group("dp", [np.arange(m.ranks)])
    popular = m.rng.lognormal(0, 0.2, m.ranks)
    for step in range(m.steps):
        m.step = step
        m.begin(30.0 * scale)
        for _ in range(4):
            m.kernel("attention", 120 * scale)
            m.kernel("router", 25 * scale)
            m.meet(Collective.ALL_TO_ALL, 4 << 20, experts, 60 * scale)
            m.kernel("grouped_gemm", 200 * scale * popular * m.rng.lognormal(0, 0.1, m.ranks))
            m.meet(Collective.ALL_TO_ALL, 4 << 20, experts, 60 * scale)
            m.kernel("add_norm", 30 * scale)
        for _ in range(4):
            m.kernel("attention_backward", 240 * scale)
            m.kernel("norm_backward", 60 * scale)
            m.meet(Collective.ALL_REDUCE, 4 << 20, world, 90 * scale, blocks=False)
        m.finish()


def _dlrm(m: Cluster, scale: float) -> None:
    world = m.group("world", [np.arange(m.ranks)])
    tables = m.rng.uniform(0.5, 2.0, m.ranks)
    for step in range(m.steps):
        m.step = step
        m.begin(30.0 * scale)
        m.kernel("embedding_lookup", 250 * scale * tables)
        m.kernel("bottom_mlp", 160 * scale)
        m.meet(Collective.ALL_TO_ALL, 4 << 20, world, 120 * scale)
        for _ in range(4):
            m.kernel("interaction", 60 * scale)
            m.kernel("top_mlp", 130 * scale)
        for _ in range(4):
            m.kernel("top_mlp_backward", 260 * scale)
        m.meet(Collective.ALL_TO_ALL, 4 << 20, world, 120 * scale)
        m.kernel("embedding_update", 300 * scale * tables)
        m.meet(Collective.ALL_REDUCE, 4 << 20, world, 80 * scale)
        m.finish()


_RUNS = {"dp": _dp, "fsdp": _fsdp, "tp": _tp, "pp": _pp, "moe": _moe, "dlrm": _dlrm}
_STEP_US = {"dp": 3300.0, "fsdp": 3100.0, "tp": 3700.0, "pp": 6000.0, "moe": 3700.0, "dlrm": 2700.0}
"""About how long a step takes, at scale 1: what delays are a share of."""


# -- faults ------------------------------------------------------------------------------------------------------------


def injected(seed: int, kind: str, severity: float, *, ranks: int = 0, steps: int = 0) -> tuple[Run, Truth]:
    """A run with this fault; whatever is not given follows from the seed. `severity` is how much longer something
    takes: 1.1 is 10%."""
    rng = np.random.default_rng([seed, len(KINDS) if kind == "clean" else KINDS.index(kind)])
    ranks = ranks or int(rng.choice(SIZES))
    if kind in ("slow_node", "throttled", "throttled_since"):
        ranks = max(ranks, 24 if kind == "slow_node" else 8)
        ranks = 32 if ranks == 24 else ranks
    if kind in ("slow_port", "slow_pair"):
        ranks = max(ranks, 16)
    fewest = 12 if kind in SERIAL or kind in ("common_change", "throttled_since", "clock_drift") else 1
    fewest = 6 if kind == "slow_rank_since" else fewest
    fits = [s for s in STEPS if s >= fewest and s * ranks <= MOST] or [max(fewest, 12 if fewest > 1 else 1)]
    steps = steps or int(rng.choice(fits))
    program = str(rng.choice(PROGRAMS))
    if kind in ("slow_port", "slow_pair"):
        program = str(rng.choice(["tp", "fsdp"] if kind == "slow_port" else ["pp"]))
    noise = Noise(
        float(rng.choice([0.005, 0.01, 0.02])),
        float(rng.choice([0.0, 0.005, 0.01])),
        float(rng.choice([0, 0.003, 0.006])),
        float(rng.choice([0, 0.01, 0.02])),
        float(rng.choice([0, 0.003, 0.006])),
        float(rng.choice([0.0, 0.5, 0.8])),
        float(rng.choice([0, 0, 0.2])),
    )
    m = Cluster(rng, ranks, steps, noise)
    scale = float(rng.choice([0.6, 1.0, 3.0]))
    who, kinds, since = _fault(m, rng, kind, severity, _STEP_US[program] * scale, program)
    _RUNS[program](m, scale)
    held = _leaking(rng, m, kind, severity, who)
    cut = _cut(rng, m, kind, who)
    skew = np.rint(rng.uniform(-500, 500, ranks) * 1000) if rng.random() < 0.5 else np.zeros(ranks)
    ppm = np.zeros(ranks)
    if kind == "clock_drift":
        span_us = max(float(np.nanmax(e.end)) for e in m.found[-3:])
        ppm[list(who)] = rng.choice([-1, 1]) * max(150.0 / span_us, 30e-6)
    host = bool(rng.random() < 0.8) or kind in ("loader", "loader_all", "late_host", "pause_one")
    run = _written(f"{kind}-{seed}", m, host, skew, ppm, held, cut, who)
    return run, Truth(kind, kinds, who, program, ranks, steps, severity, since)


def _fault(
    m: Cluster, rng: np.random.Generator, kind: str, severity: float, step_us: float, program: str
) -> tuple[tuple[int, ...], tuple[str, ...], int]:
    """Sets the machine; (who, what may be said of it, since which step)."""
    ranks, steps = m.ranks, m.steps
    bad, everyone, since = int(rng.integers(ranks)), tuple(range(ranks)), 0
    more = severity - 1
    if kind == "slow_rank":
        m.slow[:, bad] = severity
    elif kind == "slow_rank_since":
        since = int(rng.integers(steps // 3, max(steps // 3 + 1, 2 * steps // 3)))
        m.slow[since:, bad] = severity
        return (bad,), ("slow_rank",), since
    elif kind == "slow_node":
        node = int(rng.integers(ranks // NODE))
        who = tuple(range(node * NODE, (node + 1) * NODE))
        m.slow[:, who] = severity
        return who, ("slow_node",), 0
    elif kind == "slow_port":
        m.port[bad] = 1 + 3 * more
        return (bad,), ("slow_link",), 0
    elif kind == "slow_pair":
        first = bad % (ranks - ranks // m.stages)
        who = (first, first + ranks // m.stages)
        m.pair[who[0], who[1]] = 1 + 3 * more
        return who, ("slow_link",), 0
    elif kind == "late_host":
        m.pause_us[:, bad] = more * step_us
        return (bad,), ("late_host",), 0
    elif kind == "loader":
        m.load_us[:, bad] = more * step_us * rng.uniform(0.8, 1.2, steps)
        return (bad,), ("loader", "late_host"), 0
    elif kind == "loader_all":
        m.load_us[:] = 3 * more * step_us * rng.uniform(0.9, 1.1, (steps, 1))
        return everyone, ("loader",), 0
    elif kind == "intermittent":
        m.some = (bad, min(1.0, more / 1.15))
        return (bad,), ("intermittent",), 0
    elif kind in ("periodic_one", "periodic_all", "pause_one"):
        every = int(rng.choice([k for k in (2, 3, 4, 5, 8, 10) if 3 * k <= steps]))
        at = slice(int(rng.integers(every)), None, every)
        who = everyone if kind == "periodic_all" else (bad,)
        if kind == "periodic_one":
            m.slow[at, bad] = 1 + 2 * more
        else:
            m.pause_us[at, who] = 2 * more * step_us
        return who, ("periodic",), 0
    elif kind in ("throttled", "throttled_since"):
        part = float(rng.choice([0.25, 0.5, 0.75]) if kind.endswith("since") else rng.choice([0.2, 0.35]))
        who = tuple(sorted(rng.permutation(ranks)[: max(2, round(part * ranks))].tolist()))
        since = int(rng.integers(steps // 4, 3 * steps // 4)) if kind.endswith("since") else 0
        m.slow[since:, who] = severity
        return who, ("throttled",), since
    elif kind in ("drift_one", "drift_all"):
        who = (bad,) if kind == "drift_one" else everyone
        m.slow[:, who] = (1 + 2 * more * np.arange(steps) / (steps - 1))[:, None]
        return who, ("drift",) if kind == "drift_one" else ("drift", "common_change"), 0
    elif kind == "common_change":
        since = int(rng.integers(steps // 3, 2 * steps // 3))
        m.slow[since:] = severity
        return everyone, ("common_change",), since
    elif kind == "clock_drift":
        return (bad,), ("clock_drift",), 0
    elif kind == "leak":
        return (bad,), ("leak",), 0
    elif kind in ("desync", "hang"):
        return (bad,), (kind,), 0
    elif kind == "clean":
        return (), (), 0
    return (bad,), (kind,), since


def _leaking(rng: np.random.Generator, m: Cluster, kind: str, severity: float, who: tuple[int, ...]) -> I64 | None:
    """Bytes that are alive after each step, steps x ranks; None if memory was not recorded."""
    if kind != "leak" and rng.random() < 0.7:
        return None
    level = 8 << 30
    held = level + np.rint(rng.normal(0, 0.002 * level, (m.steps, m.ranks)))
    held[0] *= 0.7  # optimizer states come with the first step
    if kind == "leak":
        held[:, list(who)] += np.rint(np.linspace(0, (severity - 1) * level, m.steps))[:, None]
    found: I64 = held.astype(np.int64)
    return found


def _cut(rng: np.random.Generator, m: Cluster, kind: str, who: tuple[int, ...]) -> int:
    """Number of the event from which nothing goes on; -1 if the run ends as it should."""
    if kind not in ("hang", "desync"):
        return -1
    met = [i for i, e in enumerate(m.found) if e.kind == Kind.COLL and e.collective != Collective.ALL_TO_ALL]
    chosen = met[int(rng.integers(len(met) // 3, len(met)))]
    if kind == "desync":
        m.found[chosen].sizes[who[0]] = m.found[chosen].size // 2
    return chosen


def _written(
    name: str, m: Cluster, host: bool, skew: F64, ppm: F64, held: I64 | None, cut: int, who: tuple[int, ...]
) -> Run:
    events = [e for e in m.found if host or not e.host]
    place = {id(e): i for i, e in enumerate(events)}
    start = np.stack([e.start for e in events])
    end = np.stack([e.end for e in events])
    stopped = place[id(m.found[cut])] if cut >= 0 else len(events)
    there = ~np.isnan(start)
    programs, which = np.unique(there.T, axis=0, return_inverse=True)
    words = sorted({e.name for e in events})
    code = np.array([words.index(e.name) for e in events])
    kinds, steps = np.array([int(e.kind) for e in events]), np.array([e.step for e in events])
    hosts, stream = np.array([e.host for e in events]), np.array([e.stream for e in events])
    size, coll = np.array([e.size for e in events]), np.array([e.collective for e in events])
    tag = np.array([e.tag for e in events])
    varies = m.noise.work > 0
    flops = np.array(
        [round(1e9 * m.work[e.step]) if varies and e.kind == Kind.COMP and not e.host else UNKNOWN for e in events]
    )
    after = np.array([place.get(id(m.found[e.after]), -1) if e.after >= 0 else -1 for e in events])
    peers = np.stack([e.peer if e.peer is not None else np.full(m.ranks, -1) for e in events])
    parts, starts, lasted = [], [], []
    traces: dict[tuple[int, bytes], tuple[Any, Any, I64]] = {}
    for rank in range(m.ranks):
        rows = np.flatnonzero(programs[which.reshape(-1)[rank]])
        mine = peers[rows, rank]
        odd = {i: e.sizes[rank] for i, e in enumerate(events) if rank in e.sizes} if cut >= 0 else {}
        slots, group = _slots(np.where(kinds[rows] == Kind.COLL, mine, -1))
        peer_slots, peer = _slots(np.where((kinds[rows] == Kind.SEND) | (kinds[rows] == Kind.RECV), mine, -1))
        key = int(which.reshape(-1)[rank]), group.tobytes() + peer.tobytes() + repr(odd).encode()
        key = (*key, rank) if held is not None else key
        if key not in traces:
            sizes = size[rows].copy()
            for i, other in odd.items():
                sizes[np.searchsorted(rows, i)] = other
            talks = kinds[rows] >= Kind.SEND
            row_of = np.full(len(events), -1)
            row_of[rows] = np.arange(len(rows))
            before = np.where(after[rows] >= 0, row_of[after[rows]], -1)
            has = before >= 0
            columns: dict[str, Any] = {
                "kind": kinds[rows],
                "name": (code[rows], words),
                "cpu": hosts[rows].astype(np.int8),
                "thread": np.where(hosts[rows], 1, UNKNOWN),
                "stream": np.where(hosts[rows], UNKNOWN, stream[rows]),
                "step": steps[rows],
                "flops": flops[rows],
                "collective": coll[rows],
                "group": group,
                "in_bytes": np.where(talks, sizes, UNKNOWN),
                "out_bytes": np.where(talks, sizes, UNKNOWN),
                "src": np.where(kinds[rows] == Kind.RECV, peer, -1),
                "dst": np.where(kinds[rows] == Kind.SEND, peer, -1),
                "tag": np.where((kinds[rows] == Kind.SEND) | (kinds[rows] == Kind.RECV), tag[rows], -1),
            }
            edges = np.append(0, np.cumsum(has)), before[has]
            if held is not None:
                columns, edges = _with_memory(columns, edges, held[:, rank], len(rows))
            traces[key] = (
                build_trace(
                    columns, ctrl=edges, group_slots=[f"g{i}" for i in range(len(slots))], peer_slots=len(peer_slots)
                ),
                rows,
                sizes,
            )
        trace = traces[key][0]
        groups = [(m.names[g], m.groups[g].tolist()) for g in slots]
        parts.append(Part(rank, trace, groups, np.array(peer_slots, np.int64)))
        begun = np.rint(start[rows, rank] * 1000 * (1 + ppm[rank]) + skew[rank]).astype(np.int64)
        ended = np.rint(end[rows, rank] * 1000 * (1 + ppm[rank]) + skew[rank]).astype(np.int64)
        if held is not None:
            extra = np.array([ended[steps[rows] == s].max() for s in range(m.steps)])
            begun, ended = np.append(begun, extra), np.append(ended, extra + 1)
        times, spans = begun.copy(), ended - begun
        if cut >= 0:
            late = np.append(rows, [10**9] * (len(begun) - len(rows))) >= stopped
            spans[late] = UNKNOWN
            at = np.append(rows, [-1] * (len(begun) - len(rows))) == stopped
            waits = at & (rank not in who or bool(m.found[cut].sizes)) & (rank in _members(m, cut, who[0]))
            times[late & ~waits] = UNKNOWN
        starts.append(times)
        lasted.append(spans)
    job = assemble(name, parts)
    timing = measured(starts, lasted)
    assert timing is not None
    return Run(job.replace(timing=timing), timing)


def _members(m: Cluster, cut: int, rank: int) -> set[int]:
    where = m.found[cut].peer
    assert where is not None
    return set(m.groups[int(where[rank])].tolist())


def _with_memory(columns: dict[str, Any], edges: tuple[I64, I64], held: I64, rows: int) -> tuple[dict[str, Any], Any]:
    """What stays in memory at the end of each step, as nodes that load and store."""
    grows = np.diff(held, prepend=0)
    n = len(grows)
    words = [*columns["name"][1], "allocate", "free"]
    more = {
        "kind": np.where(grows >= 0, int(Kind.MEM_LOAD), int(Kind.MEM_STORE)),
        "cpu": np.zeros(n, np.int8),
        "thread": np.full(n, UNKNOWN),
        "stream": np.full(n, 99),
        "step": np.arange(n),
        "collective": np.zeros(n, int),
        "group": np.full(n, -1),
        "in_bytes": np.full(n, UNKNOWN),
        "out_bytes": np.full(n, UNKNOWN),
        "src": np.full(n, -1),
        "dst": np.full(n, -1),
        "tag": np.full(n, -1),
    }
    found: dict[str, Any] = {name: np.append(columns[name], values) for name, values in more.items()}
    found["name"] = (np.append(columns["name"][0], np.where(grows >= 0, len(words) - 2, len(words) - 1)), words)
    found["flops"] = np.append(columns["flops"], np.full(n, UNKNOWN))
    found["tensor_bytes"] = np.append(np.full(rows, UNKNOWN), np.abs(grows))
    return found, (np.append(edges[0], np.full(n, edges[0][-1])), edges[1])


def _slots(values: I64) -> tuple[list[int], I64]:
    """(distinct values in the order of their first use, slot of each)."""
    known = list(dict.fromkeys(values[values >= 0].tolist()))
    number = {value: i for i, value in enumerate(known)}
    return known, np.array([number.get(int(v), -1) for v in values], np.int64)
