"""The workload as plain columns, all ranks one after another."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.errors import TraceError
from etude.astra.abort import AstraAbort

INVALID, METADATA, MEM_LOAD, MEM_STORE, COMP, SEND, RECV, COLL = range(8)
WORLD: Final = -1
UNKNOWN_GROUP: Final = -2
ABSENT: Final = -1

COLUMNS: Final = {
    "source_id": np.uint64,
    "kind": np.uint8,
    "is_cpu": np.bool_,
    "duration_us": np.int64,
    "num_ops": np.int64,
    "tensor_size": np.int64,
    "comm_type": np.int64,
    "comm_size": np.int64,
    "src": np.int32,
    "dst": np.int32,
    "tag": np.int32,
    "group": np.int32,
    "involved_dims": np.int16,
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Workload:
    """Nodes of all ranks; rank r owns rows rank_start[r]:rank_start[r+1].

    Numbers are those of the wire (node types, collective types); -1 where an attribute is absent. Node i waits for
    dep[dep_start[i]:dep_start[i+1]], data and control dependencies together, as rows of this table; -1 stands for
    an id that no node of the rank has.
    """

    rank_start: NDArray[np.int64]
    source_id: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    is_cpu: NDArray[np.bool_]
    duration_us: NDArray[np.int64]
    num_ops: NDArray[np.int64]
    tensor_size: NDArray[np.int64]
    comm_type: NDArray[np.int64]
    comm_size: NDArray[np.int64]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    tag: NDArray[np.int32]
    group: NDArray[np.int32]
    """Index into groups; -1 is all ranks, -2 a name that no group has."""
    involved_dims: NDArray[np.int16]
    """Bit d is dimension d; -1 where the attribute is absent."""
    dep_start: NDArray[np.int64]
    dep: NDArray[np.int32]
    groups: tuple[NDArray[np.int64], ...] = ()
    group_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        n = len(self)
        for name, dtype in COLUMNS.items():
            column = getattr(self, name)
            if column.dtype != dtype or len(column) != n:
                raise TraceError(f"column `{name}` is {column.dtype}[{len(column)}], expected {np.dtype(dtype)}[{n}]")
        if self.rank_start[0] != 0 or self.rank_start[-1] != n or (np.diff(self.rank_start) < 0).any():
            raise TraceError(f"rank_start does not cut {n} nodes")
        if (
            len(self.dep_start) != n + 1
            or self.dep_start[0] != 0
            or self.dep_start[-1] != len(self.dep)
            or (np.diff(self.dep_start) < 0).any()
        ):
            raise TraceError(f"dep_start does not fit {n} nodes and {len(self.dep)} dependencies")
        if len(self.groups) != len(self.group_ids):
            raise TraceError(f"{len(self.groups)} groups, {len(self.group_ids)} group ids")
        if n and (self.group.min() < UNKNOWN_GROUP or self.group.max() >= len(self.groups)):
            raise TraceError(f"column `group` points outside the {len(self.groups)} groups")

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def num_ranks(self) -> int:
        return len(self.rank_start) - 1

    def rank_of(self, node: int) -> int:
        return int(np.searchsorted(self.rank_start, node, side="right")) - 1

    def check_dependencies(self) -> None:
        """Every dependency is a node of the same rank."""
        from etude.astra.kernels.nodes import first_bad_dependency

        at = int(first_bad_dependency(self.rank_start, self.dep_start, self.dep))
        if at < 0:
            return
        node = int(np.searchsorted(self.dep_start, at, side="right")) - 1
        if self.dep[at] >= 0:
            raise TraceError(
                f"node {self.source_id[node]} waits for a node of another rank", where=f"rank {self.rank_of(node)}"
            )
        raise AstraAbort(
            f"node {self.source_id[node]} waits for a node that is not in the trace",
            where=f"rank {self.rank_of(node)}",
            hint="ASTRA-sim aborts on such a trace",
        )

    def describe(self, node: int) -> str:
        return f"node {int(self.source_id[node])}"

    def replace(self, **columns: Any) -> Workload:
        return Workload(**({f.name: getattr(self, f.name) for f in fields(self)} | columns))
