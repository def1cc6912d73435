"""The nodes of all ranks as ASTRA-sim reads them, rank after rank, from the columns of a Job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.kernels.arrays import I64
from etude.model.attrs import decode_value
from etude.model.job import Job
from etude.model.schema import ValueKind
from etude.model.trace import Trace
from etude.run.astra.kernels.binding import (
    UNKNOWN_GROUP,
    WORLD,
    GroupTables,
    NodeDependencies,
    bind_groups,
    bind_peers,
    first_negative,
    merge_edges,
)

INVOLVED_DIM, IS_CPU, GROUP_NAME = "involved_dim", "is_cpu_op", "pg_name"
MAX_DIMS: Final = 15
NO_GROUP_HAS: Final = 1 << 30
"""The number of a group whose name does not begin with digits."""


class NodeColumns(NamedTuple):
    """Rank r owns rows rank_start[r]:rank_start[r+1]. Sizes and counts are below 0 where nothing was recorded.

    Node i waits for dep[dep_start[i]:dep_start[i+1]], data and control dependencies together, as rows of this table;
    -1 means an id that no node of the rank has.
    """

    rank_start: I64
    source_id: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    cpu: NDArray[np.int8]
    duration_ns: I64
    flops: I64
    tensor_bytes: I64
    collective: NDArray[np.uint8]
    comm_bytes: I64
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    tag: NDArray[np.int32]
    group: NDArray[np.int32]
    """Which of the groups; -1 is all ranks, -2 a name that no group has."""
    involved_dims: NDArray[np.int16]
    """Bit d is dimension d; -1 where the attribute is absent."""
    dep_start: I64
    dep: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RankedNodes:
    """The columns, and the groups that they speak of."""

    columns: NodeColumns
    groups: tuple[I64, ...] = ()
    group_ids: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.columns.kind)

    @property
    def num_ranks(self) -> int:
        return len(self.columns.rank_start) - 1

    def rank_of(self, node: int) -> int:
        return int(np.searchsorted(self.columns.rank_start, node, side="right")) - 1

    def rows_of(self, rank: int) -> slice:
        return slice(int(self.columns.rank_start[rank]), int(self.columns.rank_start[rank + 1]))

    def describe(self, node: int) -> str:
        return f"node {int(self.columns.source_id[node])}"


class _RankTraces:
    """The traces of a job's ranks, one after another, with the values that ranks have of their own."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.traces = [job.traces[t] for t in job.trace_of.tolist()]
        self.own = [job.values.get(rank, {}) for rank in job.ranks.tolist()] if job.values else []
        sizes = np.array([len(t) for t in job.traces], np.int64)
        self.start = np.zeros(len(self.traces) + 1, np.int64)
        np.cumsum(sizes[job.trace_of], out=self.start[1:])

    def column(self, name: str, dtype: Any) -> NDArray[Any]:
        parts = [getattr(trace, name) for trace in self.traces]
        for i, own in enumerate(self.own):
            parts[i] = own.get(name, parts[i])
        return np.concatenate(parts, dtype=dtype, casting="unsafe") if parts else np.zeros(0, dtype)

    def per_node(self, values: NDArray[Any]) -> NDArray[Any]:
        """A value of each rank, on each of its nodes."""
        return np.repeat(values, np.diff(self.start))


def read_nodes(job: Job, groups: Mapping[int, Sequence[int]]) -> RankedNodes:
    """What ASTRA-sim reads of the ranks of a job. `groups` maps the number in `pg_name` to ranks in ring order."""
    ranks = _RankTraces(job)
    duration_ns = ranks.column("duration_ns", np.int64)
    _check_durations(duration_ns, ranks)
    ids = sorted(groups)
    dep_start, dep = _edges(ranks)
    source_id = ranks.column("source_id", np.uint64)
    columns = NodeColumns(
        rank_start=ranks.start,
        source_id=source_id + ranks.per_node(job.id_base) if job.id_base.any() else source_id,
        kind=ranks.column("kind", np.uint8),
        cpu=ranks.column("cpu", np.int8),
        duration_ns=duration_ns,
        flops=ranks.column("flops", np.int64),
        tensor_bytes=ranks.column("tensor_bytes", np.int64),
        collective=ranks.column("collective", np.uint8),
        comm_bytes=ranks.column("in_bytes", np.int64),
        src=ranks.column("src", np.int32),
        dst=ranks.column("dst", np.int32),
        tag=np.empty(len(duration_ns), np.int32),
        group=ranks.column("group", np.int32),
        involved_dims=np.full(len(duration_ns), -1, np.int16),
        dep_start=dep_start,
        dep=dep,
    )
    numbers = np.array([group_number(name) for name in job.groups.names], np.int64)
    bindings = GroupTables(ranks.start, job.peer_start, job.peer_of, job.tag_base, job.group_start, job.group_of)
    bind_peers(columns.src, columns.dst, ranks.column("tag", np.int64), columns.tag, bindings)
    bind_groups(columns.group, bindings, _places(numbers, np.array(ids, np.int64)))
    _read_odd_attributes(ranks, columns, ids)
    return RankedNodes(columns=columns, groups=tuple(np.array(groups[g], np.int64) for g in ids), group_ids=tuple(ids))


def _check_durations(duration_ns: I64, ranks: _RankTraces) -> None:
    at = int(first_negative(duration_ns))
    if at >= 0:
        rank = int(np.searchsorted(ranks.start, at, side="right")) - 1
        raise TraceError(f"a node has a duration of {duration_ns[at]} ns", where=f"rank {ranks.job.ranks[rank]}")


def _edges(ranks: _RankTraces) -> tuple[I64, NDArray[np.int32]]:
    data, ctrl = (
        NodeDependencies(
            np.concatenate([getattr(t, f"{name}_start")[1:] for t in ranks.traces]), ranks.column(name, np.int32)
        )
        for name in ("data", "ctrl")
    )
    dep_start = np.zeros(int(ranks.start[-1]) + 1, np.int64)
    dep = np.empty(len(data.rows) + len(ctrl.rows), np.int32)
    merge_edges(ranks.start, data, ctrl, dep_start, dep)
    return dep_start, dep


def group_number(name: str) -> int:
    """The digits that a name begins with, as ASTRA-sim reads it; an empty name is 0."""
    digits = name[:9]
    while digits and not (digits.isascii() and digits.isdigit()):
        digits = digits[:-1]
    return int(digits) if digits else NO_GROUP_HAS if name else 0


def _places(numbers: I64, ids: I64) -> NDArray[np.int32]:
    """Where each number is among the ascending ids; 0 is the world."""
    place = np.searchsorted(ids, numbers)
    is_known = np.isin(numbers, ids)
    return np.where(numbers == 0, WORLD, np.where(is_known, place, UNKNOWN_GROUP)).astype(np.int32)


# --- attributes that no column of the model holds ---------------------------------------------------------------------


def _odd_cells(ranks: _RankTraces) -> Iterator[tuple[int, str, ValueKind, Trace, Any, Any]]:
    """First row of a rank, and of each attribute that matters here and is in cells: its name, kind, nodes, cells."""
    has: dict[int, bool] = {}
    for start, trace in zip(ranks.start.tolist(), ranks.traces, strict=False):
        if id(trace.layouts) not in has:
            names = {a.name for layout in trace.layouts for a in layout if a.in_cell}
            has[id(trace.layouts)] = bool(names & {INVOLVED_DIM, IS_CPU, GROUP_NAME})
        if has[id(trace.layouts)]:
            for (name, kind), (nodes, cells) in trace.attr_cells().items():
                yield start, name, kind, trace, nodes, cells


def _read_odd_attributes(ranks: _RankTraces, columns: NodeColumns, ids: list[int]) -> None:
    """The dimensions of collectives, and what is written in a way that the model's columns do not take: a group that is
    a number, and a truth value that is neither 0 nor 1."""
    for start, name, kind, trace, nodes, cells in _odd_cells(ranks):
        rows = start + nodes.astype(np.int64)
        if name == INVOLVED_DIM and kind == ValueKind.BOOL_LIST:
            codes, where = np.unique(cells, return_inverse=True)
            masks = [_mask(decode_value(trace.heap, kind, cell)) for cell in codes.tolist()]
            columns.involved_dims[rows] = np.array(masks, np.int16)[where]
        elif name == IS_CPU and kind.is_integer:
            columns.cpu[rows] = cells != 0
        elif name == GROUP_NAME and kind.is_integer:
            columns.group[rows] = _places(cells, np.array(ids, np.int64))


def _mask(involved: list[bool]) -> int:
    return sum(1 << d for d, on in enumerate(involved[:MAX_DIMS]) if on)
