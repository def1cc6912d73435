"""A run at another clock, or at the highest one that keeps to a cap.

A lower clock makes operations slower, and below some clock the memory too; links stay as they are. The power of the
cores falls with the clock and the square of the voltage. A cap holds for means over windows, as the regulator of a
board does: the clock is the highest at which no window of any device is above it. Held against measurements of an H200
by benchmarks/validate_energy.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from etude.analyse.energy import Energy
from etude.base.errors import UsageError
from etude.cost.energy import costs_of, idle_w, limit_w, time_at_clock
from etude.cost.ops import OpTable
from etude.cost.stacks.stack import tuned
from etude.cost.traces import ops_of
from etude.kernels.arrays import F64, I64
from etude.machine.system import Device
from etude.model.as_recorded import without_recorded
from etude.model.frames import frames
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace
from etude.run.simulate import Simulated
from etude.steps.step import Prediction, efficiency_of, simulated_on, with_host_memory

STEP: Final = 0.01
"""Clocks that a cap chooses from, over the nominal one."""
EnergyAt = Callable[[float], Energy]
"""The energy of the run at a clock over the nominal one."""


@dataclass(frozen=True, slots=True)
class Capped:
    """The clock under a cap, and the energy there; `met`: whether that meets the cap."""

    ratio: float
    energy: Energy
    met: bool


def ratio_of(clock: str, device: Device) -> float:
    """A clock relative to the nominal one, from `1200MHz`, `1.2GHz` or a fraction (`0.8`)."""
    nominal, least = costs_of(device).clock_mhz, costs_of(device).least_ratio
    text = clock.strip().lower()
    unit = next((u for u in ("mhz", "ghz") if text.endswith(u)), "")
    try:
        value = float(text.removesuffix(unit))
    except ValueError:
        hint = "1200MHz, 1.2GHz, or 0.8 of the nominal"
        raise UsageError(f"`{clock}` is not a clock", where="--clock", hint=hint) from None
    if unit and not nominal:
        raise UsageError(
            f"device `{device.name}` does not specify its clock", where="--clock", hint="0.8 of the nominal"
        )
    ratio = value * {"": 1.0, "mhz": 1.0, "ghz": 1000.0}[unit] / (nominal if unit else 1.0)
    if not least <= ratio <= 1.0:
        span = f"{least * nominal:.0f} to {nominal:.0f} MHz" if nominal else f"{least:g} to 1"
        raise UsageError(f"`{clock}` is outside the clocks of `{device.name}`", where="--clock", hint=span)
    return ratio


def under_cap(at: EnergyAt, cap_w: float, device: Device) -> Capped:
    """The highest clock at which no device draws more than the cap. A cap above the actual power changes nothing."""
    idle = idle_w(device, costs_of(device).least_ratio)
    if not cap_w > idle:
        raise UsageError(f"--cap: {cap_w:g} W is not above the idle power of `{device.name}`, {idle:g} W")
    if cap_w > limit_w(device):
        cap_w = limit_w(device)
    found = at(1.0)
    if found.highest_w <= cap_w:
        return Capped(1.0, found, True)
    least = costs_of(device).least_ratio
    ratios = [*np.arange(1.0, least, -STEP).tolist(), least]
    low, high = 0, len(ratios) - 1  # at ratios[low] it is above the cap
    lowest = at(ratios[high])
    if lowest.highest_w > cap_w:
        return Capped(ratios[high], lowest, False)
    found = lowest
    while high - low > 1:
        middle = (low + high) // 2
        tried = at(ratios[middle])
        if tried.highest_w <= cap_w:
            high, found = middle, tried
        else:
            low = middle
    return Capped(ratios[high], found, True)


def slowed(job: Job, device: Device, ratio: float) -> Job:
    """The job with the times of its compute at this clock: as long as at the nominal one, recorded or by the device's
    roofline, or as long as its operations or its bytes alone take if that is longer."""
    if ratio == 1.0:
        return job
    found = [_at_clock(trace, device, ratio) for trace in job.traces]
    pairs = zip(job.traces, found, strict=True)
    traces = [
        without_recorded(trace).replace(duration_ns=_times(trace.duration_ns, own, by)) for trace, (own, by) in pairs
    ]
    values = {
        rank: {
            name: _times(column, *found[int(job.trace_of[job.index(rank)])]) if name == "duration_ns" else column
            for name, column in columns.items()
        }
        for rank, columns in job.values.items()
    }
    return job.replace(traces=tuple(traces), values=values)


def step_at(found: Prediction, ratio: float) -> Simulated:
    """A predicted step at this clock."""
    if ratio == 1.0:
        return found.simulated
    by = efficiency_of(found.generated.model, found.system, found.stack)
    job = slowed(found.generated.job, tuned(found.system, by).device, ratio)
    options = with_host_memory(found.generated, {})
    return simulated_on(replace(found.generated, job=job), found.system, by, options)


def _at_clock(trace: Trace, device: Device, ratio: float) -> tuple[I64, F64]:
    """Time of each node at the nominal clock, UNKNOWN if unknown, and the factor at this one."""
    time_ns, factor = np.full(len(trace), UNKNOWN), np.ones(len(trace))
    rows = np.flatnonzero((trace.kind == Kind.COMP) & (trace.cpu != 1) & ~frames(trace))
    shaped = trace.in_shapes.strides != (0,)
    ops = ops_of(trace).take(rows) if shaped else OpTable.plain(trace.flops[rows], trace.tensor_bytes[rows])
    own, by = time_at_clock(device, ops, ratio)
    time_ns[rows], factor[rows] = own, by
    return time_ns, factor


def _times(duration_ns: I64, modelled_ns: I64, factor: F64) -> I64:
    own = np.where(duration_ns != UNKNOWN, duration_ns, modelled_ns)
    known = own != UNKNOWN
    return np.where(known, np.rint(np.where(known, own, 0) * factor).astype(np.int64), UNKNOWN)
