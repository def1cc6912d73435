"""Time of each node by itself: compute and memory from the options and the system, communication as recorded."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from etude.errors import ClusterError, TraceError
from etude.model.frames import frames
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.model.system import System
from etude.model.trace import Trace
from etude.simulate.options import JITTER, Compute, Options
from etude.simulate.programs import IS_COMM, IS_MEMORY

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

LONGEST_NS = 1 << 55
"""A bit more than a year; sums of times must fit."""


@dataclass(slots=True)
class NodeCosts:
    """Cost of every node of every trace, and what had to be assumed, counted over the ranks."""

    by_trace: list[I64] = field(default_factory=list)
    modelled: int = 0
    unknown: int = 0

    def notes(self) -> list[str]:
        said = []
        if self.modelled:
            said.append(f"{self.modelled:,} compute nodes have no recorded time and take that of the roofline")
        if self.unknown:
            said.append(f"{self.unknown:,} nodes have neither a time nor operations or bytes and take 0 ns")
        return said


def node_costs(job: Job, system: System, options: Options) -> NodeCosts:
    costs = NodeCosts()
    ranks = np.bincount(job.trace_of, minlength=len(job.traces))
    for number, trace in enumerate(job.traces):
        known = trace.duration_ns != UNKNOWN
        wrong = np.flatnonzero(known & ((trace.duration_ns < 0) | (trace.duration_ns > LONGEST_NS)))
        if len(wrong):
            where = f"node {trace.source_id[wrong[0]]}"
            raise TraceError(f"a duration of {trace.duration_ns[wrong[0]]:,} ns cannot be", where=where)
        cost = trace.duration_ns.copy()
        comp, memory = trace.kind == Kind.COMP, IS_MEMORY[trace.kind]
        fixed = ~comp & ~memory & ~IS_COMM[trace.kind]
        fixed |= frames(trace)
        cost[fixed] = 0
        comp &= ~fixed
        modelled = _compute(trace, comp, cost, system, options)
        cost[memory] = _memory(trace, memory, cost, system, options)
        unknown = (comp | memory) & (cost == UNKNOWN)
        cost[unknown] = 0
        costs.modelled += modelled * int(ranks[number])
        costs.unknown += int(unknown.sum()) * int(ranks[number])
        costs.by_trace.append(cost)
    return costs


def _compute(trace: Trace, comp: Bool, cost: I64, system: System, options: Options) -> int:
    """Sets the cost of compute nodes; returns how many were modelled although recorded times were asked for."""
    if options.compute == Compute.SCALED:
        known = comp & (cost != UNKNOWN)
        cost[known] = np.rint(cost[known] * options.scale).astype(np.int64)
    by_record = options.compute in (Compute.RECORDED, Compute.SCALED)
    wanted = np.flatnonzero(comp & (cost == UNKNOWN) if by_record else comp & (trace.cpu != 1))
    if not len(wanted):
        return 0
    said = (trace.flops[wanted] != UNKNOWN) | (trace.tensor_bytes[wanted] != UNKNOWN)
    found = _modelled(trace, wanted[said], system, options)
    if not by_record:
        cost[wanted] = np.where(said, 0, cost[wanted])
    cost[wanted[said]] = found
    return int((found != UNKNOWN).sum()) if by_record else 0


def _modelled(trace: Trace, rows: I64, system: System, options: Options) -> I64:
    from etude.cost.calibrate import read_measured
    from etude.cost.compute import compute_time_ns
    from etude.cost.traces import ops_of

    if not len(rows):
        return np.zeros(0, np.int64)
    ops = ops_of(trace).take(rows)
    if options.compute == Compute.TABLE:
        return compute_time_ns(system.device, ops, mode="table", table=read_measured(options.table)[1])
    return compute_time_ns(system.device, ops)


def _memory(trace: Trace, memory: Bool, cost: I64, system: System, options: Options) -> I64:
    """Latency and bytes over bandwidth: of the remote memory if one is given, else of the device's own."""
    size, recorded = trace.tensor_bytes[memory], cost[memory]
    if not len(size) or (options.compute == Compute.RECORDED and (recorded != UNKNOWN).all()):
        return recorded
    remote = options.remote_memory
    rate = remote.bytes_per_s if remote else system.device.memory_bandwidth_bytes_per_s
    if not rate:
        raise ClusterError(
            f"system `{system.name}` says nothing of its memory's bandwidth, and the job has memory nodes",
            hint="`memory_bandwidth` of the device, or a remote memory",
        )
    modelled = np.ceil(np.maximum(size, 0) * (1e9 / rate) + (remote.latency_ns if remote else 0)).astype(np.int64)
    modelled = np.where(size == UNKNOWN, UNKNOWN, modelled)
    return np.where(recorded == UNKNOWN, modelled, recorded) if options.compute == Compute.RECORDED else modelled


def jitter_classes(trace: Trace) -> NDArray[np.int8]:
    """Position in JITTER of each node's class; -1 where nothing jitters."""
    found = np.full(len(trace), -1, np.int8)
    comp = trace.kind == Kind.COMP
    found[comp & (trace.cpu != 1)], found[comp & (trace.cpu == 1)] = JITTER.index("compute"), JITTER.index("host")
    found[IS_MEMORY[trace.kind]] = JITTER.index("memory")
    return found


def jittered(time_ns: I64, spread: F64, seed: tuple[int, ...]) -> I64:
    """Times with log-normal noise of this spread and mean 1. Each position has its own draw, whatever its spread."""
    draw = np.random.Generator(np.random.PCG64(seed)).standard_normal(len(time_ns))
    factor = np.exp(draw * spread - spread**2 / 2)
    return np.where(spread > 0, np.rint(time_ns * factor), time_ns).astype(np.int64)
