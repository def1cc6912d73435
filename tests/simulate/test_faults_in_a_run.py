"""Ranks that stop or become slow while a job runs: what ends, what hangs, and what does not notice."""

import random

import pytest

from etude.base.errors import DeadlockError, UsageError
from etude.model.build import TraceBuilder, job_of
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.run.simulate import Options, Overlap, simulate
from etude.run.simulate.faults import SlowRank, StopRanks, simulate_until
from etude.run.simulate.options import Network
from simulated_jobs import random_job
from toy_systems import one_level

SYSTEM = one_level("switch", 8)


def pair():
    """Two ranks: 100 ns of work, a sum (2 x (50 + 10) ns in a ring of two), 100 ns more, and 500 ns on another lane."""
    builders = []
    for _ in range(2):
        b = TraceBuilder()
        b.add(Kind.COMP, "a", duration_ns=100, stream=1)
        b.add(Kind.COLL, "sum", collective=Collective.ALL_REDUCE, in_bytes=100, group="g", data=[0], stream=2)
        b.add(Kind.COMP, "b", duration_ns=100, data=[1], stream=1)
        b.add(Kind.COMP, "other", duration_ns=500, stream=3)
        builders.append(b)
    return job_of("pair", builders, {"g": [0, 1]})


@pytest.mark.parametrize("network", list(Network))
def test_the_others_wait_for_the_sum_and_do_what_needs_nothing_of_it(network: Network):
    for at_ns in (0, 50, 100, 150):  # before, in the work, as the sum begins, in the middle of it
        found = simulate_until(pair(), SYSTEM, [(at_ns, StopRanks((1,)))], Options(network=network))
        assert found.run.timing.block(0)[1].tolist() == [100, UNKNOWN, UNKNOWN, 500]
        assert found.done.tolist() == [2, 0 if at_ns < 100 else 1] and not found.complete.any()
    after_ns = 330 if network == Network.PACKETS else 300  # 320 with store and forward: each block twice on its way
    late = simulate_until(pair(), SYSTEM, [(after_ns, StopRanks((1,)))], Options(network=network))
    whole = simulate(pair(), SYSTEM, network=network)
    assert late.run.timing.block(0)[1].tolist() == whole.timing.block(0)[1].tolist()
    assert late.complete.tolist() == [True, False] and late.done.tolist() == [4, 2]


@pytest.mark.parametrize("network", list(Network))
def test_until_a_time_is_the_beginning_of_the_whole(network: Network):
    for seed in range(8):
        job = random_job(random.Random(seed), ranks=3, events=14, broken=False)
        try:
            whole = simulate(job, SYSTEM, network=network)
        except DeadlockError:
            continue
        part = simulate_until(job, SYSTEM, options=Options(network=network), until_ns=whole.makespan_ns // 2)
        for at in range(len(job.ranks)):
            ends, all_ends = part.run.timing.block(at)[1], whole.timing.block(at)[1]
            done = ends != UNKNOWN
            assert (ends[done] == all_ends[done]).all() and (all_ends[~done] > whole.makespan_ns // 2).all()
        ended = simulate_until(job, SYSTEM, [(whole.makespan_ns, StopRanks((0,)))], Options(network=network))
        assert ended.complete.all() and ended.at_ns == whole.makespan_ns


@pytest.mark.parametrize("network", list(Network))
def test_a_rank_that_is_slow_from_the_start_is_a_slow_rank(network: Network):
    for seed in (1, 4, 6):
        job = random_job(random.Random(seed), ranks=3, events=14, broken=False)
        try:
            slow = simulate(job, SYSTEM, Options(network=network, slow_ranks={2: 3.0}, fold=False))
        except DeadlockError:
            continue
        found = simulate_until(job, SYSTEM, [(0, SlowRank(2, 3.0))], Options(network=network))
        assert found.finish_ns.tolist() == slow.timing.last_ends().tolist()
        back = simulate_until(job, SYSTEM, [(0, SlowRank(2, 3.0)), (0, SlowRank(2, 1.0))], Options(network=network))
        assert back.at_ns == simulate(job, SYSTEM, network=network).makespan_ns


def test_what_runs_goes_on_at_the_new_pace():
    # `a` has 60 ns left at 40, which take 120: 160; the sum 120: 280; `b` 200: 480; `other` 40 + 2 x 460
    found = simulate_until(pair(), SYSTEM, [(40, SlowRank(1, 2.0))])
    sum_ns = simulate(pair(), SYSTEM).timing.block(0)[1][1] - 100
    assert found.run.timing.block(1)[1].tolist() == [160, 160 + sum_ns, 160 + sum_ns + 200, 960]
    assert found.run.timing.block(0)[1].tolist() == [100, 160 + sum_ns, 260 + sum_ns, 500]


@pytest.mark.parametrize(("events", "options", "said"), [
    ([(-1, StopRanks((0,)))], {}, "before the run"),
    ([(5, StopRanks((7,)))], {}, "rank 7 is not in the job"),
    ([(5, SlowRank(0, -1.0))], {}, "not a factor"),
    ([(5, StopRanks((0,)))], {"overlap": Overlap(compute=1.5)}, "overlap"),
    ([(5, SlowRank(0, 2.0))], {"jitter": {"compute": 0.1}}, "jitter"),
])  # fmt: skip
def test_what_cannot_be_is_refused(events, options, said: str):
    with pytest.raises(UsageError, match=said):
        simulate_until(pair(), SYSTEM, events, Options(**options))
