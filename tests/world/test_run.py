"""`etude world run`: the same figures as the commands of its kinds, errors that say where, an account that adds up."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from etude.surface.cli import main

MACHINE = "machine: {system: dgx-h100, nodes: 2}\n"
EXAMPLES = Path(__file__).parents[2] / "examples"
CLIENTS = EXAMPLES / "clients.csv"
CHAT = "  chat: {serve: gpt2, replicas: 2, rate: 20, count: 60, slo: {ttft: 1s}}\n"


def ran(file: Path, text: str, capsys, *more: str) -> dict:
    file.write_text(text)
    assert main(["world", "run", str(file), "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_service_alone_is_etude_serve(tmp_path, capsys):
    found = ran(tmp_path / "one.yaml", f"{MACHINE}workloads:\n{CHAT}", capsys)
    args = "serve gpt2 --system dgx-h100 --replicas 2 --rate 20 --count 60 --slo ttft=1s --json"
    assert main(args.split()) == 0
    wanted = json.loads(capsys.readouterr().out)
    its = found["workloads"]["chat"]
    for name in ("ttft_s", "tpot_s", "latency_s", "goodput_rps", "within_limits", "busy", "passes", "duration_s"):
        assert its[name] == wanted[name], name
    assert its["energy_j"] == pytest.approx(wanted["energy_j"], abs=1e-3)
    assert found["horizon_s"] == wanted["duration_s"]


def test_training_alone_is_etude_fleet_train(tmp_path, capsys):
    plan = {"gpus": 16, "tp": 2, "checkpoint": "remote:30min", "recover": "restart", "spares": 0}
    text = f"{MACHINE}horizon: 2d\nworkloads:\n  job: {json.dumps({'train': 'gpt2', **plan})}\n"
    found = ran(tmp_path / "one.yaml", text + 'events: {faults: "node:mtbf=20h,repair=1h"}\n', capsys)
    args = ["fleet", "train", "gpt2", "--system", "dgx-h100", "--days", "2", "--faults", "node:mtbf=20h,repair=1h"]
    for name, value in plan.items():
        args += [f"--{name}", str(value)]
    assert main([*args, "--json"]) == 0
    wanted = json.loads(capsys.readouterr().out)
    its = found["workloads"]["job"]
    for name in ("useful_s", "lost_s", "steps", "tokens", "interruptions", "saves"):
        assert its[name] == wanted[name], name
    assert wanted["interruptions"] > 0


@pytest.mark.parametrize(
    ("line", "name", "same"),
    [
        (
            "serve gpt2 --system dgx-h100 --replicas 2 --rate 30 --count 80 --seed 3 "
            "--scale queue:1..2,most=5,every=1s",
            "chat",
            ("ttft_s", "latency_s", "passes", "workload"),
        ),
        (
            "serve gpt2 --system dgx-h100 --disaggregate 1:2 --rate 10 --count 40 --slo ttft=1s",
            "chat",
            ("ttft_s", "tpot_s", "transfer_s", "goodput_rps", "busy"),
        ),
        (
            "fleet train gpt2 --system dgx-h100 --gpus 16 --days 2 --checkpoint remote:30min --recover shrink "
            "--spares 1 --faults node:mtbf=20h,repair=1h --seed 2",
            "train",
            ("useful_s", "lost_s", "tokens", "transitions"),
        ),
        (
            "federate gpt2 --clients 12 --link 10..50Mb/s --count 4 --rounds 9 --seed 3 --available 0.8 --deadline 1h",
            "rounds",
            ("duration_s", "round_s", "answered", "down_bytes", "up_bytes", "participation", "model_bytes"),
        ),
        (
            "federate swarm gpt2 --clients 5 --link 1Gb/s --rounds 2",
            "rounds",
            ("duration_s", "round_s", "of_bound", "delivered", "up_bytes"),
        ),
        (
            f"federate split llama3.2-1b --clients {CLIENTS} --lora 8 --rounds 3 --server-devices 2 --server 1Gb/s",
            "rounds",
            ("duration_s", "round_s", "split", "up_bytes", "participation"),
        ),
        (
            "serve images flux.1-dev --system dgx-h100 --gpus 8 --rate 2 --count 20 --degree elastic:1..4 "
            "--requests mix:512x512@20=0.6,1024x1024@28=0.4 --slo latency=60s --seed 5 --set-up 100ms",
            "images",
            ("latency_s", "finished", "within_limits"),
        ),
        (
            "serve workflow swe_agent --models llama3-8b,gpt2 --system dgx-h100 --replicas 2 --cache prefix "
            "--router affinity --seed 2",
            "agents",
            ("latency_s", "calls", "sum_s", "bound", "models", "duration_s"),
        ),
        (
            "serve workflow swe_agent --models gpt2,gpt2 --system dgx-h100 --disaggregate 1:2 --link 10GB/s",
            "agents",
            ("latency_s", "calls", "duration_s"),
        ),
        (
            f"serve devices {EXAMPLES}/workflows/dags/report.yaml --devices {EXAMPLES}/workflows/mixed.yaml "
            "--place heft",
            "calls",
            ("makespan_s", "latency_s", "loads", "found_tokens", "fetch_s", "run_s"),
        ),
        (
            "fleet experts mixtral-8x7b --ep 8 --system dgx-h100 --horizon 2min --sequences 64",
            "group",
            ("tokens", "step_s", "planned_tokens_per_s", "rank_bytes", "useful_s"),
        ),
        (
            "fleet functions FUNCTIONS --seed 3",
            "calls",
            ("requests", "invocations", "cold", "latency_s", "instance_s", "of_full"),
        ),
    ],
)
def test_a_command_printed_as_a_scenario_has_the_same_figures(tmp_path, capsys, line, name, same):
    if "FUNCTIONS" in line:
        (tmp_path / "qwen1.5-moe.yaml").write_text((EXAMPLES / "qwen1.5-moe.yaml").read_text())
        (tmp_path / "moe.yaml").write_text(FUNCTIONS)
        line = line.replace("FUNCTIONS", str(tmp_path / "moe.yaml"))
    assert main([*line.split(), "--json"]) == 0
    wanted = json.loads(capsys.readouterr().out)
    assert main([*line.split(), "--scenario"]) == 0
    found = ran(tmp_path / "one.yaml", capsys.readouterr().out, capsys)["workloads"][name]
    assert {key: found[key] for key in same} == {key: wanted[key] for key in same}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("serve images flux.1-dev --system dgx-h100 --gpus 12 --rate 2 --requests mix:512x512@20", "--gpus 8"),
        ("serve images flux.1-dev --system dgx-h100 --rate 2..4 --requests mix:512x512@20", "one rate"),
        ("fleet experts mixtral-8x7b --ep 8 --system dgx-h100 --fail rank1@60s", "--fail cannot be combined"),
        (f"serve devices swe_agent --devices {EXAMPLES}/workflows/mixed.yaml", "--place heft"),
        ("serve gpt2 --system dgx-h100 --pp 2 --rate 3 --count 9", "leave out --pp"),
        ("fleet train gpt2 --system dgx-h100 --gpus 8 --days 2 --price 2", "--price cannot be combined"),
    ],
)
def test_a_run_that_is_no_scenario_says_why(capsys, line, said):
    assert main([*line.split(), "--scenario"]) == 2
    assert said in capsys.readouterr().err


def test_the_account_of_a_mixed_machine_adds_up(tmp_path, capsys):
    (tmp_path / "jobs.csv").write_text("name,arrival_s,gpus,duration_s\na,0,8,100\nb,10,4,50\n")
    (tmp_path / "spot.csv").write_text("time_s,price\n0,2\n300,4\n")
    text = (
        "machine: {system: dgx-h100, nodes: 6, regions: [sweden]}\nhorizon: 600s\nworkloads:\n"
        '  train: {train: gpt2, gpus: 16, checkpoint: ["remote:60s"], recover: shrink, lend_to: chat}\n'
        "  chat: {serve: gpt2, replicas: 1..12, scale: queue, rate: 40, count: 20000}\n"
        "  others: {jobs: jobs.csv, nodes: 1}\n"
        'events: {faults: "node:mtbf=1h,repair=100s", prices: spot.csv}\nseed: 4\n'
    )
    found = ran(tmp_path / "mixed.yaml", text, capsys, "-o", str(tmp_path / "out"))
    account = found["account"]["device_ns"]
    assert account["total"] == 48 * 600 * 10**9 == sum(sum(its.values()) for its in account["parts"].values())
    cost = found["account"]["cost"]
    assert cost["total"] == pytest.approx(48 * (300 * 2 + 300 * 4) / 3600)
    # jobs of 8 devices for 100 s and of 4 for 50 s, each of which draws 700 W instead of 105
    assert found["account"]["energy_mj"]["parts"]["others"]["work"] == pytest.approx(1000 * 595e3)
    assert found["events"] and found["workloads"]["others"]["jobs_done"] == 2
    held = pq.read_table(tmp_path / "out" / "holdings.parquet").to_pydict()
    assert set(held["holder"]) == {"train", "chat", "others", "free", "down"}
    assert (tmp_path / "out" / "chat_requests.parquet").is_file()
    assert main(["report", str(tmp_path / "out"), "-o", str(tmp_path / "out.html")]) == 0
    page = (tmp_path / "out.html").read_text()
    for text in ("3 workloads on 48 devices", "Who held how many", "What devices were used for", "felt by"):
        assert text in page


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("workloads: {}\n", "machine"),
        (MACHINE + "horizon: 1h\nworkloads: {}\n", "give at least one"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a: {rate: 4}\n", "says no kind"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a: {serve: gpt2, train: gpt2}\n", "says serve and train"),
        (MACHINE + "horizon: 1h\nworkloads:\n  free: {serve: gpt2, rate: 4}\n", "uses itself"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a: {serve: gpt2, rate: 4, speed: 3}\n", "workloads: a"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a: {serve: gpt2, rate: 4, system: dgx-a100}\n", "that of the machine"),
        (MACHINE + "horizon: 60000d\nworkloads:\n  a: {serve: gpt2, rate: 4}\n", "too long"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a/b: {serve: gpt2, rate: 4}\n", "not a name"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a: {serve: gpt2, rate: 1..4}\n", "one rate"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a: {serve: gpt2, rate: 4, replicas: 17}\n", "16 have room"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a: {train: gpt2, gpus: 32}\n", "needs 4 nodes"),
        (MACHINE + "workloads:\n  a: {train: gpt2, gpus: 8}\n", "never ends"),
        (MACHINE + "workloads:\n  a: {experts: mixtral-8x7b, ep: 8}\n", "never ends"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a: {experts: mixtral-8x7b, ep: 8, fail: rank1@5s}\n", "one for all"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a: {experts: mixtral-8x7b, ep: 8, recover: shrink}\n", "recover"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a: {experts: deepseek-v3, ep: 32}\n", "needs 4 nodes"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a: {devices: mixed.yaml, place: heft}\n", "no workflow"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a: {devices: m.yaml, workflow: swe_agent}\n", "one way to place"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a: {functions: nowhere.yaml}\n", "nowhere.yaml"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a: {train: gpt2, gpus: 8, days: 3}\n", "one for all"),
        (MACHINE + "horizon: 1h\nworkloads:\n  a: {train: gpt2, gpus: 8, lend_to: b}\n", "no workload `b`"),
        (MACHINE + f"horizon: 1h\nworkloads:\n{CHAT}policies: {{place: tight}}\n", "unknown policy"),
        (MACHINE + f"horizon: 1h\nworkloads:\n{CHAT}event: {{}}\n", "unknown key `event`"),
        (MACHINE + f"workloads:\n{CHAT}events: {{faults: llama3}}\n", "faults without a horizon"),
        (MACHINE + f"workloads:\n{CHAT}policies: {{power: cap-training-first}}\n", "no cap of the power"),
        (MACHINE + f"workloads:\n{CHAT}policies: {{share: lend}}\n", "no workload gives nodes up"),
        (
            f"machine: {{system: dgx-h100, nodes: 2, power: 9kW}}\nhorizon: 1h\nworkloads:\n{CHAT}"
            "policies: {power: cap-training-first}\n",
            "no training that it could slow",
        ),
        (
            MACHINE + "horizon: 1h\nworkloads:\n  a: {train: gpt2, gpus: 16}\npolicies: {place: spread}\n",
            "no workload has a part of a node",
        ),
        (MACHINE + f"horizon: 1h\nworkloads:\n{CHAT}events: {{carbon: atlantis}}\n", "unknown region `atlantis`"),
        (MACHINE + f"horizon: 1h\nworkloads:\n{CHAT}events: {{prices: nowhere.csv}}\n", "nowhere.csv"),
        (
            MACHINE + "horizon: 1h\nworkloads:\n  a: {serve: gpt2, rate: 4, replicas: 4..2, scale: queue}\n",
            "`replicas: 4..2` is not a range",
        ),
        (
            MACHINE + "horizon: 1h\nworkloads:\n  a: {serve: gpt2, rate: 4, replicas: 2..4, "
            "scale: 'queue:1..2,every=1ns'}\n",
            "the rule looks 3,600,000,000,000 times",
        ),
        (f"machine: {{system: dgx-h100, nodes: 100000000}}\nworkloads:\n{CHAT}", "nodes"),
        (
            MACHINE + "workloads:\n  a: {serve: gpt2, rate: 4, replicas: 2..1000000, scale: queue}\n",
            "1,000,000 replicas",
        ),
        (MACHINE + f"horizon: 1h\nworkloads:\n{CHAT}events: {{faults: 'node:mtbf=1ns'}}\n", "too many"),
        (
            MACHINE + "horizon: 1h\nworkloads:\n  a: {serve: mixtral-8x7b, rate: 4, count: 9, tp: 4, ep: 8, "
            "replicas: 2}\nevents: {faults: 'node:mtbf=1h'}\n",
            "experts that are spread over several replicas",
        ),
        (MACHINE + f"horizon: 1h\nworkloads:\n{CHAT}events: {{faults: 'node:every=1s,times=99999999'}}\n", "too many"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path, capsys, text: str, told: str):
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    assert main(["world", "run", str(file)]) == 2
    said = capsys.readouterr().err
    assert told in said and "Traceback" not in said


def test_an_outcome_is_read_through_its_schema(tmp_path, capsys):
    found = ran(tmp_path / "one.yaml", f"{MACHINE}workloads:\n{CHAT}", capsys, "-o", str(tmp_path / "out"))
    query = ["query", str(tmp_path / "out"), "SELECT count(*) AS n FROM chat_requests", "--json"]
    assert main(query) == 0
    assert json.loads(capsys.readouterr().out)[0]["n"] == 60
    file = tmp_path / "out" / "outcome.json"
    kept = file.read_text()
    held = found["account"]["device_ns"]["parts"]["free"]["free"]
    for old, new, told in (
        (f'"free": {held}', f'"free": {held + 1}', "does not add up"),
        ('"crossings": ', '"crossings": -', "crossings"),
        ("etude outcome 2", "etude outcome 9", "newer"),
        ("holdings", "holding", "holding"),
    ):
        assert old in kept
        file.write_text(kept.replace(old, new))
        assert main(query) == 2
        said = capsys.readouterr().err
        assert told in said and "Traceback" not in said


def test_agents_on_separate_replicas_with_a_prefix_cache_beside_a_service(tmp_path, capsys):
    """Devices do not meet, so sessions take what they take alone."""
    agents = "workflow: swe_agent, models: {planner: gpt2, worker: gpt2}, disaggregate: '1:2', cache: prefix"
    text = f"machine: {{system: dgx-h100, nodes: 4}}\nworkloads:\n  agents: {{{agents}, router: affinity}}\n{CHAT}"
    its = ran(tmp_path / "apart.yaml", text, capsys)["workloads"]["agents"]
    args = "serve workflow swe_agent --models gpt2,gpt2 --system dgx-h100 --disaggregate 1:2 --cache prefix"
    assert main([*args.split(), "--router", "affinity", "--json"]) == 0
    wanted = json.loads(capsys.readouterr().out)
    for name in ("latency_s", "cache_hit_tokens", "calls"):
        assert its[name] == wanted[name], name


@pytest.mark.parametrize("replicas", ["replicas: 2", "disaggregate: '1:2'"])
@pytest.mark.parametrize("node", [0, 1])
def test_the_only_call_of_a_workflow_goes_on_where_it_is_not_lost(tmp_path, capsys, monkeypatch, replicas, node):
    """Ready at 0.68 s, it takes 0.26 s; at 0.8 s a node fails, and nothing else happens that would wake others."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.yaml").write_text(
        "name: one\nmodels: {m: gpt2}\nsessions: 1\ntasks:\n  ask: {model: m, message: 200, output: 400}\n"
    )
    (tmp_path / "faults.csv").write_text(f"time_s,name,effect,node,nodes,duration_s\n0.8,node,stop,{node},1,600\n")
    text = f"workloads:\n  agents: {{workflow: one.yaml, {replicas}}}\npolicies: {{place: spread}}\n"
    machine = "machine: {system: dgx-h100, nodes: 3}\n"
    alone = ran(tmp_path / "alone.yaml", f"{machine}{text}", capsys)["workloads"]["agents"]
    lost = ran(tmp_path / "lost.yaml", f"{machine}horizon: 10s\n{text}events: {{faults: faults.csv}}\n", capsys)
    its = lost["workloads"]["agents"]
    assert (its["sessions_done"], its["failures"]) == (1, 1)
    more = its["latency_s"]["mean"] - alone["latency_s"]["mean"]
    again = node == (1 if "disaggregate" in replicas else 0)  # the replica that writes the answer
    assert (0 < more < 0.01) if again else more == pytest.approx(0, abs=1e-9)


def test_training_is_slower_while_its_links_are(tmp_path, capsys):
    """An hour with a fiftieth of the fabric between two with all of it. The step of that hour is that of a system of
    the user's own, whose fabric is so slow throughout."""
    job = "workloads:\n  job: {train: llama3-8b, gpus: 16, tp: 8, checkpoint: ['remote:6h']}\n"
    assert main(["systems", "show", "dgx-h100"]) == 0
    slow = capsys.readouterr().out.replace("bandwidth: 50 GB/s", "bandwidth: 1 GB/s")
    (tmp_path / "slow.yaml").write_text(slow)
    (tmp_path / "links.csv").write_text("time_s,infiniband\n0,1\n3600,0.02\n7200,1\n")
    each = {}
    for name in ("dgx-h100", str(tmp_path / "slow.yaml")):
        text = f"machine: {{system: {name}, nodes: 2}}\nhorizon: 1h\n{job}"
        each[name] = ran(tmp_path / "one.yaml", text, capsys)["workloads"]["job"]["steps"]
    fast, slower = each.values()
    assert slower < 0.8 * fast
    text = f"{MACHINE}horizon: 3h\n{job}events: {{links: links.csv}}\n"
    found = ran(tmp_path / "three.yaml", text, capsys)
    assert found["workloads"]["job"]["steps"] == pytest.approx(2 * fast + slower, abs=4)
    assert sum(found["account"]["device_ns"]["parts"]["job"].values()) == 3 * 3600 * 10**9 * 16
    for line, told in (
        ("3600,2\n", "a part of its bandwidth"),
        ("9,0.5\n8,1\n", "increase"),
        ("9,0.001\n", "at most 100 times"),
    ):
        (tmp_path / "links.csv").write_text(f"time_s,infiniband\n0,1\n{line}")
        assert main(["world", "run", str(tmp_path / "three.yaml")]) == 2
        assert told in capsys.readouterr().err
    (tmp_path / "chat.yaml").write_text(f"{MACHINE}workloads:\n{CHAT}events: {{links: links.csv}}\n")
    assert main(["world", "run", str(tmp_path / "chat.yaml")]) == 2
    assert "no workload feels links" in capsys.readouterr().err


def test_a_workflow_and_a_scaled_service_end_without_a_horizon(tmp_path, capsys):
    """Requests are answered before the rule looks again: nothing is released after the end."""
    text = (
        f"{MACHINE}workloads:\n  agents: {{workflow: swe_agent, models: {{planner: gpt2, worker: gpt2}}}}\n"
        "  chat: {serve: gpt2, replicas: 2..8, scale: 'queue:1..2,every=1s', rate: 40, count: 300}\n"
    )
    found = ran(tmp_path / "open.yaml", text, capsys, "-o", str(tmp_path / "out"))
    account = found["account"]["device_ns"]
    assert account["total"] == sum(sum(its.values()) for its in account["parts"].values())
    assert found["workloads"]["agents"]["sessions_done"] == found["workloads"]["agents"]["sessions"]
    assert main(["report", str(tmp_path / "out"), "-o", str(tmp_path / "out.html")]) == 0


def test_a_cap_and_a_horizon_below_a_minute(tmp_path, capsys):
    file = tmp_path / "short.yaml"
    file.write_text(f"machine: {{system: dgx-h100, nodes: 2, power: 9kW}}\nhorizon: 30s\nworkloads:\n{CHAT}")
    assert main(["world", "run", str(file)]) == 0


def test_rounds_that_have_ended_by_the_horizon_count(tmp_path, capsys):
    text = "workloads:\n  rounds: {federate: gpt2, clients: 2, link: 20Mb/s, step: 1s, rounds: 9}\n"
    whole = ran(tmp_path / "whole.yaml", MACHINE + text, capsys)
    each = whole["workloads"]["rounds"]["round_s"]["mean"]
    assert whole["horizon_s"] == pytest.approx(9 * each) and whole["workloads"]["rounds"]["rounds"] == 9
    short = f"{MACHINE}horizon: {3.5 * each}s\n{text}"
    found = ran(tmp_path / "short.yaml", short, capsys)
    its = found["workloads"]["rounds"]
    assert (its["rounds"], its["rounds_asked"], its["drawn"]) == (3, 9, 6) and not any(its["device_s"].values())
    assert ran(tmp_path / "none.yaml", f"{MACHINE}horizon: 1s\n{text}", capsys)["workloads"]["rounds"]["rounds"] == 0
    assert main(["world", "run", str(tmp_path / "short.yaml")]) == 0
    assert "3 of 9 rounds; p50" in capsys.readouterr().out


@pytest.mark.parametrize("more", ["seed: 3", "server_system: a10", "lora: 4, server_devices: 17", "rounds: 4, pace: 3"])
def test_rounds_that_say_what_the_machine_says_are_refused(tmp_path, capsys, more):
    text = f"{MACHINE}workloads:\n  rounds: {{federate: gpt2, clients: 2, link: 20Mb/s, {more}}}\n"
    (tmp_path / "bad.yaml").write_text(text)
    assert main(["world", "run", str(tmp_path / "bad.yaml")]) == 2
    assert "workloads: rounds" in capsys.readouterr().err


def test_images_feel_faults_and_say_so(tmp_path, capsys):
    (tmp_path / "faults.csv").write_text("time_s,name,effect,scope,node,nodes,duration_s\n3,node,stop,node,0,1,60\n")
    video = '{images: flux.1-dev, requests: "mix:512x512@20", rate: 8, count: 40, gpus: 8, degree: "fixed:1"}'
    (tmp_path / "one.yaml").write_text(
        f"{MACHINE}horizon: 2min\nworkloads:\n  videos: {video}\nevents: {{faults: faults.csv}}\n"
    )
    found = ran(tmp_path / "one.yaml", (tmp_path / "one.yaml").read_text(), capsys)
    its, parts = found["workloads"]["videos"], found["account"]["device_ns"]
    assert (its["finished"], its["failures"]) == (40, 1)
    assert its["begun_again"] == 8  # one on each device, as more come than are done
    assert parts["parts"]["videos"]["redo"] > 0
    assert sum(sum(one.values()) for one in parts["parts"].values()) == parts["total"]
    assert main(["world", "run", str(tmp_path / "one.yaml")]) == 0
    assert "1 nodes lost, 8 requests begun again" in capsys.readouterr().out


MONDAY = """
machine: {system: dgx-h100, nodes: 64, power: 600kW, regions: [sweden]}
horizon: 7d
workloads:
  pretrain: {train: llama3-70b, gpus: 256, tp: 8, pp: 4, checkpoint: [local:10min, peer:10min, store:2h],
             recover: spare}
  chat:     {serve: llama3-8b, replicas: 4..32, requests: azure.csv, slo: {ttft: 1s, tpot: 50ms}, scale: queue}
  agents:   {workflow: swe_agent, models: {planner: llama3-70b, coder: qwen3-32b}, rate: 0.2/s, cache: affinity}
  videos:   {images: wan2.1-14b, requests: dit.csv, degree: elastic}
  post:     {rl: qwen3-8b, rollouts: 64, lend_to: chat}
events: {faults: llama3, links: degraded.csv, prices: spot.csv, carbon: sweden}
policies: {place: pack, share: gavel, route: prefix, power: cap-training-first, mine: mine.py:preempt}
"""


def test_everything_in_one_file(tmp_path, capsys, monkeypatch):
    """All of it, for an hour instead of a week, on a clock: each workload does what it has, and the account adds up."""
    files = {
        "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:{k // 60:02}:{k % 60:02}.000,{100 + k},{9 + k % 70}\n" for k in range(300)),
        "dit.csv": "arrival,width,height,frames,steps\n0,832,480,81,50\n600,832,480,81,50\n",
        "degraded.csv": "time_s,infiniband\n0,1\n1800,0.5\n",
        "spot.csv": "time_s,price\n0,2\n1800,4\n",
        "mine.py": "def preempt(wanted, lenders, node_devices):\n    return {one.name: 1 for one in lenders[:1]}\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    found = ran(tmp_path / "monday.yaml", MONDAY.replace("7d", "1h"), capsys, "--trust")
    its, account = found["workloads"], found["account"]
    assert its["pretrain"]["steps"] > 900 and its["chat"]["finished"] == 300 and its["videos"]["finished"] == 2
    assert its["agents"]["sessions_done"] == its["agents"]["sessions"] == 24 and its["post"]["updates"] == 10
    assert its["post"]["samples"] == 640
    assert account["cost"]["total"] == pytest.approx(512 * 3)
    for kind in ("device_ns", "energy_mj"):
        assert account[kind]["total"] == sum(sum(parts.values()) for parts in account[kind]["parts"].values())
    assert found["power"]["cap_w"] == 600_000


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        ("{mine: preempt}", "`preempt` is not a function"),
        ("{mine: 'mine.py:preempt'}", "no workload gives nodes up"),
        ("{route: prefix}", "no workload has a cache and no router"),
    ],
)
def test_policies_that_would_decide_nothing_are_refused(tmp_path, capsys, policies, said):
    (tmp_path / "one.yaml").write_text(f"{MACHINE}workloads:\n{CHAT}policies: {policies}\n")
    assert main(["world", "run", str(tmp_path / "one.yaml")]) == 2
    assert said in capsys.readouterr().err


FUNCTIONS = """
model: qwen1.5-moe.yaml
system: dgx-a100
experts_per_function: 30
tenants: 2
every: 2min
duration: 10min
prompt: 8
output: 4
"""


def test_what_has_devices_of_its_own_is_as_its_command(tmp_path, capsys):
    """Functions of experts, and calls on devices of several kinds, on the clock of a machine of which they hold
    nothing; and what has ended by a moment."""
    for name in ("qwen1.5-moe.yaml", "workflows/mixed.yaml", "workflows/dags/report.yaml"):
        (tmp_path / Path(name).name).write_text((EXAMPLES / name).read_text())
    (tmp_path / "moe.yaml").write_text(FUNCTIONS)
    flow = tmp_path / "report.yaml"
    text = (
        f"{MACHINE}workloads:\n  calls: {{functions: moe.yaml}}\n"
        f"  flows: {{devices: mixed.yaml, workflow: {flow}, place: heft}}\n"
    )
    found = ran(tmp_path / "both.yaml", text, capsys, "-o", str(tmp_path / "out"))["workloads"]
    assert main(["fleet", "functions", str(tmp_path / "moe.yaml"), "--json"]) == 0
    wanted = json.loads(capsys.readouterr().out)
    for name in ("requests", "invocations", "cold", "latency_s", "instance_s", "of_full", "resident_byte_s"):
        assert found["calls"][name] == wanted[name], name
    args = ["serve", "devices", str(flow), "--devices", str(tmp_path / "mixed.yaml"), "--place", "heft", "--json"]
    assert main(args) == 0
    wanted = json.loads(capsys.readouterr().out)
    for name in ("makespan_s", "latency_s", "loads", "found_tokens", "fetch_s", "run_s"):
        assert found["flows"][name] == wanted[name], name
    assert found["calls"]["device_s"] == found["flows"]["device_s"] == {"busy": 0, "idle": 0}
    requests = pq.read_table(tmp_path / "out" / "calls_requests.parquet").to_pydict()
    half = ran(tmp_path / "half.yaml", f"{text}horizon: 200s\n", capsys)["workloads"]
    ended = [end for end in requests["end_s"] if end <= 200]
    assert (half["calls"]["finished"], half["calls"]["requests"]) == (
        len(ended), sum(came < 200 for came in requests["arrival_s"]),
    )  # fmt: skip
    assert ran(tmp_path / "short.yaml", f"{text}horizon: 1s\n", capsys)["workloads"]["flows"]["sessions_done"] == 0


def test_a_group_of_experts_is_as_its_command(tmp_path, capsys):
    text = f"{MACHINE}horizon: 2min\nworkloads:\n  group: {{experts: mixtral-8x7b, ep: 8, recover: shrink}}\n"
    (tmp_path / "faults.csv").write_text("time_s,name,effect,node,nodes,duration_s\n30,node,stop,1,1,60\n")
    found = ran(tmp_path / "one.yaml", f"{text}events: {{faults: faults.csv}}\n", capsys)
    args = "fleet experts mixtral-8x7b --ep 8 --system dgx-h100 --horizon 2min --json"
    assert main(args.split()) == 0
    wanted = json.loads(capsys.readouterr().out)
    its = found["workloads"]["group"]  # the other node fails
    for name in ("tokens", "step_s", "planned_tokens_per_s", "rank_bytes", "useful_s"):
        assert its[name] == wanted[name], name
    assert found["account"]["device_ns"]["parts"]["group"]["useful"] == pytest.approx(
        8 * its["useful_s"] * 1e9, rel=1e-6
    )
    assert main(["world", "run", str(tmp_path / "one.yaml")]) == 0
    assert "tokens/s; 0.0 s without tokens" in capsys.readouterr().out


def test_what_is_assumed_of_a_rule_is_said(tmp_path, capsys):
    for scale, said in (("queue", True), ("'queue:2..16'", False)):
        text = f"{MACHINE}workloads:\n  a: {{serve: gpt2, rate: 4, count: 9, replicas: 2..4, scale: {scale}}}\n"
        (tmp_path / "one.yaml").write_text(text)
        assert main(["world", "run", str(tmp_path / "one.yaml")]) == 0
        assert ("assumed: a rule of queue:2..16" in capsys.readouterr().err) == said


SERVED = {
    "chat": "serve: llama3-8b, tp: 8, replicas: 1, rate: 20, count: 60",
    "agents": "workflow: swe_agent, models: {planner: llama3-8b, worker: gpt2}",
    "videos": "images: flux.1-dev, requests: 'mix:1024x1024@9', rate: 8, count: 9, gpus: 8, degree: 'fixed:8'",
    "post": "rl: llama3-8b, nodes: 1, steps: 2, rollout: {samples: 8, tokens: 100, tp: 8}, "
    "train: {plan: {gpus: 8, tp: 8}}",
}
LATER = {"agents": 60, "post": 0.2}
"""When links change; 1 s of the others."""


@pytest.mark.parametrize("name", SERVED)
def test_passes_of_several_devices_take_what_their_links_allow(tmp_path, capsys, name):
    """With a tenth of NVLink from the start they take what they take on a system of the user's own that has no more;
    from a moment on the later ones take longer; and the network between nodes does not matter to them."""
    assert main(["systems", "show", "dgx-h100"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("bandwidth: 450 GB/s") == 1
    (tmp_path / "slow.yaml").write_text(shown.replace("bandwidth: 450 GB/s", "bandwidth: 45 GB/s"))
    figures, later = {}, f"0,1\n{LATER.get(name, 1)},0.1"
    for system, links in (("dgx-h100", ""), ("slow", ""), ("dgx-h100", "0,0.1"), ("dgx-h100", later)):
        text = f"workloads:\n  {name}: {{{SERVED[name]}}}\n"
        if links:
            (tmp_path / "links.csv").write_text(f"time_s,nvlink\n{links}\n")
            text += "events: {links: links.csv}\n"
        on = tmp_path / "slow.yaml" if system == "slow" else system
        found = ran(tmp_path / "one.yaml", f"machine: {{system: {on}, nodes: 2}}\n{text}", capsys)
        figures[system, links] = found["workloads"][name].get("latency_s", {"mean": found["horizon_s"]})
    fast, slow, early, late = figures.values()
    assert early == slow and fast["mean"] < late["mean"] < slow["mean"]
    (tmp_path / "links.csv").write_text("time_s,infiniband\n0,0.1\n")
    assert main(["world", "run", str(tmp_path / "one.yaml")]) == 2
    assert "no workload feels links" in capsys.readouterr().err
