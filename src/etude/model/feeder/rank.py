"""The nodes of one rank, each once its dependencies are completed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import I32
from etude.model.feeder import kernels as k
from etude.model.feeder.node_view import NodeView
from etude.model.feeder.source import SHOWN, GraphSource
from etude.model.schema import COLUMN

_READY, _ISSUED, _COMPLETED = k.READY, k.ISSUED, k.COMPLETED
_NUMBERED = ("group", "src", "dst", "lane", "layout")
"""Columns whose numbers have a meaning only within a trace."""


class RankFeeder:
    """The nodes of one rank, each once its dependencies are completed."""

    __slots__ = (
        *("_above", "_base", "_bases", "_bits", "_bits_view", "_graph", "_hint", "_remaining", "_remaining_view"),
        *("_source", "_start_view", "_succ_view", "_words", "completed", "in_flight", "rank", "ready_count"),
    )

    def __init__(self, source: GraphSource, rank: int) -> None:
        self._source = source
        self.rank = rank
        graph = self._graph = source.graph(rank)
        self._remaining: I32 = graph.indegree.copy()
        sizes = _levels(len(graph))
        self._words = sizes[0]
        self._bases = tuple(int(b) for b in np.cumsum([0, *sizes[:-1]]))
        self._base = np.array(self._bases, np.int64)
        self._bits = np.zeros(sum(sizes), np.uint64)
        self.ready_count: int = int(k.fill_ready(self._remaining, self._bits, self._base))
        self.in_flight = 0
        self.completed = 0
        # single nodes are handled in Python on the same arrays: cheaper than a call into compiled code
        self._remaining_view = self._remaining.data
        self._bits_view = self._bits.data
        self._start_view = graph.succ_start.data
        self._succ_view = graph.succ.data
        self._above = self._bases[:0:-1]
        """Where the levels above the lowest begin, highest first."""
        self._hint = 0
        """No word of the lowest level before this one has a ready node."""

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self._remaining)

    def __repr__(self) -> str:
        return (
            f"RankFeeder(rank {self.rank}: {self.completed} of {len(self)} completed, {self.in_flight} in flight, "
            f"{self.ready_count} ready)"
        )

    @property
    def done(self) -> bool:
        return self.completed == len(self._remaining)

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's own state."""
        return 0 if self.done else self._remaining.nbytes + self._bits.nbytes + self._base.nbytes

    # -- one by one --------------------------------------------------------------------------------------------------

    def next(self) -> int | None:
        """Issues the smallest ready node; None if none is ready."""
        if not self.ready_count:
            return None
        bits = self._bits_view
        first = self._hint
        word = bits[first]
        if not word:
            first = 0
            for base in self._above:
                word = bits[base + first]
                first = first << 6 | (word & -word).bit_length() - 1
            word = bits[first]
            self._hint = first
        rest = word & (word - 1)
        node = first << 6 | (word ^ rest).bit_length() - 1
        bits[first] = rest
        if not rest:
            self._clear_above(first)
        self._remaining_view[node] = _ISSUED
        self.ready_count -= 1
        self.in_flight += 1
        return node

    def _clear_above(self, word: int) -> None:
        """A word of the lowest level has become zero."""
        bits = self._bits_view
        for base in self._bases[1:]:
            at = base + (word >> 6)
            bits[at] = left = bits[at] & ~(1 << (word & 63))
            if left:
                return
            word >>= 6

    def take(self, node: int) -> None:
        """Issues this ready node, for simulators that choose among `ready()` by a rule of their own."""
        self._check(node, _READY)
        bits, word = self._bits_view, node >> 6
        bits[word] = left = bits[word] & ~(1 << (node & 63))
        if not left:
            self._clear_above(word)
        self._remaining_view[node] = _ISSUED
        self.ready_count -= 1
        self.in_flight += 1

    def complete(self, node: int) -> None:
        """Completes an issued node; nodes that waited only for it become ready."""
        remaining = self._remaining_view
        if node < 0 or node >= len(remaining) or remaining[node] != _ISSUED:
            self._refuse(node, _ISSUED)
        remaining[node] = _COMPLETED
        self.in_flight -= 1
        self.completed += 1
        if self.completed == len(remaining):
            self._finish()
        start = self._start_view
        for at in range(start[node], start[node + 1]):
            other = self._succ_view[at]
            left = remaining[other] - 1
            remaining[other] = left
            if not left:
                self._insert(other)

    def push_back(self, node: int) -> None:
        """Returns an issued node that was not run; it is ready again, at its old place in the order."""
        self._check(node, _ISSUED)
        self._remaining_view[node] = _READY
        self.in_flight -= 1
        self._insert(node)

    def _insert(self, node: int) -> None:
        self.ready_count += 1
        bits, part = self._bits_view, node
        if node >> 6 < self._hint:
            self._hint = node >> 6
        for base in self._bases:
            at = base + (part >> 6)
            word = bits[at]
            bits[at] = word | 1 << (part & 63)
            if word:
                return
            part >>= 6

    def _check(self, node: int, wanted: int) -> None:
        if not 0 <= node < len(self) or self._remaining_view[node] != wanted:
            self._refuse(node, wanted)

    def _refuse(self, node: int, wanted: int) -> None:
        where = f"rank {self.rank}"
        if not 0 <= node < len(self):
            raise UsageError(f"there is no node {node} among {len(self)}", where=where)
        is_now = {_READY: "ready and not issued", _ISSUED: "in flight", _COMPLETED: "already completed"}
        state = self._remaining_view[node]
        problem = is_now.get(state, f"waiting for {state} more")
        needed = "ready" if wanted == _READY else "in flight (issued by `next` and not completed)"
        raise UsageError(f"node {node} is {problem}", where=where, hint=f"it must be {needed}")

    # -- many at once ------------------------------------------------------------------------------------------------

    def ready(self, limit: int | None = None) -> I32:
        """The ready nodes, or the first `limit` of them, ascending. They stay ready."""
        out = np.empty(self._count(limit), np.int32)
        if len(out):
            k.peek(self._bits, self._words, out)
        return out

    def next_batch(self, limit: int | None = None) -> I32:
        """Issues all nodes that are ready, or the first `limit` of them, ascending."""
        out = np.empty(self._count(limit), np.int32)
        if len(out):
            k.issue(self._remaining, self._bits, self._base, out)
        self.ready_count -= len(out)
        self.in_flight += len(out)
        return out

    def complete_many(self, nodes: ArrayLike) -> int:
        """Completes issued nodes; returns how many became ready. If one of them is not in flight, none is completed."""
        chosen = np.asarray(nodes)
        if chosen.ndim != 1 or (len(chosen) and chosen.dtype.kind not in "iu"):
            raise UsageError(f"nodes are {chosen.dtype}{list(chosen.shape)}, expected a list of rows")
        chosen = np.ascontiguousarray(chosen, np.int64)
        if not len(chosen):
            return 0
        if self.done:
            self._refuse(int(chosen[0]), _ISSUED)
        graph = self._graph
        released, bad = k.complete(chosen, self._remaining, graph.succ_start, graph.succ, self._bits, self._base)
        if bad >= 0:
            node = int(chosen[bad])
            if node in chosen[:bad]:
                raise UsageError(f"node {node} is named twice", where=f"rank {self.rank}")
            self._refuse(node, _ISSUED)
        self.in_flight -= len(chosen)
        self.completed += len(chosen)
        self.ready_count += int(released)
        self._hint = 0
        if self.done:
            self._finish()
        return int(released)

    def drain(self, limit: int | None = None) -> I32:
        """Issues and immediately completes node after node, all or up to `limit`; returns them in that order."""
        left = len(self) - self.completed - self.in_flight
        out = np.empty(left if limit is None else min(max(limit, 0), left), np.int32)
        if not len(out):
            return out
        graph = self._graph
        count, released = k.drain(self._remaining, graph.succ_start, graph.succ, self._bits, self._base, out)
        self.completed += int(count)
        self.ready_count += int(released) - int(count)
        self._hint = 0
        if self.done:
            self._finish()
        return out[:count]

    def _finish(self) -> None:
        """Frees the state when all is completed; every node still reports that it is."""
        self._remaining = np.broadcast_to(np.int32(_COMPLETED), (len(self),))
        self._remaining_view = self._remaining.data
        self._bits = np.zeros(0, np.uint64)
        self._bits_view = self._bits.data

    def _count(self, limit: int | None) -> int:
        return self.ready_count if limit is None else min(max(limit, 0), self.ready_count)

    # -- looking -----------------------------------------------------------------------------------------------------

    def node(self, node: int) -> NodeView:
        """A node by name."""
        if not 0 <= node < len(self):
            self._refuse(node, _ISSUED)
        return NodeView(self._source, self.rank, node)

    def values(self, column: str, nodes: ArrayLike) -> NDArray[Any]:
        """A column of numbers at these nodes, UNKNOWN if not recorded; for text and slots use `node`."""
        if column not in COLUMN or COLUMN[column].is_text or column in _NUMBERED:
            raise UsageError(f"`{column}` is not a column of plain numbers", hint="ask `node(...)` for it")
        rows = np.asarray(nodes)
        if len(rows) and not (0 <= rows.min() <= rows.max() < len(self)):
            self._refuse(int(rows.min() if rows.min() < 0 else rows.max()), _ISSUED)
        return self._source.values(self.rank, column, rows.astype(np.int32))

    def issued(self) -> I32:
        """The nodes in flight, ascending."""
        return np.flatnonzero(self._remaining == _ISSUED).astype(np.int32)

    def waiting(self, limit: int = SHOWN) -> list[tuple[int, list[int]]]:
        """The first `limit` nodes that are not ready, each with the nodes (up to `limit`) that it still waits for."""
        found = []
        out = np.empty(max(limit, 0), np.int32)
        for node in np.flatnonzero(self._remaining > 0)[: max(limit, 0)].tolist():
            count = int(k.reasons(node, self._remaining, self._graph.succ_start, self._graph.succ, out))
            found.append((node, out[: min(count, len(out))].tolist()))
        return found

    def explain(self) -> str:
        """Describes the state of the rank: its progress, what is in flight, what waits for what; with ids of the
        file."""
        lines = [f"rank {self.rank}: {self.completed} of {len(self)} nodes completed, {self.ready_count} ready"]
        for node in self.issued()[:SHOWN].tolist():
            view = self.node(node)
            lines.append(f"  in flight: node {view.source_id}, {view.kind.name} `{view.name}`")
        for node, reasons in self.waiting(3):
            names = ", ".join(str(self.node(r).source_id) for r in reasons)
            lines.append(f"  waiting: node {self.node(node).source_id} for {names}")
        return "\n".join(lines)


def _levels(nodes: int) -> list[int]:
    """Words in each level of a ready set, lowest first."""
    sizes = [max(1, (nodes + 63) // 64)]
    while sizes[-1] > 1:
        sizes.append((sizes[-1] + 63) // 64)
    return sizes
