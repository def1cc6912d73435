"""Jobs on the networks with links: tiny ones by hand, and what must always hold."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import etude
from etude.base.errors import DeadlockError, UsageError
from etude.cost.collectives.schedules import known, schedule
from etude.machine.fabrics import topology_of_system
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.run.simulate import engine
from etude.run.simulate import network as running
from etude.run.simulate.networks import Operation, run_operations
from etude.run.simulate.result import Simulated
from etude.run.simulate.run import simulate
from simulated_jobs import random_job, symmetric_job, system

ONE = system(8, bandwidth=1e9, latency_ns=100, inner=1)
"""8 devices on one switch at 1 B/ns: a message of 50 B takes 300 + 50 ns."""
BOTH = pytest.mark.parametrize("network", ["links", "flow"])
AR = Collective.ALL_REDUCE


def job(*ranks: list[tuple[Kind, dict[str, Any]]], groups: dict[str, list[int]] | None = None) -> Job:
    builders = []
    for nodes in ranks:
        b = TraceBuilder()
        for kind, row in nodes:
            b.add(kind, **row)
        builders.append(b)
    return job_of("tiny", builders, groups or {})


def comp(duration_ns: int, **row: Any) -> tuple[Kind, dict[str, Any]]:
    return Kind.COMP, {"duration_ns": duration_ns, **row}


def coll(size: int, what: Collective = AR, **row: Any) -> tuple[Kind, dict[str, Any]]:
    return Kind.COLL, {"collective": what, "in_bytes": size, **row}


def ends(found: Simulated, row: int) -> list[int]:
    return [int(found.timing.block(at)[1][row]) for at in range(len(found.timing.block_of))]


def spans(found: Simulated, rank: int) -> list[tuple[int, int]]:
    start, end = found.timing.block(rank)
    return list(zip(start.tolist(), end.tolist(), strict=True))


@BOTH
@pytest.mark.parametrize("algorithm", sorted({*known()["all_reduce"]} - {"in_switch"}))
def test_an_all_reduce_is_its_schedule_with_the_same_arrivals(network: Any, algorithm: str):
    late = [0, 30, 7, 500]
    given = job(*([comp(t, stream=1), coll(1000, data=[0], stream=2)] for t in late))
    found = simulate(given, ONE, network=network, collective={"all_reduce": algorithm})
    taken = "ring" if algorithm in ("hierarchical", "torus") else algorithm  # one level has nothing to nest
    # What is passed on is cut: 1000 B are a bit more than 3 steps of 300 ns; what is under way fills two of them.
    cut = {"chunks": 2 if network == "flow" else 4, "window": 2 if network == "flow" else 4} if taken == "tree" else {}
    alone = run_operations(
        topology_of_system(ONE), [Operation(schedule(AR, taken, 4, **cut), range(4), 1000)], [late], model=network
    )
    assert ends(found, 1) == alone.finish_ns[0].tolist()
    assert sum(link.bytes for link in found.links) == alone.link_bytes.sum()
    assert sum(link.busy_ns for link in found.links) == alone.link_busy_ns.sum()


@BOTH
def test_nested_rings_where_the_group_is_a_product_of_levels(network: Any):
    two = system(8, bandwidth=1e9, latency_ns=100, inner=2)
    two = two.replace(collectives=replace(two.collectives, max_chunks=1))
    given = job(*([coll(800)] for _ in range(8)))
    found = simulate(given, two, network=network, collective={"all_reduce": "hierarchical"})
    once = Operation(schedule(AR, "hierarchical", 8, dims=(2, 4)), range(8), 800)
    assert ends(found, 0) == run_operations(topology_of_system(two), [once], model=network).finish_ns[0].tolist()


@BOTH
def test_a_message_by_hand(network: Any):
    given = job(
        [comp(40, stream=1), (Kind.SEND, {"dst": 1, "in_bytes": 50, "data": [0]})],
        [(Kind.RECV, {"src": 0, "in_bytes": 50}), comp(5, stream=1, data=[0])],
    )
    found = simulate(given, ONE, network=network)
    assert spans(found, 0) == [(0, 40), (40, 390)]
    assert spans(found, 1) == [(40, 390), (390, 395)]  # a receive without a lane starts with its message
    assert [(link.bytes, link.busy_ns) for link in found.links] == [(50, 50), (50, 50)]
    assert all(" -> " in link.link for link in found.links)


@BOTH
def test_eager_goes_off_alone_and_a_rendezvous_waits(network: Any):
    given = job(
        [(Kind.SEND, {"dst": 1, "in_bytes": 50})],
        [comp(1000, stream=1), (Kind.RECV, {"src": 0, "in_bytes": 50, "data": [0]})],
    )
    eager = simulate(given, ONE, network=network)
    assert (spans(eager, 0)[0], spans(eager, 1)[1]) == ((0, 350), (1000, 1000))
    met = simulate(given, ONE, network=network, eager_bytes=0)
    assert (spans(met, 0)[0][1], spans(met, 1)[1]) == (1350, (1000, 1350))


def test_two_collectives_share_a_link_and_take_longer():
    groups = {"a": [0, 1], "b": [0, 2]}
    both = [coll(1000, group="a", stream=1), coll(1000, group="b", stream=2)]
    shared = job(both, both[:1], both[1:], groups=groups)
    alone = job(both[:1], both[:1], [], groups=groups)
    once = simulate(alone, ONE, network="flow").makespan_ns
    assert simulate(shared, ONE, network="flow").makespan_ns >= once + 900
    assert simulate(shared, ONE, network="links").makespan_ns > once
    assert simulate(shared, ONE).makespan_ns == simulate(alone, ONE).makespan_ns


@BOTH
def test_a_late_member_holds_up_only_those_that_need_it(network: Any):
    given = job(*([comp(t, stream=1), coll(100, Collective.BROADCAST, data=[0], stream=1)] for t in (0, 0, 9000)))
    found = simulate(given, ONE, network=network, collective={"broadcast": "direct"})
    root, near, late = ends(found, 1)
    assert near < 1000
    assert root == late == 9400


@BOTH
def test_completions_of_both_in_one_instant_come_before_lanes_take(network: Any):
    """The message arrives at 350, when the stream comes free: what has priority is taken, whoever made it ready."""
    given = job(
        [(Kind.SEND, {"dst": 1, "in_bytes": 50})],
        [
            (Kind.RECV, {"src": 0, "in_bytes": 50}),
            comp(350, stream=1),
            comp(10, stream=1, data=[1], priority=5),
            comp(10, stream=1, data=[0], priority=1),
        ],
    )
    assert spans(simulate(given, ONE, network=network), 1)[2:] == [(360, 370), (350, 360)]


@BOTH
def test_a_member_alone_and_a_message_to_oneself_take_no_links(network: Any):
    given = job(
        [coll(100, group="me"), (Kind.SEND, {"dst": 0, "in_bytes": 9}), (Kind.RECV, {"src": 0, "in_bytes": 9})],
        groups={"me": [0]},
    )
    found = simulate(given, ONE, network=network)
    assert spans(found, 0)[0] == (0, 0)
    assert found.links == ()
    assert any("use no links" in note for note in found.notes)


@BOTH
def test_a_deadlock_is_explained(network: Any):
    sums = {"g": [0, 1], "h": [0, 1]}
    one, two = coll(8, group="g", stream=1), coll(8, group="h", stream=1)
    with pytest.raises(DeadlockError, match="cycle: rank 0 at node"):
        simulate(job([one, two], [two, one], groups=sums), ONE, network=network)
    with pytest.raises(DeadlockError, match="rank 1"):
        simulate(job([(Kind.RECV, {"src": 1, "in_bytes": 8})], [comp(5)]), ONE, network=network)


def test_what_does_not_go_together_is_refused():
    given = job([coll(8)], [coll(8)])
    with pytest.raises(UsageError, match="cannot be folded: with network `flow`"):
        simulate(given, ONE, network="flow", fold=True)
    with pytest.raises(UsageError, match="they are for closed forms, not for `links`"):
        simulate(given, ONE, network="links", collective_times="recorded")
    with pytest.raises(UsageError, match="unknown value `ns3`"):
        simulate(given, ONE, network="ns3")
    with pytest.raises(UsageError, match="no algorithm `magic`"):
        simulate(given, ONE, network="flow", collective={"all_reduce": "magic"})


def test_by_name_and_nothing_folded():
    given = job(*([coll(64)] for _ in range(8)))
    found = etude.simulate(given, ONE, network="flow")
    assert found.simulated_ranks == 8
    assert any("simulated separately" in note for note in found.notes)
    assert etude.simulate(given, ONE).links == ()


@BOTH
def test_slots_grow_and_slices_do_not_matter(network: Any, monkeypatch: pytest.MonkeyPatch):
    nodes = [coll(640, stream=s) for s in range(40)]
    given = job(*(nodes for _ in range(8)))
    plan = {"all_reduce": "ring"}
    whole = simulate(given, ONE, network=network, collective=plan)  # 40 times 112 transfers at once
    assert sum(link.bytes for link in whole.links) == 2 * 40 * 14 * 640
    monkeypatch.setattr(engine, "TURNS", 3)
    cut = simulate(given, ONE, network=network, collective=plan)
    assert cut.links == whole.links
    assert all(np.array_equal(a, b) for a, b in zip(cut.timing.end_ns, whole.timing.end_ns, strict=True))


@BOTH
def test_an_interrupted_run_keeps_what_is_done(network: Any, monkeypatch: pytest.MonkeyPatch):
    def stop(done: int, now_ns: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "SLICE", 1)
    given = job(*([comp(5, stream=1), coll(50, data=[0], stream=1)] for _ in range(2)))
    found = simulate(given, ONE, network=network, progress=stop)
    assert found.timing.partial
    assert spans(found, 0) == [(0, 5), (5, UNKNOWN)]


def test_an_algorithm_without_a_schedule_is_replaced_and_said_so():
    given = job(*([coll(64, Collective.ALL_TO_ALL)] for _ in range(4)))
    found = simulate(given, ONE, network="flow", collective={"all_to_all": "rail"})
    assert found.links == simulate(given, ONE, network="flow", collective={"all_to_all": "direct"}).links
    assert "`rail` of all_to_all has no schedule on some groups, where `direct` is used" in found.notes


def test_only_the_busiest_links_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running, "LINKS_SHOWN", 1)
    sends = [(Kind.SEND, {"dst": 2, "in_bytes": 50, "stream": 1})]
    gets = [(Kind.RECV, {"src": src, "in_bytes": 50, "stream": src}) for src in (0, 1)]
    found = simulate(job(sends, sends, gets), ONE, network="flow")
    assert [(link.bytes, link.busy_ns) for link in found.links] == [(100, 100)]  # into rank 2
    assert ends(found, 0)[:2] == [400, 400]


@BOTH
@pytest.mark.parametrize("seed", range(25))
def test_nothing_starts_before_what_it_waits_for(network: Any, seed: int):
    rng = random.Random(seed)
    given = symmetric_job(rng) if seed % 2 else random_job(rng, ranks=4, events=14)
    where = system(-(-max(given.world_size, 8) // 2) * 2, inner=2)
    try:
        plain = simulate(given, where, fold=False)
    except DeadlockError:
        with pytest.raises(DeadlockError):
            simulate(given, where, network=network)
        return
    found = simulate(given, where, network=network)
    assert plain.simulated_ranks == found.simulated_ranks
    for at in range(len(given.ranks)):
        trace, (start, end) = given.traces[int(given.trace_of[at])], found.timing.block(at)
        assert (start != UNKNOWN).all()
        assert (start <= end).all()
        for edges, first in ((trace.data, trace.data_start), (trace.ctrl, trace.ctrl_start)):
            for row in range(len(trace)):
                for before in edges[first[row] : first[row + 1]].tolist():
                    assert before < 0 or start[row] >= end[before]
    again = simulate(given, where, network=network)
    assert all(np.array_equal(a, b) for a, b in zip(found.timing.end_ns, again.timing.end_ns, strict=True))
