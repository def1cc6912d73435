"""likeness(a, b): how much one job behaves like another, by distributions, by sums, and by what a simulation says."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.analyse.breakdown import breakdown
from etude.kernels.arrays import F64, I64
from etude.machine.system import System
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.totals import known
from etude.model.trace import Trace
from etude.run.simulate import simulate
from etude.steps.step import grown

SIZES: Final = (
    ("compute FLOPs", (Kind.COMP,), "flops"),
    ("compute bytes", (Kind.COMP,), "tensor_bytes"),
    ("compute times", (Kind.COMP,), "duration_ns"),
    ("collective bytes", (Kind.COLL,), "in_bytes"),
    ("message bytes", (Kind.SEND,), "in_bytes"),
)
"""What is compared as a distribution: which nodes, which column."""
MAX_OWN: Final = 256
"""Ranks with values of their own that are looked at."""


def likeness(a: Job, b: Job, system: System | None = None) -> list[dict[str, Any]]:
    """Rows of (what, measure, a, b, difference). Figures are means over ranks and steps, so jobs of other size compare.

    A distance is between 0 (the same) and 1: Kolmogorov's and Smirnov's for sizes, total variation for mixes. An error
    is b over a, less one. Points are b less a, both parts of a whole.
    """
    left, right = _Side(a), _Side(b)
    rows = [
        _error("nodes per rank and step", left.mean(len), right.mean(len)),
        _mix("kinds of nodes", left, right, lambda t: t.kind),
        _mix("kinds of collectives", left, right, _collectives),
        _mix("nodes waited for", left, right, _waited),
    ]
    for what, kinds, column in SIZES:
        values = left.values(kinds, column), right.values(kinds, column)
        if len(values[0][0]) and len(values[1][0]):
            rows.append(_row(f"{what}, each", "distance", None, None, _smirnov(*values)))
            rows.append(_error(f"{what} per rank", *(float((v * w).sum()) for v, w in values)))
    for collective in Collective:
        sent = left.sent(collective), right.sent(collective)
        if collective and any(sent):
            rows.append(_error(f"{collective.name.lower()} bytes per rank", *sent))
    for what, found in (
        ("ranks", [s.spread_of_ranks for s in (left, right)]),
        ("steps", [s.spread_of_steps for s in (left, right)]),
    ):
        if None not in found:
            rows.append(_points(f"spread of {what}: deviation of compute time", *found))  # type: ignore[arg-type]
    if system is not None:
        rows += _simulated(left, right, system)
    return rows


def _row(what: str, measure: str, a: Any, b: Any, difference: float) -> dict[str, Any]:
    return {"what": what, "measure": measure, "a": a, "b": b, "difference": round(difference, 4)}


def _error(what: str, a: float, b: float) -> dict[str, Any]:
    return _row(what, "error", round(a), round(b), b / a - 1 if a else float("nan") if b else 0.0)


def _points(what: str, a: float, b: float) -> dict[str, Any]:
    return _row(what, "points", round(a, 4), round(b, 4), b - a)


class _Side:
    """One of the two: its programs, and how many of each a mean rank has in a step."""

    def __init__(self, job: Job) -> None:
        self.job = job
        steps = {int(s) for t in job.traces for s in np.unique(t.step) if s != UNKNOWN}
        self.steps = max(len(steps), 1)

    @cached_property
    def programs(self) -> list[tuple[Trace, float]]:
        """Traces with the values that count, and the weight of each: ranks that have them, over ranks and steps."""
        job = self.job
        own = job.ranks[np.isin(job.ranks, list(job.values))]
        each = 1 / (len(job) * self.steps)
        shared = np.bincount(job.trace_of[~np.isin(job.ranks, own)], minlength=len(job.traces))
        found = [(t, n * each) for t, n in zip(job.traces, shared.tolist(), strict=True) if n]
        some = own[np.linspace(0, len(own) - 1, min(len(own), MAX_OWN)).round().astype(int)] if len(own) else own
        return found + [(job.trace(int(rank)), each * len(own) / len(some)) for rank in some]

    def mean(self, of: Callable[[Trace], float]) -> float:
        return float(sum(of(trace) * share for trace, share in self.programs))

    def sent(self, collective: Collective) -> float:
        return self.mean(lambda t: float(known(t.in_bytes)[t.collective == collective].sum()))

    def values(self, kinds: tuple[Kind, ...], column: str) -> tuple[F64, F64]:
        """Values that are known, and the weight of each."""
        found, weight = [], []
        for trace, share in self.programs:
            values = getattr(trace, column)[np.isin(trace.kind, kinds)]
            values = values[values != UNKNOWN]
            found.append(values.astype(np.float64))
            weight.append(np.full(len(values), share))
        return np.concatenate(found), np.concatenate(weight)

    @cached_property
    def spread_of_ranks(self) -> float | None:
        """Standard deviation of what ranks compute, over their mean; None for one rank, or without times."""
        job = self.job
        some = job.ranks[np.linspace(0, len(job) - 1, min(len(job), MAX_OWN)).round().astype(int)]
        return _deviation(np.array([_computed(job.trace(int(rank))).sum() for rank in some]))

    @cached_property
    def spread_of_steps(self) -> float | None:
        """The same from step to step, averaged over the ranks."""
        found = []
        for trace, _ in self.programs[:MAX_OWN]:
            step = np.where(trace.step == UNKNOWN, -1, trace.step)
            known = step >= 0
            of = np.unique(step[known], return_inverse=True)[1]
            spread = _deviation(np.bincount(of, _computed(trace)[known]).astype(np.float64))
            found += [spread] if spread is not None else []
        return float(np.mean(found)) if found else None


def _deviation(sums: F64) -> float | None:
    return float(sums.std() / sums.mean()) if len(sums) > 1 and sums.mean() > 0 else None


def _computed(trace: Trace) -> F64:
    return np.where(trace.kind == Kind.COMP, known(trace.duration_ns), 0).astype(np.float64)


def _smirnov(a: tuple[F64, F64], b: tuple[F64, F64]) -> float:
    """The largest distance of the two cumulative distributions, sizes within 3% taken for equal."""
    left, right = (np.rint(np.log2(np.maximum(v, 1)) * 24) for v in (a[0], b[0]))
    points = np.union1d(left, right)
    cumulative = []
    for values, weight in ((left, a[1]), (right, b[1])):
        at = np.searchsorted(points, values)
        cumulative.append(np.cumsum(np.bincount(at, weight, len(points))) / weight.sum())
    return float(np.abs(cumulative[0] - cumulative[1]).max())


def _mix(what: str, a: _Side, b: _Side, of: Callable[[Trace], NDArray[Any]]) -> dict[str, Any]:
    shares = []
    for side in (a, b):
        mix = np.zeros(256)
        for trace, share in side.programs:
            mix += share * np.bincount(of(trace), minlength=256)[:256]
        shares.append(mix / max(mix.sum(), 1e-300))
    return _row(what, "distance", None, None, float(np.abs(shares[0] - shares[1]).sum() / 2))


def _collectives(trace: Trace) -> NDArray[Any]:
    return trace.collective[trace.collective != Collective.NONE]


def _waited(trace: Trace) -> I64:
    """How many nodes each waits for."""
    return np.minimum(np.diff(trace.data_start) + np.diff(trace.ctrl_start), 255)


def _simulated(a: _Side, b: _Side, system: System) -> list[dict[str, Any]]:
    sides = (a, b)
    runs = [simulate(side.job, grown(system, len(side.job))) for side in sides]
    step = [run.makespan_ns / side.steps for run, side in zip(runs, sides, strict=True)]
    rows = [_error("simulated step, ns", *step)]
    tables = [breakdown(run) for run in runs]
    for column in ("compute_ns", "comm_ns", "exposed_comm_ns"):
        means = [float(np.mean(t[column].to_numpy())) / side.steps for t, side in zip(tables, sides, strict=True)]
        rows.append(_error(f"simulated {column} per rank", *means))
        if column != "compute_ns":
            rows.append(_points(f"simulated {column}, fraction of the step", means[0] / step[0], means[1] / step[1]))
    return rows
