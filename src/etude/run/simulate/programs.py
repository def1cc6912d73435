"""What the ranks run, as the engine sees it: dependencies, the lane of each node, the order in which lanes take
nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from etude.base.errors import TraceError
from etude.base.shapes import names_in
from etude.cost.traces import ops_of
from etude.kernels.arrays import I32, I64, U8, Bool
from etude.model.fingerprint import Fingerprint
from etude.model.frames import frames
from etude.model.graph import dependencies, successors
from etude.model.job import Job
from etude.model.memory import locations, tensors_of
from etude.model.schema import AGREE, UNKNOWN, Kind, LaneKind, ValueKind
from etude.model.trace import Trace
from etude.model.use import uses
from etude.run.simulate.networks.state import Table
from etude.run.simulate.options import Options, Overlap, Policy
from etude.run.simulate.state import ROW, Programs

IS_COMM, IS_MEMORY = np.zeros(256, bool), np.zeros(256, bool)
"""By kind of node."""
IS_COMM[[Kind.SEND, Kind.RECV, Kind.COLL]] = IS_MEMORY[[Kind.MEM_LOAD, Kind.MEM_STORE]] = True


def _uses(trace: Trace, options: Options) -> U8:
    """Use of the device by each node, if compute and communication slow each other down; otherwise not needed."""
    asked = options.overlap != Overlap() or options.share or options.contention
    return uses(trace) if asked else np.zeros(len(trace), np.uint8)


def lanes_held(trace: Trace, options: Options) -> I32:
    """Lane of each node, -1: none (frames, metadata and, if requested, communication without a stream)."""
    lane = np.where(frames(trace) | (trace.kind == Kind.METADATA), np.int32(-1), trace.lane)
    if options.concurrent_network:
        network = np.append(trace.lane_kind == LaneKind.NETWORK, False)
        lane[network[lane]] = -1
    if len(lane) and not -1 <= int(lane.min()) <= int(lane.max()) < len(trace.lane_kind):
        raise TraceError(f"a node's lane is outside the trace's {len(trace.lane_kind)}")
    return lane.astype(np.int32)


def lane_order(trace: Trace, lane: I32, recorded: I64 | None) -> I32:
    """Rows by lane, then by (priority, row) or by (recorded start, row); those without a lane come first."""
    row = np.arange(len(trace))
    if recorded is not None:
        key = np.where(recorded == UNKNOWN, np.iinfo(np.int64).max, recorded)
    elif trace.priority.strides == (0,):
        return np.argsort(lane, kind="stable").astype(np.int32)
    else:
        key = np.where(trace.priority == UNKNOWN, 0, trace.priority)
    return np.lexsort((row, key, lane)).astype(np.int32)


def merged(job: Job, costs: list[I64], options: Options) -> tuple[Job, list[I64]]:
    """The same job, in which ranks whose programs a simulation cannot distinguish share a trace."""
    seen: dict[bytes, int] = {}
    kept: list[int] = []
    bases = np.zeros(len(job.traces), np.int64)
    of = np.zeros(len(job.traces), np.int32)
    for t, trace in enumerate(job.traces):
        tagged = trace.tag >= 0
        bases[t] = int(trace.tag[tagged].min()) if tagged.any() else 0
        key = _fingerprint(trace, costs[t], int(bases[t]), options)
        of[t] = seen.setdefault(key, len(kept))
        if of[t] == len(kept):
            kept.append(t)
    traces = [_less_tag(job.traces[t], int(bases[t])) for t in kept]
    tag_base = job.tag_base + bases[job.trace_of]
    changed = job.replace(traces=tuple(traces), trace_of=of[job.trace_of], tag_base=tag_base)
    return changed, [costs[t] for t in kept]


def _less_tag(trace: Trace, base: int) -> Trace:
    return trace.replace(tag=np.where(trace.tag >= 0, trace.tag - base, trace.tag)) if base else trace


def agrees(trace: Trace) -> bool:
    """Whether a node names the rank whose order this rank follows."""
    return any(attr.name == AGREE and attr.kind == ValueKind.INT64 for layout in trace.layouts for attr in layout)


_LOOKED_AT: Final = names_in("""
    kind collective group src dst in_bytes out_bytes tensor_bytes priority data_start data ctrl_start ctrl
""")


def _fingerprint(trace: Trace, cost: I64, tag_base: int, options: Options) -> bytes:
    """Hash of everything that a simulation uses; without ids, names and shapes."""
    found = Fingerprint(len(trace), len(trace.group_slots), trace.peer_slots)
    found.add(cost, lanes_held(trace, options), _uses(trace, options))
    found.add(*(getattr(trace, name) for name in _LOOKED_AT), _less_tag(trace, tag_base).tag)
    named = tensors_of(trace)
    found.add(named.start, named.row, named.out, named.size_bytes, locations(trace))
    if options.contention:
        ops = ops_of(trace)
        found.add(*(getattr(ops, f.name) for f in fields(ops)))
    if agrees(trace):
        found.add(*trace.attr_cells()[AGREE, ValueKind.INT64])
    return found.digest()


@dataclass(frozen=True, slots=True, eq=False)
class BuiltPrograms:
    """Program t has the rows start[t]:start[t+1] of the tables and the lanes lane_start[t]:lane_start[t+1]."""

    of: I32
    """Program of the i-th rank present."""
    start: I64
    lane_start: I64
    tables: Programs
    """Tables for the kernels; `lane_first` has one extra entry for the end of each program's last lane."""
    waits: I32
    cost_ns: I64
    """For sends, receives and collectives the recorded time, or UNKNOWN."""
    from_output: Bool
    """Only output bytes were recorded."""
    missing: int
    """Dependencies on nodes that are not in the file, over all programs."""


def build_programs(job: Job, costs: list[I64], options: Options) -> BuiltPrograms:
    of, trace_of, recorded = _orders(job, options)
    start = np.zeros(len(trace_of) + 1, np.int64)
    np.cumsum([len(job.traces[t]) for t in trace_of], out=start[1:])
    total = int(start[-1])
    rows, waits, lane_rows = np.zeros(total, ROW), np.zeros(total, np.int32), np.zeros(total, np.int32)
    cost_ns, from_output = np.zeros(total, np.int64), np.zeros(total, bool)
    succ: list[I32] = [np.zeros(0, np.int32)]
    lane_first: list[I64] = [np.zeros(0, np.int64)]
    edges = missing = 0
    for number, t in enumerate(trace_of):
        trace, here = job.traces[t], slice(int(start[number]), int(start[number + 1]))
        waits[here], lost = _waits(trace)
        missing += lost
        after = successors(trace)
        rows["succ_start"][here] = after.start[:-1] + edges
        rows["succ_count"][here] = np.diff(after.start)
        succ.append(after.rows)
        edges += len(after.rows)
        lane_rows[here], first = _lanes(rows[here], trace, recorded[number], options)
        lane_first.append(first)
        rows["use"][here], cost_ns[here] = _uses(trace, options), costs[t]
        from_output[here] = (trace.in_bytes == UNKNOWN) & (trace.out_bytes != UNKNOWN)
    lane_start = np.cumsum([len(first) for first in lane_first])
    tables = Programs(rows, np.concatenate(succ), np.concatenate(lane_first), lane_rows)
    return BuiltPrograms(of, start, lane_start, tables, waits, cost_ns, from_output, missing)


def _waits(trace: Trace) -> tuple[I32, int]:
    """How many nodes each waits for, and how many dependencies are on nodes that are not in the file."""
    dep = dependencies(trace)
    waits = np.diff(dep.start).astype(np.int32)
    lost = np.flatnonzero(dep.rows < 0)
    if len(lost):
        owner = np.searchsorted(dep.start, lost, "right") - 1
        waits -= np.bincount(owner, minlength=len(trace)).astype(np.int32)
    return waits, len(lost)


def _lanes(rows: Table, trace: Trace, recorded: I64 | None, options: Options) -> tuple[I32, I64]:
    """Sets lane and position of the rows of a program. Returns its rows by lane, and where each lane begins."""
    lane = lanes_held(trace, options)
    order = lane_order(trace, lane, recorded)
    first = np.searchsorted(lane[order], np.arange(len(trace.lane_kind) + 1)).astype(np.int64)
    held = order[first[0] :]
    rows["lane"] = lane
    rows["position"][held] = np.arange(first[0], len(order)) - first[lane[held]]
    return order, first


ORDERS: Final[dict[Policy, Callable[[Trace], I64]]] = {}
"""Policies by a key for each node: a free lane takes the ready node with the smallest."""


def _orders(job: Job, options: Options) -> tuple[I32, list[int], list[I64 | None]]:
    """(program of each rank, trace of each program, recorded starts of each program if they determine the order, or the
    keys used instead)."""
    if options.policy in ORDERS:
        made: list[I64 | None] = [ORDERS[options.policy](trace) for trace in job.traces]
        return job.trace_of, list(range(len(job.traces))), made
    if options.policy not in (Policy.RECORDED, Policy.HINT):
        return job.trace_of, list(range(len(job.traces))), [None] * len(job.traces)
    if job.timing is None:
        rows = [np.arange(len(t), dtype=np.int64) for t in job.traces]
        return job.trace_of, list(range(len(job.traces))), list(rows)
    pairs = np.stack([job.trace_of, job.timing.block_of], 1)
    unique, inverse = np.unique(pairs, axis=0, return_inverse=True)
    recorded: list[I64 | None] = []
    for t, block in unique.tolist():
        starts = job.timing.start_ns[block]
        if len(starts) != len(job.traces[t]):
            raise TraceError(f"recorded times of {len(starts)} nodes for a trace of {len(job.traces[t])}")
        recorded.append(starts)
    return inverse.reshape(-1).astype(np.int32), unique[:, 0].tolist(), recorded
