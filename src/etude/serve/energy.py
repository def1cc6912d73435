"""Energy of passes: that of a device that is busy for so long, and that of the work in them, up to its limit."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from etude.cost.energy import costs_of, idle_w, limit_w
from etude.kernels.compile import kernel
from etude.machine.system import Device
from etude.serve.pass_time import pass_ns
from etude.serve.steps import StepCost, step_cost


class Energy(NamedTuple):
    work: StepCost
    """Of the FLOPs and bytes of a pass on one rank: nanojoules, asked as times are."""
    active_w: float
    """Of a device that runs kernels, beyond idle."""
    most_w: float
    """Up to its limit, beyond idle."""
    idle_w: float
    factor: float
    """Of the engine's software, on the power beyond idle."""
    ranks: int
    """Of a replica; 0: nothing is known of its power."""


NONE: Final = np.int64(0)
UNKNOWN: Final = Energy(step_cost(tokens=[1], layers_ns=[0.0]), 0.0, 0.0, 0.0, 1.0, 0)


def energy_of(device: Device, work: StepCost, ranks: int, factor: float = 1.0) -> Energy:
    """UNKNOWN for a device that says nothing of its power."""
    if not device.power_w:
        return UNKNOWN
    idle = idle_w(device)
    return Energy(work, costs_of(device).active_w, limit_w(device) - idle, idle, factor, ranks)


@kernel(allocates=False)
def pass_nj(energy, shape, time_ns):
    """Beyond idle, of all ranks of a replica, for a pass that lasts so long. A watt is a nanojoule in a nanosecond."""
    if energy.ranks == 0:
        return 0.0
    drawn = energy.factor * (energy.active_w * time_ns + pass_ns(energy.work, shape, NONE))
    return min(drawn, energy.most_w * time_ns) * energy.ranks
