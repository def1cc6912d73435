"""Searches by several workers: the same answer, kept in a folder; methods that go step by step say that they do."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from etude.decide.study.functions import calls, staying
from etude.decide.study.team import Team, forks
from etude.surface.cli import main

PLACES = """
search: placement
model: gpt2
layers: 1
plan: {gpus: 4, seq: 64, global_batch: 4}
shardings: {tp: [1, 2], pp: [1, 2]}
system: line.yaml
tries: 4
"""
LINE = "name: line\ndevice: tpu-v5e\nlevels: [{name: ici, kind: mesh, size: 4, bandwidth: 100GB/s}]\n"
PARTS = """
search: shares
model: llama3.2-1b
layers: 1
plan: {gpus: 4, cp: 4, seq: 32768, global_batch: 1, zero: 3, recompute: full, cp_map: zigzag}
system: mix.yaml
unit: 1024
"""
MIX = """
name: mix
devices: {fast: 0-1, slow: 2-3}
kinds:
  fast: {name: Fast, peak: {bf16: 300T}, memory: 80GB, memory_bandwidth: 2TB/s}
  slow: {name: Slow, peak: {bf16: 100T}, memory: 80GB, memory_bandwidth: 2TB/s}
levels: [{name: node, kind: switch, size: 4, bandwidth: 300GB/s}]
"""
COMMANDS = """
search: commands
run: predict gpt2 --gpus 4 --global-batch 4 --seq 64 --system dgx-h100 --json {flags}
axes: {tp: [1, 2], zero: [0, 1]}
score: {step: step_time_ns}
"""


def searched(folder: Path, text: str, *words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (folder / "line.yaml").write_text(LINE)
    (folder / "space.yaml").write_text(text)
    assert main(["search", str(folder / "space.yaml"), "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_plans_are_placed_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    one = searched(tmp_path, PLACES, "--method", "greedy", capsys=capsys)
    out = tmp_path / "out"
    assert searched(tmp_path, PLACES, "--method", "greedy", "-j", "2", "-o", str(out), capsys=capsys) == one
    assert (out / "index.html").exists()
    kept = (out / "results.parquet").read_bytes()
    assert searched(tmp_path, PLACES, "--method", "greedy", "-o", str(tmp_path / "two"), capsys=capsys) == one
    assert searched(tmp_path, PLACES, "--method", "greedy", "-j", "2", "-o", str(out), capsys=capsys) == one
    assert (out / "results.parquet").read_bytes() == kept


def test_all_placements_of_one_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = PLACES.replace("shardings: {tp: [1, 2], pp: [1, 2]}", "").replace("gpus: 4,", "gpus: 4, pp: 4,")
    text = text.replace("layers: 1", "layers: 4")
    one = searched(tmp_path, text, capsys=capsys)
    assert one["method"] == "all"
    assert searched(tmp_path, text, "-j", "2", capsys=capsys) == one
    assert main(["search", str(tmp_path / "space.yaml"), "--method", "greedy", "-j", "2"]) == 2
    assert "`greedy` simulates one candidate after another" in capsys.readouterr().err


def test_shares_by_two_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mix.yaml").write_text(MIX)
    one = searched(tmp_path, PARTS, "--method", "all", capsys=capsys)
    out = tmp_path / "out"
    assert searched(tmp_path, PARTS, "--method", "all", "-j", "2", "-o", str(out), capsys=capsys) == one
    assert (out / "results.parquet").exists()
    assert main(["search", str(tmp_path / "space.yaml"), "--method", "greedy", "--ray", "auto"]) == 2
    assert "--ray: `greedy` simulates one candidate after another" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["greedy", "anneal"])
def test_local_methods_over_commands_keep_what_they_asked(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["--method", method, "-o", str(tmp_path / "out")]
    one = searched(tmp_path, COMMANDS, *words, capsys=capsys)
    import pyarrow.parquet as pq

    kept = pq.read_table(tmp_path / "out" / "results.parquet")
    assert kept.num_rows == one["tried"]
    assert searched(tmp_path, COMMANDS, *words, capsys=capsys) == one
    assert pq.read_table(tmp_path / "out" / "results.parquet").equals(kept)


# -- processes that stay ----------------------------------------------------------------------------------------------


def where(a: int, marker: str = "") -> dict[str, int]:
    """The process that answers; the first that is asked for 3 dies if there is a marker."""
    if a == 3 and marker and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"a": a, "process": os.getpid()}


def opened(packed: bytes) -> Any:
    return lambda at: {"answers": [where(**at)], "error": ""}


def by_tens(at: Any) -> int | None:
    return at["a"] // 10 if at["a"] < 100 else None


def test_a_family_stays_with_one_process():
    team = Team(opened, b"", 2, by_tens)
    try:
        homes: dict[int, set[int]] = {}
        for _ in range(2):
            points = [{"a": a} for a in (0, 1, 10, 11, 2, 12)]
            for number, answer in team.run(points, []):
                homes.setdefault(points[number]["a"] // 10, set()).add(answer["answers"][0]["process"])
        # A process without work may take from another, so that a family may be in both; but both families are done.
        assert set(homes) == {0, 1}
        lost: list[int] = []
        long = dict(team.run([{"a": 100}, {"a": 101}, {"a": 102}], lost))
        assert sorted(long) == [0, 1, 2]
        assert lost == []
    finally:
        team.close()


def test_what_a_dead_process_had_is_done_again(tmp_path: Path):
    shared = {"marker": str(tmp_path / "died")}
    with staying(where, shared, 2) as run:
        some = calls(where, [{"a": a} for a in range(6)], shared)
        first = {call.at["a"]: answer for call, answer in run(some)}
        again = {call.at["a"]: answer for call, answer in run(some)}
    assert Path(shared["marker"]).exists()
    for found in (first, again):
        assert sorted(found) == list(range(6))
        assert all(json.loads(answer["answers"][0]["out"])["a"] == a for a, answer in found.items())


def test_a_process_with_threads_is_not_forked():
    import threading

    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        assert not forks()
    finally:
        stop.set()
        other.join()
