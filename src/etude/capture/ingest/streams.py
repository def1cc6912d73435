"""Order on the device: what a stream had been given by a moment, and which streams wait for which events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from etude.capture.ingest import stream_kernels as k
from etude.capture.ingest.events import DeviceEvents, HostEvents
from etude.capture.link.device import DeviceTrace
from etude.kernels.arrays import I64, distinct_values
from etude.model.schema import UNKNOWN

NOISE_NS: Final = 2_000
"""Largest disagreement of the clocks of host and device, which the profiler aligns."""
NO_STREAM: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Queues:
    """Per stream, when each activity was submitted: the start of its call, or its own if no call was recorded; never
    earlier than that of the one before it. Work without a call before all work with one was there when the recording
    began."""

    device: DeviceEvents
    given_ns: I64

    @classmethod
    def of(cls, host: HostEvents, device: DeviceEvents) -> Queues:
        given = np.where(device.call >= 0, np.append(host.start_ns, 0)[device.call], device.start_ns)
        given = np.minimum(given, device.start_ns)
        launched = device.start_ns[device.call >= 0]
        for stream in range(len(device.stream_id)):
            low, high = int(device.first[stream]), int(device.first[stream + 1])
            called = np.flatnonzero(device.call[low:high] >= 0)[:1].tolist()
            if not called and len(launched):
                called = [int(np.searchsorted(device.start_ns[low:high], launched.min()))]
            given[low : low + sum(called)] = np.iinfo(np.int64).min
            given[low:high] = np.maximum.accumulate(given[low:high])
        return cls(device, given)

    def last_before(self, stream: I64, time_ns: I64) -> I64:
        """The last activity that each stream had been given before a moment; -1: none."""
        return self._find(stream, time_ns, "left", -1)

    def first_from(self, stream: I64, time_ns: I64) -> I64:
        """The first activity that each stream was given from a moment on; -1: none."""
        return self._find(stream, time_ns, "left", 0)

    def _find(self, stream: I64, time_ns: I64, side: str, step: int) -> I64:
        found = np.full(len(stream), -1, np.int64)
        for s in distinct_values(stream[stream >= 0]).tolist():
            low, high = int(self.device.first[s]), int(self.device.first[s + 1])
            mine = np.flatnonzero(stream == s)
            at = low + np.searchsorted(self.given_ns[low:high], time_ns[mine], side) + step  # type: ignore[call-overload]
            found[mine] = np.where((at >= low) & (at < high), at, -1)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """Events that were recorded in streams, and what waits for them, in order of time."""

    source: I64
    """The last activity before the record; -1: unknown."""
    waiter: I64
    """The first activity after a stream's wait; -1 if a host call waits."""
    call: I64
    """The host event that waits; -1 if a stream does."""


def marks(trace: DeviceTrace, host: HostEvents, queues: Queues) -> Marks:
    """Which event each wait is for. Kineto names the event but not its record: an event is assumed to be the latest
    record before the wait that no other event has, made in a stream other than the waiting one, whose work was over
    when the waiting work began."""
    names = np.array([_role(name) for name in trace.names] + [0], np.int64)
    role = np.where(host.is_call, names[trace.name[host.row]], 0)
    calls = np.flatnonzero(role > 0)
    calls = calls[np.argsort(host.start_ns[calls], kind="stable")]
    stream, event = _sync_streams(trace, host, queues.device, calls)
    launches = _launches(host, queues.device)
    own, following = _last_launched(host, launches, calls), _next_launched(host, launches, calls)
    is_record, is_wait = role[calls] == k.RECORD, role[calls] == k.WAIT
    stream = np.where(is_record, own, np.where(is_wait & (stream == NO_STREAM), following, stream))
    time = host.start_ns[calls]
    given = queues.last_before(np.where(is_record, stream, -1), time)
    waiter = queues.first_from(np.where(is_wait, stream, -1), time)
    due = np.where(waiter >= 0, np.append(queues.device.start_ns, 0)[waiter], host.end_ns[calls])
    chosen = np.full(len(calls), -1, np.int64)
    given_end = np.append(queues.device.end_ns, 0)[given]
    k.match_marks(k.MarkCalls(role[calls], stream, event, given, given_end, due), NOISE_NS, chosen)
    if not is_record.any():
        waits = np.flatnonzero(is_wait & (waiter >= 0))
        source = _last_elsewhere(queues, stream[waits], time[waits], due[waits])
        waits, source = waits[source >= 0], source[source >= 0]
        return Marks(source, waiter[waits], np.full(len(waits), -1, np.int64))
    return _through_streams(queues, role[calls], time, stream, given, chosen, waiter, calls)


def _last_elsewhere(queues: Queues, stream: I64, time_ns: I64, due_ns: I64) -> I64:
    """For profilers that do not show records: a waiting stream is assumed to wait for the work of another stream,
    launched before the wait, that ended last before its own began; -1: none."""
    best, best_ns = np.full(len(stream), -1, np.int64), np.full(len(stream), np.iinfo(np.int64).min)
    end_ns = np.append(queues.device.end_ns, np.iinfo(np.int64).max)
    for other in range(len(queues.device.stream_id)):
        last = queues.last_before(np.where(stream == other, -1, other), time_ns)
        better = (last >= 0) & (end_ns[last] <= due_ns + NOISE_NS) & (end_ns[last] > best_ns)
        best[better], best_ns[better] = last[better], end_ns[last[better]]
    return best


def _through_streams(
    queues: Queues, role: I64, time_ns: I64, stream: I64, given: I64, chosen: I64, waiter: I64, calls: I64
) -> Marks:
    """A record follows the last activity of its stream, and everything that the stream has waited for since: a wait is
    passed on even if no activity is between it and the record."""
    behind: list[tuple[int, ...]] = []
    told: dict[int, list[tuple[int, ...]]] = {}
    rows: list[tuple[int, int, int]] = []
    since = np.append(queues.given_ns, np.iinfo(np.int64).min)
    last_told: dict[int, int] = {}
    for i, (what, at, mark) in enumerate(zip(role.tolist(), stream.tolist(), chosen.tolist(), strict=True)):
        if what == k.RECORD:
            own = (int(given[i]),) if given[i] >= 0 else ()
            if last_told.get(at, -1) < since[given[i]]:
                told.pop(at, None)  # the last activity came later, and follows them itself
            behind.append(tuple(dict.fromkeys((*own, *(s for waits in told.get(at, ()) for s in waits)))))
            continue
        found = behind[mark] if mark >= 0 else ()
        behind.append(found)
        if what == k.WAIT and found:
            told.setdefault(at, []).append(found)
            last_told[at] = int(time_ns[i])
        rows += [(s, int(waiter[i]), -1) if what == k.WAIT else (s, -1, int(calls[i])) for s in found]
    return Marks(*np.array(rows, np.int64).reshape(-1, 3).T)


def _role(name: str) -> int:
    if "EventRecord" in name or name == "recordEvent":
        return k.RECORD
    if "StreamWaitEvent" in name:
        return k.WAIT
    return k.SYNC if "EventSynchronize" in name else 0


def _sync_streams(trace: DeviceTrace, host: HostEvents, device: DeviceEvents, calls: I64) -> tuple[I64, I64]:
    """Stream and event of each call, if its `cuda_sync` twin names them; otherwise NO_STREAM and UNKNOWN."""
    stream, event = np.full(len(calls), NO_STREAM, np.int64), np.full(len(calls), UNKNOWN, np.int64)
    at, rows = sync_rows(trace, host, calls)
    recorded = trace.stream[rows]
    position = np.searchsorted(device.stream_id, recorded)
    known = np.append(device.stream_id, UNKNOWN)[position] == recorded
    stream[at] = np.where(known, position, NO_STREAM)
    event[at] = trace.spread("wait_on_event")[rows]
    return stream, event


def sync_rows(trace: DeviceTrace, host: HostEvents, calls: I64) -> tuple[I64, I64]:
    """(positions among `calls`, rows of `cuda_sync` events with their correlation)."""
    rows = np.flatnonzero(trace.is_category("cuda_sync") & (trace.correlation > 0))
    rows = rows[np.argsort(trace.correlation[rows], kind="stable")]
    wanted = trace.correlation[host.row[calls]]
    at = np.searchsorted(trace.correlation[rows], wanted)
    found = (np.append(trace.correlation[rows], UNKNOWN)[at] == wanted) & (wanted > 0)
    return np.flatnonzero(found), rows[at[found]]


def _launches(host: HostEvents, device: DeviceEvents) -> tuple[I64, I64]:
    """(calls that launch, by thread and start; the stream of the first activity of each)."""
    known = np.flatnonzero(device.call >= 0)
    call, first = np.unique(device.call[known], return_index=True)  # host events are sorted by thread and start
    return call, device.stream[known[first]]


def _last_launched(host: HostEvents, launches: tuple[I64, I64], calls: I64) -> I64:
    """The last stream that each call's thread launched into before it; -1: none."""
    at = np.searchsorted(launches[0], calls) - 1
    same = (at >= 0) & (np.append(host.thread[launches[0]], -1)[at] == host.thread[calls])
    return np.where(same, np.append(launches[1], -1)[at], -1)


def _next_launched(host: HostEvents, launches: tuple[I64, I64], calls: I64) -> I64:
    """The next stream that any thread launches into: the backward pass waits for streams that the requesting thread
    uses next; -1: none."""
    order = np.argsort(host.start_ns[launches[0]], kind="stable")
    at = np.searchsorted(host.start_ns[launches[0]][order], host.end_ns[calls])
    return np.append(launches[1][order], -1)[at]
