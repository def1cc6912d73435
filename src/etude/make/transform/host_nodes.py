"""A trace of what a device does, with the host that launches it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.shapes import names_in
from etude.kernels.arrays import I64
from etude.model.build import build_trace
from etude.model.frames import SEGMENT
from etude.model.schema import COLUMN, NODE, UNKNOWN, Kind, Why
from etude.model.trace import Trace

_MADE: Final = ("lane", "layout", "io", "source_id")
_OF_WORK: Final = names_in("""
    flops tensor_bytes in_bytes out_bytes collective group src dst tag stream
""")
_TEXTS_OF_WORK: Final = ("in_values", "in_shapes", "in_types", "in_strides", "out_shapes", "out_types")


def with_host(trace: Trace, host_ns: I64, own_ns: I64) -> Trace:
    """The trace with a host node before each node that is launched on the device or a network, and the time of each
    compute node; the host's time of what it does itself is added to that. The host does one thing after another."""
    launched = (trace.cpu == 0) | (trace.kind != Kind.COMP)
    n = len(trace)
    place = np.arange(n) + np.cumsum(launched)
    of = np.repeat(np.arange(n), 1 + launched)
    is_host = np.ones(len(of), bool)
    is_host[place] = False
    columns = _taken(trace, of)
    for name in _OF_WORK:
        columns[name][is_host] = COLUMN[name].default
    for name in _TEXTS_OF_WORK:
        columns[name][0][is_host] = -1
    codes, words = columns["name"]
    columns["name"] = np.where(is_host, len(words), codes), [*words, SEGMENT]
    columns["kind"][is_host] = Kind.COMP
    columns["cpu"][is_host] = 1
    columns["thread"] = np.where(is_host, 1, columns["thread"])
    own = np.where(launched, own_ns, host_ns + own_ns)
    columns["duration_ns"] = np.where(is_host, host_ns[of], np.where(columns["kind"] == Kind.COMP, own[of], UNKNOWN))
    columns["parent"] = np.full(len(of), -1)
    launches = place[launched]
    line = np.flatnonzero(is_host | ~launched[of])
    target = np.repeat(np.arange(n), np.diff(trace.data_start))
    return _linked(
        trace,
        columns,
        (place[trace.data], place[target], np.asarray(trace.data_why)),
        (launches - 1, launches, np.full(len(launches), Why.LAUNCH)),
        (line[:-1], line[1:], np.full(max(len(line) - 1, 0), Why.PROGRAM)),
    )


def _taken(trace: Trace, rows: I64) -> dict[str, Any]:
    """Columns of these rows, to be built anew."""
    found: dict[str, Any] = {}
    for column in NODE:
        if column.name in _MADE:
            continue
        if column.is_text:
            codes, words = trace.coded(column.name)
            found[column.name] = codes[rows].astype(np.int64), list(words)
        else:
            found[column.name] = getattr(trace, column.name)[rows].copy()
    return found


def _linked(trace: Trace, columns: dict[str, Any], *edges: tuple[I64, I64, NDArray[Any]]) -> Trace:
    source, target, why = (np.concatenate([edge[i] for edge in edges]) for i in range(3))
    total = len(columns["kind"])
    _, once = np.unique(target.astype(np.int64) * (total + 1) + source, return_index=True)
    start = np.searchsorted(target[once], np.arange(total + 1))
    return build_trace(
        columns,
        data=(start, source[once]),
        data_why=why[once].astype(np.uint8),
        group_slots=trace.group_slots,
        peer_slots=trace.peer_slots,
    )
