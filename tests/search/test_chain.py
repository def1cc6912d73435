"""Cuts of a chain: worked by hand, the program against all cuts, messages against a step by step twin."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.decide.search import search
from etude.decide.search.cuts import Chain, Cut, best_cut, chain_of
from etude.decide.search.layers import Layers, given_layers, model_layers
from etude.decide.search.links import NEVER, VaryingLink
from etude.machine import open_device
from etude.machine.system import Device
from etude.surface.cli import main

HAND = """
search: chain
layers: [{name: a, flops: 1G, out: 2MB}, {name: b, flops: 4G, out: 1kB}]
input: 1MB
devices:
  - {name: edge, peak: {fp32: 1G}, memory: 1GB, memory_bandwidth: 1TB/s, power: 10, idle_power: 2,
     ops: {default: &all {flop_efficiency: 1, fixed: 0s}}}
  - {name: cloud, peak: {fp32: 10G}, memory: 1GB, memory_bandwidth: 1TB/s, power: 100, idle_power: 20,
     ops: {default: *all}}
links: [{rate: 1MB/s, latency: 1ms}]
"""


def test_two_layers_by_hand(tmp_path: Path):
    (tmp_path / "s.yaml").write_text(HAND)
    # all on the edge: 1 + 4 s; after a: 1 + 2.001 + 0.4; all on the cloud: 1.001 + 0.1 + 0.4
    rows = search(tmp_path / "s.yaml", method="all").rows
    assert [(row["cut"], row["latency_ms"]) for row in rows] == [([0], 1501.0), ([1], 3401.0), ([2], 5000.0)]
    assert [row["bottleneck_ms"] for row in rows] == [1001.0, 2001.0, 5000.0]
    # Idle 22 W all the time. A product at 1/0.8 of what 70% of the room is for draws 0.2 + 0.875 of it: 8 and 80 W;
    # a message 15% of both: 13.2 W.
    at_cloud = 22 * 1.501 + 80 * 1.075 * 0.5 + 13.2 * 1.001
    assert rows[0]["energy_j"] == pytest.approx(at_cloud)
    assert rows[2]["energy_j"] == pytest.approx(22 * 5 + 8 * 1.075 * 5)
    best = search(tmp_path / "s.yaml").best
    assert best == rows[0]


def test_limits_by_hand(tmp_path: Path):
    (tmp_path / "s.yaml").write_text(HAND.replace("b, flops: 4G", "b, weights: 2GB, flops: 4G"))
    with pytest.raises(Exception, match="no cut is within the limits"):
        search(tmp_path / "s.yaml")
    assert search(tmp_path / "s.yaml", changed={"limits": {"memory": False}}).best["cut"] == [0]
    text = HAND.replace("a, flops", "a, weights: 2GB, flops").replace(
        "{fp32: 1G}, memory: 1GB", "{fp32: 1G}, memory: 9GB"
    )
    (tmp_path / "s.yaml").write_text(text)
    found = search(tmp_path / "s.yaml")
    assert found.best["cut"] == [1]
    assert found.pruned == {"too large for the memory": 1, "not better than the best bound": 1}
    assert search(tmp_path / "s.yaml", method="all").pruned == {"too large for the memory": 1}


def random_chain(rng: np.random.Generator, devices: int) -> Chain:
    count = int(rng.integers(1, 7))
    rows = [
        {"flops": int(rng.integers(1, 100)) * 10**6, "out": int(rng.integers(0, 10**6)), "moved": 0,
         "weights": int(rng.integers(0, 100))} for _ in range(count)
    ]  # fmt: skip
    layers = given_layers(rows, int(rng.integers(0, 10**6)), "fp32", "x")
    kinds = [
        Device(name=f"d{d}", peak_flop_per_s={"fp32": float(rng.integers(1, 50)) * 1e9}, memory_bytes=10**9,
               memory_bandwidth_bytes_per_s=1e12, power_w=float(rng.integers(10, 300)), idle_power_w=5.0)
        for d in range(devices)
    ]  # fmt: skip
    links = [
        VaryingLink((0,), (int(rng.integers(10**5, 10**8)),), int(rng.integers(0, 10**7))) for _ in range(devices - 1)
    ]
    room = [int(rng.integers(2 * 10**6, 2 * 10**6 + 300)) if rng.random() < 0.5 else 0 for _ in range(devices)]
    return chain_of(layers, kinds, links, room)


def naive(chain: Chain, rates: list[int]) -> list[dict[str, float]]:
    """Every owner of every layer in turn, and what it comes to; owners may not go back."""
    found = []
    count, devices = len(chain.layers), len(chain.devices)
    times = [chain.layers.time_ns(device).tolist() for device in chain.devices]
    works = [chain.layers.work_j(device).tolist() for device in chain.devices]
    for owners in product(range(devices), repeat=count):
        if list(owners) != sorted(owners):
            continue
        cut = tuple(sum(o < d for o in owners) for d in range(1, devices))
        latency, worst, energy = 0, 0, 0.0
        for d in range(devices):
            mine = [i for i in range(count) if owners[i] == d]
            if mine and not chain.fits[d, mine[0], mine[-1] + 1]:
                break
            took = sum(times[d][i] for i in mine)
            energy += sum(works[d][i] for i in mine)
            hop = 0
            left = [i for i in range(count) if owners[i] >= d]
            if d and left:
                size = int(chain.layers.in_bytes[left[0]])
                hop = chain.links[d - 1].latency_ns + -(-size * 10**9 // rates[d - 1])
                energy += chain.talking_w[d - 1] * hop / 1e9
            latency, worst = latency + took + hop, max(worst, took, hop)
        else:
            energy += chain.idle_w * latency / 1e9
            found.append({"latency": latency, "energy": energy, "bottleneck": worst})
            assert chain.score(cut, rates).latency_ns == latency
    return found


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_the_program_is_the_best_of_all_owners(devices: int):
    rng = np.random.default_rng(devices)
    for _ in range(12):
        chain = random_chain(rng, devices)
        rates = [link.at(0) for link in chain.links]
        every = naive(chain, rates)
        least = min((one["latency"] for one in every), default=0)
        for score, deadline in product(("latency", "energy", "bottleneck"), (0, int(least * 1.3))):
            values = [one[score] for one in every if not deadline or one["latency"] <= deadline]
            cut = best_cut(chain, rates, score, deadline)
            assert (cut is None) == (not values)
            if cut is not None:
                assert chain.score(cut, rates).of(score) == pytest.approx(min(values), rel=1e-12)


@pytest.mark.parametrize("model", ["vgg16", "alexnet", "mobilenet-v2", "resnet-50"])
def test_the_program_is_all_cuts_of_networks(model: str):
    kinds = [open_device(name) for name in ("raspberry-pi5", "jetson-orin", "desktop")]
    for rate in (10**6, 10**7, 10**8):
        chain = chain_of(model_layers(model), kinds, [VaryingLink((0,), (rate,), 10**6)] * 2, [0] * 3)
        count = len(chain.layers)
        cuts: list[Cut] = [(a, b) for a in range(count + 1) for b in range(a, count + 1)]
        assert len(cuts) == chain.space == chain.fitting()
        for score in ("latency", "energy", "bottleneck"):
            found = best_cut(chain, [rate, rate], score)
            assert found is not None
            least = min(chain.score(cut, [rate, rate]).of(score) for cut in cuts)
            assert chain.score(found, [rate, rate]).of(score) == pytest.approx(least, rel=1e-12)


def layer(layers: Layers, name: str) -> tuple[int, int, int]:
    i = layers.name.index(name)
    return int(layers.in_bytes[i]), int(layers.out_bytes[i]), int(layers.weight_bytes[i])


def test_bytes_of_layers_by_hand():
    vgg = model_layers("vgg16")
    # two convolutions of 64 kernels on 224 x 224 pixels, then a pool by 2; 4 bytes each
    assert layer(vgg, "stem.0") == (3 * 224 * 224 * 4, 64 * 224 * 224 * 4, (3 * 9 * 64 + 64) * 4)
    assert layer(vgg, "stem.1") == (64 * 224 * 224 * 4, 64 * 112 * 112 * 4, (64 * 9 * 64 + 64) * 4)
    assert layer(vgg, "fc1.0") == (7 * 7 * 512 * 4, 4096 * 4, (25088 * 4096 + 4096) * 4)
    assert (len(vgg), int(vgg.weight_bytes.sum())) == (16, 138_357_544 * 4)
    # 11 x 11 by 4 with a border of 2: (224 + 4 - 11) // 4 + 1 = 55, pooled to 27
    assert layer(model_layers("alexnet", "int8"), "stem")[:2] == (150_528, 27 * 27 * 64)
    mobile = model_layers("mobilenet-v2")
    assert "bottleneck2.0" in mobile.name  # a residual goes around it, so it stays whole
    assert "bottleneck1.0.0" in mobile.name
    assert int(mobile.weight_bytes.sum()) == 3_504_872 * 4
    assert int(vgg.flops[0]) == 2 * 64 * 224 * 224 * 27 + 8 * 64 * 224 * 224


def test_a_message_is_the_integral_of_the_rate():
    rng = np.random.default_rng(3)
    for _ in range(50):
        starts = [0, *np.cumsum(rng.integers(1, 20, 4)).tolist()]
        rates = [int(r) * 10**9 for r in rng.integers(0, 4, 5)]  # bytes a ns, times 10^9
        link = VaryingLink(tuple(starts), tuple(rates), 7)
        size, now = int(rng.integers(1, 60)), int(rng.integers(0, 50))
        t, left = now, size
        while left > 0 and t < 1000:
            left -= rates[max(i for i, s in enumerate(starts) if s <= t)] // 10**9
            t += 1
        assert link.arrival_ns(size, now) == (t + 7 if left <= 0 else NEVER)


SWAYING = HAND.replace("{rate: 1MB/s, latency: 1ms}", "{rates: r.csv, latency: 1ms}") + "duration: 60s\nevery: 10s\n"


def test_searched_again_by_hand(tmp_path: Path):
    (tmp_path / "s.yaml").write_text(SWAYING)
    (tmp_path / "r.csv").write_text("time_s,rate\n0,1MB/s\n20,100kB/s\n40,1MB/s\n")
    found = search(tmp_path / "s.yaml", again_s=10)
    assert [row["cut"] for row in found.rows] == [[0], [0], [2], [2], [0], [0]]
    assert found.best["cut"] == [0] and found.best["latency_ms"] == 1501.0  # that of the start
    # at 100 kB/s the input takes 10.001 s to the cloud, so the edge is better with 5 s
    assert [row["latency_ms"] for row in found.rows] == [1501.0, 1501.0, 5000.0, 5000.0, 1501.0, 1501.0]
    # The fourth begins when the third is done, at 30.501: 949,900 bytes are sent by 40, the other 50,100 in 50.1 ms.
    assert [row["fixed_latency_ms"] for row in found.rows] == [1501.0, 1501.0, 10501.0, 10050.1, 1501.0, 1501.0]
    assert found.more["fixed"]["inferences"] == 6
    assert found.more["adaptive"]["changes"] == 2
    assert found.more["less"]["latency_s"] == pytest.approx(1 - (4 * 1.501 + 10) / (4 * 1.501 + 10.501 + 10.0501))
    assert found.record() == search(tmp_path / "s.yaml", again_s=10, method="all").record()


def test_the_best_is_that_of_the_start_and_inferences_begin_every_second(tmp_path: Path):
    """At 10 MB/s the cloud has 0.101 + 0.1 + 0.4 s, so that one begins every second. At 1 kB/s the edge is better, with
    5 s: from 5 s on there is room for one."""
    (tmp_path / "s.yaml").write_text(HAND.replace("{rate: 1MB/s, latency", "{rates: r.csv, latency"))
    (tmp_path / "r.csv").write_text("time_s,rate\n0,10MB/s\n")
    found = search(tmp_path / "s.yaml", again_s=5, changed={"duration": "10s"})
    assert found.more["adaptive"]["inferences"] == 10
    (tmp_path / "r.csv").write_text("time_s,rate\n0,10MB/s\n5,1kB/s\n")
    found = search(tmp_path / "s.yaml", again_s=5, changed={"duration": "10s"})
    assert [row["cut"] for row in found.rows] == [[0], [2]] and found.best["cut"] == [0]
    assert found.more["adaptive"]["inferences"] == 5 + 1


def test_cuts_that_are_late_are_counted(tmp_path: Path):
    """1.5, 3.4 and 5 s, of which 4 are allowed."""
    (tmp_path / "s.yaml").write_text(HAND + "limits: {deadline: 4s}\n")
    found = search(tmp_path / "s.yaml", method="all")
    assert (found.tried, found.pruned, found.space) == (2, {"late": 1}, 3)


def test_with_constant_links_again_is_once(tmp_path: Path):
    (tmp_path / "s.yaml").write_text(HAND)
    for score in ("latency", "energy", "bottleneck"):
        found = search(tmp_path / "s.yaml", again_s=7, changed={"score": score})
        assert found.more["less"] == {"latency_s": 0.0, "energy_j": 0.0}
        assert found.more["adaptive"]["changes"] == 0


def test_a_link_that_is_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "s.yaml").write_text(SWAYING)
    (tmp_path / "r.csv").write_text("time_s,rate\n0,0B/s\n20,1MB/s\n")
    assert [row["cut"] for row in search(tmp_path / "s.yaml", again_s=20).rows] == [[2], [0], [0]]
    (tmp_path / "r.csv").write_text("time_s,rate\n0,1MB/s\n20,0B/s\n")
    assert main(["search", str(tmp_path / "s.yaml"), "--again", "every=10s"]) == 2
    assert "begins at 20 s never completes" in capsys.readouterr().err


def test_drawn_rates_follow_the_seed(tmp_path: Path):
    text = HAND.replace("rate: 1MB/s", "rates: {low: 1MB/s, high: 10MB/s, every: 5s}") + "duration: 30s\n"
    (tmp_path / "s.yaml").write_text(text)
    one, two, other = (search(tmp_path / "s.yaml", again_s=5, seed=seed).rows for seed in (1, 1, 2))
    assert one == two
    assert one != other
    assert all(10**6 <= row["rates"][0] <= 10**7 for row in one)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("search: chain", "search: chain\nmore: 1", "unknown key `more`"),
        ("input:", "model: vgg16\ninput:", "either `model` or `layers`"),
        ("rate: 1MB/s", "latency: 1ms, rat: 2", "unknown key `rat`"),
        ("{rate: 1MB/s, latency: 1ms}", "", "expected a list of 1 links"),
        ("rate: 1MB/s, ", "", "either `rate` or `rates`"),
        ("rate: 1MB/s", "rates: none.csv", "`none.csv` does not exist"),
        ("rate: 1MB/s", "rates: bad.csv", "times must start at 0 and increase"),
        ("rate: 1MB/s", "rates: {low: 2MB/s, high: 1MB/s}", "`low` is above `high`"),
        ("input: 1MB", "input: 1MB\nscore: cost", "unknown score `cost`"),
        ("input: 1MB", "input: 1MB\nlimits: {price: 1}", "unknown key `price`"),
        ("flops: 1G", "flop: 1G", "unknown key `flop`"),
        ("input: 1MB", "input: 1MB\ndtype: fp33", "fp33"),
        ("peak: {fp32: 1G}, ", "", "no rate"),
    ],
)
def test_what_is_wrong_is_told(old: str, new: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "s.yaml").write_text(HAND.replace(old, new, 1))
    (tmp_path / "bad.csv").write_text("time_s,rate\n0,1MB/s\n0,2MB/s\n")
    assert main(["search", str(tmp_path / "s.yaml")]) == 2
    assert told in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "s.yaml").write_text(HAND)
    assert main(["search", str(tmp_path / "s.yaml"), "--again", "every=10s", "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert said["adaptive"]["latency_s"] == said["fixed"]["latency_s"] == 1.501
    assert main(["search", str(tmp_path / "s.yaml"), "--again", "every=-1s"]) == 2
    assert main(["search", str(tmp_path / "s.yaml"), "--method", "anneal"]) == 2


def test_the_example():
    found = search(Path(__file__).parent.parent.parent / "examples" / "search" / "chain.yaml", again_s=10)
    assert found.more["less"]["latency_s"] > 0
    assert len({tuple(row["cut"]) for row in found.rows}) > 1
