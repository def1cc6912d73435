"""What a speed-up would save: the run re-timed, in the same order, with some of its operations faster.

Every node starts when what it waited for is done (dependencies, its lane, the device work that a host call waits for),
and after the same delay as before; a collective takes its transfer from the moment when all of its members are there.
So the result accounts for every other path, and is exact if the graph explains the run: for a simulation with closed
forms it equals a new simulation with the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.analyse import what_if_kernels as k
from etude.analyse.clocks import offsets
from etude.analyse.critical_path import KINDS, columns_of, ends_of, names_of, roles_of
from etude.analyse.grouping import table
from etude.analyse.operations import calls, messages
from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64
from etude.model.job import Job
from etude.model.match import match
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN
from etude.model.timing import Origin
from etude.model.use import uses

__all__ = ["FASTER", "MOST_NODES", "Retimed", "what_if", "with_gains"]


FASTER: Final = (0.1, 0.5, 1.0)
MOST_NODES: Final = 20_000_000
"""Most nodes of all ranks that can be re-timed; more need more memory than most machines have."""


def what_if(
    run: Run, classes: Sequence[tuple[str, str]], *, faster: Sequence[float] = FASTER, rendezvous: bool | None = None
) -> pa.Table:
    """One row per class (kind, name), as `critical_path.by_name` has them: how much shorter the run is with all nodes
    of the class faster by 10, 50, 100%: buys_10_ns, buys_50_ns, buys_100_ns. A name of "" is all of the kind.

    etude.extend.what_if(run, [("compute", "")])
    """
    retimed = Retimed(run, rendezvous)
    rows = []
    for kind, name in classes:
        chosen = retimed.chosen(kind, name)
        buys = {f"buys_{100 * part:.0f}_ns": retimed.buys(chosen, part) for part in faster}
        rows.append({"kind": kind, "name": name} | buys)
    whole = {f"buys_{100 * part:.0f}_ns": pa.int64() for part in faster}
    return table(rows, {"kind": pa.string(), "name": pa.string()} | whole)


class Retimed:
    """The events of a run and what each waits for; `length_ns` is the run as it was."""

    def __init__(self, run: Run, rendezvous: bool | None = None) -> None:
        job = run.job
        nodes = sum(len(job.traces[t]) for t in job.trace_of.tolist())
        if nodes > MOST_NODES:
            raise UsageError(f"{nodes:,} nodes are too many to re-time", hint=f"at most {MOST_NODES:,}")
        matching = match(job)
        shift = offsets(run, matching=matching)
        self.base = np.zeros(len(job.ranks), np.int64)
        self.words: dict[str, int] = {}
        parts: list[tuple[I64, I64, I64]] = []
        columns: dict[str, list[NDArray[Any]]] = {}
        total = 0
        simulated = run.timing.origin == Origin.SIMULATED
        for part in run.parts():
            role = roles_of(part.trace, by_name=not simulated)
            after, before, weight, delay = _edges(part, role, copies=not simulated)
            label, use = self._labels(part)
            ends = np.zeros(len(part.trace), bool)
            ends[ends_of(part, role)] = True
            times = np.stack([part.start_ns, part.end_ns], 1).reshape(-1)
            for i in part.at.tolist():
                self.base[i] = total
                parts.append((after + 2 * total, before + 2 * total, weight))
                moved = np.where(times == UNKNOWN, UNKNOWN, times + shift[i])
                of_run = {"times": moved, "label": label, "use": use, "delay": delay, "ends": ends}
                of_run["free"] = part.trace.lane < 0
                for name, values in of_run.items():
                    columns.setdefault(name, []).append(values)
                total += len(part.trace)
        flat = {name: np.concatenate(values) for name, values in columns.items()}
        self.recorded, self.label, self.use, self.delay = (flat[name] for name in ("times", "label", "use", "delay"))
        self.ends, self.free = flat["ends"], flat["free"]
        self._join(run, matching, parts, rendezvous)

    def _join(self, run: Run, matching: Any, parts: list[Any], rendezvous: bool | None) -> None:
        """Edges within and between ranks, as CSR, and what each event adds."""
        if rendezvous is None:
            rendezvous = run.timing.origin != Origin.SIMULATED
        parts.append(self._messages(run.job, matching, rendezvous))
        ready, meeting = self._collectives(run, matching)
        self.recorded = np.concatenate([self.recorded, ready])
        parts.append(meeting)
        after, before, weight = (np.concatenate([part[i] for part in parts]) for i in range(3))
        known = (self.recorded[after] != UNKNOWN) & (self.recorded[before] != UNKNOWN)
        known &= self.recorded[before] + weight <= self.recorded[after]  # clocks agree only approximately
        edges = after[known], before[known], weight[known]
        self.waits = self._sorted(*edges)
        self.order = k.in_order(self.waits, np.argsort(self.recorded, kind="stable"))
        turn = np.empty(len(self.order), np.int64)
        turn[self.order] = np.arange(len(self.order))
        goes_on = turn[edges[1]] < turn[edges[0]]
        if not goes_on.all():  # in a cycle, edges that contradict the times did not hold
            self.waits = self._sorted(*(column[goes_on] for column in edges))
        self.add = self.recorded - k.ready_at(self.waits, self.recorded)
        self.found = np.empty_like(self.recorded)
        self.length_ns = self._length(self.add)

    def _sorted(self, after: I64, before: I64, weight: I64) -> k.Waits:
        order = np.argsort(after, kind="stable")
        first = np.searchsorted(after[order], np.arange(len(self.recorded) + 1))
        return k.Waits(first, before[order], weight[order])

    def _labels(self, part: RunPart) -> tuple[I64, NDArray[np.uint8]]:
        """Number of each node's name, the same for all runs, and its use."""
        codes, words = names_of(part.trace, np.arange(len(part.trace)))
        number = np.array([self.words.setdefault(word, len(self.words)) for word in words] + [-1], np.int64)
        return number[codes], uses(part.trace)

    def _messages(self, job: Job, matching: Any, rendezvous: bool) -> tuple[I64, I64, I64]:
        found = messages(job, matching)
        send = self.base[found.src_at] + found.src_row.astype(np.int64)
        recv = self.base[found.dst_at] + found.dst_row.astype(np.int64)
        if rendezvous:  # both continue when both are there
            after, before = np.concatenate([2 * send + 1, 2 * recv + 1]), np.concatenate([2 * recv, 2 * send])
        else:  # a receive ends with its message, and begins with it if it occupies no lane
            free = self.free[recv]
            after = np.concatenate([2 * recv + 1, 2 * recv[free]])
            before = np.concatenate([2 * send + 1, 2 * send[free]])
        return after, before, np.zeros(len(after), np.int64)

    def _collectives(self, run: Run, matching: Any) -> tuple[I64, tuple[I64, I64, I64]]:
        """(moments at which all members are present, edges to and from them)."""
        found = calls(run, matching)
        node = self.base[found.at] + found.row.astype(np.int64)
        start, end = self.recorded[2 * node], self.recorded[2 * node + 1]
        seen = (start != UNKNOWN) & (end != UNKNOWN)
        ready = np.full(len(found), UNKNOWN, np.int64)
        np.maximum.at(ready, found.of[seen], start[seen])
        meets = len(self.recorded) + found.of[seen]
        node = node[seen]
        after, before = np.concatenate([meets, 2 * node + 1]), np.concatenate([2 * node, meets])
        return ready, (after, before, np.zeros(len(after), np.int64))

    def chosen(self, kind: str, name: str = "", at: int | None = None) -> I64:
        """Events whose time belongs to a class: ends of its nodes, or starts after a launch or an unexplained gap; on
        all ranks or on the one at a position."""
        named = np.ones(len(self.label), bool) if not name else self.label == self.words.get(name, -2)
        if at is not None:
            later = self.base[self.base > self.base[at]]
            named[: self.base[at]] = False
            named[later.min(initial=len(named)) :] = False
        if kind in ("launch", "gap"):
            return 2 * np.flatnonzero(named & (self.delay == (k.OF_LAUNCH if kind == "launch" else k.OF_GAP)))
        use = next((use for use, text in KINDS.items() if text == kind), None)
        if use is None:
            known = ", ".join([*KINDS.values(), "launch", "gap"])
            raise UsageError(f"unknown kind of time on a path: `{kind}`", hint=f"known: {known}")
        return 2 * np.flatnonzero(named & (self.use == use)) + 1

    def buys(self, events: I64, part: float | F64) -> int:
        """How much shorter the run is if these events take that fraction less time, one for all or one of each."""
        add = self.add.copy()
        add[events] -= np.rint(add[events] * part).astype(np.int64)
        return self.length_ns - self._length(add)

    @cached_property
    def fixed_ns(self) -> int:
        """Length of the run if everything in it took no time: nodes that wait for nothing recorded begin when they
        did."""
        return self.length_ns - self.buys(np.arange(len(self.add)), 1.0)

    def _length(self, add: I64) -> int:
        k.times(self.order, self.waits, add, self.recorded, self.found)
        last = self.found[2 * np.flatnonzero(self.ends) + 1]
        begun = self.recorded[: 2 * len(self.ends)]
        return int(last.max() - begun[begun != UNKNOWN].min()) if len(last) else 0


def _edges(part: RunPart, role: NDArray[np.uint8], *, copies: bool) -> tuple[I64, I64, I64, NDArray[np.uint8]]:
    found: tuple[I64, I64, I64, NDArray[np.uint8]] = k.edges_of_run(columns_of(part, part.timed, role, copies=copies))
    return found


def with_gains(run: Run, names: pa.Table, count: int) -> pa.Table:
    """A table of classes (kind, name) with columns of what making each faster gains, for the first `count` rows; None
    in the others, and of a run of more than `MOST_NODES` nodes."""
    count = 0 if run.job.nodes > MOST_NODES else count
    chosen = names.slice(0, count).select(["kind", "name"]).to_pylist()
    bought = what_if(run, [(row["kind"], row["name"]) for row in chosen]) if count else None
    for part in FASTER:
        column = f"buys_{100 * part:.0f}_ns"
        values = bought[column].to_pylist() if bought is not None else []
        values += [None] * (len(names) - len(values))
        names = names.append_column(column, pa.array(values, pa.int64()))
    return names
