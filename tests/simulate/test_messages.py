"""Messages in columns: the same as one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from etude.base.errors import ClusterError, UsageError
from etude.cost.schedule import chunked, message
from etude.machine import open_system
from etude.machine.fabrics import dragonfly, fat_tree, rail_clos, topology_of_system
from etude.machine.routes import Routes
from etude.machine.topology import Topology, Wire, ring, topology_of
from etude.run.simulate.networks import Operation, run_operations
from etude.run.simulate.networks.carrier import Carrier
from etude.run.simulate.networks.messages import Messages, distinct, equal_ways
from etude.run.simulate.networks.operation import NetworkOptions
from etude.run.simulate.networks.registry import Registry
from etude.run.simulate.networks.standalone import run_registered

WIRE = Wire(bytes_per_s=1e9, latency_ns=10)
BOTH = pytest.mark.parametrize("model", ["links", "flow"])


def two_planes() -> Topology:
    """Three devices on two equal switches, and one that has a port on the first alone."""
    a, b = np.array([0, 1, 2, 3, 0, 1, 2]), np.array([4, 4, 4, 4, 5, 5, 5])
    src, dst = np.concatenate((a, b)).astype(np.int32), np.concatenate((b, a)).astype(np.int32)
    return topology_of(
        "two planes", kind=np.array([1, 1, 1, 1, 2, 2], np.uint8), device=np.arange(4, dtype=np.int32),
        src=src, dst=dst, bytes_per_s=np.full(14, 1e9), latency_ns=np.full(14, 10), vertex_name=str,
    )  # fmt: skip


GRAPHS = {
    "two planes": two_planes(),
    "fat tree": fat_tree(4, WIRE),
    "dragonfly": dragonfly(4, 2, 2, WIRE),
    "rails": rail_clos(4, 3, scale_up=Wire(bytes_per_s=5e9, latency_ns=3), scale_out=WIRE, nodes_per_leaf=2, spines=2),
    "ring": ring(6, WIRE),
}
EACH = pytest.mark.parametrize("name", GRAPHS)


def one_by_one(t: Topology, a: int, b: int) -> list[tuple[int, ...]]:
    """The ways of the first 16 flows."""
    start, links = Routes(t).paths(np.full(16, a), np.full(16, b), np.arange(16))
    return [tuple(links[i:j].tolist()) for i, j in pairwise(start.tolist())]


@EACH
def test_ways_are_counted_as_flows_take_them(name: str) -> None:
    t = GRAPHS[name]
    device = t.device.astype(np.int64)
    src, dst = (v.ravel() for v in np.meshgrid(device[:9], device[-9:]))
    src, dst = src[src != dst], dst[src != dst]
    ways = [one_by_one(t, a, b) for a, b in zip(src.tolist(), dst.tolist(), strict=True)]
    assert equal_ways(Routes(t), src, dst, 16).tolist() == [len(set(w)) for w in ways]
    if not t.dimensions:
        assert Routes(t).first_links(src, dst).tolist() == [len({way[0] for way in w}) for w in ways]


def test_a_device_with_two_ports_has_two_first_links_where_both_lead_there() -> None:
    found = Routes(two_planes()).first_links(np.array([0, 0, 3, 1, 2]), np.array([1, 3, 0, 1, 4]))
    assert found.tolist() == [2, 1, 1, 1, 1]


def test_distinct_rows() -> None:
    first, which = distinct(np.array([3, 1, 3, 3]), np.array([5, 5, 5, 6]))
    assert (first.tolist(), which.tolist()) == ([1, 0, 3], [1, 0, 1, 2])
    assert [len(v) for v in distinct(np.zeros(0, np.int64))] == [0, 0]


@BOTH
@EACH
@pytest.mark.parametrize("routing", ["static", "adaptive", "spray"])
def test_columns_give_the_times_of_operations(name: str, model: str, routing: str) -> None:
    """The same schedules under another name are registered operation by operation."""
    t, rng = GRAPHS[name], np.random.default_rng(5)
    src = rng.integers(0, len(t), 80)
    dst = (src + rng.integers(1, len(t), 80)) % len(t)
    size, flow = rng.integers(0, 5000, 80), rng.integers(0, 4, 80)
    arrivals = rng.integers(0, 3000, 80).tolist()
    rows = list(zip(src.tolist(), dst.tolist(), size.tolist(), flow.tolist(), strict=True))
    named = replace(message(), algorithm="one")
    found, expected = (
        run_operations(t, ops, arrivals, model=model, routing=routing)
        for ops in ([Operation.message(*row) for row in rows], [Operation(named, r[:2], r[2], r[3]) for r in rows])
    )
    assert np.concatenate(found.finish_ns).tolist() == np.concatenate(expected.finish_ns).tolist()
    assert found.link_bytes.tolist() == expected.link_bytes.tolist()
    assert found.link_busy_ns.tolist() == expected.link_busy_ns.tolist()


@BOTH
def test_parts_go_over_several_ports(model: str) -> None:
    """4001 B over two ports of 1 B/ns, at once: 2001 of them over one. Two links of 10 ns."""
    t = two_planes()
    registry = Registry(t, NetworkOptions(model=model))
    src, dst, parts = np.array([0, 3]), np.array([1, 2]), np.array([2, 1])
    none = np.zeros(2, np.int64)
    registry.register_messages(
        Messages(src, dst, np.array([4001, 500]), none, np.array([7, 0]), none + 1_000_000, parts)
    )
    state = run_registered(*registry.state(), np.zeros(4, np.int64))
    assert state.places["done_ns"].tolist() == [2028, 2028, 520, 520]
    halves = Operation(replace(chunked(message(), 2, 2), algorithm="two"), (0, 1), 4001, launch_ns=7)
    assert run_operations(t, [halves, Operation.message(3, 2, 500)], model=model).end_ns == 2028


@pytest.mark.parametrize("name", ["dgx-a100", "fat-tree-h100", "dgx-h100"])
def test_many_messages_are_made_as_one_is(name: str) -> None:
    system = open_system(name)
    carrier, rng = Carrier(system, topology_of_system(system)), np.random.default_rng(2)
    src = rng.integers(0, 24, 40)
    dst, size = (src + rng.integers(1, 24, 40)) % 24, rng.integers(0, 1 << 22, 40)
    many = carrier.messages(src, dst, size)
    for i in range(40):
        one = carrier.message(int(src[i]), int(dst[i]), int(size[i]))
        assert (one.launch_ns, one.wire_ppm, one.flow) == (many.launch_ns[i], many.wire_ppm[i], many.flow[i])
        assert one.schedule.chunks == many.parts[i]


def test_many_messages_take_both_ports() -> None:
    carrier = Carrier(open_system("dgx-h100"), two_planes())
    assert carrier.messages(np.array([0, 3]), np.array([1, 2]), np.array([9, 9])).parts.tolist() == [2, 1]


@BOTH
def test_the_lag_of_a_message_counts(model: str) -> None:
    late = Operation.message(0, 1, 1000, lags=np.array([7]))
    assert run_operations(ring(4, WIRE), [late], model=model).end_ns == 1017


@pytest.mark.parametrize(
    ("kind", "text", "row"),
    [
        (UsageError, "rank 9 is not on any", (0, 9, 1)),
        (UsageError, "twice", (1, 1, 1)),
        (ClusterError, "-4", (0, 1, -4)),
    ],
)
def test_odd_messages_are_refused(kind: type[Exception], text: str, row: tuple[int, int, int]) -> None:
    with pytest.raises(kind, match=text):
        run_operations(ring(4, WIRE), [Operation.message(0, 1, 5), Operation.message(*row)])
