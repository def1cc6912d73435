"""Local search against brute force: never better, and as good on small spaces."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from etude.decide.search.methods import METHODS, anneal, greedy_swap, neighbours
from etude.surface.cli import main

AXES = [[1, 2, 4], [1, 2, 4, 8], ["a", "b"]]


def test_neighbours_by_hand():
    found = neighbours((0, 2, 1), AXES)  # 1, 4, b
    assert found == [(1, 2, 1), (2, 2, 1), (0, 0, 1), (0, 1, 1), (0, 3, 1), (0, 2, 0), (2, 0, 1)]  # the last: 4, 1, b


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("seed", range(8))
def test_never_better_than_brute_force_and_mostly_as_good(method: str, seed: int):
    draw = np.random.default_rng(seed)
    worth = {p: float(v) for p, v in zip(product(range(3), range(4), range(2)), draw.random(24), strict=True)}
    worth[0, 0, 0] = np.inf
    asked: list[tuple[int, ...]] = []

    def score(points: list[tuple[int, ...]]) -> list[float]:
        asked.extend(points)
        return [worth[p] for p in points]

    best = METHODS[method](AXES, score, seed=seed)
    assert len(asked) == len(set(asked))
    assert worth[best] == min(worth[p] for p in asked)
    assert sorted(worth.values()).index(worth[best]) < 3
    again = METHODS[method](AXES, score, seed=seed)
    assert again == best


def test_a_slope_is_gone_down():
    def score(points: list[tuple[int, ...]]) -> list[float]:
        return [float((p[0] - 1) ** 2 + (p[1] - 3) ** 2 + p[2]) for p in points]

    assert greedy_swap(AXES, score) == anneal(AXES, score) == (1, 3, 0)


@pytest.mark.parametrize("method", ["greedy", "anneal"])
def test_commands_and_plans_have_them(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "space.yaml").write_text(
        "search: commands\nrun: predict gpt2 --gpus 8 --global-batch 8 --system dgx-h100 --json {flags}\n"
        "axes: {tp: [1, 2], zero: [0, 1]}\nwhen: tp * zero < 2\nscore: {step: step_time_ns}\n"
    )
    assert main(["search", str(tmp_path / "space.yaml"), "--method", method, "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    words = ["gpt2", "--gpus", "8", "--global-batch", "8", "--system", "dgx-h100", "--over", "tp=1|2,zero=0|1"]
    assert main(["search", *words, "--method", method, "--json"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert one["tried"] + one["pruned"] == one["space"] == other["space"] == other["tried"] + other["pruned"] == 4
    assert main(["search", *words, "--json"]) == 0
    exact = json.loads(capsys.readouterr().out)
    assert other["best"] == exact["best"]
    assert one["best"]["step"] >= exact["best"]["step_time_ns"]
