"""Searching patterns of workflows: the space by hand, cascades from their parts, prices by hand, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from etude.decide.search import search
from etude.decide.search.spaces.workflows import PATTERNS
from etude.surface.cli import main
from etude.world.serve.workflow import open_workflow

MODELS = {"llama3-8b": {"input": 10.0, "output": 100.0}, "qwen3-8b": {"input": 1.0, "output": 2.0}}


def written(folder: Path, **keys: Any) -> Path:
    space = {"search": "workflows", "models": MODELS, "sessions": 12, "rate": 0.0001, "system": "dgx-h100"} | keys
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in space.items() if v is not None}))
    return path


def test_a_cascade_is_its_parts(tmp_path: Path):
    """600 tokens in at 10 and 250 out at 100 a million are 0.031; of the other model 0.0011."""
    found = search(written(tmp_path, patterns=["single", "cascade"]), seed=2)
    rows = {(row["pattern"], row["models"]): row for row in found.rows}
    assert found.space == found.tried == len(rows) == 2 + 4
    assert rows["single", "llama3-8b"]["cost"] == pytest.approx(0.031)
    assert rows["single", "qwen3-8b"]["cost"] == pytest.approx(0.0011)
    for one in MODELS:
        for two in MODELS:
            row = rows["cascade", f"{one},{two}"]
            again = row["model_calls"] - 1
            assert 0 < again < 1
            for score in ("latency", "cost"):
                parts = rows["single", one][score] + again * rows["single", two][score]
                assert row[score] == pytest.approx(parts, rel=1e-9)


def test_the_frontier_is_what_no_other_beats(tmp_path: Path):
    found = search(written(tmp_path, patterns=["single", "cascade", "router"]))
    front = {(row["pattern"], row["models"]) for row in found.frontier}
    for row in found.rows:
        beaten = any(
            other["latency"] <= row["latency"] and other["cost"] <= row["cost"] and other is not row
            and (other["latency"], other["cost"]) != (row["latency"], row["cost"])
            for other in found.rows
        )  # fmt: skip
        assert ((row["pattern"], row["models"]) in front) is not beaten
    assert found.best["latency"] == min(row["latency"] for row in found.rows)
    assert found.more["patterns"] == {"single": 2, "cascade": 4, "router": 8}


def test_every_pattern_comes_with_etude():
    roles = {name: len(open_workflow(name).models) for name in PATTERNS}
    assert roles == {
        "single": 1, "cascade": 2, "router": 3, "ensemble": 2, "retrieval": 1, "tool": 2, "decompose": 2, "verify": 2,
        "cache": 1,
    }  # fmt: skip


def test_files_limits_and_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine").mkdir()
    for name, tokens in (("short", 10), ("long", 20)):
        task = {"model": "m", "message": 100, "output": tokens}
        flow = {"models": {"m": "llama3-8b"}, "tasks": {"ask": task}}
        (tmp_path / "mine" / f"{name}.yaml").write_text(yaml.safe_dump(flow))
    space = written(tmp_path, patterns="mine/*.yaml", limits={"dear": "cost <= 0.0025"}, sessions=2)
    assert main(["search", str(space), "--json", "--set", "score=cost"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["space"], said["tried"], said["pruned_why"]) == (4, 3, {"dear": 1})  # 100 in and 20 out: 0.003
    assert [row["cost"] for row in said["rows"]] == pytest.approx([0.00012, 0.00014, 0.002])


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"patterns": ["nothing"]}, "there is no such workflow"),
        ({"patterns": ["no/*.yaml"]}, "no file matches"),
        ({"patterns": []}, "patterns: []"),
        ({"patterns": ["cascade", "cascade"]}, "two patterns have the name `cascade`"),
        ({"models": {}}, "no `models`"),
        ({"models": {"llama3-8b": {"colour": 1}}}, "unknown key `colour`"),
        ({"score": ["beauty"]}, "score: ['beauty']"),
        ({"limits": [1]}, "limits: [1]"),
        ({"rate": "soon"}, "rate"),
        ({"colour": 1}, "unknown key `colour`"),
        ({"models": {"no-such-model": {}}, "patterns": ["single"]}, "no candidate is left"),
    ],
)
def test_what_is_wrong_is_told(keys: dict[str, Any], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["search", str(written(tmp_path, **keys))]) == 2
    err = capsys.readouterr().err
    assert told in err and "Traceback" not in err
