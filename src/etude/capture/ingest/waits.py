"""Where host threads wait, and for what: synchronisation, blocking copies, the backward pass on another thread.

A wait is not work. It becomes a pause of its thread, which no node covers, and an edge from what ended it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.shapes import names_in
from etude.capture.ingest.events import DeviceEvents, HostEvents
from etude.capture.ingest.launch_queue import full_queues
from etude.capture.ingest.streams import NOISE_NS, Marks, Queues, sync_rows
from etude.capture.link.device import DeviceTrace
from etude.kernels.arrays import I64, Bool, distinct_values
from etude.model.schema import UNKNOWN, Why

_DEVICE_SYNC: Final = ("DeviceSynchronize", "CtxSynchronize")
_STREAM_SYNC: Final = ("StreamSynchronize", "synchronizeStream")
_COPIES: Final = names_in("""
    cudaMemcpy cudaMemcpy2D hipMemcpy hipMemcpyWithStream cuMemcpyDtoH_v2 cuMemcpyHtoD_v2
""")
"""Copies that return when the data has arrived."""
_FREES: Final = ("cudaFree", "hipFree")
"""Calls that wait for all work of the device before they free memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Pauses:
    """Times in which a thread is idle. One of length 0 only ends a piece of work."""

    thread: I64
    from_ns: I64
    to_ns: I64


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWaits:
    """Host call c continues at `to_ns[c]` because the activity has ended by then."""

    call: I64
    activity: I64
    to_ns: I64


def device_waits(trace: DeviceTrace, host: HostEvents, queues: Queues, found: Marks) -> DeviceWaits:
    """Which activities each blocking call waits for."""
    is_device, is_stream = _named(trace, host, _DEVICE_SYNC), _named(trace, host, _STREAM_SYNC)
    frees = np.array([name in _FREES for name in trace.names] + [False])[trace.name[host.row]] & host.is_call
    parts = [
        _all_streams(host, queues, np.flatnonzero((is_device | frees) & host.is_call)),
        _one_stream(trace, host, queues, np.flatnonzero(is_stream & host.is_call)),
        _copies(trace, host, queues.device),
        (found.call[found.call >= 0], found.source[found.call >= 0]),
        full_queues(trace, host, queues),
    ]
    call, activity = (np.concatenate(column) for column in zip(*parts, strict=True))
    end = queues.device.end_ns[activity]
    kept = end <= host.end_ns[call] + NOISE_NS  # what ended later was not waited for
    call, activity, end = call[kept], activity[kept], np.minimum(end[kept], host.end_ns[call[kept]])
    latest = np.full(len(host), UNKNOWN, np.int64)
    np.maximum.at(latest, call, np.maximum(end, host.start_ns[call]))
    return DeviceWaits(call, activity, latest[call])


def _named(trace: DeviceTrace, host: HostEvents, parts: tuple[str, ...]) -> Bool:
    known = np.array([any(part in name for part in parts) for name in trace.names] + [False])
    return known[trace.name[host.row]]


def _all_streams(host: HostEvents, queues: Queues, calls: I64) -> tuple[I64, I64]:
    streams = np.arange(len(queues.device.stream_id))
    call = np.repeat(calls, len(streams))
    activity = queues.last_before(np.tile(streams, len(calls)), host.start_ns[call])
    return call[activity >= 0], activity[activity >= 0]


def _one_stream(trace: DeviceTrace, host: HostEvents, queues: Queues, calls: I64) -> tuple[I64, I64]:
    """The stream that the profiler names; else that of the last activity that the thread launched."""
    device = queues.device
    stream = _last_stream(host, device, calls)
    at, rows = sync_rows(trace, host, calls)
    position = np.searchsorted(device.stream_id, trace.stream[rows])
    known = np.append(device.stream_id, UNKNOWN)[position] == trace.stream[rows]
    stream[at] = np.where(known, position, -1)
    activity = queues.last_before(stream, host.start_ns[calls])
    return calls[activity >= 0], activity[activity >= 0]


def _last_stream(host: HostEvents, device: DeviceEvents, calls: I64) -> I64:
    known = np.flatnonzero(device.call >= 0)
    launch, first = np.unique(device.call[known], return_index=True)
    at = np.searchsorted(launch, calls) - 1
    if not len(launch):
        return np.full(len(calls), -1, np.int64)
    same = (at >= 0) & (host.thread[launch[at]] == host.thread[calls])
    return np.where(same, device.stream[known[first[at]]], -1)


def _copies(trace: DeviceTrace, host: HostEvents, device: DeviceEvents) -> tuple[I64, I64]:
    """Copies from the device into pageable memory, and those that always block."""
    name = trace.name[device.row]
    to_pageable = np.array(["DtoH" in n and "Pageable" in n for n in trace.names] + [False])[name]
    always = np.array([n in _COPIES for n in trace.names] + [False])
    blocking = (device.call >= 0) & (to_pageable | always[np.append(trace.name[host.row], -1)[device.call]])
    rows = np.flatnonzero(blocking)
    return device.call[rows], rows


def pauses_of_calls(host: HostEvents, device: DeviceEvents, waits: DeviceWaits) -> Pauses:
    """From the start of each blocking call to the end of what it waits for; and where a kernel starts before its
    launch has returned, an end of no length: the launch's work up to there is what the kernel waits for."""
    call, first = np.unique(waits.call, return_index=True)
    launched = device.call >= 0
    earliest = np.full(len(host), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(earliest, device.call[launched], device.start_ns[launched])
    early = np.flatnonzero(earliest < host.end_ns)
    cut = np.maximum(earliest[early], host.start_ns[early])
    begin = host.start_ns[call]
    copies = earliest[call] < host.end_ns[call]  # a blocking copy launches, then waits
    begin = np.where(copies, np.maximum(earliest[call], begin), begin)
    return Pauses(
        np.concatenate([host.thread[call], host.thread[early]]),
        np.concatenate([begin, cut]),
        np.concatenate([np.maximum(waits.to_ns[first], begin), cut]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Handovers:
    """`to_thread` continues at `to_ns` with what `from_thread` had done by `from_ns`."""

    from_thread: I64
    from_ns: I64
    to_thread: I64
    to_ns: I64
    why: NDArray[np.uint8]
    from_event: I64
    """The host event that ends then, if it is not one of the thread's pieces; else -1."""
    pauses: Pauses

    @classmethod
    def of(cls, rows: list[tuple[int, int, int, int, int, int]], pauses: list[tuple[int, int, int]]) -> Handovers:
        table, idle = np.array(rows, np.int64).reshape(-1, 6).T, np.array(pauses, np.int64).reshape(-1, 3).T
        return cls(table[0], table[1], table[2], table[3], table[4].astype(np.uint8), table[5], Pauses(*idle))


def backward_handovers(trace: DeviceTrace, host: HostEvents, device: DeviceEvents) -> Handovers:
    """The backward pass runs on threads of its own, while the thread that requested it is blocked.

    A run of a backward thread is what it does between two moments at which the requesting thread does something.
    """
    rows: list[tuple[int, int, int, int, int, int]] = []
    pauses: list[tuple[int, int, int]] = []
    begin = int(host.start_ns.min(initial=np.iinfo(np.int64).max))
    for thread, asker in _backward_threads(trace, host, device):
        for first_ns, last_ns, idle_from in _runs(host, thread, asker, begin):
            rows.append((asker, first_ns, thread, first_ns, Why.AUTOGRAD, -1))
            rows.append((thread, last_ns, asker, last_ns, Why.AUTOGRAD, -1))
            pauses += [(asker, first_ns, last_ns), (thread, idle_from, first_ns)]
    return Handovers.of(rows, pauses)


def _backward_threads(trace: DeviceTrace, host: HostEvents, device: DeviceEvents) -> list[tuple[int, int]]:
    """(thread, its requesting thread): by the engine's names, else by the profiler's arrows from forward to backward
    operators; for threads with neither, those that launch only while another is blocked."""
    found = []
    is_engine = _named(trace, host, ("autograd::engine::evaluate_function",)) & (host.parent < 0)
    forward = np.bincount(host.thread[~host.is_call & ~is_engine], minlength=len(host.tid))
    arrows = _arrows(trace, host)
    for thread in distinct_values(
        np.concatenate([host.thread[is_engine], host.thread[device.call[device.call >= 0]]])
    ).tolist():
        mine = slice(host.first[thread], host.first[thread + 1])
        top = (host.parent[mine] < 0) & ~host.is_call[mine]
        engine = int(is_engine[mine].sum())
        if 0 < engine * 2 < top.sum():
            continue  # a thread that goes forward too: it runs its own backward pass
        others = np.where(np.arange(len(forward)) == thread, -1, forward)
        asker = int(others.argmax()) if engine and len(others) > 1 and others.max() > 0 else -1
        if not engine:
            asker = arrows[thread] if thread in arrows else _turns(host, thread)
        if asker >= 0:
            found.append((thread, asker))
    return found


def _arrows(trace: DeviceTrace, host: HostEvents) -> dict[int, int]:
    """The thread from which most arrows of each backward thread come; a thread with arrows to itself is none."""
    flows = []
    for phase in ("s", "f"):
        rows = np.flatnonzero(trace.is_category("fwdbwd") & trace.is_phase(phase))
        rows = rows[np.isin(trace.tid[rows], host.tid)]
        flow, first = np.unique(trace.flow[rows], return_index=True)
        flows.append((flow, np.searchsorted(host.tid, trace.tid[rows[first]])))
    _, at, behind = np.intersect1d(flows[0][0], flows[1][0], return_indices=True)
    pairs, count = np.unique(flows[1][1][behind] * len(host.tid) + flows[0][1][at], return_counts=True)
    most = dict(divmod(pair, len(host.tid)) for pair in pairs[np.argsort(count, kind="stable")].tolist())
    return {thread: asker for thread, asker in most.items() if thread != asker}


INSIDE, COVERED = 0.95, 0.5
"""Fraction of a thread's work that must be within idle times of another; and fraction of those that it must fill."""


def _turns(host: HostEvents, thread: int) -> int:
    """The thread that is blocked whenever this one does something, and begins before it; -1: none."""
    mine = np.arange(host.first[thread], host.first[thread + 1])
    mine = mine[host.parent[mine] < 0]
    start, end = host.start_ns[mine], host.end_ns[mine]
    best, most = -1, 0
    for other in range(len(host.tid)):
        asking = slice(host.first[other], host.first[other + 1])
        if other == thread or asking.stop - asking.start <= most or host.start_ns[asking.start] >= start[0]:
            continue
        moments = np.sort(np.concatenate([host.start_ns[asking], host.end_ns[asking]]))
        since, until = np.searchsorted(moments, start + NOISE_NS), np.searchsorted(moments, end - NOISE_NS, "right")
        inside = until <= since
        still = distinct_values(since[inside & (since > 0) & (since < len(moments))])
        if not len(still) or (end - start)[inside].sum() < INSIDE * (end - start).sum():
            continue
        first = np.searchsorted(since, still)  # events of one idle time are consecutive
        last = np.maximum.accumulate(end)[np.searchsorted(since, still, "right") - 1]
        if (last - start[first]).sum() >= COVERED * (moments[still] - moments[still - 1]).sum():
            best, most = other, asking.stop - asking.start
    return best


def _runs(host: HostEvents, thread: int, asker: int, begin: int) -> list[tuple[int, int, int]]:
    """(start, end, end of what the thread did before) of each run within one idle time of the requesting thread."""
    mine = np.arange(host.first[thread], host.first[thread + 1])
    mine = mine[host.parent[mine] < 0]
    asking = slice(host.first[asker], host.first[asker + 1])
    moments = np.sort(np.concatenate([host.start_ns[asking], host.end_ns[asking]]))
    still = np.searchsorted(moments, host.start_ns[mine], "right")
    runs = []
    before = begin
    for part in np.split(mine, np.flatnonzero(np.diff(still)) + 1):
        first, last = int(host.start_ns[part[0]]), int(host.end_ns[part].max())
        until = moments[np.searchsorted(moments, first, "right") :][:1]
        if not len(until) or last <= int(until[0]) + NOISE_NS:
            runs.append((first, last, before))
        before = last
    return runs
