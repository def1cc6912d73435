import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etude
from etude.analyse.critical_path import by_kind, by_name, critical_path, length_ns
from etude.base.errors import EtudeError, UsageError
from etude.model.job import Job
from etude.model.run import Run, recorded
from etude.model.schema import Collective, Kind, Why
from etude.run.simulate.options import Options, Overlap
from etude.run.simulate.result import Simulated
from etude.run.simulate.run import simulate
from simulated_jobs import random_job, random_options, symmetric_job, system
from timed_jobs import timed

GEMM = {"kind": Kind.COMP, "name": "gemm", "stream": 7, "cpu": 0}


def simulated(job: Job, options: Options) -> Simulated | None:
    try:
        return simulate(job, system(), options)
    except EtudeError:
        return None


def runs(seeds: range, **fixed: object) -> list[tuple[Job, Options, Simulated]]:
    found = []
    for seed in seeds:
        rng = random.Random(seed)
        job = symmetric_job(rng) if seed % 3 == 0 else random_job(rng, broken=False, events=rng.randint(1, 30))
        options = random_options(rng, job, **fixed)
        run = simulated(job, options)
        if run is not None and run.makespan_ns > 0:
            found.append((job, options, run))
    return found


def test_on_random_jobs_the_path_is_as_long_as_the_run() -> None:
    tried = runs(range(60))
    assert len(tried) > 30
    for _, options, run in tried:
        path = critical_path(run, rendezvous=options.eager_bytes == 0)
        rows = path.to_pylist()
        assert length_ns(path) == run.makespan_ns
        assert sum(by_kind(path).values()) == run.makespan_ns
        assert all(a["end_ns"] == b["start_ns"] for a, b in pairwise(rows))
        if options.eager_bytes != 20:  # then some messages wait for their receives and others do not
            assert "gap" not in by_kind(path)


def test_what_is_off_the_path_cannot_shorten_the_run() -> None:
    """Lane order is frozen: the order of the first run is the rule of the next ones."""
    shortened = on_path = 0
    for job, _, run in runs(range(45), overlap=Overlap(), eager_bytes=None, concurrent_network=False, slow_ranks={}):
        job = job.replace(timing=run.timing)
        frozen = simulated(job, Options(policy="recorded"))
        if frozen is None:
            continue
        path = critical_path(frozen)
        assert length_ns(path) == frozen.makespan_ns
        taken = {(r["rank"], r["node"]) for r in path.to_pylist()}
        for rank in job.ranks.tolist():
            trace = job.trace(rank)
            for node in np.flatnonzero((trace.kind == Kind.COMP) & (trace.duration_ns > 0)).tolist():
                less = trace.duration_ns.copy()
                less[node] = 0
                own = {**job.values, rank: {**job.values.get(rank, {}), "duration_ns": less}}
                again = simulated(job.replace(values=own), Options(policy="recorded", fold=False))
                assert again is not None
                if (rank, node) not in taken:
                    assert again.makespan_ns >= frozen.makespan_ns
                    shortened += 1
                else:
                    on_path += again.makespan_ns < frozen.makespan_ns
    assert shortened > 50
    assert on_path > 10


def without(job: Job, taken: set[tuple[int, int]]) -> tuple[Job, int]:
    """The job with nothing to compute and nothing to send off the path; and how many nodes that takes away from. A
    collective or a message is on the path if one of its members is."""
    values, touched = dict(job.values), 0
    carried = {(r, n) for r, n in taken if job.trace(r).kind[n] != Kind.COMP}
    for rank in job.ranks.tolist():
        trace = job.trace(rank)
        off = np.array([(rank, n) not in taken for n in range(len(trace))], bool)
        less = off & (trace.kind == Kind.COMP) & (trace.duration_ns > 0)
        own = {**values.get(rank, {}), "duration_ns": np.where(less, 0, trace.duration_ns)}
        if not carried:
            talks = np.isin(trace.kind, (Kind.COLL, Kind.SEND, Kind.RECV)) & (trace.in_bytes > 0)
            less |= talks
            own["in_bytes"] = np.where(talks, 1, trace.in_bytes)
        values[rank] = own
        touched += int(less.sum())
    return job.replace(values=values), touched


@settings(max_examples=30)
@given(st.integers(1000, 10**9))
def test_all_that_is_off_the_path_at_once_cannot_shorten_the_run(seed: int) -> None:
    """Shortening everything else is more than shortening any one op. Lane order is frozen."""
    for job, _, run in runs(range(seed, seed + 1), overlap=Overlap(), eager_bytes=None, concurrent_network=False,
                               slow_ranks={}):  # fmt: skip
        job = job.replace(timing=run.timing)
        frozen = simulated(job, Options(policy="recorded", fold=False))
        if frozen is None:
            continue
        path = critical_path(frozen)
        assert length_ns(path) == frozen.makespan_ns
        less, touched = without(job, {(r["rank"], r["node"]) for r in path.to_pylist()})
        again = simulated(less, Options(policy="recorded", fold=False)) if touched else frozen
        assert again is not None
        assert again.makespan_ns == frozen.makespan_ns


@pytest.mark.parametrize("name", ["cuda_event_sync_multi_stream", "dlrm8.rank0"])
def test_a_measured_run_is_no_shorter_without_what_is_off_its_path(shared: Path, name: str) -> None:
    job = etude.open(shared / "oracle" / "hta" / "inputs" / f"{name}.json.gz")
    path = critical_path(recorded(job)).to_pylist()
    assert all(a["end_ns"] == b["start_ns"] for a, b in pairwise(path))
    start, end = job.timing.start_ns[0], job.timing.end_ns[0]
    for piece in path:
        if piece["kind"] not in ("launch", "gap"):
            assert start[piece["node"]] <= piece["start_ns"] <= piece["end_ns"] <= end[piece["node"]]
    again = simulate(job, system(), Options(policy="recorded", fold=False))
    found = critical_path(again)
    assert length_ns(found) == again.makespan_ns
    less, touched = without(job, {(r["rank"], r["node"]) for r in found.to_pylist()})
    assert touched > 3
    assert simulate(less, system(), Options(policy="recorded", fold=False)).makespan_ns == again.makespan_ns


def test_a_collective_is_reached_through_its_last_member() -> None:
    total = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE, "group": "g"}
    run = timed(
        [(GEMM, 0, 10), (total | {"data": [0]}, 10, 60)],
        [(GEMM, 0, 40), (total | {"data": [0]}, 40, 60), (GEMM | {"data": [1]}, 60, 61)],
        groups={"g": [0, 1]},
    )
    path = critical_path(run).to_pylist()
    assert [(r["rank"], r["name"], r["start_ns"], r["end_ns"]) for r in path] == [
        (1, "gemm", 0, 40), (1, "sum", 40, 60), (1, "gemm", 60, 61),
    ]  # fmt: skip


def test_a_launch_a_kernel_and_a_synchronisation_that_no_edge_records() -> None:
    call = {"kind": Kind.COMP, "name": "cudaLaunchKernel", "thread": 1, "cpu": 1}
    wait = {"kind": Kind.COMP, "name": "cudaStreamSynchronize", "thread": 1, "cpu": 1}
    op = {"kind": Kind.COMP, "name": "python", "thread": 1, "cpu": 1}
    # launch 0..10, kernel 14..90, the host waits from 12 until 93 and goes on until 100
    run = timed([(call, 0, 10), (GEMM | {"data": [0]}, 14, 90), (wait, 12, 93), (op, 93, 100)])
    trace = run.job.traces[0].replace(data_why=np.array([Why.LAUNCH], np.uint8))
    path = critical_path(Run(run.job.replace(traces=(trace,)), run.timing))
    assert [(r["name"], r["kind"], r["start_ns"], r["end_ns"]) for r in path.to_pylist()] == [
        ("cudaLaunchKernel", "host", 0, 10),
        ("gemm", "launch", 10, 14),
        ("gemm", "compute", 14, 90),
        ("cudaStreamSynchronize", "host", 90, 93),
        ("python", "host", 93, 100),
    ]
    assert by_kind(path) == {"compute": 76, "host": 20, "launch": 4}
    assert by_name(path).to_pylist()[0] == {
        "kind": "compute", "name": "gemm", "count": 1, "time_ns": 76, "share": pytest.approx(0.76)
    }  # fmt: skip


def test_a_kernel_may_start_before_its_launch_returns() -> None:
    call = {"kind": Kind.COMP, "name": "cudaLaunchKernel", "thread": 1, "cpu": 1}
    run = timed([(call, 0, 10), (GEMM | {"data": [0]}, 7, 20)])
    path = critical_path(run).to_pylist()
    assert [(r["start_ns"], r["end_ns"]) for r in path] == [(0, 7), (7, 20)]


def test_a_copy_call_that_waits_for_its_copy_is_the_device() -> None:
    """Rank computes until 80, the copy to pageable memory runs 80..90, and the call stands from 10 until 92."""
    copy = {"kind": Kind.COMP, "name": "Memcpy DtoH (Device -> Pageable)", "stream": 7, "cpu": 0, "correlation": 2}
    call = {"kind": Kind.COMP, "name": "cudaMemcpyAsync", "thread": 1, "cpu": 1, "correlation": 2}
    op = {"kind": Kind.COMP, "name": "python", "thread": 1, "cpu": 1}
    run = timed([(op, 0, 10), (GEMM | {"data": [0]}, 10, 80), (call, 10, 92), (copy, 80, 90), (op, 92, 95)])
    path = critical_path(run).to_pylist()
    assert [(r["name"], r["start_ns"], r["end_ns"]) for r in path] == [
        ("python", 0, 10), ("gemm", 10, 80), ("Memcpy DtoH (Device -> Pageable)", 80, 90), ("cudaMemcpyAsync", 90, 92),
        ("python", 92, 95),
    ]  # fmt: skip


@pytest.mark.parametrize(("busy", "waited"), [(10, False), (595, True)])
def test_a_copy_call_waits_only_for_a_device_that_is_at_work(busy: int, waited: bool) -> None:
    """The call stands from 400 until 700, in two pieces, and its copy runs 600..605; the device was at work before."""
    op = {"kind": Kind.COMP, "name": "python", "thread": 1, "cpu": 1}
    call = {"kind": Kind.COMP, "name": "cudaMemcpyAsync", "thread": 1, "cpu": 1, "correlation": 2}
    piece = {"kind": Kind.COMP, "name": "host", "thread": 1, "cpu": 1, "parent": 2}
    copy = {"kind": Kind.COMP, "name": "Memcpy DtoD (Device -> Device)", "stream": 7, "cpu": 0, "correlation": 2}
    run = timed(
        [(op, 0, 400), (GEMM, 0, busy), (call, 400, 700), (piece, 400, 600), (copy | {"data": [3]}, 600, 605),
         (piece, 600, 700), (op, 700, 750)]
    )  # fmt: skip
    job = run.job.replace(traces=(run.job.traces[0].replace(data_why=np.array([Why.LAUNCH], np.uint8)),))
    spent = {kind: ns for kind, ns in by_kind(critical_path(recorded(job))).items() if ns}
    assert spent == ({"host": 150, "compute": 595, "gap": 5} if waited else {"host": 750})


def test_a_stream_that_waited_for_another_without_a_record_of_it() -> None:
    total = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE}
    run = timed([(GEMM, 0, 10), (total, 10, 60), (GEMM, 62, 70)])
    path = critical_path(run).to_pylist()
    assert [(r["name"], r["kind"], r["start_ns"], r["end_ns"]) for r in path] == [
        ("gemm", "compute", 0, 10),
        ("sum", "communication", 10, 60),
        ("gemm", "gap", 60, 62),
        ("gemm", "compute", 62, 70),
    ]


def test_without_times_there_is_no_path() -> None:
    run = timed([(GEMM, None, None)])
    with pytest.raises(UsageError, match="no node of this job has a start"):
        critical_path(run)
