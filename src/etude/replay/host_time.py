"""Time of the host from step to step of a program, without the profiler that recorded it.

A profiler makes a host that gives work to a GPU five times slower, and how much slower differs from machine to machine
more than the time without it does. So what a host takes is counted: so much for each event of the profiler (an
operator, a node of autograd: Python, dispatch and memory included) and so much for each call of the driver. What the
clock said of the host as a whole counts for little, and waits for the device are left out.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.model.trace import Trace
from etude.replay.program import NOTHING, StepKind

I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

EVENT_NS: Final = 3160.0
CALL_NS: Final = 4640.0
USUAL_NS: Final = 25_000.0
BELIEVED: Final = 0.3
"""An event and a call of the driver where an event takes 25 us under the profiler; a host on which it takes another
time is faster or slower by this power of the ratio. Least squares over nine programs on two hosts of an H200
(`benchmarks/fit_host.py`). Beyond a factor of two it is another kind of host, and the rest of the ratio counts."""
LONGEST_NS: Final = 1_000_000
LONGEST_TENSOR_NS: Final = 20_000
"""A profiler holds up a host by less, for a call and for each tensor that it is given: what is above is time of the
program itself (reading data)."""
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


def host_intervals(kind: I64, what: I64, moment_ns: I64, timed: tuple[StepKind, ...] = TIMED) -> I64:
    """Of each step the time since the one before it. `what`: the operator of a call; `moment_ns` by the clock of the
    host, NOTHING where there is none. Training steps that make the same calls have one time for each: the median, the
    lower one of two, so that what held up the recording once is not played."""
    found = np.zeros(len(kind), np.int64)
    rows = np.flatnonzero(np.isin(kind, timed) & (moment_ns != NOTHING))
    found[rows[1:]] = np.maximum(np.diff(moment_ns[rows]), 0)
    begins = np.flatnonzero(kind[rows] == StepKind.MARK)
    parts = np.split(rows, begins[1:]) if len(begins) > 1 else []
    parts = [part[kind[part] != StepKind.MARK] for part in parts]
    if parts and all(len(part) == len(parts[0]) and (what[part] == what[parts[0]]).all() for part in parts):
        each = np.sort(np.stack([found[part] for part in parts]), axis=0)
        for part in parts:
            found[part] = each[(len(parts) - 1) // 2]
    return found


def counted(moments_ns: I64, starts_ns: I64) -> I64:
    """How many of these events began since the moment before; of a moment that is not later than the one before, none.
    The first moment has those before it."""
    before = np.searchsorted(np.sort(starts_ns), np.maximum.accumulate(moments_ns), "left")
    found: I64 = np.diff(before, prepend=0)
    return found


def plain_ns(recorded_ns: I64, events: I64, calls: I64, tensors: I64) -> I64:
    """Of each step the time of the host without the profiler, from what it was with it, the events of the profiler and
    calls of the driver in it, and the tensors that it was given."""
    own = np.maximum(recorded_ns - LONGEST_NS - LONGEST_TENSOR_NS * tensors, 0)
    each_ns = float((recorded_ns - own)[own == 0].sum()) / max(int(events[own == 0].sum()), 1)
    ratio = each_ns / USUAL_NS if each_ns else 1.0
    near = min(max(ratio, 0.5), 2.0)
    slower = near**BELIEVED * ratio / near
    found: I64 = np.rint(slower * (EVENT_NS * events + CALL_NS * calls)).astype(np.int64) + own
    return found
