"""What slices carry besides their times: bytes, stream, shapes, group; as columns for the writers of timelines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from etude.kernels.arrays import I32, I64, U64
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace
from etude.tell.view.slices import Slices

__all__ = ["About", "about"]


MOST_CHARS = 1000
"""Most letters of shapes that are written: a list of a thousand tensors would be longer."""
WORLD = "world"


@dataclass(frozen=True, slots=True, eq=False)
class About:
    """Per slice. Numbers below 0 are unknown; texts are rows of `texts`, -1: none."""

    source_id: U64
    size_bytes: I64
    stream: I64
    shapes: I32
    """Input shapes of the node or, if it has none, of the operator that launched it."""
    group: I32
    """The group of a collective."""
    texts: tuple[str, ...]


def about(job: Job, slices: Slices) -> About:
    """The known details of each slice."""
    texts: dict[str, int] = {}
    of_trace: dict[int, I32] = {}
    names = np.array([texts.setdefault(n, len(texts)) for n in (*job.groups.names, WORLD)], np.int32)
    source_id = np.zeros(len(slices), np.uint64)
    size_bytes, stream = np.full(len(slices), -1, np.int64), np.full(len(slices), -1, np.int64)
    shapes, group = np.full(len(slices), -1, np.int32), np.full(len(slices), -1, np.int32)
    for at, part in ranks_of(slices):
        rank, number = int(job.ranks[at]), int(job.trace_of[at])
        trace, node = job.trace(rank), slices.node[part]
        source_id[part] = trace.source_id[node] + job.id_base[at]
        size = np.where(trace.in_bytes[node] == UNKNOWN, trace.tensor_bytes[node], trace.in_bytes[node])
        size_bytes[part] = np.maximum(size, -1)
        stream[part] = np.maximum(trace.stream[node], -1)
        if number not in of_trace:
            of_trace[number] = _shapes(trace, texts)
        shapes[part] = of_trace[number][node]
        slots = np.append(job.group_slots(rank), len(job.groups))  # -1, the world, is the last
        group[part] = np.where(trace.kind[node] == Kind.COLL, names[slots[trace.group[node]]], -1)
    return About(source_id, size_bytes, stream, shapes, group, tuple(texts))


def ranks_of(slices: Slices) -> Iterator[tuple[int, slice]]:
    """Positions of ranks, and where their slices are: lanes, by which slices are ordered, go rank by rank."""
    edges = np.flatnonzero(np.diff(slices.at, prepend=-1)).tolist()
    for first, last in zip(edges, [*edges[1:], len(slices)], strict=True):
        yield int(slices.at[first]), slice(first, last)


def _shapes(trace: Trace, texts: dict[str, int]) -> I32:
    codes, words = trace.coded("in_shapes")
    short = [w if len(w) <= MOST_CHARS else f"{w[: MOST_CHARS - 1]}…" for w in words]
    known = np.array([texts.setdefault(w, len(texts)) if w else -1 for w in short] + [-1], np.int32)
    own = known[codes]
    caller = np.where((own < 0) & (trace.cpu != 1), trace.parent, -1)
    return np.where(caller >= 0, own[caller], own).astype(np.int32)
