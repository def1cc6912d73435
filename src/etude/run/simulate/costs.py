"""Time of each node by itself: compute and memory from the options and the system, communication as recorded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import ClusterError, TraceError
from etude.cost.calibrate import read_measured
from etude.cost.choice import Choice, Menu, Taken, chosen
from etude.cost.compute import MeasuredOps, compute_time_ns
from etude.cost.ops import OpTable
from etude.cost.traces import ops_of
from etude.kernels.arrays import F64, I64, Bool
from etude.machine.system import Device, System
from etude.model.frames import frames
from etude.model.job import Job
from etude.model.memory import LOCAL, REMOTE, locations
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace
from etude.run.simulate.options import JITTER, Compute, Options
from etude.run.simulate.programs import IS_COMM, IS_MEMORY

if TYPE_CHECKING:
    from etude.cost.opdb.curves import Curves


LONGEST_NS = 1 << 55
"""A bit more than a year; sums of times must not overflow."""


@dataclass(slots=True)
class NodeCosts:
    """Cost of every node of every trace, and the assumptions, counted over the ranks."""

    by_trace: list[I64] = field(default_factory=list)
    modelled: int = 0
    kept: int = 0
    unknown: int = 0
    origins: I64 = field(default_factory=lambda: np.zeros(6, np.int64))
    """Nodes by the origin of their time in the operator database."""
    taken: dict[str, Taken] = field(default_factory=dict)
    """Nodes and their work by the kernel and units chosen for them."""
    unit_flops: Counter[str] = field(default_factory=Counter)
    """Operations by the unit that runs them."""
    repacked: int = 0
    """Nodes whose operands are converted to another layout first."""

    def notes(self) -> list[str]:
        said = []
        if self.taken:
            most = sorted(self.taken.items(), key=lambda item: -item[1].nodes)
            told = ", ".join(f"{taken.nodes:,} {name}" for name, taken in most)
            said.append(f"of {sum(taken.nodes for _, taken in most):,} compute nodes {told}")
        if self.repacked:
            said.append(f"operands of {self.repacked:,} compute nodes are converted to the layout of other units")
        if self.origins.any():
            said.append(_told(self.origins))
        if self.modelled:
            said.append(f"{self.modelled:,} compute nodes have no recorded time and take that of the roofline")
        if self.kept:
            said.append(f"{self.kept:,} compute nodes have no operations, bytes or shapes and keep their recorded time")
        if self.unknown:
            said.append(f"{self.unknown:,} nodes have neither a time nor operations, bytes or shapes, and take 0 ns")
        return said


def node_costs(job: Job, system: System, options: Options) -> NodeCosts:
    costs = NodeCosts()
    devices = system.all_kinds
    by_kind = [_Times(device, options) for device in devices]
    kind_of = trace_kinds(job, system)
    ranks = np.bincount(job.trace_of, minlength=len(job.traces))
    for number, trace in enumerate(job.traces):
        device, times = devices[kind_of[number]], by_kind[kind_of[number]]
        known = trace.duration_ns != UNKNOWN
        wrong = np.flatnonzero(known & ((trace.duration_ns < 0) | (trace.duration_ns > LONGEST_NS)))
        if len(wrong):
            where = f"node {trace.source_id[wrong[0]]}"
            raise TraceError(f"a duration of {trace.duration_ns[wrong[0]]:,} ns is not valid", where=where)
        cost = trace.duration_ns.copy()
        comp, memory = trace.kind == Kind.COMP, IS_MEMORY[trace.kind]
        fixed = ~comp & ~memory & ~IS_COMM[trace.kind]
        fixed |= frames(trace)
        cost[fixed] = 0
        comp &= ~fixed
        modelled, kept = _compute(trace, comp, cost, options, times)
        costs.origins += times.taken_origins() * int(ranks[number])
        choice = times.choose(trace, comp, cost)
        if choice is not None:
            _count(costs, choice, int(ranks[number]))
        cost[memory] = _memory(trace, memory, cost, device, options)
        unknown = (comp | memory) & (cost == UNKNOWN)
        cost[unknown] = 0
        costs.modelled += modelled * int(ranks[number])
        costs.kept += kept * int(ranks[number])
        costs.unknown += int(unknown.sum()) * int(ranks[number])
        costs.by_trace.append(cost)
    return costs


def _count(costs: NodeCosts, choice: Choice, ranks: int) -> None:
    for name, taken in choice.taken().items():
        costs.taken[name] = costs.taken.get(name, Taken()).plus(taken, ranks)
    for unit, flops in choice.flops_of.items():
        costs.unit_flops[unit] += round(flops) * ranks
    costs.repacked += choice.repacked * ranks


def by_kind_of_device(job: Job, system: System) -> Job:
    """The same job, in which ranks on different kinds of devices share no trace; unchanged if there is one kind."""
    if len(system.all_kinds) == 1:
        return job
    kinds = system.kind_of(job.ranks)
    pairs, trace_of = np.unique(np.stack([job.trace_of.astype(np.int64), kinds], 1), axis=0, return_inverse=True)
    traces = tuple(job.traces[number] for number in pairs[:, 0].tolist())
    return job.replace(traces=traces, trace_of=trace_of.reshape(-1).astype(np.int32))


def trace_kinds(job: Job, system: System) -> list[int]:
    """Kind of device of each trace; all ranks of a trace have the same."""
    found = np.zeros(len(job.traces), np.int64)
    found[job.trace_of] = system.kind_of(job.ranks)
    return found.tolist()


def _compute(trace: Trace, comp: Bool, cost: I64, options: Options, times: _Times) -> tuple[int, int]:
    """Sets the cost of compute nodes. Returns how many were modelled although recorded times were requested, and how
    many keep a recorded time although modelled ones were."""
    if options.compute == Compute.SCALED:
        known = comp & (cost != UNKNOWN)
        cost[known] = np.rint(cost[known] * options.scale).astype(np.int64)
    by_record = options.compute in (Compute.RECORDED, Compute.SCALED)
    wanted = np.flatnonzero(comp & (cost == UNKNOWN) if by_record else comp & (trace.cpu != 1))
    if not len(wanted):
        return 0, 0
    found = times.of(trace, wanted)
    said = found != UNKNOWN
    kept = int((cost[wanted][~said] != UNKNOWN).sum())
    cost[wanted[said]] = found[said]
    return (int(said.sum()), 0) if by_record else (0, kept)


class _Times:
    """Modelled times of compute nodes: from the database or table of measured operators if given, else from the
    roofline of the operator class if name and shapes determine it, else from FLOPs and bytes."""

    def __init__(self, device: Device, options: Options) -> None:
        self.device = device.busy()  # one op follows another
        self.table: MeasuredOps | None = None
        self.curves: Curves | None = None
        self._origins = np.zeros(6, np.int64)
        self.menu = Menu.of(options.kernels, options.units)
        if options.compute == Compute.TABLE:
            self.table = read_measured(options.table)[1]
        if options.ops is not None:
            self.curves = options.ops.on(self.device, backend=options.backend)

    def choose(self, trace: Trace, comp: Bool, cost: I64) -> Choice | None:
        """Changes the cost of the device's compute nodes by the difference that the chosen kernels and units make."""
        if not self.menu:
            return None
        rows = np.flatnonzero(comp & (trace.cpu != 1) & (cost != UNKNOWN))
        choice = chosen(self.device, ops_of_rows(trace, rows), self.menu)
        other = choice.factor != 1
        cost[rows[other]] = np.rint(cost[rows[other]] * choice.factor[other]).astype(np.int64)
        return choice

    def of(self, trace: Trace, rows: I64) -> I64:
        ops = ops_of_rows(trace, rows)
        if self.table is not None:
            return compute_time_ns(self.device, ops, mode="table", table=self.table)
        found = compute_time_ns(self.device, ops)
        if self.curves is None:
            return found
        from etude.cost.opdb import TimeOrigin, shapes_of

        time_ns, origin = self.curves.time_ns(shapes_of(trace, rows))
        measured = ~np.isin(origin, (TimeOrigin.NONE, TimeOrigin.ROOFLINE))
        self._origins += np.bincount(
            np.where(found == UNKNOWN, TimeOrigin.NONE, TimeOrigin.ROOFLINE)[~measured], minlength=6
        )
        self._origins += np.bincount(origin[measured], minlength=6)
        return np.where(measured, np.rint(np.where(measured, time_ns, 0.0)).astype(np.int64), found)

    def taken_origins(self) -> I64:
        """Nodes by origin since the last call."""
        found, self._origins = self._origins, np.zeros(6, np.int64)
        return found


def ops_of_rows(trace: Trace, rows: I64) -> OpTable:
    shaped = trace.in_shapes.strides != (0,)
    return ops_of(trace).take(rows) if shaped else OpTable.plain(trace.flops[rows], trace.tensor_bytes[rows])


def _told(origins: I64) -> str:
    """How much of the compute the operator database covers."""
    words = ("without a time", "measured", "between points", "outside them", "near other keys", "by the roofline")
    parts = [f"{count:,} {word}" for count, word in zip(origins[1:].tolist(), words[1:], strict=True) if count]
    return f"of {origins[1:].sum():,} compute nodes {', '.join(parts)}"


def _memory(trace: Trace, memory: Bool, cost: I64, device: Device, options: Options) -> I64:
    """Latency plus bytes over bandwidth of the memory that a node names (`tensor_loc`); without a name, of the remote
    memory if given, else of the device's own."""
    size, recorded = trace.tensor_bytes[memory], cost[memory]
    if not len(size) or (options.compute == Compute.RECORDED and (recorded != UNKNOWN).all()):
        return recorded
    remote, place = options.remote_memory, locations(trace)[memory]
    far = (place == REMOTE) | ((place != LOCAL) & (remote is not None))
    if far.any() and remote is None:
        node = trace.source_id[np.flatnonzero(memory)[np.flatnonzero(far)[0]]]
        hint = "--remote-memory bandwidth=50GB/s"
        raise ClusterError("it uses remote memory, but none is described", where=f"node {node}", hint=hint)
    own = device.memory_bandwidth_bytes_per_s
    if not own and not far.all():
        problem = f"device `{device.name}` does not specify its memory bandwidth, but the job has memory nodes"
        raise ClusterError(problem, hint="`memory_bandwidth` of the device, or a remote memory")
    rate = np.where(far, remote.bytes_per_s if remote else np.inf, own or np.inf)
    takes = np.maximum(size, 0) * (1e9 / rate) + np.where(far, remote.latency_ns if remote else 0, 0)
    modelled: I64 = np.where(size == UNKNOWN, UNKNOWN, np.ceil(takes).astype(np.int64))
    return np.where(recorded == UNKNOWN, modelled, recorded) if options.compute == Compute.RECORDED else modelled


def jitter_classes(trace: Trace) -> NDArray[np.int8]:
    """Index in JITTER of each node's class; -1: no jitter."""
    found = np.full(len(trace), -1, np.int8)
    comp = trace.kind == Kind.COMP
    found[comp & (trace.cpu != 1)], found[comp & (trace.cpu == 1)] = JITTER.index("compute"), JITTER.index("host")
    found[IS_MEMORY[trace.kind]] = JITTER.index("memory")
    return found


def jittered(time_ns: I64, spread: F64, seed: tuple[int, ...], which: I64 | None = None) -> I64:
    """Times with log-normal noise of this spread and mean 1. Each position has its own draw, whatever its spread;
    `which` maps positions to the draws of others."""
    draws = len(time_ns) if which is None else int(which.max(initial=-1)) + 1
    draw = np.random.Generator(np.random.PCG64(seed)).standard_normal(draws)
    return with_noise(time_ns, spread, draw if which is None else draw[which])


def with_noise(time_ns: I64, spread: F64, draw: F64) -> I64:
    """Times with log-normal noise of this spread and mean 1, from standard normal draws."""
    factor = np.exp(draw * spread - spread**2 / 2)
    return np.where(spread > 0, np.rint(time_ns * factor), time_ns).astype(np.int64)


def draw_of(trace: Trace) -> I64 | None:
    """The draw that each node takes, by its id, so that nodes keep theirs when a job is edited; None if ids are too
    sparse for that."""
    ids = trace.source_id
    if not len(ids) or int(ids.max()) - int(ids.min()) > 8 * len(ids) + 1024:
        return None
    return (ids - ids.min()).astype(np.int64)


def action_factors(trace: Trace, spread: float, seed: tuple[int, ...]) -> F64:
    """A factor for each node, log-normal with this spread and mean 1; nodes of one micro-batch and phase share a
    draw."""
    codes, words = trace.coded("phase")
    phase = np.append(np.argsort(np.argsort(words)), -1)[codes] if words else codes
    actions = np.stack([trace.step, trace.micro_batch, phase.astype(np.int64)], 1)
    numbers, which = np.unique(actions, axis=0, return_inverse=True)
    sigma = np.sqrt(np.log1p(spread * spread))
    draw = np.random.Generator(np.random.PCG64(seed)).standard_normal(len(numbers))
    factor: F64 = np.exp(draw * sigma - sigma**2 / 2)[which.reshape(-1)]
    return factor


def step_factors(trace: Trace, spread: float, seed: tuple[int, ...]) -> F64:
    """A factor for each node, log-normal with this spread and mean 1; nodes of one step share a draw, and so do all
    nodes without a step."""
    numbers, which = np.unique(trace.step, return_inverse=True)
    sigma = np.sqrt(np.log1p(spread * spread))  # so that the factors themselves have the requested spread
    draw = np.random.Generator(np.random.PCG64(seed)).standard_normal(len(numbers))
    factor: F64 = np.exp(draw * sigma - sigma**2 / 2)[which.reshape(-1)]
    return factor
