"""Energy of passes: that of running kernels and of their work, up to the device's limit."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from etude.cost.energy import idle_w, limit_w
from etude.kernels.compile import kernel
from etude.machine.system import Device
from etude.world.serve.pass_time import pass_ns
from etude.world.serve.steps import StepCost, step_cost


class ReplicaPower(NamedTuple):
    work: StepCost
    """Energy of a pass on one rank above idle: nanojoules, with the interface of times."""
    most_w: float
    """Its limit, above idle."""
    idle_w: float
    factor: float
    """Factor of the engine's software on the power above idle."""
    ranks: int
    """Ranks of a replica; 0: its power is unknown."""


NONE: Final = np.int64(0)
UNKNOWN: Final = ReplicaPower(step_cost(tokens=[1], layers_ns=[0.0]), 0.0, 0.0, 1.0, 0)


def energy_of(device: Device, work: StepCost, ranks: int, factor: float = 1.0) -> ReplicaPower:
    """UNKNOWN for a device without power figures."""
    if not device.power_w:
        return UNKNOWN
    idle = idle_w(device)
    return ReplicaPower(work, limit_w(device) - idle, idle, factor, ranks)


@kernel(allocates=False, inline="llvm")
def pass_nj(energy, shape, time_ns):
    """Energy above idle of all ranks of a replica, for a pass of this length. A watt is a nanojoule per nanosecond."""
    if energy.ranks == 0:
        return 0.0
    drawn = energy.factor * pass_ns(energy.work, shape, NONE)
    return min(drawn, energy.most_w * time_ns) * energy.ranks
