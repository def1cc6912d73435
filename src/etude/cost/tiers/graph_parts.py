"""Graphs from files, and partitions of their nodes by their neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from etude.base.errors import FormatError, UsageError
from etude.base.files import note_open
from etude.kernels.arrays import I64
from etude.kernels.compile import kernel

PARTITIONERS: Final = ("order", "greedy")
ROUNDS: Final = 5


class GraphEdges(NamedTuple):
    source: I64
    target: I64


class Parted(NamedTuple):
    """Edges with their nodes renumbered, part after part."""

    edges: GraphEdges
    held_bytes: int
    """Memory of the partitioner."""


def read_edges(path: Path) -> GraphEdges:
    """A CSV with the columns `source` and `target`: numbers of nodes from 0 on."""
    import pyarrow as pa
    from pyarrow import csv

    note_open(path)
    try:
        table = csv.read_csv(path)
        columns = [table.column(name).cast(pa.int64()).to_numpy() for name in ("source", "target")]
    except OSError as problem:
        raise UsageError(f"{path}: {problem.strerror or problem}") from None
    except (KeyError, pa.ArrowException) as problem:
        raise FormatError(
            f"no edges: {problem}", where=str(path), hint="columns source,target: whole numbers"
        ) from None
    edges = GraphEdges(*(np.ascontiguousarray(column, np.int64) for column in columns))
    if not len(edges.source) or min(edges.source.min(), edges.target.min()) < 0:
        raise FormatError("no edges, or a negative node", where=str(path), hint="columns source,target, from 0 on")
    return edges


def parted(edges: GraphEdges, nodes: int, partitions: int, how: str) -> Parted:
    """`order`: by number. `greedy`: node by node into the part with the most of its neighbours, minus a penalty for
    full parts, and again with the resulting placement (linear deterministic greedy, re-streamed); parts with common
    edges are placed near one another."""
    if how not in PARTITIONERS:
        raise UsageError(f"unknown partitioner `{how}`", hint=f"known: {', '.join(PARTITIONERS)}")
    if how == "order":
        return Parted(edges, 0)
    ends = np.concatenate([edges.source, edges.target])
    order = np.argsort(ends, kind="stable")
    near = np.concatenate([edges.target, edges.source])[order]
    start = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(ends, minlength=nodes), out=start[1:])
    part = _greedy(start, near, nodes // partitions, partitions)
    between = np.bincount(part[edges.source] * partitions + part[edges.target], minlength=partitions**2)
    between = between.reshape(partitions, partitions)
    part = _in_a_row(between + between.T)[part]
    number = np.empty(nodes, np.int64)
    number[np.argsort(part, kind="stable")] = np.arange(nodes)
    return Parted(
        GraphEdges(number[edges.source], number[edges.target]), sum(one.nbytes for one in (start, near, part, between))
    )


def _in_a_row(between: I64) -> I64:
    """New numbers of parts, so that parts with common edges are near: each time the part with the most edges to those
    taken so far, whose weight halves with each one that follows."""
    found, pull = np.zeros(len(between), np.int64), np.zeros(len(between))
    left = np.ones(len(between), bool)
    for number in range(len(between)):
        one = int(np.argmax(np.where(left, pull, -1.0)))
        found[one], left[one] = number, False
        pull = pull / 2 + between[one]
    return found


@kernel
def _greedy(start: I64, near: I64, size: int, partitions: int) -> I64:
    nodes = len(start) - 1
    part = np.full(nodes, -1, np.int64)
    filled, there = np.zeros(partitions, np.int64), np.zeros(partitions, np.int64)
    for _ in range(ROUNDS):
        filled[:] = 0
        for v in range(nodes):
            there[:] = 0
            for k in range(start[v], start[v + 1]):
                if part[near[k]] >= 0:
                    there[part[near[k]]] += 1
            best = -1
            for p in range(partitions):
                if filled[p] == size:
                    continue
                if best < 0:
                    best = p
                    continue
                new, old = there[p] * (size - filled[p]), there[best] * (size - filled[best])
                if new > old or (new == old and filled[p] < filled[best]):
                    best = p
            part[v] = best
            filled[best] += 1
    return part
