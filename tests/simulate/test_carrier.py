"""Networks with links have the costs of closed forms: launch, protocols, steps, chunks; and faults, jitter, overlap."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from etude.base.errors import ClusterError, UsageError
from etude.cost.collectives import choose
from etude.cost.collectives.schedules import laid_out
from etude.cost.collectives.table import ALGORITHMS
from etude.cost.groups import group_shape
from etude.machine import open_system as catalogue
from etude.machine.fabrics import topology_of_system
from etude.machine.system import CollectiveSettings, Protocol, System
from etude.machine.topology import Blocks, LinkList, VertexKind, Wire, topology_of
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.run.simulate.networks import run_operations
from etude.run.simulate.networks.carrier import Carrier
from etude.run.simulate.options import Overlap
from etude.run.simulate.run import simulate
from symbolic import assert_right
from toy_systems import level, one_level, two_levels

BOTH = pytest.mark.parametrize("network", ["links", "flow"])
AR, AG, A2A = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.ALL_TO_ALL
BROADCAST = Collective.BROADCAST


def job(*ranks: list[tuple[Kind, dict[str, Any]]]) -> Job:
    builders = []
    for nodes in ranks:
        b = TraceBuilder()
        for kind, row in nodes:
            b.add(kind, **row)
        builders.append(b)
    return job_of("tiny", builders)


def coll(size: int, what: Collective = AR, **row: Any) -> tuple[Kind, dict[str, Any]]:
    return Kind.COLL, {"collective": what, "in_bytes": size, **row}


def message(src: int, dst: int, ranks: int, size: int) -> Job:
    nodes: list[list[tuple[Kind, dict[str, Any]]]] = [[] for _ in range(ranks)]
    nodes[src].append((Kind.SEND, {"dst": dst, "in_bytes": size}))
    nodes[dst].append((Kind.RECV, {"src": src, "in_bytes": size}))
    return job(*nodes)


@pytest.mark.parametrize(
    ("ranks", "what", "algorithm", "most"),
    [
        (8, AR, "ring", 1.01), (8, AR, "halving_doubling", 1.01), (8, AR, "direct", 1.01), (8, AR, "in_switch", 1.02),
        (8, AR, "tree", 1.08), (8, AG, "ring", 1.01), (8, AG, "in_switch", 1.06), (8, A2A, "direct", 1.01),
        (8, A2A, "ring", 1.01), (8, BROADCAST, "ring", 1.25), (8, BROADCAST, "tree", 1.15),
        (32, AR, "ring", 1.35), (32, AR, "tree", 1.1), (32, AR, "halving_doubling", 1.01), (32, AR, "direct", 1.06),
        (32, AG, "ring", 1.45), (32, A2A, "rail", 1.05), (32, A2A, "hierarchical", 1.02), (32, BROADCAST, "tree", 1.5),
    ],
)  # fmt: skip
def test_alone_on_the_links_an_operation_takes_what_its_closed_form_says(
    ranks: int, what: Collective, algorithm: str, most: float
):
    """At 4 KB, where latency counts, at 1 MB and at 64 MB, where bytes do; on one node and on four."""
    dgx = catalogue("dgx-h100").resized(64)
    topology, members = topology_of_system(dgx), np.arange(ranks)
    shape = group_shape(dgx, members)
    for size in (1 << 12, 1 << 20, 1 << 26):
        closed = int(choose(dgx, what, [size], shape, algorithm).time_ns[0])
        carriage = Carrier(dgx, topology).collective(what, size, members, shape, algorithm)
        carried = run_operations(topology, [carriage.operation(members, size)], model="links").end_ns
        assert 1 / most <= carried / closed <= most, (size, carried, closed)


@BOTH
def test_launch_protocol_and_step_by_hand(network: str):
    """Two ranks, 100 B each way of 200: 10 ns a step become 25, 50 ns of launch, half of the bandwidth."""
    slow = Protocol(launch_ns=50.0, bandwidth_fraction=0.5)
    toy = one_level("switch", 2, step_ns={"simple": 25.0})
    toy = toy.replace(collectives=CollectiveSettings(protocols={"simple": slow}, p2p_launch_ns=7.0))
    found = simulate(job([coll(200)], [coll(200)]), toy, network=network, collective={"all_reduce": "ring"})
    assert found.makespan_ns == 50 + 2 * (25 + 200)
    assert sum(link.bytes for link in found.links) == 2 * 2 * 200  # up and down, payload
    assert simulate(message(0, 1, 2, 100), toy, network=network).makespan_ns == 7 + 10 + 100


@BOTH
def test_rings_over_nodes_leave_through_every_port(network: str):
    toy = two_levels(4, 2, rails=True)
    found = simulate(job(*([coll(8000)] for _ in range(8))), toy, network=network, collective={"all_reduce": "ring"})
    out = {link.link: link.bytes for link in found.links if "dimension1" in link.link and link.link.count("device")}
    assert len(out) == 16  # every device, up and down
    assert max(out.values()) == min(out.values()) == 2 * 8000 * 7 // 8 // 4


# -- slow and failed links ---------------------------------------------------------------------------------------------


@BOTH
def test_what_fails_is_gone_around(network: str):
    ring = one_level("ring", 4)  # half of 1 GB/s each way, 10 ns a hop
    given = message(0, 1, 4, 100)
    assert simulate(given, ring, network=network).makespan_ns == 10 + 200
    around = simulate(given, ring, network=network, slow_links={(0, 1): math.inf})
    assert around.makespan_ns == 30 + 200
    assert {link.link for link in around.links} == {
        f"dimension0: device.{a} -> device.{b}" for a, b in ((0, 3), (3, 2), (2, 1))
    }
    assert any("2 directed links have failed" in note for note in around.notes)
    assert simulate(given, ring, network=network, slow_links={(1, 0): 3.0}).makespan_ns == 10 + 600


@BOTH
def test_a_torn_topology_is_refused(network: str):
    ring, given = one_level("ring", 4), message(0, 1, 4, 100)
    with pytest.raises(
        ClusterError, match=r"no route from device.[01] to device.[01] without the failed links: 0/1, 0/3"
    ):
        simulate(given, ring, network=network, slow_links={(0, 1): math.inf, (0, 3): math.inf})


@BOTH
def test_links_are_named_by_their_ends(network: str):
    toy, given = one_level("switch", 4), message(0, 1, 4, 100)
    assert simulate(given, toy, network=network, slow_links={(0, "switch0.0"): 4.0}).makespan_ns == 10 + 400
    with pytest.raises(UsageError, match=r"no link joins device.0 and device.1\nhint: device.0 is joined to switch0.0"):
        simulate(given, toy, network=network, slow_links={(0, 1): 2.0})
    with pytest.raises(UsageError, match=r"no vertex `leaf.9`\nhint: there are `device.0` to `device.3`, `switch0.0`"):
        simulate(given, toy, network=network, slow_links={("leaf.9", 1): 2.0})
    with pytest.raises(UsageError, match="closed forms model ranks, not links"):
        simulate(given, toy, slow_links={(0, "switch0.0"): 4.0})
    with pytest.raises(ClusterError, match=r"the link between ranks 0 and 1 has failed(.|\n)*--network flow"):
        simulate(given, toy, slow_links={(0, 1): math.inf})


# -- jitter and overlap ------------------------------------------------------------------------------------------------


@BOTH
def test_jitter_of_operations_is_seeded_and_centred(network: str):
    toy = one_level("switch", 4).replace(
        collectives=CollectiveSettings(protocols={"simple": Protocol(launch_ns=1000.0)})
    )
    given = job(*([coll(4000, stream=1) for _ in range(200)] for _ in range(4)))
    exact = simulate(given, toy, network=network).makespan_ns
    noisy = [simulate(given, toy, network=network, jitter={"collective": 0.2}, seed=s).makespan_ns for s in (1, 1, 2)]
    assert noisy[0] == noisy[1] != noisy[2]
    assert noisy[0] != exact
    assert all(abs(n / exact - 1) < 0.1 for n in noisy)
    assert simulate(given, toy, network=network, jitter={"p2p": 0.2}).makespan_ns == exact


@BOTH
def test_compute_is_slower_while_its_rank_communicates(network: str):
    toy = one_level("switch", 2)
    nodes = [(Kind.COMP, {"duration_ns": 1000, "stream": 1}), coll(200, stream=2)]
    plain = simulate(job(nodes, nodes), toy, network=network, collective={"all_reduce": "ring"})
    slow = simulate(
        job(nodes, nodes), toy, network=network, collective={"all_reduce": "ring"}, overlap=Overlap(compute=2.0)
    )
    assert [int(plain.timing.block(0)[1][i]) for i in (0, 1)] == [1000, 220]  # two steps of 10 + 100 ns
    assert [int(slow.timing.block(0)[1][i]) for i in (0, 1)] == [1110, 220]  # of those 220 ns of compute, half is done


@BOTH
def test_transfers_are_slower_beside_compute(network: str):
    toy = one_level("switch", 2)
    nodes = [(Kind.COMP, {"duration_ns": 100, "stream": 1}), coll(200, stream=2)]
    idle = [coll(200, stream=2)]
    slow = simulate(
        job(nodes, idle), toy, network=network, collective={"all_reduce": "ring"}, overlap=Overlap(communication=1.5)
    )
    assert int(slow.timing.block(1)[1][0]) == (10 + 150) + (10 + 100)  # the second step starts when compute is done


@BOTH
def test_overlap_of_many_changes_keeps_the_books(network: str):
    """Rates change again and again: all nodes end, and none before it would alone."""
    toy = one_level("switch", 4)
    nodes = [(Kind.COMP, {"duration_ns": 70 + 13 * k, "stream": k % 3}) for k in range(30)]
    nodes += [coll(100 * (k + 1), stream=7) for k in range(20)]
    given = job(*(nodes for _ in range(4)))
    plain = simulate(given, toy, network=network)
    slow = simulate(given, toy, network=network, overlap=Overlap(compute=1.3, communication=1.7))
    assert slow.makespan_ns > plain.makespan_ns
    for rank in range(4):
        start, end = slow.timing.block(rank)
        assert (end >= start).all()
        assert (end - start >= np.array([70 + 13 * k for k in range(30)] + [0] * 20)).all()


@BOTH
def test_equal_ways_are_taken_at_once(network: str):
    """Two devices with two switches between them: a message takes both, as channels do."""
    links = LinkList()
    links.add_both(np.repeat([0, 1], 2), np.tile([2, 3], 2), Wire(bytes_per_s=1e9, latency_ns=10))
    kind = np.array([VertexKind.DEVICE] * 2 + [VertexKind.SWITCH] * 2, np.uint8)
    graph = topology_of(
        "two", kind=kind, device=np.arange(2, dtype=np.int32), vertex_name=Blocks((0, 2), ("device", "switch")),
        **links.columns(),
    )  # fmt: skip
    toy = one_level("switch", 2).replace(topology=graph)
    assert simulate(message(0, 1, 2, 1000), toy, network=network).makespan_ns == 20 + 500
    found = simulate(job([coll(2000)], [coll(2000)]), toy, network=network, collective={"all_reduce": "ring"})
    assert found.makespan_ns == 2 * (20 + 500)


@BOTH
@pytest.mark.parametrize("what", [AR, AG, Collective.REDUCE_SCATTER, A2A], ids=lambda c: c.name.lower())
def test_the_numbers_of_ranks_within_nodes_do_not_matter(network: str, what: Collective):
    """Levels are used in the order of devices, whoever sits there."""
    system, work = two_levels(4, 2), job(*[[coll(80_000, what)]] * 8)
    times = {
        simulate(work, system.replace(placement=seats), network=network).makespan_ns
        for seats in ((0, 1, 2, 3, 4, 5, 6, 7), (3, 1, 0, 2, 5, 4, 7, 6), (6, 5, 7, 4, 0, 1, 3, 2))
    }
    assert len(times) == 1


def test_a_root_stays_where_it_is():
    """Its levels are only used where members sit in the order of their numbers."""
    system, work = two_levels(4, 2), job(*[[coll(80_000, BROADCAST)]] * 8)
    seats = (7, 1, 0, 2, 5, 4, 3, 6)
    assert simulate(work, system.replace(placement=seats), network="flow").makespan_ns > 0


@pytest.mark.parametrize("what", [AR, AG, Collective.REDUCE_SCATTER], ids=lambda c: c.name.lower())
@pytest.mark.parametrize("algorithm", ["hierarchical", "torus"])
def test_a_renumbered_schedule_ends_with_the_right_data(what: Collective, algorithm: str):
    system = two_levels(4, 2) if algorithm == "hierarchical" else _torus(4, 2)
    shape = group_shape(system, np.arange(8))
    layout = ALGORITHMS[algorithm].layout(system, what, shape, (4, 2))
    plan = laid_out(what, algorithm, 8, layout).renumbered(np.array([3, 1, 0, 2, 5, 4, 7, 6]))
    assert_right(plan)


def _torus(*sizes: int) -> System:
    return two_levels().replace(levels=tuple(level(f"l{i}", "ring", size) for i, size in enumerate(sizes)))
