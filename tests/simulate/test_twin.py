"""The kernel against its slow twin, node by node, deadlocks included; folded against unfolded."""

from __future__ import annotations

import os
import random

import pytest

from etude.analyse.breakdown import breakdown
from etude.base.errors import DeadlockError, MismatchError
from etude.model.job import Job
from etude.run.simulate.options import Options
from etude.run.simulate.run import simulate
from naive_simulate import Naive
from simulated_jobs import random_job, random_options, symmetric_job, system

TWINS = int(os.environ.get("ETUDE_TWINS", "250"))
"""Random jobs; ETUDE_TWINS=10000 for more."""


def twin_agrees(job: Job, options: Options, devices: int = 8) -> bool:
    """True if it ran, False if it stood still in both."""
    machine = system(devices)
    twin = Naive(job, machine, options)
    if not twin.run():
        with pytest.raises(DeadlockError):
            simulate(job, machine, options)
        return False
    found = simulate(job, machine, options)
    for i, rank in enumerate(job.ranks.tolist()):
        start, end = found.timing.block(i)
        rows = range(len(start))
        assert start.tolist() == [twin.start[rank, row] for row in rows], (rank, options)
        assert end.tolist() == [twin.end[rank, row] for row in rows], (rank, options)
    assert found.makespan_ns == max(twin.end.values(), default=0)
    return True


@pytest.mark.parametrize("part", range(TWINS // 250))
def test_the_kernel_agrees_with_its_twin(part: int):
    ran = stuck = 0
    for seed in range(part * 250, part * 250 + 250):
        rng = random.Random(seed)
        job = random_job(rng)
        options = random_options(rng, job, fold=rng.choice([None, False]))
        try:
            if twin_agrees(job, options):
                ran += 1
            else:
                stuck += 1
        except MismatchError:
            pass
    assert ran > 100 and stuck > 10


@pytest.mark.parametrize("part", range(4))
def test_folded_and_unfolded_agree_node_by_node(part: int):
    folded = 0
    for seed in range(part * 50, part * 50 + 50):
        rng = random.Random(seed)
        job = symmetric_job(rng)
        first = int(job.ranks[0])
        fixed = {"slow_ranks": {first: 1.5}} if rng.random() < 0.2 else {"slow_ranks": {}}
        if rng.random() < 0.2 and len(job) > 1:
            fixed["slow_links"] = {(0, 1): 3.0}
        given = random_options(rng, job, fold=None, **fixed)
        whole = Options(**{name: getattr(given, name) for name in Options.__slots__} | {"fold": False})
        machine = system(job.world_size, inner=rng.choice([1, 2, 4]))
        try:
            a = simulate(job, machine, whole)
        except DeadlockError:
            with pytest.raises(DeadlockError):
                simulate(job, machine, given)
            continue
        b = simulate(job, machine, given)
        folded += b.simulated_ranks < len(job)
        for i in range(len(job)):
            for x, y in zip(a.timing.block(i), b.timing.block(i), strict=True):
                assert x.tolist() == y.tolist(), (seed, i)
        assert a.makespan_ns == b.makespan_ns
        assert breakdown(a).equals(breakdown(b))
    assert folded > 15
