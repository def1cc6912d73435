"""Transfers as lines in flight: the least of the link, of Little's law and of what blocks issue."""

from typing import Any

import numpy as np
import pytest

from etude.base.errors import ClusterError
from etude.machine import open_system
from etude.machine.fabrics import topology_of_system
from etude.machine.grain import Access, Grain
from etude.machine.levels import levels_of
from etude.machine.system import Device, Level, LevelKind, System
from etude.machine.topology import topology_of
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.run.simulate.run import simulate

# 10 bytes per ns, 500 ns one way: a round trip of 1 us holds 10,000 bytes
TWO = System(name="two", device=Device(name="d"), levels=(
    Level(name="link", kind=LevelKind.SWITCH, size=2, bandwidth_bytes_per_s=10e9, latency_ns=500.0),
))  # fmt: skip


def message(size: int) -> Job:
    a, b = TraceBuilder(), TraceBuilder()
    a.add(Kind.SEND, dst=1, in_bytes=size)
    b.add(Kind.RECV, src=0, in_bytes=size)
    return job_of("message", [a, b])


def ends(size: int, network: str = "analytic", **grain: Any) -> int:
    lines = Grain(**({"line_bytes": 100} | grain)) if grain else None
    return simulate(message(size), TWO, network=network, grain=lines).makespan_ns


def test_littles_law():
    # 50 lines of 100 bytes in a round trip of 1 us: 5 bytes per ns
    assert ends(1_000_000) == 500 + 100_000
    assert ends(1_000_000, outstanding=50) == 500 + 200_000
    # 100 lines are what the link holds, and more change nothing
    assert ends(1_000_000, outstanding=100) == ends(1_000_000, outstanding=1000) == ends(1_000_000)
    assert ends(64, outstanding=100) == ends(64)


def test_what_blocks_issue():
    assert ends(1_000_000, ctas=4, cta_bytes_per_s=1e9) == 500 + 250_000
    assert ends(1_000_000, ctas=20, cta_bytes_per_s=1e9, outstanding=50) == 500 + 200_000
    assert ends(1_000_000, ctas=20, cta_bytes_per_s=1e9) == ends(1_000_000)


def test_a_load_asks_first():
    # small or large, it is one way later; large ones hardly notice
    assert ends(64, outstanding=100, access=Access.LOAD) == ends(64) + 500
    assert ends(1_000_000, outstanding=100, access=Access.LOAD) == ends(1_000_000) + 500


def test_a_line_as_large_as_the_message_is_the_message():
    assert ends(20_000, line_bytes=20_000, outstanding=1) == ends(20_000)


@pytest.mark.parametrize("network", ["links", "flow"])
def test_the_same_on_links(network: str):
    assert ends(1_000_000, network, outstanding=50) == 500 + 200_000
    assert ends(1_000_000, network, outstanding=100) == ends(1_000_000, network)


def test_collectives_too():
    b = TraceBuilder()
    b.add(Kind.COLL, collective=Collective.ALL_REDUCE, in_bytes=1 << 30)
    job = job_of("all", [b] * 8)
    on = open_system("dgx-h100")
    # 450 GB/s, 79.5% of them used, 1.4 us of round trip: 128 B x 4096 is 374 GB/s, 2048 are 187
    enough, few = (simulate(job, on, grain=Grain(line_bytes=128, outstanding=n)).makespan_ns for n in (4096, 2048))
    assert enough == simulate(job, on).makespan_ns
    assert few > 1.5 * enough


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"line_bytes": 0}, "shorter than a byte"),
        ({"cta_bytes_per_s": 1.0}, "needs a number of blocks"),
        ({"outstanding": -1}, "negative"),
    ],
)
def test_bad_grains_are_refused(given: dict[str, Any], message: str):
    with pytest.raises(ClusterError, match=message):
        Grain(**({"line_bytes": 100} | given))


@pytest.mark.parametrize("network", ["analytic", "links", "flow", None])
def test_a_graph_takes_lines_as_the_levels_that_stand_for_it(network: str | None):
    graph = TWO.replace(topology=topology_of_system(TWO))

    def ends(**grain: Any) -> int:
        lines = Grain(line_bytes=100, **grain) if grain else None
        return simulate(message(1_000_000), graph, network=network, grain=lines).makespan_ns

    assert ends(outstanding=50) == 500 + 200_000
    assert ends(outstanding=100) == ends() == 500 + 100_000
    assert ends(outstanding=100, access=Access.LOAD) == ends(access=Access.LOAD) == 1000 + 100_000


# Two pairs on a switch each, 100 ns apart, and 1,100 ns from the other pair; links of 10 bytes per ns
FAR = topology_of(
    "two pairs", kind=np.array([1, 1, 1, 1, 2, 2], np.uint8), device=np.arange(4, dtype=np.int32),
    src=np.array([0, 1, 2, 3, 4, 4, 5, 5, 4, 5], np.int32), dst=np.array([4, 4, 5, 5, 0, 1, 2, 3, 5, 4], np.int32),
    bytes_per_s=np.full(10, 10e9), latency_ns=np.array([50] * 8 + [1000] * 2, np.int64), vertex_name=str,
)  # fmt: skip


@pytest.mark.parametrize("network", ["links", "flow"])
def test_ways_of_a_graph_have_the_round_trips_of_their_length(network: str):
    system = TWO.replace(levels=levels_of(FAR).levels, topology=FAR)

    def ends(*to: int) -> int:
        ranks = [TraceBuilder() for _ in range(4)]
        for rank in to:
            ranks[0].add(Kind.SEND, dst=rank, in_bytes=1_000_000, stream=rank)
            ranks[rank].add(Kind.RECV, src=0, in_bytes=1_000_000)
        return simulate(job_of("far", ranks), system, network=network, grain=lines).makespan_ns

    lines = Grain(line_bytes=100, outstanding=10)
    assert ends(1) == 100 + 200_000  # 1,000 bytes in 200 ns
    assert ends(2) == 1100 + 2_200_000  # and in 2,200
    assert ends(2, 3) == 1100 + 4_400_000  # which both share


@pytest.mark.parametrize("network", ["links", "flow"])
def test_windows_stay_where_links_fail(network: str):
    """Two switches between two devices, 500 ns apart: half the rate of a link by lines, whichever way is left."""
    graph = topology_of(
        "two ways", kind=np.array([1, 1, 2, 2], np.uint8), device=np.arange(2, dtype=np.int32),
        src=np.array([0, 2, 0, 3, 1, 2, 1, 3], np.int32), dst=np.array([2, 1, 3, 1, 2, 0, 3, 0], np.int32),
        bytes_per_s=np.full(8, 10e9), latency_ns=np.full(8, 250, np.int64), vertex_name=str,
    )  # fmt: skip
    system, lines = TWO.replace(levels=levels_of(graph).levels, topology=graph), Grain(line_bytes=100, outstanding=50)
    for failed in ({}, {("0", "2"): float("inf")}, {("0", "3"): float("inf")}):
        found = simulate(message(1_000_000), system, network=network, grain=lines, slow_links=failed)
        assert found.makespan_ns == 500 + 200_000
