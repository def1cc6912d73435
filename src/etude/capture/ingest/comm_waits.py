"""What waits for the work of gloo's threads, and where the recording shows when that was over.

A collective runs, and is recorded, on a thread of its own. A message starts inside its call; it is recorded from a bit
later until the program asks whether it is over, which may be long after it was: the recorded end is the true one only
if the program was blocked at that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from etude.capture.ingest.comm_nodes import CommWork
from etude.capture.ingest.events import HostEvents
from etude.capture.ingest.waits import Handovers
from etude.capture.link.device import DeviceTrace
from etude.kernels.arrays import I64
from etude.model.schema import Kind, Why

LONG_GAP_NS: Final = 100_000
"""A thread that is idle for this long when work that it requested ends is waiting for that work."""


@dataclass(frozen=True, slots=True, eq=False)
class CommWaits:
    handovers: Handovers
    message: I64
    """Host events of messages that run concurrently with the thread that requested them."""
    begin_ns: I64
    """When each was requested."""
    over_before: I64
    """Host events of messages that were over when the program asked: their end is unknown."""


def comm_waits(trace: DeviceTrace, host: HostEvents, comms: CommWork) -> CommWaits:
    """The work begins once it was requested; a requester that then blocks until the work is over has waited for it.
    What was over before is waited for too: the program would not continue without it."""
    rows: list[tuple[int, int, int, int, int, int]] = []
    pauses: list[tuple[int, int, int]] = []
    over_before: list[int] = []
    begun: dict[int, int] = {}
    here = comms.first & (comms.event >= 0)
    begin = int(host.start_ns.min(initial=np.iinfo(np.int64).max))
    known: dict[int, _Moments] = {}
    over = _ended_before(host) if here.any() else host.end_ns
    listed = comms.asked[here].tolist(), comms.event[here].tolist(), (comms.table.kind[here] != Kind.COLL).tolist()
    for call, event, is_message in zip(*listed, strict=True):
        thread, start, end = int(host.thread[event]), int(host.start_ns[event]), int(host.end_ns[event])
        apart = bool(host.apart[event])
        asker = int(host.thread[call]) if call >= 0 else thread
        if asker == thread and not apart:
            continue  # the call itself is the work
        if apart and is_message:
            start = begun[event] = min(start, int(host.start_ns[call])) if call >= 0 else start
        given = start
        if asker != thread:
            given = min(int(host.end_ns[call]), start)
            woken = start
            if host.parent[event] < 0 and not apart:
                # from then on its thread was about to start the work: woken, or created for it
                before = min(int(over[event - 1]) if event > host.first[thread] else begin, start)
                woken = max(before, given)
                pauses.append((thread, before, woken))
            rows.append((asker, given, thread, woken, Why.COLLECTIVE, -1))
        pauses.append((asker, given, given))
        if asker not in known:
            known[asker] = _Moments(trace, host, asker)
        if apart and is_message:
            still = known[asker].waiting_since(end, int(host.end_ns[call]) if call >= 0 else start)
            over_before += [] if still < end else [event]
        else:
            found = known[asker].still_since(end)
            if found is None or found >= end:
                continue
            still = found
        rows.append((thread, end, asker, end, Why.SYNC, event if apart else -1))
        pauses.append((asker, max(still, given), end))
    table = np.array([*begun.items()], np.int64).reshape(-1, 2).T
    return CommWaits(Handovers.of(rows, pauses), table[0], table[1], np.array(over_before, np.int64))


def _ended_before(host: HostEvents) -> I64:
    """The latest end of each event and those before it on its thread."""
    over = host.end_ns.copy()
    for low, high in pairwise(host.first.tolist()):
        over[low:high] = np.maximum.accumulate(over[low:high])
    return over


class _Moments:
    """When a thread begins and ends anything."""

    def __init__(self, trace: DeviceTrace, host: HostEvents, thread: int) -> None:
        every = np.arange(host.first[thread], host.first[thread + 1])
        mine = every[~host.apart[every]]
        self.start, self.end, self.last = host.start_ns[mine], host.end_ns[mine], np.sort(host.end_ns[mine])
        self.asked = np.sort(host.end_ns[every[host.apart[every]]])  # when it requested concurrent work
        waits = np.array(["wait" in n or n.startswith("c10d::") for n in trace.names] + [False])
        self.waits = waits[trace.name[host.row[mine]]]
        self.works = trace.is_category("cpu_op")[host.row[mine]] & ~self.waits
        computes = np.array([n.startswith("aten::") for n in trace.names] + [False])[trace.name[host.row[mine]]]
        self.computes_from, self.computes_to = self.start[computes], np.maximum.accumulate(self.end[computes])

    def still_since(self, time_ns: int) -> int | None:
        """Since when the thread has been waiting: in a call that waits, or between events for long."""
        since, inside = self._since(time_ns)
        if inside >= 0:
            return since if self.waits[inside] else None
        if self._computing(time_ns):
            return None
        begun, ended = np.searchsorted(self.start, time_ns), np.searchsorted(self.last, time_ns)
        later = [int(times[at]) for times, at in ((self.start, begun), (self.last, ended)) if at < len(times)]
        return since if min(later, default=1 << 62) - since >= LONG_GAP_NS else None

    def waiting_since(self, time_ns: int, called_ns: int) -> int:
        """Since when the thread has been in the wait for a message that returns at a moment: since right after the
        call, or for long. The moment itself: the message was over before."""
        since, inside = self._since(time_ns)
        asked = np.searchsorted(self.asked, time_ns)
        since = max(since, int(self.asked[asked - 1]) if asked else 0)
        waited = since <= called_ns or time_ns - since >= LONG_GAP_NS
        works = inside >= 0 and self.works[inside]
        return since if waited and not works and not self._computing(time_ns) else time_ns

    def _computing(self, time_ns: int) -> bool:
        """Whether an operator of PyTorch's own library runs at a moment: these wait for no communication, also where
        what they call was over long before."""
        begun = int(np.searchsorted(self.computes_from, time_ns))
        return begun > 0 and int(self.computes_to[begun - 1]) > time_ns

    def _since(self, time_ns: int) -> tuple[int, int]:
        """(When something last began or ended before a moment; the innermost of the events that began then and are
        still running, -1: none.)"""
        begun, ended = np.searchsorted(self.start, time_ns), np.searchsorted(self.last, time_ns)
        since = max(int(self.start[begun - 1]) if begun else 0, int(self.last[ended - 1]) if ended else 0)
        first = np.searchsorted(self.start, since)
        inside = np.flatnonzero(self.end[first:begun] >= time_ns)
        return since, int(first + inside[-1]) if len(inside) else -1
