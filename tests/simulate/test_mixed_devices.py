"""Systems of several kinds of devices: each rank at the speed of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.analyse.energy import energy
from etude.base.errors import ClusterError, UsageError
from etude.machine import open_device, open_system
from etude.machine.power import PowerCosts
from etude.machine.system import Device, OpCost, System
from etude.make.generate import Plan, generate
from etude.make.generate.model import open_model
from etude.model.build import TraceBuilder, job_of
from etude.model.schema import Collective, Kind
from etude.run.simulate import simulate
from toy_systems import level

EXACT = {"default": OpCost(fixed_ns=0.0, flop_efficiency=1.0, memory_efficiency=1.0)}
FAST = Device(name="fast", peak_flop_per_s={"bf16": 2e12}, memory_bandwidth_bytes_per_s=1e12, memory_bytes=8, ops=EXACT)
SLOW = replace(FAST, name="slow", peak_flop_per_s={"bf16": 1e12}, memory_bytes=4)
MIX = System(
    name="mix", device=FAST, levels=(level("node", "switch", 10),), devices={"fast": "0-3", "slow": "4-9"},
    kinds={"fast": FAST, "slow": SLOW},
)  # fmt: skip


def work(ranks: int, *, together: bool = False):
    """10^6 FLOPs on each rank: 0.5 us on the fast devices, 1 us on the slow; then a sum of 8 bytes."""
    found = []
    for _ in range(ranks):
        b = TraceBuilder()
        b.add(Kind.COMP, "k", cpu=0, flops=10**6)
        if together:
            b.add(Kind.COLL, "s", data=[0], collective=Collective.ALL_REDUCE, in_bytes=8, group="g")
        found.append(b)
    return job_of("w", found, {"g": list(range(ranks))} if together else {})


def test_each_rank_takes_the_time_of_its_own_device():
    assert simulate(work(10), MIX).timing.last_ends().tolist() == [500] * 4 + [1000] * 6
    placed = MIX.replace(placement=(9, 0, 5, 1))
    assert simulate(work(4), placed).timing.last_ends().tolist() == [1000, 500, 1000, 500]


def test_the_fast_wait_for_the_slow():
    job = work(10, together=True)
    mixed, slow = simulate(job, MIX), simulate(job, replace(MIX, devices={}, kinds={}, device=SLOW))
    assert mixed.makespan_ns == slow.makespan_ns
    assert mixed.timing.block(0)[1][0] == 500


def test_one_kind_under_two_names_is_as_before_node_by_node():
    one = open_system("dgx-h100").resized(8)
    h100 = open_device("h100")
    two = one.replace(devices={"a": "0-3", "b": "4-7"}, kinds={"a": h100, "b": h100})
    job = generate(open_model("gpt2"), Plan(gpus=8, tp=2, seq=128)).job
    before, after = simulate(job, one), simulate(job, two)
    for rank in range(8):
        assert all(
            np.array_equal(a, b) for a, b in zip(before.timing.block(rank), after.timing.block(rank), strict=True)
        )
    assert after.simulated_ranks == before.simulated_ranks


def test_figures_of_a_mix():
    assert (MIX.memory_bytes, MIX.peak("bf16", 10)) == (4, 4 * 2e12 + 6 * 1e12)
    assert MIX.kind_of([0, 9]).tolist() == [0, 1]
    assert MIX.resized(6).devices == {"fast": "0-3", "slow": "4-5"}
    with pytest.raises(UsageError, match="the kind of more than 10"):
        MIX.resized(12)
    assert System.from_dict(MIX.to_dict()) == MIX


def test_the_energy_of_each_is_that_of_its_device():
    costs = PowerCosts(active_w=10.0)
    fast, slow = (replace(d, power_w=w, idle_power_w=w / 10, energy=costs) for d, w in ((FAST, 1000.0), (SLOW, 200.0)))
    found = energy(simulate(work(10), MIX.replace(kinds={"fast": fast, "slow": slow})))
    # 4 fast ones: 100 W idle, 10 W more for 0.5 us; 6 slow ones: 20 W idle, 10 W more for 1 us
    assert found.curve.watts.tolist() == pytest.approx([4 * 110 + 6 * 30, 4 * 100 + 6 * 30])


def written(path: Path, devices: str, more: str = "") -> Path:
    sizes = {"node": 4, "net": 2}
    levels = "".join(
        f"  - {{name: {name}, kind: switch, size: {size}, bandwidth: 1GB/s}}\n" for name, size in sizes.items()
    )
    path.write_text(f"name: mine\ndevices: {devices}\nlevels:\n{levels}{more}")
    return path


def test_a_file_with_kinds_of_the_catalogue_and_of_its_own(tmp_path):
    found = etude.open_system(written(tmp_path / "m.yaml", "{h100: node 0, a100: [4, 5, 6, 7]}"))
    assert found.device == open_device("h100")
    assert [kind.name for kind in found.all_kinds] == [open_device(n).name for n in ("h100", "a100")]
    assert found.kind_of(range(8)).tolist() == [0] * 4 + [1] * 4
    own = written(tmp_path / "o.yaml", "{mine: 0-6, h100: 7}", "kinds: {mine: {name: Mine, peak: {bf16: 1T}}}")
    assert etude.open_system(own).kind_of([6, 7]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ("{h100: 0-3}", "device 4 of 8 has no kind"),
        ("{h100: 0-7, a100: 7}", "device 7 is both h100 and a100"),
        ("{h100: 0-8}", "device 8 is outside the system's 8"),
        ("{h100: all}", "`all` is not a range"),
        ("{h100: 7-0}", "ends before it begins"),
        ("{h100: rack 0}", "no level `rack`"),
        ("{h1000: 0-7}", "m.yaml: devices: unknown device `h1000`"),
        ("{}", "no kind of device is given"),
    ],
)
def test_mixes_that_cannot_be(tmp_path, devices, said):
    with pytest.raises(ClusterError, match=said):
        etude.open_system(written(tmp_path / "m.yaml", devices))
