"""A clock that is stopped and goes on gives the times of one that never stopped."""

from __future__ import annotations

import random

import numpy as np
import pytest

from etude.machine.system import System
from etude.model.job import Job
from etude.run.simulate.engine import JobEngine
from etude.run.simulate.lower import lower
from etude.run.simulate.options import Network, Options
from etude.run.simulate.run import start
from simulated_jobs import random_job, random_options, symmetric_job, system


def engine_of(job: Job, machine: System, options: Options) -> JobEngine:
    return start(lower(job, machine, options.on(machine))[0])[0]


@pytest.mark.parametrize("network", list(Network))
@pytest.mark.parametrize("part", range(2))
def test_random_stops_change_nothing(network: Network, part: int):
    for seed in range(12 * part, 12 * part + 12):
        rng = random.Random(seed)
        job = symmetric_job(rng) if seed % 2 else random_job(rng, ranks=4, events=20, broken=False)
        options = random_options(rng, job, network=network)
        machine = system(-(-max(job.world_size, 8) // 2) * 2, latency_ns=rng.choice([0.0, 50.0]))
        whole, stopped = engine_of(job, machine, options), engine_of(job, machine, options)
        assert not whole.advance()
        stop = 0
        while stopped.advance(stop):
            started = stopped.state.nodes["start_ns"]
            assert stopped.now_ns <= stop
            assert started.max() <= stop
            expected = whole.state.nodes
            is_done = stopped.state.nodes["waits"] == -1
            assert (is_done == ((expected["waits"] == -1) & (expected["end_ns"] <= stop))).all()
            stop += rng.choice([0, 1, 2, 10, 50, 300])
        for name in ("start_ns", "end_ns", "waits"):
            assert np.array_equal(stopped.state.nodes[name], whole.state.nodes[name]), (seed, name)
        assert stopped.network.link_use() == whole.network.link_use()


def test_a_stop_includes_its_instant():
    rng = random.Random(3)
    job, machine = random_job(rng, ranks=2, events=12, broken=False), system()
    engine = engine_of(job, machine, Options())
    engine.advance()
    last = engine.now_ns
    again = engine_of(job, machine, Options())
    assert again.advance(last - 1)
    assert again.done_nodes < again.nodes
    assert not again.advance(last)
    assert again.done_nodes == again.nodes
