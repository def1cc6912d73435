"""What recording added to the time of a host, by the recording itself.

The events of a thread are its operators, annotations and calls of the driver. Between two boundaries of events (a begin
or an end) lies one piece of work of the host: inside an operator it is a piece of compiled code, elsewhere one of
Python. Of a piece of compiled code that ends where nothing is done (from the end of an operator to that of its caller)
the time is known: it is next to nothing. What it takes in a recording therefore shows who recorded: a profiler alone
adds less than a µs, `ExecutionTraceObserver` several.

| piece | of a program that was recorded with the observer | with a profiler alone |
|---|---|---|
| in compiled code | `NATIVE_NS`, and what exceeds `REAL_NS` | recorded, less `EVENT_NS` |
| of Python | a part `PYTHON` up to `PYTHON_NS`, and what exceeds it | recorded, less `EVENT_NS` |
| a call of the driver | a part `CALL` | recorded, less `CALL_NS` |

A time that the observer makes five times as long is not found by taking off what the observer took: that is most of it,
and is known to a tenth. So the number of pieces counts, as in the host model of `replay`, and what they took where that
is more than an observer takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from etude.capture.ingest.events import HostEvents, host_events
from etude.capture.ingest.light_window import STEP, WAITS
from etude.capture.link.device import DeviceTrace
from etude.kernels.arrays import F64, I64, Bool, distinct_values, sort_order

NATIVE_NS: Final = 700.0
PYTHON: Final = 0.5
CALL: Final = 0.5
"""Round numbers near the least mean error of a step over ten recordings, eight programs of other people and two of ours
(`docs/link.md`); each may be 20% off without much of a change."""
CALL_MOST_NS: Final = 20_000.0
"""Most that recording adds to a call: one that takes longer waits, or did something by itself."""
PYTHON_NS: Final = 60_000.0
REAL_NS: Final = 150_000.0
"""A piece of Python, and of compiled code, that takes longer did something by itself."""
EVENT_NS: Final = 600.0
CALL_NS: Final = 2_900.0
"""What a profiler adds to a boundary and to a call, at most half of what they took: 98.1 ms a step with the activities
of the device alone, 113.6 with 13,081 operators, 90.2 without a profiler and with 2,697 calls (`measured/hf`)."""
OBSERVER_NS: Final = 2_000.0
"""From the end of an operator to the end of its caller: longer only with the observer."""
FEWEST: Final = 20
"""Such pieces that must be there to tell who recorded."""
TURN_NS: Final = 1_000_000
"""A thread that does nothing for so long left the turn to others."""


@dataclass(frozen=True, slots=True, eq=False)
class HostCost:
    """Pieces of work of the host by their begins, ns since the beginning of the file."""

    at_ns: I64
    took_ns: F64
    """Without what other threads did meanwhile, and without waiting for the device."""
    program_ns: F64
    """Of the program itself."""
    in_call: Bool
    """Inside a call of the driver."""
    observed: bool
    """The observer was on."""

    def cost_ns(self, slower: float = 1.0) -> F64:
        """What recording added to each, if the program's own time is `slower` times the estimate."""
        return np.maximum(self.took_ns - slower * self.program_ns, 0.0)


def host_cost(device: DeviceTrace) -> HostCost | None:
    """What recording added; None of a file that does not show who recorded it."""
    host = host_events(device)
    found = _Pieces(device, host)
    ends = found.took_ns[found.native & found.after_end & found.before_end & ~found.after_call]
    if len(ends) < FEWEST:
        return None
    observed = bool(np.percentile(ends, 50) >= OBSERVER_NS)  # `np.median` imports masked arrays
    took = found.took_ns
    if observed:
        native = NATIVE_NS + np.maximum(took - REAL_NS, 0.0)
        python = PYTHON * np.minimum(took, PYTHON_NS) + np.maximum(took - PYTHON_NS, 0.0)
        call = np.maximum(CALL * took, took - CALL_MOST_NS)
        program = np.where(found.in_call, call, np.where(found.native, native, python))
    else:
        program = np.maximum(took - np.where(found.in_call, CALL_NS, EVENT_NS), took / 2)
    program = np.where(found.waits, took, np.minimum(program, took))
    return HostCost(found.at_ns, took, program, found.in_call, observed)


class _Pieces:
    """The time from each boundary of an event to the next one on its thread."""

    def __init__(self, device: DeviceTrace, host: HostEvents) -> None:
        named = device.name_has(STEP)[host.row]
        keep = np.flatnonzero(~host.apart & ~named & (host.end_ns > host.start_ns))
        event, is_end = np.concatenate([keep, keep]), np.repeat([False, True], len(keep))
        at = np.concatenate([host.start_ns[keep], host.end_ns[keep]])
        order = sort_order(host.thread[event], at, ~is_end, np.where(is_end, -event, event))
        event, is_end, at = event[order], is_end[order], at[order]
        inside = np.where(is_end, host.parent[event], event)
        inside = np.where((inside >= 0) & np.append(named, False)[inside], -1, inside)
        last = np.append(np.diff(host.thread[event]) != 0, True)[: len(event)]
        of_operators = np.append(_native(device, host), False)
        call = np.append(host.is_call, False)
        self.at_ns = at[~last]
        until = np.roll(at, -1)[~last]
        self.in_call = call[inside][~last]
        self.native = of_operators[inside][~last]
        self.after_end, self.before_end = is_end[~last], np.roll(is_end, -1)[~last]
        self.after_call = (call[event] & is_end)[~last]
        waits = np.array([any(word in name for word in WAITS) for name in device.names] + [False])
        self.waits = np.append(waits[device.name[host.row]] & host.is_call, False)[inside][~last]
        thread = host.thread[event][~last]
        self.took_ns = (until - self.at_ns).astype(np.float64)
        python = ~self.native & ~self.in_call
        works = keep[(call[:-1] | of_operators[:-1])[keep]]
        for number in distinct_values(thread[python]).tolist():
            mine = np.flatnonzero(python & (thread == number))
            others = works[host.thread[works] != number]
            busy = _Turns(host.start_ns[others], host.end_ns[others])
            self.took_ns[mine] -= busy.until(until[mine]) - busy.until(self.at_ns[mine])


def _native(device: DeviceTrace, host: HostEvents) -> Bool:
    """Events inside which compiled code runs, not Python."""
    named = np.array(
        ["::" in name or ("Backward" in name and "Compiled" not in name) for name in device.names] + [False]
    )
    return named[device.name[host.row]] & device.is_category("cpu_op")[host.row]


class _Turns:
    """When other threads worked; pauses of less than `TURN_NS` are part of it."""

    def __init__(self, start_ns: I64, end_ns: I64) -> None:
        order = np.argsort(start_ns, kind="stable")
        start, end = start_ns[order], np.maximum.accumulate(end_ns[order])
        new = np.append(True, start[1:] > end[:-1] + TURN_NS)[: len(start)]
        self._begin = start[new]
        self._end = end[np.append(np.flatnonzero(new)[1:] - 1, len(end) - 1)] if len(end) else end
        self._before = np.concatenate([[0], np.cumsum(self._end - self._begin)])

    def until(self, moment: I64) -> I64:
        """Time of their work up to a moment."""
        turn = np.searchsorted(self._begin, moment, "right")
        if not len(self._begin):
            return np.zeros(len(moment), np.int64)
        left = np.maximum(self._end[np.maximum(turn - 1, 0)] - moment, 0)
        found: I64 = np.where(turn > 0, self._before[turn] - left, 0)
        return found
