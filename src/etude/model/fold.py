"""Fold: ranks that run the same program share one Trace. Expand: every rank has its own again. Exact inverses.

Two ranks run the same program if their traces are equal except for what the job binds (which group, which peer, where
ids and tags begin) and for the values that a rank may have of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.model import text
from etude.model.fingerprint import Fingerprint
from etude.model.job import VALUE_COLUMNS, Job
from etude.model.schema import NODE
from etude.model.trace import EDGE_NAMES, Layout, Trace

_DERIVED = {"lane", "layout"}
"""Lanes follow from other columns; layouts are numbered by a reader, and compared by content."""


def fold(job: Job) -> Job:
    """The same job with as few traces as there are distinct programs.

    etude.extend.fold(job).traces
    """
    shared: dict[bytes, int] = {}
    traces: list[Trace] = []
    bases = [_bases(trace) for trace in job.traces]
    trace_of_old = np.empty(len(job.traces), np.int32)
    own: list[dict[str, NDArray[Any]]] = []
    for number, trace in enumerate(job.traces):
        key = digest(trace, *bases[number]) if len(job.traces) > 1 else b""  # nothing to distinguish it from
        first = shared.setdefault(key, len(traces))
        if first == len(traces):
            traces.append(_rebased(trace, *bases[number]))
        trace_of_old[number] = first
        own.append(_own_values(traces[first], trace))
    id_base = np.array([b[0] for b in bases], np.uint64)[job.trace_of] + job.id_base
    tag_base = np.array([b[1] for b in bases], np.int64)[job.trace_of] + job.tag_base
    values = {r: dict(v) for r, v in job.values.items()}
    for rank, old in zip(job.ranks.tolist(), job.trace_of.tolist(), strict=True):
        if own[old]:
            values[rank] = own[old] | values.get(rank, {})
    return job.replace(
        traces=tuple(traces), trace_of=trace_of_old[job.trace_of], id_base=id_base, tag_base=tag_base, values=values
    )


def expand(job: Job) -> Job:
    """The same job with a trace for each rank, ids and tags as they are in files.

    etude.extend.expand(etude.extend.fold(job))
    """
    traces = []
    for i, rank in enumerate(job.ranks.tolist()):
        traces.append(_rebased(job.trace(rank), -int(job.id_base[i]), -int(job.tag_base[i])))
    n = len(job.ranks)
    return job.replace(
        traces=tuple(traces),
        trace_of=np.arange(n, dtype=np.int32),
        id_base=np.zeros(n, np.uint64),
        tag_base=np.zeros(n, np.int64),
        values={},
    )


def _bases(trace: Trace) -> tuple[int, int]:
    """(id base, tag base): the smallest of each, so that programs that differ only in these become equal."""
    id_base = int(trace.source_id.min()) if len(trace) else 0
    tags = trace.tag[trace.tag >= 0] if len(trace) else trace.tag
    return id_base, int(tags.min()) if len(tags) else 0


def _rebased(trace: Trace, id_base: int, tag_base: int) -> Trace:
    """Ids and tags minus these bases. Tag -1 means none; negative tags are kept."""
    changed: dict[str, NDArray[Any]] = {}
    if id_base:
        step = np.uint64(id_base % 2**64)
        changed |= {"source_id": trace.source_id - step, "missing": trace.missing - step}
    if tag_base:
        changed["tag"] = np.where(trace.tag >= 0, trace.tag - tag_base, trace.tag)
    return trace.replace(**changed) if changed else trace


def _own_values(shared: Trace, trace: Trace) -> dict[str, NDArray[Any]]:
    if shared is trace:
        return {}
    pairs = ((c, getattr(shared, c), getattr(trace, c)) for c in VALUE_COLUMNS)
    return {c: mine for c, theirs, mine in pairs if not np.array_equal(theirs, mine)}


def digest(trace: Trace, id_base: int = 0, tag_base: int = 0) -> bytes:
    """A fingerprint of everything in a trace except its bases and values; equal for equal programs only."""
    trace = _rebased(trace, id_base, tag_base)
    found = Fingerprint(trace.group_slots, trace.peer_slots)

    def add_text(label: str, offsets: NDArray[np.int64]) -> None:
        codes, unique = text.intern(trace.heap, offsets)
        found.add(label, codes, text.gather(trace.heap, unique)[0])

    for c in NODE:
        column = getattr(trace, c.name)
        if c.name in _DERIVED or c.name in VALUE_COLUMNS:
            continue
        if c.is_text and column.strides != (0,):
            add_text(c.name, column)
        else:
            found.add(c.name, column)
    found.add(*(getattr(trace, name) for name in EDGE_NAMES))
    used, first, codes = np.unique(trace.layout, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank_of = np.empty(len(used), np.int32)
    rank_of[order] = np.arange(len(used))
    found.add(rank_of[codes], *(_spelled(trace.layouts[used[o]]) for o in order))
    in_heap = trace.heap_cells()
    found.add(trace.cells[~in_heap])
    add_text("cells", trace.cells[in_heap])
    found.add(trace.extra_row)
    add_text("extra", trace.extra)
    return found.digest()


def _spelled(layout: Layout) -> list[tuple[str | int | bytes, ...]]:
    """The layout as plain values: `repr` of a million attributes is slow."""
    return [(attr.name, int(attr.kind), attr.doc, attr.unknown, attr.column) for attr in layout]
