"""Times of the nodes of a job in a separate file: rank, source_id, start_ns, end_ns as CSV or Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.base.errors import FormatError, MismatchError, UsageError
from etude.base.files import note_open
from etude.base.results import open_table
from etude.kernels.arrays import I64
from etude.model.job import Job
from etude.model.run import Run
from etude.model.schema import UNKNOWN
from etude.model.timing import Origin, Timing

COLUMNS = ("rank", "source_id", "start_ns", "end_ns")


def read_timing(job: Job, path: Path) -> Timing:
    """The times in a file for the nodes of a job; nodes that are not in it have none."""
    table = _table(path)
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise FormatError(f"no column `{missing[0]}`", path=path, hint=f"needed: {', '.join(COLUMNS)}")
    try:
        rank = table["rank"].cast(pa.int64()).to_numpy()
        ids = table["source_id"].cast(pa.uint64()).to_numpy()
        times = [table[name].cast(pa.int64()).fill_null(UNKNOWN).to_numpy() for name in COLUMNS[2:]]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
        raise FormatError(f"a column does not hold whole numbers: {problem}", path=path) from None
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
    if not path.is_file():
        what = "is a folder, not a file of times" if path.is_dir() else "no such file"
        raise UsageError(f"{path}: {what}", hint="`etude simulate JOB --timing FILE` writes one")
    try:
        if path.suffix == ".parquet":
            return open_table(path, "a table of times")
        from pyarrow import csv

        note_open(path)
        found = csv.read_csv(path)
        list(found.column_names)  # decodes them
    except (pa.ArrowException, UnicodeDecodeError) as problem:
        raise FormatError(f"is not a table of times: {problem}", path=path) from None
    return found


def _rows(own: NDArray[Any], wanted: NDArray[Any], rank: int, path: Path) -> I64:
    order = np.argsort(own, kind="stable")
    at = np.searchsorted(own, wanted, sorter=order)
    inside = at < len(own)
    found = np.zeros(len(wanted), np.int64)
    found[inside] = order[at[inside]]
    strange = ~inside
    strange[inside] = own[found[inside]] != wanted[inside]
    if strange.any():
        hint = "the times belong to another job"
        raise MismatchError(f"rank {rank} has no node {wanted[np.flatnonzero(strange)[0]]}", where=str(path), hint=hint)
    return found


BATCH_ROWS = 1 << 20
"""Rows of one batch of a timing table."""


def timing_batches(run: Run) -> Iterator[pa.RecordBatch]:
    """The times of all nodes as a table in batches; null if unknown."""
    kinds = (pa.int32(), pa.uint64(), pa.int64(), pa.int64())
    job, schema, first = run.job, pa.schema(list(zip(COLUMNS, kinds, strict=True))), 0
    lengths = np.array([len(t) for t in job.traces], np.int64)[job.trace_of]
    while first < len(job.ranks):
        last = first + 1
        while last < len(job.ranks) and int(lengths[first : last + 1].sum()) <= BATCH_ROWS:
            last += 1
        at = range(first, last)
        ids = [job.traces[int(job.trace_of[i])].source_id + job.id_base[i] for i in at]
        blocks = [run.timing.block(i) for i in at]
        columns = [np.repeat(job.ranks[first:last], lengths[first:last]), np.concatenate(ids)]
        times = [np.concatenate([b[side] for b in blocks]) for side in (0, 1)]
        arrays = [pa.array(c) for c in columns] + [pa.array(t, mask=t == UNKNOWN) for t in times]
        yield pa.record_batch(arrays, schema=schema)
        first = last


def write_timing(run: Run, path: Path) -> None:
    """Writes the times of all nodes: `.csv` or `.parquet`."""
    if path.suffix not in (".csv", ".parquet"):
        raise UsageError(f"times cannot be written as `{path.suffix}`", where=path.name, hint="known: .csv, .parquet")
    parts = timing_batches(run)
    head = next(parts)
    with open(path, "wb") as file, _writer(file, head.schema, path.suffix) as writer:
        for part in chain([head], parts):
            writer.write_batch(part)


def _writer(file: BinaryIO, schema: pa.Schema, suffix: str) -> Any:
    if suffix == ".parquet":
        from pyarrow import parquet

        return parquet.ParquetWriter(file, schema, compression="zstd")
    from pyarrow import csv

    file.write(",".join(schema.names).encode() + b"\n")  # Arrow would put names in quotes
    return csv.CSVWriter(file, schema, write_options=csv.WriteOptions(include_header=False))
