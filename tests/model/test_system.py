import pytest

from etude.base.errors import ClusterError, UsageError
from etude.machine.system import Device, Level, LevelKind, Protocol, System
from toy_systems import one_level, two_levels


def test_a_system_from_plain_values():
    system = System.from_dict(
        {
            "name": "two",
            "device": {"name": "d", "peak": {"bf16": "1P"}, "memory": "80GB", "memory_bandwidth": "3.35TB/s"},
            "levels": [
                {"name": "in", "kind": "full", "size": 4, "bandwidth": "300GB/s"},
                {"name": "out", "kind": "switch", "size": 2, "bandwidth": "400Gb/s", "latency": "2us", "rails": True},
            ],
            "collectives": {"protocols": {"simple": {"launch": "8us"}}, "algorithm": {"all_reduce": "ring"}},
        }
    )
    assert len(system) == 8
    assert system.device.peak("bf16") == 1e15
    assert system.levels[1].bandwidth_bytes_per_s == 50e9
    assert (system.levels[1].latency_ns, system.levels[1].rails) == (2000, True)
    assert system.collectives.used() == {"simple": Protocol(launch_ns=8000)}


def test_a_torus_is_a_ring_for_each_dimension():
    level = {"name": "ici", "kind": "torus", "shape": [4, 2], "bandwidth": "100GB/s", "latency": "1us"}
    system = System.from_dict({"name": "t", "device": {"name": "d"}, "levels": [level]})
    assert [(v.name, v.kind, v.size) for v in system.levels] == [("ici_x", "ring", 4), ("ici_y", "ring", 2)]


def test_ranks_sit_on_devices():
    system = two_levels(inner=2, outer=2)
    assert system.device_of([3, 0]).tolist() == [3, 0]
    moved = system.replace(placement=(2, 0))
    assert moved.num_ranks == 2
    assert moved.device_of([0, 1]).tolist() == [2, 0]
    with pytest.raises(UsageError, match="no device for rank 2: it has 2"):
        moved.device_of(2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bandwidth_bytes_per_s": 0.0}, "bandwidth: 0.0 B/s is not positive"),
        ({"bandwidth_bytes_per_s": float("nan")}, "bandwidth: nan B/s is not positive"),
        ({"size": 0}, "size: 0 units"),
        ({"oversubscription": 0.5}, "oversubscription: 0.5 is less than 1"),
        ({"kind": LevelKind.NONE}, "kind is missing"),
        ({"kind": LevelKind.RING, "in_switch_efficiency": 0.5}, "a level of kind ring has no switch"),
    ],
)
def test_a_level_that_makes_no_sense_is_refused(given: dict, message: str):
    usual = {"name": "l", "kind": LevelKind.SWITCH, "size": 2, "bandwidth_bytes_per_s": 1e9}
    with pytest.raises(ClusterError, match=message):
        Level(**(usual | given))


def test_a_system_needs_levels_with_names_of_their_own():
    with pytest.raises(ClusterError, match="levels: none is given"):
        System(name="x", device=Device(name="d"), levels=())
    level = one_level("ring", 2).levels[0]
    with pytest.raises(ClusterError, match="two have the same name"):
        System(name="x", device=Device(name="d"), levels=(level, level))


def test_unknown_keys_are_refused_everywhere():
    with pytest.raises(ClusterError, match="device: unknown key `peek`\nhint: known: name, peak"):
        Device.from_dict({"name": "d", "peek": {}})
    with pytest.raises(ClusterError, match="system: expected keys and values, not 3"):
        System.from_dict(3)  # type: ignore[arg-type]
    bad = {"name": "x", "device": {"name": "d", "ops": {"gemm": {"fast": 1}}}, "levels": []}
    with pytest.raises(ClusterError, match="system: device: ops: gemm: unknown key `fast`"):
        System.from_dict(bad)
