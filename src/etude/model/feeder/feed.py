"""Feeder: the nodes of a job one after the other, each when what it waits for is completed.

    feed = feeder(job)
    while (node := feed.next(rank)) is not None:     # the smallest ready row; None: nothing is ready
        ... feed.node(rank, node).duration_ns ...
        feed.complete(rank, node)                    # releases what waited for it

Order: of the ready nodes the one with the smallest row is issued first. In a file whose ids ascend this is the smallest
id. What is ready depends only on what was completed, never on the order of completions.

Memory beside the trace: 12 B a node and 4 B an edge for each distinct program, and 4 1/8 B a node for each rank that
has begun and is not done. `Feeder.nbytes` counts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from etude.errors import CycleError, DanglingDependency, DeadlockError, TraceError, UsageError
from etude.kernels.csr import fill_reverse, topological
from etude.model.feeder import kernels as k
from etude.model.feeder.node_view import Bound, NodeView
from etude.model.job import Job, Part, assemble, ranges
from etude.model.schema import COLUMN
from etude.model.trace import Trace

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
Missing = Literal["error", "drop"]
Edges = tuple[I64, I32]
"""Dependencies as CSR: node i waits for rows[start[i]:start[i+1]]; below 0 is ~k, the k-th missing id."""

_READY, _ISSUED, _COMPLETED = k.READY, k.ISSUED, k.COMPLETED
_NUMBERED = ("group", "src", "dst", "lane", "layout")
"""Columns whose numbers mean something only inside a trace."""
_SHOWN = 8
"""Nodes that an error names before it says how many more there are."""


# -- what waits for what: shared by all ranks that run the same program ------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class FeederGraph:
    """Who is released by whom. Node i is waited for by succ[succ_start[i]:succ_start[i+1]], with repeats as in the
    file, and waits for indegree[i] completions itself."""

    succ_start: I64
    succ: I32
    indegree: I32

    def __len__(self) -> int:
        return len(self.indegree)

    @property
    def nbytes(self) -> int:
        return self.succ_start.nbytes + self.succ.nbytes + self.indegree.nbytes

    @classmethod
    def of(cls, nodes: int, edges: Sequence[Edges]) -> tuple[FeederGraph, list[tuple[int, int]], bool]:
        """(graph, for each CSR (edges to missing nodes, the first node that has one), does any edge lead forward).

        Edges to missing nodes are left out. Entries must be rows of the graph or below 0."""
        indegree = np.zeros(nodes, np.int32)
        places = np.zeros(nodes + 2, np.int64)  # one place more: filling moves every start one down
        lost, ahead = [], False
        for start, dep in edges:
            count, first, forward = k.count_edges(start, dep, indegree, places[1:])
            lost.append((int(count), int(first)))
            ahead |= forward > 0
        np.cumsum(places, out=places)
        succ = np.empty(int(places[-1]), np.int32)
        for start, dep in edges:
            fill_reverse(start, dep, places[1:], succ)
        succ_start = places[: nodes + 1]
        for array in (succ_start, succ, indegree):
            array.flags.writeable = False
        return cls(succ_start, succ, indegree), lost, ahead

    def cycle(self) -> list[int]:
        """Nodes that wait for one another in a circle, each for the one before it; [] if there is no circle."""
        remaining = self.indegree.copy()
        if topological(remaining, self.succ_start, self.succ, np.empty(len(self), np.int32)) == len(self):
            return []
        before = np.zeros(len(self), np.int32)
        first = node = int(k.one_cycle(remaining, self.succ_start, self.succ, before))
        found = [first]
        while (node := int(before[node])) != first:
            found.append(node)
        return found[::-1]


class Source(Protocol):
    """Where a feeder finds its graphs and its nodes: a job in memory, or files."""

    @property
    def ranks(self) -> I32: ...

    @property
    def nbytes(self) -> int:
        """Bytes held beside the traces, graphs included."""

    def graph(self, rank: int) -> FeederGraph: ...

    def locate(self, rank: int, node: int) -> tuple[Bound, int]:
        """A stretch of the rank's trace that has the node, and the node's row in it."""

    def values(self, rank: int, column: str, nodes: I32) -> NDArray[Any]:
        """A column of numbers at these nodes."""

    def close(self) -> None: ...


def raise_dangling(view: NodeView, missing_id: int, edges: int) -> None:
    """`edges` dependencies lead to missing nodes; the first is that of `view` on `missing_id`."""
    kinds = [name for name, found in (("data", view.data_ids), ("ctrl", view.ctrl_ids)) if missing_id in found]
    kind = kinds[0] if kinds else "data"
    more = f" ({edges} such dependencies in all)" if edges > 1 else ""
    raise DanglingDependency(
        f"node {view.source_id} waits for node {missing_id}, which is not in the trace{more}",
        where=f"rank {view.rank}",
        hint=f'`missing="drop"` starts nodes without what is not there; `{kind}=False` leaves out {kind} dependencies',
    )


def raise_cycle(rank: int, ids: Sequence[int]) -> None:
    shown = " -> ".join(map(str, ids[:_SHOWN])) + (f" -> ... ({len(ids)} in all)" if len(ids) > _SHOWN else "")
    raise CycleError(
        f"nodes wait for one another in a circle: {shown} -> {ids[0]}",
        where=f"rank {rank}",
        hint="each of these ids waits for the one before it; no order of execution satisfies the trace",
    )


class JobSource:
    """Graphs and nodes of a job in memory."""

    def __init__(self, job: Job, *, data: bool, ctrl: bool, missing: Missing) -> None:
        self.job = job
        self._bound: dict[int, Bound] = {}
        self._graphs: list[FeederGraph | None] = [None] * len(job.traces)
        for i, rank in enumerate(job.ranks.tolist()):
            if self._graphs[int(job.trace_of[i])] is None:
                self._graphs[int(job.trace_of[i])] = self._make(rank, data, ctrl, missing)

    def _make(self, rank: int, data: bool, ctrl: bool, missing: Missing) -> FeederGraph:
        trace = self.job.trace(rank)
        chosen = [(trace.data_start, trace.data)] * data + [(trace.ctrl_start, trace.ctrl)] * ctrl
        for start, dep in chosen:
            bad = int(k.bad_edge(start, dep, len(trace.missing)))
            if bad >= 0:
                raise TraceError(f"the dependencies of node {bad} lie outside the trace", where=f"rank {rank}")
        graph, lost, ahead = FeederGraph.of(len(trace), chosen)
        if missing == "error" and any(count for count, _ in lost):
            (start, dep), node = next((c, first) for c, (count, first) in zip(chosen, lost, strict=True) if count)
            own = dep[start[node] : start[node + 1]]
            absent = (int(trace.missing[~own[own < 0][0]]) + int(self.job.id_base[self.job.index(rank)])) % 2**64
            raise_dangling(NodeView(self, rank, node), absent, sum(count for count, _ in lost))
        if ahead and (circle := graph.cycle()):
            raise_cycle(rank, [NodeView(self, rank, node).source_id for node in circle])
        return graph

    @property
    def ranks(self) -> I32:
        return self.job.ranks

    @property
    def nbytes(self) -> int:
        graphs = sum(g.nbytes for g in self._graphs if g is not None)
        return graphs + sum(b.nbytes for b in self._bound.values())

    def graph(self, rank: int) -> FeederGraph:
        found = self._graphs[int(self.job.trace_of[self.job.index(rank)])]
        assert found is not None
        return found

    def locate(self, rank: int, node: int) -> tuple[Bound, int]:
        bound = self._bound.get(rank)
        if bound is None:
            i = self.job.index(rank)
            bound = self._bound[rank] = Bound(
                trace=self.job.trace(rank),
                groups=self.job.groups,
                group_of=self.job.group_slots(rank),
                peer_of=self.job.peer_slots(rank),
                id_base=int(self.job.id_base[i]),
                tag_base=int(self.job.tag_base[i]),
                start_ns=None if self.job.timing is None else self.job.timing.block(i)[0],
            )
        return bound, node

    def values(self, rank: int, column: str, nodes: I32) -> NDArray[Any]:
        bound = self.locate(rank, 0)[0]
        return bound.values(column, nodes)

    def close(self) -> None:
        """Nothing is open."""


# -- one rank ----------------------------------------------------------------------------------------------------------


class RankFeeder:
    """The nodes of one rank, each when what it waits for is completed."""

    __slots__ = (
        *("_above", "_base", "_bases", "_bits", "_bits_view", "_graph", "_hint", "_remaining", "_remaining_view"),
        *("_source", "_start_view", "_succ_view", "_words", "completed", "in_flight", "rank", "ready_count"),
    )

    def __init__(self, source: Source, rank: int) -> None:
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
        # single nodes are handled in Python over the same arrays: cheaper than a call into compiled code
        self._remaining_view = self._remaining.data
        self._bits_view = self._bits.data
        self._start_view = graph.succ_start.data
        self._succ_view = graph.succ.data
        self._above = self._bases[:0:-1]
        """Where the levels above the lowest begin, the highest first."""
        self._hint = 0
        """No word of the lowest level before this one has a ready node."""

    def __len__(self) -> int:
        """Nodes in all."""
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
        """An issued node is through; what waited only for it is ready."""
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
        """An issued node was not run after all; it is ready again, at its old place in the order."""
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
        is_now = {_READY: "ready and not issued", _ISSUED: "in flight", _COMPLETED: "completed already"}
        state = self._remaining_view[node]
        problem = is_now.get(state, f"waiting for {state} more")
        needed = "ready" if wanted == _READY else "in flight (issued by `next` and not completed)"
        raise UsageError(f"node {node} is {problem}", where=where, hint=f"it would have to be {needed}")

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
        """Issues and at once completes node after node, all or up to `limit`; returns them in that order."""
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
        """All is completed: the state goes, and every node still answers that it is."""
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
        """A column of numbers at these nodes, UNKNOWN where nothing was recorded; text and slots come by `node`."""
        if column not in COLUMN or COLUMN[column].is_text or column in _NUMBERED:
            raise UsageError(f"`{column}` is not a column of plain numbers", hint="ask `node(...)` for it")
        rows = np.asarray(nodes)
        if len(rows) and not (0 <= rows.min() <= rows.max() < len(self)):
            self._refuse(int(rows.min() if rows.min() < 0 else rows.max()), _ISSUED)
        return self._source.values(self.rank, column, rows.astype(np.int32))

    def issued(self) -> I32:
        """The nodes in flight, ascending."""
        return np.flatnonzero(self._remaining == _ISSUED).astype(np.int32)

    def waiting(self, limit: int = _SHOWN) -> list[tuple[int, list[int]]]:
        """The first `limit` nodes that are not ready, each with the nodes (up to `limit`) that it still waits for."""
        found = []
        out = np.empty(max(limit, 0), np.int32)
        for node in np.flatnonzero(self._remaining > 0)[: max(limit, 0)].tolist():
            count = int(k.reasons(node, self._remaining, self._graph.succ_start, self._graph.succ, out))
            found.append((node, out[: min(count, len(out))].tolist()))
        return found

    def explain(self) -> str:
        """Where the rank stands, in words: how far it is, what is in flight, what waits for what; ids of the file."""
        lines = [f"rank {self.rank}: {self.completed} of {len(self)} nodes completed, {self.ready_count} ready"]
        for node in self.issued()[:_SHOWN].tolist():
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


# -- all ranks ---------------------------------------------------------------------------------------------------------


class Feeder:
    """The nodes of all ranks of a job. Ranks do not wait for one another here: that is the simulator's part.

    The state of a rank is made when the rank is first asked for, and given up when its last node is completed.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._known = frozenset(source.ranks.tolist())
        self._begun: dict[int, RankFeeder] = {}

    @property
    def ranks(self) -> I32:
        """The ranks that are present, ascending."""
        return self._source.ranks

    @property
    def nbytes(self) -> int:
        """Bytes held beside the traces."""
        return self._source.nbytes + sum(r.nbytes for r in self._begun.values())

    def __repr__(self) -> str:
        done = sum(r.done for r in self._begun.values())
        return f"Feeder({len(self._known)} ranks, {len(self._begun) - done} under way, {done} done)"

    def __enter__(self) -> Feeder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes files, if the nodes come from files."""
        self._source.close()

    def rank(self, rank: int) -> RankFeeder:
        """One rank: the same methods without the rank, and a little faster."""
        found = self._begun.get(rank)
        if found is None:
            if rank not in self._known:
                raise UsageError(f"rank {rank} is not in the job", hint=f"present: {ranges(self.ranks)}")
            found = self._begun[rank] = RankFeeder(self._source, rank)
        return found

    def next(self, rank: int) -> int | None:
        """Issues the smallest ready node of a rank; None if none is ready."""
        return self.rank(rank).next()

    def take(self, rank: int, node: int) -> None:
        """Issues this ready node, for simulators that choose among `ready` by a rule of their own."""
        self.rank(rank).take(node)

    def complete(self, rank: int, node: int) -> None:
        """An issued node is through; what waited only for it is ready."""
        self.rank(rank).complete(node)

    def push_back(self, rank: int, node: int) -> None:
        """An issued node was not run after all; it is ready again, at its old place in the order."""
        self.rank(rank).push_back(node)

    def ready(self, rank: int, limit: int | None = None) -> I32:
        """The ready nodes of a rank, or the first `limit` of them, ascending. They stay ready."""
        return self.rank(rank).ready(limit)

    def next_batch(self, rank: int, limit: int | None = None) -> I32:
        """Issues all nodes of a rank that are ready, or the first `limit` of them, ascending."""
        return self.rank(rank).next_batch(limit)

    def complete_many(self, rank: int, nodes: ArrayLike) -> int:
        """Completes issued nodes; returns how many became ready. If one of them is not in flight, none is completed."""
        return self.rank(rank).complete_many(nodes)

    def drain(self, rank: int, limit: int | None = None) -> I32:
        """Issues and at once completes node after node, all or up to `limit`; returns them in that order."""
        return self.rank(rank).drain(limit)

    def node(self, rank: int, node: int) -> NodeView:
        """A node by name."""
        return self.rank(rank).node(node)

    def values(self, rank: int, column: str, nodes: ArrayLike) -> NDArray[Any]:
        """A column of numbers of the trace at these nodes, for simulators that work on arrays."""
        return self.rank(rank).values(column, nodes)

    def waiting(self, rank: int, limit: int = _SHOWN) -> list[tuple[int, list[int]]]:
        """The first nodes of a rank that are not ready, each with nodes that it still waits for."""
        return self.rank(rank).waiting(limit)

    def done(self, rank: int | None = None) -> bool:
        """Are all nodes of the rank completed; of all ranks, if none is given?"""
        if rank is not None:
            return self.rank(rank).done
        return next(self._unfinished(), None) is None

    def _unfinished(self) -> Iterator[int]:
        for rank in self.ranks.tolist():
            begun = self._begun.get(rank)
            if not begun.done if begun else len(self._source.graph(rank)) > 0:
                yield rank

    def expect_done(self) -> None:
        """Raises DeadlockError unless all nodes of all ranks are completed; it names what is in flight and what waits.

        For the end of a simulation: when no event is left, what is not done never will be.
        """
        stuck = list(self._unfinished())
        if not stuck:
            return
        lines = [self.rank(rank).explain() for rank in stuck[:_SHOWN]]
        if len(stuck) > _SHOWN:
            lines.append(f"and {len(stuck) - _SHOWN} more ranks")
        raise DeadlockError(
            f"{len(stuck)} of {len(self._known)} ranks are not done\n" + "\n".join(lines),
            hint="complete the nodes in flight: a collective when all members have issued it, a receive after its send",
        )


def feeder(
    what: Job | Trace, *, data: bool = True, ctrl: bool = True, missing: Literal["error", "drop"] = "error"
) -> Feeder:
    """Feeds the ranks of a job, or one trace as rank 0.

    `data=False` and `ctrl=False` leave out that kind of dependency. A dependency on a node that is not in the trace is
    an error, unless `missing="drop"` says to start without it; nodes that wait for one another in a circle always are.
    """
    check_missing(missing)
    if isinstance(what, Trace):
        peers = np.full(what.peer_slots, -1, np.int64)
        what = assemble("trace", [Part(0, what, [(label, None) for label in what.group_slots], peers)])
    return Feeder(JobSource(what, data=data, ctrl=ctrl, missing=missing))


def check_missing(missing: str) -> None:
    if missing not in ("error", "drop"):
        raise UsageError(f"missing=`{missing}` is not a rule for missing nodes", hint="known: error, drop")
