"""What a device takes from the end of one activity to the start of the next, where nothing else holds that up.

It is a µs or some, and adds up where a device has many short kernels to do. It can be seen where the next activity had
been launched before the one before it ended; elsewhere the median of what was seen is what it would take.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.ingest.events import DeviceEvents, HostEvents
from etude.ingest.streams import Marks

I64 = NDArray[np.int64]

_LONGEST_NS: Final = 20_000
"""A longer gap has a reason that is not in the trace: the device was with another process, say."""
_SEEN: Final = 5
"""Gaps that must be seen before their median means something."""


def dispatches(host: HostEvents, device: DeviceEvents, marks: Marks) -> tuple[I64, I64]:
    """(activities, ns that the device took to come to each from the one before it in its stream)."""
    second = np.flatnonzero(device.stream[1:] == device.stream[:-1]) + 1
    before_ns, gap = device.end_ns[second - 1], device.start_ns[second] - device.end_ns[second - 1]
    launched_ns = np.append(host.end_ns, np.iinfo(np.int64).max)[device.call]  # -1, no launch: the last entry
    free_ns = launched_ns[second]
    held = marks.waiter >= 0
    last_event = np.full(len(device), np.iinfo(np.int64).min, np.int64)
    np.maximum.at(last_event, marks.waiter[held], device.end_ns[marks.source[held]])
    free_ns = np.maximum(free_ns, last_event[second])
    seen = (free_ns <= before_ns) & (gap >= 0) & (gap <= _LONGEST_NS)
    typical = int(np.median(gap[seen])) if seen.sum() >= _SEEN else 0
    own = np.where(seen, gap, np.clip(gap, 0, typical))
    return second[own > 0], own[own > 0]
