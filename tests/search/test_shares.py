"""Unequal parts of a sequence: sums, equal parts on equal devices, the best of all by hand, memory that holds."""

import json
from pathlib import Path

import pytest

from etude.decide.search.class_shares import Whole
from etude.decide.search.request import SearchRequest
from etude.decide.search.run import read_space, solve
from etude.decide.search.spaces.shares import BOUND, LEFT, MEMORY, read_shares
from etude.make.generate import generate
from etude.run.simulate import simulate
from etude.surface.cli import main

MIX = """
name: mix
devices: {fast: 0-1, slow: 2-3}
kinds:
  fast: {name: Fast, peak: {bf16: 300T}, memory: MEMORY, memory_bandwidth: 2TB/s}
  slow: {name: Slow, peak: {bf16: 100T}, memory: 80GB, memory_bandwidth: 2TB/s}
levels: [{name: node, kind: switch, size: 4, bandwidth: 300GB/s}]
"""
SPACE = """
search: shares
model: llama3.2-1b
layers: 1
plan: {gpus: 4, cp: 4, seq: 32768, global_batch: 1, zero: 3, recompute: full, cp_map: zigzag}
system: mix.yaml
unit: 1024
tries: 40
"""


def space(folder: Path, *, memory: str = "80GB", system: str = MIX, text: str = SPACE) -> Path:
    (folder / "mix.yaml").write_text(system.replace("MEMORY", memory))
    (folder / "space.yaml").write_text(text)
    return folder / "space.yaml"


def found(file: Path, method: str = "all", **changed: object):
    return solve(read_space(file, changed), SearchRequest(method=method))


def test_all_is_the_best_of_every_cut_by_hand(tmp_path: Path):
    """Two ranks of 1 to 15 thousand tokens, two of the rest: each simulated by itself."""
    file = space(tmp_path)
    shares = read_shares(read_space(file))
    times = {}
    for fast in range(1024, 16384, 1024):
        parts = (fast, fast, 16384 - fast, 16384 - fast)
        made = generate(shares.model, shares.plan.replace(cp_shares=parts))
        times[fast] = simulate(made.job, shares.system).makespan_ns
    best = found(file)
    assert best.best["time_ns"] == min(times.values())
    assert times[best.best["tokens"]["fast"]] == min(times.values())
    assert best.space == 15
    assert best.tried + sum(best.pruned.values()) == 15
    assert set(best.pruned) <= {BOUND, MEMORY, LEFT}
    assert sum(best.more["shards"]) == 32768
    assert best.more["most_gain"] == pytest.approx((1 + 3) / 2)
    assert 1.3 < best.more["gain"] <= 2.0
    greedy = found(file, "greedy")
    assert greedy.best["time_ns"] >= best.best["time_ns"]
    assert greedy.best["time_ns"] <= greedy.more["equal_ns"]


def test_one_kind_has_equal_parts(tmp_path: Path):
    one = MIX.replace("fast: 0-1, slow: 2-3", "fast: 0-3")
    text = SPACE.replace("unit: 1024", "unit: 4096").replace("tries", "by: rank\ntries")
    best = found(space(tmp_path, system=one, text=text))
    assert best.space == 35  # of eight pieces, at least one for each of four ranks
    assert best.more["shards"] == [8192] * 4
    assert best.more["gain"] == 1.0


def test_the_memory_limit_holds(tmp_path: Path):
    free = found(space(tmp_path))
    tight = found(space(tmp_path, memory="22GB"))
    assert tight.pruned[MEMORY] > 0
    assert tight.more["shards"][0] <= tight.more["room"]["fast"] * 8192
    assert tight.more["shards"][0] < free.more["shards"][0]
    assert tight.best["time_ns"] >= free.best["time_ns"]  # more room is never worse


def test_no_room_at_all_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["search", str(space(tmp_path, memory="1GB"))]) == 2
    assert "no shares fit the memory" in capsys.readouterr().err


def test_tokens_and_heads(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = SPACE.replace("cp_map: zigzag", "cp_kind: ulysses").replace(
        "unit: 1024", "unit: 2048\nover: [tokens, heads]"
    )
    assert main(["search", str(space(tmp_path, text=text)), "--json"]) == 0
    best = json.loads(capsys.readouterr().out)
    assert sum(best["heads"]) == 32
    assert sum(best["shards"]) == 32768
    assert best["gain"] > 1.2
    assert best["heads"][0] > best["heads"][3]
    assert best["space"] == 7 * 3  # 16 pieces and 8 groups of 4 heads, for two ranks of each kind


def test_ways_are_counted():
    whole = Whole(total=24, unit=2, counts=(2, 1, 3))
    ways = list(whole.all())
    naive = [
        (a, b, c) for a in range(2, 25, 2) for b in range(2, 25, 2) for c in range(2, 25, 2) if 2 * a + b + 3 * c == 24
    ]
    assert ways == naive
    assert len(whole) == len(naive)
    for moved in whole.moved(naive[0], 1):
        assert moved in naive


@pytest.mark.parametrize(
    "changed, told",
    [
        ("unit=1000", "8,192 tokens, is not a multiple of 1,000"),
        ("by=node", "by: `node`"),
        ("over=[heads]", "over:"),
        ("plan={gpus: 4, tp: 4}", "context-parallel"),
        ("plan=some", "keys and values"),
        ("colour=red", "unknown key"),
        ("network=slow", "unknown value"),
        ("over=[tokens, heads]", "--cp-kind ulysses"),
    ],
)
def test_bad_spaces_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: str, told: str):
    assert main(["search", str(space(tmp_path)), "--set", changed]) == 2
    assert told in capsys.readouterr().err


def test_all_of_too_many_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["--set", "unit=1", "--method", "all"]
    assert main(["search", str(space(tmp_path)), *words]) == 2
    assert "candidates are more than" in capsys.readouterr().err
