"""What every kind of `etude fleet` says: the same keys, times that add up, and a folder that others read."""

import json
from pathlib import Path

import pytest

from etude.surface.cli import main

KEYS = {
    "duration_s", "useful_s", "useful_fraction", "goodput_tokens_per_s", "interruptions", "lost_s", "jobs", "energy_j",
    "cost",
}  # fmt: skip
LOST = {"detect", "restart", "redo", "checkpoint", "degraded", "idle"}
NODES = "nodes: [{name: own, gpus: 8, price: 2}, {name: serving, gpus: 2, price: 2}, {name: rest, gpus: 4, price: 2}]\n"
ROLL = "samples: 16, turns: 2, tokens: 40, spread: 0.3, at_once: 8, step_ns: {1: 10ms, 8: 14ms}"
STREAM = (
    "streams: [{name: chat, nodes: serving, model: gpt2, system: dgx-h100, rate: 20, count: 40, prompt: 64, "
    "output: 20, slo: {tpot: 50ms}}]\n"
)
JOBS = "jobs: [{name: a, gpus: 4, duration_s: 3}, {name: b, arrival_s: 1, gpus: 8, duration_s: 2}]\n"
RL = f"rl: {{steps: 2, rollout: {{nodes: own, {ROLL}}}, train: {{nodes: own, time: 1s}}}}\n"
FILES = {
    "pool": NODES + JOBS,
    "rl": NODES + RL,
    "rl beside a stream": NODES + STREAM + RL,
    "lent": NODES + STREAM + RL.replace("nodes: own, samples", "nodes: [own, borrowed], samples")
    + "borrow: {stream: chat, share: 0.5, every: 250ms, calm: 0s}\n",
    "jobs and a stream": NODES + STREAM + JOBS,
    "jobs and rl": NODES + RL + JOBS,
    "all": NODES + STREAM + RL.replace("nodes: own, samples", "nodes: [own, borrowed], samples") + JOBS
    + "borrow: {stream: chat, share: 0.5, every: 250ms, calm: 0s}\n",
    "services": "system: dgx-a100\nservices: [{model: mobilenet-v2, exits: 2}]\nload: 0.7\nbatch: 2\ncount: 60\n",
    "backbone": "system: dgx-a100\nbackbone: mobilenet-v2\ntasks: 2\nload: 0.7\nbatch: 2\ncount: 60\n",
    "slices": "system: dgx-a100\nbackbone: mobilenet-v2\ntasks: 2\nload: 0.3\nbatch: 2\ncount: 60\npolicy: partition\n",
    "functions": "model: qwen1.5-moe.yaml\nsystem: dgx-a100\nexperts_per_function: 30\nevery: 1min\nduration: 5min\n"
    "prompt: 4\noutput: 2\n",
    "no calls": "model: qwen1.5-moe.yaml\nsystem: dgx-a100\nexperts_per_function: 30\nevery: 100h\nduration: 1min\n",
}  # fmt: skip
ROOT = Path(__file__).parents[2]
TRAINED = (
    "gpt2 --gpus 16 --system dgx-h100 --days 1 --faults node:mtbf=20h,repair=1h --checkpoint remote:10min "
    "--recover spare --spares 1"
)
GROUP = (
    "{moe} --serve --gpus 4 --ep 4 --system dgx-h100 --sequences 4 --context 64 --fail rank1@3s "
    "--recover shrink --detect 1s --regroup 1s --replace 2s --horizon 10s"
)


def asked(kind: str, place: Path) -> list[str]:
    moe = ROOT / "examples" / "qwen1.5-moe.yaml"
    if kind in ("a job", "a group"):
        return ["fleet", *(TRAINED if kind == "a job" else GROUP.format(moe=moe)).split()]
    if kind == "radio":
        return ["fleet", str(ROOT / "examples/airan.yaml")]
    if kind == "a cluster":
        return ["fleet", str(ROOT / "examples/cluster.yaml"), "--jobs", str(ROOT / "examples/jobs.csv")]
    (place / "file.yaml").write_text(FILES[kind].replace("qwen1.5-moe.yaml", str(moe)))
    return ["fleet", str(place / "file.yaml")]


@pytest.mark.parametrize("kind", ["a job", "a group", "a cluster", "radio", *FILES])
def test_times_add_up_and_folders_are_read(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ask = asked(kind, tmp_path)
    assert main([*ask, "-o", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= KEYS and set(found["lost_s"]) == LOST and isinstance(found["jobs"], list)
    assert found["useful_s"] + sum(found["lost_s"].values()) == pytest.approx(found["duration_s"], rel=1e-9)
    assert found["useful_fraction"] == pytest.approx(found["useful_s"] / found["duration_s"])
    assert min(found["useful_s"], *found["lost_s"].values()) >= 0
    place = str(tmp_path / "out")
    rows = "members" if kind == "radio" else "jobs"
    assert main(["query", place, f"select count(*) as n from {rows}", "--csv"]) == 0
    assert int(capsys.readouterr().out.split()[1]) >= 1
    assert main(["compare", place, place, "--json"]) == 0
    ratios = {row["measure"]: row["ratio"] for row in json.loads(capsys.readouterr().out)["measures"]}
    assert ratios["duration_s"] == 1
    assert main(["report", place, "-o", str(tmp_path / "page.html")]) == 0
    assert main(["report", place, place, "-o", str(tmp_path / "pages.html")]) == 0


@pytest.mark.parametrize("kind", ["jobs and a stream", "jobs and rl", "all"])
def test_device_time_of_all_is_that_of_the_nodes(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*asked(kind, tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    parts = found["device_s"]
    held = parts["useful"] + parts["redone"] + parts["set_up"] + parts["idle"]
    assert held == pytest.approx(parts["there"]) == pytest.approx(14 * found["duration_s"])
    # every node costs two dollars an hour from the first instant to the last
    assert found["cost"] == pytest.approx(14 * 2 * found["duration_s"] / 3600)


def test_jobs_have_the_other_nodes_and_then_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*asked("jobs and rl", tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    alone = asked("rl", tmp_path)
    assert main([*alone, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)["duration_s"]
    ends = {row["name"]: row["end_s"] for row in found["jobs"]}
    # `a` has the four devices of `rest`; `b` needs eight, and they are of `own` until the last update
    assert found["rl_s"] == done and ends["a"] == 3 and ends["b"] == pytest.approx(done + 2)


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "p.yaml"
    path.write_text(NODES + STREAM)
    assert main(["fleet", str(path)]) == 2 and "etude serve" in capsys.readouterr().err
    path.write_text(NODES + RL)
    assert main(["fleet", str(path), "--policy", "fifo"]) == 2 and "the file has none" in capsys.readouterr().err
    path.write_text(NODES + STREAM.replace("nodes: serving", "nodes: own") + RL + JOBS)
    assert main(["fleet", str(path)]) == 2 and "same nodes" in capsys.readouterr().err
