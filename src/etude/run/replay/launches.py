"""Host time between consecutive launches of a program on a device: from light steps if a recording has them, otherwise
estimated from the window.

A light step of a device program was recorded with the activities of the device alone: it has every driver call, and no
operators. Its driver calls correspond one to one to those of the window, thread by thread, so that each moment of the
window can be converted to a moment of the light step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from etude.kernels.arrays import I64, Bool, distinct_values
from etude.model.schema import UNKNOWN
from etude.model.trace import Trace
from etude.run.replay.host_time import host_intervals
from etude.run.replay.light import LightClock, LightEvents
from etude.run.replay.program import NOTHING

_STEP: Final = "ProfilerStep#"


def host_between_launches(kind: I64, what: I64, moment_ns: I64, clocks: Sequence[LightClock], estimated_ns: I64) -> I64:
    """Host time since the previous step of the program, for each step, without the profiler and without waits for the
    device. `moment_ns`: when steps began in the window, NOTHING if unknown; `what`: the operator of a call. With clocks
    of light steps it is their median, the lower one of two; without any it is `estimated_ns`."""
    if not clocks:
        return estimated_ns
    known = moment_ns != NOTHING
    each = [host_intervals(kind, what, np.where(known, clock(moment_ns), NOTHING)) for clock in clocks]
    found: I64 = np.sort(np.stack(each), axis=0)[(len(each) - 1) // 2]
    return found


def launch_clocks(
    trace: Trace, inside: Bool, start_ns: I64, end_ns: I64, light: LightEvents
) -> tuple[list[LightClock], str]:
    """A clock for each light step whose driver calls are those of all steps of the window; if there is none, the
    reason. The clocks do not run while the host waited for the device, that is in driver calls that took longer than
    their own cost in the window."""
    is_step = np.array([name.startswith(_STEP) for name in light.names], np.bool_)[light.name]
    begins, parts = _calls_of_steps(trace, inside, start_ns)
    if not is_step.any() or not parts:
        return [], f"{'the file' if parts else 'the window'} has no steps"
    codes, names = trace.coded("name")
    number = {name: k for k, name in enumerate(light.names)}
    same = np.array([number.get(name, -1) for name in names], np.int64)[codes]
    host_end = np.array([end_ns[inside & (trace.cpu == 1)].max()], np.int64)
    window = [begins, host_end, *(t[part] for part in parts for t in (start_ns, end_ns))]
    own_ns = np.maximum(np.concatenate([trace.duration_ns[part] for part in parts]), 0)
    clocks, why = list[LightClock](), ""
    for which, mark in enumerate(np.flatnonzero(is_step).tolist()):
        begin, end = int(light.start_ns[mark]), int(light.end_ns[mark])
        mine = np.flatnonzero(~is_step & (light.start_ns >= begin) & (light.start_ns < end))
        mine = mine[_threads_in_order(light.thread[mine], light.start_ns[mine])]
        other = next((part for part in parts if not np.array_equal(same[part], light.name[mine])), None)
        if other is not None:
            why = why or _difference(len(other), len(mine), which)
            continue
        shifts = [k * (end - begin) - begin for k in range(len(parts))]
        moments = [np.arange(len(parts) + 1) * (end - begin)]
        moments += [t[mine] + shift for shift in shifts for t in (light.start_ns, light.end_ns)]
        call_ns = float(light.event_ns[which]) if which < len(light.event_ns) else 0.0
        light_ns = _without_waits(moments, own_ns, call_ns)
        clocks.append(LightClock(np.concatenate(window), light_ns, {}, which, 0))
    return clocks, "" if clocks else why


def _calls_of_steps(trace: Trace, inside: Bool, start_ns: I64) -> tuple[I64, list[I64]]:
    """When each step of the window begins, and its driver calls, thread by thread."""
    known = inside & (trace.step != UNKNOWN)
    steps = distinct_values(trace.step[known]).tolist()
    begins = np.array([int(start_ns[known & (trace.step == step)].min()) for step in steps], np.int64)
    calls = np.flatnonzero(inside & (trace.cpu == 1) & (trace.correlation != UNKNOWN))
    of_step = np.searchsorted(begins, start_ns[calls], "right") - 1
    parts = [calls[of_step == step] for step in range(len(begins))]
    return begins, [part[_threads_in_order(trace.thread[part].astype(np.int64), start_ns[part])] for part in parts]


def _without_waits(moments: list[I64], own_ns: I64, call_ns: float) -> I64:
    """Moments of a light step, after its boundaries those of the starts and ends of driver calls, on a clock by which a
    call takes at most its own cost. `call_ns`: what it costs to record a call."""
    begins, ends = np.concatenate(moments[1::2]), np.concatenate(moments[2::2])
    order = np.argsort(ends, kind="stable")
    lost = np.maximum(ends - begins - own_ns, 0) + call_ns
    until = np.concatenate(([0.0], np.cumsum(lost[order])))
    at = np.concatenate(moments)
    found: I64 = np.rint(at - until[np.searchsorted(ends[order], at, "right")]).astype(np.int64)
    return found


def _threads_in_order(thread: I64, start_ns: I64) -> I64:
    """The order of events thread by thread, the thread of the first event first; by time within a thread."""
    _, first, which = np.unique(thread, return_index=True, return_inverse=True)
    if not len(thread):
        return np.zeros(0, np.int64)
    earliest = np.array([start_ns[which == k].min() for k in range(len(first))], np.int64)
    found: I64 = np.lexsort((start_ns, earliest[which]))
    return found


def _difference(window: int, light: int, which: int) -> str:
    if window != light:
        return f"a step of the window has {window} driver calls, light step {which + 1} has {light}"
    return f"light step {which + 1} has other driver calls than the window"
