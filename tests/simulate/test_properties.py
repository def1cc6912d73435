"""What holds for every job and every option."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import naive
from etude.base.errors import DeadlockError, MismatchError
from etude.model.job import Job
from etude.run.simulate.options import Options, Overlap
from etude.run.simulate.result import Simulated
from etude.run.simulate.run import simulate
from naive_simulate import Naive
from simulated_jobs import random_job, random_options, system

MANY = settings(deadline=None, max_examples=60)


def run_or_leave(job: Job, options: Options, bandwidth: float = 1e9) -> Simulated:
    try:
        return simulate(job, system(bandwidth=bandwidth), options)
    except (DeadlockError, MismatchError):
        assume(False)
        raise


@MANY
@given(st.randoms(use_true_random=False))
def test_no_node_runs_before_what_it_waits_for_and_no_lane_runs_two(rng: random.Random):
    job = random_job(rng, broken=False)
    options = random_options(rng, job)
    found = run_or_leave(job, options)
    twin = Naive(job, system(), options)
    for i, rank in enumerate(job.ranks.tolist()):
        start, end = (x.tolist() for x in found.timing.block(i))
        assert all(a <= b for a, b in zip(start, end, strict=True))
        for row, deps in enumerate(naive.dependencies(job.trace(rank), "both")):
            assert all(end[d] <= start[row] for d in deps if d >= 0)
        for (owner, _), nodes in twin.lane_nodes.items():
            if owner == rank:
                spans = sorted((start[row], end[row]) for _, row in nodes)
                assert all(a[1] <= b[0] for a, b in pairwise(spans))


@MANY
@given(st.randoms(use_true_random=False))
def test_the_job_lasts_at_least_as_long_as_its_critical_path(rng: random.Random):
    job = random_job(rng, broken=False)
    options = random_options(rng, job)
    found = run_or_leave(job, options)
    twin = Naive(job, system(), options)
    for rank in job.ranks.tolist():
        cost = [
            twin.cost((rank, row)) if (op := twin.op_of.get((rank, row))) is None
            else 0 if op.sender is not None else op.ns
            for row in range(len(job.trace(rank)))
        ]  # fmt: skip
        assert found.makespan_ns >= max(naive.finish(job.trace(rank), cost, "both"), default=0)


@MANY
@given(st.randoms(use_true_random=False))
def test_more_bandwidth_is_never_slower_where_lanes_keep_their_order(rng: random.Random):
    job = random_job(rng, broken=False)
    options = random_options(rng, job, policy="recorded", overlap=Overlap())
    slow = run_or_leave(job, options, 1e8)
    fast = run_or_leave(job, options, 1e9)
    for i in range(len(job)):
        assert (fast.timing.block(i)[1] <= slow.timing.block(i)[1]).all()


@MANY
@given(st.randoms(use_true_random=False))
def test_the_same_seed_gives_the_same_times(rng: random.Random):
    job = random_job(rng, broken=False)
    options = random_options(rng, job, jitter={"compute": 0.3, "collective": 0.2, "p2p": 0.1}, seed=rng.randrange(9))
    a, b = run_or_leave(job, options), run_or_leave(job, options)
    for i in range(len(job)):
        assert (a.timing.block(i)[1] == b.timing.block(i)[1]).all()
