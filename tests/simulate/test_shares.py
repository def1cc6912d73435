"""Capacities of a rank that compute, communication and memory nodes share: closed forms, worked by hand."""

import random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from etude.base.errors import DeadlockError, MismatchError, UsageError
from etude.machine import open_system
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Kind
from etude.run.simulate.options import Overlap
from etude.run.simulate.run import simulate
from etude.run.simulate.shares import Draw
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


# -- capacities of a node ----------------------------------------------------------------------------------------------


def four_loads() -> Job:
    """Four ranks, two to a node of `system()`; each loads for 400 ns."""
    parts = [TraceBuilder() for _ in range(4)]
    for b in parts:
        b.add(Kind.MEM_LOAD, duration_ns=400, stream=8)
    parts[0].add(Kind.MEM_LOAD, duration_ns=100, stream=9)
    return job_of("four", parts)


def test_ranks_of_a_node_share_what_they_have_in_common():
    found = simulate(four_loads(), system(), share={"dram@node": {"memory": Draw()}})
    # three loads on the first node: 100 at a third until 300, then two of 300 at a half; the second node has two
    assert [found.timing.block(i)[1].tolist() for i in range(4)] == [
        [pytest.approx(900, abs=2), pytest.approx(300, abs=2)],
        [pytest.approx(900, abs=2)],
        [800],
        [800],
    ]
    # one for all four: five at a fifth until 500, then four of 300 at a quarter
    found = simulate(four_loads(), system(), share={"nvme@out": {"memory": Draw()}})
    assert [found.timing.block(i)[1][0] for i in range(4)] == [pytest.approx(1700, abs=4)] * 4
    # each its own: only the first rank has two
    found = simulate(four_loads(), system(), share={"dram": {"memory": Draw()}})
    assert [found.timing.block(i)[1][0] for i in range(4)] == [500, 400, 400, 400]


def test_host_work_of_a_node_shares_its_processors():
    parts = [TraceBuilder() for _ in range(2)]
    for b in parts:
        b.add(Kind.COMP, duration_ns=1000, cpu=1)
        b.add(Kind.COMP, duration_ns=10, stream=7)
    found = simulate(job_of("host", parts), system(), share={"cpu@in": {"host": Draw(demand=0.75)}})
    assert [found.timing.block(i)[1][0] for i in range(2)] == [pytest.approx(1500, abs=2)] * 2


@pytest.mark.parametrize(
    ("name", "message"), [("dram@rack", "has no level `rack`"), ("@node", "is not a name"), ("dram@", "is not a name")]
)
def test_a_level_that_is_not_there_is_refused(name: str, message: str):
    with pytest.raises(UsageError, match=message):
        simulate(four_loads(), system(), share={name: {"memory": Draw()}})


# -- chunks ------------------------------------------------------------------------------------------------------------


def late_message(delay_ns: int) -> Job:
    """Rank 0 loads 1000 bytes for 1000 ns, and sends for 350 ns from `delay_ns` on; rank 1 receives."""
    b, r = TraceBuilder(), TraceBuilder()
    b.add(Kind.MEM_LOAD, duration_ns=1000, tensor_bytes=1000, stream=8)
    b.add(Kind.COMP, duration_ns=delay_ns)
    b.add(Kind.SEND, dst=1, in_bytes=50, data=[1])
    r.add(Kind.RECV, src=0, in_bytes=50)
    return job_of("late", [b, r])


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        # at once: the load stands still from 130 to 480
        ({}, [1350, 130, 480]),
        # three pieces of 333: the message begins at 333, and the load goes on when it ends
        ({"chunk_bytes": 400}, [1350, 130, 683]),
        ({"chunk_ns": 400}, [1350, 130, 683]),
        # one chunk: the message waits for all of it
        ({"chunk_bytes": 5000}, [1000, 130, 1350]),
    ],
)
def test_a_load_yields_at_the_border_of_a_chunk(chunk: dict[str, int], expected: list[int]):
    share = {"pcie": {"communication": Draw(), "memory": Draw(priority=1, **chunk)}}
    found = simulate(late_message(130), ONE, share=share)
    assert found.timing.block(0)[1].tolist() == [pytest.approx(e, abs=2) for e in expected]


def test_chunks_alone_change_nothing():
    share = {"pcie": {"communication": Draw(), "memory": Draw(priority=1, chunk_bytes=7)}}
    found = simulate(work(1000, 400), ONE, share=share)
    assert found.timing.block(0)[1].tolist() == [1000, 400]


def test_small_chunks_yield_soon():
    # five pieces of 200: the message has the link from 200 to 550
    share = {"pcie": {"communication": Draw(), "memory": Draw(priority=1, chunk_bytes=200)}}
    found = simulate(late_message(130), ONE, share=share)
    assert found.timing.block(0)[1].tolist() == [pytest.approx(e, abs=1) for e in [1350, 130, 550]]


# -- links -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", ["links", "flow"])
def test_over_links_compute_and_transfers_share(network: str):
    # half of the cores for the message while it lasts: compute of 100 ns at half its rate takes 200
    share = {"sm": {"communication": Draw(demand=0.5), "compute": Draw(priority=1)}}
    found = simulate(messages(), ONE, share=share, network=network)
    alone = simulate(messages(), ONE, network=network)
    assert found.timing.block(0)[1].tolist() == [alone.timing.block(0)[1][0], 200]
    # two full demands: the message has half of the rate when it sets off, so its 50 bytes take 50 ns more
    both = {"hbm": {"communication": Draw(), "compute": Draw()}}
    found = simulate(messages(), ONE, share=both, network=network)
    assert found.timing.block(1)[1][0] == pytest.approx(alone.timing.block(1)[1][0] + 50, abs=1)


@settings(deadline=None, max_examples=40)
@given(st.randoms(use_true_random=False))
def test_without_demands_all_is_as_before(rng: random.Random):
    job = random_job(rng, broken=False)
    try:
        before = simulate(job, system())
    except (DeadlockError, MismatchError):
        assume(False)
        raise
    for demand, name in ((0.0, "hbm"), (1e-9, "hbm"), (1e-9, "hbm@node")):  # no sharing, and sharing that never binds
        draws = {name: Draw(demand=demand) for name in ("compute", "communication", "memory")}
        after = simulate(job, system(), share={name: draws})
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
        ({"share": {"sm": {"gpu": Draw()}}}, "unknown class `gpu`"),
        ({"share": {"sm": {"communication": Draw(chunk_ns=1)}}}, "yield at once"),
        ({"share": {"sm": {"compute": Draw()}}, "overlap": Overlap(compute=1.1)}, "cannot be combined with overlap"),
        (
            {"share": {"sm": {"compute": Draw(), "communication": Draw(priority=1)}}, "network": "flow"},
            "cannot be paused",
        ),
    ],
)
def test_bad_shares_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        simulate(work(1, 1), open_system("dgx-h100"), **options)


def test_a_negative_demand_is_refused():
    with pytest.raises(UsageError, match="a demand of -1"):
        Draw(demand=-1.0)


def test_shares_as_text():
    from etude.run.simulate.settings.texts import shares

    found = shares(["pcie=communication>memory", "hbm=compute:0.8,memory:0.4*2"])
    assert found["pcie"] == {"communication": Draw(priority=0), "memory": Draw(priority=1)}
    assert found["hbm"] == {"compute": Draw(demand=0.8), "memory": Draw(demand=0.4, weight=2.0)}
    found = shares(["pcie@node=communication>memory:0.5*2/32MB", "cpu=host/10us"])
    assert found["pcie@node"]["memory"] == Draw(demand=0.5, weight=2.0, priority=1, chunk_bytes=32_000_000)
    assert found["cpu"] == {"host": Draw(chunk_ns=10_000)}
    with pytest.raises(UsageError, match="not CLASS:DEMAND"):
        shares(["hbm=compute:much"])
