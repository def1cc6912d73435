"""The small tables of a job (ranks, traces, layouts, groups), and the blocks that belong to ranks: values and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.kernels.arrays import I32, I64
from etude.model.job import VALUE_COLUMNS, Job
from etude.model.schema import UNKNOWN
from etude.model.trace import Layout, Trace
from etude.store import columns_schema as schema
from etude.store.columns_write import coded, lists, masked, nested, table

BLOCK_ROWS = 1 << 20
"""Approximate rows in a row group of values or times; each rank or block is in one."""


def layout_sets(traces: Sequence[Trace]) -> tuple[I32, list[tuple[Layout, ...]]]:
    """The layout set of each trace, and the distinct sets."""
    by_id: dict[int, int] = {}
    number: dict[tuple[Layout, ...], int] = {}
    for t in traces:
        if id(t.layouts) not in by_id:
            by_id[id(t.layouts)] = number.setdefault(t.layouts, len(number))
    return np.array([by_id[id(t.layouts)] for t in traces], np.int32), list(number)


def layout_table(sets: Sequence[tuple[Layout, ...]]) -> Any:
    rows = [
        (s, n, i, a) for s, layouts in enumerate(sets) for n, layout in enumerate(layouts) for i, a in enumerate(layout)
    ]
    columns: dict[str, Any] = {
        name: np.array([r[k] for r in rows], np.int32) for k, name in enumerate(("set", "layout", "position"))
    }
    columns["kind"] = [schema.VALUE_KINDS[a.kind] for *_, a in rows]
    columns |= {name: [getattr(a, name) for *_, a in rows] for name in ("name", "doc", "unknown", "column")}
    known = schema.FILES["layouts"]
    return table("layouts", {n: pa.array(c, known[n]) for n, c in columns.items()})


def trace_table(traces: Sequence[Trace], layouts: I32) -> Any:
    def counts(of: Callable[[Trace], int]) -> I64:
        return np.array([of(t) for t in traces], np.int64)

    def arrays(of: Callable[[Trace], NDArray[Any]], dtype: str) -> Any:
        parts = [of(t) for t in traces]
        flat = np.concatenate([*parts, np.zeros(0, dtype)])
        return lists(np.cumsum([0, *map(len, parts)]), flat.astype(dtype))

    return table(
        "traces",
        {
            "trace": np.arange(len(traces), dtype=np.int32),
            "nodes": counts(len),
            "data_deps": counts(lambda t: len(t.data)),
            "ctrl_deps": counts(lambda t: len(t.ctrl)),
            "attrs": counts(lambda t: len(t.cells)),
            "group_slots": nested([t.group_slots for t in traces], pa.string()),
            "peer_slots": counts(lambda t: t.peer_slots).astype(np.int32),
            "missing": arrays(lambda t: t.missing, "uint64"),
            "lane_kind": arrays(lambda t: t.lane_kind, "uint8"),
            "lane_id": arrays(lambda t: t.lane_id, "int64"),
            "layouts": layouts,
        },
    )


def rank_table(job: Job) -> Any:
    n = len(job)
    own: list[Sequence[str]] = [()] * n
    for rank, columns in job.values.items():
        own[job.index(rank)] = [c for c in VALUE_COLUMNS if c in columns]
    block = offset = pa.nulls(n, pa.int64())
    if job.timing is not None:
        block, offset = pa.array(blocks_in_use(job)[1]), pa.array(job.timing.clock_offset_ns)
    return table(
        "ranks",
        {
            "rank": job.ranks,
            "trace": job.trace_of,
            "id_base": job.id_base,
            "tag_base": job.tag_base,
            "groups": lists(job.group_start, job.group_of),
            "peers": lists(job.peer_start, job.peer_of),
            "metadata": coded(job.metadata_of, pa.array(job.metadata, pa.binary())),
            "own": nested(own, pa.string()),
            "block": block.cast(pa.int32()),
            "clock_offset_ns": offset,
        },
    )


def group_table(job: Job) -> Any:
    g = job.groups
    names = pa.array(g.names, pa.string())
    columns = {"group": np.arange(len(g), dtype=np.int32), "name": names, "members": lists(g.start, g.members, g.known)}
    return table("groups", columns)


def blocks_in_use(job: Job) -> tuple[list[int], I32]:
    """Blocks of times used by some rank, and each rank's index among them."""
    assert job.timing is not None
    used, block_of = np.unique(job.timing.block_of, return_inverse=True)
    return used.tolist(), block_of.astype(np.int32)


def _packed(lengths: Sequence[int], rows: int) -> Iterator[tuple[int, int]]:
    first = held = 0
    for i, n in enumerate(lengths):
        if i > first and held + n > rows:
            yield first, i
            first, held = i, 0
        held += n
    if len(lengths) > first:
        yield first, len(lengths)


def value_tables(job: Job, rows: int = BLOCK_ROWS) -> Iterator[Any]:
    """Row groups of whole ranks that have values of their own."""
    ranks = sorted(r for r, own in job.values.items() if own)
    used = [c for c in VALUE_COLUMNS if any(c in job.values[r] for r in ranks)]
    lengths = [len(job.traces[int(job.trace_of[job.index(r)])]) for r in ranks]
    for a, b in _packed(lengths, rows):
        columns: dict[str, Any] = {
            "rank": np.repeat(np.array(ranks[a:b], np.int32), lengths[a:b]),
            "node": np.concatenate([np.arange(n, dtype=np.int32) for n in lengths[a:b]]),
        }
        for c in used:
            nothing = np.full(max(lengths[a:b], default=0), UNKNOWN, np.int64)
            parts = [job.values[r].get(c, nothing[:n]) for r, n in zip(ranks[a:b], lengths[a:b], strict=True)]
            for rank, part, n in zip(ranks[a:b], parts, lengths[a:b], strict=True):
                if len(part) != n:
                    raise TraceError(f"rank {rank}: {len(part)} values of `{c}` for {n} nodes")
            columns[c] = masked(np.concatenate(parts).astype(np.int64), UNKNOWN)
        yield table("values", columns)


def timing_tables(job: Job, rows: int = BLOCK_ROWS) -> Iterator[Any]:
    """Row groups of whole blocks of times."""
    if job.timing is None:
        return
    if len(job.timing.block_of) != len(job) or len(job.timing.clock_offset_ns) != len(job):
        raise TraceError(f"timing is of {len(job.timing.block_of)} ranks, the job has {len(job)}")
    used, block_of = blocks_in_use(job)
    nodes = np.array([len(t) for t in job.traces], np.int64)[job.trace_of]
    lengths = [len(job.timing.start_ns[b]) for b in used]
    if (np.array(lengths, np.int64)[block_of] != nodes).any():
        rank = int(job.ranks[np.flatnonzero(np.array(lengths, np.int64)[block_of] != nodes)[0]])
        raise TraceError("the block of times does not fit the trace", where=f"rank {rank}")
    for a, b in _packed(lengths, rows):
        columns = {
            "block": np.repeat(np.arange(a, b, dtype=np.int32), lengths[a:b]),
            "node": np.concatenate([np.arange(n, dtype=np.int32) for n in lengths[a:b]]),
            "start_ns": masked(np.concatenate([job.timing.start_ns[u] for u in used[a:b]]), UNKNOWN),
            "end_ns": masked(np.concatenate([job.timing.end_ns[u] for u in used[a:b]]), UNKNOWN),
        }
        yield table("timing", columns)
