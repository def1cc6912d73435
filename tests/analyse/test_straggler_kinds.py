"""Runs of some steps with one thing wrong, worked out by hand: kernels, then a sum that all members wait for."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from injected_faults import faulty
from injected_runs import write
from validate_faults import answer

import etude
from etude.analyse.outliers import Profile
from etude.analyse.stragglers import stragglers
from etude.analyse.stretches import slower_than_before, slower_units
from etude.model.run import Run, recorded
from etude.model.schema import Collective, Kind
from straggling_jobs import straggling
from timed_jobs import timed

KERNELS = 4
GEMM = {"kind": Kind.COMP, "name": "gemm", "stream": 7, "cpu": 0}
SUM = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE, "group": "g"}
Factor = Callable[[int, int], float]


def steps_of(ranks: int, steps: int, slow: Factor, work: Factor = lambda rank, step: 1.0, device: int = 0) -> Run:
    """Each step: four kernels of 100 us times their factors, a few percent apart, then a sum of 50 us."""
    nodes: list[list[Any]] = [[] for _ in range(ranks)]
    begin = 0
    for step in range(steps):
        comes = []
        for rank in range(ranks):
            now = begin
            for k in range(KERNELS):
                jitter = 1 + ((7 * rank + 11 * step + 13 * k) % 17 - 8) / 400
                lasts = round(100_000 * jitter * slow(rank, step) * work(rank, step))
                gemm = GEMM | {"step": step, "flops": round(1e6 * work(rank, step)), "cpu": device}
                nodes[rank].append((gemm, now, now + lasts))
                now += lasts
            comes.append(now)
        begin = max(comes) + 50_000
        for rank in range(ranks):
            nodes[rank].append((SUM | {"step": step, "cpu": device}, comes[rank], begin))
    return timed(*nodes, groups={"g": list(range(ranks))})


def found(run: Run) -> list[dict[str, Any]]:
    return stragglers(run).to_pylist()


@pytest.mark.parametrize(("ranks", "factor"), [(4, 1.1), (8, 1.1), (6, 1.5)])
def test_half_of_the_ranks_throttled_at_once_are_slower_than_before(ranks: int, factor: float) -> None:
    rows = found(steps_of(ranks, 12, lambda rank, step: factor if rank % 2 and step >= 7 else 1.0))
    assert {(row["rank"], row["kind"], row["pattern"], row["since"]) for row in rows} == {
        (rank, "slow_rank", "acute", 7) for rank in range(1, ranks, 2)
    }
    assert rows[0]["ranks"] == list(range(1, ranks, 2))
    assert rows[0]["slowdown_pct"] == pytest.approx(100 * (factor - 1), abs=2)
    assert rows[0]["evidence"].startswith(f"Kernels of ranks {', '.join(map(str, range(1, ranks, 2)))} take")
    assert "all together, in steps 7 to 11; without it the run is" in rows[0]["evidence"]


def test_all_ranks_slower_than_before_is_no_straggler() -> None:
    assert found(steps_of(4, 12, lambda rank, step: 1.3 if step >= 6 else 1.0)) == []


@pytest.mark.parametrize(("every", "phase", "ranks"), [(5, 2, 4), (2, 1, 6), (3, 0, 2)])
def test_a_rank_that_is_slow_in_every_so_many_th_step(every: int, phase: int, ranks: int) -> None:
    rows = found(steps_of(ranks, 20, lambda rank, step: 1.1 if rank == 1 and step % every == phase else 1.0))
    assert [(row["rank"], row["kind"], row["pattern"], row["since"]) for row in rows] == [
        (1, "slow_rank", "periodic", phase)
    ]
    assert rows[0]["slowdown_pct"] == pytest.approx(10, abs=2)
    assert rows[0]["evidence"].startswith(f"Every {every} steps the work of rank 1 takes")


def test_of_two_ranks_one_is_named_that_became_slow() -> None:
    rows = found(steps_of(2, 10, lambda rank, step: 1.2 if rank == 0 and step >= 4 else 1.0))
    assert [(row["rank"], row["since"]) for row in rows] == [(0, 4)]
    assert found(steps_of(2, 10, lambda rank, step: 1.2 if rank == 0 else 1.0)) == []


def test_two_of_five_that_are_slow_all_along() -> None:
    rows = found(steps_of(5, 8, lambda rank, step: {1: 1.2, 3: 1.3}.get(rank, 1.0)))
    assert {row["rank"] for row in rows} == {1, 3}


@pytest.mark.parametrize("device", [0, 1])
def test_who_is_slow_for_two_steps_of_many_is_not_accused(device: int) -> None:
    assert found(steps_of(4, 10, lambda rank, step: 1.4 if rank == 2 and step in (4, 5) else 1.0, device=device)) == []


def test_who_never_comes_last_is_not_accused() -> None:
    """Rank 2's kernels are slow for four of ten steps, and yet it is the first at every sum: the others have more of
    another kind to do."""
    run = steps_of(4, 10, lambda rank, step: 1.3 if rank == 2 and 3 <= step < 7 else 1.0)
    nodes: list[list[Any]] = []
    for rank in range(4):
        trace, (start, end) = run.job.trace(rank), run.timing.block(rank)
        rows: list[Any] = []
        for i in range(len(trace)):
            step = int(trace.step[i])
            shift = 400_000 * step
            if trace.kind[i] == Kind.COMP:
                rows.append((GEMM | {"step": step}, int(start[i]) + shift, int(end[i]) + shift))
                continue
            comes = int(start[i]) + shift if rank == 2 else int(end[i]) + shift + 300_000
            if rank != 2:
                rows.append((GEMM | {"step": step, "name": f"only {'abcd'[rank]}"}, int(start[i]) + shift, comes))
            rows.append((SUM | {"step": step}, comes, int(end[i]) + shift + 340_000))
        nodes.append(rows)
    assert found(timed(*nodes, groups={"g": [0, 1, 2, 3]})) == []


def test_a_slow_device_beside_a_stage_that_takes_as_long_is_named() -> None:
    """Rank 11 is of the second stage, the first has more layers: the run would be no shorter without its fault."""
    run, truth = straggling(337, 16, "slow_rank", 1.5)
    rows = found(run)
    assert [(row["rank"], row["kind"], row["since"], row["cost_ns"]) for row in rows] == [(11, "slow_rank", 3, 0)]
    assert (truth.ranks, truth.since) == ((11,), 3)


def test_ranks_with_longer_samples_are_not_slow_and_slow_ones_are_found_among_them() -> None:
    def tokens(rank: int, step: int) -> float:
        return 0.5 + ((5 * rank + 3 * step) % 11) / 5 + rank / 100

    assert found(steps_of(6, 12, lambda rank, step: 1.0, tokens)) == []
    rows = found(steps_of(6, 12, lambda rank, step: 1.15 if rank == 4 else 1.0, tokens))
    assert [(row["rank"], row["kind"]) for row in rows] == [(4, "slow_rank")]
    assert rows[0]["slowdown_pct"] == pytest.approx(15, abs=3)


def test_one_call_that_takes_long_makes_no_slow_link() -> None:
    sums = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE, "in_bytes": 8}
    ranks: list[list[Any]] = []
    for rank in range(8):
        nodes = []
        for step in range(20):
            lasts = (100_000 + 900 * ((7 * (rank // 2) + 5 * step) % 11)) * (4 if (rank // 2, step) == (2, 17) else 1)
            nodes.append((sums | {"group": f"g{rank // 2}", "step": step}, 10**6 * step, 10**6 * step + lasts))
        ranks.append(nodes)
    assert found(timed(*ranks, groups={f"g{i}": [2 * i, 2 * i + 1] for i in range(4)})) == []


def test_a_recording_cut_by_a_hang_names_who_did_less() -> None:
    """No call was recorded as hanging: rank 2 stops after one kernel, the others after four, which wait for it."""
    run = steps_of(4, 3, lambda rank, step: 1.0)
    nodes: list[list[Any]] = []
    for rank in range(4):
        trace, (start, end) = run.job.trace(rank), run.timing.block(rank)
        keep = len(trace) - (1 if rank != 2 else 4)
        kinds = [SUM if trace.kind[i] == Kind.COLL else GEMM for i in range(keep)]
        nodes.append([(kinds[i] | {"step": int(trace.step[i])}, int(start[i]), int(end[i])) for i in range(keep)])
    rows = found(timed(*nodes, groups={"g": [0, 1, 2, 3]}))
    assert [(row["rank"], row["kind"]) for row in rows] == [(2, "missing_participant")]
    assert (
        "has run 1 kernels since the last collective of group `g` of 4 ranks, and all others 4" in rows[0]["evidence"]
    )


def test_a_host_that_did_not_ask_for_what_all_others_asked_for() -> None:
    ask = {"kind": Kind.COMP, "name": "c10d::allreduce_", "cpu": 1, "thread": 1}
    nodes: list[list[Any]] = []
    for rank in range(4):
        rows: list[Any] = []
        for i in range(6):
            rows.append((ask, 1000 * i, 1000 * i + 10))
            if i < 5:
                rows.append((SUM, 1000 * i + 20, 1000 * i + 500))
        nodes.append(rows if rank != 3 else rows[:-1])
    assert [(row["rank"], row["kind"]) for row in found(timed(*nodes, groups={"g": [0, 1, 2, 3]}))] == [
        (3, "missing_participant")
    ]


def test_a_spike_is_no_stretch_and_noise_has_no_period() -> None:
    rng = np.random.default_rng(3)
    accused = 0
    for _ in range(40):
        log = rng.normal(0, 0.02, (6, 40)) + (rng.random((6, 40)) < 0.03) * rng.pareto(1.5, (6, 40)).clip(0, 4)
        flat = Profile(log, np.full_like(log, 0.02))
        accused += bool(slower_units(flat, 0.06)) + bool(slower_than_before(flat, 0.06))
    assert accused <= 2  # of 80; three spikes in a row are a stretch


@pytest.mark.parametrize(
    ("kind", "seed", "factor"), [("half", 104, 1.5), ("half", 9001, 1.2), ("hung unseen", 4, 1.0), ("none", 104, 1.0)]
)
def test_injected_faults_through_files(kind: str, seed: int, factor: float, tmp_path: Path) -> None:
    machine, fault = faulty(seed, kind, factor)
    write(tmp_path, machine, fault.truth, "et", seed)
    assert answer(fault, found(recorded(etude.open(tmp_path)))) == ("silent" if kind == "none" else "named")


@pytest.mark.parametrize("name", ["dp_tp_4p", "fsdp2_4p", "pp_1f1b_4p"])
def test_real_runs_that_nobody_disturbed_are_silent(name: str, shared: Path, tmp_path: Path) -> None:
    for file in (shared / "traces" / "torch_cpu").glob(f"{name}.rank*.kineto.json.gz"):
        os.symlink(file, tmp_path / file.name)
    assert found(recorded(etude.open(tmp_path))) == []
