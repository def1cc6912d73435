"""Closed forms of docs/costs.md, worked by hand on systems with round figures."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.base.errors import UsageError
from etude.cost.collectives import choose, collective_time_ns, collectives_time_ns, p2p_time_ns
from etude.cost.collectives.table import BY_COLLECTIVE
from etude.cost.groups import group_shape
from etude.machine import open_system, system_names
from etude.machine.system import CollectiveSettings, Protocol, System
from etude.model.job import Groups
from etude.model.schema import UNKNOWN, Collective
from toy_systems import level, one_level, two_levels, with_protocols

AR, RS, AG = Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER
A2A, BC, RD = Collective.ALL_TO_ALL, Collective.BROADCAST, Collective.REDUCE


def ns(target: System, kind: Collective, size: int, ranks: int, algorithm: str) -> int:
    return int(collective_time_ns(target, kind, size, range(ranks), algorithm))


@pytest.mark.parametrize(
    ("kind", "algorithm", "expected"),
    [
        (AR, "ring", 14 * 10 + 1400),  # 2(n-1) steps of S/n, S = 800
        (RS, "ring", 7 * 10 + 700),
        (AR, "ring_both", 8 * 10 + 1400),  # half the steps, the same bytes
        (AR, "tree", 6 * 10 + 1600),  # up and down log2(8); every port carries S each way
        (AR, "halving_doubling", 6 * 10 + 1400),
        (AR, "direct", 2 * 10 + 1400),  # two shots
        (AR, "one_shot", 10 + 7 * 800),
        (BC, "ring", 7 * 10 + 800),
        (BC, "tree", 3 * 10 + 800),
        (BC, "direct", 10 + 7 * 800),  # the root's port carries all copies
        (RD, "tree", 3 * 10 + 800),
        (Collective.SCATTER, "direct", 10 + 700),
        (A2A, "direct", 10 + 700),
        (A2A, "ring", 7 * 10 + 2800),  # blocks travel (n-1)/2 hops on average
        (Collective.BARRIER, "ring", 14 * 10),
        (Collective.BARRIER, "tree", 6 * 10),
    ],
)
def test_eight_on_a_switch(kind: Collective, algorithm: str, expected: int) -> None:
    assert ns(one_level("switch", 8), kind, 800, 8, algorithm) == expected


def test_sizes_are_input_bytes_so_a_gather_has_n_times_the_payload() -> None:
    assert ns(one_level("switch", 8), AG, 100, 8, "ring") == 7 * 10 + 700
    assert ns(one_level("switch", 8), Collective.GATHER, 100, 8, "direct") == 10 + 700


def test_halving_doubling_beyond_a_power_of_two_hands_over_first() -> None:
    # 6 = 4 + 2: the two hand 600 bytes over and get them back; four halve and double
    assert ns(one_level("switch", 8), AR, 600, 6, "halving_doubling") == 2 * (2 + 1) * 10 + 2 * (450 + 600)


def test_in_the_switch_every_port_carries_the_payload_about_once() -> None:
    nvls = one_level("switch", 8, in_switch_efficiency=1.0)
    assert ns(nvls, AR, 800, 8, "in_switch") == 2 * 10 + 900  # (1 + 1/n) S
    assert ns(nvls, AG, 100, 8, "in_switch") == 10 + 800
    with pytest.raises(UsageError, match="level `l0` cannot reduce in its switch"):
        ns(one_level("switch", 8), AR, 800, 8, "in_switch")


def test_full_meshes_split_the_port_over_their_peers() -> None:
    mesh = one_level("full", 5)  # a quarter of a byte a ns to each
    assert ns(mesh, AR, 500, 5, "direct") == 2 * 10 + 800
    assert ns(mesh, AR, 500, 2, "ring") == 2 * 10 + 500 * 4  # two of five have one link
    assert int(p2p_time_ns(mesh, 0, 3, 100)) == 10 + 400


def test_rings_have_half_of_the_port_each_way() -> None:
    ring = one_level("ring", 8)
    assert ns(ring, AR, 800, 8, "ring") == 14 * 10 + 2 * 1400
    assert ns(ring, AR, 800, 8, "ring_both") == 8 * 10 + 1400
    assert ns(ring, AR, 800, 4, "ring_both") == 6 * 10 + 2 * 1200  # not the whole ring: to both ends of a line
    assert ns(ring, A2A, 800, 8, "direct") == 40 + 16 * 100  # 16 block-hops a member, 4 to the farthest
    assert p2p_time_ns(ring, 0, [1, 4, 7], 100).tolist() == [10 + 200, 40 + 200, 10 + 200]


def test_levels_one_after_another() -> None:
    # 4 inside at 1 B/ns, 2 outside at 0.1: scatter 600, exchange 2 x 100 bytes, gather 600; steps 3, 1, 1, 3
    target = two_levels().replace(collectives=CollectiveSettings(max_chunks=1))
    assert ns(target, AR, 800, 8, "hierarchical") == 2 * (30 + 600) + 2 * (100 + 1000)
    # four rings of 8 blocks of 25 bytes, each through another port of a node: 7 blocks a pass at 0.1, which leaves time
    # for all steps but the last of each pass
    assert ns(target, AR, 800, 8, "ring") == 2 * (7 * 250 + 100)
    # blocks of 1 byte: twice round, less two steps inside; the ports would be done after 2 * (7 * 10 + 100)
    assert ns(target, AR, 32, 8, "ring") == 2 * (5 * (10 + 1) + 2 * (100 + 10))


def test_oversubscription_slows_all_but_a_message_alone() -> None:
    half = one_level("switch", 8, oversubscription=2.0)
    assert ns(half, AR, 800, 8, "ring") == 14 * 10 + 2800
    assert int(p2p_time_ns(half, 0, 1, 800)) == 10 + 800


def test_chunks_overlap_the_levels() -> None:
    two = two_levels().replace(collectives=CollectiveSettings(max_chunks=2))
    # Two chunks of 400, blocks of 100 inside, which take turns on the port: chunk 0 at 0, 200, 400, chunk 1 at 100,
    # 300, 500, so that scattering ends at 510 and 610. The wire outside is then busy with four times 50 bytes at 0.1:
    # chunk 0 from 510 and 1510, chunk 1 from 1010 and 2010. The last arrives at 2610 and is gathered in 330.
    assert ns(two, AR, 800, 8, "hierarchical") == 2610 + 330


def test_a_switch_scatters_one_chunk_while_it_gathers_another() -> None:
    inner = level("l0", "switch", 4, in_switch_efficiency=1.0)
    outer = level("l1", "switch", 2, gbyte_per_s=100.0, latency_ns=0.0)
    target = System(name="t", device=one_level("ring", 2).device, levels=(inner, outer))
    target = target.replace(collectives=CollectiveSettings(max_chunks=64))
    # Of every byte a port gives one and a quarter, whether to scatter or to gather; the outer level is next to nothing.
    # The four chunks of 12,500 that are in flight are all scattered before the first is gathered.
    time = ns(target, AR, 800_000, 8, "hierarchical")
    assert 1_000_000 < time < 1_000_000 + 4.01 * 12_500


def test_trees_over_nodes_are_chains_inside() -> None:
    # Eight trees of 10 bytes: up and down three steps inside and one outside.
    whole = two_levels().replace(collectives=CollectiveSettings(max_chunks=1))
    assert ns(whole, AR, 80, 8, "tree") == 2 * (3 * (10 + 10) + (100 + 100))


def test_all_to_all_by_levels_and_over_rails() -> None:
    target = two_levels(rails=True)
    assert ns(target, A2A, 800, 8, "direct") == 100 + 4000  # half of the bytes leave, through one port
    assert ns(target, A2A, 800, 8, "hierarchical") == (10 + 600) + (100 + 4000)
    over_rails = ns(target, A2A, 800, 8, "rail")
    assert 100 + 4000 < over_rails < (10 + 600) + (100 + 4000)


def test_messages_cost_by_their_number() -> None:
    slow = one_level("switch", 8).replace(collectives=CollectiveSettings(message_ns=5))
    assert ns(slow, A2A, 800, 8, "direct") == 10 + 700 + 6 * 5


def test_a_torus_uses_every_dimension() -> None:
    levels = (level("x", "ring", 4), level("y", "ring", 4))
    torus = System(name="t", device=one_level("ring", 4).device, levels=levels)
    # halves of 800 start at x and at y: 3/4 of 800, then 3/4 of 200, steps 2 and 2, there and back
    assert ns(torus, AR, 1600, 16, "torus") == 2 * (20 + 600 + 20 + 150)
    assert choose(torus, AR, 1600, range(16)).algorithm == "torus"
    assert int(p2p_time_ns(torus, 0, 5, 100)) == 2 * 10 + 200  # both dimensions are travelled


def test_protocols_trade_start_for_rate() -> None:
    quick, full = Protocol(launch_ns=0, bandwidth_fraction=0.25), Protocol(launch_ns=1000)
    target = with_protocols(one_level("switch", 2), ll=quick, simple=full)
    picked = choose(target, AR, [100, 10_000], range(2))
    assert picked.protocol.tolist() == ["ll", "simple"]
    assert picked.time_ns.tolist() == [20 + 400, 1000 + 20 + 10_000]


def test_the_ramp_is_a_root_first_and_a_line_after() -> None:
    target = with_protocols(one_level("switch", 2), simple=Protocol(chunk_ns=100, ramp_bytes=10_000))
    sizes, plain = np.array([100, 10_000, 40_000]), [20 + 100, 20 + 10_000, 20 + 40_000]
    time = collective_time_ns(target, AR, sizes, range(2), "ring")
    assert (time - plain).tolist() == [200, 2000, 5000]  # 2 sqrt(100 V), then 2000 (1 + V/10000) / 2


def test_a_group_of_one_costs_nothing() -> None:
    for kind in BY_COLLECTIVE:
        assert ns(one_level("switch", 4), kind, 10**9, 1, "auto") == 0


def test_what_cannot_be_is_said() -> None:
    target = one_level("switch", 4)
    with pytest.raises(UsageError, match="has no algorithm `spiral`"):
        ns(target, AR, 1, 4, "spiral")
    with pytest.raises(UsageError, match="names a rank twice"):
        collective_time_ns(target, AR, 1, [0, 1, 1])
    with pytest.raises(UsageError, match="no device for rank 4"):
        ns(target, AR, 1, 5, "ring")
    with pytest.raises(UsageError, match="negative or unknown"):
        ns(target, AR, -1, 4, "ring")
    with pytest.raises(UsageError, match="kind other"):
        ns(target, Collective.OTHER, 1, 4, "auto")


def test_the_system_may_name_an_algorithm() -> None:
    told = one_level("switch", 8).replace(collectives=CollectiveSettings(algorithm={"all_reduce": "one_shot"}))
    assert ns(told, AR, 800, 8, "auto") == 10 + 5600


def test_many_groups_at_once_and_what_is_unknown_stays_so() -> None:
    target = one_level("switch", 8)
    groups = Groups.of([("a", range(8)), ("b", [0, 1]), ("c", None), ("d", [2, 3])])
    kind = [AR, AR, AR, AR, RS, Collective.OTHER, Collective.BARRIER]
    size = [800, 100, 100, 100, UNKNOWN, 100, UNKNOWN]
    unknown = [UNKNOWN] * 2
    time = collectives_time_ns(target, kind, size, [0, 1, 2, 3, 0, 0, 1], groups)
    assert time.tolist() == [14 * 10 + 1400, 20 + 100, UNKNOWN, 20 + 100, *unknown, 20]


def test_shapes_of_groups() -> None:
    target = two_levels(inner=4, outer=4)
    columns = group_shape(target, [0, 4, 8, 12])  # one a node
    assert (columns.size, [s.level for s in columns.spans], columns.regular) == (4, [1], True)
    uneven = group_shape(target, [0, 1, 2, 4])
    assert not uneven.regular
    assert [(s.units, s.below, s.below_least, s.crossings) for s in uneven.spans] == [(3, 1, 1, 2), (2, 3, 1, 1)]


def test_a_message_to_oneself_costs_nothing() -> None:
    target = one_level("switch", 4).replace(collectives=CollectiveSettings(p2p_launch_ns=5))
    assert p2p_time_ns(target, 0, [0, 1], 100).tolist() == [0, 5 + 10 + 100]


def test_placement_moves_ranks() -> None:
    spread = two_levels(inner=2, outer=2).replace(placement=(0, 2, 1, 3))
    assert int(p2p_time_ns(spread, 0, 1, 10)) == 100 + 100
    assert int(p2p_time_ns(spread, 0, 2, 10)) == 10 + 10


def test_other_rails_are_reached_through_the_node() -> None:
    target = two_levels(rails=True)
    assert p2p_time_ns(target, 0, [4, 5], 10).tolist() == [100 + 100, 110 + 100]


# ---- properties

SYSTEMS = st.sampled_from([name for name in system_names() if len(open_system(name)) > 1])
KINDS = st.sampled_from(sorted(BY_COLLECTIVE))


@settings(deadline=None, max_examples=60)
@given(SYSTEMS, KINDS, st.integers(1, 40), st.integers(0, 1 << 34), st.data())
def test_more_bandwidth_is_never_slower(name: str, kind: Collective, n: int, size: int, data: st.DataObject) -> None:
    target = open_system(name)
    ranks = data.draw(st.lists(st.integers(0, len(target) - 1), min_size=n, max_size=n, unique=True))
    algorithm = data.draw(st.sampled_from(sorted(set(BY_COLLECTIVE[kind]) - {"in_switch", "torus"})))
    which = data.draw(st.integers(0, len(target.levels) - 1))
    wider = replace(
        target.levels[which],
        bandwidth_bytes_per_s=target.levels[which].bandwidth_bytes_per_s * data.draw(st.floats(1.0, 100.0)),
    )
    faster = target.replace(levels=(*target.levels[:which], wider, *target.levels[which + 1 :]))
    for chosen in (algorithm, "auto"):
        before = int(collective_time_ns(target, kind, size, ranks, chosen))
        assert int(collective_time_ns(faster, kind, size, ranks, chosen)) <= before


@settings(deadline=None, max_examples=100)
@given(SYSTEMS, KINDS, st.integers(2, 64), st.lists(st.integers(0, 1 << 36), min_size=2, max_size=8))
def test_more_bytes_never_take_less_time(name: str, kind: Collective, n: int, sizes: list[int]) -> None:
    time = collective_time_ns(open_system(name), kind, sorted(sizes), range(min(n, len(open_system(name)))))
    assert (np.diff(time) >= 0).all()
    assert (time > 0).all()


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 200))
def test_a_ring_all_reduce_moves_2_n_minus_1_over_n_of_the_bytes(n: int) -> None:
    target = one_level("switch", 200, latency_ns=0.0)
    size = 1000 * n
    assert ns(target, AR, size, n, "ring") == 2 * (n - 1) * 1000


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 64), st.sampled_from(["ring", "full", "switch"]), st.data())
def test_nothing_beats_the_injection_port(n: int, kind: str, data: st.DataObject) -> None:
    """Every byte of a scatter and of a gather goes through a port once, whatever the algorithm."""
    target = one_level(kind, n, latency_ns=0.0)
    algorithm = data.draw(st.sampled_from(sorted(set(BY_COLLECTIVE[AR]) - {"in_switch", "torus"})))
    assert ns(target, AR, 1000 * n, n, algorithm) >= 2 * (n - 1) * 1000


def test_many_sizes_of_a_large_group_are_quick() -> None:
    target = open_system("dgx-h100")
    shape = group_shape(target, range(1024))
    time = collective_time_ns(target, AR, np.arange(100_000) * 1000, shape)
    assert time.shape == (100_000,)
