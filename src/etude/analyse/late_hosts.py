"""Ranks whose device has nothing to do for longer than those of the others: their hosts come late with work.

A rank that waits for others stands in a collective or a receive, and that is no idleness; a rank whose own host is late
has a device that runs nothing at all. So idle time tells who is late from who waits, on each rank's own clock.

    e(r, s) = (idle time of rank r in step s - middle over its peers) / middle length of step s
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etude.analyse.clocks import offsets
from etude.analyse.device_work import on_device
from etude.analyse.operations import Calls
from etude.analyse.outliers import PEERS, Profile, grouped_median
from etude.analyse.segments import Segments
from etude.analyse.stretches import Slow, slow_units
from etude.kernels.intervals import merged
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN, Kind
from etude.model.use import Use, uses

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

SHARE = 0.75
"""Of the slow-down from which a unit is named, that part of a step spent idle names a host."""
LEAST_ERROR = 0.002
"""Part of a step below which idle times are not told apart."""


def late_hosts(run: Run, found: Calls, stretches: Segments, least: float) -> list[Slow]:
    """Ranks by position; the factor is 1 + the part of a step that the device was idle more than those of its peers."""
    count = stretches.count if stretches.by_step else 1  # equal parts of ranks' nodes are not the same parts
    idle = np.full((len(run.job.ranks), count), np.nan)
    span, role = idle.copy(), np.zeros(len(run.job.ranks), np.int64)
    roles: dict[bytes, int] = {}
    inside = waits_inside(found)
    begin_ns = _begins(run, found) if not stretches.by_step else None
    for part in run.parts():
        use = uses(part.trace)
        if not (part.trace.cpu == 1).any() or (use == Use.HOST).any() or (part.trace.cpu == 0).any():
            row = _idle(part, use, stretches, count, inside)
            if row is not None:
                idle[part.at], span[part.at] = row
                if begin_ns is not None:
                    idle[part.at, 0] += begin_ns[part.at]
            kinds = np.bincount(use, minlength=len(Use))[[Use.COMPUTE, Use.COMMUNICATION, Use.MEMORY]]
            role[part.at] = roles.setdefault(kinds.tobytes(), len(roles))
    known = ~np.isnan(idle)
    if known.any(axis=1).sum() < PEERS:
        return []
    for r in range(len(roles)):
        if (role == r).sum() < PEERS:
            role[role == r] = -1  # few are alike: all those together
    length = grouped_median(np.nonzero(known)[1], span[known], count)
    at = (role[:, None] + 1) * count + np.arange(count)[None, :]
    middle = grouped_median(at[known], idle[known], (len(roles) + 1) * count)
    with np.errstate(invalid="ignore"):
        more = (idle - middle[at]) / np.maximum(length, 1)[None, :]
    return slow_units(Profile(more, np.full_like(more, LEAST_ERROR)), SHARE * least)


def _idle(
    part: RunPart, use: NDArray[np.uint8], stretches: Segments, count: int, waits_inside: bool
) -> tuple[F64, F64] | None:
    """Idle time of a device and its length by segment. A gap belongs to the node that ends it."""
    rows = np.flatnonzero(on_device(part, use))
    rows = rows[np.argsort(part.start_ns[rows], kind="stable")]
    segment = stretches.of(part, rows) if count > 1 else np.zeros(len(rows), np.int64)
    if not len(rows) or not (segment >= 0).any():
        return None
    first, last = merged(part.start_ns[rows], part.end_ns[rows])
    at = np.searchsorted(part.start_ns[rows], first[1:])
    counts = segment[at] >= 0
    if not waits_inside:
        counts &= ~np.isin(part.trace.kind[rows[at]], (Kind.COLL, Kind.SEND, Kind.RECV))
    idle = np.bincount(segment[at][counts], (first[1:] - last[:-1])[counts], count)
    begin, end = np.full(count, 2**62), np.full(count, -(2**62))
    inside = segment >= 0
    np.minimum.at(begin, segment[inside], part.start_ns[rows[inside]])
    np.maximum.at(end, segment[inside], part.end_ns[rows[inside]])
    some = end >= begin
    return np.where(some, idle, np.nan), np.where(some, (end - begin).astype(np.float64), np.nan)


def _begins(run: Run, found: Calls) -> F64 | None:
    """How long after the first rank each begins, on one clock: of a single step that is all there is of a late start.
    Of several the first may be cut off anywhere, and the others say enough."""
    if not len(found):
        return None
    offset = offsets(run, found)
    first = np.zeros(len(run.job.ranks))
    for part in run.parts():
        begun = part.start_ns[on_device(part, uses(part.trace))]
        first[part.at] = begun.min() + offset[part.at] if len(begun) else np.nan
    return first - np.nanmin(first) if not np.isnan(first).all() else None


def waits_inside(found: Calls) -> bool:
    """Do members of a collective start when they come, or when all are there? Then waiting lies before their starts."""
    seen = (found.start_ns != UNKNOWN) & (found.end_ns != UNKNOWN)
    if not seen.any():
        return True
    lasted = np.where(seen, found.end_ns - np.where(seen, found.start_ns, 0), 0)
    most, least = np.zeros(len(found), np.int64), np.full(len(found), 2**62)
    np.maximum.at(most, found.of[seen], lasted[seen])
    np.minimum.at(least, found.of[seen], lasted[seen])
    several = (np.bincount(found.of[seen], minlength=len(found)) > 1) & (most > 0)
    return not several.any() or bool(np.median((most - least)[several] / most[several]) > 1e-3)
