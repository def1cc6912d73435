"""One definition of each measure: what `etude simulate` prints is what the breakdown says, and both are what the plain
arithmetic of intervals gives."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import naive_analyse as naive
from etude import generate, open_system
from etude.analyse.breakdown import breakdown
from etude.analyse.measures import COLUMNS, MEASURES
from etude.analyse.rank_table import class_table, rank_table
from etude.analyse.steps import steps
from etude.base.errors import EtudeError
from etude.model.job import Job
from etude.model.run import Run
from etude.model.schema import UNKNOWN
from etude.run.simulate.run import simulate
from mixed_jobs import mixed_job
from simulated_jobs import random_job, random_options, system

NETWORKS = ("analytic", "links", "flow")
OPTIONS = ("policy", "eager_bytes", "concurrent_network", "overlap", "slow_ranks")


def simulated(job: Job, network: str, **options: Any) -> Run | None:
    try:
        return simulate(job, system(), network=network, **options)
    except EtudeError:  # a deadlock
        return None


@settings(max_examples=60)
@given(st.integers(0, 10**9), st.sampled_from(NETWORKS))
def test_simulate_and_breakdown_and_plain_arithmetic_agree(seed: int, network: str) -> None:
    run = simulated(mixed_job(random.Random(seed)), network)
    if run is not None:
        compare(run)


@given(st.integers(0, 10**9))
def test_they_agree_under_any_policy(seed: int) -> None:
    rng = random.Random(seed)
    job = random_job(rng, broken=False)
    options = random_options(rng, job)
    run = simulated(job, "analytic", **{name: getattr(options, name) for name in OPTIONS})
    if run is not None:
        compare(run)


def compare(run: Run) -> None:
    printed, found = rank_table(run).to_pylist(), breakdown(run).to_pylist()
    for at, (row, rank) in enumerate(zip(found, printed, strict=True)):
        start, end = (times.tolist() for times in run.timing.block(at))
        assert {name: row[name] for name in COLUMNS} == {name: rank[name] for name in COLUMNS}
        assert {name: row[name] for name in MEASURES} == naive.breakdown(run.job.trace(row["rank"]), start, end)
        assert rank["finish_ns"] == max(end, default=None)
        hidden = 100 * (1 - row["exposed_comm_ns"] / row["comm_ns"]) if row["comm_ns"] else None
        assert row["overlap_pct"] == (None if hidden is None else pytest.approx(hidden))


def test_random_jobs_are_of_every_kind() -> None:
    """The test above says little of what its jobs do not have."""
    kinds: set[tuple[str, bool]] = set()
    ran = 0
    for seed in range(100):
        run = simulated(mixed_job(random.Random(seed)), NETWORKS[seed % 3])
        ran += run is not None
        for at, trace in enumerate(run.job.traces if run is not None else ()):
            start, end = run.timing.block(at)  # type: ignore[union-attr]
            kinds |= {(what, bool(e == s)) for what, s, e in zip(naive.classes(trace), start, end, strict=True)}
    assert ran > 60
    assert kinds >= {(what, empty) for what in (naive.COMPUTE, naive.COMMUNICATION, naive.MEMORY) for empty in (0, 1)}


@given(st.integers(0, 10**9))
def test_the_steps_of_a_run_of_one_step_are_its_breakdown(seed: int) -> None:
    run = simulated(mixed_job(random.Random(seed)), "analytic")
    if run is None:
        return
    traces = tuple(trace.replace(step=np.full(len(trace), 3, np.int64)) for trace in run.job.traces)
    run = Run(run.job.replace(traces=traces), run.timing)
    whole = {row["rank"]: row for row in breakdown(run).to_pylist()}
    for row in steps(run).to_pylist():
        assert {name: row[name] for name in COLUMNS} == {name: whole[row["rank"]][name] for name in COLUMNS}
    assert (run.timing.last_ends() != UNKNOWN).any() or not len(steps(run))


def test_classes_of_ranks_have_what_each_of_their_ranks_has() -> None:
    job = generate("llama3-8b", gpus=64, tp=4, pp=2, seq=512).job
    run = simulate(job, open_system("dgx-h100").resized(64))
    each, seen = rank_table(run).to_pylist(), set()
    for row in class_table(run).to_pylist():
        first, count, ranks = (row.pop(name) for name in ("rank", "count", "ranks"))
        alike = [k for part in ranks.split(", ") for k in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)]
        assert (first, count) == (alike[0], len(alike))
        assert all(each[rank] == {"rank": rank} | row for rank in alike)
        assert seen.isdisjoint(alike)
        seen |= set(alike)
    assert seen == set(range(64))
    assert len(class_table(run)) == 2
