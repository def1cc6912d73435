"""The simulator on jobs worked by hand, and what it refuses."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest

import etude
from etude.analyse.breakdown import breakdown
from etude.base.errors import ClusterError, DeadlockError, EtudeError, MismatchError, TraceError, UsageError
from etude.machine import open_system
from etude.model.build import TraceBuilder, job_of
from etude.model.fold import fold
from etude.model.job import Job
from etude.model.memory import memory_peaks
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.timing import Origin, Timing
from etude.run.simulate import engine
from etude.run.simulate.options import Overlap, RemoteMemory
from etude.run.simulate.run import simulate
from simulated_jobs import system
from tiny_jobs import GROUPS, ring

ONE = system(8, bandwidth=1e9, latency_ns=100, inner=1)
"""8 devices on one switch at 1 B/ns: a message of 50 B takes 300 + 50 ns."""
MESSAGE = 350
SUM = {"collective": Collective.ALL_REDUCE, "in_bytes": 50}


def times(job: Job, rank: int = 0, **options: Any) -> list[tuple[int, int]]:
    start, end = simulate(job, ONE, **options).timing.block(job.index(rank))
    return list(zip(start.tolist(), end.tolist(), strict=True))


def alone(*nodes: tuple[Kind, dict[str, Any]]) -> Job:
    b = TraceBuilder()
    for kind, row in nodes:
        b.add(kind, **row)
    return job_of("alone", [b])


def comp(duration_ns: int, **row: Any) -> tuple[Kind, dict[str, Any]]:
    return Kind.COMP, {"duration_ns": duration_ns, **row}


# -- lanes -------------------------------------------------------------------------------------------------------------


def test_gelu_waits_for_its_stream_not_only_for_its_launch():
    job = alone(
        comp(10, cpu=1),                           # launch: 0..10
        comp(100, stream=7, data=[0]),             # gemm: 10..110
        comp(30, stream=7, data=[0]),              # gelu: ready at 10, stream busy until 110
    )  # fmt: skip
    assert times(job) == [(0, 10), (10, 110), (110, 140)]


def test_a_step_ends_with_the_last_of_its_nodes_on_any_rank():
    a, b = TraceBuilder(), TraceBuilder()
    for builder, longer in ((a, 0), (b, 5)):
        builder.add(Kind.COMP, duration_ns=10, stream=1, step=0)  # 0..10
        builder.add(Kind.COMP, duration_ns=20 + longer, stream=2, step=0)  # 0..20 or 25
        builder.add(Kind.COMP, duration_ns=3, stream=1, step=1)  # 10..13: before the other is over
        builder.add(Kind.COMP, duration_ns=40, stream=1)  # of no step
    assert simulate(job_of("two", [a, b]), system(2)).step_ends() == {0: 25, 1: 13}


def test_lanes_run_side_by_side_and_a_receive_without_a_stream_holds_none():
    job = alone(comp(10, stream=1), comp(20, stream=2), comp(5, cpu=1))
    assert times(job) == [(0, 10), (0, 20), (0, 5)]


def test_ready_first_takes_what_came_first_and_priority_what_counts_most():
    job = alone(
        comp(10, stream=1, priority=5),
        comp(10, stream=2),
        comp(3, stream=1, priority=1, data=[1]),   # ready at 10
        comp(4, stream=2),
        comp(2, stream=1, priority=7),             # ready at 0, so before node 2 if first come is first served
    )  # fmt: skip
    assert [times(job, policy="ready")[n] for n in (2, 4)] == [(12, 15), (10, 12)]
    assert [times(job, policy="priority")[n] for n in (2, 4)] == [(10, 13), (13, 15)]


def test_a_recorded_order_is_a_rule_or_a_hint():
    job = alone(comp(10, stream=1), comp(5, stream=1), comp(7, stream=2), comp(1, stream=1, data=[2]))
    order = np.array([3, 2, 0, 1], np.int64)  # node 3 was first on its stream
    timing = Timing(
        origin=Origin.MEASURED,
        start_ns=(order,),
        end_ns=(order + 1,),
        block_of=np.zeros(1, np.int32),
        clock_offset_ns=np.zeros(1, np.int64),
    )
    job = job.replace(timing=timing)
    assert times(job, policy="recorded") == [(13, 23), (8, 13), (0, 7), (7, 8)]
    assert times(job, policy="hint") == [(5, 15), (0, 5), (0, 7), (15, 16)]


def test_frames_and_metadata_take_no_time():
    job = alone(
        comp(100, cpu=1),
        comp(10, cpu=1, parent=0, data=[0]),
        (Kind.METADATA, {"data": [1], "duration_ns": 50}),
        comp(5, cpu=1, data=[2]),
    )
    assert times(job) == [(0, 0), (0, 10), (10, 10), (10, 15)]


def test_dependencies_of_both_kinds_hold_and_missing_ones_do_not():
    job = alone(comp(10, stream=1), comp(20, stream=2), comp(1, stream=3, data=[0], ctrl=[1]))
    assert times(job)[2] == (20, 21)
    trace = job.traces[0]
    cut = trace.replace(missing=np.array([900], np.uint64), data=np.array([-1], np.int32))
    found = simulate(job.replace(traces=(cut,)), ONE)
    assert found.notes == ("1 dependencies are on nodes that are not in the files, and are ignored",)


# -- communication -----------------------------------------------------------------------------------------------------


def pair(*, first: int = 10, second: int = 60, **coll: Any) -> Job:
    builders = []
    for duration in (first, second):
        b = TraceBuilder()
        b.add(Kind.COMP, duration_ns=duration)
        b.add(Kind.COLL, data=[0], group="g", **(SUM | coll))
        builders.append(b)
    return job_of("pair", builders, {"g": [0, 1]})


def test_a_collective_waits_for_its_last_member():
    job = pair()
    ns = times(job)[1][1] - 60
    assert ns > 0
    assert times(job) == [(0, 10), (10, 60 + ns)]
    assert times(job, 1) == [(0, 60), (60, 60 + ns)]
    found = simulate(job, ONE)
    assert found.makespan_ns == 60 + ns
    spent = breakdown(found)
    assert spent["compute_ns"].to_pylist() == [10, 60]
    assert spent["exposed_comm_ns"].to_pylist() == [50 + ns, ns]
    assert spent["idle_ns"].to_pylist() == [0, 0]


def test_recorded_collective_times_are_those_of_the_member_that_waited_least():
    job = pair(duration_ns=77)
    shorter = {1: {"duration_ns": np.array([60, 33], np.int64)}}
    assert times(job.replace(values=shorter), collective_times="recorded")[1] == (10, 93)


def message(**row: Any) -> Job:
    a, b = TraceBuilder(), TraceBuilder()
    a.add(Kind.COMP, duration_ns=10)
    a.add(Kind.SEND, data=[0], dst=1, in_bytes=50, **row)
    b.add(Kind.COMP, duration_ns=500)
    b.add(Kind.RECV, data=[0], src=0, in_bytes=50, **row)
    b.add(Kind.COMP, duration_ns=1, stream=9, data=[1])
    return job_of("message", [a, b])


def test_an_eager_message_does_not_wait_for_its_receiver():
    assert times(message(), 0)[1] == (10, 10 + MESSAGE)
    assert times(message(), 1)[1:] == [(500, 500), (500, 501)]


def test_a_rendezvous_does():
    assert times(message(), 0, eager_bytes=49)[1] == (10, 500 + MESSAGE)
    assert times(message(), 1, eager_bytes=49)[1] == (500, 500 + MESSAGE)


def test_a_receive_without_a_lane_begins_with_its_message():
    a, b = TraceBuilder(), TraceBuilder()
    a.add(Kind.COMP, duration_ns=100)
    a.add(Kind.SEND, data=[0], dst=1, in_bytes=50)
    b.add(Kind.RECV, src=0, in_bytes=50)
    job = job_of("early", [a, b])
    assert times(job, 1) == [(100, 100 + MESSAGE)]
    assert breakdown(simulate(job, ONE))["span_ns"].to_pylist() == [100 + MESSAGE, MESSAGE]


def test_collectives_on_one_lane_queue_and_without_it_are_in_flight_together():
    builders = []
    for _ in range(2):
        b = TraceBuilder()
        b.add(Kind.COLL, group="g", **SUM)
        b.add(Kind.COLL, group="h", **SUM)
        builders.append(b)
    job = job_of("two", builders, {"g": [0, 1], "h": [1, 0]})
    ns = times(job)[0][1]
    assert times(job) == [(0, ns), (ns, 2 * ns)]
    assert times(job, concurrent_network=True) == [(0, ns), (0, ns)]


def test_a_job_of_some_ranks_of_its_world_runs_and_says_so():
    b = TraceBuilder()
    b.add(Kind.COLL, group="g", duration_ns=40, **SUM)
    b.add(Kind.COLL, group="g", data=[0], **SUM)
    b.add(Kind.SEND, dst=3, in_bytes=50, data=[1])
    job = job_of("part", [b], {"g": [0, 1, 2, 3]})
    found = simulate(job, ONE)
    start, end = found.timing.block(0)
    assert end[0] == 40
    assert end[1] > 40
    assert end[2] - start[2] == MESSAGE
    assert "1 last as recorded and 1 as modelled" in found.notes[0]
    assert "peer that is not in the job" in found.notes[1]


def test_compute_and_communication_slow_each_other_by_the_stated_factors():
    b = TraceBuilder()
    b.add(Kind.SEND, dst=1, in_bytes=50)  # 350 ns alone
    b.add(Kind.COMP, duration_ns=100)
    r = TraceBuilder()
    r.add(Kind.RECV, src=0, in_bytes=50)
    job = job_of("overlap", [b, r])
    assert times(job) == [(0, 350), (0, 100)]
    assert times(job, overlap=Overlap(compute=1.5)) == [(0, 350), (0, 150)]
    # compute ends at 200; until then 200 / 1.25 = 160 ns of the message are done, 190 are left
    assert times(job, overlap=Overlap(compute=2.0, communication=1.25)) == [(0, 390), (0, 200)]


# -- times -------------------------------------------------------------------------------------------------------------


def test_compute_times_are_recorded_scaled_or_modelled():
    job = alone(comp(100), comp(UNKNOWN, flops=10**9), comp(UNKNOWN))
    machine = open_system("dgx-h100")
    found = simulate(job, machine)
    start, end = found.timing.block(0)
    assert end[0] - start[0] == 100
    assert end[1] - start[1] > 1000
    assert end[2] == start[2]
    assert len(found.notes) == 2
    scaled = simulate(job, machine, compute="scaled", scale=0.5)
    assert scaled.timing.block(0)[1][0] == 50
    modelled = simulate(job, machine, compute="roofline").timing.block(0)
    assert (modelled[1] - modelled[0]).tolist()[1] == end[1] - start[1]


def test_memory_nodes_take_bytes_over_bandwidth_and_hold_memory():
    job = alone(
        (Kind.MEM_LOAD, {"tensor_bytes": 1000}),
        (Kind.MEM_LOAD, {"tensor_bytes": 500, "data": [0]}),
        (Kind.MEM_STORE, {"tensor_bytes": 1200, "data": [1]}),
    )
    assert times(job) == [(0, 1000), (1000, 1500), (1500, 2700)]
    found = simulate(job, ONE, remote_memory=RemoteMemory(bytes_per_s=2e9, latency_ns=7))
    assert found.timing.block(0)[1].tolist() == [507, 764, 1371]
    assert memory_peaks(found).held_bytes.tolist() == [1500]
    small = simulate(job, ONE, remote_memory=RemoteMemory(bytes_per_s=2e9, capacity_bytes=1000))
    assert small.notes == ("1 ranks store more than the 1,000 B of remote memory; the first is rank 0",)


def test_slow_ranks_and_links():
    job = pair()
    ns = times(job)[1][1] - 60
    assert times(job, 1, slow_ranks={1: 2.0})[0] == (0, 120)
    assert times(job, slow_links={(1, 0): 3.0})[1] == (10, 60 + 3 * ns)
    with pytest.raises(ClusterError, match="between ranks 0 and 1 has failed, but group `g` needs it"):
        simulate(job, ONE, slow_links={(0, 1): math.inf})
    with pytest.raises(ClusterError, match="a message needs it"):
        simulate(message(), ONE, slow_links={(0, 1): math.inf})


def test_jitter_keeps_the_mean_and_depends_on_the_seed():
    job = alone(*[comp(1000, stream=i) for i in range(400)])

    def ends(**options: Any) -> list[int]:
        return [b for _, b in times(job, **options)]

    jittered = ends(jitter={"compute": 0.1})
    assert 980 < np.mean(jittered) < 1020
    assert 80 < np.std(jittered) < 120
    assert jittered == ends(jitter={"compute": 0.1})
    assert jittered != ends(jitter={"compute": 0.1}, seed=1)
    assert ends(jitter={"p2p": 0.1}) == [1000] * 400


def test_ranks_with_values_of_their_own():
    job = fold(job_of("job", [ring(r, duration_ns=10 + r) for r in range(4)], GROUPS))
    assert job.values
    found = simulate(job, ONE)
    assert [found.timing.block(i)[1][0] for i in range(4)] == [10, 11, 12, 13]


# -- folding -----------------------------------------------------------------------------------------------------------


def circle() -> Job:
    """Four ranks: a sum in pairs, a sum across, a message to the next."""
    builders = []
    for r in range(4):
        b = TraceBuilder()
        b.add(Kind.COMP, duration_ns=10)
        b.add(Kind.COLL, data=[0], group="ab"[r // 2], **SUM)
        b.add(Kind.COLL, data=[1], group=("left", "right")[r % 2], **SUM)
        b.add(Kind.SEND, data=[2], dst=(r + 1) % 4, in_bytes=5)
        b.add(Kind.RECV, src=(r - 1) % 4, in_bytes=5)
        builders.append(b)
    return job_of("circle", builders, GROUPS)


def test_ranks_that_are_alike_are_simulated_once():
    job = circle()
    found, whole = simulate(job, ONE, fold=True), simulate(job, ONE, fold=False)
    assert (found.simulated_ranks, whole.simulated_ranks) == (1, 4)
    for i in range(4):
        assert found.timing.block(i)[1].tolist() == whole.timing.block(i)[1].tolist()
    assert found.timing.origin == Origin.SIMULATED


def test_placement_takes_classes_apart():
    job = circle()
    assert simulate(job, system(4, inner=2)).simulated_ranks == 2  # 1 -> 2 and 3 -> 0 leave the pair
    assert simulate(job, ONE, slow_ranks={2: 1.1}).simulated_ranks == 4


def test_fold_is_refused_where_ranks_are_not_alike():
    job = job_of("job", [ring(r, duration_ns=10 + r) for r in range(4)], GROUPS)
    with pytest.raises(UsageError, match="no two of them run the same program"):
        simulate(job, ONE, fold=True)
    with pytest.raises(UsageError, match="with jitter no two ranks are equivalent"):
        simulate(job, ONE, fold=True, jitter={"compute": 0.1})


# -- deadlocks ---------------------------------------------------------------------------------------------------------


def test_two_orders_on_two_groups_are_a_deadlock_that_is_explained():
    builders = []
    for names in (("g", "h"), ("h", "g")):
        b = TraceBuilder()
        for n in names:
            b.add(Kind.COLL, "sum", group=n, source_id=10 + len(b), **SUM)
        builders.append(b)
    job = job_of("crossed", builders, {"g": [0, 1], "h": [1, 0]})
    with pytest.raises(DeadlockError) as caught:
        simulate(job, ONE)
    text = str(caught.value)
    assert "2 ranks never complete" in text
    assert (
        "rank 0: node 10 (all_reduce `sum`), the 1st of group `g`, waits for rank 1, which has not reached it" in text
    )
    assert "cycle: rank 0 at node 10 waits for rank 1 at node 10 waits for rank 0 at node 10" in text
    assert caught.value.exit_code == 1
    assert caught.value.waiting[0]["waits_for"] == [1]


def test_the_mismatch_behind_a_deadlock_is_named():
    short, long = TraceBuilder(), TraceBuilder()
    for b, calls in ((short, 1), (long, 2)):
        for _ in range(calls):
            b.add(Kind.COLL, group="g", **SUM)
    with pytest.raises(DeadlockError) as caught:
        simulate(job_of("missing", [short, long], {"g": [0, 1]}), ONE)
    assert "waits for rank 0, which has no such call" in str(caught.value)
    assert "rank 1: issues 2 collectives on group `g` (ranks 0-1), but rank 0 issues 1" in caught.value.causes[0]


def test_a_receive_that_nobody_sends():
    a, b = TraceBuilder(), TraceBuilder()
    a.add(Kind.COMP, duration_ns=1)
    b.add(Kind.RECV, src=0, tag=3, in_bytes=5)
    with pytest.raises(DeadlockError) as caught:
        simulate(job_of("lone", [a, b]), ONE)
    assert "rank 1: node 0 (recv) waits for a message from rank 0 (tag 3), which has no such send" in str(caught.value)
    assert caught.value.causes


def test_two_rendezvous_that_cross():
    builders = []
    for r in range(2):
        b = TraceBuilder()
        b.add(Kind.SEND, dst=1 - r, in_bytes=5)
        b.add(Kind.RECV, src=1 - r, in_bytes=5, data=[0])
        builders.append(b)
    job = job_of("cross", builders)
    assert simulate(job, ONE).makespan_ns > 0
    with pytest.raises(DeadlockError, match="waits to be received by rank 1, which has not reached node 1"):
        simulate(job, ONE, eager_bytes=0)


def test_a_recorded_order_that_cannot_be():
    job = alone(comp(1, stream=1, data=[1]), comp(1, stream=1))
    assert times(job) == [(1, 2), (0, 1)]
    with pytest.raises(DeadlockError, match="node 1 .* its lane keeps the recorded order"):
        simulate(job, ONE, policy="recorded")


def test_a_cycle_is_a_deadlock_of_one_rank():
    with pytest.raises(DeadlockError, match="rank 0: nodes wait for one another: 0 waits for 1 waits for 0"):
        simulate(alone(comp(1, data=[1]), comp(1, data=[0])), ONE)


# -- what is refused ---------------------------------------------------------------------------------------------------


def mixed(second: Collective) -> Job:
    builders = []
    for what in (Collective.ALL_REDUCE, second):
        b = TraceBuilder()
        b.add(Kind.COLL, group="g", collective=what, in_bytes=8)
        builders.append(b)
    return job_of("mixed", builders, {"g": [0, 1]})


def outside() -> Job:
    b = TraceBuilder()
    b.add(Kind.COLL, group="g", **SUM)
    job = job_of("outside", [b], {"g": [0, 5]})
    return job.replace(world_size=2)


REFUSED: list[tuple[Any, dict[str, Any], type[EtudeError], str]] = [
    (lambda: pair(), {"policy": "random"}, UsageError, "policy: unknown value `random`"),
    (lambda: pair(), {"speed": 1}, UsageError, "unknown parameter `speed`"),
    (lambda: pair(), {"collective": {"all_reduce": "magic"}}, UsageError, "all_reduce has no algorithm `magic`"),
    (lambda: pair(), {"collective": {"sum": "ring"}}, TraceError, "unknown collective `sum`"),
    (lambda: pair(), {"jitter": {"gpu": 0.1}}, UsageError, "unknown class `gpu`"),
    (lambda: pair(), {"slow_ranks": {9: 2.0}}, UsageError, "rank 9 is not in the job"),
    (lambda: pair(), {"slow_ranks": {0: -1.0}}, UsageError, "not a factor"),
    (lambda: pair(), {"slow_links": {(0, 9): 2.0}}, UsageError, "rank 9 is outside the world"),
    (lambda: pair(), {"compute": "table"}, UsageError, "none is given"),
    (lambda: mixed(Collective.ALL_GATHER), {}, MismatchError, "the 1st collective of group `g`"),
    (lambda: mixed(Collective.NONE), {"fold": False}, EtudeError, ""),
    (outside, {}, TraceError, "member 5, outside the world of 2"),
    (lambda: job_of("many", [TraceBuilder() for _ in range(9)]), {}, UsageError, "no device for rank 8"),
    (lambda: alone(comp(-5)), {}, TraceError, "a duration of -5 ns is not valid"),
    (lambda: alone((Kind.SEND, {"in_bytes": 4})), {}, TraceError, "neither a peer"),
]


@pytest.mark.parametrize(("make", "options", "kind", "text"), REFUSED)
def test_what_cannot_be_is_refused(make: Any, options: dict[str, Any], kind: type[EtudeError], text: str):
    job = make()
    if not text:
        simulate(job, ONE, **options)
        return
    with pytest.raises(kind) as caught:
        simulate(job, ONE, **options)
    assert text in str(caught.value)


# -- the public face ---------------------------------------------------------------------------------------------------


def test_the_verb_can_be_called_whatever_was_imported_before():
    importlib.import_module("etude.run.simulate.options")
    assert etude.simulate(pair(), ONE).makespan_ns == simulate(pair(), ONE).makespan_ns


def test_an_interrupted_run_is_partial(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine, "SLICE", 1)
    seen = []

    def stop(done: int, now_ns: int) -> None:
        seen.append((done, now_ns))
        if done == 2:
            raise KeyboardInterrupt

    found = simulate(alone(comp(10), comp(10), comp(10)), ONE, progress=stop)
    assert found.timing.partial
    assert found.timing.block(0)[1].tolist() == [10, 20, UNKNOWN]
    assert found.makespan_ns == 20
    assert seen == [(1, 10), (2, 20)]
