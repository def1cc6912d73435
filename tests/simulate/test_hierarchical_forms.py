"""The closed form of `hierarchical` comes from its schedule: what the networks take for the same transfers."""

from __future__ import annotations

import numpy as np
import pytest

from etude.cost.collectives import choose
from etude.cost.groups import group_shape
from etude.machine import open_system
from etude.machine.fabrics import topology_of_system
from etude.machine.system import Device, Level, LevelKind, System
from etude.model.schema import Collective
from etude.run.simulate.networks import run_operations
from etude.run.simulate.networks.carrier import Carrier

AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER


def toy(*levels: tuple[str, int, float]) -> System:
    """Levels of (kind, size, bytes/ns)."""
    made = [
        Level(name=f"l{i}", kind=LevelKind(kind), size=size, bandwidth_bytes_per_s=rate * 1e9, latency_ns=10.0)
        for i, (kind, size, rate) in enumerate(levels)
    ]
    return System(name="toy", device=Device(name="toy"), levels=tuple(made))


MACHINES = {
    "mesh 4x4": (toy(("mesh", 4, 1.0), ("mesh", 4, 1.0)), 16),
    "rings of nodes": (toy(("switch", 4, 8.0), ("switch", 4, 1.0)), 16),
    "full in rings": (toy(("full", 4, 3.0), ("ring", 6, 1.0)), 24),
    "dgx-h100": (open_system("dgx-h100"), 32),
    "mi300x-node": (open_system("mi300x-node"), 16),
}


@pytest.mark.parametrize("kind", [AR, AG, RS], ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize("machine", MACHINES)
def test_the_closed_form_is_what_its_transfers_take(machine: str, kind: Collective) -> None:
    system, ranks = MACHINES[machine]
    topology, members = topology_of_system(system), np.arange(ranks)
    shape = group_shape(system, members)
    for size in (1 << 16, 1 << 20, 1 << 24):
        closed = int(choose(system, kind, [size], shape, "hierarchical").time_ns[0])
        carriage = Carrier(system, topology).collective(kind, size, members, shape, "hierarchical")
        found = run_operations(topology, [carriage.operation(members, size)], model="links").end_ns
        assert found == pytest.approx(closed, rel=0.02), size
