import math
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

import etude.machine
from etude.base.errors import ClusterError, EtudeError
from etude.base.figures import key_of
from etude.machine import device_names, open_device, open_system, system_names
from etude.machine.system import Device, Level, System

WANTED = {"v100", "a40", "a100", "h100", "h200", "b200", "gb200", "gb300", "mi300x", "tpu-v5p", "tpu-v6e"}
WANTED |= {"rtx3090", "rtx4090", "rtx5090", "rtxpro6000", "l40s", "a10", "t4", "mi250x", "mi355x", "gaudi3", "max1550"}
WANTED |= {"tpu-v4", "tpu-v5e", "tpu-v7", "grace", "xeon-8480", "arm-node", "desktop", "raspberry-pi5", "jetson-orin"}
WANTED |= {"h800", "h20", "rubin", "trainium1", "trainium2", "b300", "mi250", "gaudi2"}
WANTED |= {"xdna2", "versal-aie16", "mcu", "phone-sme", "bluefield3"}
SMALL = """
name: mine
device: h100
levels:
  - {name: nvlink, kind: switch, size: 8, bandwidth: 450GB/s, latency: 700ns}
"""


def test_the_devices_are_these():
    assert set(device_names()) == WANTED
    assert {"dgx-h100", "dgx-a100", "dgx-b200", "gb200-nvl72", "mi300x-node", "tpu-v5p-pod"} <= set(system_names())


@pytest.mark.parametrize("name", system_names())
def test_every_system_loads_and_says_what_it_is(name: str):
    system = open_system(name)
    assert system.name == name
    assert system.doc
    assert len(system) >= (1 if system.tiers else 64)  # a machine with its memories, or a cluster


def unsourced(part: object) -> list[str]:
    """Figures that are set and have no source of their own, nor one for all."""
    source = part.source  # type: ignore[attr-defined]
    skip = ("name", "kind", "source", "doc", "algorithm", "below")
    found = []
    for f in fields(part):  # type: ignore[arg-type]
        value = getattr(part, f.name)
        is_set = bool(value) and value != f.default
        if f.name not in skip and is_set and key_of(f) not in source and "*" not in source:
            found.append(f"{part.__class__.__name__}.{f.name}")
    return found


@pytest.mark.parametrize("name", device_names())
def test_a_device_stands_alone_and_says_where_its_figures_come_from(name: str):
    device, system = open_device(name), open_system(name)
    assert (len(system), system.device) == (1, device)
    assert unsourced(device) == []
    assert device.peak("bf16") > 0 < device.memory_bandwidth_bytes_per_s
    assert all(device.peak_flop_per_s[a] <= device.peak_flop_per_s[b]
               for a, b in (("fp32", "bf16"), ("bf16", "fp8")) if {a, b} <= set(device.peak_flop_per_s))  # fmt: skip


def test_a_device_by_itself_is_one_device_until_its_link_is_given():
    alone, linked = open_system("mi300x"), open_system("mi300x@400Gb/s")
    assert alone.for_ranks(1) is alone
    for asked in (lambda: alone.for_ranks(2), lambda: alone.resized(8), lambda: alone.device_of([0, 1])):
        with pytest.raises(EtudeError, match=r"`mi300x` is one device.*\nhint: .*mi300x-node.*`mi300x@25GB/s`"):
            asked()
    assert (linked.name, len(linked.for_ranks(8)), linked.levels[0].bandwidth_bytes_per_s) == (
        "mi300x@400Gb/s",
        8,
        50e9,
    )
    with pytest.raises(ClusterError, match="bandwidth: `fast` is not a bandwidth"):
        open_system("mi300x@fast")
    with pytest.raises(ClusterError, match="unknown system `gpu@25GB/s`"):
        open_system("gpu@25GB/s")
    with pytest.raises(EtudeError, match="hint: give its link: `t4@25GB/s`"):
        open_system("t4").for_ranks(2)


@pytest.mark.parametrize("name", system_names())
def test_every_figure_has_its_source(name: str):
    system = open_system(name)
    parts = [system.device, *system.levels, system.collectives, *system.tiers]
    assert [u for part in parts for u in unsourced(part)] == []
    assert all(text.strip() for part in parts for text in part.source.values())


def test_data_sheets():
    h100 = open_device("h100")
    assert (h100.peak("bf16"), h100.peak("fp8"), h100.memory_bandwidth_bytes_per_s) == (989.4e12, 1978.9e12, 3.35e12)
    assert open_system("dgx-a100").levels[0].bandwidth_bytes_per_s == 300e9
    assert [level.size for level in open_system("tpu-v5p-pod").levels] == [16, 16, 16]


@pytest.mark.parametrize(
    ("name", "inner", "both_directions"),
    [
        ("mi355x-node", 8, 7 * 153.6e9),
        ("gb300-nvl72", 72, 130e12 / 72),
        ("rubin-nvl144", 72, 260e12 / 72),
        ("h800-node", 8, 400e9),
        ("h20-node", 8, 900e9),
        ("tpu-v5e-pod", 256, 400e9),
        ("tpu-v7-pod", 4096, 1200e9),
        ("trn2", 16, 1024e9),
        ("trn2-ultraserver", 64, 1024e9 + 256e9),
    ],
)
def test_nodes_and_pods_have_the_published_links(name: str, inner: int, both_directions: float):
    """Bytes per second of a device, both directions, inside a node, a rack or a pod, as vendors give them."""
    system = open_system(name)
    near = [level for level in system.levels if level.kind in ("ring", "full")] or list(system.levels[:1])
    assert math.prod(level.size for level in near) == inner
    assert 2 * sum(level.bandwidth_bytes_per_s for level in near) == pytest.approx(both_directions, rel=0.005)


def test_a_v5e_pod_has_the_published_bisection():
    """1.6 TB/s: the links of 16 rings of a dimension, cut twice, one direction each."""
    along = open_system("tpu-v5e-pod").levels[0]
    assert along.bandwidth_bytes_per_s / 2 * 2 * 16 == 1.6e12


def test_a_trn2_slice_closes_only_whole():
    whole, part = open_system("trn2-ultraserver").resized(64), open_system("trn2-ultraserver").resized(8)
    assert [(level.kind, level.size) for level in whole.levels] == [("ring", 4)] * 3
    assert [(level.kind, level.size) for level in part.levels] == [("mesh", 2)] * 3


def test_sizes_change():
    assert [level.size for level in open_system("dgx-h100").resized(512).levels] == [8, 64]
    assert [level.size for level in open_system("dgx-h100").resized(4).levels] == [4]
    with pytest.raises(EtudeError, match="12 devices are not a multiple of 8"):
        open_system("dgx-h100").resized(12)


def test_a_file_of_ones_own(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(SMALL)
    system = open_system(path)
    assert (len(system), system.device.name) == (8, "NVIDIA H100 SXM5 80GB")
    assert system.levels[0].latency_ns == 700


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("450GB/s", "0GB/s"), r"mine.yaml: levels\[0\]: bandwidth: `0GB/s` is not positive"),
        (("450GB/s", "-1"), r"mine.yaml: levels\[0\]: bandwidth: -1 is not positive"),
        (("450GB/s", "fast"), r"mine.yaml: levels\[0\]: bandwidth: `fast` is not a bandwidth"),
        (("bandwidth:", "bandwith:"), r"mine.yaml: levels\[0\]: unknown key `bandwith`\nhint: known: name, kind, size"),
        (("bandwidth: 450GB/s, ", ""), r"mine.yaml: levels\[0\]: key `bandwidth` is missing\nhint: for example"),
        (("kind: switch", "kind: cloud"), r"levels\[0\]: kind: unknown value `cloud`\nhint: known: ring, full, switch"),
        (("size: 8", "size: 0"), r"levels\[0\]: size: 0 is not positive"),
        (("size: 8", "size: many"), r"levels\[0\]: size: `many` is not a count"),
        (("device: h100", "device: h1000"), r"unknown device `h1000`\nhint: did you mean `h100`\? known: a10, a100"),
        (("device: h100", "device: 3"), r"mine.yaml: device: expected keys and values, not 3"),
        (("name: mine", "name: mine\nname: yours"), r"mine.yaml: line 3: key `name` appears twice"),
        (("name: mine", "name: [mine"), r"mine.yaml: line \d+: "),
        (("latency: 700ns", "latency: 700"), None),
        (("latency: 700ns", "latency: -5ns"), r"levels\[0\]: latency: `-5ns` is negative"),
        (("latency: 700ns", "efficiency: 1.5"), r"efficiency: 1.5 is more than 1"),
        (("latency: 700ns", "step: {warp: 5ns}"), r"levels\[0\]: step: unknown protocol `warp`"),
        (("latency: 700ns", "rails: 3"), r"rails: expected true or false, not 3"),
        (("kind: switch, size: 8", "kind: torus"), r"mine.yaml: levels\[0\]: a torus needs its `shape`"),
        (("levels:", "levels: none\nother:"), r"unknown key `other`"),
        (("device: h100", "device: {name: x, peak: {bf12: 3T}}"), r"device: peak: unknown data type `bf12`"),
        (("device: h100", "device: {name: x, peak: {bf16: 0}}"), r"device: peak: bf16: 0 is not positive"),
        (
            ("device: h100", "device: h100\nplacement: [0, 0]"),
            r"mine.yaml: placement: two ranks are on the same device",
        ),
        (("device: h100", "device: h100\nplacement: [9]"), r"mine.yaml: placement: a device outside the system's 8"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, change: tuple[str, str], message: str | None):
    path = tmp_path / "mine.yaml"
    path.write_text(SMALL.replace(*change))
    if message is None:
        assert len(open_system(path)) == 8
        return
    with pytest.raises(ClusterError, match=message):
        open_system(path)


@pytest.mark.parametrize("text", ["", "3", "[]", "\x00", "a: &x [*x]", "- " * 50, "{a: {b: !!python/none x}}"])
def test_nonsense_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ClusterError):
        open_system(path)


def test_what_is_not_there():
    with pytest.raises(ClusterError, match="unknown system `dgx-h1000`\nhint: did you mean `dgx-h100`. known: dgx-2"):
        open_system("dgx-h1000")
    with pytest.raises(ClusterError, match=r"gone.yaml: no such file"):
        open_system("gone.yaml")


@pytest.mark.parametrize("name", system_names())
def test_a_system_written_is_the_system_read(name: str, tmp_path: Path):
    system = open_system(name)
    assert System.from_dict(system.to_dict()) == system
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(system.to_dict()))
    assert open_system(path) == system


def test_the_files_are_in_the_package():
    folder = Path(etude.machine.__file__).parent / "catalogue"
    assert len(list(folder.rglob("*.yaml"))) == len(system_names()) + len(device_names()) + 1  # and regions


def test_descriptions_are_values():
    assert open_system("dgx-h100") == open_system("dgx-h100")
    assert isinstance(open_system("dgx-h100"), System)
    assert all(isinstance(level, Level) for level in open_system("dgx-h100").levels)
    assert isinstance(open_device("h100"), Device)
