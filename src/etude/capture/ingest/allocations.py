"""The allocator's activity: the profiler's `[memory]` events as a table; and snapshots of it."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from etude.capture.ingest.snapshots import is_snapshot as is_snapshot
from etude.capture.ingest.snapshots import read_snapshot as read_snapshot
from etude.capture.ingest.step_marks import steps_at
from etude.capture.link.device import DeviceTrace
from etude.capture.link.tree import innermost
from etude.kernels.arrays import I64, Bool
from etude.model.schema import UNKNOWN

DEVICE_TYPES = {0: "cpu", 1: "cuda", 20: "privateuse"}
"""Numbers of c10::DeviceType that profilers write."""


OPTIMIZER: Final = ("Optimizer.step", "## optimizer")
BACKWARD: Final = ("autograd::engine::evaluate_function", "## backward")
"""How annotations and operators of these phases begin."""
MODULE: Final = "nn.Module: "


def allocations(trace: DeviceTrace) -> pa.Table:
    """One row per allocation or release: time_ns, device (`cuda:0`), address, size_bytes (negative: released), total
    allocated_bytes and reserved_bytes afterwards; by time. No rows unless `profile_memory` was on."""
    rows = _events(trace)
    kind, number = trace.spread("memory_device_type")[rows], trace.spread("memory_device")[rows]
    columns: dict[str, pa.Array] = {
        "time_ns": pa.array(trace.start_ns[rows] + trace.base_ns),
        "device": pa.array([_device(k, n) for k, n in zip(kind.tolist(), number.tolist(), strict=True)], pa.string()),
    }
    names = {"address": "address", "memory_bytes": "size_bytes"}
    for column in ("address", "memory_bytes", "allocated_bytes", "reserved_bytes"):
        values = trace.spread(column)[rows]
        columns[names.get(column, column)] = pa.array(values, mask=values == UNKNOWN)
    return pa.table(columns)


def owned_allocations(trace: DeviceTrace) -> pa.Table:
    """`allocations`, and in which step (-1: in none), phase (forward, backward, optimizer), operator (the outermost
    on its thread) and module (the innermost, where Python was recorded) each was made."""
    rows, found = _events(trace), allocations(trace)
    begins = trace.is_phase("X") & (trace.start_ns != UNKNOWN) & (trace.tid != UNKNOWN)
    operators = np.flatnonzero(begins & trace.is_category("cpu_op"))
    modules = np.flatnonzero(begins & trace.is_category("python_function") & trace.name_has(MODULE))
    outer = _outermost(trace, rows, operators)
    step = steps_at(trace, trace.start_ns[rows])
    phase = np.zeros(len(rows), np.int64)
    for number, names in ((1, BACKWARD), (2, OPTIMIZER)):
        named = np.array([*(name.startswith(names) for name in trace.names), False])
        phase[named[trace.name[outer]] & (outer >= 0)] = number
        marks = np.flatnonzero(begins & trace.is_category("user_annotation") & named[trace.name])
        phase[_inside(trace, rows, marks)] = number
    of_module = _around(trace, rows, modules)
    words = np.array(["forward", "backward", "optimizer"], object)[phase]
    return (
        found.append_column("step", pa.array(np.where(step == UNKNOWN, -1, step)))
        .append_column("phase", pa.array(words, pa.string()))
        .append_column("operator", pa.array(_names(trace, outer), pa.string()))
        .append_column(
            "module", pa.array([name.removeprefix(MODULE) for name in _names(trace, of_module)], pa.string())
        )
    )


def device_bytes(trace: DeviceTrace) -> dict[str, int]:
    """Device (`cuda:0`) -> bytes of its memory, as the profiler wrote it."""
    told = trace.members.get("deviceProperties")
    rows = [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    found = {f"cuda:{one.get('id')}": one.get("totalGlobalMem") for one in rows}
    return {name: size for name, size in found.items() if isinstance(size, int) and size > 0}


def _events(trace: DeviceTrace) -> I64:
    rows = np.flatnonzero(trace.name_has("[memory]") & (trace.start_ns != UNKNOWN))
    return rows[np.argsort(trace.start_ns[rows], kind="stable")]


def _names(trace: DeviceTrace, rows: I64) -> list[str]:
    return [trace.names[trace.name[row]] if row >= 0 else "" for row in rows.tolist()]


def _around(trace: DeviceTrace, rows: I64, outer: I64) -> I64:
    """The innermost of the rows `outer` around each, on its thread; -1: none."""
    return np.append(outer, -1)[_parents(trace, rows, outer)[len(outer) :]]


def _outermost(trace: DeviceTrace, rows: I64, outer: I64) -> I64:
    parent = np.append(_parents(trace, rows, outer), -1)
    now = parent[len(outer) : -1]
    while (above := parent[now] >= 0).any():
        now = np.where(above & (now >= 0), parent[now], now)
    return np.append(outer, -1)[now]


def _parents(trace: DeviceTrace, rows: I64, outer: I64) -> I64:
    """Position in `outer` of what is around each of `outer`, and then of `rows`."""
    both = np.concatenate([outer, rows])
    end = trace.start_ns[both] + np.append(np.maximum(trace.duration_ns[outer], 0), np.zeros(len(rows), np.int64))
    is_outer = np.arange(len(both)) < len(outer)
    return innermost(trace.tid[both], trace.start_ns[both], end, is_outer, 0)


def _inside(trace: DeviceTrace, rows: I64, marks: I64) -> Bool:
    """Rows within one of these intervals, of whatever thread."""
    marks = marks[np.argsort(trace.start_ns[marks], kind="stable")]
    if not len(marks):
        return np.zeros(len(rows), bool)
    until = np.maximum.accumulate(trace.start_ns[marks] + np.maximum(trace.duration_ns[marks], 0))
    at = np.searchsorted(trace.start_ns[marks], trace.start_ns[rows], "right") - 1
    found: Bool = (at >= 0) & (trace.start_ns[rows] < until[at])
    return found


def _device(kind: int, number: int) -> str:
    name = DEVICE_TYPES.get(kind, f"device{kind}")
    return name if number < 0 else f"{name}:{number}"
