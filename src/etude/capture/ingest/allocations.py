"""The allocator's activity: the profiler's `[memory]` events as a table; and snapshots of it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from etude.capture.ingest.snapshots import is_snapshot as is_snapshot
from etude.capture.ingest.snapshots import read_snapshot as read_snapshot
from etude.capture.link.device import DeviceTrace
from etude.model.schema import UNKNOWN

DEVICE_TYPES = {0: "cpu", 1: "cuda", 20: "privateuse"}
"""Numbers of c10::DeviceType that profilers write."""


def allocations(trace: DeviceTrace) -> pa.Table:
    """One row per allocation or release: time_ns, device (`cuda:0`), address, size_bytes (negative: released), total
    allocated_bytes and reserved_bytes afterwards; by time. No rows unless `profile_memory` was on."""
    rows = np.flatnonzero(trace.name_has("[memory]") & (trace.start_ns != UNKNOWN))
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
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


def _device(kind: int, number: int) -> str:
    name = DEVICE_TYPES.get(kind, f"device{kind}")
    return name if number < 0 else f"{name}:{number}"
