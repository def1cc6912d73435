"""Host time from step to step of a program, without the profiler that recorded it.

A profiler makes a host that launches work on a GPU five times slower. This factor varies more from machine to machine
than the time without the profiler does. So the host time is computed from counts: a fixed time for each profiler event
(an operator, an autograd node: Python, dispatch and memory included) and for each driver call. The recorded host time
as a whole has little weight, and waits for the device are left out.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.kernels.arrays import I64, Bool
from etude.model.trace import Trace
from etude.run.replay.program import NOTHING, StepKind

EVENT_NS: Final = 3160.0
CALL_NS: Final = 4640.0
USUAL_NS: Final = 25_000.0
BELIEVED: Final = 0.3
"""`EVENT_NS` and `CALL_NS`: time of an event and of a driver call on a host where an event takes `USUAL_NS` under the
profiler. Another host is faster or slower by the ratio of its event time to this one, to the power `BELIEVED`. Least
squares over nine programs on two hosts of an H200 (`benchmarks/fit_host.py`). Beyond a factor of two it is another kind
of host, and the rest of the ratio counts in full."""
LONGEST_NS: Final = 1_000_000
LONGEST_TENSOR_NS: Final = 20_000
"""The most by which a profiler delays a host for a call (`LONGEST_NS`) and for each tensor argument: anything longer is
the program's own time, for example to read data."""
GRAPH_UNITS: Final = 4.5
"""What observer and profiler add to an event, in units of `between.unit_ns`: the mean over four recordings of eager
programs whose step without the profiler is known (3.8 to 4.8; `../shared/measured`)."""
TIMED: Final = (StepKind.CALL, StepKind.COMM, StepKind.MARK, StepKind.END)
"""Kinds of steps that have a recorded host time."""


class HostClock:
    """Converts moments of the host to a clock that does not run while the host waited for the device, that is in calls
    that took longer than their own cost."""

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
    """Time since the previous step, for each step. `what`: the operator of a call; `moment_ns`: by the host's clock,
    NOTHING if unknown. If all training steps make the same calls, each call gets the median over the steps (the lower
    one of two), so that a single delay of the recording is not played."""
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
    """How many of these events began between the previous moment and each moment; 0 for a moment that is not later than
    the previous ones. The first moment counts all events before it."""
    before = np.searchsorted(np.sort(starts_ns), np.maximum.accumulate(moments_ns), "left")
    found: I64 = np.diff(before, prepend=0)
    return found


def plain_ns(recorded_ns: I64, events: I64, calls: I64, tensors: I64) -> I64:
    """Host time of each step without the profiler, from its recorded time, its numbers of profiler events and driver
    calls, and the number of its tensor arguments."""
    own = np.maximum(recorded_ns - LONGEST_NS - LONGEST_TENSOR_NS * tensors, 0)
    each_ns = float((recorded_ns - own)[own == 0].sum()) / max(int(events[own == 0].sum()), 1)
    ratio = each_ns / USUAL_NS if each_ns else 1.0
    near = min(max(ratio, 0.5), 2.0)
    slower = near**BELIEVED * ratio / near
    found: I64 = np.rint(slower * (EVENT_NS * events + CALL_NS * calls)).astype(np.int64) + own
    return found


def graph_ns(recorded_ns: I64, events: I64, unit_ns: float) -> I64:
    """Host time of each step inside a compiled graph. There most of the time is that of Python, which launches one
    kernel after another; it has few events, and does not depend on their number. So the recorded time counts, less
    what the profiler adds to its events."""
    found: I64 = np.rint(np.maximum(recorded_ns - GRAPH_UNITS * unit_ns * events, 0)).astype(np.int64)
    return found
