"""Whatever is generated is sound and runs; what cannot be is refused. Thousands: benchmarks/validate_generated.py."""

from random import Random

import pytest

from etude.base.errors import UsageError
from etude.machine import open_system
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import generate
from etude.model.check.whole import check
from etude.run.simulate.run import simulate
from etude.steps.step import grown
from random_jobs import random_model, random_plan
from random_models import catalogue_model, catalogue_plan

DGX = open_system("dgx-h100")


@pytest.mark.parametrize("seed", range(40))
def test_a_random_job_is_sound_and_runs(seed: int):
    random = Random(seed)
    m = random_model(random)
    plan = random_plan(random, m)
    try:
        job = generate(m, Plan.from_dict(plan)).job
    except UsageError:
        pytest.skip("a plan that cannot be")
    assert list(check(job)) == []
    done = simulate(job, grown(DGX, job.world_size))
    assert done.makespan_ns > 0
    assert not done.timing.partial


@pytest.mark.parametrize("seed", range(30))
def test_a_random_job_of_the_catalogue_is_sound_and_runs(seed: int):
    random = Random(seed)
    m = catalogue_model(random)
    plan = catalogue_plan(random, m)
    try:
        job = generate(m, Plan.from_dict(plan)).job
    except UsageError:
        pytest.skip("a plan that cannot be")
    assert list(check(job)) == []
    assert simulate(job, grown(DGX, job.world_size)).makespan_ns > 0
