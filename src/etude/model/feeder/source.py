"""Dependencies and node lookup, shared by all ranks that run the same program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import CycleError, DanglingDependency, TraceError, UsageError
from etude.kernels.arrays import I32, I64
from etude.kernels.csr import fill_reverse, topological
from etude.model.feeder import kernels as k
from etude.model.feeder.node_view import Bound, NodeView
from etude.model.job import Job

Missing = Literal["error", "drop"]
Edges = tuple[I64, I32]
"""Dependencies as CSR: node i waits for rows[start[i]:start[i+1]]; below 0 is ~k, the k-th missing id."""

SHOWN = 8
"""Nodes that an error names before it counts the rest."""


@dataclass(frozen=True, slots=True, eq=False)
class FeederGraph:
    """Successors. Those of node i are succ[succ_start[i]:succ_start[i+1]], with repeats as in the file; it waits for
    indegree[i] completions itself."""

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
        """(graph, for each CSR (edges to missing nodes, the first node that has one), whether any edge leads forward).

        Edges to missing nodes are left out. Entries must be rows of the graph or below 0.
        """
        indegree = np.zeros(nodes, np.int32)
        places = np.zeros(nodes + 2, np.int64)  # one extra: filling moves every start one down
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
        """Nodes of a cycle, each of which waits for the one before it; [] if there is none."""
        remaining = self.indegree.copy()
        if topological(remaining, self.succ_start, self.succ, np.empty(len(self), np.int32)) == len(self):
            return []
        before = np.zeros(len(self), np.int32)
        first = node = int(k.one_cycle(remaining, self.succ_start, self.succ, before))
        found = [first]
        while (node := int(before[node])) != first:
            found.append(node)
        return found[::-1]


class GraphSource(Protocol):
    """Where a feeder finds its graphs and its nodes: a job in memory, or files."""

    @property
    def ranks(self) -> I32: ...

    @property
    def nbytes(self) -> int:
        """Bytes held in addition to the traces, including graphs."""

    def graph(self, rank: int) -> FeederGraph: ...

    def locate(self, rank: int, node: int) -> tuple[Bound, int]:
        """A range of the rank's trace that contains the node, and the node's row in it."""

    def values(self, rank: int, column: str, nodes: I32) -> NDArray[Any]:
        """A column of numbers at these nodes."""

    def close(self) -> None: ...


def raise_dangling(view: NodeView, missing_id: int, edges: int) -> None:
    """Raises: `edges` dependencies lead to missing nodes; the first is that of `view` on `missing_id`."""
    kinds = [name for name, found in (("data", view.data_ids), ("ctrl", view.ctrl_ids)) if missing_id in found]
    kind = kinds[0] if kinds else "data"
    more = f" ({edges} such dependencies in total)" if edges > 1 else ""
    problem = f"node {view.source_id} waits for node {missing_id}, which is not in the trace{more}"
    hint = f'`missing="drop"` ignores dependencies on missing nodes; `{kind}=False` leaves out {kind} dependencies'
    raise DanglingDependency(problem, where=f"rank {view.rank}", hint=hint)


def raise_cycle(rank: int, ids: Sequence[int]) -> None:
    shown = " -> ".join(map(str, ids[:SHOWN])) + (f" -> ... ({len(ids)} in total)" if len(ids) > SHOWN else "")
    hint = "each of these ids waits for the one before it; no order of execution satisfies the trace"
    raise CycleError(f"nodes wait for one another in a cycle: {shown} -> {ids[0]}", where=f"rank {rank}", hint=hint)


class MemorySource:
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
                raise TraceError(f"the dependencies of node {bad} are outside the trace", where=f"rank {rank}")
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
        """Does nothing: no file is open."""


def check_missing(missing: str) -> None:
    if missing not in ("error", "drop"):
        raise UsageError(f"missing=`{missing}` is not a rule for missing nodes", hint="known: error, drop")
