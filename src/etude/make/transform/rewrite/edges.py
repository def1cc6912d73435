"""Edges of a trace whose nodes are replaced or removed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, I64, U8, Bool
from etude.kernels.compile import kernel


class Edges(NamedTuple):
    """Edge e: node `owner[e]` waits for `waited[e]` (below 0: an id that is missing), for the reason `why[e]`."""

    owner: I64
    waited: I64
    why: U8

    def take(self, which: NDArray[Any]) -> Edges:
        return Edges(self.owner[which], self.waited[which], self.why[which])


class EdgeEnds(NamedTuple):
    """Row i of a trace is replaced by node[start[i]:start[i+1]] at this side of its edges."""

    start: I64
    node: I64


def edges_of(start: I64, rows: I32, why: U8) -> Edges:
    owner = np.repeat(np.arange(len(start) - 1, dtype=np.int64), np.diff(start))
    return Edges(owner, rows.astype(np.int64), np.asarray(why))


def ends(rows: int, replaced: list[tuple[I64, I64]]) -> EdgeEnds:
    """Every row by itself, except for (rows, nodes) that are replaced; a row may be replaced by several nodes."""
    own = np.ones(rows, bool)
    for row, _ in replaced:
        own[row] = False
    row = np.concatenate([np.flatnonzero(own), *(r for r, _ in replaced)]).astype(np.int64)
    node = np.concatenate([np.flatnonzero(own), *(n for _, n in replaced)]).astype(np.int64)
    order = np.argsort(row, kind="stable")
    kept = order[node[order] >= 0]
    start = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row[kept], minlength=rows), out=start[1:])
    return EdgeEnds(start, node[kept])


def either(first: EdgeEnds, second: EdgeEnds) -> EdgeEnds:
    """The ends of the first, followed by those of the second: its row i is row rows + i here."""
    return EdgeEnds(
        np.concatenate([first.start, first.start[-1] + second.start[1:]]), np.append(first.node, second.node)
    )


def redirected(edges: Edges, entry: EdgeEnds, exit_: EdgeEnds, shift: I64) -> Edges:
    """Each edge from every entry of its owner to every exit of what it waits for; drops edges from a node to itself.
    `shift` is added to both ends of an edge when its entries and exits are looked up."""
    real = edges.waited >= 0
    owner_at, waited_at = edges.owner + shift, np.where(real, edges.waited, 0) + shift
    entries = (entry.start[1:] - entry.start[:-1])[owner_at]
    exits = np.where(real, (exit_.start[1:] - exit_.start[:-1])[waited_at], 1)
    count = entries * exits
    which = np.repeat(np.arange(len(count)), count)
    place = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    per = exits[which]
    owner = entry.node[entry.start[owner_at[which]] + place // np.maximum(per, 1)]
    found = edges.waited[which]
    there = real[which]
    found[there] = exit_.node[(exit_.start[waited_at[which]] + place % np.maximum(per, 1))[there]]
    changed = (owner != edges.owner[which]) | (found != edges.waited[which])
    kept = ~(changed & (owner == found))
    return Edges(owner[kept], found[kept], edges.why[which][kept])


def csr(edges: Edges, rows: int) -> tuple[I64, I32, U8]:
    """(start, rows, reasons), the edges of a row in the given order."""
    order = np.argsort(edges.owner, kind="stable")
    start = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(edges.owner, minlength=rows), out=start[1:])
    return start, edges.waited[order].astype(np.int32), np.ascontiguousarray(edges.why[order])


def bypassed(data: Edges, ctrl: Edges, gone: Bool) -> tuple[Edges, Edges]:
    """(data, control) edges without these nodes: their dependents wait for their dependencies, by data if every edge on
    the way is data, and once each. Edges between remaining nodes are unchanged."""
    data_csr, both = csr(data, len(gone)), csr(joined(data, ctrl), len(gone))
    stay_data, stay_ctrl = staying(data, gone), staying(ctrl, gone)
    by_data = joined(stay_data, _reached(data_csr, data_csr, gone, stay_data))
    any_way = _reached(both, both, gone, joined(by_data, stay_ctrl))
    return by_data, joined(stay_ctrl, any_way)


def joined(*parts: Edges) -> Edges:
    return Edges(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def staying(edges: Edges, gone: Bool) -> Edges:
    """Edges between remaining nodes."""
    return edges.take(~gone[edges.owner] & ~((edges.waited >= 0) & gone[edges.waited]))


class RemovalWalk(NamedTuple):
    """Input of a walk over removed nodes: the edges it starts with, those it follows, and those it may skip."""

    own_start: I64
    own: I32
    own_why: U8
    start: I64
    rows: I32
    known_start: I64
    known: I32
    gone: Bool


def _reached(own: tuple[I64, I32, U8], through: tuple[I64, I32, U8], gone: Bool, known: Edges) -> Edges:
    there = csr(known, len(gone))
    walk = RemovalWalk(*own, *through[:2], *there[:2], gone)
    size = len(own[1]) + 1
    while True:
        made = Edges(np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.uint8))
        used = _walk(walk, made)
        if used >= 0:
            return made.take(slice(0, used))  # type: ignore[arg-type]
        size = 2 * size + 1024


@kernel
def _walk(walk, found):  # type: ignore[no-untyped-def]
    """Fills `found` with an edge from each remaining node to each that it reaches over removed nodes; returns their
    number, or -1 if they do not fit."""
    n = len(walk.gone)
    seen, stack = np.full(n, -1, np.int64), np.empty(n + 1, np.int64)
    used = 0
    for i in range(n):
        if walk.gone[i]:
            continue
        for e in range(walk.known_start[i], walk.known_start[i + 1]):
            if walk.known[e] >= 0:
                seen[walk.known[e]] = i
        for e in range(walk.own_start[i], walk.own_start[i + 1]):
            first = walk.own[e]
            if first < 0 or not walk.gone[first] or seen[first] == i:
                continue
            seen[first] = i
            stack[0] = first
            top = 1
            while top > 0:
                top -= 1
                node = stack[top]
                for k in range(walk.start[node], walk.start[node + 1]):
                    d = walk.rows[k]
                    if d < 0 or seen[d] == i:
                        continue
                    seen[d] = i
                    if walk.gone[d]:
                        stack[top] = d
                        top += 1
                        continue
                    if used == len(found.owner):
                        return -1
                    found.owner[used], found.waited[used], found.why[used] = i, d, walk.own_why[e]
                    used += 1
    return used
