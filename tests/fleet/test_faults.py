"""Faults, events and checkpoints: what is read, drawn and refused."""

import random
from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.world.fleet.checkpoint import daly_ns, parse_checkpoints, young_ns
from etude.world.fleet.costs import Config, Costs
from etude.world.fleet.events import draw, event_table, read_events
from etude.world.fleet.faults import open_faults
from etude.world.fleet.recovery import Recovery
from etude.world.fleet.training import simulate_fleet

DAY = 86_400 * 10**9


def test_the_published_mix_has_all_interruptions():
    mix = open_faults("llama3")
    days = 54 * DAY
    expected = sum(16384 * days / kind.mtbf_ns for kind in mix.kinds)
    assert expected == pytest.approx(419)
    assert mix.mtbf_ns(16384, 2048) / 3.6e12 == pytest.approx(3.093, abs=0.001)  # hours, as published
    drawn = [len(draw(mix, nodes=2048, gpus_per_node=8, horizon_ns=days, seed=seed)) for seed in range(40)]
    assert np.mean(drawn) == pytest.approx(419, abs=4 * np.sqrt(419 / 40))
    assert np.std(drawn) == pytest.approx(np.sqrt(419), rel=0.4)


def test_draws_are_the_same_with_the_same_seed_and_do_not_depend_on_other_kinds():
    one = open_faults("node:mtbf=100h,repair=1h")
    two = open_faults("node:mtbf=100h,repair=1h;rack:mtbf=900h,nodes=4")
    given = {"nodes": 64, "gpus_per_node": 8, "horizon_ns": 30 * DAY}
    first, again, other = draw(one, **given), draw(one, **given), draw(two, **given)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert np.array_equal(other.time_ns[other.kind == 0], first.time_ns)
    racks = other.node[other.kind == 1]
    assert len(racks) and (racks % 4 == 0).all() and (other.nodes[other.kind == 1] == 4).all()
    assert not np.array_equal(draw(one, **given, seed=1).time_ns, first.time_ns)


def test_skewed_hazards_strike_few_nodes_more_often():
    given = {"nodes": 100, "gpus_per_node": 8, "horizon_ns": 400 * DAY}
    counts = [
        np.bincount(draw(open_faults(f"node:mtbf=1000h{more}"), **given).node, minlength=100)
        for more in ("", ",skew=1.5")
    ]
    assert counts[0].max() < 3 * counts[0].mean() and counts[1].max() > 10 * counts[1].mean()


def test_events_are_read_as_they_are_written(tmp_path: Path):
    import pyarrow.parquet as pq

    mix = open_faults("node:mtbf=100h,detect=5s;slow:mtbf=90h,factor=1.5,duration=1h;process:mtbf=10h")
    drawn = draw(mix, nodes=16, gpus_per_node=8, horizon_ns=3 * DAY)
    pq.write_table(event_table(drawn), tmp_path / "e.parquet")
    read = read_events(tmp_path / "e.parquet", nodes=16)
    for name in ("time_ns", "effect", "scope", "node", "nodes", "duration_ns", "factor", "detect_ns"):
        assert np.array_equal(getattr(read, name), getattr(drawn, name)), name
    (tmp_path / "e.csv").write_text("time_s,node,duration_s\n50,3,600\n20,1,600\n")
    assert (read_events(tmp_path / "e.csv", nodes=4).time_ns / 1e9).tolist() == [20, 50]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time_s,node\n-5,1\n", "time_s: `-5`"),
        ("time_s,node\n5,9\n", r"node 9 \+ 1 of 4"),
        ("time_s,effect\n5,melts\n", "unknown effect `melts`"),
        ("time_s,effect,factor\n5,slow,0.5\n", "not slower"),
        ("at,node\n5,1\n", "no column `time_s`"),
        ("time_s,colour\n5,1\n", "unknown column `colour`"),
    ],
)
def test_events_that_cannot_be_are_refused(text: str, said: str, tmp_path: Path):
    (tmp_path / "e.csv").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_events(tmp_path / "e.csv", nodes=4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("llama9", "no mix or file"),
        ("node:repair=4h", "no frequency"),
        ("node:mtbf=-4h", "is not positive|negative"),
        ("node:mtbf=4h,colour=red", "unknown key `colour`"),
        ("slow:mtbf=4h,factor=1.5", "needs a duration"),
        ("slow:mtbf=4h,factor=0.5,duration=1h", "not slower"),
        ("node:mtbf", "has no value"),
    ],
)
def test_kinds_that_cannot_be_are_refused(text: str, said: str):
    with pytest.raises(UsageError, match=said):
        open_faults(text)


def test_checkpoints_are_read():
    local, remote = parse_checkpoints("local:5min,remote:500:async:rate=2GB/s:diff=0.2:total=1TB/s")
    assert (local.every_ns, local.outlives, local.background) == (300e9, 0, False)
    assert (remote.steps, remote.share, remote.background, remote.outlives) == (500, 0.2, True, 3)
    # 1 TB of which a fifth is written by 1,000 nodes at 1 GB/s each, that is 1 TB/s: 0.2 s
    assert remote.write_ns(1e12, 1000) == 200_000_000
    assert local.steps_between(70 * 10**9) == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tape:5min", "column 1: unknown tier `tape`"),
        ("local", "no interval"),
        ("local:5min:10min", "column 12: .*`10min`"),
        ("local:-5min", "column 7: `-5min` is not positive"),
        ("local:5min,local:6min", "the same name"),
        ("local:auto,remote:auto", "one tier"),
        ("local:5min:survives=moon", "survives `moon`"),
        ("remote:1h:contend=0.5", "cannot be faster"),
    ],
)
def test_checkpoints_that_cannot_be_are_refused(text: str, said: str):
    with pytest.raises(UsageError, match=said):
        parse_checkpoints(text)


def test_closed_forms_as_published():
    """M = 3.09 h and C = 5, 30, 120 s: 5.6, 13.6, 27.2 min."""
    found = [young_ns(c * 1e9, 3.09 * 3.6e12) / 6e10 for c in (5, 30, 120)]
    assert found == pytest.approx([5.56, 13.62, 27.24], abs=0.01)
    assert daly_ns(120e9, 3.09 * 3.6e12) < young_ns(120e9, 3.09 * 3.6e12)


def test_the_interval_that_is_found_is_youngs():
    save_s, healthy = 60, Config(8192, 2 * 10**9, 1000)
    costs = Costs(healthy, 8, 8, state_bytes=1024.0 * save_s, node_bytes=0.0, node_bytes_per_s=1.0)
    tiers = parse_checkpoints("remote:auto:rate=1B/s")
    found = simulate_fleet(costs, days=20, faults="crash:scope=process,mtbf=3.09h", tiers=tiers).searched
    assert found is not None and found.save_s == save_s
    grid = np.array([every for every, _ in found.tried])
    best, young = (int(np.abs(grid - at).argmin()) for at in (found.best_s, found.young_s))
    assert abs(best - young) <= 1


def test_a_link_is_slow_and_a_file_may_hold_every_effect(tmp_path: Path):
    kind = open_faults("link:mtbf=90d,factor=1.2,duration=2h").kinds[0]
    assert kind.effect == "slow" and kind.factor == 1.2 and kind.unit == "node"
    lines = ["time_s,effect,node,duration_s,factor,notice_s,scope", "10,preempt,1,60,,30,", "20,storage,,60,,,process"]
    (tmp_path / "e.csv").write_text("\n".join([*lines, "5,slow,0,60,1.5,,"]) + "\n")
    found = read_events(tmp_path / "e.csv", nodes=2)
    assert [found.names[k] for k in found.kind] == ["slow", "preempt", "storage"]
    assert found.notice_ns.tolist() == [0, 30_000_000_000, 0] and found.nodes.tolist() == [1, 1, 0]
    for row in ("-1,stop,0,60,,,", "1,preempt,0,60,,-5,", "1,stop,7,60,,,", "1,slow,0,60,1,,"):
        (tmp_path / "e.csv").write_text("\n".join([lines[0], row]) + "\n")
        with pytest.raises(UsageError):
            read_events(tmp_path / "e.csv", nodes=2)


# -- a node that is down does not fail ---------------------------------------------------------------------------------

EIGHT = Costs(Config(64, 2 * 10**9, 1000), 8, 8, state_bytes=0.0, node_bytes=0.0, node_bytes_per_s=1.0)
DOWN_S = 60 + 300
"""From a fault until the job runs again: detection and restart, and nothing is loaded."""


def felt_by_hand(faults: list[tuple[float, int]], down_s: float) -> int:
    """A fault takes its node out of the job until that runs again; meanwhile the node is not there to fail, the others
    are, and each of their faults starts the way back once more."""
    out: set[int] = set()
    back, count = 0.0, 0
    for at, node in faults:
        if at >= back:
            out.clear()
        if node not in out:
            out.add(node)
            back, count = at + down_s, count + 1
    return count


def felt_by_clocks(nodes: int, mtbf_s: float, down_s: float, horizon_s: float, seed: int) -> int:
    """The same from clocks of the nodes, which run while a node is in the job and begin again when it is back."""
    rng, count, back = random.Random(seed), 0, 0.0
    fails = [rng.expovariate(1 / mtbf_s) for _ in range(nodes)]
    out: set[int] = set()
    while True:
        node = min((k for k in range(nodes) if k not in out), key=fails.__getitem__, default=-1)
        if out and (node < 0 or fails[node] >= back):
            for k in out:
                fails[k] = back + rng.expovariate(1 / mtbf_s)
            out.clear()
            continue
        if fails[node] >= horizon_s:
            return count
        out.add(node)
        back, count = fails[node] + down_s, count + 1


def test_faults_of_a_month_are_those_of_nodes_in_the_job():
    # 8 nodes that fail every 5 h: 1,152 faults in 30 days are drawn, and 3% of them meet a node that is down already
    drawn, felt = [], []
    for seed in range(40):
        found = simulate_fleet(EIGHT, days=30, faults="node:mtbf=5h", seed=seed)
        events = list(zip((found.events.time_ns / 1e9).tolist(), found.events.node.tolist(), strict=True))
        assert found.ran.interruptions == found.ran.hit.sum() == felt_by_hand(events, DOWN_S)
        drawn.append(len(events))
        felt.append(found.ran.interruptions)
    assert np.mean(drawn) == pytest.approx(1152, abs=4 * np.sqrt(1152 / 40))
    assert 0.965 < sum(felt) / sum(drawn) < 0.98
    crashes = [simulate_fleet(EIGHT, days=30, faults="process:mtbf=5h", seed=seed) for seed in range(5)]
    assert all(one.ran.interruptions == len(one.events) for one in crashes)  # processes are never down


def test_the_count_is_that_of_clocks_that_stop_while_a_node_is_down():
    given = {"days": 10, "faults": "node:mtbf=1h"}
    ours = [simulate_fleet(EIGHT, **given, seed=seed).ran.interruptions for seed in range(20)]
    theirs = [felt_by_clocks(8, 3600.0, DOWN_S, 10 * 86_400.0, seed) for seed in range(20)]
    spread = np.sqrt(np.var(ours) / 20 + np.var(theirs) / 20)
    assert np.mean(ours) == pytest.approx(np.mean(theirs), abs=4 * spread)
    assert np.mean(ours) < 1920 - 10 * spread  # 8 nodes and 240 h: what is drawn


def test_what_strikes_a_node_that_is_down(tmp_path: Path):
    """With a spare: lost at 100 s and struck again at 200 s while it is repaired; then it is a spare itself."""
    (tmp_path / "e.csv").write_text("time_s,node,duration_s\n100,0,3600\n200,0,3600\n5000,0,3600\n9000,8,60\n")
    found = simulate_fleet(
        EIGHT, days=1, faults=str(tmp_path / "e.csv"), recover="spare", recovery=Recovery(spares="1")
    )
    assert found.ran.hit.tolist() == [True, False, False, True] and found.ran.interruptions == 2
    # slow from 200 s on, for 1,000 s, while the node is replaced: felt from 460 s, when it is in the job again
    lines = ["time_s,node,duration_s,effect,factor", "100,0,60,stop,", "200,0,1000,slow,2"]
    (tmp_path / "e.csv").write_text("\n".join(lines) + "\n")
    slow = simulate_fleet(EIGHT, days=1, faults=str(tmp_path / "e.csv"))
    assert slow.ran.account.lost_ns["degraded"] / 1e9 == pytest.approx((1200 - 460) / 2, abs=2)
