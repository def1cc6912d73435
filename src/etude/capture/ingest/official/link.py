"""How Chakra's official linker connects a host trace to a device trace, rule by rule, on columns.

Its rules are kept even where they are wrong: dependencies from device activities are missing, as in the original.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.capture.ingest.official import kernels as k
from etude.capture.link.device import DeviceTrace
from etude.capture.link.host import HostTrace
from etude.capture.link.pair import check_pair
from etude.kernels.arrays import F64, I64
from etude.model.schema import UNKNOWN

LAUNCHES: Final = frozenset(
    {
        *("cuLaunchKernel", "cuLaunchKernelEx", "cudaLaunchKernel", "cudaLaunchKernelExC"),
        *("cudaLaunchCooperativeKernel", "cudaMemcpy", "cudaMemcpyAsync"),
        *("cudaMemcpyFromSymbol", "cudaMemcpyToSymbol"),
        *("hipLaunchKernel", "hipExtLaunchKernel", "hipExtModuleLaunchKernel", "hipModuleLaunchKernel"),
        *("hipMemcpyWithStream", "hipMemcpyAsync"),
    }
)
"""Runtime calls that the official linker treats as launches; it drops the work of others."""
HANDOVER_GAP_US: Final = 1000.0


@dataclass(frozen=True, slots=True, eq=False)
class OfficialLinked:
    """What linking adds to the host's rows, in order of their ids."""

    exclusive_us: F64
    """0: no event was found."""
    inclusive_us: F64
    start_us: F64
    timed: NDArray[np.bool_]
    handover: I64
    """Row that the operator's thread took over from; -1: none."""
    gpu_start: I64
    gpu: I64
    """Row i launched the device events gpu[gpu_start[i]:gpu_start[i+1]], by start."""
    unmatched: dict[str, int]
    """Why device activities were left out, and how many."""


def microseconds(ns: I64) -> F64:
    """The float that the decimal text in the file represents."""
    whole = ns.astype(np.float64) / 1000.0
    large = np.abs(ns) >= 1 << 53
    return np.where(large, (ns // 1000).astype(np.float64) + (ns % 1000) / 1000.0, whole)


def link(host: HostTrace, order: I64, device: DeviceTrace) -> OfficialLinked:
    """`order`: the host's rows by id."""
    cpu = np.flatnonzero(device.is_category("cpu_op", "user_annotation") & ~device.name_has("ProfilerStep"))
    ts, dur = microseconds(device.start_ns[cpu]), microseconds(np.maximum(device.duration_ns[cpu], 0))
    by_start = np.argsort(ts, kind="stable")
    cpu, ts, dur = cpu[by_start], ts[by_start], dur[by_start]
    exclusive_us, handover_rf = _threads(device, cpu, ts, dur)
    event = _host_events(host, order, device, cpu)
    timed = event >= 0
    check_pair(host, order[timed], device, cpu[event[timed]])
    gpu, parent, unmatched = _device_parents(device, cpu, ts)
    gpu_start, gpu = _by_operator(device.external_id[cpu[parent]], gpu, device.external_id[cpu[event]], timed)
    return OfficialLinked(
        exclusive_us=np.where(timed, exclusive_us[event], 0.0),
        inclusive_us=np.where(timed, dur[event], 0.0),
        start_us=np.where(timed, ts[event], 0.0),
        timed=timed,
        handover=_handover_rows(host.rf_id[order], np.where(timed, handover_rf[event], 0)),
        gpu_start=gpu_start,
        gpu=gpu,
        unmatched=unmatched,
    )


def _threads(device: DeviceTrace, cpu: I64, ts: F64, dur: F64) -> tuple[F64, I64]:
    """Own time, and record-function id handed over from, of each CPU operator."""
    tids, first = np.unique(device.tid[cpu], return_index=True)
    rank = np.empty(len(tids), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(tids))  # threads in order of their first operator
    thread = rank[np.searchsorted(tids, device.tid[cpu])]
    start = np.concatenate([[0], np.cumsum(np.bincount(thread, minlength=len(tids)))]).astype(np.int64)

    order = np.lexsort((dur, ts, thread))
    own, exclusive_us = np.zeros(len(cpu)), np.zeros(len(cpu))
    bad = k.exclusive_durations(ts[order], dur[order], start, own)
    if bad >= 0:
        name = device.names[device.name[cpu[order[bad]]]]
        raise TraceError(f"`{name}`: its children take longer than itself", where=device.json.path)
    exclusive_us[order] = own

    order = np.lexsort((ts, thread))
    taken, handover = np.zeros(len(cpu), np.int64), np.zeros(len(cpu), np.int64)
    k.handovers(ts[order], dur[order], device.rf_id[cpu][order], start, HANDOVER_GAP_US, taken)
    handover[order] = taken
    return exclusive_us, handover


def _host_events(host: HostTrace, order: I64, device: DeviceTrace, cpu: I64) -> I64:
    """Position among the CPU operators of each host row's event, -1 where there is none."""
    rf_id = host.rf_id[order]
    recorded = device.rf_id[cpu]
    by_rf = np.argsort(recorded, kind="stable")
    at = np.searchsorted(recorded[by_rf], rf_id, side="right") - 1  # the last of several
    event = by_rf[at] if len(by_rf) else np.full(len(rf_id), -1, np.int64)
    found = (at >= 0) & (recorded[event] == rf_id if len(by_rf) else False) & (rf_id != UNKNOWN)
    found &= ~(host.is_process_root | host.is_thread_root)[order]
    root = np.flatnonzero(host.id[order] == 1)
    if not root.size:
        raise TraceError("no node has the id 1, which is the process in a host trace", where=host.json.path)
    found &= k.reachable(caller_rows(host, order), int(root[0]))
    return np.where(found, event, -1)


def caller_rows(host: HostTrace, order: I64) -> I64:
    """For each host row, by id, the row of its caller; -1 if it has none or is its own."""
    ids, caller = host.id[order], host.caller[order]
    at = np.minimum(np.searchsorted(ids, caller), max(len(ids) - 1, 0))
    return np.where((ids[at] == caller) & (caller != ids), at, -1) if len(ids) else at


def _device_parents(device: DeviceTrace, cpu: I64, cpu_ts: F64) -> tuple[I64, I64, dict[str, int]]:
    """(device events by start, position of the operator that launched each, why others were left out)."""
    gpu = np.flatnonzero(device.is_category("kernel", "gpu_memcpy"))
    gpu = gpu[np.argsort(device.start_ns[gpu], kind="stable")]
    is_launch = np.array([name in LAUNCHES for name in device.names] + [False])[device.name]
    launch = np.flatnonzero(device.is_category("cuda_runtime", "cuda_driver") & is_launch)
    launch = launch[np.argsort(device.correlation[launch], kind="stable")]
    correlation = device.correlation[launch]
    if (twice := np.flatnonzero(correlation[1:] == correlation[:-1])).size:
        raise TraceError(f"correlation {correlation[twice[0]]} appears twice among launches", where=device.json.path)
    at = np.searchsorted(correlation, device.correlation[gpu])
    has_launch = np.append(correlation, UNKNOWN)[at] == device.correlation[gpu]
    launched, launch = gpu[has_launch], launch[at[has_launch]]

    before = np.searchsorted(cpu_ts, microseconds(device.start_ns[launch]), side="left")
    thread, external = device.tid[cpu], device.external_id[cpu]
    ops = np.lexsort((external, thread))
    parent = np.empty(len(launched), np.int64)
    is_nccl = device.name_has("nccl")[launched]
    launches = k.Launches(before, device.tid[launch], device.external_id[launched], is_nccl)
    skipped = device.name_has("nccl:coalesced")[cpu]
    by_thread = np.argsort(thread, kind="stable")
    k.launching_operator(launches, k.Operators(ops, thread[ops], external[ops], by_thread, skipped), parent)
    unmatched = {
        "its launch is not in the trace": len(gpu) - len(launched),
        "no operator started before its launch": int((parent < 0).sum()),
        "memset": int(device.is_category("gpu_memset").sum()),
    }
    return launched[parent >= 0], parent[parent >= 0], unmatched


def _by_operator(parent_external: I64, gpu: I64, event_external: I64, timed: NDArray[np.bool_]) -> tuple[I64, I64]:
    """CSR of device events per host row: those whose launching operator has the row's external id."""
    order = np.argsort(parent_external, kind="stable")
    keys = parent_external[order]
    low = np.searchsorted(keys, event_external)
    count = np.where(timed, np.searchsorted(keys, event_external, side="right") - low, 0)
    start = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    within = np.arange(start[-1]) - np.repeat(start[:-1], count)
    return start, gpu[order[np.repeat(low, count) + within]]


def _handover_rows(rf_id: I64, handover_rf: I64) -> I64:
    """Record-function ids as rows; only for operators before the row itself."""
    by_rf = np.argsort(rf_id, kind="stable")
    at = np.searchsorted(rf_id[by_rf], handover_rf, side="right") - 1
    row = by_rf[at]
    kept = (handover_rf != 0) & (at >= 0) & (rf_id[row] == handover_rf) & (row < np.arange(len(row)))
    return np.where(kept, row, -1)
