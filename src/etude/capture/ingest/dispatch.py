"""Dispatch delay: what a device takes to start an activity when nothing in this trace delays it.

From one activity to the next it is about a µs, which adds up on a device with many short kernels. It is visible if the
next activity was launched before the previous one ended; elsewhere the median of the visible ones is used.

It may be much longer: everything that an activity waits for is over, nothing of this process runs on the device, and
still it does not begin. Then the device is busy elsewhere: with another process that shares it, or with work from
before the recording. Nothing in the graph can explain that time, so it is a node of its own. Only the times of a
light window begin in the midst of a program: there the first activity of a stream waits for the steps before, which the
graph does not have. It is taken to begin with an idle device, as a recording does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.capture.ingest.events import DeviceEvents, HostEvents
from etude.capture.ingest.streams import NOISE_NS, Marks
from etude.kernels.arrays import I64

_LONGEST_NS: Final = 20_000
"""A longer gap has another reason: the device is busy elsewhere, or an edge is missing."""
_SEEN: Final = 5
"""Fewest gaps for a meaningful median."""
_NEVER: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, eq=False)
class Dispatches:
    """Dispatch delays, by activity."""

    activity: I64
    start_ns: I64
    own_ns: I64
    follows: I64
    """The activity before it in its stream; -1: none."""
    elsewhere: NDArray[np.bool_]
    """It begins when everything that the activity waits for is over; else when the previous activity ends."""


def dispatches(host: HostEvents, device: DeviceEvents, marks: Marks, *, in_the_midst: bool = False) -> Dispatches:
    """Finds the dispatch delays; `marks` are the events that activities wait for. `in_the_midst`: steps of the same
    program came before."""
    before = np.arange(-1, len(device) - 1)
    if len(device):
        before[device.first[:-1][np.diff(device.first) > 0]] = -1
    before_ns = np.where(before >= 0, device.end_ns[before], _NEVER)
    launched = device.call >= 0
    call_end = np.append(host.end_ns, np.iinfo(np.int64).max)[device.call]  # -1, no launch: the last entry
    held = marks.waiter >= 0
    event_ns = np.full(len(device), _NEVER, np.int64)
    np.maximum.at(event_ns, marks.waiter[held], device.end_ns[marks.source[held]])
    gap = np.where(before >= 0, device.start_ns - before_ns, -1)
    seen = (np.maximum(call_end, event_ns) <= before_ns) & (gap >= 0) & (gap <= _LONGEST_NS)
    typical = int(np.median(gap[seen])) if seen.sum() >= _SEEN else 0
    own = np.where(seen, gap, np.clip(gap, 0, typical))
    free_ns = np.maximum(np.maximum(before_ns, event_ns), np.minimum(call_end, device.start_ns))
    away = launched & (device.start_ns - free_ns > _LONGEST_NS)
    if in_the_midst:
        away &= before >= 0
    away[away] = _busy_ns(device, free_ns[away], device.start_ns[away]) <= NOISE_NS
    own = np.where(away, device.start_ns - free_ns, own)
    rows = np.flatnonzero(own > 0)
    return Dispatches(rows, np.where(away, free_ns, before_ns)[rows], own[rows], before[rows], away[rows])


def _busy_ns(device: DeviceEvents, low: I64, high: I64) -> I64:
    """How long anything of this process ran between two times."""
    order = np.argsort(device.start_ns, kind="stable")
    start, end = device.start_ns[order], np.maximum.accumulate(device.end_ns[order])
    begin = np.maximum(start, np.append(start[:1], end[:-1]))  # without what earlier activities cover
    done = np.append(0, np.cumsum(np.maximum(end - begin, 0)))

    def until(time: I64) -> I64:
        k = np.searchsorted(begin, time, "right")
        return np.where(k > 0, done[k] - np.maximum(end[k - 1] - np.maximum(time, begin[k - 1]), 0), 0)

    return until(high) - until(low)
