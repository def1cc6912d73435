"""What is used of a job that is learned from: its programs, node by node, in dependency order.

Names are read here to distinguish nodes that do the same thing, and are not stored: the model has only classes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.kernels.arrays import I64
from etude.make.synth.learned import COLUMNS
from etude.model import graph
from etude.model.frames import frames
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace

MAX_OWN: Final = 64
"""Most ranks of a program whose own values are learned from."""
FIELDS: Final = ("kind", "cpu", "lane", "collective", "group", "src", "dst", "priority", "optimizer")
"""Columns that describe a node, apart from its size."""
TALKS: Final = (Kind.COLL, Kind.SEND, Kind.RECV)


@dataclass(slots=True, eq=False)
class LearnedProgram:
    """One program and the ranks that run it. Rows are places in the learned order, not those of the trace."""

    trace: Trace
    ranks: I64
    """Positions of the ranks in the job."""
    order: NDArray[np.int32]
    """Row in the trace of each place."""
    step: I64
    """Which of the program's steps a place belongs to, counted from 0."""
    what: I64
    """FIELDS of each place, slots and lanes numbered by first use."""
    word: I64
    """Its name, as a number shared by all programs."""
    values: list[I64]
    """COLUMNS of each place: of ranks that have values of their own, and of the others once."""
    weights: list[float]
    """Number of ranks that each of these represents."""
    late_ns: list[int]
    """How much later than the first of the job each of these ranks began. It is not among the values."""
    group_slots: I64
    """Slot in the trace of each slot here."""
    peer_slots: I64

    def __len__(self) -> int:
        return len(self.order)

    @property
    def steps(self) -> int:
        return int(self.step.max(initial=0)) + 1

    @property
    def time_ns(self) -> I64:
        """Compute time of each place, on the first rank; 0 if unknown."""
        return np.where(self.computes, np.maximum(self.values[0][:, 0], 0), 0)

    @property
    def talks(self) -> NDArray[np.bool_]:
        return np.isin(self.what[:, 0], TALKS)

    @property
    def computes(self) -> NDArray[np.bool_]:
        return self.what[:, 0] == Kind.COMP

    @property
    def on_host(self) -> NDArray[np.bool_]:
        return self.what[:, 1] == 1


def programs_of(job: Job, words: dict[str, int]) -> list[LearnedProgram]:
    """The programs of a folded job. `words` numbers the names of nodes, over all jobs."""
    return [_program(job, number, trace, words) for number, trace in enumerate(job.traces)]


def _program(job: Job, number: int, trace: Trace, words: dict[str, int]) -> LearnedProgram:
    order = order_of(trace)
    if len(order) < len(trace):
        raise TraceError("nodes wait for one another in a cycle, so there is no order to learn", where=job.name)
    step = _steps(trace, order)
    by_step = np.argsort(
        step, kind="stable"
    )  # steps do not wait for later ones, so each node stays behind what it needs
    order, step = order[by_step], step[by_step]
    columns = [getattr(trace, name).astype(np.int64) for name in FIELDS[:-1]]
    what = np.stack([*columns, _optimizes(trace)], 1)[order]
    what[what[:, 0] != Kind.COLL, FIELDS.index("group")] = -1  # a message needs only its peer
    # Lanes that follow from the kind are not learned.
    what[((trace.cpu != 1) & (trace.stream == UNKNOWN))[order], FIELDS.index("lane")] = -1
    _renumber(what, ("lane",))
    group_slots, peer_slots = _renumber(what, ("group",)), _renumber(what, ("src", "dst"))
    values, weights = _values(job, number, trace, order)
    late_ns = _late(job, trace, order, values)
    return LearnedProgram(
        trace=trace,
        ranks=np.flatnonzero(job.trace_of == number),
        order=order,
        step=step,
        what=what,
        word=_words(trace, words)[order],
        values=values,
        weights=weights,
        late_ns=late_ns,
        group_slots=group_slots,
        peer_slots=peer_slots,
    )


def order_of(trace: Trace) -> NDArray[np.int32]:
    """Each node behind what it waits for, and what it frees right behind it: a micro-batch stays together, and the same
    program has the same order whatever its times were. In a recorded one, calls on one group or to one peer stay in the
    order of rows, which is that of time on every rank."""
    found = _walk(trace, _in_turn(trace) if (trace.cpu == 1).any() else {})
    return found if len(found) == len(trace) else _walk(trace, {})


def _walk(trace: Trace, then: dict[int, list[int]]) -> NDArray[np.int32]:
    waits, frees = graph.dependencies(trace), graph.successors(trace)
    start, rows = frees.start.tolist(), frees.rows.tolist()
    owner = np.repeat(np.arange(len(trace)), np.diff(waits.start))
    missing = np.bincount(owner[waits.rows >= 0], minlength=len(trace)).tolist()
    for others in then.values():
        for other in others:
            missing[other] += 1
    stack = [row for row in reversed(range(len(trace))) if not missing[row]]
    found = []
    while stack:
        row = stack.pop()
        found.append(row)
        freed = rows[start[row] : start[row + 1]]
        if row in then:
            freed = sorted(freed + then[row])
        for other in reversed(freed):
            missing[other] -= 1
            if not missing[other]:
                stack.append(other)
    return np.array(found, np.int32)


def _in_turn(trace: Trace) -> dict[int, list[int]]:
    """The next call on the same group, or to or from the same peer."""
    found: dict[int, list[int]] = {}
    for kind, column in ((Kind.COLL, "group"), (Kind.SEND, "dst"), (Kind.RECV, "src")):
        calls = np.flatnonzero(trace.kind == kind)
        calls = calls[np.argsort(getattr(trace, column)[calls], kind="stable")]
        same = np.diff(getattr(trace, column)[calls]) == 0
        for a, b in zip(calls[:-1][same].tolist(), calls[1:][same].tolist(), strict=True):
            found.setdefault(a, []).append(b)
    return found


def _steps(trace: Trace, order: NDArray[np.int32]) -> I64:
    """Step of each place, counted from 0: as recorded, but never before that of a node it waits for."""
    waits = graph.dependencies(trace)
    start, rows = waits.start.tolist(), waits.rows.tolist()
    known = trace.step[trace.step != UNKNOWN]
    step = np.maximum(trace.step, known.min() if len(known) else 0).tolist()  # what is before belongs to the first
    for row in order.tolist():
        step[row] = max([step[row], *(step[other] for other in rows[start[row] : start[row + 1]] if other >= 0)])
    return np.unique(np.array(step, np.int64)[order], return_inverse=True)[1].reshape(-1).astype(np.int64)


def _renumber(what: I64, fields: tuple[str, ...]) -> I64:
    """Numbers these fields together by first use, and says what each number was; -1 stays."""
    columns = [FIELDS.index(name) for name in fields]
    flat = what[:, columns].ravel()
    known = flat >= 0
    old, first = np.unique(flat[known], return_index=True)
    by_use = np.argsort(first)
    new = np.empty(len(old), np.int64)
    new[by_use] = np.arange(len(old))
    flat[known] = new[np.searchsorted(old, flat[known])]
    what[:, columns] = flat.reshape(-1, len(columns))
    return old[by_use]


def _words(trace: Trace, words: dict[str, int]) -> I64:
    """The names of a node and of its caller, without numbers; -1: no name."""
    codes, names = trace.coded("name")
    phases, phase_names = trace.coded("phase")
    plain = [re.sub(r"\d+", "#", name) for name in names]
    parent = np.where(trace.parent >= 0, codes[np.maximum(trace.parent, 0)], -1)
    distinct, inverse = np.unique(np.stack([codes, parent, phases, frames(trace)], 1), axis=0, return_inverse=True)
    numbers = []
    for own, caller, phase, frame in distinct.tolist():
        texts = (plain[caller] if caller >= 0 else "", phase_names[phase] if phase >= 0 else "", str(frame))
        numbers.append(words.setdefault("\0".join((plain[own], *texts)), len(words)) if own >= 0 else -1)
    return np.array(numbers, np.int64)[inverse.reshape(-1)]


def _optimizes(trace: Trace) -> I64:
    """Compute on the device in the optimizer's phase."""
    codes, names = trace.coded("phase")
    found = np.isin(codes, [code for code, name in enumerate(names) if name == "optimizer"])
    return (found & (trace.kind == Kind.COMP) & (trace.cpu != 1)).astype(np.int64)


def _values(job: Job, number: int, trace: Trace, order: NDArray[np.int32]) -> tuple[list[I64], list[float]]:
    ranks = job.ranks[job.trace_of == number].tolist()
    own = [r for r in ranks if r in job.values]
    shared = np.stack([getattr(trace, c).astype(np.int64) for c in COLUMNS], 1)
    zeroed = frames(trace)
    found, weights = [], []
    if len(own) < len(ranks):
        found.append(shared)
        weights.append(float(len(ranks) - len(own)))
    some = own if len(own) <= MAX_OWN else [own[i * len(own) // MAX_OWN] for i in range(MAX_OWN)]
    for rank in some:
        columns: list[Any] = [job.values[rank].get(c, shared[:, i]) for i, c in enumerate(COLUMNS)]
        found.append(np.stack(columns, 1).astype(np.int64))
        weights.append(len(own) / len(some))
    for values in found:
        values[zeroed, 0] = 0
    return [values[order] for values in found], weights


def _late(job: Job, trace: Trace, order: NDArray[np.int32], values: list[I64]) -> list[int]:
    """A rank of several that began later than the others waits first: the linker writes that as a segment."""
    first = int(order[0]) if len(order) else -1
    if len(job) < 2 or first < 0 or trace.cpu[first] != 1 or trace.text("name", first) != "host":
        return [0] * len(values)
    found = []
    for some in values:
        found.append(max(int(some[0, 0]), 0))
        some[0, 0] = 0
    return found
