"""Launches that wait because the queue of their stream is full.

CUDA takes a bounded number of launches ahead of the device. A launch beyond it returns when an earlier activity of the
stream ends: the call is long, but the time is not its own. So every launch waits for the activity that lies the depth
of the queue before its own, whether it had to wait in the recorded run or not.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.capture.ingest.events import HostEvents
from etude.capture.ingest.streams import Queues
from etude.capture.link.device import DeviceTrace
from etude.kernels.arrays import I64

DEPTH: Final = 1024
"""Entries of CUDA's queue; used if no launch of the trace had to wait, which would show the depth."""
_MANY: Final = DEPTH // 2
"""Fewer activities ahead are not a full queue, however long a call is; some entries are not activities (events)."""
_LONG_NS: Final = 50_000
"""A launch takes some µs."""


def full_queues(trace: DeviceTrace, host: HostEvents, queues: Queues) -> tuple[I64, I64]:
    """(calls, activities): what each launch waits for in a full queue."""
    calls, sources = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    device = queues.device
    is_cuda = np.array([name.startswith("cu") for name in trace.names] + [False])
    for stream in range(len(device.stream_id)):
        low, high = int(device.first[stream]), int(device.first[stream + 1])
        place = np.arange(high - low)
        call = device.call[low:high]
        launched = np.flatnonzero((call >= 0) & is_cuda[np.append(trace.name[host.row], -1)[call]])
        if high - low <= _MANY or not len(launched):
            continue
        call, place = call[launched], place[launched]
        ends = np.maximum.accumulate(device.end_ns[low:high])
        ahead = place - np.searchsorted(ends, host.start_ns[call], "right")
        is_long = host.end_ns[call] - host.start_ns[call] >= _LONG_NS
        waited = np.flatnonzero((ahead >= _MANY) & is_long)
        over = np.searchsorted(ends, host.end_ns[call], "right") - 1  # the last that had ended when the call returned
        depth = int(np.median((place - over)[waited])) if len(waited) else DEPTH
        source = np.where(np.isin(np.arange(len(place)), waited), over, place - depth)
        kept = source >= 0
        calls.append(call[kept])
        sources.append(low + source[kept])
    return np.concatenate(calls), np.concatenate(sources)
