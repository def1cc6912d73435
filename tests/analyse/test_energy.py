"""Power and energy, worked by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.analyse.energy import Energy, PowerCurve, energy, with_battery, with_floor, with_stagger
from etude.analyse.gaps import Gaps, long_run
from etude.base.errors import ClusterError, EtudeError, UsageError
from etude.cost.energy import at_work_w, costs_of, idle_w, time_at_clock
from etude.cost.ops import OpTable, copy, matmul
from etude.machine import open_device
from etude.machine.open import system_of
from etude.machine.power import PowerCosts
from etude.machine.regions import Region, availability, hourly_price, open_region
from etude.machine.system import Device
from etude.model.schema import Collective, Kind
from etude.steps.energy.figures import energy_figures
from etude.surface.cli import main
from timed_jobs import timed

COSTS = PowerCosts(active_w=50.0, flop_pj={"bf16": 1.0}, byte_pj=100.0, communication_w=30.0, clock_mhz=1000.0)
DEVICE = Device(
    name="toy",
    peak_flop_per_s={"bf16": 1e15, "fp32": 1e14},
    memory_bandwidth_bytes_per_s=1e12,
    power_w=400.0,
    idle_power_w=100.0,
    energy=COSTS,
)


def node(**more):
    return {"kind": Kind.COMP, "cpu": 0, "name": "k", **more}


def test_power_of_one_rank_by_hand():
    # 0-10 us: 1e9 FLOPs at 1 pJ in 10 us are 100 W, and 50 W of a running kernel; 20-30 us: 1e7 bytes at 100 pJ in
    # 10 us are 100 W, and 50 W. Idle 100 W for 30 us.
    run = timed([(node(flops=10**9), 0, 10_000), (node(tensor_bytes=10**7), 20_000, 30_000)])
    found = energy(run, device=DEVICE)
    assert found.curve.time_ns.tolist() == [0, 10_000, 20_000, 30_000]
    assert found.curve.watts.tolist() == pytest.approx([250.0, 100.0, 250.0])
    assert found.curve.energy_j == pytest.approx(0.006)
    assert found.by_class == pytest.approx({"idle": 0.003, "other": 0.003})
    assert (found.curve.peak_w, found.curve.swing_w, found.ranks) == (pytest.approx(250), pytest.approx(150), 1)


def test_ranks_add_up_and_communication_draws_its_own():
    sums = {"kind": Kind.COLL, "collective": Collective.ALL_REDUCE, "in_bytes": 8, "group": "g", "cpu": 0}
    ranks = [[(node(flops=10**9), 0, 10_000), (sums, 10_000, 20_000)], [(sums, 0, 20_000)]]
    found = energy(timed(*ranks, groups={"g": [0, 1]}), device=DEVICE)
    assert found.curve.watts.tolist() == pytest.approx([250 + 130, 130 + 130])
    parts = [energy(timed(rank, groups={"g": [0]}), device=DEVICE).curve.energy_j for rank in ranks]
    assert found.curve.energy_j == pytest.approx(sum(parts))
    assert sum(found.by_class.values()) == pytest.approx(found.curve.energy_j)


def test_the_limit_holds_and_what_runs_gets_its_part():
    both = [(node(flops=4 * 10**9), 0, 10_000), (node(flops=10**9, name="other"), 0, 10_000)]
    found = energy(timed(both), device=DEVICE)
    assert found.curve.watts.tolist() == [400.0]
    assert sum(found.by_class.values()) == pytest.approx(0.004)


def test_energy_of_many_random_nodes_is_that_of_nodes_and_idle():
    rng = np.random.default_rng(0)
    start = rng.integers(0, 1000, 50) * 100
    length = rng.integers(1, 50, 50) * 100
    flops = rng.integers(0, 1000, 50) * 1000
    nodes = [(node(flops=int(f)), int(s), int(s + n)) for s, n, f in zip(start, length, flops, strict=True)]
    roomy = replace(DEVICE, power_w=1e6)
    found = energy(timed(nodes), device=roomy)
    by_hand = sum(50.0 * int(n) / 1e9 + int(f) * 1e-12 for n, f in zip(length, flops, strict=True))
    span = int((start + length).max() - start.min())
    assert found.curve.energy_j == pytest.approx(by_hand + 100.0 * span / 1e9)
    assert found.curve.sampled(777).energy_j == pytest.approx(found.curve.energy_j)


def curve(*steps: tuple[int, float]) -> PowerCurve:
    """Lengths in s and watts."""
    edges = np.cumsum([0, *(length for length, _ in steps)]) * 1_000_000_000
    return PowerCurve(edges.astype(np.int64), np.array([watts for _, watts in steps], float))


def test_a_floor_removes_what_is_below_it_and_adds_its_energy():
    given = curve((1, 100.0), (1, 500.0))
    found = with_floor(given, 300.0)
    assert (found.swing_w, found.energy_j - given.energy_j) == (200.0, 200.0)
    assert with_floor(given, 50.0).watts.tolist() == given.watts.tolist()


def test_the_highest_power_is_never_below_the_mean():
    """10 ms idle, then 9 ms at work that are not a whole window: 100 W in the window, and over the run the mean."""
    late = [(node(flops=1), 0, 1), (node(flops=10**12), 10_000_000, 19_000_000)]
    found = energy(timed(late), device=DEVICE)
    assert found.curve.mean_w == pytest.approx((10 * 100 + 9 * (100 + 50 + 1000 / 9)) / 19)
    assert found.highest_w == pytest.approx(found.curve.mean_w, rel=1e-6)
    raised = energy_figures(found, curve=with_floor(found.curve, 400.0))
    assert (raised["device_mean_w"], raised["device_highest_w"]) == (pytest.approx(400), pytest.approx(400))


def test_a_battery_holds_the_mean_as_far_as_it_reaches():
    given = curve((1, 500.0), (1, 100.0))  # mean 300: 200 J out of the battery, then 200 J in
    whole = with_battery(given, 400.0)
    assert whole.swing_w == pytest.approx(0.0)
    assert whole.energy_j == pytest.approx(given.energy_j)
    small = with_battery(given, 200.0)  # half full: 100 J last half a second; then 200 J of room fill in one
    assert small.watts.tolist() == pytest.approx([300.0, 500.0, 300.0])
    assert with_battery(given, 0.0).energy_j == pytest.approx(given.energy_j)
    lossy = with_battery(curve((1, 100.0), (1, 500.0)), 1e6, efficiency=0.5)
    assert lossy.watts.tolist() == pytest.approx([300.0, 300.0])  # it has lost 100 J of its charge


def test_staggered_jobs_keep_their_energy_and_swing_less():
    given = curve((1, 500.0), (1, 100.0), (1, 100.0), (1, 100.0))
    found = with_stagger(given, 4)
    assert found.energy_j == pytest.approx(given.energy_j)
    assert found.swing_w == pytest.approx(0.0)
    assert with_stagger(given, 2).peak_w == pytest.approx(300.0)
    assert with_stagger(given, 1).watts.tolist() == given.watts.tolist()


def test_ramps_are_between_the_middles_of_values():
    assert curve((1, 100.0), (3, 500.0)).ramp_w_per_s() == pytest.approx(400 / 2)


def test_the_clock_changes_cores_and_not_the_memory():
    ops = OpTable.of([matmul(1024, 1024, 1024)])
    time_ns = np.array([100_000])
    size = 3 * 1024 * 1024 * 2
    flop_w, byte_w = 2 * 1024**3 * 1e-12 / 1e-4, size * 100e-12 / 1e-4
    assert at_work_w(DEVICE, ops, time_ns)[0] == pytest.approx(50 + flop_w + byte_w)
    # Half the clock, twice the time: power of the cores falls by 0.5^2.5, that of the memory with the rate.
    slow = at_work_w(DEVICE, ops, 2 * time_ns, ratio=0.5)[0]
    assert slow == pytest.approx((50 + flop_w) * 0.5**2.5 + byte_w / 2)


def test_a_voltage_that_stays_below_a_clock():
    """Below 500 of 1,000 MHz the voltage is 0.8; at 750 MHz half of the way, 0.9. The memory keeps up down to 800 MHz,
    half of the idle power follows the clock, and matrix units last at 0.9 of it."""
    costs = replace(
        COSTS, voltage_clock_mhz=500.0, least_voltage=0.8, memory_clock_mhz=800.0, clocked_idle=0.5
    )  # fmt: skip
    device = replace(DEVICE, energy=costs, idle_power_w=60.0, sustained_fraction=0.9)
    assert idle_w(device) == 60.0
    assert idle_w(device, 0.75) == pytest.approx(30 + 30 * 0.75 * 0.9**2)
    assert idle_w(device, 0.4) == pytest.approx(30 + 30 * 0.4 * 0.8**2)
    ops = OpTable.of([matmul(8192, 8192, 8192), copy(1 << 28)])
    size = [3 * 8192**2 * 2, 2 * (1 << 28) * 2]
    own, factor = time_at_clock(device, ops, 0.9)
    assert factor == pytest.approx([1.0, 1.0], abs=0.01)  # where they last already
    own, factor = time_at_clock(device, ops, 0.4)
    assert factor[1] == pytest.approx(0.8 / 0.4, rel=0.01)
    assert 0.9 / 0.4 * 0.9 < factor[0] <= 0.9 / 0.4 + 1e-9
    watts = at_work_w(device, ops, own, ratio=0.4)
    lasting = (0.8 + 0.2 * 0.8) ** 2  # its constant is of that clock
    flop_w = 2 * 8192**3 * 1e-12 / own[0] * 1e9 * 0.8**2 / lasting
    moved = [100e-12 * size[i] / own[i] * 1e9 for i in range(2)]
    assert watts == pytest.approx([50 * 0.4 * 0.8**2 + flop_w + moved[0], 50 * 0.4 * 0.8**2 + moved[1]])


def test_constants_of_a_device_that_has_none_fill_its_limit():
    bare = replace(DEVICE, energy=None, idle_power_w=0.0)
    costs = costs_of(bare)
    room = 400 - 60
    assert costs.active_w + costs.flop_pj["bf16"] * 0.8e15 * 1e-12 == pytest.approx(0.9 * room)
    with pytest.raises(UsageError, match="does not specify its power"):
        costs_of(replace(bare, power_w=0.0))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"power": -700}, "negative|not positive"),
        ({"power": 100, "idle_power": 200}, "not below the limit"),
        ({"power": 100, "energy": {"active": -1}}, "negative"),
        ({"power": 100, "energy": {"watts": 1}}, "unknown key"),
        ({"power": 100, "energy": {"clock_mhz": 1000, "least_clock_mhz": 2000}}, "above the nominal"),
        ({"power": 100, "energy": {"exponent": 0.5}}, "less than 1"),
    ],
)
def test_figures_of_power_that_cannot_be(given, said):
    with pytest.raises(ClusterError, match=said):
        Device.from_dict({"name": "x", **given})


def test_a_region_by_hand():
    one = Region(name="x", carbon_g_per_kwh=1000.0, price_per_kwh=0.5)
    assert (one.carbon_g(3.6e6), one.cost(3.6e6), one.kwh(3.6e6)) == (1000.0, 0.5, 1.0)
    assert Region(name="y", pue=1.5, carbon_g_per_kwh=100.0).carbon_g(7.2e6) == pytest.approx(300.0)
    assert Region().carbon_g(1.0) is None
    assert open_region("sweden").carbon_g_per_kwh < open_region("poland").carbon_g_per_kwh
    with pytest.raises(ClusterError, match="unknown region `mars`"):
        open_region("mars")
    with pytest.raises(ClusterError, match="below 1"):
        Region(pue=0.9)


def test_regions_of_a_table(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("provider,region,impact,price,pue,round_trip\naws,us-1,400,0.1,1.2,30ms\ngcp,eu,,,,\n")
    found = open_region("us-1", path)
    assert (found.carbon_g_per_kwh, found.price_per_kwh, found.pue, found.round_trip_ns) == (400, 0.1, 1.2, 30e6)
    assert open_region("eu", path).carbon_g(1.0) is None
    path.write_text("place\nx\n")
    with pytest.raises(ClusterError, match="no column `region`"):
        open_region("x", path)


FAR = {"name": "far", "device": "h100", "regions": {"east": {"round_trip": "80ms"}, "west": {"round_trip": "20ms"}}}
WAN = {"name": "wan", "kind": "switch", "size": 3, "bandwidth": "10Gb/s", "latency": "1ms", "step": {"simple": "2ms"}}


def test_regions_of_a_system_are_apart_by_half_of_both_round_trips():
    wan = {**WAN, "regions": ["east", "west", "west"]}
    level = system_of({**FAR, "levels": [wan]}, "far.yaml").levels[0]
    assert (level.latency_ns, level.step("simple")) == (51e6, 52e6)
    near = system_of({**FAR, "levels": [{**wan, "regions": ["west"] * 3, "latency": 700}]}, "far.yaml").levels[0]
    assert near.latency_ns == 700
    assert system_of({**FAR, "levels": [WAN]}, "far.yaml").levels[0].latency_ns == 1e6


@pytest.mark.parametrize(("change", "problem"), [
    ({"regions": ["east", "mars", "west"]}, "unknown region `mars`"),
    ({"regions": ["east", "west"]}, "2 regions, but 3 units"),
    ({"regions": ["east", "sweden", "west"]}, "the round trip to region `sweden` is not given"),
    ({"regions": ["east", "west", "west"], "latency": "soon"}, "soon"),
])  # fmt: skip
def test_regions_that_say_too_little_are_refused(change, problem):
    with pytest.raises(EtudeError, match=problem):
        system_of({**FAR, "levels": [{**WAN, **change}]}, "far.yaml")


def test_price_and_availability_of_a_mix():
    cheap, dear = Device(name="a", price=2.0, available=0.9), Device(name="b", price=8.0, available=0.5)
    assert hourly_price([(cheap, 3), (dear, 1)]) == 14.0
    assert availability([(cheap, 3), (dear, 1)], Region(available=0.8)) == pytest.approx(0.9**3 * 0.5 * 0.8)
    assert hourly_price([(cheap, 3), (Device(name="c"), 1)]) is None
    assert availability([]) == 1.0


def test_measured_devices_are_at_their_limit_with_full_products():
    for name in ("h200", "h100", "b200"):
        device = open_device(name).busy()
        ops = OpTable.of([matmul(16384, 16384, 16384)])
        from etude.cost.compute import compute_time_ns

        watts = at_work_w(device, ops, compute_time_ns(device, ops))[0]
        assert math.isfinite(watts)
        assert device.idle_power_w + watts > 0.9 * device.power_w


# Two seconds of 500 W and one of 200 W, of which 100 W are idle power.
STEP = Energy(PowerCurve(np.array([0, 2, 3]) * 10**9, np.array([500.0, 200.0])), {"idle": 300.0, "gemm": 900.0}, 1)


def test_checkpoints_are_gaps_at_ends_of_steps():
    # Every 4 s of work: behind 6 s, at the end of the second step of 3 s. Five steps: checkpoints behind 2 and 4.
    found = long_run(STEP, Gaps.parse("checkpoint=every:4s,for:500ms"), repeat=5)
    assert (found.curve.time_ns / 1e9).tolist() == [0, 2, 3, 5, 6, 6.5, 8.5, 9.5, 11.5, 12.5, 13, 15, 16]
    assert found.curve.watts.tolist() == pytest.approx([500, 200, 500, 200, 100, 500, 200, 500, 200, 100, 500, 200])
    assert found.curve.energy_j == pytest.approx(5 * 1200 + 2 * 50)
    assert found.by_class == pytest.approx({"idle": 1500, "gemm": 4500, "gaps": 100, "lost": 0})
    assert (found.checkpoints, found.failures, found.lost_ns) == (2, 0, 0)
    # From 200 W for 1 s to 100 W for 0.5 s, and on to 500 W for 2 s: 400 W over the 1.25 s between their middles.
    assert found.curve.ramp_w_per_s() == pytest.approx(320.0)


def test_a_failure_idles_and_what_was_not_saved_is_done_again():
    given = Gaps(checkpoint_every_ns=3 * 10**9, checkpoint_ns=0, failure_every_ns=4 * 10**9, failure_ns=10**9, seed=5)
    found = long_run(STEP, given, repeat=6)
    # A plain walk over the same draws, millisecond by millisecond.
    rng, watts, saved, lost = np.random.default_rng(5), [], 0, 0
    left, step = rng.exponential(4e9) / 1e6, [500.0] * 2000 + [200.0] * 1000
    while saved < 6:
        done = min(3000, left)
        watts += step[: round(done)]
        left -= done
        if done == 3000:
            saved += 1
        else:
            watts += [100.0] * 1000
            lost, left = lost + done, rng.exponential(4e9) / 1e6
    assert found.failures > 2
    assert found.lost_ns == pytest.approx(lost * 1e6)
    assert found.curve.span_ns == pytest.approx(len(watts) * 1e6, rel=1e-3)
    assert found.curve.energy_j == pytest.approx(sum(watts) / 1e3, rel=1e-3)
    assert sum(found.by_class.values()) == pytest.approx(found.curve.energy_j)
    assert found.curve.watts.min() == pytest.approx(100.0)


def test_without_gaps_a_step_repeats():
    found = long_run(STEP, Gaps(), repeat=3)
    assert found.curve.watts.tolist() == [500, 200] * 3
    assert found.curve.energy_j == pytest.approx(3600.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("checkpoint=every:60s", "column 12: .* does not give `every` and `for`"),
        ("lunch=every:1s,for:1s", "column 1: unknown key `lunch`"),
        ("checkpoint=every:60s,for:5s;checkpoint=every:1s,for:1s", "column 29: `checkpoint` is given twice"),
        ("checkpoint=every:0s,for:5s", "column 18: .* is not positive"),
        ("failure=mtbf:-1h,for:5s", "column 14: .* is not positive"),
        ("failure=mtbf:1h,for:-5s", "negative"),
        ("failure=mtbf:soon,for:5s", "soon"),
    ],
)
def test_gaps_that_cannot_be_are_refused(text, told):
    with pytest.raises(EtudeError, match=told):
        Gaps.parse(text)


def test_failures_that_let_nothing_finish_are_refused():
    with pytest.raises(UsageError, match="more than 100,000 gaps"):
        long_run(STEP, Gaps.parse("failure=mtbf:10ms,for:1s"), repeat=1)


def test_the_device_that_was_recorded_is_taken(capsys: pytest.CaptureFixture[str]):
    sample = Path(etude.__file__).parent / "capture" / "sample"
    assert main(["energy", str(sample), "--json"]) == 0
    recorded = json.loads(capsys.readouterr().out)
    assert main(["energy", str(sample), "--ran-on", "h200", "--json"]) == 0
    assert recorded == json.loads(capsys.readouterr().out)
