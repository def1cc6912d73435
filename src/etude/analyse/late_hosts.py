"""Ranks whose device idles longer than those of the others: their hosts issue work late.

A rank that waits for others is in a collective or a receive, which is not idle time; a rank whose own host is late has
a device that runs nothing. So idle time separates late ranks from waiting ones, on each rank's own clock.

    e(r, s) = (idle time of rank r in step s - middle over its peers) / middle length of step s
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etude.analyse.clocks import offsets
from etude.analyse.device_work import on_device
from etude.analyse.operations import CollectiveCalls, messages, times_of
from etude.analyse.outliers import PEERS, Profile, families, grouped_median
from etude.analyse.segments import Segments
from etude.analyse.stretches import Slow, slow_units
from etude.kernels.arrays import F64, I64
from etude.kernels.intervals import merged
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN, Kind
from etude.model.use import Use, uses

__all__ = ["stages"]

SHARE = 0.75
"""A host is named if this fraction of the slow-down threshold is spent idle."""
LEAST_ERROR = 0.002
"""Idle times that differ by less than this fraction of a step are equal."""


def late_hosts(run: Run, found: CollectiveCalls, stretches: Segments, least: float) -> list[Slow]:
    """Late ranks by position; the factor is 1 + the additional idle time of the device, compared with its peers, as a
    fraction of a step."""
    count = stretches.count if stretches.by_step else 1  # equal parts of ranks' nodes are not the same parts
    idle = np.full((len(run.job.ranks), count), np.nan)
    span, role = idle.copy(), np.zeros(len(run.job.ranks), np.int64)
    roles: dict[tuple[bytes, int], int] = {}
    stage = stages(run).tolist()
    inside = waits_inside(found)
    begin_ns = begins(run, found) if not stretches.by_step else None
    for part in run.parts():
        use = uses(part.trace)
        if not (part.trace.cpu == 1).any() or (use == Use.HOST).any() or (part.trace.cpu == 0).any():
            row = _idle(part, use, stretches, count, inside)
            if row is not None:
                idle[part.at], span[part.at] = row
                if begin_ns is not None:
                    idle[part.at, 0] += begin_ns[part.at]
            kinds = np.bincount(use, minlength=len(Use))[[Use.COMPUTE, Use.COMMUNICATION, Use.MEMORY]]
            role[part.at] = [roles.setdefault((kinds.tobytes(), stage[at]), len(roles)) for at in part.at.tolist()]
    known = ~np.isnan(idle)
    if known.any(axis=1).sum() < PEERS:
        return []
    alike = np.bincount(role, minlength=len(roles))
    few = 2 if any(stage) else PEERS  # two ranks of one pipeline stage are comparable; otherwise that may be chance
    role = np.where(alike[role] >= few, role, len(roles))  # small roles are merged
    length = grouped_median(np.nonzero(known)[1], span[known], count)
    at = role[:, None] * count + np.arange(count)[None, :]
    middle = grouped_median(at[known], idle[known], (len(roles) + 1) * count)
    fastest = np.full(len(middle), np.inf)
    np.minimum.at(fastest, at[known], idle[known])
    pair = np.repeat(np.append((alike == 2) & (few == 2), False), count)
    middle = np.where(pair, fastest, middle)  # of two, the one with less idle time is the reference
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


def stages(run: Run) -> I64:
    """Pipeline stage of each rank, 0 where there is none: how many ranks pass messages on before it can begin. A rank
    that has received before it has sent comes after the sender; receives may be posted long before."""
    ranks = len(run.job.ranks)
    found = messages(run.job)
    sent, got = (
        times_of(run.timing, *end)[1] for end in ((found.src_at, found.src_row), (found.dst_at, found.dst_row))
    )
    at = np.concatenate([found.src_at, found.dst_at])
    source = np.concatenate([np.full(len(sent), -1), found.src_at])
    end = np.concatenate([sent, got])
    order = np.lexsort((end, at))
    order = order[end[order] != UNKNOWN]
    first = order[np.append(True, np.diff(at[order]) != 0)] if len(order) else order
    before = np.full(ranks, -1)
    before[at[first]] = source[first]
    stage, above = np.zeros(ranks, np.int64), before
    for _ in range(ranks):
        if not (above >= 0).any():
            break
        stage += above >= 0
        above = np.where(above >= 0, before[above], -1)
    return np.where(above >= 0, 0, stage)  # in a ring no rank is first


def begins(run: Run, found: CollectiveCalls) -> F64 | None:
    """How long after the first rank with a comparable clock each rank begins: the only sign of a late start if there is
    a single step. With several steps the first may be cut anywhere, and the others suffice."""
    ended = found.end_ns != UNKNOWN
    if not ended.any():
        return None
    ranks = len(run.job.ranks)
    offset = offsets(run, found)
    begun = np.full(ranks, np.nan)
    for part in run.parts():
        starts = part.start_ns[on_device(part, uses(part.trace))]
        begun[part.at] = starts.min() + offset[part.at] if len(starts) else np.nan
    label = families(found.at[ended].astype(np.int64), found.of[ended], ranks)
    first = np.full(ranks, np.inf)
    np.fmin.at(first, label, begun)
    return begun - first[label]


def waits_inside(found: CollectiveCalls) -> bool:
    """Whether members of a collective start when they arrive, or when all are there. In the latter case the wait is
    before their starts."""
    seen = (found.start_ns != UNKNOWN) & (found.end_ns != UNKNOWN)
    if not seen.any():
        return True
    lasted = np.where(seen, found.end_ns - np.where(seen, found.start_ns, 0), 0)
    most, least = np.zeros(len(found), np.int64), np.full(len(found), 2**62)
    np.maximum.at(most, found.of[seen], lasted[seen])
    np.minimum.at(least, found.of[seen], lasted[seen])
    several = (np.bincount(found.of[seen], minlength=len(found)) > 1) & (most > 0)
    return not several.any() or bool(np.median((most - least)[several] / most[several]) > 1e-3)
