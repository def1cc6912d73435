"""What a fleet or rounds do not read is refused by name, with exit code 2; old spellings mean the verbs of today."""

import json
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.surface.cli.fleet import meant
from etude.world.fleet.federated import Swarm

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHARE = "fleet cluster.yaml --jobs jobs.csv"
TRAIN = "fleet gpt2 --gpus 16 --system dgx-h100 --days 1"
STRUCK = f"{TRAIN} --faults node:mtbf=200h,repair=4h"
GROUP = "fleet experts mixtral-8x7b --ep 8 --system dgx-h100"
ROUNDS = "federate gpt2 --clients clients.csv --rounds 2"
DRAWN = "federate gpt2 --clients 8 --link 1Gb/s --rounds 2"
REFUSED = [
    *((SHARE, flag) for flag in (
        "--days 3", "--faults llama3", "--checkpoint local:10min", "--recover spare", "--spares 4", "--tp 8",
        "--gpus 512", "--price 2", "--retry auto:p=1,every=1h", "--migrate 2s", "--load 1", "--redundant 8",
    )),
    (SHARE, "--seed 3"), (SHARE, "--switch 30s"), (f"{SHARE} --policy fair", "--switch 30s"),
    ("fleet pool.yaml", "--first 3"), ("fleet pool.yaml", "--seed 3"), ("fleet pool.yaml", "--faults llama3"),
    ("fleet rl.yaml", "--policy fifo"), ("fleet rl.yaml", "--switch 3s"),
    *((f"fleet {file}", flag) for file in ("edge.yaml", "backbone.yaml", "moe.yaml", "airan.yaml") for flag in (
        "--switch 3s", "--first 3", "--days 3", "--gpus 8"
    )),
    ("fleet moe.yaml", "--policy fifo"), ("fleet airan.yaml --policy static", "--migrate 3s"),
    *((TRAIN, flag) for flag in (
        "--recover spare", "--spares 4", "--detect 3s", "--restart 3s", "--regroup 3s", "--no-reintegrate", "--eject",
        "--retry auto:p=1,every=1h", "--seed 3", "--policy fifo", "--switch 3s", "--load 1", "--redundant 8",
        "--fail rank7@60s", "--jobs-per-node 3", "--moe-skew 1.5", "--cp-kind ulysses",
    )),
    *((STRUCK, flag) for flag in ("--regroup 3s", "--no-reintegrate", "--eject")),
    (f"{STRUCK} --recover spare", "--restart 3s"), (f"{STRUCK} --recover spare", "--no-reintegrate"),
    (f"{STRUCK} --recover spare", "--retry auto:p=1,every=1h"),
    (f"{STRUCK} --recover shrink", "--restart 3s"),
    *((GROUP, flag) for flag in (
        "--recover shrink", "--detect 3s", "--restart 3s", "--regroup 3s", "--replace 3s", "--host-copies all",
        "--storage 2GB/s", "--no-reintegrate", "--spares 4", "--eject", "--tp 2", "--faults llama3", "--days 3",
        "--seed 3", "--stack eager",
    )),
    *((f"{GROUP} --fail rank7@60s", flag) for flag in ("--regroup 3s", "--replace 3s", "--no-reintegrate")),
    (f"{GROUP} --fail rank7@60s --recover shrink --replace 3s", "--restart 3s"),
    *((ROUNDS, flag) for flag in (
        "--server 0Gb/s", "--deadline 0s", "--sample weighted", "--parts 7", "--leave", "--seed 3", "--link 1Gb/s",
        "--up 1Gb/s", "--step 3s", "--available 0.5", "--away 3", "--chunk 1MB", "--warmup 0.2", "--lag 3s",
        "--peers 4", "--lora 16", "--lora-cut 4", "--server-system a10", "--server-devices 2", "--seq 256",
        "--lengths dirichlet", "--share mail",
    )),
    (f"{ROUNDS} --train full", "--parts 7"), (f"{ROUNDS} --share server", "--chunk 1MB"),
    (DRAWN, "--away 3"), (DRAWN, "--micro-batch 3"), (DRAWN, "--leave"),
    *((f"{DRAWN} --share swarm", flag) for flag in (
        "--warmup 0.2", "--lag 3s", "--quorum 2", "--server 1Gb/s", "--train share:0.3", "--parts 7",
    )),
    (f"{ROUNDS} --split 8 --lora 4", "--lora-cut 8"), (f"{ROUNDS} --split 8 --lora 4", "--chunk 1MB"),
]  # fmt: skip


@pytest.mark.parametrize(("base", "flag"), REFUSED)
def test_what_is_not_read_is_refused_by_name(
    base: str, flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(EXAMPLES)
    assert main([*base.split(), *flag.split(), "--json"]) == 2
    assert flag.split()[0].replace("--no-", "--") in capsys.readouterr().err


OLD = {
    "llama3-8b --gpus 8": "fleet train",
    "cluster.yaml --jobs jobs.csv": "fleet share",
    "--jobs=jobs.csv cluster.yaml": "fleet share",
    "pool.yaml": "fleet share",
    "--json rl.yaml": "fleet share",
    "edge.yaml": "fleet services",
    "backbone.yaml": "fleet backbone",
    "airan.yaml --load 0.5..1.2": "fleet radio",
    "moe.yaml --seed 1": "fleet functions",
    "qwen1.5-moe.yaml --gpus 8": "fleet train",
    "gpt2 --faults faults.yaml": "fleet train",
    "": "",
    "--help": "",
}


@pytest.mark.parametrize("words", OLD)
def test_an_old_spelling_is_a_verb_of_today(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    assert meant(words.split()) == OLD[words]
    assert meant(["m", "--serve", "--ep", "4"]) == ("fleet experts", ["m", "--ep", "4"])


def test_python_refuses_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    job: dict[str, Any] = {"model": "gpt2", "system": "dgx-h100", "gpus": 16, "days": 1}
    for given, name in (
        ({"model": "pool.yaml", "first": 3}, "first"),
        ({"model": "cluster.yaml", "jobs": "jobs.csv", "seed": 3}, "seed"),
        ({"model": "cluster.yaml", "jobs": "jobs.csv", "system": "dgx-h100"}, "system"),
        (job | {"spares": 4}, "spares"),
        (job | {"detect_ns": 1e9}, "detect"),
        (job | {"seed": 4}, "seed"),
        (job | {"faults": "llama3", "regroup_ns": 1e9}, "regroup"),
        (job | {"price": 2.0}, "price"),
    ):
        with pytest.raises(UsageError, match=f"`{name}`"):
            etude.fleet(**given)


def test_rounds_of_python_refuse_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"sample": "weighted"}, "sample"), ({"server_bytes_per_s": 0.0}, "server"), ({"parts": 7}, "parts"),
        ({"seed": 3}, "seed"), ({"swarm": Swarm(), "quorum": 2}, "quorum"), ({"deadline_s": 0.0}, "deadline"),
    ]  # fmt: skip
    for given, name in cases:
        with pytest.raises(UsageError, match=f"`{name}`"):
            etude.extend.federate("gpt2", "clients.csv", rounds=2, **given)
    found = etude.extend.federate("gpt2", "clients.csv", rounds=2, count=2, seed=3, deadline_s=600.0)
    assert found.summary()["rounds"] == 2


def test_rounds_that_nobody_answers_say_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(EXAMPLES)
    assert main([*ROUNDS.split(), "--deadline", "1ms", "--json"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found["answered"] == 0 and 0 < found["down_bytes"] < found["model_bytes"]
    assert "no client answered in any of the 2 rounds" in told.err and "the fastest client needs" in told.err
    assert main([*ROUNDS.split(), "--deadline", "1ms"]) == 0
    assert "no answer was in time" in capsys.readouterr().out


def test_force_is_f_and_what_is_there_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(EXAMPLES)
    out = str(tmp_path / "out")
    words = [*SHARE.split(), "--policy", "las", "-o", out]
    assert main(words) == 0
    assert main(words) == 2 and "exists already" in capsys.readouterr().err
    assert main([*words, "-f"]) == 0
    asked = json.loads((tmp_path / "out" / "fleet.json").read_text())["asked"]
    assert asked == {"cluster": "cluster.yaml", "jobs": "jobs.csv", "policy": "las"}
