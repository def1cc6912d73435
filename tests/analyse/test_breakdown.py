import pytest

from etude.analyse.breakdown import breakdown, kernel_types, overlap
from etude.analyse.idle import idle
from etude.analyse.operators import kernels
from etude.base.errors import TraceError, UsageError
from etude.model.schema import Collective, Kind
from timed_jobs import timed

GEMM = {"kind": Kind.COMP, "name": "gemm", "stream": 7, "cpu": 0}
SUM = {"kind": Kind.COLL, "name": "nccl", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE, "in_bytes": 8}
COPY = {"kind": Kind.COMP, "name": "Memcpy HtoD (Pageable -> Device)", "stream": 8, "cpu": 0}
WAIT = {"kind": Kind.COMP, "name": "Stream Wait Event", "stream": 8, "cpu": 0}
LAUNCH = {"kind": Kind.COMP, "name": "cudaLaunchKernel", "thread": 1, "cpu": 1}


def test_compute_hides_communication_and_that_hides_memory() -> None:
    # gemm 10..30, sum 20..50, copy 45..60, gemm 70..80; the launch and the wait are no work of the device
    run = timed([(GEMM, 10, 30), (SUM, 20, 50), (COPY, 45, 60), (GEMM, 70, 80), (LAUNCH, 0, 90), (WAIT, 60, 99)])
    row = breakdown(run).to_pylist()[0]
    assert row == {
        "rank": 0, "span_ns": 70, "compute_ns": 30, "comm_ns": 30, "exposed_comm_ns": 20, "memory_ns": 15,
        "exposed_memory_ns": 10, "idle_ns": 10, "overlap_pct": pytest.approx(100 / 3),
    }  # fmt: skip
    types = {r["running"]: r["time_ns"] for r in kernel_types(run).to_pylist()}
    assert types == {
        "compute": 20, "compute + communication": 10, "communication": 15, "communication + memory": 5, "memory": 10,
        "idle": 10,
    }  # fmt: skip


def test_kernels_without_a_kind_are_known_by_name() -> None:
    kernel = {"kind": Kind.COMP, "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "stream": 9, "cpu": 0}
    run = timed([(GEMM, 0, 10), (kernel, 10, 30)])
    assert breakdown(run).to_pylist()[0]["exposed_comm_ns"] == 20


def test_where_nothing_is_on_a_device_the_host_is() -> None:
    op = {"kind": Kind.COMP, "name": "aten::mm", "thread": 1, "cpu": 1}
    run = timed([(op, 0, 10), (op, 15, 20)])
    row = breakdown(run).to_pylist()[0]
    assert (row["span_ns"], row["compute_ns"], row["idle_ns"], row["overlap_pct"]) == (20, 15, 5, None)


def test_times_that_are_not_known_are_left_out() -> None:
    run = timed([(GEMM, 0, 10), (GEMM, None, None), (GEMM, 30, None)])
    assert breakdown(run).to_pylist()[0]["span_ns"] == 10


def test_an_end_before_a_start_is_refused() -> None:
    run = timed([(GEMM, 10, 5)])
    with pytest.raises(TraceError, match="node 0: it ends before it starts"):
        breakdown(run)


def test_any_two_groups_overlap() -> None:
    run = timed([(GEMM, 0, 10), (SUM, 5, 25), (COPY, 20, 30)])
    row = overlap(run, "all_reduce", "name:gemm|memory").to_pylist()[0]
    assert (row["a_ns"], row["b_ns"], row["both_ns"], row["a_hidden_pct"]) == (20, 20, 10, 50)
    assert overlap(run, "stream:9", "stream:8").to_pylist()[0]["both_ns"] == 5
    for odd in ("gemm", "name:(", "stream:x"):
        with pytest.raises(UsageError):
            overlap(run, odd, "compute")


def test_where_the_host_is_the_device_time_between_operators_is_no_compute() -> None:
    def op(name: str, parent: int | None = None) -> dict[str, object]:
        return {
            "kind": Kind.COMP,
            "name": name,
            "cpu": 1,
            "thread": 1,
            **({} if parent is None else {"parent": parent}),
        }

    run = timed(
        [
            (op("## step ##"), 0, 100),
            (op("host", 0), 0, 10),  # Python
            (op("aten::addmm", 0), 10, 60),
            (op("host", 2), 10, 30),  # its product
            (op("aten::copy_", 2), 30, 40),
            (op("host", 2), 40, 60),
            (op("host", 0), 60, 80),
            (op("aten::relu", 0), 80, 100),
        ]
    )
    row = breakdown(run).to_pylist()[0]
    assert (row["span_ns"], row["compute_ns"], row["idle_ns"]) == (90, 70, 20)
    assert [(r["cause"], r["time_ns"]) for r in idle(run).to_pylist()] == [("host", 20)]
    spent = {r["name"]: (r["kind"], r["count"], r["total_ns"]) for r in kernels(run).to_pylist()}
    assert spent == {
        "aten::addmm": ("compute", 1, 40),
        "aten::relu": ("compute", 1, 20),
        "aten::copy_": ("compute", 1, 10),
    }


def test_a_host_that_no_profiler_recorded_computes_all_along() -> None:
    run = timed([({"kind": Kind.COMP, "name": n, "cpu": 1}, i * 10, i * 10 + 10) for i, n in enumerate("ab")])
    assert breakdown(run)["compute_ns"].to_pylist() == [20]
