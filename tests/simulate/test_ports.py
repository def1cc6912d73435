"""Systems of levels as graphs: a device has one NIC, however many tiers of switches stand above it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from etude.cost.collectives import schedule
from etude.machine import open_system
from etude.machine.fabrics import topology_of_system
from etude.machine.faults import with_faults
from etude.machine.routes import Routes
from etude.machine.system import System
from etude.machine.topology import Wire, ring, switch
from etude.model.schema import Collective
from etude.run.simulate.networks import Operation, run_operations
from etude.run.simulate.networks.carrier import Carrier
from toy_systems import DEVICE, level

BOTH = pytest.mark.parametrize("model", ["links", "flow"])

TREE = System(
    name="tree",
    device=DEVICE,
    levels=(
        level("node", "switch", 2, gbyte_per_s=10.0),
        level("leaf", "switch", 2, latency_ns=20.0),
        level("core", "switch", 2, latency_ns=50.0, oversubscription=2.0),
    ),
)
"""Pairs with 10 bytes/ns inside; a NIC of 1 byte/ns on a leaf of two pairs; two leaves that share half of that."""


def ends(system: System, pairs: list[tuple[int, int]], size: int, model: str) -> list[int]:
    ops = [Operation.message(a, b, size) for a, b in pairs]
    return [int(f.max()) for f in run_operations(topology_of_system(system), ops, model=model).finish_ns]


@BOTH
def test_levels_above_a_switch_are_reached_through_its_nic(model: str):
    assert ends(TREE, [(0, 1)], 1000, model) == [10 + 100]
    assert ends(TREE, [(0, 2)], 1000, model) == [20 + 1000]
    assert ends(TREE, [(0, 4)], 1000, model) == [50 + 1000]
    # Two messages of one device leave through one NIC, one tier up or two.
    assert max(ends(TREE, [(0, 2), (0, 4)], 1000, model)) == 50 + 2000
    # The scale-up port is another: nothing is shared.
    assert ends(TREE, [(0, 1), (0, 2)], 1000, model) == [10 + 100, 20 + 1000]


def test_an_oversubscribed_core_gives_half_to_all_and_everything_to_one():
    assert ends(TREE, [(i, i + 4) for i in range(4)], 1000, "flow") == [50 + 2000] * 4
    assert ends(TREE, [(i, i + 4) for i in range(2)], 1000, "flow") == [50 + 1000] * 2


@BOTH
def test_a_fast_link_passes_on_others_while_a_slow_one_feeds_it(model: str):
    """Two messages of 1000 B over NICs of 1 B/ns meet on an uplink of 4 B/ns: the second waits for 250 ns at most."""
    wide = TREE.replace(levels=(*TREE.levels[:2], level("core", "switch", 2, latency_ns=50.0)))
    late = max(ends(wide, [(0, 4), (1, 5)], 1000, model))
    assert late == (50 + 250 + 1000 if model == "links" else 50 + 1000)


@BOTH
@pytest.mark.parametrize("name", ["fat-tree-h100", "dragonfly-h100"])
def test_a_shift_by_a_node_takes_what_one_nic_needs(name: str, model: str):
    """400 Gb/s at 92 %: 46 bytes/ns, 2 us away."""
    system, size = open_system(name), 256 << 20
    members = range(128 if name == "fat-tree-h100" else 32)  # of one leaf, or of one group
    topology = topology_of_system(system)
    carrier = Carrier(system, topology)
    ops = [replace(carrier.message(r, (r + 8) % len(members), size), launch_ns=0) for r in members]
    found = run_operations(topology, ops, model=model).finish_ns
    assert np.abs(np.concatenate(found) - (2000 + math.ceil(size / 46))).max() <= 2


@BOTH
@pytest.mark.parametrize("algorithm", ["ring", "ring_both"])
@pytest.mark.parametrize("topology", [ring(8, Wire(bytes_per_s=1e9, latency_ns=0)), switch(8, Wire(bytes_per_s=1e9))])
def test_a_link_of_half_the_rate_makes_a_ring_take_twice_as_long(topology, algorithm: str, model: str):
    """What piles up before it goes in order: a connection takes one share, and delivers one block after the other."""
    op = Operation(schedule(Collective.ALL_REDUCE, algorithm, 8), range(8), 8_000_000)
    slow, _ = with_faults(topology, {(0, topology.vertex_name(int(topology.dst[0]))): 2.0})
    usual, late = (run_operations(t, [op], model=model).end_ns for t in (topology, slow))
    assert late / usual == pytest.approx(2.0, rel=0.01)


def test_a_connection_takes_one_share_beside_others():
    """Four chunks to one neighbour against a message to another: half of the port each, not a fifth."""
    chunks = schedule(Collective.BROADCAST, "ring", 2, chunks=4, window=4)
    t = switch(3, Wire(bytes_per_s=1e9, latency_ns=0))
    times = run_operations(t, [Operation(chunks, (0, 1), 4000), Operation.message(0, 2, 4000)])
    assert [int(f.max()) for f in times.finish_ns] == [8000, 8000]
    assert run_operations(t, [Operation(chunks, (0, 1), 4000)]).end_ns == 4000


@pytest.mark.parametrize("name", ["trn1", "trn2", "tpu-v5e-pod"])
def test_what_stays_inside_of_a_unit_does_not_leave_it(name):
    """Ways have the fewest hops: a network of two hops must not be shorter than the rings inside of its units."""
    system = open_system(name)
    topology, unit = topology_of_system(system), len(system) // system.levels[-1].size
    outermost = topology.link_names.index(system.levels[-1].name)
    device = np.arange(unit)
    _, links = Routes(topology).paths(np.repeat(device, unit), np.tile(device, unit))
    assert not (topology.link_type[links] == outermost).any()
    _, links = Routes(topology).paths(np.array([0]), np.array([unit]))
    assert (topology.link_type[links] == outermost).any()
