"""`etude world window`: a moment of a workload as a job. Counts are worked by hand; times are those of the world."""

import json
from pathlib import Path

import pytest

import etude
from etude.base.errors import UsageError
from etude.model.build import TraceBuilder, job_of
from etude.model.schema import Kind
from etude.surface.cli import main
from etude.world.asked.run import is_kind, kinds
from etude.world.scenario import WorkloadKinds, scenario_of
from etude.world.windows import JobWindow, WindowRequest, window_of
from etude.world.windows.sequence import in_sequence

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


def test_links_that_change_on_fewer_nodes(tmp_path):
    # on one node no link between nodes is left to be slow
    (tmp_path / "links.csv").write_text("time_s,infiniband\n0,1\n600,0.25\n")
    stop = "100,node,stop,node,1,1,1800,1\n"
    given = scenario(tmp_path, SHRINK, faults=stop, events={"links": "links.csv"})
    before, after = window(tmp_path, given, 500), window(tmp_path, given, 700)
    assert len(before.job) == len(after.job) == 8
    assert after.world_ns == pytest.approx(before.world_ns, abs=1)
    assert apart(after) < 1e-6
    again = window(tmp_path, given, 2500)  # the node is back
    assert len(again.job) == 16 and again.world_ns > before.world_ns and apart(again) < 1e-6


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


# -- passes ------------------------------------------------------------------------------------------------------------


def chat(folder: Path, *rows: tuple[float, int, int], **more) -> dict:
    """Requests (arrival in s, tokens in, tokens out) of one replica."""
    lines = "".join(f"{at},{prompt},{output}\n" for at, prompt, output in rows)
    (folder / "requests.csv").write_text(f"arrival,prompt,output\n{lines}")
    return scenario(folder, {"serve": "gpt2", "requests": str(folder / "requests.csv"), **more}, horizon="1min")


def steps(found: JobWindow) -> list[int]:
    """Passes of each program of the job."""
    return [int(trace.step.max()) + 1 for trace in found.job.traces]


def test_passes_of_a_request_alone_are_its_latency(tmp_path, capsys):
    given = chat(tmp_path, (0.0, 100, 5))
    found = window(tmp_path, given, 0)
    assert steps(found) == [5]  # the prompt gives the first of five tokens
    assert found.counts == {"passes": 5, "replicas": 1, "requests": 1}
    assert found.world_ns == pytest.approx(ran(tmp_path, given, capsys)["latency_s"]["mean"] * 1e9, abs=1)
    assert apart(found) < 0.01


@pytest.mark.parametrize(
    ("rows", "more", "passes", "least"),
    [
        ([(0.0, 100, 3), (0.0, 50, 2)], {}, 3, 0.01),  # both prompts, two tokens, one token
        # pieces of 64, 64 and 22, one token; the loop counts logits of the first two as well, which have none
        ([(0.0, 150, 2)], {"max_num_batched_tokens": 64}, 4, 0.04),
        ([(0.0, 40, 4), (30.0, 40, 4)], {}, 4, 0.01),  # the second is not in the stretch
        ([(0.0, 1, 9), (0.0, 1, 9), (0.0, 1, 9)], {}, 9, 0.01),  # three sequences in a graph of four
    ],
)
def test_passes_are_as_the_loop_put_them_together(tmp_path, rows, more, passes, least):
    found = window(tmp_path, chat(tmp_path, *rows, **more), 0)
    assert steps(found) == [passes]
    assert apart(found) < least


def test_replicas_have_ranks_of_their_own(tmp_path):
    given = chat(tmp_path, (0.0, 64, 8), (0.0, 64, 4), replicas=2, tp=2, router="turn")
    both, second = window(tmp_path, given, 0), window(tmp_path, given, 0, replica=1)
    assert (len(both.job), sorted(steps(both))) == (4, [4, 8])
    assert (len(second.job), steps(second)) == (2, [4])
    assert apart(both) < 0.01 and apart(second) < 0.01


def test_a_stretch_begins_in_the_middle_of_an_answer(tmp_path):
    given = chat(tmp_path, (0.0, 64, 400))
    whole = window(tmp_path, given, 0)
    begun, worked = whole.start_ns, whole.world_ns
    rest = window(tmp_path, given, (begun + worked // 2) / 1e9)
    assert 0.45 < steps(rest)[0] / steps(whole)[0] < 0.55
    assert rest.notes == ()
    assert apart(rest) < 0.01


@pytest.mark.parametrize("stack", ["none", "vllm", "vllm-0.11"])
def test_the_software_is_in_the_nodes(tmp_path, stack):
    found = window(tmp_path, chat(tmp_path, (0.0, 700, 20), (0.01, 700, 20), tp=2, stack=stack), 0)
    assert apart(found) < 0.01
    hosts = sum(int((trace.cpu == 1).sum()) for trace in found.job.traces)
    assert hosts == (steps(found)[0] if stack == "vllm-0.11" else 0)


def test_calls_of_a_workflow_by_the_role_of_their_model(tmp_path):
    flow = {"workflow": "swe_agent", "models": {"planner": "gpt2", "worker": "gpt2"}, "replicas": 1}
    given = scenario(tmp_path, flow, horizon="10min")
    with pytest.raises(UsageError, match="planner and worker have passes"):
        window(tmp_path, given, 0, for_ns=20 * 10**9)
    found = window(tmp_path, given, 0, for_ns=20 * 10**9, role="planner")
    assert found.counts["passes"] == steps(found)[0] and apart(found) < 0.01
    with pytest.raises(UsageError, match="no role `critic`"):
        window(tmp_path, given, 1, role="critic")


@pytest.mark.parametrize(
    ("rows", "more", "said"),
    [
        ([(0.0, 9, 9), (30.0, 9, 9)], {}, "no pass starts"),
        ([(0.0, 9, 9)], {"num_speculative_tokens": 2}, "drafted tokens"),
        ([(0.0, 9, 9)], {"stack": "torch-flash2", "system": "dgx-h200"}, "do not split a sequence"),
    ],
)
def test_passes_that_are_refused(tmp_path, rows, more, said):
    system = more.pop("system", "dgx-h100")
    given = chat(tmp_path, *rows, **more)
    given["machine"]["system"] = system
    with pytest.raises(UsageError, match=said):
        window(tmp_path, given, 10 if said == "no pass starts" else 0)


# -- images and post-training ------------------------------------------------------------------------------------------


def pictures(folder: Path, **more) -> dict:
    """One picture of 20 steps, which comes at once."""
    asked = {"images": "flux.1-dev", "requests": "mix:512x512@20", "rate": 1, "count": 1, "burst": 0, "gpus": 8, **more}
    return scenario(folder, asked)


def test_steps_of_a_picture_alone_are_its_latency(tmp_path, capsys):
    given = pictures(tmp_path, degree="fixed:1", stack="none")  # without the software pixels take no time
    found = window(tmp_path, given, 0, for_ns=100 * 10**9)
    assert (steps(found), found.counts["devices"]) == ([20], 1)
    assert found.world_ns == pytest.approx(ran(tmp_path, given, capsys)["latency_s"]["mean"] * 1e9, abs=1)
    assert apart(found) < 1e-5


def test_layouts_of_several_devices_take_turns(tmp_path):
    found = window(tmp_path, pictures(tmp_path, degree="fixed:4"), 0, for_ns=100 * 10**9)
    trace = found.job.traces[0]
    assert (steps(found), len(found.job)) == ([20], 4)
    assert set(trace.step[trace.kind == Kind.COLL].tolist()) == set(range(0, 20, 2))  # by heads
    assert set(trace.step[trace.kind == Kind.SEND].tolist()) == set(range(1, 20, 2))  # around a ring
    assert int((trace.cpu == 1).sum()) == 20
    assert apart(found) < 0.01


def test_jobs_in_sequence():
    one, two = TraceBuilder(), TraceBuilder()
    first = one.add(Kind.COMP, "a", duration_ns=10, stream=7)
    one.add(Kind.COMP, "b", duration_ns=5, stream=7, data=[first])
    two.add(Kind.COMP, "c", duration_ns=20, stream=7)
    jobs = [job_of(name, [builder]) for name, builder in (("one", one), ("two", two))]
    # 15, then 20 while the host needs 50, then 15
    found = in_sequence("both", jobs, [0, 1, 0], [0, 50])
    assert found.traces[0].coded("name")[1][:2] == ["a", "b"]
    assert etude.simulate(found, "dgx-h100").makespan_ns == 80
    assert found.nodes == 2 + 2 + 2


def test_pictures_and_rollouts_with_the_links_of_the_moment(tmp_path):
    """A tenth of NVLink from the start: steps of pictures, passes and updates take longer, in nodes as well."""
    (tmp_path / "links.csv").write_text("time_s,nvlink\n0,0.1\n")
    post = {"rl": "gpt2", "nodes": 2, "steps": 5, "train": {"plan": {"gpus": 16, "tp": 2}},
            "rollout": {"samples": 4, "tokens": 100, "tp": 4, "at_once": 4, "context": 512}}  # fmt: skip
    slow = {"events": {"links": str(tmp_path / "links.csv")}}
    large = pictures(tmp_path, degree="fixed:8", requests="mix:1024x1024@4", stack="none")
    for given, most in ((large, 0.5), (scenario(tmp_path, post), 0.01)):  # a ring counts both ends of its messages
        usual = window(tmp_path, given, 0, for_ns=100 * 10**9)
        found = window(tmp_path, {**given, **slow}, 0, for_ns=100 * 10**9)
        assert found.world_ns > 1.01 * usual.world_ns and apart(found) < most
        assert found.simulated().makespan_ns > 1.01 * usual.simulated().makespan_ns
    update = window(tmp_path, {**scenario(tmp_path, post), **slow}, found.world_ns / 1e9 + 1e-3)
    assert (update.counts["updates"], apart(update) < 1e-6) == (1, True)
    (tmp_path / "links.csv").write_text(f"time_s,nvlink\n0,1\n{usual.world_ns / 1e9 + 1e-3},0.01\n")
    with pytest.raises(UsageError, match="links change"):
        window(tmp_path, {**scenario(tmp_path, post), **slow}, usual.world_ns / 1e9 + 2e-3)


def test_rollouts_and_updates(tmp_path):
    # one replica of a node's eight devices makes four samples of 100 tokens at once, then updates on sixteen
    post = {
        "rl": "gpt2", "nodes": 2, "steps": 5, "train": {"plan": {"gpus": 16, "tp": 2}},
        "rollout": {"samples": 4, "tokens": 100, "tp": 4, "at_once": 4, "context": 512},
    }  # fmt: skip
    given = scenario(tmp_path, post)
    made = window(tmp_path, given, 0, for_ns=100 * 10**9)
    assert made.counts == {"passes": 400, "replicas": 4, "requests": 4}  # a sample on each of four replicas
    assert (len(made.job), steps(made)) == (16, [100] * 4)
    update = window(tmp_path, given, made.world_ns / 1e9 + 1e-3)
    assert (update.counts, len(update.job)) == ({"updates": 1, "gpus": 16}, 16)
    assert apart(made) < 0.01 and apart(update) < 1e-6
    post["train"] = {"time": "10s"}
    with pytest.raises(UsageError, match="a given time"):
        window(tmp_path, given, made.world_ns / 1e9 + 1e-3)


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
