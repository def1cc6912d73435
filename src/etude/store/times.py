"""Times of the nodes of a job in a file of their own: rank, source_id, start_ns, end_ns as CSV or Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.errors import FormatError, MismatchError
from etude.model.job import Job
from etude.model.schema import UNKNOWN
from etude.model.timing import Origin, Timing

I64 = NDArray[np.int64]
COLUMNS = ("rank", "source_id", "start_ns", "end_ns")


def read_timing(job: Job, path: Path) -> Timing:
    """The times that a file has for the nodes of a job; nodes that it does not name have none."""
    table = _table(path)
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise FormatError(f"no column `{missing[0]}`", path=path, hint=f"needed: {', '.join(COLUMNS)}")
    try:
        rank = table["rank"].cast(pa.int64()).to_numpy()
        ids = table["source_id"].cast(pa.uint64()).to_numpy()
        times = [table[name].cast(pa.int64()).fill_null(UNKNOWN).to_numpy() for name in COLUMNS[2:]]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
        raise FormatError(f"a column is no column of whole numbers: {problem}", path=path) from None
    starts, ends = [], []
    order = np.argsort(rank, kind="stable")
    for at, r in enumerate(job.ranks.tolist()):
        mine = order[np.searchsorted(rank, r, "left", sorter=order) : np.searchsorted(rank, r, "right", sorter=order)]
        own_ids = job.traces[int(job.trace_of[at])].source_id + job.id_base[at]
        row = _rows(own_ids, ids[mine], r, path)
        start, end = np.full(len(own_ids), UNKNOWN, np.int64), np.full(len(own_ids), UNKNOWN, np.int64)
        start[row], end[row] = times[0][mine], times[1][mine]
        starts.append(start)
        ends.append(end)
    return Timing(
        origin=Origin.SIMULATED,
        start_ns=tuple(starts),
        end_ns=tuple(ends),
        block_of=np.arange(len(starts), dtype=np.int32),
        clock_offset_ns=np.zeros(len(starts), np.int64),
        aligned=True,
    )


def _table(path: Path) -> pa.Table:
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            return parquet.read_table(path)
        from pyarrow import csv

        return csv.read_csv(path)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as problem:
        raise FormatError(f"not a table of times: {problem}", path=path) from None


def _rows(own: NDArray[Any], wanted: NDArray[Any], rank: int, path: Path) -> I64:
    order = np.argsort(own, kind="stable")
    at = np.searchsorted(own, wanted, sorter=order)
    inside = at < len(own)
    found = np.zeros(len(wanted), np.int64)
    found[inside] = order[at[inside]]
    strange = ~inside
    strange[inside] = own[found[inside]] != wanted[inside]
    if strange.any():
        raise MismatchError(
            f"rank {rank} has no node {wanted[np.flatnonzero(strange)[0]]}",
            where=str(path),
            hint="the times belong to another job",
        )
    return found
