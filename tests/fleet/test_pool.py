"""Pools: nodes that come and go, jobs that change their size, shares by kind; worked by hand, and conserved."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.world.fleet.sharing import SharingTimes, is_pool, read_pool, share, shared_record
from etude.world.fleet.sharing.fluid import shares
from etude.world.fleet.sharing.gangs import Shared
from etude.world.fleet.sharing.levels import max_min


def pool(tmp_path: Path, text: str, **files: str):
    (tmp_path / "p.yaml").write_text(text)
    for name, body in files.items():
        (tmp_path / f"{name}.csv").write_text(body)
    return read_pool(tmp_path / "p.yaml")


def ran(tmp_path: Path, text: str, policy: str = "", seed: int = 0, **files: str) -> Shared:
    given = pool(tmp_path, text, **files)
    assert given.jobs is not None
    return share(given.cluster, given.jobs, policy or given.policy, times=given.times, seed=seed)


def ends(found: Shared) -> dict[str, float]:
    return dict(zip(found.jobs.name, (found.end_ns / 1e9).tolist(), strict=True))


SPOT = "nodes: [{count: 2, gpus: 1, price: 3.6, capacity: spot.csv}]\n"


def test_a_node_that_is_taken_away_stops_its_job(tmp_path: Path):
    # at 30 s the second node goes: `b` has saved 20 s of its 30, and waits; at 50 s the node is back: 80 s are left
    jobs = "jobs: [{name: a, gpus: 1, duration_s: 200}, {name: b, gpus: 1, duration_s: 100, save_s: 20}]\n"
    found = ran(tmp_path, SPOT + jobs + "switch: 5s\n", spot="time_s,devices\n0,2\n30,1\n50,2\n")
    assert ends(found) == {"a": 200, "b": 50 + 5 + 80}
    said = shared_record(found)
    assert said["device_s"] == {"useful": 300, "redone": 10, "set_up": 5, "idle": 2 * 200 - 20 - 315, "there": 380}
    assert said["cost"] == pytest.approx((200 + 30 + 85) * 0.001)  # 3.6 dollars an hour while held


def test_a_job_that_says_nothing_of_saves_loses_nothing(tmp_path: Path):
    """Its node goes at 30.5 s and is back at 50 s; 69.5 s are left. The other saves every 20 s."""
    jobs = "jobs: [{name: a, gpus: 1, duration_s: 200, save_s: 20}, {name: b, gpus: 1, duration_s: 100}]\n"
    found = ran(tmp_path, SPOT + jobs + "switch: 5s\n", spot="time_s,devices\n0,2\n30.5,1\n50,2\n")
    assert ends(found) == {"a": 200, "b": 50 + 5 + 69.5}


def test_the_first_start_on_a_node_is_cold(tmp_path: Path):
    """10 s until a job runs, at the first instant too; the next of its tenant finds the node warm for a minute."""
    jobs = "jobs: [{name: a, gpus: 4, duration_s: 100, tenant: x}, {name: b, gpus: 4, duration_s: 50, tenant: x}]\n"
    found = ran(tmp_path, "gpus: 4\nnode_gpus: 4\nstart: 10s\nkeep: 60s\n" + jobs)
    assert ends(found) == {"a": 110, "b": 160} and found.cold.tolist() == [1, 0]


def test_prices_change_while_devices_are_held(tmp_path: Path):
    text = SPOT + "jobs: [{name: a, arrival_s: 10, gpus: 2, duration_s: 100}]\n"
    found = ran(tmp_path, text, spot="time_s,devices,price\n0,2,3.6\n60,2,7.2\n")
    assert shared_record(found)["cost"] == pytest.approx(2 * (50 * 0.001 + 50 * 0.002))


def test_sizes_by_hand(tmp_path: Path):
    # 50 s on 4 devices; then 2 for 20 s (10 of its 50 left), then 4 again: 40 s
    jobs = """jobs:
  - {name: a, gpus: 4, min_gpus: 1, duration_s: 100}
  - {name: b, arrival_s: 50, gpus: 2, duration_s: 20}
"""
    found = ran(tmp_path, "gpus: 4\nnode_gpus: 4\n" + jobs, "elastic")
    assert ends(found) == {"a": 110, "b": 70} and found.preemptions.tolist() == [1, 0]
    # with 15 s to start anew: at 50 s it shrinks, at 70 s it would take 5 s + 2 * 42.5 s, or 15 s + 42.5 s
    found = ran(tmp_path, "gpus: 4\nnode_gpus: 4\nswitch: 15s\n" + jobs, "elastic")
    assert ends(found) == {"a": 70 + 15 + 47.5, "b": 70}
    # with 100 s to start anew it does not grow again
    found = ran(tmp_path, "gpus: 4\nnode_gpus: 4\nswitch: 100s\n" + jobs, "elastic")
    assert ends(found)["a"] == 50 + 100 + 2 * 50


def test_what_grows_is_who_gains_most(tmp_path: Path):
    jobs = """jobs:
  - {name: flat, gpus: 1, max_gpus: 4, duration_s: 100, speed: "1:1;2:1.2;4:1.4"}
  - {name: steep, gpus: 1, max_gpus: 4, duration_s: 100, speed: "1:1;2:1.9;4:3.6"}
"""
    found = ran(tmp_path, "gpus: 5\nnode_gpus: 5\n" + jobs, "elastic")
    # 4 to `steep`: done at 27.8 s; `flat` has 72.2 s left and then 4 devices
    assert ends(found) == pytest.approx({"steep": 100 / 3.6, "flat": 100 / 3.6 + (100 - 100 / 3.6) / 1.4}, abs=1e-6)


def test_harvest_takes_what_is_left_and_gives_it_back(tmp_path: Path):
    text = """nodes: [{name: own, gpus: 4}, {name: spot, gpus: 4, capacity: spot.csv}]
jobs:
  - {name: bag, gpus: 4, min_gpus: 1, max_gpus: 8, duration_s: 100, harvest: 1}
  - {name: firm, arrival_s: 20, gpus: 3, duration_s: 50}
"""
    # `own` is the first of two equal groups: 4 devices, then 1 from 20 s to 70 s, then 4: 20 + 12.5 + 67.5
    found = ran(tmp_path, text, "harvest", spot="time_s,devices\n0,4\n")
    assert ends(found) == {"firm": 70, "bag": 137.5}
    firm = ran(tmp_path, text.replace("gpus: 4}, {name: spot", "gpus: 2}, {name: spot"), "harvest",
               spot="time_s,devices\n0,4\n")  # fmt: skip
    assert [firm.jobs.name[job] for job in firm.refused] == ["firm"]  # it does not go to nodes that may be taken away


def test_shares_by_kind(tmp_path: Path):
    text = """nodes: [{gpus: 1, kind: a}, {gpus: 1, kind: b}]
jobs:
  - {name: x, gpus: 1, duration_s: 300, rates: "a:3;b:1"}
  - {name: y, gpus: 1, duration_s: 100}
"""
    # an equal share is 2 for x and 1 for y: x on a has 3 (1.5 of its share), y on b has all that it can have
    found = ran(tmp_path, text, "gavel")
    assert ends(found) == pytest.approx({"x": 100, "y": 100})
    # devices alone are shared whichever way: each has one
    assert all(end <= 300.001 for end in ends(ran(tmp_path, text, "fair")).values())


def test_levels_are_weighted_shares_where_kinds_are_alike():
    rng = np.random.default_rng(4)
    for _ in range(20):
        n = int(rng.integers(1, 7))
        wanted, weight = rng.integers(1, 9, n).astype(float), rng.integers(1, 5, n).astype(float)
        found = max_min(np.ones((n, 2)), weight, wanted, np.array([5.0, 3.0]))
        assert found.sum(axis=1) == pytest.approx(shares(wanted, weight, 8.0), abs=1e-7)
        assert (found.sum(axis=0) <= np.array([5.0, 3.0]) + 1e-7).all()


def test_nobody_can_have_more_without_one_that_has_less():
    # x can run on a alone, y on both: y leaves a to x
    found = max_min(np.array([[1.0, 0], [1, 1]]), np.ones(2), np.full(2, 9.0), np.array([2.0, 2]))
    assert found == pytest.approx(np.array([[2.0, 0], [0, 2]]), abs=1e-9)


def random_pool(rng: np.random.Generator, count: int, *, fixed: bool) -> str:
    jobs = []
    for k in range(count):
        gpus = int(rng.integers(1, 7))
        least = gpus if fixed else int(rng.integers(1, gpus + 1))
        jobs.append(
            f"  - {{name: j{k}, arrival_s: {rng.integers(0, 300)}, gpus: {gpus}, min_gpus: {least}, harvest: {k % 2}, "
            f"duration_s: {rng.integers(10, 200)}, weight: {rng.integers(1, 4)}, save_s: {rng.integers(0, 30)}}}"
        )
    nodes = "nodes: [{count: 2, gpus: 4, price: 2}, {count: 2, gpus: 4, price: 1, mtbf: 100s, back: 60s}]\n"
    return f"{nodes}switch: 4s\nstart: 2s\nmigrate: 3s\nkeep: 30s\njobs:\n" + "\n".join(jobs) + "\n"


@pytest.mark.parametrize("policy", ["backfill", "srtf", "las", "priority", "elastic", "harvest", "fair", "gavel"])
def test_device_seconds_are_conserved(policy: str, tmp_path: Path):
    for seed in range(1 if policy in ("fair", "gavel") else 3):
        found = ran(tmp_path, random_pool(np.random.default_rng(seed), 12, fixed=False), policy, seed)
        said = shared_record(found)
        parts = said["device_s"]
        assert sum(parts[name] for name in ("useful", "redone", "set_up", "idle")) == pytest.approx(parts["there"])
        assert parts["idle"] >= -1e-6 and said["jobs_stuck"] == 0
        assert parts["useful"] == pytest.approx(float((found.jobs.work_ns * found.jobs.gpus).sum()) / 1e9, rel=1e-6)
        # what is paid: own nodes all the time, spot nodes while a job has them
        assert said["cost"] >= 8 * 2 * said["duration_s"] / 3600 - 1e-9


@pytest.mark.parametrize("policy", ["elastic", "harvest"])
def test_no_device_is_idle_while_a_job_that_fits_waits(policy: str, tmp_path: Path):
    jobs = "".join(f"  - {{gpus: 3, min_gpus: 1, arrival_s: {3 * k}, duration_s: 20, harvest: 1}}\n" for k in range(20))
    found = ran(tmp_path, f"gpus: 8\njobs:\n{jobs}", policy)
    assert max(row[2] for row in found.series) > 0
    assert all(used == 8 for _, _, waiting, used in found.series if waiting)


def test_cold_starts_are_as_rare_as_the_gaps_say(tmp_path: Path):
    rng, keep, service = np.random.default_rng(3), 2.0, 0.5
    arrival = np.cumsum(rng.exponential(1.0, 3000))
    rows = "".join(f"j{k},{at:.6f},1,{service}\n" for k, at in enumerate(arrival))
    found = ran(tmp_path, f"gpus: 64\nnode_gpus: 64\nstart: 1ns\nkeep: {keep}s\njobs: jobs.csv\n",
                jobs="name,arrival_s,gpus,duration_s\n" + rows)  # fmt: skip
    # from the last end, many at a time: e^-(keep + service), here of every job that came after so long
    by_hand = 1 + int((np.diff(arrival) > keep + service).sum())
    assert int(found.cold.sum()) == pytest.approx(by_hand, abs=3)
    assert found.cold.mean() == pytest.approx(np.exp(-(keep + service)), rel=0.15)


def test_same_seed_same_nodes_for_every_policy(tmp_path: Path):
    text = random_pool(np.random.default_rng(1), 6, fixed=True)
    a, b = (ran(tmp_path, text, "backfill", seed).end_ns.tolist() for seed in (5, 5))
    assert a == b and a != ran(tmp_path, text, "backfill", 6).end_ns.tolist()


def test_jobs_of_another_year_are_run_to_their_end(tmp_path: Path):
    late = 400 * 86_400
    jobs = f"[{{gpus: 1, duration_s: 5}}, {{gpus: 1, arrival_s: {late}, duration_s: 5}}]"
    found = ran(tmp_path, f"gpus: 1\njobs: {jobs}\n")
    assert found.end_ns.tolist() == [5 * 10**9, (late + 5) * 10**9] and found.stuck == 0
    cut = ran(tmp_path, "gpus: 1\nhorizon: 60s\njobs: [{gpus: 1, duration_s: 50}, {gpus: 1, duration_s: 50}]\n")
    assert cut.stuck == 1 and shared_record(cut)["jobs_done"] == 1


def test_a_predicted_job_is_as_fast_as_its_steps(tmp_path: Path):
    text = """gpus: 8
jobs:
  - {name: gpt, model: gpt2, system: dgx-h100, steps: 1000, min_gpus: 2, plan: {gpus: 8, global_batch: 64, zero: 1}}
  - {name: half, arrival_s: 0, gpus: 4, duration_s: 100000}
"""
    given = pool(tmp_path, text)
    assert given.jobs is not None
    speed = dict(part.split(":") for part in given.jobs.speed[0].split(";"))
    assert {"2", "4", "8"} <= set(speed) and float(speed["8"]) == 1 and 0.2 < float(speed["2"]) < float(speed["4"]) < 1
    found = share(given.cluster, given.jobs, "elastic", times=SharingTimes())
    assert ends(found)["gpt"] == pytest.approx(given.jobs.work_ns[0] / 1e9 / float(speed["4"]), rel=1e-6)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    example = Path(__file__).parents[2] / "examples" / "pool.yaml"
    assert is_pool(example) and not is_pool(example.with_name("cluster.yaml"))
    assert main(["fleet", str(example), "--json", "-o", str(tmp_path / "out")]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["policy"] == "harvest" and found["jobs_done"] == 4
    assert found["useful_s"] + sum(found["lost_s"].values()) == pytest.approx(found["duration_s"])
    assert main(["fleet", str(example), "--policy", "elastic", "-o", str(tmp_path / "other")]) == 0
    assert main(["report", str(tmp_path / "out"), str(tmp_path / "other"), "-o", str(tmp_path / "page.html")]) == 0
    assert "Side by side" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert main(["fleet", "gpt2", "--policy", "fifo"]) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpus: 4\njobs: [{gpus: 1}]\n", "duration_s"),
        ("gpus: 4\njobs: [{gpus: 4, min_gpus: 5, duration_s: 1}]\n", "between min_gpus"),
        ("gpus: 4\njobs: [{gpus: 4, duration_s: 1, mood: 3}]\n", "unknown key `mood`"),
        ("gpus: 4\nswitch: -3s\njobs: [{gpus: 4, duration_s: 1}]\n", "switch|negative|-3s"),
        ("nodes: [{gpus: 4, capacity: spot.csv}]\njobs: [{gpus: 4, duration_s: 1}]\n", "times must start"),
        ("nodes: [{gpus: 4, mtbf: 0.5h, lucky: 1}]\njobs: [{gpus: 4, duration_s: 1}]\n", "lucky"),
        ("gpus: 4\npolicy: magic\njobs: [{gpus: 4, duration_s: 1}]\n", "unknown policy `magic`"),
        ("gpus: 4\npolicy: elastic\njobs: [{gpus: 4, min_gpus: 2, duration_s: 1, speed: '2:1'}]\n", "no speed for 4"),
        ("gpus: 4\npolicy: fifo\n", "the file has no jobs, streams or rl"),
    ],
)
def test_pools_that_cannot_be_are_refused(text: str, said: str, tmp_path: Path):
    with pytest.raises(UsageError, match=said):
        ran(tmp_path, text, spot="time_s,devices\n5,4\n")
