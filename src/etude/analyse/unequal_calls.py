"""Calls in which a run hangs because its members do not ask for the same: another operation, or another size."""

from __future__ import annotations

import numpy as np

from etude.analyse.operations import CollectiveCalls, group_name
from etude.kernels.arrays import I32, I64
from etude.model.job import ranges
from etude.model.run import Run
from etude.model.schema import UNKNOWN, Collective

__all__ = ["unequal_calls"]

SIZED = (
    Collective.REDUCE_SCATTER,
    Collective.ALL_REDUCE,
    Collective.REDUCE,
    Collective.BROADCAST,
    Collective.BARRIER,
    Collective.ALL_GATHER,
)
"""Collectives whose members give the same size."""
SURE, KNOWN, EVEN = 0.97, 0.9, 0.7
"""Confidence where few differ; where as many differ as agree, and calls that ended were as some of them ask; and where
neither is known."""


def unequal_calls(run: Run, found: CollectiveCalls) -> list[tuple[tuple[int, ...], str, float]]:
    """The first call of each group that began, never ended, and in which members differ: (ranks that differ from the
    most, what differs, confidence)."""
    job = run.job
    begun = found.start_ns != UNKNOWN
    open_ = np.unique(found.of[begun & (found.end_ns == UNKNOWN)])
    told: dict[int, tuple[tuple[int, ...], str, float]] = {}
    for call in open_.tolist():
        group = int(found.group[call])
        if group in told:
            continue
        span = slice(int(found.first[call]), int(found.first[call + 1]))
        at, row = found.at[span], found.row[span]
        kind, size = _asked(run, at, row)
        sized = Collective(int(found.collective[call])) in SIZED
        signs = np.stack([kind, size if sized else np.zeros_like(size)], 1)
        values, which, count = np.unique(signs, axis=0, return_inverse=True, return_counts=True)
        if len(values) < 2:
            continue
        which = which.reshape(-1)
        usual = int(np.argmax(count))
        known = [one for one, value in enumerate(values) if _is_usual(found, value, sized)]
        if 2 * count[usual] <= len(at) and len(known) == 1:  # of two the one that asks for what was never asked for
            usual = known[0]
        odd = np.flatnonzero(which != usual)
        even = len(odd) * 2 >= len(at) and len(known) != 1
        ranks = tuple(job.ranks[at[odd]].tolist()) if not even else tuple(job.ranks[at].tolist())
        name = Collective(int(found.collective[call])).name.lower()
        text = (
            f"in {name} {int(found.number[call])} of group `{group_name(job, group)}` of {len(at)} ranks "
            f"{_asks(job.ranks[at[odd]], values[which[odd[0]]])}, the others {_of(values[usual])}: the call never ends"
        )
        told[group] = ranks, text, EVEN if even else SURE if 2 * len(odd) < len(at) else KNOWN
    return list(told.values())


def _is_usual(found: CollectiveCalls, value: I64, sized: bool) -> bool:
    """Whether a call of the run that ended was of this kind and size."""
    ended = np.zeros(len(found), bool)
    ended[found.of[found.end_ns != UNKNOWN]] = True
    same = found.collective == value[0]
    return bool((ended & same & ((found.size_bytes == value[1]) if sized else True)).any())


def _asks(ranks: I32, value: I64) -> str:
    who = "ranks" if len(ranks) > 1 else "rank"
    return f"{who} {ranges(ranks)} {'ask' if len(ranks) > 1 else 'asks'} for {_of(value)}"


def _of(value: I64) -> str:
    kind = Collective(int(value[0])).name.lower()
    return f"{kind} of {int(value[1]):,} bytes" if value[1] > 0 else kind


def _asked(run: Run, at: I32, row: I32) -> tuple[I64, I64]:
    """(collective, bytes) of rows of the ranks at these positions."""
    kind, size = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
    for part in run.parts():
        mine = np.flatnonzero(np.isin(at, part.at))
        kind[mine], size[mine] = part.trace.collective[row[mine]], part.trace.in_bytes[row[mine]]
    return kind, size
