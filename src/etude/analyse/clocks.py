"""One clock for all ranks: a collective ends on all of its members at about the same time, so the ends give the
offsets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from etude.analyse.operations import CollectiveCalls, calls
from etude.analyse.outliers import grouped_median
from etude.kernels.arrays import F64, I64
from etude.model.match import Matching
from etude.model.run import Run
from etude.model.schema import UNKNOWN

__all__ = ["alignment", "can_align", "offsets"]


ROUNDS = 8
"""Iterations of the refinement; after the first pass along the groups little changes."""


def offsets(run: Run, found: CollectiveCalls | None = None, matching: Matching | None = None) -> I64:
    """ns to add to each rank's times to bring them onto the first rank's clock.

    The timing's own offsets if it is aligned. Otherwise from the ends of collectives: first along a tree of ranks that
    share groups (medians of differences), then repeatedly the median over a rank's calls of the median end minus its
    own. Ranks that share no call with others, directly or not, get 0.
    """
    job, timing = run.job, run.timing
    if timing.aligned or len(job.ranks) < 2:
        return timing.clock_offset_ns
    found = found or calls(run, matching)
    known = (found.end_ns != UNKNOWN) & (np.diff(found.first) > 1)[found.of]
    at, call, end = found.at[known].astype(np.int64), found.of[known], found.end_ns[known].astype(np.float64)
    if not len(at):
        return timing.clock_offset_ns
    base = float(end.min())
    offset = _along_groups(len(job.ranks), at, found.group[call].astype(np.int64), call, end - base)
    for _ in range(ROUNDS):
        middle = grouped_median(call, end - base + offset[at], len(found))
        change = grouped_median(at, middle[call] - (end - base + offset[at]), len(job.ranks))
        change[np.isnan(change)] = 0
        offset += change
        if np.abs(change).max() < 1:
            break
    return np.rint(offset - offset[0]).astype(np.int64)


def can_align(run: Run) -> bool:
    """Whether times of the ranks can be brought onto one clock: they are on one, or share calls that show it."""
    if run.timing.aligned or len(run.job.ranks) < 2:
        return True
    found = calls(run)
    return bool(((found.end_ns != UNKNOWN) & (np.diff(found.first) > 1)[found.of]).any())


def alignment(run: Run) -> pa.Table:
    """How well the ranks' clocks agree once aligned: rank, offset_ns, calls, end_spread_ns (median distance of its ends
    from the median end of each call)."""
    job = run.job
    found = calls(run)
    offset = offsets(run, found)
    known = (found.end_ns != UNKNOWN) & (np.diff(found.first) > 1)[found.of]
    at, call = found.at[known].astype(np.int64), found.of[known]
    end = (found.end_ns[known] + offset[at]).astype(np.float64)
    spread = grouped_median(at, np.abs(end - grouped_median(call, end, len(found))[call]), len(job.ranks))
    return pa.table(
        {
            "rank": job.ranks,
            "offset_ns": offset,
            "calls": np.bincount(at, minlength=len(job.ranks)),
            "end_spread_ns": pa.array(spread, mask=np.isnan(spread)),
        }
    )


def _along_groups(ranks: int, at: I64, group: I64, call: I64, end: F64) -> F64:
    """Offsets along a tree: from each known rank to all ranks that share a group with it."""
    order = np.lexsort((call, at, group))
    at, group, call, end = at[order], group[order], call[order], end[order]
    offset = np.full(ranks, np.nan)
    bounds = np.append(np.flatnonzero(np.append(True, group[1:] != group[:-1])), len(group))
    spans = [(int(a), int(b)) for a, b in pairwise(bounds)]
    for seed in np.unique(at).tolist():
        if not np.isnan(offset[seed]):
            continue
        offset[seed] = 0.0
        reached = True
        while reached:
            reached = False
            left = []
            for a, b in spans:
                mine = np.unique(at[a:b])
                settled = ~np.isnan(offset[mine])
                if settled.all():
                    continue
                if not settled.any():
                    left.append((a, b))
                    continue
                _spread_over(offset, at[a:b], call[a:b], end[a:b], int(mine[settled][0]))
                reached = True
            spans = left
    return np.nan_to_num(offset)


def _spread_over(offset: F64, at: I64, call: I64, end: F64, reference: int) -> None:
    theirs = at == reference
    where = np.searchsorted(call[theirs], call)
    where = np.minimum(where, int(theirs.sum()) - 1)
    shared = call[theirs][where] == call
    difference = end[theirs][where] + offset[reference] - end
    for rank in np.unique(at[shared]).tolist():
        if np.isnan(offset[rank]):
            offset[rank] = float(np.median(difference[shared & (at == rank)]))
