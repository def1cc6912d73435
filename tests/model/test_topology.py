"""Topologies and the ways through them: by hand, and against a slow search."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from etude.base.errors import ClusterError
from etude.machine.fabrics import dragonfly, fat_tree, rail_clos, topology_of_system
from etude.machine.ports import own_ports
from etude.machine.routes import Routes, check_connected, common_switch
from etude.machine.system import Device, Level, LevelKind, LevelPort, System
from etude.machine.topology import Topology, VertexKind, Wire, full, product, ring, switch, topology_of, torus

W = Wire(bytes_per_s=50e9, latency_ns=500)
FAST = Wire(bytes_per_s=450e9, latency_ns=300)


def all_ways(t: Topology, flow: int = 0) -> dict[tuple[int, int], list[int]]:
    """Vertices on the way between every two ranks."""
    n = len(t)
    src, dst = (a.ravel() for a in np.meshgrid(np.arange(n), np.arange(n), indexing="ij"))
    start, links = Routes(t).paths(t.device[src], t.device[dst], flow)
    ways = {}
    for i, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        path = links[start[i] : start[i + 1]]
        ways[a, b] = [int(t.device[a]), *t.dst[path].tolist()]
        assert [int(t.device[a]), *t.dst[path[:-1]].tolist()][: len(path)] == t.src[path].tolist()
        assert ways[a, b][-1] == t.device[b]
    return ways


def naive_hops(t: Topology, src: int) -> dict[int, int]:
    """Fewest hops to every vertex, not through vertices that do not forward."""
    hops, edge = {src: 0}, [src]
    while edge:
        later = []
        for v in edge:
            if v != src and not t.forwards[v]:
                continue
            for link in t.out_link[t.out_start[v] : t.out_start[v + 1]]:
                u = int(t.dst[link])
                if u not in hops:
                    hops[u] = hops[v] + 1
                    later.append(u)
        edge = later
    return hops


ALL = {
    "ring": lambda: ring(6, W),
    "two": lambda: ring(2, W),
    "full": lambda: full(5, W),
    "switch": lambda: switch(4, W),
    "fat tree": lambda: fat_tree(4, W),
    "leaf and spine": lambda: fat_tree(6, W, levels=2, oversubscription=2),
    "rails": lambda: rail_clos(4, 3, scale_up=FAST, scale_out=W, nodes_per_leaf=2, spines=2),
    "dragonfly": lambda: dragonfly(4, 2, 2, W),
    "torus": lambda: torus((3, 2, 4), W),
    "one": lambda: product([]),
}


@pytest.mark.parametrize("name", ALL)
def test_ways_lead_there_by_the_fewest_hops(name: str) -> None:
    t = ALL[name]()
    check_connected(t)
    ways = all_ways(t)
    for a in range(len(t)):
        hops = naive_hops(t, int(t.device[a]))
        assert [len(ways[a, b]) - 1 for b in range(len(t))] == [hops[int(t.device[b])] for b in range(len(t))]


def test_a_ring_takes_the_shorter_way_and_a_tie_goes_up() -> None:
    ways = all_ways(ring(4, W))
    assert ways[0, 1] == [0, 1]
    assert ways[0, 3] == [0, 3]
    assert ways[0, 2] == [0, 1, 2]
    assert ways[3, 1] == [3, 0, 1]


def test_a_torus_goes_dimension_by_dimension() -> None:
    assert all_ways(torus((4, 4), W))[0, 5 + 4] == [0, 1, 5, 9]


def test_a_product_of_shapes() -> None:
    t = product([("ring", 4, W), ("full", 3, FAST), ("switch", 2, W)])
    assert (len(t), len(t.kind), len(t.src)) == (24, 36, 24 * 2 + 24 * 2 + 24 * 2)
    way = all_ways(t)[0, 2 + 4 * (1 + 3 * 1)]
    assert way == [0, 1, 2, 6, 24 + 6, 18]
    assert t.vertex_name(30) == "switch2.6"
    assert t.vertex_name(3) == "device.3"


@pytest.mark.parametrize(
    ("t", "devices", "vertices", "links"),
    [
        (fat_tree(4, W), 16, 16 + 20, 2 * 48),
        (fat_tree(8, W, levels=2), 32, 32 + 12, 2 * (32 + 32)),
        (fat_tree(6, W, levels=2, oversubscription=2), 24, 24 + 6 + 2, 2 * (24 + 12)),
        (fat_tree(8, W, levels=1), 8, 9, 16),
        (fat_tree(4, W, devices=5), 5, 5 + 20, 2 * (5 + 32)),
        (rail_clos(4, 8, scale_up=FAST, scale_out=W, nodes_per_leaf=2, spines=3), 32, 32 + 4 + 32 + 16 + 3, 2 * 144),
        (dragonfly(4, 2, 2, W), 72, 72 + 36, 2 * (72 + 9 * 6 + 36)),
    ],
)
def test_counts(t: Topology, devices: int, vertices: int, links: int) -> None:
    assert (len(t), len(t.kind), len(t.src)) == (devices, vertices, links)


def test_flows_take_all_equal_ways_before_one_is_taken_twice() -> None:
    t = fat_tree(8, W)
    src, dst = np.full(16, t.device[0]), np.full(16, t.device[-1])
    start, links = Routes(t).paths(src, dst, np.arange(16))
    assert len({tuple(links[a:b]) for a, b in pairwise(start)}) == 16
    again = Routes(t).paths(src, dst, np.arange(16))
    assert links.tolist() == again[1].tolist()
    # and the load of many pairs is even
    n = len(t)
    a, b = (x.ravel() for x in np.meshgrid(np.arange(n), np.arange(n)))
    _, links = Routes(t).paths(t.device[a], t.device[b], np.arange(n * n))
    used = np.bincount(links, minlength=len(t.src))[t.link_type == t.link_names.index("spine")]
    assert used.max() < 1.3 * used.mean()


def test_of_two_shortest_ways_the_wider_is_taken() -> None:
    """Two devices on two switches, of which one is fast: NVLink and PCIe, say."""
    t = topology_of(
        "two planes", kind=np.array([1, 1, 2, 2], np.uint8), device=np.array([0, 1], np.int32),
        src=np.array([0, 1, 2, 2, 0, 1, 3, 3], np.int32), dst=np.array([2, 2, 0, 1, 3, 3, 0, 1], np.int32),
        bytes_per_s=np.repeat([1e9, 5e9], 4), latency_ns=np.zeros(8, np.int64), vertex_name=str,
    )  # fmt: skip
    assert {tuple(all_ways(t, f)[0, 1]) for f in range(8)} == {(0, 3, 1)}


def test_rails_are_not_left_within_a_rail_and_devices_do_not_forward() -> None:
    t = rail_clos(4, 3, scale_up=FAST, scale_out=W, nodes_per_leaf=4, spines=2)
    kinds = {pair: [VertexKind(t.kind[v]) for v in way] for pair, way in all_ways(t).items()}
    assert len(kinds[0, 3]) == 5  # device, nic, leaf, nic, device
    assert len(kinds[0, 1]) == 3  # device, node switch, device
    assert len(kinds[0, 4]) == 7  # through the spine
    assert all(VertexKind.DEVICE not in way[1:-1] for way in kinds.values())


def test_the_switch_that_members_share() -> None:
    t = rail_clos(4, 3, scale_up=FAST, scale_out=W, nodes_per_leaf=4, spines=2)
    assert t.vertex_name(common_switch(t, np.array([3, 4, 5]))) == "node.1"
    assert t.vertex_name(common_switch(t, np.array([0, 3, 6]))) == "leaf.0"


def broken(**change: Any) -> Topology:
    columns: dict[str, Any] = {
        "kind": np.array([1, 1, 2], np.uint8), "device": np.array([0, 1], np.int32),
        "src": np.array([0, 2], np.int32), "dst": np.array([2, 1], np.int32), "bytes_per_s": np.full(2, 1e9),
        "latency_ns": np.zeros(2, np.int64), "vertex_name": lambda v: f"v{v}",
    }  # fmt: skip
    return topology_of("broken", **(columns | change))


@pytest.mark.parametrize(
    ("say", "call"),
    [
        ("bandwidth 0", lambda: Wire(bytes_per_s=0)),
        ("bandwidth -1", lambda: Wire(bytes_per_s=-1)),
        ("bandwidth nan", lambda: Wire(bytes_per_s=float("nan"))),
        ("bandwidth inf", lambda: Wire(bytes_per_s=float("inf"))),
        ("latency -3", lambda: Wire(bytes_per_s=1, latency_ns=-3)),
        ("v0 -> v2: bandwidth 0.0", lambda: broken(bytes_per_s=np.zeros(2))),
        ("v0 -> v2: latency -5", lambda: broken(latency_ns=np.full(2, -5))),
        ("not one of its 3 vertices", lambda: broken(dst=np.array([2, 9], np.int32))),
        ("two ranks are on the same vertex", lambda: broken(device=np.array([0, 0], np.int32))),
        ("it has no device", lambda: broken(device=np.zeros(0, np.int32))),
        ("no route from v1 to v0", lambda: check_connected(broken())),
        ("unknown shape `star`", lambda: product([("star", 3, W)])),  # type: ignore[list-item]
        ("0 devices", lambda: ring(0, W)),
        ("cannot have 4 levels", lambda: fat_tree(4, W, levels=4)),
        ("cannot be split 1:2", lambda: fat_tree(4, W, oversubscription=2)),
        ("room for 16", lambda: fat_tree(4, W, devices=17)),
        ("`nodes` is 0", lambda: rail_clos(0, 8, scale_up=W, scale_out=W)),
        ("no route from device.0 to device.3", lambda: all_ways(rail_clos(1, 4, scale_up=W, scale_out=W, spines=0)) and
         Routes(rail_clos(2, 2, scale_up=W, scale_out=W, spines=0)).paths(np.array([0]), np.array([3]))),
        ("no switch reaches", lambda: common_switch(ring(4, W), np.array([0, 1]))),
    ],
)  # fmt: skip
def test_nonsense_is_refused(say: str, call: Any) -> None:
    with pytest.raises(ClusterError, match=say):
        call()


def test_sixteen_thousand_devices_are_built_and_routed() -> None:
    for t in (fat_tree(40, W), dragonfly(16, 8, 8, W)):
        assert len(t) >= 16_000
        away = np.arange(1, 100) * 161
        src = np.zeros(99, np.int64)
        start, _ = Routes(t).paths(src, t.device[away])
        assert np.diff(start).max() <= 6


def system_of(*levels: Level, placement: tuple[int, ...] = ()) -> System:
    return System(name="s", device=Device(name="d"), levels=levels, placement=placement)


def level(name: str, kind: LevelKind, size: int, rate: float = 90e9, **more: Any) -> Level:
    return Level(name=name, kind=kind, size=size, bandwidth_bytes_per_s=rate, latency_ns=800, **more)


def test_a_system_of_switches_is_a_graph() -> None:
    node, net = level("node", LevelKind.SWITCH, 4, 450e9), level("net", LevelKind.SWITCH, 3, 50e9, oversubscription=2.0)
    t = topology_of_system(system_of(node, net, placement=(11, 0, 1)))
    assert [t.vertex_name(v) for v in all_ways(t)[0, 1]] == [
        "device.11",
        "net leaf.2",
        "net.0",
        "net leaf.0",
        "device.0",
    ]
    assert [t.vertex_name(v) for v in all_ways(t)[1, 2]] == ["device.0", "node.0", "device.1"]
    _, links = Routes(t).paths(t.device[[0]], t.device[[1]])
    assert t.bytes_per_s[links].tolist() == [50e9, 100e9, 100e9, 50e9]
    assert t.latency_ns[links].sum() == 800


def test_a_system_of_rings_meshes_or_rails_is_a_product() -> None:
    t = topology_of_system(system_of(level("x", LevelKind.RING, 4), level("y", LevelKind.FULL, 3)))
    assert {t.link_names[k]: set(t.bytes_per_s[t.link_type == k]) for k in range(2)} == {
        "dimension0": {45e9},
        "dimension1": {45e9},
    }
    rails = topology_of_system(
        system_of(level("node", LevelKind.SWITCH, 4), level("net", LevelKind.SWITCH, 2, rails=True))
    )
    assert [rails.vertex_name(v) for v in all_ways(rails)[0, 5]] == [
        "device.0", "switch0.0", "device.1", "switch1.1", "device.5",
    ]  # fmt: skip
    levels = level("node", LevelKind.SWITCH, 4), level("net", LevelKind.SWITCH, 2, rails=True)
    few = topology_of_system(system_of(*levels, placement=(5, 0)))
    assert [few.vertex_name(v) for v in all_ways(few)[1, 0]] == [
        "device.0", "switch0.0", "device.1", "switch1.1", "device.5",
    ]  # fmt: skip
    with pytest.raises(ClusterError, match="with a switch for all"):
        topology_of_system(
            system_of(
                level("node", LevelKind.SWITCH, 4),
                level("net", LevelKind.SWITCH, 2),
                level("rail", LevelKind.SWITCH, 2, rails=True),
            )
        )


@pytest.mark.parametrize(
    ("rates", "ports"),
    [
        ((450, 50, 50), [True, True, False]),  # scale-up, then the tiers of one NIC
        ((450, 50, 25), [True, True, False]),  # a tapered core is reached through the same NIC
        ((900, 900, 50), [True, False, True]),  # two tiers of the scale-up network
        ((50, 50, 50), [True, False, False]),  # a fat tree of NICs
        ((32, 50), [True, True]),
        ((50,), [True]),
    ],
)
def test_a_device_has_a_port_to_scale_up_and_one_to_scale_out(rates: tuple[int, ...], ports: list[bool]) -> None:
    levels = [level(f"l{i}", LevelKind.SWITCH, 2, rate * 1e9) for i, rate in enumerate(rates)]
    assert own_ports(levels) == ports
    assert sum(topology_of_system(system_of(*levels)).src == 0) == sum(ports)


def test_a_file_says_which_ports_there_are() -> None:
    node = level("node", LevelKind.SWITCH, 2)
    assert own_ports([node, level("net", LevelKind.SWITCH, 2, port=LevelPort.OWN)]) == [True, True]
    assert own_ports([node, level("net", LevelKind.SWITCH, 2, 9e9, port=LevelPort.SHARED)]) == [True, False]
    # Devices that are joined to one another have no switch to go through.
    assert own_ports([level("x", LevelKind.RING, 2), level("net", LevelKind.SWITCH, 2)]) == [True, True]
    given = {"name": "net", "kind": "switch", "size": 2, "bandwidth": "1GB/s", "port": "shared"}
    read = System.from_dict({"name": "s", "device": {"name": "d"}, "levels": [given]})
    assert read.levels[0].port == LevelPort.SHARED
    assert System.from_dict(read.to_dict()) == read
    with pytest.raises(ClusterError, match=r"levels\[0\]: port: .*`both`"):
        System.from_dict({"name": "s", "device": {"name": "d"}, "levels": [{**given, "port": "both"}]})


@pytest.mark.parametrize("kind", [LevelKind.FULL, LevelKind.RING])
def test_groups_of_nodes_joined_each_to_each(kind: LevelKind) -> None:
    """A dragonfly by levels: pairs, pairs of pairs on a switch, 3 such groups joined; and a ring under a switch."""
    node, far = level("node", LevelKind.SWITCH, 2, 900e9), replace(level("far", kind, 3), latency_ns=1300)
    groups = node, level("group", LevelKind.SWITCH, 2), far
    made = topology_of_system(system_of(*groups))
    check_connected(made)
    way = [made.vertex_name(v) for v in all_ways(made)[0, 5]]
    assert way == ["device.0", "group.0", "group.1", "device.5"]
    one, unit = groups[2].bandwidth_bytes_per_s, 4
    between = [i for i in range(len(made.src)) if made.link_name(i).count("group.") == 2]
    assert len(between) == 6
    assert made.latency_ns[Routes(made).paths(made.device[[0]], made.device[[5]])[1]].sum() == 1300
    assert made.bytes_per_s[between].tolist() == pytest.approx([one * groups[2].efficiency * unit / 2] * 6)
    check_connected(topology_of_system(system_of(level("x", kind, 4), level("net", LevelKind.SWITCH, 2))))
