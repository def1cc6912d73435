"""Capacities of a rank that compute, communication and memory nodes share: closed forms, worked by hand."""

import random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from etude.errors import DeadlockError, MismatchError, UsageError
from etude.machine import open_system
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Kind
from etude.simulate.options import Overlap
from etude.simulate.run import simulate
from etude.simulate.shares import Draw
from simulated_jobs import random_job, system

ONE = system(8, bandwidth=1e9, latency_ns=100, inner=1)


def work(compute_ns: int, memory_ns: int) -> Job:
    b = TraceBuilder()
    b.add(Kind.COMP, duration_ns=compute_ns, stream=7)
    b.add(Kind.MEM_LOAD, duration_ns=memory_ns, stream=8)
    return job_of("both", [b])


def ends(job: Job, **draws: Draw) -> list[int]:
    found = simulate(job, ONE, share={"hbm": draws} if draws else {})
    return found.timing.block(0)[1].tolist()


def test_demands_that_fit_take_nothing_from_each_other():
    assert ends(work(1000, 400)) == [1000, 400]
    assert ends(work(1000, 400), compute=Draw(demand=0.6), memory=Draw(demand=0.4)) == [1000, 400]


def test_two_full_demands_share_evenly():
    # the shorter of 400 ends at 2 x 400, the other at their sum
    assert ends(work(1000, 400), compute=Draw(), memory=Draw()) == [1400, 800]


def test_the_lower_demand_is_met_first():
    # 0.2 and 1.0: the first is met, the other has 0.8 of what it wants until 400, and then all
    assert ends(work(1000, 400), compute=Draw(), memory=Draw(demand=0.2)) == [1080, 400]
    # 0.8 and 0.6, fair: half each; rates 1/2 / 0.8 = 0.625 and 1/2 / 0.6
    found = ends(work(1000, 500), compute=Draw(demand=0.8), memory=Draw(demand=0.6))
    assert found == [pytest.approx(600 + 1000 - 375, abs=2), pytest.approx(600, abs=2)]


def test_weights():
    # 3 to 1: rates 3/4 and 1/4; the heavier ends at 400 / 0.75, when 1000 - 133 are left of the other
    found = ends(work(1000, 400), compute=Draw(), memory=Draw(weight=3.0))
    assert found == [pytest.approx(1400, abs=2), pytest.approx(534, abs=1)]


@pytest.mark.parametrize(("first", "expected"), [("compute", [1000, 1400]), ("memory", [1400, 400])])
def test_priority(first: str, expected: list[int]):
    draws = {name: Draw(priority=0 if name == first else 1) for name in ("compute", "memory")}
    assert ends(work(1000, 400), **draws) == [pytest.approx(e, abs=1) for e in expected]


@pytest.mark.parametrize("weight", [0.1, 1.0, 5.0])
def test_the_last_ends_at_one_instant_whatever_the_arbitration(weight: float):
    assert max(ends(work(700, 900), compute=Draw(weight=weight), memory=Draw())) == pytest.approx(1600, abs=2)


def messages() -> Job:
    b, r = TraceBuilder(), TraceBuilder()
    b.add(Kind.SEND, dst=1, in_bytes=50)  # 350 ns alone
    b.add(Kind.COMP, duration_ns=100)
    r.add(Kind.RECV, src=0, in_bytes=50)
    return job_of("message", [b, r])


def test_cores_of_a_collective_are_given_back():
    # communication has a fifth of the cores first: compute runs at 0.8 until 125
    share = {"sm": {"communication": Draw(demand=0.2), "compute": Draw(priority=1)}}
    found = simulate(messages(), ONE, share=share)
    assert found.timing.block(0)[1].tolist() == [350, 125]
    # the other way round the message waits for compute: its rate is 0 for 100 ns, and the receiver waits with it
    share = {"sm": {"communication": Draw(demand=0.2, priority=1), "compute": Draw()}}
    found = simulate(messages(), ONE, share=share)
    assert found.timing.block(0)[1].tolist() == [pytest.approx(450, abs=1), 100]
    assert found.timing.block(1)[1].tolist() == [pytest.approx(450, abs=1)]


def test_the_least_of_several_capacities_counts():
    both = {name: {"compute": Draw(), "memory": Draw()} for name in ("hbm", "pcie")}
    found = simulate(work(1000, 400), ONE, share=both)
    assert found.timing.block(0)[1].tolist() == [1400, 800]


@settings(deadline=None, max_examples=40)
@given(st.randoms(use_true_random=False))
def test_without_demands_all_is_as_before(rng: random.Random):
    job = random_job(rng, broken=False)
    try:
        before = simulate(job, system())
    except (DeadlockError, MismatchError):
        assume(False)
        raise
    for demand in (0.0, 1e-9):  # no sharing at all, and sharing that never binds
        draws = {name: Draw(demand=demand) for name in ("compute", "communication", "memory")}
        after = simulate(job, system(), share={"hbm": draws})
        for i in range(len(job.ranks)):
            for a, b in zip(before.timing.block(i), after.timing.block(i), strict=True):
                assert a.tolist() == b.tolist()


@settings(deadline=None, max_examples=40)
@given(st.randoms(use_true_random=False))
def test_sharing_never_ends_a_single_chain_sooner(rng: random.Random):
    job = random_job(rng, broken=False)
    draws = {name: Draw(demand=rng.uniform(0.1, 1.0)) for name in ("compute", "communication", "memory")}
    try:
        before, after = simulate(job, system()), simulate(job, system(), share={"hbm": draws})
    except (DeadlockError, MismatchError):
        assume(False)
        raise
    for i in range(len(job.ranks)):
        own = job.traces[int(job.trace_of[i])].kind == Kind.COMP
        (a0, a1), (b0, b1) = before.timing.block(i), after.timing.block(i)
        assert ((b1 - b0)[own] >= (a1 - a0)[own]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": {"sm": {"gpu": Draw()}}}, "no such class `gpu`"),
        ({"share": {"sm": {"compute": Draw()}}, "overlap": Overlap(compute=1.1)}, "in the place of overlap"),
        ({"share": {"sm": {"compute": Draw(), "communication": Draw(priority=1)}}, "network": "flow"}, "do not stop"),
    ],
)
def test_bad_shares_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        simulate(work(1, 1), open_system("dgx-h100"), **options)


def test_a_negative_demand_is_refused():
    with pytest.raises(UsageError, match="a demand of -1"):
        Draw(demand=-1.0)


def test_shares_as_text():
    from etude.cli.simulation import share_option

    found = share_option(["pcie=communication>memory", "hbm=compute:0.8,memory:0.4*2"])
    assert found["pcie"] == {"communication": Draw(priority=0), "memory": Draw(priority=1)}
    assert found["hbm"] == {"compute": Draw(demand=0.8), "memory": Draw(demand=0.4, weight=2.0)}
    with pytest.raises(UsageError, match="not CLASS:DEMAND"):
        share_option(["hbm=compute:much"])
