"""The nodes of a converted trace before any is dropped; and those of one file that already has host and device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etude.base.errors import FormatError, TraceError
from etude.capture.link.host import HostTrace
from etude.kernels.arrays import I64, Bool
from etude.model.schema import UNKNOWN


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """The converted nodes before any is dropped, by id: host rows, each followed by what it launched."""

    ids: I64
    row: I64
    """The host row, by id, that the node is or was launched by."""
    event: I64
    """The device event; -1 on the host, and if the file was linked before."""
    on_device: Bool
    stream: I64
    """0 on the host."""
    duration_us: I64
    caller: I64
    """The node that called or launched it; -1: none."""
    ctrl: I64
    """The same, if the converter has seen the caller by then: it reads the file in order."""
    handover: I64


def of_one_file(host: HostTrace, order: I64, caller: I64) -> Nodes:
    """Nodes of a host trace alone, or of the JSON that the official linker wrote; `order`: rows by id, `caller`: the
    position of each row's caller among them, -1 where there is none."""
    n = len(order)
    on_device = _column(host, order, "cat") != UNKNOWN
    stray = np.flatnonzero(on_device & ((caller < 0) | on_device[caller]))
    if stray.size:
        problem = f"node {host.id[order[stray[0]]]} ran on the device, but no operator of the host launched it"
        raise TraceError(problem, where=host.json.path)
    # A caller counts if it comes first in the file. Host traces have it last, since it ends last; linked ones are by
    # id.
    ctrl = np.where((caller >= 0) & (on_device | (order[caller] < order)), caller, -1)
    stream = np.where(on_device, np.maximum(_column(host, order, "stream"), 0), 0)
    none = np.full(n, -1, np.int64)
    return Nodes(
        ids=host.id[order],
        row=np.arange(n),
        event=none,
        on_device=on_device,
        stream=stream,
        duration_us=_durations(host, order),
        caller=caller,
        ctrl=ctrl,
        handover=np.where(on_device, -1, _handovers(host, order)),
    )


def _column(host: HostTrace, order: I64, name: str) -> I64:
    """A column that the linker wrote, over the rows by id; UNKNOWN if it wrote nothing."""
    found = np.full(len(order), UNKNOWN, np.int64)
    rows, values = host.linked.get(name, (np.zeros(0, np.int64),) * 2)
    found[rows] = values
    return found[order]


def _durations(host: HostTrace, order: I64) -> I64:
    """Own time of each node in whole us, truncated."""
    rows, places = host.linked.get("exclusive_dur", (np.zeros(0, np.int64),) * 2)
    found = np.zeros(len(order), np.int64)
    try:
        found[rows] = [0 if value is None else int(float(value)) for value in host.json.values(places)]
    except (TypeError, ValueError, OverflowError):
        raise FormatError("an `exclusive_dur` is not a number", path=host.json.path) from None
    names = np.array(["Optimizer.step" in name for name in host.names] + [False])
    return np.where(names[host.name[order]], 0, found[order])


def _handovers(host: HostTrace, order: I64) -> I64:
    """The position of the operator that each row's thread took over from; -1: none."""
    wanted = _column(host, order, "inter_thread_dep")
    has = (wanted != UNKNOWN) & (wanted != 0)
    ids = host.id[order]
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    lost = np.flatnonzero(has & (ids[at] != wanted))
    if lost.size:
        raise TraceError(
            f"node {ids[lost[0]]} continues node {wanted[lost[0]]}, which is not in the trace", where=host.json.path
        )
    return np.where(has, at, -1)
