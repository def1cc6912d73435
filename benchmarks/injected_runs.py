"""Runs in which one thing is wrong, written as the files that a user would have: profiler traces or timed `.et`.

A simulator of its own, on purpose: a host and two streams a rank, operators one after the other, nothing of Etude.
Seven shapes of training (data, tensor, sharded, hybrid, expert, context, pipeline parallel), 1 to 5 steps, 3% jitter of
three distributions, clocks off by up to 1 ms and some of them drifting.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import chakra_pb

F64 = NDArray[np.float64]

MODELS = ("dp", "tp", "fsdp", "hsdp", "moe", "cp", "pp")
FORMS = ("kineto", "et", "device")
"""A profiler's trace a rank; `.et` with hosts and steps; `.et` of devices alone, without steps."""
JITTER = 0.03
HEAVY = 0.03
"""Part of all times that lie far off, of the shape `heavy`."""
SKEW_US = 1000.0
_COMM = {
    "all_reduce": (0, "AllReduce", "allreduce"),
    "all_gather": (2, "AllGather", "_allgather_base"),
    "all_to_all": (6, "SendRecv", "all_to_all"),
    "reduce_scatter": (7, "ReduceScatter", "_reduce_scatter_base"),
}
Groups = list[tuple[str, NDArray[np.int64]]]


@dataclass(frozen=True)
class Truth:
    kind: str
    ranks: tuple[int, ...]
    how: str
    model: str
    steps: int
    since: int
    factor: float
    cut: int = 0
    """Of a missing participant: the collective of its that it never comes to, counted from 1."""


@dataclass
class Event:
    what: str
    """host, kernel, coll, send, recv."""
    name: str
    start: F64
    """By rank, in us; NaN where a rank has no part in it."""
    end: F64
    step: int
    size: int = 0
    groups: Groups = field(default_factory=list)
    peer: dict[int, int] = field(default_factory=dict)
    tag: int = 0
    work: F64 | None = None
    """By rank: operations of a kernel, where they are not the same on all."""

    def members(self, rank: int) -> list[int]:
        return next((m.tolist() for _, m in self.groups if rank in m), [])


class Machine:
    """Ranks with a host and two streams each; all ranks at once, as arrays."""

    def __init__(self, ranks: int, rng: np.random.Generator, shape: str, launch_us: float, since: int) -> None:
        self.ranks, self.rng, self.shape, self.launch_us, self.since = ranks, rng, shape, launch_us, since
        self.slow, self.host_slow, self.late_us = np.ones(ranks), np.ones(ranks), np.zeros(ranks)
        self.by_step: F64 | None = None
        """Steps x ranks: how much slower devices are in each step, beside `slow`."""
        self.work: F64 | None = None
        """Steps x ranks: how much more work kernels have than the others'."""
        self.host_stalls = 0.0
        """Part of all host calls that the operating system interrupts."""
        self.port: dict[int, float] = {}
        self.pair: dict[tuple[int, int], float] = {}
        self.host, self.comp, self.comm = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks)
        self.events: list[Event] = []
        self.step = 0

    def jitter(self, count: int) -> F64:
        if self.shape == "normal":
            return np.maximum(1 + JITTER * self.rng.standard_normal(count), 0.5)
        if self.shape == "lognormal":
            return np.exp(JITTER * self.rng.standard_normal(count))
        if self.shape == "heavy":  # most vary little, some take up to several times as long
            far = (self.rng.random(count) < HEAVY) * np.minimum(self.rng.pareto(1.5, count) * 0.3, 4.0)
            return np.exp(JITTER * self.rng.standard_normal(count)) + far
        return 1 + JITTER * np.sqrt(3) * self.rng.uniform(-1, 1, count)

    def now(self, wrong: F64) -> F64:
        return wrong if self.step >= self.since else np.ones(self.ranks)

    def _record(self, what: str, name: str, who: Sequence[int] | None, start: F64, end: F64, **more: Any) -> None:
        mine = np.ones(self.ranks, bool) if who is None else np.isin(np.arange(self.ranks), who)
        at = np.where(mine, start, np.nan), np.where(mine, end, np.nan)
        self.events.append(Event(what, name, *at, self.step, **more))

    def call(self, name: str, us: float, who: Sequence[int] | None = None) -> None:
        start = self.host.copy()
        spent = us * self.jitter(self.ranks) * self.now(self.host_slow)
        if self.host_stalls:
            spent = spent + (self.rng.random(self.ranks) < self.host_stalls) * self.rng.exponential(60.0, self.ranks)
        mine = slice(None) if who is None else np.asarray(who)
        self.host[mine] += spent[mine]
        self._record("host", name, who, start, self.host.copy())

    def kernel(self, name: str, us: float, who: Sequence[int] | None = None, factor: F64 | float = 1.0) -> None:
        self.call(f"aten::{name}", self.launch_us, who)
        start = np.maximum(self.comp, self.host + 2)
        lasts = us * self.jitter(self.ranks) * self.now(self.slow) * factor
        if self.by_step is not None:
            lasts = lasts * self.by_step[self.step]
        work = None if self.work is None else np.rint(1000 * us * self.work[self.step])
        end = start + (lasts if self.work is None else lasts * self.work[self.step])
        mine = slice(None) if who is None else np.asarray(who)
        self.comp[mine] = end[mine]
        self._record("kernel", name, who, start, end, work=work)

    def _link(self, members: Sequence[int]) -> float:
        if self.step < self.since:
            return 1.0
        slow = [f for rank, f in self.port.items() if rank in members]
        slow += [f for (a, b), f in self.pair.items() if a in members and b in members]
        return max(slow, default=1.0)

    def meet(self, kind: str, size: int, groups: Groups, us: float, *, wait: bool = True) -> None:
        self.call(f"c10d::{kind}", self.launch_us)
        start = np.maximum(np.maximum(self.comm, self.host + 2), self.comp)
        end = np.zeros(self.ranks)
        for (_, members), factor in zip(groups, self.jitter(len(groups)), strict=True):
            end[members] = start[members].max() + us * factor * self._link(members.tolist())
        self.comm = end
        if wait:
            self.comp = np.maximum(self.comp, end)
        self._record("coll", kind, None, start, end, size=size, groups=groups)

    def send(self, src: NDArray[np.int64], dst: NDArray[np.int64], size: int, us: float, tag: int) -> None:
        self.call("c10d::send", self.launch_us, src.tolist())
        self.call("c10d::recv_", self.launch_us, dst.tolist())
        there = np.maximum(np.maximum(self.comm, self.host + 2), self.comp)[src]
        here = np.maximum(self.comm, self.host + 2)[dst]
        slow = np.array([self._link(pair) for pair in zip(src.tolist(), dst.tolist(), strict=True)])
        end = np.maximum(there, here) + us * self.jitter(len(src)) * slow
        self.comm[src], self.comm[dst] = end, end
        self.comp[dst] = np.maximum(self.comp[dst], end)
        for what, ranks, others, start in (("send", src, dst, there), ("recv", dst, src, here)):
            at = np.full((2, self.ranks), np.nan)
            at[0, ranks], at[1, ranks] = start, end
            peer = dict(zip(ranks.tolist(), others.tolist(), strict=True))
            self._record(what, what, ranks.tolist(), at[0], at[1], size=size, peer=peer, tag=tag)

    def join(self) -> None:
        self.comp = np.maximum(self.comp, self.comm)

    def synchronise(self) -> None:
        start = self.host.copy()
        self.host = np.maximum(self.host, np.maximum(self.comp, self.comm))
        self._record("host", "cudaDeviceSynchronize", None, start, self.host.copy())


def parted(ranks: int, size: int, stride: int, name: str) -> Groups:
    every = np.arange(ranks)
    starts = [b + o for b in range(0, ranks, size * stride) for o in range(stride)]
    return [(name, every[s : s + size * stride : stride][:size]) for s in starts]


def train(m: Machine, model: str, steps: int, scale: float, busy: F64, sync: bool, load_us: float) -> None:
    """So many steps of a model of this shape; all times are times `scale`."""
    r = m.ranks
    for m.step in range(steps):
        if load_us:
            m.call("dataloader", load_us)
        m.host = m.host + (m.late_us if m.step >= m.since else 0.0)
        if model == "pp":
            _pipeline(m, scale)
        elif model in ("dp", "fsdp", "hsdp"):
            _data(m, model, scale, parted(r, r if model != "hsdp" else min(8, r), 1, "shard"))
        else:
            _tensor(m, model, scale, parted(r, min(4 if model == "cp" else 8, r), 1, model), busy)
        m.join()
        m.kernel("adam", 60 * scale)
        if sync:
            m.synchronise()


def _data(m: Machine, model: str, scale: float, groups: Groups) -> None:
    shard = min(8, m.ranks)
    for layer in range(6):
        if model != "dp":
            m.meet("all_gather", 1 << 20, groups, 60 * scale, wait=False)
        m.kernel(f"gemm_{layer % 3}", 140 * scale)
        m.kernel("attention", 60 * scale)
        if model != "dp":
            m.join()
    for _ in range(6):
        m.kernel("gemm_backward", 260 * scale)
        m.kernel("attention_backward", 90 * scale)
        m.meet("all_reduce" if model == "dp" else "reduce_scatter", 8 << 20, groups, 150 * scale, wait=False)
        if model == "hsdp" and m.ranks > shard:
            m.meet("all_reduce", 1 << 20, parted(m.ranks, m.ranks // shard, shard, "copies"), 90 * scale, wait=False)


def _tensor(m: Machine, model: str, scale: float, groups: Groups, busy: F64) -> None:
    """Tensor, context and expert parallel: collectives between kernels that need them."""
    size = len(groups[0][1])
    forth, back = {"tp": ("all_reduce",) * 2, "cp": ("all_gather", "reduce_scatter"), "moe": ("all_to_all",) * 2}[model]
    for _ in range(5):
        m.kernel("attention", 110 * scale)
        m.meet(forth, 4 << 20, groups, 70 * scale)
        m.kernel("mlp", 150 * scale, factor=_routed(m, busy) if model == "moe" else 1.0)
        if model == "moe":
            m.meet(forth, 4 << 20, groups, 70 * scale)
    for _ in range(5):
        m.kernel("mlp_backward", 300 * scale, factor=_routed(m, busy) if model == "moe" else 1.0)
        m.meet(back, 8 << 20, groups, 70 * scale)
        m.kernel("attention_backward", 220 * scale)
    if m.ranks > size:
        m.meet("all_reduce", 16 << 20, parted(m.ranks, m.ranks // size, size, "dp"), 300 * scale)


def _routed(m: Machine, busy: F64) -> F64:
    return busy * m.rng.lognormal(0, 0.1, m.ranks)


def _pipeline(m: Machine, scale: float) -> None:
    """Four stages, the middle ones with a layer more; six micro-batches there and back."""
    depth = min(4, m.ranks)
    stage = [np.arange(m.ranks)[p * (m.ranks // depth) : (p + 1) * (m.ranks // depth)] for p in range(depth)]
    for batch in range(6):
        for p in range(depth):
            if p:
                m.send(stage[p - 1], stage[p], 2 << 20, 40 * scale, batch)
            for _ in range(2 + (p in (1, 2))):
                m.kernel("layer", 90 * scale, stage[p].tolist())
    for batch in range(6):
        for p in reversed(range(depth)):
            if p < depth - 1:
                m.send(stage[p + 1], stage[p], 2 << 20, 40 * scale, 100 + batch)
            for _ in range(2 + (p in (1, 2))):
                m.kernel("layer_backward", 180 * scale, stage[p].tolist())
    if m.ranks > depth:
        m.meet("all_reduce", 16 << 20, [("dp", members) for members in stage], 250 * scale)


# -- what is wrong -----------------------------------------------------------------------------------------------------


def injected(seed: int, ranks: int, kind: str, factor: float, form: str) -> tuple[Machine, Truth]:
    """A run with one thing wrong: slow_rank, slow_link, late_host, missing_participant, or none."""
    rng = np.random.default_rng([seed, 77])
    model = str(rng.choice(MODELS))
    if kind == "slow_link" and (model in ("dp", "fsdp") or (model in ("tp", "hsdp", "moe") and ranks < 16)):
        model = "cp" if ranks < 16 else "tp"  # a link of one group over all ranks has nothing to be compared with
    steps, scale, bad = int(rng.choice([1, 2, 3, 5])), float(rng.choice([0.5, 1, 4])), int(rng.integers(ranks))
    since = int(rng.integers(2)) * (steps // 2)
    shape, launch_us = str(rng.choice(["normal", "lognormal", "uniform"])), float(rng.choice([4, 8]))
    sync, load_us, busy = bool(rng.integers(2)), scale * float(rng.choice([0, 100, 400])), rng.lognormal(0, 0.25, ranks)
    m = Machine(ranks, rng, shape, launch_us, since)
    how, who, cut = "", (bad,), 0
    if kind == "slow_rank":
        m.slow[bad] = factor
    elif kind == "late_host":
        how = "calls" if form != "device" and rng.integers(2) else "start"
        if how == "calls":
            m.host_slow[bad] = factor
        else:
            sync = True  # else the host is ahead, and its delay delays nobody
            probe = Machine(ranks, np.random.default_rng(1), shape, launch_us, 0)
            train(probe, model, 1, scale, busy, sync, load_us)
            m.late_us[bad] = (factor - 1) * float(np.median(probe.comp))
    elif kind == "slow_link":
        how, other = str(rng.choice(["port", "pair"])), _neighbour(rng, model, ranks, bad)
        bad, other = other if model == "pp" else (bad, other[1])
        if how == "port":
            m.port[bad], who = factor, (bad,)
        else:
            m.pair[min(bad, other), max(bad, other)], who = factor, (min(bad, other), max(bad, other))
    train(m, model, steps, scale, busy, sync, load_us)
    if kind == "missing_participant":
        how = str(rng.choice(["absent", "cut", "hung"]))
        own = sum(event.what == "coll" for event in m.events)
        cut = int(rng.integers(max(1, own // 4), own + 1)) if own else 1
    return m, Truth(kind, who, how, model, steps, since, factor, cut)


def _neighbour(rng: np.random.Generator, model: str, ranks: int, bad: int) -> tuple[int, int]:
    if model == "pp":
        wide, at = ranks // min(4, ranks), int(rng.integers(min(4, ranks) - 1))
        one = at * wide + int(rng.integers(wide))
        return one, one + wide
    size = min({"tp": 8, "hsdp": 8, "moe": 8, "cp": 4}[model], ranks)
    return bad, bad - bad % size + int((bad % size + 1 + rng.integers(size - 1)) % size)


def stops(m: Machine, truth: Truth) -> dict[int, tuple[int, bool]]:
    """By rank: the event at which it stops, and whether it stands in that one. Who waits for a rank that stands, stands
    too; where a recording was only cut off, nobody else stops."""
    found: dict[int, tuple[int, bool]] = {}
    if truth.how not in ("cut", "hung", "unseen"):
        return found
    bad, own = truth.ranks[0], 0
    for number, event in enumerate(m.events):
        if event.what == "coll":
            own += 1
            if own >= truth.cut and bad not in found:
                found[bad] = number, False
        if truth.how != "cut":
            together = [members.tolist() for _, members in event.groups] or [list(p) for p in event.peer.items()]
            for members in together:
                if any(rank in found for rank in members):
                    found |= {rank: (number, True) for rank in members if rank not in found and event.what != "host"}
    return found


# -- files -------------------------------------------------------------------------------------------------------------


def write(folder: Path, m: Machine, truth: Truth, form: str, seed: int) -> None:
    """The files of the run, one a rank, with clocks that do not agree."""
    rng = np.random.default_rng([seed, 78])
    skew, drift = rng.uniform(-SKEW_US, SKEW_US, m.ranks), rng.uniform(-5e-6, 5e-6, m.ranks) * rng.integers(2)
    ends = stops(m, truth)
    groups: dict[tuple[int, ...], str] = {}
    for rank in range(m.ranks):
        if truth.how == "absent" and rank == truth.ranks[0]:
            continue
        seen = []
        for number, event in enumerate(m.events):
            if np.isnan(event.start[rank]):
                continue
            start, end = ((t[rank] + skew[rank]) * (1 + drift[rank]) for t in (event.start, event.end))
            if rank in ends and number >= ends[rank][0]:
                if ends[rank][1] and truth.how != "unseen":
                    seen.append((event, start, None))
                elif not ends[rank][1] and seen and seen[-1][0].what == "host":
                    seen.pop()  # it never asked for it
                break
            seen.append((event, start, end))
        if form == "kineto":
            (folder / f"run_rank{rank}.json").write_text(json.dumps(_kineto(seen, rank, m.ranks)))
        else:
            (folder / f"job.{rank}.et").write_bytes(_et(seen, rank, groups, hosts=form == "et"))
    if form != "kineto":
        (folder / "job.json").write_text(json.dumps({name: list(members) for members, name in groups.items()}))


Seen = list[tuple[Event, float, float | None]]


def _kineto(seen: Seen, rank: int, ranks: int) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    groups: dict[str, list[int]] = {}
    steps: dict[int, list[float]] = {}

    def add(cat: str, name: str, tid: int, start: float, end: float, **args: Any) -> None:
        span = {"ts": round(5e6 + start, 3), "dur": round(end - start, 3)}
        events.append({"ph": "X", "cat": cat, "name": name, "pid": rank, "tid": tid, **span, "args": args})

    launch = 1
    for event, start, end in seen:
        if end is None:
            continue  # a profiler records what is done
        if event.what == "host":
            steps.setdefault(event.step, []).extend((start, end))
            if event.name.startswith("cuda"):
                add("cuda_runtime", event.name, 1, start, end, correlation=1_000_000 + launch)
                continue
            launch += 1
            add("cpu_op", event.name, 1, start, end, **{"External id": launch})
            if event.name != "dataloader":
                half = (end - start) / 2
                add("cuda_runtime", "cudaLaunchKernel", 1, start + 0.8 * half, start + 1.8 * half, correlation=launch)
            continue
        args: dict[str, Any] = {"device": rank % 8, "stream": 7, "correlation": launch}
        if event.what == "kernel":
            add("kernel", f"void {event.name}_kernel<128>(float*)", 7, start, end, **args)
            continue
        members = event.members(rank) or list(range(ranks))
        name, text = ("SendRecv", event.what) if event.peer else _COMM[event.name][1:]
        group = "pp" if event.peer else next(n for n, m in event.groups if rank in m)
        groups[group] = members
        elements = event.size // 2
        out = {"all_gather": elements * len(members), "reduce_scatter": elements // len(members)}
        args |= {"stream": 20, "Collective name": text, "dtype": "BFloat16", "In msg nelems": elements}
        args |= {"Out msg nelems": out.get(event.name, elements), "Group size": len(members)}
        shown = ", ".join(map(str, members[:30])) + (", ..." if len(members) > 30 else "")
        args |= {"Process Group Name": group, "Process Group Description": group, "Process Group Ranks": f"[{shown}]"}
        if event.peer:
            ends = (rank, event.peer[rank])
            src, dst = ends if event.what == "send" else ends[::-1]
            args |= {"Rank": event.peer[rank], "Src Rank": src, "Dst Rank": dst}
        add(
            "kernel", f"ncclDevKernel_{name}_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20, start, end, **args
        )
    for step, times in steps.items():
        add("user_annotation", f"ProfilerStep#{step + 3}", 1, min(times), max(times))
    config = [{"pg_name": n, "pg_desc": n, "pg_size": len(m), "ranks": m} for n, m in groups.items()]
    info = {"backend": "nccl", "rank": rank, "world_size": ranks, "pg_count": len(groups), "pg_config": config}
    return {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}


def _et(seen: Seen, rank: int, groups: dict[tuple[int, ...], str], *, hosts: bool) -> bytes:
    """As Chakra has it: whole microseconds; what stands has a start and no duration."""
    nodes: list[Any] = []
    last: dict[str, int] = {}
    for event, start, end in seen:
        lane = {"host": "host", "kernel": "compute"}.get(event.what, "network")
        if lane == "host" and not hosts:
            continue
        node = chakra_pb.SCHEMA.Node(id=len(nodes), name=event.name, start_time_micros=10_000 + round(start))
        node.duration_micros = 0 if end is None else max(1, round(end) - round(start))
        needs = {"compute": ("compute", "network"), "network": ("network", "compute")}.get(lane, (lane,))
        node.data_deps.extend(last[other] for other in needs if other in last)
        found: dict[str, tuple[str, Any]] = {"is_cpu_op": ("bool_val", lane == "host")}
        if hosts:
            found["step"] = "int64_val", event.step
        if lane != "network":
            node.type = 4
            operations = 1000 if event.work is None else int(event.work[rank])
            found |= {"num_ops": ("int64_val", operations), "tensor_size": ("uint64_val", operations)}
        elif event.peer:
            node.type = 5 if event.what == "send" else 6
            ends = (rank, event.peer[rank])
            src, dst = ends if event.what == "send" else ends[::-1]
            found |= {"comm_src": ("int32_val", src), "comm_dst": ("int32_val", dst)}
            found |= {"comm_tag": ("int32_val", event.tag), "comm_size": ("int64_val", event.size)}
        else:
            node.type = 7
            name = groups.setdefault(tuple(event.members(rank)), str(len(groups) + 1))
            found |= {"comm_type": ("int64_val", _COMM[event.name][0]), "comm_size": ("int64_val", event.size)}
            found["pg_name"] = "string_val", name
        for name, (kind, value) in found.items():
            setattr(node.attr.add(name=name), kind, value)
        last[lane] = len(nodes)
        nodes.append(node)
    return chakra_pb.write_messages(chakra_pb.SCHEMA.GlobalMetadata(version="0.0.4"), nodes)
