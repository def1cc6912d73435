"""The work of each host thread, piece by piece, without its waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etude.capture.ingest import timeline_kernels as k
from etude.capture.ingest.events import HostEvents
from etude.capture.ingest.waits import Pauses
from etude.kernels.arrays import I64, Bool, sort_order


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Pieces of work by thread and time; one after the other on their thread."""

    owner: I64
    """The event whose time it is; -1: none, the thread was between events."""
    thread: I64
    start_ns: I64
    end_ns: I64
    whole: Bool
    """The piece is the whole event, without calls and waits."""
    first: I64
    """Pieces first[t]:first[t+1] are of thread t."""

    def __len__(self) -> int:
        return len(self.owner)

    def before(self, thread: I64, time_ns: I64) -> I64:
        """The last piece of each thread that had ended by a moment; -1: none."""
        return self._find(thread, time_ns, self.end_ns, "right", -1)

    def after(self, thread: I64, time_ns: I64) -> I64:
        """The first piece of each thread that starts from a moment on; -1: none."""
        return self._find(thread, time_ns, self.start_ns, "left", 0)

    def _find(self, thread: I64, time_ns: I64, times: I64, side: str, step: int) -> I64:
        found = np.full(len(thread), -1, np.int64)
        order = np.argsort(thread, kind="stable")
        bounds = np.searchsorted(thread[order], np.arange(len(self.first)))
        for t in range(len(self.first) - 1):
            mine = order[bounds[t] : bounds[t + 1]]
            if len(mine):
                low, high = int(self.first[t]), int(self.first[t + 1])
                at = low + np.searchsorted(times[low:high], time_ns[mine], side) + step  # type: ignore[call-overload]
                found[mine] = np.where((at >= low) & (at < high), at, -1)
        return found


def timeline(host: HostEvents, pauses: list[Pauses]) -> Timeline:
    """Every thread begins with the first event of all threads, unless a pause says otherwise."""
    thread, from_ns, to_ns = (
        np.concatenate([getattr(p, name) for p in pauses]) for name in ("thread", "from_ns", "to_ns")
    )
    order = sort_order(thread, from_ns, to_ns)
    thread, from_ns, to_ns = thread[order], from_ns[order], to_ns[order]
    threads = len(host.tid)
    room = 2 * len(host) + 2 * len(thread) + threads + 1
    owner, start, end = (np.empty(room, np.int64) for _ in range(3))
    pieces = k.Pieces(owner, start, end, np.empty(room, np.bool_), np.zeros(1, np.int64))
    begin = np.full(threads, host.start_ns.min(initial=np.iinfo(np.int64).max), np.int64)
    events = k.ThreadEvents(host.first, host.start_ns, host.end_ns, host.apart)
    k.cut_pieces(events, begin, k.ThreadPauses(np.searchsorted(thread, np.arange(threads + 1)), from_ns, to_ns), pieces)
    n = int(pieces.used[0])
    of = _threads(host, owner[:n])
    first = np.searchsorted(of, np.arange(threads + 1)).astype(np.int64)
    return Timeline(owner[:n], of, start[:n], end[:n], pieces.whole[:n], first)


def _threads(host: HostEvents, owner: I64) -> I64:
    """Thread of each piece: its event's; pieces between events are sorted among those, and a thread's last is an
    event's."""
    of = np.where(owner >= 0, np.append(host.thread, 0)[owner], -1)
    known = np.flatnonzero(of >= 0)
    if not len(known):
        return of
    behind = np.full(len(of), known[-1], np.int64)
    behind[known] = known
    return of[np.minimum.accumulate(behind[::-1])[::-1]]
