"""What shortening buys in recorded runs: worked by hand on small files, and what must hold of every file."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.analyse.critical_path import by_kind, critical_path, length_ns
from etude.analyse.launches import untied
from etude.analyse.what_if import Retimed, what_if
from etude.capture.ingest import causal
from etude.model.run import Run, recorded
from etude.model.schema import Kind
from etude.tell.report.compose import report
from recorded import device_json, event, kernel, launch, op, read_device_json
from timed_jobs import timed

US = 1000


def without_marks(html: str) -> str:
    """A text of a report without the marks of its numbers."""
    return re.sub(r"</?(data|b)[^>]*>", "", html)


def run_of(trace: dict[str, Any]) -> Run:
    return recorded(causal.to_job("run", [causal.convert(read_device_json(trace), rank=0)]))


def run_of_events(*events: dict[str, Any]) -> Run:
    return run_of(device_json(*events))


def buys_us(run: Run, kind: str, name: str = "", part: int = 50) -> float:
    return what_if(run, [(kind, name)])[f"buys_{part}_ns"][0].as_py() / US


def blocking_copy() -> Run:
    """A gemm of 90 us; a copy to the host whose call returns when the gemm and the copy are done."""
    copy = event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 110, 2, 7,
                 **{"External id": 1001, "correlation": 2, "stream": 7, "device": 0})  # fmt: skip
    call = launch(20, 2, "cudaMemcpyAsync") | {"dur": 95}
    return run_of_events(op("all", 0, 130, 1), launch(10, 1), kernel("gemm", 12, 90, 1, 1), call, copy)


def test_a_call_that_waited_for_the_work_before_its_copy_is_shorter_by_what_that_is() -> None:
    """gemm 12..102, call 20..115, copy 110..112, end 130: half of the gemm's 90 us are 45 us of the run."""
    run = blocking_copy()
    assert length_ns(critical_path(run)) == 130 * US
    assert [buys_us(run, "compute", part=part) for part in (10, 50)] == [9, 45]


def test_the_mark_of_a_step_does_nothing_itself() -> None:
    """The host is done at 40; kernels run 5..105 and 105..205. The second mark overlaps the first, so that no call is
    nested in it, and lasts until the last kernel ends. Its 186 us are nobody's work: half of the kernels is 100 us."""
    marks = (("ProfilerStep#1", 0, 40), ("ProfilerStep#2", 20, 186))
    found = [op(name, ts, dur, i + 8, cat="user_annotation") for i, (name, ts, dur) in enumerate(marks)]
    calls = [op("a", 1, 10, 1), launch(2, 1), op("b", 21, 10, 2), launch(22, 2)]
    run = run_of_events(*found, *calls, kernel("k", 5, 100, 1, 1), kernel("k", 105, 100, 2, 2))
    assert buys_us(run, "compute") == 100


ENGINE = "autograd::engine::evaluate_function: MmBackward0"


def backward_pass(name: str, *, arrows: bool = False) -> Run:
    """Forward 0..100 on thread 7, which waits for its kernel of 40 us; backward 110..300 on thread 8, in two operators;
    a step 310..400 on thread 7, which waits for the last kernel of the backward pass."""
    found = [
        op("aten::mm", 0, 100, 1), launch(50, 1), kernel("forward", 52, 40, 1, 1),
        launch(60, 9, "cudaDeviceSynchronize") | {"dur": 33},
        op(name, 110, 90, 2, tid=8), launch(150, 2, tid=8), kernel("backward", 152, 20, 2, 2),
        op(name, 201, 99, 3, tid=8), launch(250, 3, tid=8), kernel("backward", 252, 120, 3, 3),
        op("step", 310, 90, 4), launch(320, 8, "cudaDeviceSynchronize") | {"dur": 53},
        launch(380, 4), kernel("update", 382, 10, 4, 4),
    ]  # fmt: skip
    if arrows:
        found += [
            {"ph": phase, "cat": "fwdbwd", "id": i, "name": "fwdbwd", "pid": 7, "tid": tid, "ts": ts}
            for i, back in ((1, 110), (2, 201))
            for phase, tid, ts in (("s", 7, 0), ("f", 8, back))
        ]
    return run_of_events(*found)


@pytest.mark.parametrize(("name", "arrows"), [(ENGINE, True), (ENGINE, False), ("MmBackward", True), ("fn", False)])
def test_the_backward_pass_is_tied_to_the_forward_pass_whatever_says_so(name: str, arrows: bool) -> None:
    """The host goes from thread to thread, so half of the kernel that it waited for is half of its 40 us for the run,
    less the 8 us in which the host was at work beside it."""
    run = backward_pass(name, arrows=arrows)
    assert length_ns(critical_path(run)) == 400 * US
    assert buys_us(run, "compute", "forward") == 20
    assert buys_us(run, "compute", "forward", 100) == 32


def test_threads_that_work_side_by_side_do_not_take_turns() -> None:
    """Thread 8 is at work while thread 7 is: neither waits for the other, and only the longer one counts."""
    both = [op("a", i * 100, 80, i + 1) for i in range(4)] + [op("b", i * 100 + 50, 80, i + 9, tid=8) for i in range(4)]
    launches = [launch(60, 1, tid=8), kernel("k", 62, 5, 1, 9), launch(10, 2), kernel("k", 12, 5, 2, 1)]
    run = run_of_events(*both, *launches)
    assert buys_us(run, "host", "a", 100) == 0
    assert buys_us(run, "host", "b", 100) == 50  # b ends at 430, a at 380


def test_a_synchronisation_waits_for_what_was_launched_before_the_recording() -> None:
    """Two kernels of 100 us without a launch, and a call that returns when they are done: the path is theirs."""
    run = run_of_events(
        *(event("kernel", "early", ts, 100, 7, stream=7, device=0) for ts in (0, 100)),
        op("step", 10, 290, 1), launch(12, 7, "cudaDeviceSynchronize") | {"dur": 190},
        launch(240, 1), kernel("k", 250, 20, 1, 1),
    )  # fmt: skip
    assert by_kind(critical_path(run))["compute"] == 200 * US
    assert buys_us(run, "compute") == 100


def test_what_waits_for_nothing_that_was_recorded_stays_where_it_is() -> None:
    """A thread that begins at 60 of 100 with nothing that says why: 60 are left, however fast all is."""
    call = {"kind": Kind.COMP, "name": "aten::add", "cpu": 1}
    run = timed([(call | {"thread": 1}, 0, 10), (call | {"thread": 2}, 60, 100)])
    assert Retimed(run).fixed_ns == 60
    (section,) = [s for s in report(run).sections if s.id == "critical-path"]
    assert "60% of the run is not changed by re-timing" in without_marks(section.lead)


def test_device_work_without_launches_is_said_to_be_re_timed_apart() -> None:
    launched = [
        op("step", 0, 100, 1),
        launch(10, 1),
        kernel("k", 20, 30, 1, 1),
        launch(50, 2),
        kernel("k", 60, 30, 2, 1),
    ]
    assert untied(run_of_events(*launched)) == 0
    run = run_of_events(*(e for e in launched if e["cat"] != "cuda_runtime"))
    assert untied(run) == 1
    (section,) = [s for s in report(run).sections if s.id == "critical-path"]
    assert "No launch was recorded for 100% of the device&#x27;s time" in without_marks(section.lead).replace(
        "'", "&#x27;"
    )
    assert buys_us(run, "host") == 10  # the host ends at 100, the device at 90


CASES = (
    "traces/public/h100_timesformer.kineto.json.gz", "traces/public/sglang_qwen3_8b_decode.kineto.json.gz",
    "traces/public/mi300_resnet_act_checkpoint.kineto.json.gz", "oracle/hta/inputs/dlrm8.rank0.json.gz",
    "oracle/tracelens/input_h100_qwen15_05b.json.gz", "traces/h200_pairs/gpt8_b96_kineto.json.gz",
    "traces/torch_cpu/ddp_2p.rank0.kineto.json.gz",
)  # fmt: skip


def trace_of(path: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes()).decode("utf-8", "replace"))


def without_arrows(trace: dict[str, Any]) -> dict[str, Any]:
    return {**trace, "traceEvents": [e for e in trace["traceEvents"] if e.get("cat") != "fwdbwd"]}


def without_the_engine(trace: dict[str, Any]) -> dict[str, Any]:
    kept = [e for e in trace["traceEvents"] if "autograd::engine" not in str(e.get("name"))]
    return {**trace, "traceEvents": kept}


@pytest.mark.parametrize("case", CASES)
def test_if_everything_takes_half_as_long_so_does_the_run(shared: Path, case: str) -> None:
    """With what the profiler writes, and without the arrows and names that tie backward to forward."""
    trace = trace_of(shared / case)
    for given in (trace, without_arrows(trace), without_the_engine(without_arrows(trace))):
        retimed = Retimed(run_of(given))
        assert retimed.buys(np.arange(len(retimed.add)), 0.5) >= 0.48 * retimed.length_ns, case


def test_arrows_and_names_do_not_change_what_faster_kernels_buy(shared: Path) -> None:
    trace = trace_of(shared / "traces/h200_pairs/gpt8_b96_kineto.json.gz")
    found = [buys_us(run_of(t), "compute") for t in (trace, without_arrows(trace), without_the_engine(trace))]
    assert found[0] > 100 * US
    assert found[1:] == pytest.approx([found[0]] * 2, rel=0.01)
