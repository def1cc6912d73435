"""What grows over a run beside its step time: the distance of a clock from the others, and memory that is never given
back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from etude.analyse.clocks import offsets
from etude.analyse.findings import Verdict
from etude.analyse.operations import CollectiveCalls
from etude.analyse.outliers import grouped_median
from etude.kernels.arrays import F64, I64
from etude.model.memory import memory_levels, moved_bytes
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN

__all__ = ["clock_drifts", "growth", "leaks", "leaks_of", "step_memory"]

FEWEST_CALLS: Final = 20
"""Calls of a rank from which the drift of its clock is looked for."""
LEAST_PPM: Final = 2.0
LEAST_OFF_NS: Final = 5_000
"""Drift, and what it adds up to over the run, from which a clock is reported."""
SURE: Final = 8.0
"""Standard errors of a slope."""
FEW_STEPS: Final = 10
"""... which is twice as many for this many steps: what is left of few of them says less of their noise."""
FEWEST_STEPS: Final = 12
WARM: Final = 2
"""First steps, in which memory grows anyway."""
LEAST_GROWTH: Final = 0.005
"""Growth of memory over the run, as a fraction of its level."""
STEADY: Final = 0.4
"""Slope of each half of the run over that of the whole, at least: what levels off is no leak."""


def clock_drifts(run: Run, found: CollectiveCalls, run_ns: int) -> Iterator[Verdict]:
    """Ranks whose collectives end earlier and earlier, or later and later, by their own clocks."""
    ranks = len(run.job.ranks)
    known = (found.end_ns != UNKNOWN) & (np.diff(found.first) > 2)[found.of]
    at, call = found.at[known].astype(np.int64), found.of[known]
    if not len(at) or ranks < 3:
        return
    end = found.end_ns[known].astype(np.float64)
    base = float(end.min())
    end = end - base + offsets(run, found)[at].astype(np.float64)
    middle = grouped_median(call, end, len(found))
    slope, error, span = (np.full(ranks, np.nan) for _ in range(3))
    for _ in range(2):
        off = end - middle[call]
        order = np.argsort(at, kind="stable")
        bounds = np.searchsorted(at[order], np.arange(ranks + 1))
        for row in range(ranks):
            mine = order[bounds[row] : bounds[row + 1]]
            if len(mine) >= FEWEST_CALLS:
                slope[row], error[row] = slope_of(middle[call[mine]], off[mine])
                span[row] = np.ptp(middle[call[mine]])
        wrong = np.abs(slope) > np.maximum(SURE * error, LEAST_PPM * 1e-6)
        if not wrong.any() or wrong.sum() > ranks / 2:
            break
        right = ~wrong[at]  # the middle of a few members follows a clock that drifts
        middle = np.where(np.isfinite(again := grouped_median(call[right], end[right], len(found))), again, middle)
    if not np.isfinite(slope).any():
        return
    slope = slope - np.nanmedian(slope)
    for row in range(ranks):
        ppm, off_ns = 1e6 * slope[row], slope[row] * span[row]
        if not (abs(ppm) >= LEAST_PPM and abs(off_ns) >= LEAST_OFF_NS and abs(slope[row]) > SURE * error[row]):
            continue
        score = float(abs(slope[row]) / error[row])
        yield Verdict(
            kind="clock_drift",
            level="clock",
            ranks=(int(run.job.ranks[row]),),
            steps=None,
            cost_ns=0,
            run_ns=run_ns,
            confidence=min(0.99, 1 - 0.1 * float(np.exp(-(score - SURE) / 4))),
            score=score,
            figures={"ppm": float(ppm), "off_ns": float(off_ns)},
        )


def slope_of(x: F64, y: F64) -> tuple[float, float]:
    """A robust line through points in time: (slope, its standard error, wider where neighbours are alike)."""
    x = x - x.mean()
    keep = np.ones(len(x), bool)
    slope = base = 0.0
    for _ in range(4):
        wide = float((x[keep] ** 2).sum())
        if keep.sum() < 4 or not wide:
            return 0.0, np.inf
        base = float(y[keep].mean() - 0.0)
        centre = x[keep].mean()
        wide = float(((x[keep] - centre) ** 2).sum())
        slope = float(((x[keep] - centre) * (y[keep] - base)).sum()) / max(wide, 1e-300)
        left = y - base - slope * (x - centre)
        sigma = 1.4826 * float(np.median(np.abs(left[keep])))
        keep = np.abs(left) <= 4 * max(sigma, 1e-9)
    inside = left[keep]
    near = inside[1:] * inside[:-1]
    rho = float(np.clip(near.sum() / max(float((inside**2).sum()), 1e-300), 0.0, 0.9))
    spread = max(float(inside.std()), 1.0)
    return slope, spread * np.sqrt((1 + rho) / (1 - rho)) / np.sqrt(max(wide, 1e-300))


class MemoryGrowth(NamedTuple):
    """Bytes that memory grows by in each step."""

    slope: float
    error: float
    """Its standard error."""
    leaks: bool
    """Whether it is sure, goes on in both halves of the run, and is not little."""


def growth(held: F64) -> MemoryGrowth | None:
    """Of memory at the ends of steps, the first few of which do not count; None if it is not known in all."""
    values = held[WARM:]
    if np.isnan(values).any() or not values.any():
        return None
    x = np.arange(len(values), dtype=np.float64)
    slope, error = slope_of(x, values)
    half = len(x) // 2
    halves = [slope_of(x[:half], values[:half]), slope_of(x[half:], values[half:])]
    steady = all(each[0] >= STEADY * slope - 3 * each[1] and each[0] > 0 for each in halves)
    sure = SURE * (1 + FEW_STEPS / len(x))
    much = slope > sure * error and slope * len(x) >= LEAST_GROWTH * float(np.median(values))
    return MemoryGrowth(slope, error, bool(steady and much))


def leaks(run: Run, run_ns: int) -> Iterator[Verdict]:
    """Ranks whose memory is larger after each step than after the one before, to the end of the run."""
    steps, held = step_memory(run)
    yield from leaks_of(np.asarray(run.job.ranks), steps, held, run_ns)


def leaks_of(ranks: I64, steps: I64, held: F64, run_ns: int) -> Iterator[Verdict]:
    """The same of bytes at the ends of steps, ranks x steps."""
    if len(steps) < FEWEST_STEPS:
        return
    for rank, values in zip(ranks.tolist(), held, strict=True):
        grown = growth(values)
        if grown is None or not grown.leaks:
            continue
        score = grown.slope / max(grown.error, 1e-9)
        yield Verdict(
            kind="leak",
            level="memory",
            ranks=(int(rank),),
            steps=(int(steps[WARM]), int(steps[-1])),
            cost_ns=0,
            run_ns=run_ns,
            confidence=min(0.99, 1 - 0.1 * float(np.exp(-(score - SURE) / 4))),
            score=score,
            figures={"bytes_per_step": grown.slope, "error_bytes": 1.96 * grown.error},
        )


def step_memory(run: Run) -> tuple[I64, F64]:
    """(steps, bytes held at the end of each, ranks x steps; NaN where memory was not recorded)."""
    known = [np.unique(t.step[t.step != UNKNOWN]) for t in run.job.traces]
    steps = np.unique(np.concatenate(known)) if known else np.zeros(0, np.int64)
    held = np.full((len(run.job.ranks), len(steps)), np.nan)
    for part in run.parts():
        found = memory_levels(part)
        if found is None or not len(found.time_ns):
            continue
        ends = _ends(part, steps)
        last = np.searchsorted(found.time_ns, ends, "right") - 1
        held[part.at] = np.where((last >= 0) & (ends != UNKNOWN), found.held_bytes[np.maximum(last, 0)], np.nan)
    return steps, held


def _ends(part: RunPart, steps: I64) -> I64:
    """When each step ends: with its last event of memory, where these have steps; a host that allocates may be steps
    ahead of its device."""
    known = part.timed & (part.trace.step != UNKNOWN)
    of_memory = known & (moved_bytes(part.trace) != 0)
    rows = np.flatnonzero(of_memory if of_memory.any() else known)
    ends = np.full(len(steps), UNKNOWN, np.int64)
    np.maximum.at(ends, np.searchsorted(steps, part.trace.step[rows]), part.end_ns[rows])
    return ends
