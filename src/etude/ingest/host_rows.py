"""Which operator of the host trace each event of the device trace is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etude.ingest.events import HostEvents
from etude.link.device import DeviceTrace
from etude.link.host import HostTrace
from etude.link.pair import check_pair

I64 = NDArray[np.int64]


def host_rows(host: HostTrace, device: DeviceTrace, events: HostEvents) -> I64:
    """Row of the host trace of each host event, -1 where there is none: by record-function id, with a look at names."""
    candidates = np.flatnonzero(~events.is_call & (device.rf_id[events.row] > 0))
    nodes = np.flatnonzero((host.rf_id > 0) & ~(host.is_process_root | host.is_thread_root))
    nodes = nodes[np.argsort(host.rf_id[nodes], kind="stable")]
    wanted = device.rf_id[events.row[candidates]]
    at = np.searchsorted(host.rf_id[nodes], wanted)
    found = np.append(host.rf_id[nodes], -1)[at] == wanted
    candidates, row = candidates[found], nodes[at[found]]
    check_pair(host, row, device, events.row[candidates])
    rows = np.full(len(events), -1, np.int64)
    rows[candidates] = row
    return rows
