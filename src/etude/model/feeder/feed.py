"""Feeder: the nodes of a job one after the other, each once its dependencies are completed.

    feed = feeder(job)
    while (node := feed.next(rank)) is not None:     # the smallest ready row; None: nothing is ready
        ... feed.node(rank, node).duration_ns ...
        feed.complete(rank, node)                    # releases what waited for it

Order: of the ready nodes the one with the smallest row is issued first. In a file whose ids ascend this is the smallest
id. What is ready depends only on what was completed, never on the order of completions.

Memory in addition to the trace: 12 B per node and 4 B per edge for each distinct program, and 4 1/8 B per node for each
active rank. `Feeder.nbytes` counts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from etude.base.errors import DeadlockError, UsageError
from etude.kernels.arrays import I32
from etude.model.feeder.node_view import NodeView
from etude.model.feeder.rank import RankFeeder
from etude.model.feeder.source import SHOWN, GraphSource, MemorySource, check_missing
from etude.model.job import Job, Part, assemble, ranges
from etude.model.trace import Trace


class Feeder:
    """The nodes of all ranks of a job. Ranks do not wait for one another here: that is up to the simulator.

    The state of a rank is made when the rank is first used, and freed when its last node is completed.
    """

    def __init__(self, source: GraphSource) -> None:
        self._source = source
        self._known = frozenset(source.ranks.tolist())
        self._begun: dict[int, RankFeeder] = {}

    @property
    def ranks(self) -> I32:
        """The ranks that are present, ascending."""
        return self._source.ranks

    @property
    def nbytes(self) -> int:
        """Bytes held in addition to the traces."""
        return self._source.nbytes + sum(r.nbytes for r in self._begun.values())

    def __repr__(self) -> str:
        done = sum(r.done for r in self._begun.values())
        return f"Feeder({len(self._known)} ranks, {len(self._begun) - done} started, {done} done)"

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
        """Completes an issued node; nodes that waited only for it become ready."""
        self.rank(rank).complete(node)

    def push_back(self, rank: int, node: int) -> None:
        """Returns an issued node that was not run; it is ready again, at its old place in the order."""
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
        """Issues and immediately completes node after node, all or up to `limit`; returns them in that order."""
        return self.rank(rank).drain(limit)

    def node(self, rank: int, node: int) -> NodeView:
        """A node by name."""
        return self.rank(rank).node(node)

    def values(self, rank: int, column: str, nodes: ArrayLike) -> NDArray[Any]:
        """A column of numbers of the trace at these nodes, for simulators that work on arrays."""
        return self.rank(rank).values(column, nodes)

    def waiting(self, rank: int, limit: int = SHOWN) -> list[tuple[int, list[int]]]:
        """The first nodes of a rank that are not ready, each with nodes that it still waits for."""
        return self.rank(rank).waiting(limit)

    def done(self, rank: int | None = None) -> bool:
        """Whether all nodes of the rank are completed; of all ranks, if none is given."""
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
        lines = [self.rank(rank).explain() for rank in stuck[:SHOWN]]
        if len(stuck) > SHOWN:
            lines.append(f"and {len(stuck) - SHOWN} more ranks")
        hint = "complete the nodes in flight: a collective when all members have issued it, a receive after its send"
        raise DeadlockError(f"{len(stuck)} of {len(self._known)} ranks are not done\n" + "\n".join(lines), hint=hint)


def feeder(
    what: Job | Trace, *, data: bool = True, ctrl: bool = True, missing: Literal["error", "drop"] = "error"
) -> Feeder:
    """Feeds the ranks of a job, or one trace as rank 0.

    `data=False` and `ctrl=False` leave out that kind of dependency. A dependency on a node that is not in the trace is
    an error, unless `missing="drop"` says to start without it; nodes that wait for one another in a circle always are.

    etude.extend.feeder(job).next(0)
    """
    check_missing(missing)
    if isinstance(what, Trace):
        peers = np.full(what.peer_slots, -1, np.int64)
        what = assemble("trace", [Part(0, what, [(label, None) for label in what.group_slots], peers)])
    return Feeder(MemorySource(what, data=data, ctrl=ctrl, missing=missing))
