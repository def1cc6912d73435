"""When the nodes of a graph ran under the profiler, if the graph has the times of the program.

Events and activities have their recorded times. A segment of a thread begins and ends where events do, or where a wait
does: that moment is looked up among all events, or lies as far between two events of its thread as it does in the
program. The device's delay before an activity is the same, if there was room for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.capture.ingest.graph import ACTIVITY, DISPATCH, GROUPS, HOST_EVENT, SEGMENT, CausalGraph
from etude.capture.link.device import DeviceTrace, RecordedTimes
from etude.kernels.arrays import I64, distinct_values, sort_order
from etude.model.schema import UNKNOWN, TimeSource

_ROWS = 1 << 14
"""Rows at a time: these columns are the last of many."""


def recorded_columns(device: DeviceTrace, found: CausalGraph) -> dict[str, NDArray[Any]]:
    """The columns TWICE_TIMED of a graph in the time of the program; none of another."""
    told = device.recorded
    if told is None:
        return {}
    start, end = _Moments(told, found).times()
    own = np.empty(len(found), np.int64)
    source = np.empty(len(found), np.uint8)
    for first in range(0, len(found), _ROWS):
        part = slice(first, first + _ROWS)
        took, before, alone = found.end_ns[part] - found.start_ns[part], end[part] - start[part], found.own_ns[part]
        share = np.where(alone == UNKNOWN, 0, alone * (before / np.maximum(took, 1)))
        share = np.rint(share).astype(np.int64)
        own[part] = np.where(alone == UNKNOWN, UNKNOWN, np.where(alone == took, before, share))
        source[part] = np.where(took == before, TimeSource.RECORDED, TimeSource.CORRECTED)
    source[_light(told, found)] = TimeSource.LIGHT
    start += told.base_ns
    end += told.base_ns
    return {
        "time_source": source,
        "recorded_start_ns": start,
        "recorded_end_ns": end,
        "recorded_duration_ns": own,
    }


def _light(told: RecordedTimes, found: CausalGraph) -> NDArray[np.bool_]:
    """Nodes whose event, or the event that they are a part of, is in the light window."""
    host, device = np.append(told.light[found.host.row], False), told.light[found.device.row]
    light = host[np.where(found.what <= SEGMENT, found.owner, -1)]
    on_device = found.what >= DISPATCH
    light[on_device] = device[found.index[on_device]]
    return light


class _Moments:
    """From moments of the program to moments of its recording."""

    def __init__(self, told: RecordedTimes, found: CausalGraph) -> None:
        self.found = found
        self.begin, self.until = told.start_ns, told.start_ns + np.maximum(told.duration_ns, 0)
        host, device = found.host, found.device
        at = np.concatenate([host.start_ns, host.end_ns, device.start_ns, device.end_ns])
        then = [self.begin[host.row], self.until[host.row], self.begin[device.row], self.until[device.row]]
        order = sort_order(at)
        first = order[np.append(True, np.diff(at[order]) != 0)]
        self.every = at[first], np.concatenate(then)[first]

    def times(self) -> tuple[I64, I64]:
        """Start and end of each node."""
        found = self.found
        start, end = np.empty(len(found), np.int64), np.empty(len(found), np.int64)
        events, device = found.what == HOST_EVENT, found.what >= ACTIVITY
        for mine, row in ((events, found.host.row), (device, found.device.row)):
            start[mine], end[mine] = self.begin[row[found.index[mine]]], self.until[row[found.index[mine]]]
        self._changed(start, end)
        segments = np.flatnonzero(found.what == SEGMENT)
        thread = found.line.thread[found.index[segments]]
        for t in distinct_values(thread).tolist():
            mine = segments[thread == t]
            own = self._of_thread(t)
            for first in range(0, len(mine), _ROWS):
                part = mine[first : first + _ROWS]
                start[part], end[part] = (self._between(own, times[part]) for times in (found.start_ns, found.end_ns))
        self._dispatches(start, end)
        groups = found.what == GROUPS
        start[groups] = end[groups] = start[~groups].min(initial=np.iinfo(np.int64).max)
        return start, np.maximum(end, start)

    def _changed(self, start: I64, end: I64) -> None:
        """Messages that begin with their call, or end with it: not with the event of the thread that sent them."""
        found = self.found
        events = np.flatnonzero(found.what == HOST_EVENT)
        for times, there, into in (
            (found.start_ns, found.host.start_ns, start),
            (found.end_ns, found.host.end_ns, end),
        ):
            rows = events[times[events] != there[found.index[events]]]
            into[rows] = _looked_up(self.every, times[rows])

    def _dispatches(self, start: I64, end: I64) -> None:
        """After the activity before it in its stream, or before its own, but not before that was launched."""
        found, device = self.found, self.found.device
        rows = np.flatnonzero(found.what == DISPATCH)
        own, activity = found.own_ns[rows], found.index[rows]
        begins = self.begin[device.row[activity]]
        ended = self.until[device.row[activity - 1]]
        follows = (activity > 0) & (device.stream[activity - 1] == device.stream[activity])
        follows &= device.end_ns[activity - 1] == found.start_ns[rows]
        launched = np.append(self.begin[found.host.row], begins.max(initial=0))[device.call[activity]]
        alone = np.maximum(begins - own, np.minimum(launched, begins))
        start[rows] = np.where(follows, np.minimum(ended, begins), alone)
        end[rows] = np.minimum(start[rows] + own, begins)

    def _of_thread(self, thread: int) -> tuple[I64, I64]:
        """Moments of the events of a thread, each once, and what they were."""
        host = self.found.host
        mine = slice(int(host.first[thread]), int(host.first[thread + 1]))
        row = host.row[mine]
        at = np.concatenate([host.start_ns[mine], host.end_ns[mine], [host.start_ns.min()]])
        return _by_moment(at, np.concatenate([self.begin[row], self.until[row], [self.begin[host.row].min()]]))

    def _between(self, own: tuple[I64, I64], moment: I64) -> I64:
        """Moments of a thread: of an event of any thread, but between the same two events of its own."""
        at, then = own
        before = np.clip(np.searchsorted(at, moment, "right") - 1, 0, len(at) - 1)
        found = then[before]
        rest = np.flatnonzero(at[before] != moment)  # most are moments of events of the thread
        if len(rest):
            found[rest] = self._inside(own, before[rest], moment[rest])
        return found

    def _inside(self, own: tuple[I64, I64], before: I64, moment: I64) -> I64:
        """Of moments between two events of a thread."""
        at, then = own
        behind = np.minimum(before + 1, len(at) - 1)
        there = np.clip(np.searchsorted(self.every[0], moment), 0, len(self.every[0]) - 1)
        known = self.every[0][there] == moment
        share = (moment - at[before]) / np.maximum(at[behind] - at[before], 1)
        between = then[before] + np.rint(share * (then[behind] - then[before])).astype(np.int64)
        elsewhere = np.clip(self.every[1][there], then[before], then[behind])
        return np.where(known, elsewhere, between)


def _by_moment(at: I64, then: I64) -> tuple[I64, I64]:
    """Moments of the program, each once, and what they were; both ascend."""
    order = sort_order(at, then)
    at, then = at[order], np.maximum.accumulate(then[order])
    last = np.append(np.flatnonzero(np.diff(at)), len(at) - 1)
    return at[last], then[last]


def _looked_up(moments: tuple[I64, I64], wanted: I64) -> I64:
    """What these moments of the program were, or the next ones that are known."""
    at, then = moments
    return then[np.clip(np.searchsorted(at, wanted), 0, len(at) - 1)]
