"""A recorded job with the device times of another recording of its program, and at the speed of that one's host.

    found = with_device_times(job, other)
    found.job, found.host_factor        # what `job` would have been on the device and the host of `other`

Operators are the same where their place in the call tree is, and how often it came before. Each operator's work on the
device gets the time that it took in the other recording; every time of the host is multiplied by one factor, that of
the operators which both hosts ran.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import MismatchError
from etude.kernels.arrays import F64, I64, Bool
from etude.model.as_recorded import without_recorded
from etude.model.frames import host_work
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind, Why
from etude.model.trace import Trace

FEWEST: Final = 50
"""Pieces of host time in both recordings that a factor requires."""
LEAST_SHARED: Final = 0.5
"""... and the fraction of the host's time that they must cover."""
LONGEST: Final = 10
"""A piece of host time longer than this many times the median of its place was interrupted or waited: it is clipped."""
_NUMBERED: Final = re.compile(r"#\d+$")
_CALL: Final = re.compile(r"(cu|cuda|hip)[A-Z]")
"""Calls of the runtime: a launch takes longer if the device is behind, whatever the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimes:
    job: Job
    placed: float
    """Fraction of the other recording's device time in operators with device time in the job; the rest is spread."""
    host_factor: float
    """Factor on host times."""
    pieces: int
    """Pieces of host time at places of the call tree that both hosts reached equally often per step: the factor comes
    from those."""
    shared: float
    """Fraction of the job's host time, without runtime calls, that they cover."""


def with_device_times(job: Job, other: Job, host_factor: float | None = None) -> DeviceTimes:
    """The job with the device times of another recording of its program. `host_factor`: given, instead of derived from
    the operators that both ran. Raises MismatchError where the two are not recordings of one program."""
    if job.ranks.tolist() != other.ranks.tolist():
        hint = "both must have the same ranks"
        raise MismatchError(f"the recordings are of {len(job.ranks):,} and {len(other.ranks):,} ranks", hint=hint)
    pairs = [_Pair(_of_rank(job, rank), _of_rank(other, rank)) for rank in job.ranks.tolist()]
    pieces, shared, factor = _host_factor(pairs)
    if host_factor is not None:
        factor = host_factor
    elif pieces < FEWEST or shared < LEAST_SHARED:
        raise MismatchError(
            f"the recordings share {pieces:,} pieces of host time ({shared:.0%}), too few to compare their hosts",
            hint="give two recordings of one program, or the factor of host times: --host-speed 1",
        )
    traces = tuple(pair.exchanged(factor) for pair in pairs)
    total, placed = sum(p.other_ns for p in pairs), sum(p.placed_ns for p in pairs)
    if not total or not placed:
        raise MismatchError(
            "no operator uses the device in both recordings", hint="both must be recorded with a device"
        )
    changed = job.replace(
        traces=traces, trace_of=np.arange(len(traces), dtype=job.trace_of.dtype), values={}, timing=None
    )
    return DeviceTimes(job=changed, placed=placed / total, host_factor=factor, pieces=pieces, shared=shared)


def _of_rank(job: Job, rank: int) -> Trace:
    trace = job.traces[int(job.trace_of[job.index(rank)])]
    return trace.replace(**job.values[rank]) if rank in job.values else trace


class _Pair:
    """A rank's trace and its other recording, with the places of their nodes in both call trees."""

    def __init__(self, trace: Trace, other: Trace) -> None:
        self.trace, self.other = trace, other
        self.path, self.other_path, self.is_call = _paths(trace, other)
        self.other_ns = self.placed_ns = 0

    # -- device

    def exchanged(self, factor: float) -> Trace:
        """The trace with the other's device times, and its own host times multiplied by a factor."""
        duration = self.trace.duration_ns.copy()
        mine = host_work(self.trace)
        duration[mine] = np.rint(duration[mine] * factor).astype(np.int64)
        nodes = _on_device(self.trace)
        operator = self.trace.parent[nodes]
        own = np.bincount(operator, duration[nodes], len(self.trace)).astype(np.float64)
        theirs = self._other_times(own)
        known = ~np.isnan(theirs[operator]) & (own[operator] > 0)
        took = duration[nodes] * np.where(known, theirs[operator] / np.maximum(own[operator], 1), 1.0)
        # one operator here may be two there: the total is the time of as many steps
        total = self.other_ns * _steps(self.trace) / _steps(self.other)
        duration[nodes] = np.rint(took * (total / took.sum() if took.sum() else 1.0)).astype(np.int64)
        return without_recorded(self.trace).replace(duration_ns=duration)

    def _other_times(self, own: F64) -> F64:
        """Device time of each node's operator in the other recording: the occurrence with the same number, else the
        mean of its place; NaN if the place has none."""
        nodes = _on_device(self.other)
        took = np.bincount(self.other.parent[nodes], self.other.duration_ns[nodes], len(self.other))
        rows = np.flatnonzero(np.bincount(self.other.parent[nodes], minlength=len(self.other)))
        here = np.flatnonzero(own > 0)
        key, other_key = _numbered(self.path[here]), _numbered(self.other_path[rows])
        order = np.argsort(other_key)
        at = np.minimum(np.searchsorted(other_key[order], key), len(rows) - 1) if len(rows) else key[:0]
        found = np.full(len(own), np.nan)
        if not len(rows):
            return found
        places = int(max(self.path.max(), self.other_path.max())) + 1
        count = np.bincount(self.other_path[rows], minlength=places)
        total = np.bincount(self.other_path[rows], took[rows], places)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)[self.path[here]]
        found[here] = np.where(other_key[order][at] == key, took[rows][order][at], mean)
        is_here = np.bincount(self.path[here], minlength=places)[self.other_path[rows]] > 0
        self.other_ns, self.placed_ns = int(took[rows].sum()), int(took[rows][is_here].sum())
        return found

    # -- host

    def host_times(self) -> tuple[int, F64]:
        """(Pieces at places that both hosts reached equally often; host time: all here, theirs here, and there)"""
        places = int(max(self.path.max(initial=0), self.other_path.max(initial=0))) + 1
        here, there = (
            _by_place(t, p, self.is_call, places) for t, p in ((self.trace, self.path), (self.other, self.other_path))
        )
        steps = _steps(self.trace), _steps(self.other)
        alike = (here[0] > 0) & (here[0] * steps[1] == there[0] * steps[0])
        sums = here[1].sum(), here[1][alike].sum(), there[1][alike].sum() * steps[0] / steps[1]
        return int(here[0][alike].sum()), np.array(sums)


def _host_factor(pairs: list[_Pair]) -> tuple[int, float, float]:
    """(Pieces that both hosts went through, the part of the host's time that they are, time there over time here).

    A ratio of sums: a host that is slower is so by more where it does more, so that the median of ratios says less than
    the span will show."""
    found = [pair.host_times() for pair in pairs]
    total, here, there = np.sum([times for _, times in found], axis=0).tolist()
    return sum(n for n, _ in found), here / total if total else 0.0, there / here if here else 1.0


def _by_place(trace: Trace, path: I64, is_call: Bool, places: int) -> tuple[I64, F64]:
    """(Nodes, their time) of the host by place: without waits, and with interrupted pieces clipped."""
    waited = np.zeros(len(trace), np.bool_)
    edges = np.flatnonzero(np.isin(trace.data_why, (Why.SYNC, Why.AUTOGRAD)))
    waited[np.searchsorted(trace.data_start, edges, "right") - 1] = True
    nodes = np.flatnonzero(host_work(trace) & ~is_call[path] & ~waited)
    order = nodes[np.lexsort((trace.duration_ns[nodes], path[nodes]))]
    count = np.bincount(path[order], minlength=places)
    first = np.cumsum(count) - count
    median = np.append(trace.duration_ns[order], 0)[np.minimum(first + count // 2, len(order))]
    cut = np.minimum(trace.duration_ns[order], LONGEST * median[path[order]])
    return count.astype(np.int64), np.bincount(path[order], cut, places).astype(np.float64)


def _steps(trace: Trace) -> int:
    """Number of recorded steps; 1 if not distinguished."""
    known = trace.step[trace.step != UNKNOWN]
    return max(len(np.unique(known)), 1)


# -- nodes -------------------------------------------------------------------------------------------------------------


def _on_device(trace: Trace) -> I64:
    known = (trace.duration_ns != UNKNOWN) & (trace.parent >= 0)
    return np.flatnonzero((trace.cpu == 0) & (trace.kind == Kind.COMP) & known)


def _paths(a: Trace, b: Trace) -> tuple[I64, I64, Bool]:
    """(Place of each node of either in the call tree, with common numbers; which places are calls of the runtime).
    Numbers of steps do not distinguish places."""
    words: dict[str, int] = {}
    names, above, depth = [], [], []
    for trace in (a, b):
        codes, own = trace.coded("name")
        known = np.array([words.setdefault(_NUMBERED.sub("#", w), len(words)) for w in own] + [-1], np.int64)
        names.append(known[codes])
        above.append(trace.parent.astype(np.int64))
        depth.append(_depths(trace.parent))
    path = [np.zeros(len(names[0]), np.int64), np.zeros(len(names[1]), np.int64)]
    is_call = np.array([bool(_CALL.match(word)) for word in words] + [False])
    called, first = [np.zeros(0, np.bool_)], 0
    for level in range(max(int(d.max(initial=-1)) for d in depth) + 1):
        rows = [np.flatnonzero(d == level) for d in depth]
        caller = [np.where(u[r] >= 0, p[u[r]], -1) + 1 for u, r, p in zip(above, rows, path, strict=True)]
        key = np.concatenate([c * (len(words) + 1) + n[r] + 1 for c, n, r in zip(caller, names, rows, strict=True)])
        once, number = np.unique(key, return_inverse=True)
        number = number.reshape(-1) + first
        path[0][rows[0]], path[1][rows[1]] = number[: len(rows[0])], number[len(rows[0]) :]
        called.append(is_call[once % (len(words) + 1) - 1])
        first += len(once)
    return path[0], path[1], np.concatenate(called)


def _depths(parent: NDArray[np.int32]) -> I64:
    depth, above = np.zeros(len(parent), np.int64), parent.astype(np.int64)
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    return depth


def _numbered(path: I64) -> I64:
    """One number for a place and its occurrence."""
    order = np.argsort(path, kind="stable")
    first = np.searchsorted(path[order], path[order])
    before = np.empty(len(path), np.int64)
    before[order] = np.arange(len(path)) - first
    return path << 32 | before
