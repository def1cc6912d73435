"""likeness(a, b): how much one job behaves like another, by distributions, by sums, and by what a simulation says."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.system import System
from etude.simulate.run import simulate
from etude.sweep.predict import grown

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

SIZES: Final = (
    ("compute FLOPs", (Kind.COMP,), "flops"),
    ("compute bytes", (Kind.COMP,), "tensor_bytes"),
    ("compute times", (Kind.COMP,), "duration_ns"),
    ("collective bytes", (Kind.COLL,), "in_bytes"),
    ("message bytes", (Kind.SEND,), "in_bytes"),
)
"""What is compared as a distribution: which nodes, which column."""


def likeness(a: Job, b: Job, system: System | None = None) -> list[dict[str, Any]]:
    """Rows of (what, measure, a, b, difference). Figures are means over ranks, so jobs of other size compare.

    A distance is between 0 (the same) and 1: Kolmogorov's and Smirnov's for sizes, total variation for mixes. An error
    is b over a, less one.
    """
    rows = [_mix("kinds of nodes", a, b, lambda t: t.kind), _mix("kinds of collectives", a, b, _collectives)]
    rows.append(_mix("nodes waited for", a, b, _waited))
    for what, kinds, column in SIZES:
        left, right = (_values(job, kinds, column) for job in (a, b))
        if len(left[0]) and len(right[0]):
            rows.append(_row(f"{what}, each", "distance", None, None, _smirnov(left, right)))
            rows.append(_error(f"{what}, a rank", *(float((v * w).sum()) for v, w in (left, right))))
    if system is not None:
        rows += _simulated(a, b, system)
    return rows


def _row(what: str, measure: str, a: Any, b: Any, difference: float) -> dict[str, Any]:
    return {"what": what, "measure": measure, "a": a, "b": b, "difference": round(difference, 4)}


def _error(what: str, a: float, b: float) -> dict[str, Any]:
    return _row(what, "error", round(a), round(b), b / a - 1 if a else float("nan") if b else 0.0)


def _weights(job: Job) -> list[float]:
    """Share of the ranks that run each trace."""
    counts = np.bincount(job.trace_of, minlength=len(job.traces))
    return (counts / len(job)).tolist()


def _values(job: Job, kinds: tuple[Kind, ...], column: str) -> tuple[F64, F64]:
    """Values that are known, and the weight of each: how many a mean rank has."""
    found, weight = [], []
    for trace, share in zip(job.traces, _weights(job), strict=True):
        values = getattr(trace, column)[np.isin(trace.kind, kinds)]
        values = values[values != UNKNOWN]
        found.append(values.astype(np.float64))
        weight.append(np.full(len(values), share))
    return np.concatenate(found), np.concatenate(weight)


def _smirnov(a: tuple[F64, F64], b: tuple[F64, F64]) -> float:
    """The largest distance of the two cumulative distributions, sizes within 3% taken for equal."""
    left, right = (np.rint(np.log2(np.maximum(v, 1)) * 24) for v in (a[0], b[0]))
    points = np.union1d(left, right)
    cumulative = []
    for values, weight in ((left, a[1]), (right, b[1])):
        at = np.searchsorted(points, values)
        cumulative.append(np.cumsum(np.bincount(at, weight, len(points))) / weight.sum())
    return float(np.abs(cumulative[0] - cumulative[1]).max())


def _mix(what: str, a: Job, b: Job, of: Any) -> dict[str, Any]:
    shares = []
    for job in (a, b):
        mix = np.zeros(256)
        for trace, share in zip(job.traces, _weights(job), strict=True):
            mix += share * np.bincount(of(trace), minlength=256)[:256]
        shares.append(mix / max(mix.sum(), 1e-300))
    return _row(what, "distance", None, None, float(np.abs(shares[0] - shares[1]).sum() / 2))


def _collectives(trace: Any) -> NDArray[Any]:
    return trace.collective[trace.collective != Collective.NONE]


def _waited(trace: Any) -> I64:
    """How many nodes each waits for."""
    return np.minimum(np.diff(trace.data_start) + np.diff(trace.ctrl_start), 255)


def _simulated(a: Job, b: Job, system: System) -> list[dict[str, Any]]:
    runs = [simulate(job, grown(system, len(job))) for job in (a, b)]
    rows = [_error("simulated step, ns", *(float(run.makespan_ns) for run in runs))]
    tables = [run.ranks.table() for run in runs]
    for column in ("compute_ns", "comm_ns", "exposed_comm_ns"):
        means = (float(np.mean(table[column].to_numpy())) for table in tables)
        rows += [_error(f"simulated {column}, a rank", *means)]
    return rows
