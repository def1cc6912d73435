"""Which operator of the host trace each event of the device trace is."""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.capture.ingest.events import HostEvents
from etude.capture.link.device import DeviceTrace
from etude.capture.link.host import HostTrace
from etude.capture.link.pair import DISAGREEMENT, check_pair
from etude.kernels.arrays import I64, distinct_values

_PLACES: Final = 4096
"""Most positions tried when a thread's operators are located by name."""


def host_rows(host: HostTrace, device: DeviceTrace, events: HostEvents) -> I64:
    """Row of the host trace of each host event, -1: none: by record-function id, verified by names; by the order of
    names on each thread if the profiler did not record ids. Refuses a pair from two runs."""
    candidates = np.flatnonzero(~events.is_call & (device.rf_id[events.row] > 0))
    nodes = np.flatnonzero(~(host.is_process_root | host.is_thread_root))
    rows = np.full(len(events), -1, np.int64)
    if not len(candidates) and _same_process(host, device):
        _by_order(host, nodes, device, events, rows)
        candidates = np.flatnonzero(rows >= 0)
        row = rows[candidates]
    else:
        nodes = nodes[host.rf_id[nodes] > 0]
        nodes = nodes[np.argsort(host.rf_id[nodes], kind="stable")]
        wanted = device.rf_id[events.row[candidates]]
        at = np.searchsorted(host.rf_id[nodes], wanted)
        found = np.append(host.rf_id[nodes], -1)[at] == wanted
        candidates, row = candidates[found], nodes[at[found]]
    check_pair(host, row, device, events.row[candidates])
    rows[candidates] = row
    return rows


def _same_process(host: HostTrace, device: DeviceTrace) -> bool:
    return host.members.get("pid") in distinct_values(device.pid[device.is_category("cpu_op")]).tolist()


def _by_order(host: HostTrace, nodes: I64, device: DeviceTrace, events: HostEvents, rows: I64) -> None:
    """Maps each thread of the host trace, which may cover part of the run, to the first position of a thread of the
    device trace with the same sequence of operators."""
    code = {name: i for i, name in enumerate(device.names)}
    as_device = np.array([code.get(name, -2) for name in host.names] + [-2], np.int64)
    free = np.ones(len(events.tid), np.bool_)
    for tid in distinct_values(host.tid[nodes]).tolist():
        mine = nodes[host.tid[nodes] == tid]
        mine = mine[np.argsort(host.id[mine], kind="stable")]  # ids are assigned at the start of an operator
        wanted = as_device[host.name[mine]]
        best: tuple[int, int, I64] | None = None
        for thread in np.flatnonzero(free).tolist():
            theirs = np.arange(events.first[thread], events.first[thread + 1])
            theirs = theirs[~events.is_call[theirs]]
            agreed, at = _best_place(wanted, device.name[events.row[theirs]].astype(np.int64))
            if best is None or agreed > best[0]:
                best = agreed, thread, theirs[at : at + len(mine)]
        if best is not None and best[0] >= (1 - DISAGREEMENT) * len(mine):
            free[best[1]] = False
            rows[best[2]] = mine[: len(best[2])]


def _best_place(wanted: I64, names: I64) -> tuple[int, int]:
    """(names that agree, where the wanted ones then begin); ties go to the first."""
    best = (0, 0)
    for at in np.flatnonzero(names == wanted[0])[:_PLACES].tolist():
        part = names[at : at + len(wanted)]
        agreed = int((part == wanted[: len(part)]).sum())
        if agreed > best[0]:
            best = agreed, at
        if agreed == len(wanted):
            break
    return best
