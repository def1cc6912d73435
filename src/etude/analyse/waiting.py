"""How long each rank is in collectives, and how much of that it waits for later members.

A member waits from its start until the last one has arrived, and not within `transfer` of its end (`collectives` has
the definition). Collectives of one rank may overlap, so times are those of unions: a rank waits while it is in a
collective and in none in which all members have arrived. So no rank waits longer than the run.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from etude.analyse.clocks import offsets
from etude.analyse.operations import calls
from etude.kernels.arrays import I64
from etude.kernels.intervals import covered
from etude.model.run import Run
from etude.model.schema import UNKNOWN

__all__ = ["waiting"]


def waiting(run: Run) -> pa.Table:
    """One row per rank: in_collectives_ns, wait_ns; for collectives with more than one recorded member."""
    found = calls(run)
    seen = (found.start_ns != UNKNOWN) & (found.end_ns != UNKNOWN)
    call = found.of
    seen &= np.bincount(call[seen], minlength=len(found))[call] > 1
    start, end, call, at = found.start_ns[seen], found.end_ns[seen], call[seen], found.at[seen]
    transfer, last = np.full(len(found), np.iinfo(np.int64).max, np.int64), np.full(len(found), UNKNOWN, np.int64)
    np.minimum.at(transfer, call, end - start)
    shift = offsets(run, found)[at]
    np.maximum.at(last, call, start + shift)
    all_there = np.clip(last[call] - shift, start, end - transfer[call])
    total, moving = np.zeros(len(run.job), np.int64), np.zeros(len(run.job), np.int64)
    order = np.lexsort((start, at))
    bounds = np.searchsorted(at[order], np.arange(len(run.job) + 1))
    for i in range(len(run.job)):
        mine = order[bounds[i] : bounds[i + 1]]
        total[i] = _length(start[mine], end[mine])
        moving[i] = _length(all_there[mine], end[mine])
    return pa.table(
        {"rank": pa.array(run.job.ranks, pa.int32()), "in_collectives_ns": total, "wait_ns": total - moving}
    )


def _length(start: I64, end: I64) -> int:
    """Length of the union of intervals."""
    return int(covered(start, end, np.argsort(start, kind="stable")))
