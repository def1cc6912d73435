"""The critical path as a track of its own: what the end of the run waited for, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.model.job import Job
from etude.tell.view.slices import Slices, Sort

__all__ = ["PathPieces", "path_of"]


TRACK = "critical path"
_SORT = {"compute": Sort.COMPUTE, "communication": Sort.COMMUNICATION, "memory": Sort.MEMORY, "host": Sort.HOST,
         "launch": Sort.HOST}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PathPieces:
    """One row per piece, in order of time, on the clock of the slices."""

    start_ns: I64
    end_ns: I64
    sort: NDArray[np.uint8]
    name: NDArray[np.int32]
    names: tuple[str, ...]
    rank: I64
    source_id: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.start_ns)


def path_of(job: Job, slices: Slices, table: pa.Table | None) -> PathPieces:
    """The path of a table with columns rank, node, name, kind, start_ns, end_ns, on the first rank's clock."""
    if table is None or not len(table):
        none = np.zeros(0, np.int64)
        return PathPieces(none, none, none.astype(np.uint8), none.astype(np.int32), (), none, none.astype(np.uint64))
    start, end, rank, node = (table[c].to_numpy() for c in ("start_ns", "end_ns", "rank", "node"))
    start, end = np.maximum(start - slices.origin_ns, 0), end - slices.origin_ns
    kept = np.flatnonzero(end > start)  # drops pieces without length, or before everything that is drawn
    kinds, words = table["kind"].to_pylist(), table["name"].to_pylist()
    called = [f"{words[i]} ({kinds[i]})" if kinds[i] in ("gap", "launch") else words[i] for i in kept.tolist()]
    names = {text: number for number, text in enumerate(dict.fromkeys(called))}
    source = np.zeros(len(table), np.uint64)
    for r in np.unique(rank).tolist():
        at = job.index(int(r))
        mine = np.flatnonzero((rank == r) & (node >= 0))
        source[mine] = job.traces[int(job.trace_of[at])].source_id[node[mine]] + job.id_base[at]
    return PathPieces(
        start[kept],
        end[kept],
        np.array([_SORT.get(kinds[i], Sort.OTHER) for i in kept.tolist()], np.uint8),
        np.array([names[text] for text in called], np.int32),
        tuple(names),
        rank[kept].astype(np.int64),
        source[kept],
    )
