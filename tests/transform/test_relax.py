"""relax, on pipelines built by hand: what follows the schedule, what it costs to agree, and what never completes."""

import numpy as np
import pytest

import etude
from etude.base.errors import DeadlockError, MismatchError, UsageError
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import AGREE, Collective, Kind, ValueKind, Why
from etude.store import chakra
from toy_systems import one_level


def ordered(job: Job) -> Job:
    """All control edges are there for the order of the program; groups are called as their axis."""
    return job.replace(
        traces=tuple(
            t.replace(
                ctrl_why=np.full(len(t.ctrl), int(Why.PROGRAM), np.uint8), group_slots=("tp",) * len(t.group_slots)
            )
            for t in job.traces
        )
    )


def one_forward_one_backward(stages: int, micro_batches: int, forward_ns: int, backward_ns: int) -> Job:
    """The schedule by its definition: stage s begins with p - 1 - s forward passes, then takes turns."""
    builders = []
    for s in range(stages):
        ahead = min(stages - 1 - s, micro_batches)
        todo = [("forward", m) for m in range(ahead)]
        for m in range(micro_batches - ahead):
            todo += [("forward", m + ahead), ("backward", m)]
        todo += [("backward", m) for m in range(micro_batches - ahead, micro_batches)]
        b, before, sent = TraceBuilder(), None, {}
        for phase, m in todo:
            back = phase == "backward"
            source, target = (s + 1, s - 1) if back else (s - 1, s + 1)
            where = {"phase": phase, "micro_batch": m}
            data = [sent[m]] if back and s == stages - 1 else []
            if 0 <= source < stages:
                data.append(b.add(Kind.RECV, "recv", src=source, tag=2 * m + back, in_bytes=0, **where))
            order = [] if before is None else [before]
            lasts = backward_ns if back else forward_ns
            before = sent[m] = b.add(
                Kind.COMP, phase, data=data, ctrl=order, duration_ns=lasts, stream=7, cpu=0, **where
            )
            if 0 <= target < stages:
                b.add(Kind.SEND, "send", data=[before], dst=target, tag=2 * m + back, in_bytes=0, **where)
        builders.append(b)
    return ordered(job_of("pipeline", builders))


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("micro_batches", [1, 3, 8])
def test_equal_stages_without_noise_keep_their_makespan(stages: int, micro_batches: int):
    machine = one_level("switch", stages, latency_ns=0.0)
    job = one_forward_one_backward(stages, micro_batches, 100, 200)
    wanted = (micro_batches + stages - 1) * 300  # the textbook's
    assert etude.simulate(job, machine, concurrent_network=True).makespan_ns == wanted
    relaxed = etude.edit(job, "relax in_flight=keep")
    for policy in ("recorded", "hint"):
        assert etude.simulate(relaxed, machine, policy=policy, concurrent_network=True).makespan_ns == wanted


def test_no_more_micro_batches_are_under_way_than_the_schedule_has():
    stages, micro_batches = 4, 8
    machine = one_level("switch", stages, latency_ns=0.0)
    relaxed = etude.edit(one_forward_one_backward(stages, micro_batches, 100, 200), "relax in_flight=keep")
    run = etude.simulate(relaxed, machine, policy="hint", concurrent_network=True, jitter={"action": 1.0}, seed=2)
    for stage in range(stages):
        start, end = run.timing.block(stage)
        trace = relaxed.trace(stage)
        work = [r for r in range(len(trace)) if trace.kind[r] == Kind.COMP]
        begins = [start[r] for r in work if trace.text("phase", r) == "forward"]
        ends = [end[r] for r in work if trace.text("phase", r) == "backward"]
        most = max(sum(t <= at for t in begins) - sum(t <= at for t in ends) for at in begins)
        assert most <= stages - stage


def two_that_share_two_passes(late: tuple[int, int], *, extra: bool = False) -> Job:
    """Two ranks of a tensor group. Each pass waits for its data (on the host) and ends in a call of both; which pass
    has its data first is not the same on both ranks."""
    builders = []
    for rank in range(2):
        b, before = TraceBuilder(), []
        for m in range(2):
            there = b.add(Kind.COMP, "data", duration_ns=(2000, 500)[rank] if late[rank] == m else 0, cpu=1, thread=m)
            work = b.add(
                Kind.COMP, "work", data=[there], ctrl=before, duration_ns=100, stream=7, cpu=0, phase="forward",
                micro_batch=m,
            )  # fmt: skip
            b.add(
                Kind.COLL, "call", data=[work], collective=Collective.ALL_REDUCE, in_bytes=0, group="tp", stream=8,
                cpu=0, phase="forward", micro_batch=m,
            )  # fmt: skip
            before = [work]
        if extra and rank:
            b.add(Kind.COMP, "more", duration_ns=1, stream=7, cpu=0)
        builders.append(b)
    return ordered(job_of("two", builders, {"tp": [0, 1]}))


TWO = one_level("switch", 2)


def test_ranks_that_choose_differently_never_complete_and_those_that_agree_do():
    job = two_that_share_two_passes(late=(0, 1))
    with pytest.raises(DeadlockError):
        etude.simulate(etude.edit(job, "relax"), TWO, policy="hint")
    agreed = etude.edit(job, "relax agree=tp control=0B")
    run = etude.simulate(agreed, TWO, policy="hint")
    for rank in range(2):
        trace, (start, _) = agreed.trace(rank), run.timing.block(rank)
        work = [row for row in range(len(trace)) if trace.text("name", row) == "work"]
        order = [int(trace.micro_batch[row]) for row in sorted(work, key=lambda row: start[row])]
        assert order == [1, 0]  # the first rank has the data of pass 1 first
    # a broadcast of nothing takes 10 ns, a call of nothing 20: pass 1 waits for rank 1 until 500, pass 0 until 2000
    assert sorted(int(run.timing.block(1)[0][row]) for row in work) == [510, 2010]
    assert run.makespan_ns == 2010 + 100 + 20


def test_what_is_told_costs_what_a_broadcast_of_it_does():
    job = two_that_share_two_passes(late=(0, 0))
    plain = etude.simulate(etude.edit(job, "relax agree=tp control=0B"), TWO, policy="recorded").makespan_ns
    told = etude.simulate(etude.edit(job, "relax agree=tp control=30B"), TWO, policy="recorded").makespan_ns
    assert told - plain == 2 * 30  # once a pass, at 1 byte a ns
    assert [len(t) for t in etude.edit(job, "relax agree=tp").traces] == [len(job.trace(0)) + 2] * 2


def test_an_agreement_is_written_and_read_back(tmp_path):
    agreed = etude.edit(two_that_share_two_passes(late=(0, 1)), "relax agree=tp")
    (tmp_path / "et").mkdir()
    chakra.write_job(agreed, tmp_path / "et")
    again = etude.open(tmp_path / "et")
    assert etude.diff(agreed, again) is None
    nodes, place = again.trace(1).attr_cells()[AGREE, ValueKind.INT64]
    assert [again.trace(1).text("name", int(row)) for row in nodes] == ["agree", "agree"]
    assert place.tolist() == [0, 0]
    ends = [etude.simulate(one, TWO, policy="hint").makespan_ns for one in (agreed, again)]
    assert ends[0] == ends[1]


def test_ranks_of_different_programs_do_not_agree():
    agreed = etude.edit(two_that_share_two_passes(late=(0, 1), extra=True), "relax agree=tp")
    with pytest.raises(MismatchError, match="rank 1 must follow the order of rank 0, but runs another program"):
        etude.simulate(agreed, TWO, policy="hint")


def test_only_groups_of_the_job_agree():
    with pytest.raises(UsageError, match="agree: no group `pp`"):
        etude.edit(two_that_share_two_passes(late=(0, 1)), "relax agree=pp")
