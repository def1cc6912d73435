"""What a simulation returns: a Timing that also knows how each rank spent its time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numba import njit
from numpy.typing import NDArray

from etude.errors import UsageError
from etude.model.job import Job
from etude.model.schema import UNKNOWN
from etude.model.timing import Timing

if TYPE_CHECKING:
    import pyarrow as pa

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RankTimes:
    """A row for each rank present. finish_ns = compute_ns + exposed_comm_ns + idle_ns, by definition.

    finish_ns is when the rank's last node ends. compute_ns is the time in which at least one compute node runs;
    exposed_comm_ns that in which none does, but a collective, send, receive or memory node does, its waiting for others
    included where it holds a lane; idle_ns is the rest.
    """

    rank: I32
    finish_ns: I64
    compute_ns: I64
    exposed_comm_ns: I64
    idle_ns: I64
    comm_ns: I64
    """Communication, exposed or not."""
    peak_memory_bytes: I64
    """Most bytes in memory: tensors that nodes name, and what memory nodes had loaded and not stored yet."""
    peak_stored_bytes: I64
    """Most bytes that they had stored and not loaded yet."""

    def __len__(self) -> int:
        return len(self.rank)

    def table(self) -> pa.Table:
        import pyarrow as pa

        return pa.table({name: getattr(self, name) for name in self.__slots__})


LINKS_SHOWN = 1000
"""Links that a result names."""


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What went over one direction of a link, and how long it was in use."""

    link: str
    bytes: int
    busy_ns: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Simulated(Timing):
    """Start and end of every node on every rank, as simulated, and a summary.

    A node that holds a lane starts when the lane takes it, so a collective's time includes its wait for the others, as
    in a measured run; one that holds none starts when its operation does.
    """

    makespan_ns: int
    """When the last node of any rank ends."""
    ranks: RankTimes
    simulated_ranks: int
    """Ranks that were simulated; the others are in the class of one of them."""
    links: tuple[LinkUse, ...] = field(default=())
    """Links that carried something, those that were in use longest first, at most `LINKS_SHOWN`; none if analytic."""
    notes: tuple[str, ...] = field(default=())
    """What was assumed where the job does not say."""


@njit(cache=True)
def _covered(start, end, use, which, order):  # type: ignore[no-untyped-def]
    """Length of the union of the intervals whose use is `which`, or of all if 0; `order` sorts by start."""
    total = np.int64(0)
    until = np.int64(0)
    for i in order:
        if use[i] == 0 or (which != 0 and use[i] != which):
            continue
        if end[i] > until:
            total += end[i] - max(start[i], until)
            until = end[i]
    return total


@njit(cache=True)
def _spent(base, program, start_ns, end_ns, use, moved, out):  # type: ignore[no-untyped-def]
    """Fills `out`: finish, compute, compute or communication, communication, bytes held and stored at most."""
    for i in range(len(base) - 1):
        n = base[i + 1] - base[i]
        start, end = start_ns[base[i] : base[i + 1]], end_ns[base[i] : base[i + 1]]
        uses = use[program[i] : program[i] + n]
        known = np.flatnonzero(end >= 0)
        if len(known) == 0:
            continue
        order = known[np.argsort(start[known])]
        out[i, 0] = end[known].max()
        out[i, 1] = _covered(start, end, uses, 1, order)
        out[i, 2] = _covered(start, end, uses, 0, order)
        out[i, 3] = _covered(start, end, uses, 2, order)
        if len(moved) == 0:
            continue
        size = moved[program[i] : program[i] + n]
        held = stored = np.int64(0)
        for j in known[np.argsort(end[known], kind="mergesort")]:
            held, stored = max(held + size[j], np.int64(0)), max(stored - size[j], np.int64(0))
            out[i, 4], out[i, 5] = max(out[i, 4], held), max(out[i, 5], stored)


def rank_times(
    ranks: I32, class_of: I32, base: I64, program: I64, times: tuple[I64, I64], use: I32, moved: I64
) -> RankTimes:
    """`times` of all instances, one after the other; `use`, and `moved` (bytes loaded, stored if < 0), of programs."""
    out = np.zeros((len(base) - 1, 6), np.int64)
    _spent(base, program, *times, use, moved, out)
    finish, compute, busy, comm, held, stored = (out[class_of, k] for k in range(6))
    return RankTimes(ranks, finish, compute, busy - compute, finish - busy, comm, held, stored)


ROWS = 1 << 20
"""Rows of one part of a timing table."""


def timing_parts(job: Job, timing: Timing) -> Iterator[pa.RecordBatch]:
    """The times of all nodes as a table in parts: rank, source_id, start_ns, end_ns; null where a time is not known."""
    import pyarrow as pa

    kinds = {"rank": pa.int32(), "source_id": pa.uint64(), "start_ns": pa.int64(), "end_ns": pa.int64()}
    schema = pa.schema(list(kinds.items()))
    first = 0
    lengths = np.array([len(t) for t in job.traces], np.int64)[job.trace_of]
    while first < len(job.ranks):
        last = first + 1
        while last < len(job.ranks) and int(lengths[first : last + 1].sum()) <= ROWS:
            last += 1
        at = range(first, last)
        ids = [job.traces[int(job.trace_of[i])].source_id + job.id_base[i] for i in at]
        blocks = [timing.block(i) for i in at]
        columns = [np.repeat(job.ranks[first:last], lengths[first:last]), np.concatenate(ids)]
        times = [np.concatenate([b[side] for b in blocks]) for side in (0, 1)]
        arrays = [pa.array(c) for c in columns] + [pa.array(t, mask=t == UNKNOWN) for t in times]
        yield pa.record_batch(arrays, schema=schema)
        first = last


def write_timing(job: Job, timing: Timing, path: Path) -> None:
    """Writes the times of all nodes: `.csv` or `.parquet`."""
    if path.suffix not in (".csv", ".parquet"):
        raise UsageError(f"a timing is not written as `{path.suffix}`", where=path.name, hint="known: .csv, .parquet")
    parts = timing_parts(job, timing)
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
