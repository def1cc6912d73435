"""Searching axes of a scenario: each row is what the world with these keys comes to by itself."""

import json
from pathlib import Path

import pytest
import yaml

from etude.surface.cli import main

SCENARIO = {
    "machine": {"system": "dgx-h100", "nodes": 1},
    "horizon": "20s",
    "workloads": {"chat": {"serve": "gpt2", "rate": 200, "count": 2000, "replicas": 1}},
}
SPACE = """
search: world
scenario: scenario.yaml
axes: {workloads.chat.replicas: [1, 2, 4], workloads.chat.max_num_seqs: [4, 256]}
when: replicas < 4 or max_num_seqs > 4
score: {wait: workloads.chat.ttft_s.p99, energy: account.energy_mj.total}
"""


def files(folder: Path, space: str = SPACE) -> str:
    (folder / "scenario.yaml").write_text(yaml.safe_dump(SCENARIO))
    (folder / "space.yaml").write_text(space)
    return str(folder / "space.yaml")


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(words) == 0
    return json.loads(capsys.readouterr().out)


def test_rows_are_those_of_worlds_run_by_themselves(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = printed(["search", files(tmp_path), "--json"], capsys)
    assert (found["tried"], found["space"], found["pruned_why"]) == (5, 6, {"when": 1})
    for row in found["rows"]:
        own = SCENARIO | {
            "workloads": {"chat": SCENARIO["workloads"]["chat"] | {k: row[k] for k in ("replicas", "max_num_seqs")}}
        }
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(own))
        record = printed(["world", "run", str(tmp_path / "own.yaml"), "--json"], capsys)
        assert row["wait"] == record["workloads"]["chat"]["ttft_s"]["p99"]
        assert row["energy"] == record["account"]["energy_mj"]["total"]
    assert found["best"]["wait"] == min(row["wait"] for row in found["rows"])
    assert printed(["search", files(tmp_path), "--json", "-j", "2"], capsys) == found
    greedy = printed(["search", files(tmp_path), "--json", "--method", "greedy"], capsys)
    assert greedy["best"]["wait"] >= found["best"]["wait"]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("chat.max_num_seqs: [4, 256]", "chat.max_seqs: [4]", "max_seqs"),
        ("workloads.chat.max_num_seqs", "machine.replicas", "two axes have the same last word"),
        ("workloads.chat.max_num_seqs", "horizon.seqs", "`horizon` of `horizon.seqs` has no keys"),
        ("ttft_s.p99", "ttft_s.p98", "p98"),
        ("scenario: scenario.yaml", "scenario: no.yaml", "file `no.yaml` does not exist"),
    ],
)
def test_what_is_wrong_is_told(before: str, after: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    space = SPACE.replace(before, after).replace("when: replicas < 4 or max_num_seqs > 4\n", "")
    assert main(["search", files(tmp_path, space)]) == 2
    assert told in capsys.readouterr().err
