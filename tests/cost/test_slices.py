"""Slices of a torus, and lines without wraps: shapes by the vendor's rules, times by hand."""

from __future__ import annotations

import pytest

from etude.base.errors import ClusterError, UsageError
from etude.cost.collectives import collective_time_ns, p2p_time_ns
from etude.machine import open_system
from etude.machine.fabrics import topology_of_system
from etude.machine.routes import Routes
from etude.machine.system import System
from etude.model.schema import Collective
from etude.run.simulate.networks import Operation, run_operations
from toy_systems import DEVICE, level, one_level


def shape(system: System) -> str:
    return " ".join(f"{v.kind}{v.size}" for v in system.levels)


@pytest.mark.parametrize(
    ("name", "devices", "expected"),
    [
        ("tpu-v6e-pod", 4, "mesh2 mesh2"),
        ("tpu-v6e-pod", 8, "mesh2 mesh4"),
        ("tpu-v6e-pod", 16, "mesh4 mesh4"),
        ("tpu-v6e-pod", 64, "mesh8 mesh8"),
        ("tpu-v6e-pod", 128, "mesh8 ring16"),  # a dimension of 16 closes by itself
        ("tpu-v6e-pod", 256, "ring16 ring16"),
        ("tpu-v5p-pod", 4, "mesh2 mesh2"),
        ("tpu-v5p-pod", 16, "mesh2 mesh2 mesh4"),
        ("tpu-v5p-pod", 64, "ring4 ring4 ring4"),  # a whole cube
        ("tpu-v5p-pod", 128, "ring4 ring4 ring8"),
        ("tpu-v5p-pod", 96, "mesh4 mesh4 mesh6"),  # no whole number of cubes
        ("tpu-v6e-pod", 1, "ring1"),
    ],
)
def test_a_slice_is_as_near_to_a_cube_as_it_can_be(name: str, devices: int, expected: str) -> None:
    pod = open_system(name)
    assert shape(pod.resized(devices)) == shape(pod.for_ranks(devices)) == expected
    assert len(pod.resized(devices)) == devices


def test_other_systems_grow_and_shrink_as_they_did() -> None:
    assert shape(open_system("tpu-v6e-pod").resized(512)) == "ring16 ring32"
    ring = one_level("ring", 16)
    assert shape(ring.resized(4)) == "ring4"
    torus = System(name="t", device=DEVICE, levels=(level("x", "ring", 8), level("y", "ring", 8)))
    assert shape(torus.resized(16)) == "ring4 ring4"  # a small one of the same kind: nothing says it would not close
    assert shape(open_system("dgx-h100").for_ranks(8 * 200)) == "switch8 switch200"
    assert open_system("dgx-h100").for_ranks(16) is open_system("dgx-h100")
    pods = System(name="p", device=DEVICE, levels=(*torus.levels, level("dcn", "switch", 4)))
    assert shape(pods.resized(128)) == "ring8 ring8 switch2"
    assert shape(pods.resized(16)) == "ring4 ring4"
    with pytest.raises(UsageError, match="17 devices are not a slice of its 16x16"):
        open_system("tpu-v6e-pod").resized(17)


def test_a_file_may_say_mesh() -> None:
    given = {"name": "m", "device": {"name": "d"}}
    ici = {"name": "ici", "kind": "mesh", "shape": [4, 2], "bandwidth": "100GB/s"}
    assert shape(System.from_dict({**given, "levels": [ici]})) == "mesh4 mesh2"
    with pytest.raises(ClusterError, match=r"wrap: a level of kind switch has no open ends"):
        System.from_dict({**given, "levels": [{"name": "s", "kind": "switch", "size": 4, "bandwidth": 1, "wrap": 2}]})


@pytest.mark.parametrize("model", ["links", "flow"])
def test_messages_along_a_line(model: str) -> None:
    """A neighbour has half of 1 byte/ns; from end to end there are three steps of 10 ns, and no way round."""
    line = one_level("mesh", 4)
    assert p2p_time_ns(line, 0, [1, 3], 100).tolist() == [10 + 200, 30 + 200]
    topology = topology_of_system(line)
    for goal, expected in ((1, 210), (3, 230)):
        assert run_operations(topology, [Operation.message(0, goal, 100)], model=model).end_ns == expected
        assert run_operations(topology, [Operation.message(goal, 0, 100)], model=model).end_ns == expected
    assert len(topology.src) == 6


def test_ways_in_a_mesh_go_through_the_grid() -> None:
    grid = topology_of_system(System(name="g", device=DEVICE, levels=(level("x", "mesh", 3), level("y", "mesh", 4))))
    start, links = Routes(grid).paths(grid.device[[0, 11, 7]], grid.device[[11, 0, 3]])
    ways = [[int(grid.src[links[k]]) for k in range(start[i], start[i + 1])] for i in range(3)]
    assert ways == [[0, 1, 2, 5, 8], [11, 10, 9, 6, 3], [7, 6]]  # x first, then y
    assert [int(grid.dst[links[e - 1]]) for e in start[1:]] == [11, 0, 3]


def test_a_line_takes_twice_as_long_as_a_ring() -> None:
    """All-reduce of 4000 B on four: three steps of 1000 B each way, over one link of half the port."""
    ar = Collective.ALL_REDUCE
    assert collective_time_ns(one_level("mesh", 4), ar, [4000], range(4)).tolist() == [2 * 3 * (10 + 2000)]
    assert collective_time_ns(one_level("ring", 4), ar, [4000], range(4)).tolist() == [2 * (2 * 10 + 3000)]


@pytest.mark.parametrize("model", ["links", "flow"])
def test_an_oversubscribed_rail_gives_half_to_all_and_everything_to_one(model: str) -> None:
    rail = level("rail", "switch", 4, latency_ns=20.0, rails=True, oversubscription=2.0)
    nodes = topology_of_system(System(name="n", device=DEVICE, levels=(level("node", "switch", 2), rail)))
    assert run_operations(nodes, [Operation.message(0, 2, 1000)], model=model).end_ns == 20 + 1000
    ops = [Operation.message(2 * i, (2 * i + 2) % 8, 1000) for i in range(4)]
    found = run_operations(nodes, ops, model=model).end_ns
    assert found == (20 + 2000 if model == "flow" else 20 + 3 * 500 + 1000)
