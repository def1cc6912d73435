"""Why a device is idle: what the node that ends each gap was waiting for."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.analyse.counting import OURS, Counting
from etude.analyse.device_work import on_device
from etude.analyse.grouping import table
from etude.analyse.launches import launched
from etude.kernels.arrays import I64
from etude.kernels.intervals import merged
from etude.model.graph import dependencies
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN, Kind
from etude.model.use import Use, uses

__all__ = ["gaps", "idle", "stream_gaps"]


CAUSES: Final = ("host", "synchronisation", "launch", "communication", "dependency", "other")
"""host: the launch came only after the gap had begun, and waiting for that was the longer part of it; where the host is
the device, it was between operators. synchronisation: the same, and when the gap began the launching thread was waiting
for the device. launch: it was launched before, or early in the gap, and starting took until now. communication: it is a
message or collective that starts when all members are there, or waits for one. dependency: it waited for a node that
ran on the host. other: nothing that was recorded explains it."""
SHORT_NS: Final = 30_000
"""Longest gap between two kernels that are both queued."""
_WAITS: Final = re.compile(r"Synchronize|^aten::item$|^aten::_local_scalar_dense$|^(cuda|hip)Memcpy$")


def idle(run: Run) -> pa.Table:
    """One row per rank and cause: gaps, time_ns, share of the rank's idle time, longest_ns. The times sum to idle_ns of
    the breakdown.

    etude.idle(run)
    """
    rows: list[dict[str, Any]] = []
    for part in run.parts():
        cause, lasted = _gaps(part)[2:]
        whole = int(lasted.sum())
        for number, name in enumerate(CAUSES):
            mine = lasted[cause == number]
            if len(mine):
                row: dict[str, Any] = {
                    "cause": name,
                    "gaps": len(mine),
                    "time_ns": int(mine.sum()),
                    "longest_ns": int(mine.max()),
                }
                row["share"] = row["time_ns"] / whole if whole else 0.0
                rows += [{"rank": int(run.job.ranks[i])} | row for i in part.at.tolist()]
    rows.sort(key=lambda row: (row["rank"], -row["time_ns"]))
    names = {"rank": pa.int32(), "cause": pa.string(), "gaps": pa.int64(), "time_ns": pa.int64()}
    return table(rows, names | {"share": pa.float64(), "longest_ns": pa.int64()})


def gaps(run: Run) -> pa.Table:
    """Every gap: rank, start_ns, end_ns, cause, node (that ends it), on each rank's own clock."""
    rows = []
    for part in run.parts():
        begin, node, cause, lasted = _gaps(part)
        for i in part.at.tolist():
            for b, n, c, d in zip(begin.tolist(), node.tolist(), cause.tolist(), lasted.tolist(), strict=True):
                rows.append(
                    {"rank": int(run.job.ranks[i]), "start_ns": b, "end_ns": b + d, "cause": CAUSES[c], "node": n}
                )
    names = {"rank": pa.int32(), "start_ns": pa.int64(), "end_ns": pa.int64(), "cause": pa.string()}
    return table(rows, names | {"node": pa.int64()})


def stream_gaps(run: Run, counting: Counting = OURS) -> pa.Table:
    """Gaps between what runs on each stream, whatever other streams do: one row per rank, stream and cause with gaps,
    time_ns, longest_ns. `host_wait`: what ends the gap was launched only after it had begun; `kernel_wait`: it was
    queued before, and the gap is short (under 30 µs); `other`."""
    rows: list[dict[str, Any]] = []
    for part in run.parts():
        for row in _on_streams(part, counting):
            rows += [{"rank": int(run.job.ranks[i])} | row for i in part.at.tolist()]
    rows.sort(key=lambda row: (row["rank"], row["stream"], row["cause"]))
    names = {"rank": pa.int32(), "stream": pa.int64(), "cause": pa.string(), "gaps": pa.int64()}
    return table(rows, names | {"time_ns": pa.int64(), "longest_ns": pa.int64()})


def _on_streams(part: RunPart, counting: Counting) -> list[dict[str, Any]]:
    trace = part.trace
    nodes = np.flatnonzero(on_device(part, uses(trace), counting) & (trace.cpu != 1) & (trace.stream != UNKNOWN))
    nodes = nodes[np.lexsort((part.start_ns[nodes], trace.stream[nodes]))]
    later = np.flatnonzero(trace.stream[nodes[1:]] == trace.stream[nodes[:-1]]) + 1
    node, begin = nodes[later], part.end_ns[nodes[later - 1]]
    found = launched(part)
    called = np.full(len(trace), np.iinfo(np.int64).min, np.int64)
    called[found.node] = part.start_ns[found.call]
    lasted = part.start_ns[node] - begin
    cause = np.where(called[node] > begin, 0, np.where(lasted < SHORT_NS, 1, 2))
    rows = []
    for stream in np.unique(trace.stream[node]).tolist():
        for number, name in enumerate(("host_wait", "kernel_wait", "other")):
            mine = lasted[(trace.stream[node] == stream) & (cause == number)]
            if len(mine):
                row: dict[str, Any] = {"stream": stream, "cause": name, "gaps": len(mine)}
                rows.append(row | {"time_ns": int(mine.sum()), "longest_ns": int(mine.max())})
    return rows


def _gaps(part: RunPart) -> tuple[I64, I64, I64, I64]:
    """(start, node that ends it, cause, length) of each gap of the device."""
    trace, use = part.trace, uses(part.trace)
    rows = np.flatnonzero(on_device(part, use))
    first, last = merged(part.start_ns[rows], part.end_ns[rows])
    begin, until = last[:-1], first[1:]
    rows = rows[np.argsort(part.start_ns[rows], kind="stable")]
    node = rows[np.searchsorted(part.start_ns[rows], until)] if len(until) else rows[:0]
    cause = np.full(len(node), CAUSES.index("other"), np.int64)
    _by_dependency(part, use, node, begin, cause)
    _by_launch(part, node, begin, cause)
    waits_for_others = np.isin(trace.kind[node], (Kind.RECV, Kind.COLL, Kind.SEND)) & (cause == CAUSES.index("other"))
    cause[waits_for_others] = CAUSES.index("communication")
    on_host = (trace.cpu[node] == 1) & (trace.kind[node] == Kind.COMP)
    cause[on_host & np.isin(cause, (CAUSES.index("dependency"), CAUSES.index("other")))] = CAUSES.index("host")
    return begin, node, cause, until - begin


def _by_dependency(part: RunPart, use: NDArray[np.uint8], node: I64, begin: I64, cause: I64) -> None:
    """A node that waited for one that ended within the gap: on the host, or in communication that occupies no
    device."""
    dep, timed = dependencies(part.trace), part.timed
    count = dep.start[node + 1] - dep.start[node]
    of = np.repeat(np.arange(len(node)), count)  # the gap of each dependency
    waited = dep.rows[np.arange(len(of)) - np.repeat(np.cumsum(count) - count - dep.start[node], count)]
    known = (waited >= 0) & timed[waited]
    of, waited = of[known], waited[known]
    of, first = np.unique(of[order := np.lexsort((-part.end_ns[waited], of))], return_index=True)
    last = waited[order[first]]
    within = part.end_ns[last] > begin[of]
    of, last = of[within], last[within]
    talks = (use[last] == Use.COMMUNICATION) | np.isin(part.trace.kind[last], (Kind.SEND, Kind.RECV, Kind.COLL))
    cause[of] = np.where(talks, CAUSES.index("communication"), CAUSES.index("dependency"))


def _by_launch(part: RunPart, node: I64, begin: I64, cause: I64) -> None:
    found = launched(part)
    if not len(found.node) or not len(node):
        return
    call = np.full(len(part.trace), -1, np.int64)
    call[found.node] = found.call
    of = call[node]
    known = of >= 0
    starts, ends = part.start_ns[np.maximum(of, 0)], part.end_ns[np.maximum(of, 0)]
    # a launch divides a gap: the longer part counts, before the launch or after it
    late = known & (starts > begin) & (starts - begin >= part.start_ns[node] - ends)
    cause[known & ~late] = CAUSES.index("launch")
    cause[late] = CAUSES.index("host")
    codes, words = part.trace.coded("name")
    waits = np.array([bool(_WAITS.search(w)) for w in words] + [False])[codes] & part.timed & (part.trace.cpu == 1)
    for thread in np.unique(part.trace.thread[of[late]]).tolist():
        calls = np.flatnonzero(waits & (part.trace.thread == thread))
        if not len(calls):
            continue
        begins, ends = merged(part.start_ns[calls], part.end_ns[calls])
        mine = np.flatnonzero(late & (part.trace.thread[np.maximum(of, 0)] == thread))
        at = np.searchsorted(begins, begin[mine], "right") - 1
        inside = (at >= 0) & (begin[mine] < ends[np.maximum(at, 0)])
        cause[mine[inside]] = CAUSES.index("synchronisation")
