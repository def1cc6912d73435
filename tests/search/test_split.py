"""Kernels owned by devices: against a twin that follows every channel, and by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.decide.search import search
from etude.decide.search.kernel_layers import INPUT, NOTHING, KernelLayer, kernel_layers
from etude.decide.search.owners import apportioned, split
from etude.machine import open_device
from etude.surface.cli import main

SPACE = "search: split\nmodel: mobilenet-v2\ndevices: mcu\nram: 1MB\n"


def random_layers(rng: np.random.Generator) -> list[KernelLayer]:
    """Channels of 8 bytes into kernels of 5 weights and outputs of 16, some by groups, some with a residual."""
    found: list[KernelLayer] = []
    channels = int(rng.integers(1, 7))
    for i in range(int(rng.integers(1, 6))):
        groups = channels if rng.random() < 0.4 else 1
        units = channels * int(rng.integers(1, 3)) if groups > 1 else int(rng.integers(1, 9))
        same = [j for j in range(i) if found[j].units == units and j != i - 1]
        found.append(
            KernelLayer(
                name=str(i),
                units=units,
                groups=groups,
                source=i - 1,
                adds=same[0] if same else NOTHING,
                in_channels=channels,
                in_bytes=8 * channels,
                made_bytes=16 * units,
                out_bytes=8 * units,
                weight_bytes=5 * units,
                flops=100 * units,
                linear=False,
            )
        )
        channels = units
    return found


def naive(layers: list[KernelLayer], units: Any, rate: int, latency: int) -> dict[str, Any]:
    """Channel by channel, device by device."""
    devices = units.shape[1]
    owner = [[d for d in range(devices) for _ in range(int(units[i, d]))] for i in range(len(layers))]

    def who(j: int, channel: int) -> int:
        return 0 if j == INPUT else owner[j][channel]

    ram = [[0] * devices for _ in layers]
    messages, total, message_ns = 0, 0, []
    for i in range(len(layers) + 1):
        sent: dict[tuple[int, int], int] = {}
        wanted: list[tuple[int, int, int]] = []  # (to, source, channel)
        if i == len(layers):
            wanted = [(0, i - 1, c) for c in range(layers[-1].units)]
        else:
            layer = layers[i]
            for kernel in range(layer.units):
                group = kernel // (layer.units // layer.groups)
                size = layer.in_channels // layer.groups
                wanted += [(owner[i][kernel], layer.source, c) for c in range(group * size, (group + 1) * size)]
                wanted += [(owner[i][kernel], layer.adds, kernel)] if layer.adds != NOTHING else []
        for d, j, c in set(wanted):
            if who(j, c) != d:
                sent[who(j, c), d] = sent.get((who(j, c), d), 0) + 8
        messages, total = messages + len(sent), total + sum(sent.values())
        slowest = 0
        for d in range(devices):
            out, into = ([s for pair, s in sent.items() if pair[side] == d] for side in (0, 1))
            slowest = max(slowest, latency * max(len(out), len(into)) + -(-max(sum(out), sum(into)) * 10**9 // rate))
        message_ns.append(slowest)
        if i == len(layers):
            break
        for d in range(devices):
            held = {(j, c) for to, j, c in wanted if to == d and j == layers[i].source}
            readers: dict[int, int] = {}
            for k, other in enumerate(layers):
                readers[other.source] = k
                if other.adds != NOTHING:
                    readers[other.adds] = max(readers.get(other.adds, -1), k)
            for j, last in readers.items():
                if j < i <= last:
                    count = layers[j].units if j != INPUT else layers[0].in_channels
                    held |= {(j, c) for c in range(count) if who(j, c) == d}
            own = int(units[i, d])
            ram[i][d] = 8 * len(held) + (16 + 5) * own
    return {"ram": ram, "messages": messages, "bytes": total, "message_ns": message_ns}


def test_a_split_is_what_follows_from_every_channel():
    rng = np.random.default_rng(7)
    for _ in range(150):
        layers, devices = random_layers(rng), int(rng.integers(1, 5))
        units = np.stack([rng.multinomial(layer.units, np.full(devices, 1 / devices)) for layer in layers])
        done = split(layers, units.astype(np.int64), [open_device("mcu")] * devices, "int8", (10**6, 50))
        wanted = naive(layers, units, 10**6, 50)
        assert done.ram.tolist() == wanted["ram"]
        assert (done.messages, done.message_bytes) == (wanted["messages"], wanted["bytes"])
        assert done.message_ns.tolist() == wanted["message_ns"]
        assert done.weights.sum() == sum(layer.weight_bytes for layer in layers)
        assert done.latency_ns == sum(wanted["message_ns"]) + done.compute_ns.max(axis=1).sum()
        if devices == 1:
            assert done.messages == 0


@pytest.mark.parametrize(
    ("total", "shares", "most", "wanted"),
    [
        (10, [1, 1], None, [5, 5]),
        (10, [3, 1], None, [7, 3]),
        (10, [3, 1], [9, 9], [7, 3]),
        (10, [3, 1], [4, 9], [4, 6]),
        (10, [4, 1, 1], [4, 4, 9], [4, 3, 3]),
        (10, [8, 1, 1], [2, 3, 9], [2, 3, 5]),
        (10, [1, 1], [2, 3], [4, 6]),  # too little room in all
        (10, [1, 1], [0, 0], [5, 5]),
    ],
)
def test_kernels_are_dealt_by_shares(total: int, shares: list[int], most: list[int] | None, wanted: list[int]):
    limits = None if most is None else np.array(most)
    assert apportioned(total, np.array(shares, np.float64), limits).tolist() == wanted


def test_layers_of_networks_by_hand():
    layers = kernel_layers("mobilenet-v2", "int8")
    assert sum(layer.weight_bytes for layer in layers) == 3_504_872
    expand, depthwise, project = layers[3:6]
    assert (expand.units, expand.groups, expand.in_bytes, expand.made_bytes) == (96, 1, 16 * 112 * 112, 96 * 112 * 112)
    assert (depthwise.units, depthwise.groups, depthwise.out_bytes) == (96, 96, 96 * 56 * 56)
    assert project.weight_bytes == 96 * 24 + 2 * 24
    assert layers[8].adds == 5  # of the third bottleneck, the first with a residual
    assert layers[-2].made_bytes == 1280 * 49
    assert layers[-2].out_bytes == 1280  # pooled
    small = kernel_layers("resnet-18", "int8")
    assert sum(layer.weight_bytes for layer in small) == 11_689_512
    crossing = [i for i, layer in enumerate(small) if layer.source != i - 1]
    assert len(crossing) == 3  # first convolutions beside a shortcut with weights of its own, which comes before them
    assert all(small[i + 1].adds == i - 1 and small[i].source == small[i - 1].source for i in crossing)


def row(found: Any, devices: int, kind: str = "neuron") -> dict[str, Any]:
    return next(r for r in found.rows if r["devices"] == devices and r["split"] == kind)


def test_mobilenet_on_microcontrollers(tmp_path: Path):
    (tmp_path / "s.yaml").write_text(SPACE)
    found = search(tmp_path / "s.yaml", changed={"split": ["layer", "kernel", "neuron"]})
    whole = 96 * 112 * 112 + 96 * 56 * 56 + 96 * 9 + 2 * 96
    assert row(found, 1)["peak_ram_bytes"] == row(found, 1, "layer")["peak_ram_bytes"] == whole
    assert row(found, 1)["latency_ms"] == row(found, 1, "kernel")["latency_ms"] == row(found, 1, "layer")["latency_ms"]
    assert [row(found, n)["feasible"] for n in range(1, 9)] == [False] + [True] * 7
    assert not any(row(found, n, kind)["feasible"] for n in range(1, 9) for kind in ("layer", "kernel"))
    # kernels alone: the classifier stays whole, 1280 x 1000 weights and a bias of 1000
    assert row(found, 4, "kernel")["peak_ram_bytes"] == 1280 + 1000 + 1_281_000
    assert found.pruned == {"too large for the RAM": 17}
    keys = ("inputs", "outputs", "weights", "kept")
    parts = [max(map(sum, zip(*(one[key] for key in keys), strict=True))) for one in found.more["layers"]]
    assert max(parts) == found.best["peak_ram_bytes"]
    assert sum(sum(one["weights"]) for one in found.more["layers"]) == 3_504_872


def test_what_does_not_fit_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "s.yaml").write_text(SPACE)
    assert main(["search", str(tmp_path / "s.yaml"), "--set", "count=1"]) == 0
    assert "no candidate fits the RAM" in capsys.readouterr().err
    assert main(["search", str(tmp_path / "s.yaml"), "--set", "count=1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not found["best"]["feasible"]
    assert found["frontier"] == []


def test_unequal_devices(tmp_path: Path):
    fast = "{name: fast, peak: {fp32: 1.92G, int8: 3.84G}, memory: 550kB, memory_bandwidth: 3.84GB/s}"
    text = SPACE.replace("devices: mcu\nram: 1MB", f"devices: [mcu, mcu, {fast}]\nshares: [equal, speed, fit]")
    (tmp_path / "s.yaml").write_text(text)
    equal, speed, fit = search(tmp_path / "s.yaml").rows
    assert speed["compute_ms"] < fit["compute_ms"] < equal["compute_ms"]
    assert [r["feasible"] for r in (equal, speed, fit)] == [False, False, True]
    assert fit["ram_bytes"][2] <= 550_000


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("some: 1\n", "unknown key `some`"),
        ("split: rows\n", "unknown value `rows`"),
        ("shares: most\n", "unknown value `most`"),
        ("count: 0\n", "expected numbers of devices from 1 on"),
        ("count: [a]\n", "expected numbers of devices from 1 on"),
        ("link: {speed: 1}\n", "unknown key `speed`"),
    ],
)
def test_what_is_wrong_is_told(more: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "s.yaml").write_text(SPACE + more)
    assert main(["search", str(tmp_path / "s.yaml")]) == 2
    assert told in capsys.readouterr().err


def test_other_networks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "s.yaml").write_text(SPACE)
    assert main(["search", str(tmp_path / "s.yaml"), "--set", "model=vit-l16"]) == 2
    assert "cannot be split by kernels" in capsys.readouterr().err
    assert main(["search", str(tmp_path / "s.yaml"), "--set", "devices=[mcu]", "--set", "count=2"]) == 2
    assert "count: 2 of 1 devices" in capsys.readouterr().err


def test_the_example():
    found = search(Path(__file__).parent.parent.parent / "examples" / "search" / "split.yaml")
    assert found.best["feasible"]


def test_its_page_shows_lists_of_bytes(tmp_path: Path):
    example = Path(__file__).parents[2] / "examples/search/split.yaml"
    assert main(["search", str(example), "--set", "count=2", "--set", "ram=10MB", "-o", str(tmp_path / "out")]) == 0
    assert "index.html" in {path.name for path in (tmp_path / "out").iterdir()}
