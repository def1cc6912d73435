"""`placement` among the axes of plans: the fastest of all placements of the best plans, as brute force finds it."""

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from etude.cost.stacks import open_stack
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.steps import predict
from etude.surface.cli import main

LEVELS = {
    "ring": "[{name: a, kind: ring, size: 4, bandwidth: 20GB/s, latency: 1us}]",
    "mesh": "[{name: a, kind: mesh, size: 2, bandwidth: 20GB/s, latency: 1us}, "
    "{name: b, kind: mesh, size: 2, bandwidth: 5GB/s, latency: 1us}]",
    "switch": "[{name: a, kind: switch, size: 4, bandwidth: 20GB/s, latency: 1us}]",
}
MODEL = "name: tiny\nfamily: decoder\nlayers: 2\nhidden: 1024\nheads: 8\nffn: 4096\nvocab: 1024\nseq: 256\n"
FIXED = {"gpus": 4, "global_batch": 4, "seq": 256}
AT = [{"tp": 2, "zero": 0, "order": "tp-cp-dp-pp"}, {"tp": 2, "zero": 0, "order": "dp-tp-cp-pp"}]


def system_file(folder: Path, kind: str) -> str:
    path = folder / f"{kind}.yaml"
    path.write_text(f"name: {kind}\ndevice: tpu-v5e\nlevels: {LEVELS[kind]}\n")
    return str(path)


def by_hand(model: str, system: str, given: dict[str, Any]) -> list[int]:
    """The step with each of the 24 placements, the order of the numbers first."""
    machine, stack = open_system(system), open_stack("default")
    seats = permutations(range(4))
    return [
        predict(open_model(model), Plan.from_dict({**FIXED, **given}), machine.replace(placement=p), stack=stack,
                check=False, network="flow").step_time_ns
        for p in seats
    ]  # fmt: skip


def searched(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["search", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "tiny.yaml").write_text(MODEL)
    return str(tmp_path / "tiny.yaml")


@pytest.mark.parametrize("kind", ["ring", "mesh"])
def test_the_best_is_that_of_brute_force(kind: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    system = system_file(tmp_path, kind)
    words = [model, "--system", system, "--gpus", "4", "--global-batch", "4", "--seq", "256", "--tp", "2"]
    found = searched([*words, "--over", "order=tp-cp-dp-pp|dp-tp-cp-pp,zero=0,placement"], capsys)
    times = [by_hand(model, system, given) for given in AT]
    best = found["best"]
    assert best["step_time_ns"] == min(map(min, times))
    # Ranks by number are not the best for both orders, so that there is something to find.
    assert max(t[0] for t in times) > min(map(min, times))
    assert sorted(best["placement"]) == [0, 1, 2, 3]
    given = AT[[at["order"] for at in AT].index(best["order"])]
    assert by_hand(model, system, given)[list(permutations(range(4))).index(tuple(best["placement"]))] == min(
        map(min, times)
    )
    assert {(p["step_time_ns"], p["unplaced_ns"]) for p in found["placements"]} == {(min(t), t[0]) for t in times}
    assert found["tried"] + found["pruned"] == found["space"] == 2


def test_on_one_switch_every_placement_is_the_same(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    system = system_file(tmp_path, "switch")
    words = [model, "--system", system, "--gpus", "4", "--global-batch", "4", "--seq", "256", "--over", "tp=2"]
    plain = searched([*words, "--network", "flow"], capsys)
    found = searched([words[0], *words[1:-1], "tp=2,placement"], capsys)
    assert [p["simulated"] for p in found["placements"]] == [1]
    assert [p["gain"] for p in found["placements"]] == [1.0]
    assert {k: found["best"][k] for k in plain["best"]} == plain["best"]
    assert len(set(by_hand(model, system, {"tp": 2}))) == 1


def test_a_file_says_the_same_with_two_workers(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    system_file(tmp_path, "ring")
    (tmp_path / "space.yaml").write_text(
        "search: plans\nmodel: tiny.yaml\nsystem: ring.yaml\ngpus: 4\nplan: {global_batch: 4, seq: 256, tp: 2}\n"
        "over: [zero, placement]\n"
    )
    one = searched([str(tmp_path / "space.yaml")], capsys)
    assert (
        searched([str(tmp_path / "space.yaml"), "-j", "2", "-o", str(tmp_path / "out")], capsys)["best"] == one["best"]
    )
    assert len(one["placements"]) == 3
    assert "placement" in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--over", "tp=2,placement", "--network", "analytic"], "cannot rank placements"),
        (["--over", "tp=2,placement=1|2"], "does not take values"),
    ],
)
def test_what_is_wrong_is_told(words: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["search", "gpt2", "--gpus", "4", "--system", "dgx-h100", *words]) == 2
    assert told in capsys.readouterr().err
