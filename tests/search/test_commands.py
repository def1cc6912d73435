"""Searching axes of a command: the best, the frontier, what was left out and why."""

import json
from pathlib import Path

import pytest

from etude.decide.search.found import frontier
from etude.surface.cli import main

SPACE = """
search: commands
run: predict gpt2 --gpus 8 --global-batch 8 --system dgx-h100 --json {flags}
axes: {tp: [1, 2, 4], pp: [1, 2]}
when: tp * pp <= 4
score: {step: step_time_ns, memory: memory_peak_bytes}
"""


def test_the_best_is_the_least_of_all_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "space.yaml").write_text(SPACE)
    assert main(["search", str(tmp_path / "space.yaml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["search", str(tmp_path / "space.yaml"), "-j", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert found["space"] == 6
    assert found["tried"] == 5
    assert found["pruned"] == 1
    assert found["pruned_why"] == {"when": 1}
    best = found["best"]
    words = ["predict", "gpt2", "--gpus", "8", "--global-batch", "8", "--system", "dgx-h100", "--json"]
    assert main([*words, "--tp", str(best["tp"]), "--pp", str(best["pp"])]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_ns"] == best["step"]
    assert best["step"] == min(row["step"] for row in found["rows"])


def test_a_frontier_by_hand():
    rows = [{"a": 1, "b": 5}, {"a": 2, "b": 5}, {"a": 3, "b": 1}, {"a": 3, "b": 1}, {"a": 4, "b": 4}]
    assert frontier(rows, {"a": 1, "b": 1}) == [{"a": 1, "b": 5}, {"a": 3, "b": 1}]
    assert frontier(rows, {"a": -1, "b": 1}) == [{"a": 4, "b": 4}, {"a": 3, "b": 1}]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("search: nothing\n", "unknown kind `nothing`"),
        ("run: x\n", "no key `search`"),
        ("search: commands\n", "`run`, `axes` and `score` are needed"),
        ("search: [\n", "not YAML"),
        (SPACE + "more: 1\n", "unknown key `more`"),
        (SPACE + "limits: {none: step < 0}\n", "no candidate is left"),
    ],
)
def test_what_is_wrong_is_told(text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "space.yaml").write_text(text)
    assert main(["search", str(tmp_path / "space.yaml")]) == 2
    assert told in capsys.readouterr().err
