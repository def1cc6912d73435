"""What a collective of few units costs: efficiencies by their number, the range and the shortest time of a protocol."""

import numpy as np
import pytest

from etude.base.errors import ClusterError
from etude.cost.collectives import choose, collective_time_ns, p2p_start_ns, p2p_time_ns
from etude.cost.groups import group_shape
from etude.machine import open_system
from etude.machine.system import System
from etude.model.schema import Collective
from etude.run.simulate.networks.carrier import Carrier, topology_of_system
from etude.run.simulate.networks.standalone import run_operations

AR = Collective.ALL_REDUCE
LEVEL = {"name": "link", "kind": "switch", "size": 16, "bandwidth": "100GB/s", "latency": "0ns", "efficiency": 0.8}


def system(collectives: dict | None = None, **level: object) -> System:
    given = {"name": "s", "device": {"name": "d"}, "levels": [{**LEVEL, **level}], "collectives": collectives or {}}
    return System.from_dict(given)


@pytest.mark.parametrize(
    ("units", "rate"),
    [
        (2, 50),  # as given
        (4, 65),  # halfway between 2 and 8, in powers of two
        (8, 80),
        (16, 80),  # beyond: as the nearest
    ],
)
def test_the_rate_depends_on_how_many_take_part(units: int, rate: float):
    few = system(efficiency_by_units={"2": 0.5, "8": 0.8})
    # A ring sends 2 (n - 1) / n of a buffer through each port.
    expected = 1e6 * 2 * (units - 1) / units / rate
    assert collective_time_ns(few, AR, 1_000_000, range(units), "ring") == pytest.approx(expected, abs=1)
    one = system()
    assert collective_time_ns(one, AR, 1_000_000, range(units), "ring") == pytest.approx(expected * rate / 80, abs=1)


def test_reduction_in_the_switch_has_its_own_rate():
    few = system(efficiency_by_units={"2": 0.5, "8": 0.8}, in_switch_efficiency=0.4)
    # 1 + 1/4 of a buffer through each port, at 40 bytes per ns
    assert collective_time_ns(few, AR, 1_000_000, range(4), "in_switch") == 1_250_000 / 40


def test_two_do_not_reduce_in_the_switch():
    switch = system(in_switch_efficiency=1.0, efficiency=0.1)
    assert choose(switch, AR, [1 << 20], range(2)).algorithm == ["ring"]
    assert choose(switch, AR, [1 << 20], range(3)).algorithm == ["in_switch"]


def test_a_protocol_has_a_largest_message():
    both = system({"protocols": {"ll": {"most": "1000B"}, "simple": {"launch": "500ns"}}})
    found = choose(both, AR, [1000, 1001], range(2))
    assert found.protocol.tolist() == ["ll", "simple"]
    # 1000 bytes at 80 per ns; beyond, the launch of the other, and the last ns begun
    assert found.time_ns.tolist() == [13, 513]


def test_a_protocol_has_a_shortest_time():
    slow = system({"protocols": {"simple": {"launch": "100ns", "least": "1us"}}})
    # 100 ns of launch and a byte each 1/80 ns: 72000 bytes are the first that take longer than the least
    assert collective_time_ns(slow, AR, [0, 8000, 72_000, 80_000], range(2)).tolist() == [1000, 1000, 1000, 1100]


def test_the_shortest_time_counts_but_does_not_choose():
    """4 GPUs of an H100 node: measured 41 us for 1 MiB, as for much less, though reduction in the switch takes 35."""
    two = system({"protocols": {"ll": {"launch": "100ns", "least": "1us"}, "simple": {"launch": "200ns"}}})
    found = choose(two, AR, [8000], range(2))
    assert (found.protocol[0], int(found.time_ns[0])) == ("ll", 1000)
    assert choose(open_system("dgx-h100"), AR, [1 << 20], range(4)).algorithm[0] == "ring"
    assert choose(open_system("dgx-h100"), AR, [1 << 20], range(8)).algorithm[0] == "in_switch"


def test_reduction_in_the_switch_may_have_its_own_protocol():
    one = {"simple": {"launch": "100ns"}}
    own = {**one, "in_switch": {"launch": "30ns"}}
    times = [
        collective_time_ns(system({"protocols": p}, in_switch_efficiency=1.0), AR, 8_000_000, range(4), "in_switch")
        for p in (one, own)
    ]
    assert times[0] - times[1] == 70
    for algorithm in ("ring", "direct"):  # and nothing else runs with it
        assert choose(system({"protocols": own}), AR, [8], range(4), algorithm).protocol == ["simple"]


def test_a_message_has_a_shortest_time():
    slow = system({"p2p_launch": "100ns", "p2p_least": "1us"})
    assert p2p_time_ns(slow, 0, [1, 1, 1, 0], [0, 72_000, 80_000, 8]).tolist() == [1000, 1000, 1100, 0]
    assert [p2p_start_ns(slow, 0, 1, size) for size in (0, 8000, 80_000)] == [1000, 900, 100]
    assert p2p_start_ns(system({"p2p_launch": "100ns"}), 0, 1, 8) == 100


@pytest.mark.parametrize("key", ["1", "0", "two", "2.5"])
def test_what_is_no_number_of_units_is_refused(key: str):
    with pytest.raises(ClusterError, match=f"efficiency_by_units: `{key}` is not a number of units"):
        system(efficiency_by_units={key: 0.5})


@pytest.mark.parametrize("size", [200_000, 2_000_000, 64_000_000])
@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100"])
def test_carried_out_a_pair_takes_what_its_closed_form_says(name: str, size: int):
    node = open_system(name).resized(8)
    members = np.array([0, 1])
    carrier = Carrier(node, topology_of_system(node))
    operation = carrier.collective(AR, size, members, group_shape(node, members), "ring").operation(members, size)
    carried = run_operations(carrier.topology, [operation], model="links").end_ns
    assert carried == pytest.approx(collective_time_ns(node, AR, size, members, "ring"), rel=0.01)
    message = run_operations(carrier.topology, [carrier.message(0, 1, size)], model="links").end_ns
    assert message == pytest.approx(p2p_time_ns(node, 0, 1, size), rel=0.02)
