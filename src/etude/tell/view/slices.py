"""What ran where and when, as columns: the basis of timelines and reports.

A slice is one node that has a time. Slices are in lanes; a lane has tracks, so that within a track any two slices are
disjoint or nested. All ranks are on one clock that starts at the first start.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, I64, U8
from etude.kernels.csr import starts
from etude.kernels.intervals import depths, nest
from etude.model.run import Run
from etude.model.schema import UNKNOWN, Collective, Kind, LaneKind
from etude.model.timing import Origin
from etude.model.trace import Trace
from etude.model.use import Use, uses

__all__ = ["UNRECORDED", "Lane", "SliceProgram", "Slices", "Sort", "slices_of", "tracks_of"]

MAX_TRACKS = 256
"""Most tracks of one lane. Slices that overlap more than this many are drawn over others in the last one."""


UNRECORDED = ("host", "dispatch")
"""Names of nodes for time without recorded events: an operator's own time between callees, or a thread's between
operators; the device's delay from one activity to the next."""


class Sort(IntEnum):
    """Type of a slice, for colour and category."""

    NONE = 0
    COMPUTE = 1
    COMMUNICATION = 2
    MEMORY = 3
    HOST = 4
    OTHER = 5
    COPY = 6
    """Compute units that only move data: kernels of `aten::copy_`, `cat`, `fill_`. Copies by the driver are memory."""

    @property
    def label(self) -> str:
        return self.name.lower()


_COPIES: Final = re.compile(
    r"(aten|fsdp|prims)::(_foreach_)?(_to_copy|to|copy|clone|contiguous|_?cat|_?chunk_cat|stack|fill|zero|zeros"
    r"|repeat|pin_memory|_pin_memory|convert_element_type|split_with_sizes_copy|all_gather_copy_in|\w+_copy)_?(\.\w+)?"
)
"""Operators that write what they read, or one value: no arithmetic except a change of type."""
_COPY_KERNELS: Final = re.compile(
    r"_copy_kernel|CatArrayBatchedCopy|FillFunctor|split_with_sizes_copy|^triton_\w+?_fused_(_?(_to_copy|copy|clone|cat|fill|zeros))+_\d+$"
)
_SORT_OF_USE = np.array([Sort.OTHER, Sort.COMPUTE, Sort.COMMUNICATION, Sort.MEMORY, Sort.HOST], np.uint8)


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of one rank."""

    rank: int
    kind: LaneKind
    id: int

    @property
    def label(self) -> str:
        name = _LANE_NAME[self.kind]
        return f"{name} {self.id}" if self.kind in (LaneKind.THREAD, LaneKind.STREAM) else name


_LANE_NAME = {
    LaneKind.NONE: "receives",
    LaneKind.THREAD: "thread",
    LaneKind.STREAM: "stream",
    LaneKind.COMPUTE: "compute",
    LaneKind.NETWORK: "network",
}


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """A row per slice, ordered by (lane, track, start, longest first)."""

    lanes: tuple[Lane, ...]
    """Rank by rank; threads before streams."""
    lane: I32
    track: I32
    depth: I32
    """Number of slices of its track that contain it."""
    start_ns: I64
    end_ns: I64
    sort: U8
    name: I32
    names: tuple[str, ...]
    at: I32
    """Position of its rank among those present."""
    node: I32
    origin_ns: int
    """The time on the first rank's clock that is 0 here."""
    untimed: int
    """Nodes without a start or an end, which are left out."""

    def __len__(self) -> int:
        return len(self.lane)

    @property
    def span_ns(self) -> int:
        return int(self.end_ns.max(initial=0))

    @property
    def ranks(self) -> dict[int, str]:
        """The ranks and their names: all equally long, as viewers sort processes by name."""
        found = sorted({lane.rank for lane in self.lanes})
        width = len(str(max(found, default=0)))
        return {rank: f"rank {rank:0{width}}" for rank in found}


def slices_of(run: Run, ranks: Sequence[int] | None = None) -> Slices:
    """All slices, on these ranks or on all that are present."""
    job, timing = run.job, run.timing
    where = [job.index(r) for r in (job.ranks.tolist() if ranks is None else sorted(set(ranks)))]
    names: dict[str, int] = {}
    of_trace = {t: SliceProgram(job.traces[t], names) for t in sorted({int(job.trace_of[i]) for i in where})}
    parts = []
    lanes: list[Lane] = []
    untimed = 0
    for i in where:
        program = of_trace[int(job.trace_of[i])]
        start, end = timing.block(i)
        rows, missing = program.rows(start, end, timing.origin)
        untimed += missing
        order, table = program.lanes_of(rows)
        shift = int(timing.clock_offset_ns[i])
        lane = order.astype(np.int32) + len(lanes)
        lanes += [Lane(int(job.ranks[i]), kind, number) for kind, number in table]
        parts.append((lane, start[rows] + shift, end[rows] + shift, rows.astype(np.int32),
                      program.sort[rows], program.name[rows], np.full(len(rows), i, np.int32)))  # fmt: skip
    return _ordered(parts, tuple(lanes), tuple(names), untimed)


class SliceProgram:
    """What the ranks of one trace share."""

    def __init__(self, trace: Trace, names: dict[str, int]) -> None:
        codes, words = trace.coded("name")
        known = np.array([names.setdefault(w or "(no name)", len(names)) for w in words] + [-1], np.int64)
        self.name = known[codes].astype(np.int32)
        rows = np.flatnonzero(codes < 0)
        key = trace.kind[rows].astype(np.int64) * 256 + trace.collective[rows]
        for k in np.unique(key).tolist():
            self.name[rows[key == k]] = names.setdefault(_unnamed(Kind(k // 256), Collective(k % 256)), len(names))
        self.sort = sorts(trace)
        self.shown = (trace.kind != Kind.METADATA) & (trace.kind != Kind.INVALID) & (trace.kind != Kind.NONE)
        self.lane = trace.lane
        self.parent = trace.parent
        own = [words.index(name) for name in UNRECORDED if name in words]
        self.segments = np.flatnonzero(np.isin(codes, own) & (trace.cpu == 1))
        kinds = [*trace.lane_kind.tolist(), int(LaneKind.NONE)]  # -1, no lane, is the last
        self._table = [(LaneKind(k), n) for k, n in zip(kinds, [*trace.lane_id.tolist(), 0], strict=True)]

    def rows(self, start: I64, end: I64, origin: Origin) -> tuple[NDArray[np.intp], int]:
        """(nodes that are drawn, how many have no time)."""
        timed = (start != UNKNOWN) & (end != UNKNOWN) & (end >= start) & self.shown
        drawn = np.flatnonzero(timed & ~self.inside_callers(start, end, origin))
        return drawn, int(self.shown.sum() - timed.sum())

    def inside_callers(self, start: I64, end: I64, origin: Origin) -> NDArray[np.bool_]:
        """Time without events: inside operators that are drawn around it, and between operators as measured."""
        hidden = np.zeros(len(start), bool)
        rows = self.segments
        callers = self.parent[rows]
        within = (callers >= 0) & (start[callers] <= start[rows]) & (end[callers] >= end[rows])
        hidden[rows] = within | ((callers < 0) & (origin == Origin.MEASURED))
        return hidden

    def lanes_of(self, rows: NDArray[np.intp]) -> tuple[I64, list[tuple[LaneKind, int]]]:
        """For each row its position in a list of the used lanes, threads first, no lane last."""
        lane = self.lane[rows].astype(np.int64) % len(self._table)
        used = np.unique(lane).tolist()
        used.sort(key=lambda k: (self._table[k][0] == LaneKind.NONE, *self._table[k]))
        place = np.zeros(len(self._table), np.int64)
        place[used] = np.arange(len(used))
        return place[lane], [self._table[k] for k in used]


def sorts(trace: Trace) -> U8:
    """The use of its device by each node, for its colour; nodes on the host without device time belong to the host."""
    use = uses(trace)
    sort = np.where((trace.cpu == 1) & (use == Use.NONE), np.uint8(Sort.HOST), _SORT_OF_USE[use])
    codes, words = trace.coded("name")
    talks = np.array([word.startswith("gloo:") for word in words] + [False])[codes]
    sort = np.where(talks, np.uint8(Sort.COMMUNICATION), sort)  # gloo's threads only communicate
    return np.where((sort == Sort.COMPUTE) & _moves(trace), np.uint8(Sort.COPY), sort)


def _moves(trace: Trace) -> NDArray[np.bool_]:
    """Nodes that only move data, by their operator, by the one that launched them, or by the name of the kernel."""
    codes, words = trace.coded("name")
    operator = np.array([bool(_COPIES.fullmatch(word)) for word in words] + [False])[codes]
    named = operator | np.array([bool(_COPY_KERNELS.search(word)) for word in words] + [False])[codes]
    return np.where(trace.parent >= 0, named | operator[trace.parent], named)


def tracks_of(lane: I32, start: I64, end: I64) -> tuple[I32, I32]:
    """(track, depth): a slice goes to the first track of its lane in which the open slice, if any, contains all of it.
    Slices are ordered by (lane, start, longest first)."""
    track, depth = np.zeros(len(lane), np.int32), np.zeros(len(lane), np.int32)
    rows = np.arange(len(lane))
    for number in range(MAX_TRACKS):
        parent, apart = np.empty(len(rows), np.int64), np.empty(len(rows), np.bool_)
        nest(starts(lane[rows]), start[rows], end[rows], np.ones(len(rows), np.bool_), 0, parent, apart)
        track[rows], depth[rows] = number, depths(parent)
        rows = rows[apart]
        if not len(rows):
            break
    return track, depth


def _unnamed(kind: Kind, collective: Collective) -> str:
    return collective.name.lower() if collective else kind.wire_name.removesuffix("_NODE").lower()


def _ordered(
    parts: Sequence[tuple[NDArray[np.generic], ...]], lanes: tuple[Lane, ...], names: tuple[str, ...], untimed: int
) -> Slices:
    kinds = (np.int32, np.int64, np.int64, np.int32, np.uint8, np.int32, np.int32)
    columns = [np.concatenate([np.zeros(0, k), *(p[c] for p in parts)]) for c, k in enumerate(kinds)]
    order = np.lexsort((-columns[2], columns[1], columns[0]))
    lane, start, end, node, sort, name, at = (np.ascontiguousarray(c[order]) for c in columns)
    track, depth = tracks_of(lane, start, end)
    if (track > 0).any():
        order = np.lexsort((-end, start, track, lane))
        lane, start, end, node, sort, name, at, track, depth = (
            c[order] for c in (lane, start, end, node, sort, name, at, track, depth)
        )
    origin = int(start.min(initial=np.iinfo(np.int64).max)) if len(start) else 0
    return Slices(lanes, lane, track, depth, start - origin, end - origin, sort, name, names, at, node, origin, untimed)
