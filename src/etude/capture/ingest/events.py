"""The events of a device trace that become nodes: host threads and device activities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from etude.base.shapes import names_in
from etude.capture.link.device import DeviceTrace
from etude.capture.link.tree_kernels import inherit
from etude.kernels.arrays import I64, Bool, sort_order
from etude.kernels.intervals import nest
from etude.model.schema import UNKNOWN

OPERATORS: Final = ("cpu_op", "user_annotation")
DEVICE: Final = names_in("""
    kernel gpu_memcpy gpu_memset mtia_ccp_events concurrent_kernel Kernel Memcpy Memset
""")
ROUNDING_NS: Final = 1_000
"""Times in old files are doubles of µs since 1970, in steps of a quarter µs; errors of two add up."""


@dataclass(frozen=True, slots=True, eq=False)
class HostEvents:
    """Operators, annotations and runtime calls, by thread, start and end (longest first)."""

    row: I64
    """Row of the device trace."""
    thread: I64
    """Position in `tid`."""
    tid: I64
    first: I64
    """Events first[t]:first[t+1] belong to thread t."""
    start_ns: I64
    end_ns: I64
    parent: I64
    """The innermost event that contains all of it; -1: none."""
    apart: Bool
    """Ends after the event it began in: neither is the other's child. Its time is waiting, or another thread's."""
    is_call: Bool
    """A call of the device's runtime or driver."""
    operator: I64
    """Itself or the nearest operator around it; -1: none."""

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceEvents:
    """Kernels, copies and memory sets, by stream and start."""

    row: I64
    stream: I64
    """Position in `stream_id`."""
    stream_id: I64
    first: I64
    start_ns: I64
    end_ns: I64
    call: I64
    """The host event that launched it; -1: not in the trace."""
    operator: I64
    """The host event of the operator that launched it; -1: none."""

    def __len__(self) -> int:
        return len(self.row)


def is_call_category(category: str) -> bool:
    return category.endswith(("_runtime", "_driver")) or category == "Runtime"


def host_events(device: DeviceTrace) -> HostEvents:
    calls = np.array([is_call_category(c) for c in device.categories] + [False])[device.category]
    wanted = (device.is_category(*OPERATORS) | calls) & device.is_phase("X")
    wanted &= (device.start_ns != UNKNOWN) & (device.tid != UNKNOWN)
    row = np.flatnonzero(wanted)
    start = device.start_ns[row]
    end = start + np.maximum(device.duration_ns[row], 0)
    tid, thread = np.unique(device.tid[row], return_inverse=True)
    order = sort_order(thread, start, -end, calls[row])
    row, thread, start, end = row[order], thread[order], start[order], end[order]
    first = np.searchsorted(thread, np.arange(len(tid) + 1))
    parent, apart = np.empty(len(row), np.int64), np.empty(len(row), np.bool_)
    nest(first, start, end, np.ones(len(row), np.bool_), ROUNDING_NS, parent, apart)
    is_call = calls[row]
    operator = np.where(is_call | apart, -1, np.arange(len(row)))
    inherit(np.arange(len(row)), parent, operator)
    return HostEvents(row, thread, tid, first, start, end, parent, apart, is_call, operator)


def device_events(device: DeviceTrace, host: HostEvents) -> DeviceEvents:
    wanted = device.is_category(*DEVICE) & device.is_phase("X") & (device.start_ns != UNKNOWN)
    row = np.flatnonzero(wanted)
    start = device.start_ns[row]
    key = _stream_keys(device, row)
    order = sort_order(key, start, np.maximum(device.duration_ns[row], 0))
    row, key, start = row[order], key[order], start[order]
    stream_id, stream = np.unique(key, return_inverse=True)
    first = np.searchsorted(stream, np.arange(len(stream_id) + 1))
    end = start + np.maximum(device.duration_ns[row], 0)
    call = _launching_calls(device, host, row)
    by_call = np.where(call >= 0, np.append(host.operator, -1)[call], -1)
    operator = np.where(by_call >= 0, by_call, _by_external_id(device, host, row))
    return DeviceEvents(row, stream, stream_id, first, start, end, call, operator)


def _stream_keys(device: DeviceTrace, row: I64) -> I64:
    """One number per stream: the file's own if it has one device; streams of a second device, and named streams,
    continue the numbering."""
    stream = device.stream[row].copy()
    stream[stream < 0] = device.tid[row][stream < 0]  # the track of the event
    named = stream < 0  # by a text, or not at all
    stream[named] = stream.max(initial=0) + 1 + np.unique(stream[named], return_inverse=True)[1].reshape(-1)
    number = np.unique(device.device[row], return_inverse=True)[1].reshape(-1)
    room = int(stream.max(initial=0)) + 1
    return stream + number * room


def _launching_calls(device: DeviceTrace, host: HostEvents, row: I64) -> I64:
    """By correlation; the earliest of several calls with the same."""
    calls = np.flatnonzero(host.is_call & (device.correlation[host.row] != UNKNOWN))
    calls = calls[sort_order(device.correlation[host.row[calls]], host.start_ns[calls])]
    known = device.correlation[host.row[calls]]
    wanted = device.correlation[row]
    at = np.searchsorted(known, wanted)
    found = np.append(calls, -1)[at]
    return np.where((found >= 0) & (np.append(known, UNKNOWN)[at] == wanted) & (wanted > 0), found, -1)


def _by_external_id(device: DeviceTrace, host: HostEvents, row: I64) -> I64:
    """The operator with the external id that the profiler gave to the activity."""
    operators = np.flatnonzero(~host.is_call & (device.external_id[host.row] > 0))
    operators = operators[sort_order(device.external_id[host.row[operators]], host.start_ns[operators])]
    known = device.external_id[host.row[operators]]
    wanted = device.external_id[row]
    at = np.searchsorted(known, wanted)
    found = np.append(operators, -1)[at]
    return np.where((found >= 0) & (np.append(known, UNKNOWN)[at] == wanted), found, -1)
