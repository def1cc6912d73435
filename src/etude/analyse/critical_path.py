"""The critical path: what the end of a run waited for, traced back to its start.

From the node that ends last, the walk steps back at each node's start to what released it: a dependency, the previous
node on its lane, the last member of a collective to arrive, the send that a receive matches, the kernel that a host
call waited for. Every step is a constraint that was active, and the pieces leave no gap, so the path is as long as the
run; shortening a node that is not on it cannot shorten the run.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from etude.analyse import path_kernels as k
from etude.analyse.clocks import offsets
from etude.analyse.grouping import table
from etude.analyse.launches import launched
from etude.analyse.operations import messages
from etude.base.errors import UsageError
from etude.kernels.arrays import I32, I64, U8, as_read, distinct_values, sort_order
from etude.model.frames import SEGMENT, frames
from etude.model.graph import dependencies, topological_order
from etude.model.match import match
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN, Kind, Why
from etude.model.timing import Origin
from etude.model.trace import Trace
from etude.model.use import Use, uses

__all__ = ["by_kind", "by_name", "critical_path", "length_ns"]


SYNC_CALLS: Final = re.compile(r"^(cuda|hip)(Device|Stream|Event)Synchronize|^(cuda|hip)Memcpy$|^cuStreamSynchronize")
"""Host calls that return when the device is done, known by name where a profiler recorded no synchronisation events."""
STEP_MARK: Final = re.compile(r"^ProfilerStep#\d+$")
"""A mark of a step does nothing itself, also where none of its calls is nested in it: marks that overlap."""
KINDS: Final = {
    Use.NONE: "other",
    Use.COMPUTE: "compute",
    Use.COMMUNICATION: "communication",
    Use.MEMORY: "memory",
    Use.HOST: "host",
}


def critical_path(run: Run, *, rendezvous: bool | None = None) -> pa.Table:
    """The path from its beginning to its end: rank, node, name, kind, start_ns, end_ns; each row begins where the one
    before it ends.

    `kind` is compute, communication, memory, host, other, `launch` (from a launch to the start of what it launched) or
    `gap` (nothing that was recorded explains the time before the node). `rendezvous` says whether a send waits for its
    receive: by default yes for measured runs and no for simulated ones.

    etude.critical_path(run)
    """
    if rendezvous is None:
        rendezvous = run.timing.origin != Origin.SIMULATED
    columns = _Columns(run)
    if columns.last is None:
        raise UsageError("no node of this job has a start and an end", hint="etude simulate gives it times")
    return columns.table(columns.walk(rendezvous)[::-1])


def by_kind(path: pa.Table) -> dict[str, int]:
    """Time on the path by kind, the longest first; they sum to its length."""
    return {row["kind"]: row["time_ns"] for row in _spent(path, ["kind"])}


def length_ns(path: pa.Table) -> int:
    return int(path["end_ns"][-1].as_py() - path["start_ns"][0].as_py())


def by_name(path: pa.Table) -> pa.Table:
    """Time on the path by operation: kind, name, count, time_ns, share; the longest first. Speeding up an operation
    cannot save more than its time here."""
    whole = max(length_ns(path), 1)
    rows = [row | {"share": row["time_ns"] / whole} for row in _spent(path, ["kind", "name"])]
    kinds = {"kind": pa.string(), "name": pa.string(), "count": pa.int64(), "time_ns": pa.int64()}
    return table(rows, kinds | {"share": pa.float64()})


def _spent(path: pa.Table, keys: list[str]) -> list[dict[str, Any]]:
    """Pieces and time by key, the longest first."""
    lasted = pc.subtract(path["end_ns"], path["start_ns"])
    summed = path.select(keys).append_column("ns", lasted).group_by(keys).aggregate([("ns", "sum"), ("ns", "count")])
    rows = summed.rename_columns({"ns_sum": "time_ns", "ns_count": "count"}).to_pylist()
    return sorted(rows, key=lambda row: -row["time_ns"])


class _Columns:
    """The runs of a job as the walk needs them."""

    def __init__(self, run: Run) -> None:
        job = run.job
        self.job, self.matching = job, match(job)
        self.shift = offsets(run, matching=self.matching)
        self.run_of = np.zeros(len(job.ranks), np.int64)
        self.traces: list[Trace] = []
        self.uses: list[U8] = []
        self.columns: list[k.Columns] = []
        self.last: tuple[int, int] | None = None
        latest, first = UNKNOWN, np.iinfo(np.int64).max
        simulated = run.timing.origin == Origin.SIMULATED
        for part in run.parts():
            trace, timed = part.trace, part.timed
            self.run_of[part.at] = len(self.traces)
            self.traces.append(trace)
            self.uses.append(uses(trace))
            role = roles_of(trace, by_name=not simulated)
            self.columns.append(columns_of(part, timed, role, copies=not simulated))
            if timed.any():
                rows, ends = np.flatnonzero(timed), ends_of(part, role)
                mine = part.at[int(np.argmax(self.shift[part.at]))]
                end = int(part.end_ns[ends].max() + self.shift[mine])
                first = min(first, int(part.start_ns[rows].min() + self.shift[part.at].min()))
                if end > latest or self.last is None:
                    latest = end
                    self.last = int(mine), int(ends[np.argmax(part.end_ns[ends])])
        self.first_ns = int(first)

    def walk(self, rendezvous: bool) -> I64:
        """Segments of the path from its end to its beginning: at, row, what, from, until."""
        assert self.last is not None
        at, row = self.last
        others = k.JointWork(len(self.job.ranks), self._meetings(), *self._partners())
        place = np.zeros(k.ARRIVED + 1, np.int64)
        place[[k.AT, k.ROW, k.CURSOR]] = at, row, self.columns[self.run_of[at]].end[row] + self.shift[at]
        room = max(len(trace) for trace in self.traces)  # what is not filled takes no memory
        walk = k.PathWalk(place, np.empty((room, 5), np.int64), np.empty((room, 2), np.int64))
        while True:
            at = int(place[k.AT])
            columns, clock_ns = self.columns[self.run_of[at]], int(self.shift[at])
            why = k.walk_rank(columns, clock_ns, others, self.first_ns, rendezvous, walk)
            if why == k.DONE:
                return walk.segment[: place[k.SIZE]]
            if why == k.FULL:
                walk = k.PathWalk(place, *(np.concatenate([found, np.empty_like(found)]) for found in walk[1:]))

    def _meetings(self) -> k.Meetings:
        """The collectives, with the times of each (run, side) read once."""
        job, uses, sides = self.job, self.matching.uses, self.matching.sides
        key = (uses.group.astype(np.int64) + 1) * len(job.ranks) + uses.at
        order = np.argsort(key, kind="stable")
        pair, of = np.unique(self.run_of[uses.at] * max(len(sides), 1) + uses.side, return_inverse=True)
        first, start, ready = [0], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for run, side in zip(*divmod(pair, max(len(sides), 1)), strict=True):
            rows = sides.rows[sides.start[side] : sides.start[side + 1]]
            start.append(self.columns[run].start[rows])
            ready.append(k.ready(self.columns[run], rows))
            first.append(first[-1] + len(rows))
        found = k.Meetings(
            slot_start=job.group_start, slot_group=job.group_of, key=key[order], member=order,
            at=uses.at, group=uses.group, clock_ns=self.shift[uses.at], side=uses.side,
            first=np.array(first, np.int64)[of.reshape(-1)], side_start=sides.start, side_rows=sides.rows,
            start_ns=np.concatenate(start), ready_ns=np.concatenate(ready),
        )  # fmt: skip
        return _read_only(found)

    def _partners(self) -> tuple[k.Partners, k.Partners]:
        """The receives of sends, and the sends of receives."""
        found = messages(self.job, self.matching)
        send = _Ends(found.src_at, found.src_row.astype(np.int64))
        recv = _Ends(found.dst_at, found.dst_row.astype(np.int64))
        return self._other_ends(send, recv), self._other_ends(recv, send)

    def _other_ends(self, mine: _Ends, other: _Ends) -> k.Partners:
        start, end = np.full(len(mine.at), UNKNOWN, np.int64), np.full(len(mine.at), UNKNOWN, np.int64)
        run = self.run_of[other.at]
        for number in distinct_values(run).tolist():
            here = np.flatnonzero(run == number)
            for found, times in ((start, self.columns[number].start), (end, self.columns[number].end)):
                ns = times[other.row[here]]
                found[here] = np.where(ns == UNKNOWN, UNKNOWN, ns + self.shift[other.at[here]])
        order = np.argsort(mine.node)
        return _read_only(k.Partners(mine.node[order], other.node[order], start[order], end[order]))

    def table(self, pieces: I64) -> pa.Table:
        at, row, what = pieces[:, 0], pieces[:, 1], pieces[:, 2]
        words: list[str] = [""]
        name, use = np.zeros(len(at), np.int64), np.zeros(len(at), np.uint8)
        for number in distinct_values(self.run_of[at]).tolist():
            mine = np.flatnonzero(self.run_of[at] == number)
            trace = self.traces[number]
            codes, texts = names_of(trace, row[mine])
            name[mine] = np.where(codes >= 0, codes + len(words), 0)
            words += texts
            use[mine] = self.uses[number][row[mine]]
        labels = [*(KINDS[one] for one in Use), "launch", "gap"]
        kind = np.where(what == k.LAUNCHING, len(Use), np.where(what == k.GAP, len(Use) + 1, use))
        return pa.table(
            {
                "rank": pa.array(self.job.ranks[at], pa.int32()),
                "node": pa.array(row, pa.int64()),
                "name": _texts(name, words),
                "kind": _texts(kind, labels),
                "start_ns": pa.array(pieces[:, 3]),
                "end_ns": pa.array(pieces[:, 4]),
            }
        )


def _texts(code: I64, words: list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(code, pa.int32()), pa.array(words, pa.string())).cast(pa.string())


def ends_of(part: RunPart, role: U8) -> I64:
    """Rows that may end a run: nodes with times of their own."""
    rows = np.flatnonzero(part.timed)
    work = (role[rows] & k.FRAME) == 0
    own = rows[work] if work.any() else rows
    return own[_counts(part.trace, own)]


def _counts(trace: Trace, rows: I64) -> NDArray[np.bool_]:
    """Which rows may end a run. If a device is used, threads that never launch anything may not: watchdogs poll until
    the process ends."""
    host = trace.cpu[rows] == 1
    if not host.any() or host.all():
        return np.ones(len(rows), bool)
    launches = trace.data[trace.data_why == Why.LAUNCH]
    launches = launches[launches >= 0]
    if not len(launches):
        return np.ones(len(rows), bool)
    found: NDArray[np.bool_] = ~host | np.isin(trace.lane[rows], distinct_values(trace.lane[launches]))
    return found


class _Ends(NamedTuple):
    """One end of each message."""

    at: I32
    row: I64

    @property
    def node(self) -> I64:
        return self.at.astype(np.int64) << 32 | self.row


def columns_of(part: RunPart, timed: NDArray[np.bool_], role: U8, *, copies: bool = True) -> k.Columns:
    """The columns of a run; those of its trace are not copied. `copies`: calls may wait for their copies without an
    edge that says so, as in a recording."""
    trace, dep = part.trace, dependencies(part.trace)
    ended = np.flatnonzero(timed & (trace.cpu != 1) & (trace.kind != Kind.METADATA)).astype(np.int32)
    call, copy = _copies(part) if copies else (np.zeros(0, np.int32), np.zeros(0, np.int32))
    columns = k.Columns(
        start=part.start_ns, end=part.end_ns, role=role,
        dep_start=dep.start, dep=dep.rows, why=_why(trace, dep.start),
        lane_prev=_lane_before(trace, part.start_ns, part.end_ns, timed, role),
        slot=trace.group if trace.group.strides != (0,) else np.zeros(0, np.int32),
        ended=ended[np.argsort(part.end_ns[ended], kind="stable")],
        call=call, copy=copy,
    )  # fmt: skip
    return _read_only(columns)


def _read_only(columns: Any) -> Any:
    """A NamedTuple of read-only columns, like those of traces."""
    return type(columns)(*map(as_read, columns))


_TO_OTHERS: Final = {Kind.SEND: k.SEND, Kind.RECV: k.RECV, Kind.COLL: k.COLL}


def roles_of(trace: Trace, *, by_name: bool = True) -> U8:
    """Role bits of each node. `by_name`: calls with these names wait for the device, as in a recording; in a simulated
    run only the graph decides."""
    of_kind = np.zeros(256, np.uint8)
    for kind, bit in _TO_OTHERS.items():
        of_kind[kind] = bit
    role = of_kind[trace.kind]
    frame, host = frames(trace), trace.cpu == 1
    role[frame] |= k.FRAME
    role[host] |= k.HOST
    if by_name and host.any():
        rows = np.flatnonzero(host & ~frame)
        codes, words = trace.coded("name", rows)
        waits = np.array([bool(SYNC_CALLS.search(w)) for w in words] + [False])
        role[rows[waits[codes]]] |= k.SYNC
        marks = np.array([bool(STEP_MARK.search(w)) for w in words] + [False])
        role[rows[marks[codes]]] |= k.FRAME
    return role


def _copies(part: RunPart) -> tuple[I32, I32]:
    """Copy calls, ascending, and the copy that each launched. A call that outlasts its copy waited for it, whatever its
    name: copies to and from pageable memory do."""
    trace = part.trace
    found = launched(part, "Memcpy")
    if not len(found.call):
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    copy = np.full(len(trace), -1, np.int32)
    copy[found.call] = found.node
    inside = np.flatnonzero((trace.cpu == 1) & (trace.parent >= 0))
    inside = inside[copy[trace.parent[inside]] >= 0]
    codes, words = trace.coded("name", inside)
    own = inside[np.array([word == SEGMENT for word in words] + [False])[codes]]  # a call split into segments
    copy[own] = copy[trace.parent[own]]
    call = np.flatnonzero(copy >= 0).astype(np.int32)
    return call, copy[call]


def names_of(trace: Trace, rows: I64) -> tuple[I32, list[str]]:
    """The names of rows, as codes (-1: none) and words: a `host` segment counts as the operator around it."""
    codes, words = trace.coded("name", rows)
    segment = np.array([word == SEGMENT for word in words] + [False])[codes] & (trace.parent[rows] >= 0)
    return trace.coded("name", np.where(segment, trace.parent[rows], rows)) if segment.any() else (codes, words)


def _why(trace: Trace, dep_start: I64) -> U8:
    """Why of each dependency, in the order of `dependencies(trace)`: a node's data, then its control ones."""
    data, ctrl = np.diff(trace.data_start), np.diff(trace.ctrl_start)
    why = np.empty(int(dep_start[-1]), np.uint8)
    if not len(trace.ctrl):
        return np.ascontiguousarray(trace.data_why)
    node_of_data = np.repeat(np.arange(len(trace)), data)
    why[dep_start[:-1][node_of_data] + np.arange(len(trace.data)) - trace.data_start[:-1][node_of_data]] = (
        trace.data_why
    )
    node_of_ctrl = np.repeat(np.arange(len(trace)), ctrl)
    at = dep_start[:-1][node_of_ctrl] + data[node_of_ctrl] + np.arange(len(trace.ctrl))
    why[at - trace.ctrl_start[:-1][node_of_ctrl]] = trace.ctrl_why
    return why


def _lane_before(trace: Trace, start: I64, end: I64, timed: NDArray[np.bool_], role: U8) -> I32:
    """The previous node on a node's lane, -1 where there is none. Of nodes that start and end together, the one that
    others wait for comes first."""
    before = np.full(len(trace), -1, np.int32)
    rows = np.flatnonzero(timed & (trace.lane >= 0) & ((role & k.FRAME) == 0) & (trace.kind != Kind.METADATA))
    lane = trace.lane[rows]
    by_lane = np.argsort(lane.astype(np.uint16) if len(trace.lane_kind) <= 1 << 16 else lane, kind="stable")
    rows, lane = rows[by_lane], lane[by_lane]
    later, ends_later = np.diff(start[rows]), np.diff(end[rows])
    in_order = (lane[1:] > lane[:-1]) | (later > 0) | (later == 0) & (ends_later > 0)
    if not in_order.all():
        depth = np.full(len(trace), len(trace), np.int64)
        order = topological_order(trace)
        depth[order] = np.arange(len(order))
        rows = rows[sort_order(lane, start[rows], end[rows], depth[rows])]
        lane = trace.lane[rows]
    same = lane[1:] == lane[:-1]
    before[rows[1:][same]] = rows[:-1][same]
    return before
