"""`etude world window`: a moment of a workload as a job. Counts are worked by hand; times are those of the world."""

import json
from pathlib import Path

import pytest

import etude
from etude.base.errors import UsageError
from etude.model.schema import Kind
from etude.surface.cli import main
from etude.world.asked.run import is_kind, kinds
from etude.world.scenario import WorkloadKinds, scenario_of
from etude.world.windows import JobWindow, WindowRequest, window_of

TRAIN = {"train": "gpt2", "gpus": 16, "tp": 2, "global_batch": 64}
SHRINK = TRAIN | {"recover": "shrink"}
FAULTS = "time_s,name,effect,scope,node,nodes,duration_s,factor\n"


def scenario(folder: Path, workload: dict, *, faults: str = "", **more) -> dict:
    """A machine of two nodes with one workload, `it`, for an hour."""
    if faults:
        (folder / "faults.csv").write_text(FAULTS + faults)
        more["events"] = {"faults": "faults.csv", **more.get("events", {})}
    return {"machine": {"system": "dgx-h100", "nodes": 2}, "horizon": "1h", "workloads": {"it": workload}, **more}


def window(folder: Path, given: dict, at_s: float, **wanted) -> JobWindow:
    read = scenario_of(given, str(folder / "world.yaml"), WorkloadKinds(is_kind, kinds))
    return window_of(read, "it", WindowRequest(at_ns=round(at_s * 1e9), **wanted))


def apart(found: JobWindow) -> float:
    return abs(found.simulated().makespan_ns / found.world_ns - 1)


# -- training ----------------------------------------------------------------------------------------------------------


def ran(folder: Path, given: dict, capsys) -> dict:
    (folder / "world.yaml").write_text(json.dumps(given))
    assert main(["world", "run", str(folder / "world.yaml"), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["workloads"]["it"]


def test_steps_are_those_of_the_run(tmp_path, capsys):
    given = scenario(tmp_path, TRAIN)
    found = window(tmp_path, given, 100, steps=3)
    assert found.counts == {"steps": 3, "gpus": 16, "plan": "as planned"}
    assert ran(tmp_path, given, capsys)["steps"] == 3600 * 10**9 // (found.world_ns // 3)
    assert len(found.job) == 16
    assert {int(trace.step.max()) for trace in found.job.traces} == {2}
    assert found.start_ns <= 100e9 < found.start_ns + found.world_ns // 3
    assert apart(found) < 1e-6


def test_a_lost_node_leaves_half_of_the_ranks_and_of_the_batch(tmp_path):
    # 64 samples over 8 replicas: 8 of one sample each; on one node 4 replicas of 8 remain
    given = scenario(tmp_path, SHRINK, faults="100,node,stop,node,1,1,1800,1\n")
    whole, half = window(tmp_path, given, 50), window(tmp_path, given, 1000)
    assert (len(whole.job), len(half.job)) == (16, 8)
    assert (half.counts["gpus"], half.counts["plan"]) == (8, "4 replicas")
    forward = [sum(int((t.micro_batch >= 0).any()) for t in one.job.traces) for one in (whole, half)]
    assert forward[0] == forward[1]
    assert {int(t.micro_batch.max()) for t in whole.job.traces} == {int(t.micro_batch.max()) for t in half.job.traces}
    assert apart(half) < 1e-6


def test_a_slow_node_is_slow_in_all_that_it_does(tmp_path):
    given = scenario(tmp_path, SHRINK, faults="100,slow,slow,node,1,1,1800,1.5\n")
    usual, slow = window(tmp_path, given, 50), window(tmp_path, given, 1000)
    assert slow.world_ns == pytest.approx(1.5 * usual.world_ns, abs=2)
    assert slow.options["slow_ranks"] == dict.fromkeys(range(8, 16), 1.5)
    assert apart(slow) < 1e-4


def test_links_that_change_are_those_of_the_moment(tmp_path):
    (tmp_path / "links.csv").write_text("time_s,infiniband\n0,1\n600,0.25\n")
    given = scenario(tmp_path, TRAIN, events={"links": "links.csv"})
    before, after = window(tmp_path, given, 500), window(tmp_path, given, 700)
    rates = [one.system.levels[1].bandwidth_bytes_per_s for one in (before, after)]
    assert rates[1] == pytest.approx(rates[0] / 4)
    assert after.world_ns > before.world_ns
    assert apart(before) < 1e-6 and apart(after) < 1e-6


def test_a_job_that_waits_has_no_step(tmp_path):
    job = TRAIN | {"recover": "restart", "restart": "200s", "detect": "60s"}
    given = scenario(tmp_path, job, faults="100,node,stop,node,1,1,1800,1\n")
    for at, said in ((130, "until a fault is noticed"), (1000, "waits for nodes"), (2000, "starts again")):
        with pytest.raises(UsageError, match=said):
            window(tmp_path, given, at)


def test_power_makes_all_of_a_step_longer(tmp_path):
    given = scenario(tmp_path, TRAIN)
    capped = given | {"machine": given["machine"] | {"power": "2kW"}}
    found, usual = window(tmp_path, capped, 1000), window(tmp_path, given, 1000)
    assert found.world_ns > 1.02 * usual.world_ns
    assert apart(found) < 1e-4


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_folder_gives_the_same_time_to_etude_simulate(tmp_path, capsys):
    given = scenario(tmp_path, SHRINK, faults="100,slow,slow,node,1,1,1800,1.5\n")
    (tmp_path / "world.yaml").write_text(json.dumps(given))
    out = tmp_path / "job"
    args = ["world", "window", str(tmp_path / "world.yaml"), "--workload", "it", "--at", "1000s", "--steps", "2"]
    assert main([*args, "-o", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["steps"], said["ranks"]) == (2, 16)
    assert abs(said["difference"]) < 1e-4
    assert main([*args, "-o", str(out), "--force"]) == 0
    capsys.readouterr()
    line = ["simulate", str(out), "--system", str(out / "system.yaml"), "--yaml", str(out / "options.yaml"), "--json"]
    assert main(line) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["makespan_ns"] == pytest.approx(said["node_level_s"] * 1e9, abs=1)
    job = etude.open(out)
    assert len(job) == 16 and any((trace.kind == Kind.COLL).any() for trace in job.traces)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--workload", "them", "--at", "1s"], "there is no workload `them`"),
        (["--workload", "it", "--at", "2h"], "not before the horizon"),
        (["--workload", "it", "--at", "1s", "--for", "2s"], "--for"),
        (["--workload", "others", "--at", "1s"], "known by their durations alone"),
    ],
)
def test_what_is_refused(tmp_path, capsys, more, said):
    (tmp_path / "jobs.csv").write_text("name,arrival_s,duration_s,gpus\na,0,100,8\n")
    given = scenario(tmp_path, TRAIN)
    given["workloads"]["others"] = {"jobs": "jobs.csv", "nodes": 1}
    (tmp_path / "world.yaml").write_text(json.dumps(given))
    assert main(["world", "window", str(tmp_path / "world.yaml"), *more]) == 2
    assert said in capsys.readouterr().err
