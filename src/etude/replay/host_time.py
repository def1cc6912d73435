"""Time of the host from step to step of a program as recorded, under a profiler; waits for the device are left out."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.model.trace import Trace
from etude.replay.program import NOTHING, StepKind

I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

TIMED: Final = (StepKind.CALL, StepKind.COMM, StepKind.MARK, StepKind.END)
"""Steps that the host took at a recorded moment."""


class HostClock:
    """Moments of the host without the time in which it waited for the device: calls of the host that took longer than
    their own cost."""

    def __init__(self, trace: Trace, inside: Bool, start_ns: I64, end_ns: I64) -> None:
        is_leaf = np.ones(len(trace) + 1, np.bool_)
        is_leaf[trace.parent] = False
        rows = np.flatnonzero(inside & (trace.cpu == 1) & is_leaf[:-1] & (trace.duration_ns >= 0))
        waited = np.maximum(end_ns[rows] - start_ns[rows] - trace.duration_ns[rows], 0)
        rows, waited = rows[waited > 0], waited[waited > 0]
        order = np.argsort(end_ns[rows], kind="stable")
        self._ends = end_ns[rows][order]
        self._waited = np.concatenate(([0], np.cumsum(waited[order])))

    def __call__(self, moments_ns: I64) -> I64:
        read: I64 = moments_ns - self._waited[np.searchsorted(self._ends, moments_ns, "right")]
        return read


def host_intervals(kind: I64, what: I64, moment_ns: I64) -> I64:
    """Of each step the time since the one before it. `what`: the operator of a call; `moment_ns` by the clock of the
    host, NOTHING where there is none. Training steps that make the same calls have one time for each: the median, the
    lower one of two, so that what held up the recording once is not played."""
    found = np.zeros(len(kind), np.int64)
    rows = np.flatnonzero(np.isin(kind, TIMED) & (moment_ns != NOTHING))
    found[rows[1:]] = np.maximum(np.diff(moment_ns[rows]), 0)
    begins = np.flatnonzero(kind[rows] == StepKind.MARK)
    parts = np.split(rows, begins[1:]) if len(begins) > 1 else []
    parts = [part[kind[part] != StepKind.MARK] for part in parts]
    if parts and all(len(part) == len(parts[0]) and (what[part] == what[parts[0]]).all() for part in parts):
        each = np.sort(np.stack([found[part] for part in parts]), axis=0)
        for part in parts:
            found[part] = each[(len(parts) - 1) // 2]
    return found
