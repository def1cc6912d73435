"""Kernels, operators, idle, launches, memory, roofline, steps, patterns: tiny runs worked by hand."""

import numpy as np
import pytest

from etude.analyse.breakdown import breakdown
from etude.analyse.device_work import left_over
from etude.analyse.idle import gaps, idle
from etude.analyse.launches import launches, queue_depth
from etude.analyse.memory import copies, levels
from etude.analyse.operators import kernels, operators
from etude.analyse.patterns import patterns
from etude.analyse.roofline import roofline, utilisation
from etude.analyse.steps import step_times, steps
from etude.base.errors import UsageError
from etude.machine.system import Device
from etude.model.run import Run
from etude.model.schema import Kind, Why
from timed_jobs import timed

GEMM = {"kind": Kind.COMP, "name": "gemm", "stream": 7, "cpu": 0}
ADD = {"kind": Kind.COMP, "name": "add", "stream": 7, "cpu": 0}
OP = {"kind": Kind.COMP, "name": "aten::mm", "thread": 1, "cpu": 1}
CALL = {"kind": Kind.COMP, "name": "cudaLaunchKernel", "thread": 1, "cpu": 1}


def test_kernels_by_time_and_by_anything() -> None:
    run = timed([(GEMM | {"phase": "forward"}, 0, 10), (GEMM | {"phase": "backward"}, 10, 40), (ADD, 40, 45)])
    rows = kernels(run).to_pylist()
    assert [(r["name"], r["count"], r["total_ns"], r["min_ns"], r["max_ns"]) for r in rows] == [
        ("gemm", 2, 40, 10, 30), ("add", 1, 5, 5, 5),
    ]  # fmt: skip
    assert rows[0]["std_ns"] == pytest.approx(np.std([10, 30], ddof=1))
    assert rows[0]["share"] == pytest.approx(40 / 45)
    by_phase = {r["phase"]: r["total_ns"] for r in kernels(run, ["phase"]).to_pylist()}
    assert by_phase == {"forward": 10, "backward": 30, None: 5}
    with pytest.raises(UsageError, match="grouped by `colour`"):
        kernels(run, ["colour"])


def test_operators_have_their_own_time_and_that_of_what_they_launch() -> None:
    outer = {"kind": Kind.COMP, "name": "linear", "thread": 1, "cpu": 1}
    run = timed([(outer, 0, 100), (OP | {"parent": 0}, 20, 80), (GEMM | {"parent": 1}, 90, 190)])
    rows = {r["name"]: r for r in operators(run).to_pylist()}
    assert (rows["linear"]["self_ns"], rows["linear"]["total_ns"]) == (40, 100)
    assert (rows["linear"]["device_self_ns"], rows["linear"]["device_total_ns"]) == (0, 100)
    assert (rows["aten::mm"]["self_ns"], rows["aten::mm"]["device_self_ns"]) == (60, 100)


def test_an_operator_that_calls_itself_counts_once() -> None:
    run = timed([(OP, 0, 100), (OP | {"parent": 0}, 20, 80), (GEMM | {"parent": 1}, 90, 190)])
    row = operators(run).to_pylist()[0]
    assert (row["count"], row["self_ns"], row["total_ns"], row["device_total_ns"]) == (2, 100, 100, 100)


def launching() -> Run:
    sync = {"kind": Kind.COMP, "name": "cudaStreamSynchronize", "thread": 1, "cpu": 1}
    return timed(
        [
            (CALL | {"correlation": 1}, 0, 10),
            (GEMM | {"correlation": 1}, 20, 100),  # the first
            (CALL | {"correlation": 2}, 10, 20),
            (ADD | {"correlation": 2}, 105, 150),  # launched long before: 5 ns to start
            (CALL | {"correlation": 3}, 200, 210),
            (ADD | {"correlation": 3}, 230, 240),  # launched when the device was idle: 80 ns of the host
            (sync, 215, 250),
            (CALL | {"correlation": 4}, 255, 260),
            (ADD | {"correlation": 4}, 265, 270),  # ... after the host had waited for the device: 25 ns
        ]
    )


def test_idle_time_has_a_cause_and_sums_to_the_breakdowns() -> None:
    run = launching()
    rows = {r["cause"]: r["time_ns"] for r in idle(run).to_pylist()}
    assert rows == {"launch": 5, "host": 80, "synchronisation": 25}
    assert sum(rows.values()) == breakdown(run).to_pylist()[0]["idle_ns"]
    assert [g["start_ns"] for g in gaps(run).to_pylist()] == [100, 150, 240]


def test_launches_and_queues() -> None:
    run = launching()
    row = launches(run).to_pylist()[0]
    assert (row["launches"], row["host_ns"], row["device_ns"], row["delay_ns"]) == (4, 35, 140, 10 + 85 + 20 + 5)
    assert (row["median_delay_ns"], row["device_shorter"]) == (15, 0)
    queue = queue_depth(run).to_pylist()[0]
    # +1 at 0, +1 at 10, -1 at 20, -1 at 105, +1 at 200, -1 at 230, +1 at 255, -1 at 265
    assert (queue["events"], queue["most"], queue["mean_depth"]) == (8, 2, (1 + 2 + 1 + 0 + 1 + 0 + 1 + 0) / 8)
    assert launches(run, "^hip").to_pylist()[0]["launches"] == 0


def test_device_work_of_a_step_before_is_left_over() -> None:
    run = timed([(GEMM, 0, 50), (CALL | {"correlation": 1}, 10, 20), (GEMM | {"correlation": 1, "data": [1]}, 60, 70)])
    trace = run.job.traces[0].replace(data_why=np.array([Why.LAUNCH], np.uint8))
    run = Run(run.job.replace(traces=(trace,)), run.timing)
    assert left_over(run.part(0)).tolist() == [True, False, False]
    assert breakdown(run).to_pylist()[0]["span_ns"] == 10


def test_copies_and_levels() -> None:
    copy = {"kind": Kind.COMP, "name": "Memcpy HtoD (Pinned -> Device)", "stream": 8, "cpu": 0, "tensor_bytes": 100}
    run = timed([(copy, 0, 10), (copy | {"stream": 9}, 5, 15), (GEMM, 0, 1)])
    row = copies(run).to_pylist()[0]
    assert (row["name"], row["count"], row["size_bytes"], row["time_ns"]) == ("Memcpy HtoD", 2, 200, 20)
    assert row["most_rate_bytes_per_s"] == pytest.approx(20e9)
    load, store = ({"kind": k, "tensor_bytes": 30} for k in (Kind.MEM_LOAD, Kind.MEM_STORE))
    run = timed([(load, 0, 10), (load, 10, 20), (store, 20, 30)])
    assert [(r["time_ns"], r["held_bytes"]) for r in levels(run).to_pylist()] == [(10, 30), (20, 60), (30, 30)]


DEVICE = Device(name="d", peak_flop_per_s={"bf16": 1e12, "fp32": 1e11}, memory_bandwidth_bytes_per_s=1e11)


def test_the_roofline_of_an_operator_is_that_of_what_it_launched() -> None:
    shapes, types = "[[10, 20], [20, 30]]", "['c10::BFloat16', 'c10::BFloat16']"
    op = OP | {"in_shapes": shapes, "in_types": types}
    run = timed([(op, 0, 5), (GEMM | {"parent": 0, "flops": 12_000}, 10, 110)])
    row = roofline(run, DEVICE).to_pylist()[0]
    assert (row["name"], row["count"], row["flops"], row["time_ns"]) == ("aten::mm", 1, 2 * 10 * 20 * 30, 100)
    assert row["size_bytes"] == 2 * (10 * 20 + 20 * 30 + 10 * 30)
    assert row["flop_per_s"] == pytest.approx(1.2e11)
    assert (row["bound"], row["roofline_pct"]) == ("memory", pytest.approx(22.0))  # 2,200 bytes at 1e11 B/s are 22 ns
    used = utilisation(run, DEVICE, model_flops=6_000).to_pylist()[0]
    assert (used["flops"], used["hfu"], used["mfu"]) == (12_000, pytest.approx(0.12), pytest.approx(0.06))


def test_nodes_that_say_their_work_need_no_operator() -> None:
    run = timed([(GEMM | {"flops": 1000, "tensor_bytes": 10}, 0, 100)])
    row = roofline(run, DEVICE).to_pylist()[0]
    assert (row["flops"], row["bound"], row["roofline_pct"]) == (1000, "compute", pytest.approx(1.0))


def test_steps_and_their_variation() -> None:
    run = timed([(GEMM | {"step": 3}, 0, 10), (ADD | {"step": 3}, 15, 20), (GEMM | {"step": 4}, 30, 50)])
    rows = steps(run).to_pylist()
    assert [(r["step"], r["span_ns"], r["compute_ns"], r["idle_ns"]) for r in rows] == [(3, 20, 15, 5), (4, 20, 20, 0)]
    row = step_times(run).to_pylist()[0]
    assert (row["steps"], row["min_ns"], row["max_ns"], row["slowest_step"]) == (2, 20, 30, 3)


def test_patterns_come_more_than_once_and_are_as_long_as_can_be() -> None:
    norm = GEMM | {"name": "norm"}
    nodes = [(n, 10 * i, 10 * i + 8) for i, n in enumerate([GEMM, ADD, norm] * 3)]
    rows = patterns(timed(nodes), longest=3).to_pylist()
    assert rows[0]["names"] == ["gemm", "add", "norm"]
    assert (rows[0]["count"], rows[0]["time_ns"]) == (3, 72)
    assert ["gemm", "add"] not in [r["names"] for r in rows]  # only ever the beginning of the longer one
