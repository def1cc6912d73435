"""The causal graph: each reason to wait by hand, and every recorded file."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.base.errors import EtudeError, MismatchError
from etude.capture.ingest import causal
from etude.model.check.whole import check
from etude.model.schema import UNKNOWN, Why
from etude.model.trace import Trace
from etude.surface.cli import main
from recorded import device_json, event, host_json, kernel, launch, node, op, read_device_json, read_host_json


def converted(*events: dict[str, Any], **top: Any) -> causal.Linked:
    return causal.convert(read_device_json(device_json(*events, **top)))


def nodes(linked: causal.Linked) -> list[tuple[str, int, int]]:
    """(name, recorded start, own time) in µs, as they lie."""
    trace = linked.part.trace
    return [
        (trace.text("name", i), int(linked.start_ns[i]) // 1000, int(trace.duration_ns[i]) // 1000)
        for i in range(len(trace))
    ]


def find(linked: causal.Linked, name: str, start_us: int | None = None) -> int:
    found = [i for i, (n, s, _) in enumerate(nodes(linked)) if n == name and start_us in (None, s)]
    assert len(found) == 1, (name, start_us, nodes(linked))
    return found[0]


def waits_for(linked: causal.Linked, i: int) -> set[tuple[str, int, str]]:
    """(name, start in µs, why) of what a node waits for."""
    trace = linked.part.trace
    found = range(trace.data_start[i], trace.data_start[i + 1])
    return {
        (trace.text("name", int(trace.data[k])), int(linked.start_ns[trace.data[k]]) // 1000,
         Why(int(trace.data_why[k])).name.lower())
        for k in found
    }  # fmt: skip


# -- host --------------------------------------------------------------------------------------------------------------


def test_time_runs_in_leaves_and_segments_and_callers_hold_none() -> None:
    linked = converted(op("aten::linear", 0, 100, 1), op("aten::t", 10, 20, 2), op("aten::addmm", 40, 50, 3))
    assert nodes(linked) == [
        ("host", 0, 0), ("host", 0, 10), ("aten::linear", 0, 0), ("aten::t", 10, 20), ("host", 30, 10),
        ("aten::addmm", 40, 50), ("host", 90, 10),
    ]  # fmt: skip
    caller = find(linked, "aten::linear")
    assert linked.part.trace.parent.tolist() == [-1, caller, -1, caller, caller, caller, caller]
    assert (linked.end_ns[caller] - linked.start_ns[caller]) == 100_000
    assert waits_for(linked, find(linked, "aten::addmm")) == {("host", 30, "program")}


def test_time_between_operators_is_a_segment_of_nobody() -> None:
    linked = converted(op("a", 0, 10, 1), op("b", 25, 10, 2))
    assert nodes(linked) == [("host", 0, 0), ("a", 0, 10), ("host", 10, 15), ("b", 25, 10)]
    assert linked.part.trace.parent.tolist() == [-1, -1, -1, -1]


def test_a_thread_keeps_its_distance_from_the_start() -> None:
    linked = converted(op("a", 0, 10, 1), op("b", 25, 10, 2, tid=8))
    assert nodes(linked) == [("host", 0, 0), ("a", 0, 10), ("host", 0, 25), ("b", 25, 10)]
    assert waits_for(linked, find(linked, "b")) == {("host", 0, "program")}


# -- device ------------------------------------------------------------------------------------------------------------


def test_a_kernel_waits_for_its_launch_and_its_stream() -> None:
    linked = converted(
        op("a", 0, 10, 1),
        launch(2, 1),
        kernel("k1", 5, 30, 1, 1),
        op("b", 10, 10, 2),
        launch(12, 2),
        kernel("k2", 35, 5, 2, 2),
    )
    assert waits_for(linked, find(linked, "k1")) == {("cudaLaunchKernel", 2, "launch")}
    assert waits_for(linked, find(linked, "k2")) == {("cudaLaunchKernel", 12, "launch"), ("k1", 5, "stream")}
    trace = linked.part.trace
    assert trace.parent[find(linked, "k2")] == find(linked, "b")
    assert trace.cpu[find(linked, "k2")] == 0 and trace.stream[find(linked, "k2")] == 7


def test_a_kernel_that_starts_before_its_launch_returns_waits_for_the_first_part_of_the_launch() -> None:
    call = launch(2, 1) | {"dur": 6.0}
    linked = converted(op("a", 0, 10, 1), call, kernel("k", 5, 30, 1, 1))
    frame = find(linked, "cudaLaunchKernel")
    assert [(s, d) for i, (n, s, d) in enumerate(nodes(linked)) if linked.part.trace.parent[i] == frame] == [
        (2, 3),
        (5, 3),
    ]
    assert waits_for(linked, find(linked, "k")) == {("host", 2, "launch")}


def test_waiting_in_a_synchronisation_is_an_edge_and_no_time() -> None:
    sync = event("cuda_runtime", "cudaDeviceSynchronize", 10, 95, correlation=2)
    linked = converted(op("a", 0, 10, 1), launch(2, 1), kernel("k", 5, 95, 1, 1), sync, op("b", 120, 5, 2))
    frame = find(linked, "cudaDeviceSynchronize")
    assert nodes(linked)[frame][2] == 0 and linked.end_ns[frame] == 105_000
    back = find(linked, "host", 100)
    assert nodes(linked)[back] == ("host", 100, 5) and linked.part.trace.parent[back] == frame
    assert waits_for(linked, back) >= {("k", 5, "sync")}


def test_a_synchronisation_that_had_nothing_to_wait_for_still_depends() -> None:
    sync = event("cuda_runtime", "cudaStreamSynchronize", 50, 3, correlation=2)
    linked = converted(op("a", 0, 10, 1), launch(2, 1), kernel("k", 5, 9, 1, 1), sync)
    assert waits_for(linked, find(linked, "cudaStreamSynchronize")) == {("k", 5, "sync"), ("host", 10, "program")}


def test_a_stream_that_waits_for_an_event_waits_for_what_was_before_its_record() -> None:
    record = event("cuda_runtime", "cudaEventRecord", 20, 1, correlation=2)
    wait = event("cuda_runtime", "cudaStreamWaitEvent", 25, 1, correlation=3)
    twin = event("cuda_sync", "Stream Wait Event", 25, 1, 9, correlation=3, stream=9, wait_on_cuda_event_id=4)
    linked = converted(
        launch(2, 1), kernel("k7", 5, 40, 1, 1), record, wait, twin, launch(30, 4), kernel("k9", 46, 5, 4, 1, stream=9)
    )
    assert waits_for(linked, find(linked, "k9")) == {("cudaLaunchKernel", 30, "launch"), ("k7", 5, "event")}


def test_without_records_a_stream_waits_for_what_ended_last_elsewhere() -> None:
    wait = event("cuda_runtime", "hipStreamWaitEvent", 25, 1, correlation=3)
    second = kernel("k9", 46, 5, 4, 1, stream=9)
    linked = converted(launch(2, 1), kernel("k7", 5, 40, 1, 1), wait, launch(30, 4), second)
    assert waits_for(linked, find(linked, "k9")) == {("cudaLaunchKernel", 30, "launch"), ("k7", 5, "event")}


def test_a_wait_is_handed_on_through_a_stream_that_did_nothing() -> None:
    def call(name: str, ts: float, correlation: int) -> dict[str, Any]:
        return event("cuda_runtime", name, ts, 1, correlation=correlation)

    def twin(ts: float, correlation: int, stream: int, number: int) -> dict[str, Any]:
        more = {"correlation": correlation, "stream": stream, "wait_on_cuda_event_id": number}
        return event("cuda_sync", "Stream Wait Event", ts, 1, stream, **more)

    linked = converted(
        launch(0, 1),
        kernel("k7", 2, 2, 1, 1),
        launch(5, 2),
        kernel("k9", 8, 50, 2, 1, stream=9),
        call("cudaEventRecord", 10, 3),
        call("cudaStreamWaitEvent", 12, 4),
        twin(12, 4, 7, 1),  # 7 waits for 9
        launch(13, 5, tid=8),
        kernel("other", 15, 1, 5, 1, stream=13),
        call("cudaEventRecord", 14, 6),
        call("cudaStreamWaitEvent", 16, 7),
        twin(16, 7, 11, 2),
        launch(20, 8),
        kernel("k11", 60, 5, 8, 1, stream=11),
    )
    assert ("k9", 8, "event") in waits_for(linked, find(linked, "k11"))


def test_the_device_takes_its_way_from_kernel_to_kernel() -> None:
    ops = [op("a", 0, 100, 1)]
    kernels = [kernel("k", 50 + 12 * i, 10, i + 1, 1) for i in range(8)]
    linked = converted(*ops, *(launch(2 + 4 * i, i + 1) for i in range(8)), *kernels)
    ways = [(s, d) for n, s, d in nodes(linked) if n == "dispatch"]
    assert ways[1:] == [(60 + 12 * i, 2) for i in range(7)]  # before the first, the device was elsewhere
    at = find(linked, "dispatch", 60)
    assert linked.part.trace.cpu[at] == 1 and waits_for(linked, at) == {("k", 50, "stream")}


def test_a_device_that_is_elsewhere_takes_its_time() -> None:
    first, second = kernel("k7", 5, 10, 1, 1), kernel("late", 215, 5, 2, 1)
    linked = converted(op("a", 0, 100, 1), launch(2, 1), launch(20, 2), first, second)
    ways = [(s, d) for n, s, d in nodes(linked) if n == "dispatch"]
    end = next(s + d for n, s, d in nodes(linked) if n == "cudaLaunchKernel" and s == 20)
    assert ways == [(end, 215 - end)]
    at = find(linked, "dispatch", end)
    assert waits_for(linked, at) == {("k7", 5, "stream"), ("cudaLaunchKernel", 20, "launch")}


def test_a_kernel_that_may_wait_for_another_stream_is_not_kept_by_a_device_elsewhere() -> None:
    other = kernel("k9", 30, 150, 2, 1, stream=9)
    linked = converted(op("a", 0, 100, 1), launch(2, 1), launch(20, 2), other, kernel("late", 215, 5, 1, 1))
    assert [n for n, _, _ in nodes(linked) if n == "dispatch"] == []


def test_the_thread_that_asks_for_the_backward_pass_waits_for_it() -> None:
    engine = "autograd::engine::evaluate_function: MmBackward0"
    linked = converted(
        op("aten::mm", 0, 10, 1), op(engine, 30, 20, 2, tid=8), op(engine, 60, 20, 3, tid=8), op("step", 100, 10, 4)
    )
    assert [n for n in nodes(linked) if n[0] == "host"] == [
        ("host", 0, 0), ("host", 10, 20), ("host", 50, 10), ("host", 80, 20)
    ]  # fmt: skip
    assert waits_for(linked, find(linked, engine, 30)) == {("host", 10, "autograd")}
    assert waits_for(linked, find(linked, "host", 80)) == {("host", 10, "program"), (engine, 60, "autograd")}


def test_what_reads_a_tensor_waits_for_what_wrote_it_through_a_view() -> None:
    def tensor(id: int, storage: int, offset: int = 0) -> tuple[list[Any], list[Any], list[str]]:
        return [[id, storage, offset, 256, 4, "cuda:0"]], [[256]], ["Tensor(float)"]

    host = read_host_json(
        host_json(
            node(3, "write", 2, rf_id=1, outputs=tensor(11, 2)),
            node(4, "view", 2, rf_id=2, inputs=tensor(11, 2), outputs=tensor(12, 2)),
            node(5, "read", 2, rf_id=3, inputs=tensor(12, 2)),
            node(6, "other", 2, rf_id=4, inputs=tensor(12, 9)),  # the id of a tensor that is gone
        )
    )
    device = read_device_json(
        device_json(
            op("write", 0, 10, 1),
            launch(2, 1),
            kernel("w", 5, 10, 1, 1),
            op("view", 10, 5, 2),
            op("read", 20, 10, 3),
            launch(22, 2),
            kernel("r", 25, 10, 2, 3, stream=9),
            op("other", 30, 10, 4),
            launch(32, 3),
            kernel("o", 35, 10, 3, 4, stream=11),
        )
    )
    linked = causal.convert(device, host)
    assert waits_for(linked, find(linked, "r")) == {("cudaLaunchKernel", 22, "launch"), ("w", 5, "tensor")}
    assert waits_for(linked, find(linked, "o")) == {("cudaLaunchKernel", 32, "launch")}


def test_an_arrow_from_forward_to_backward_is_an_edge() -> None:
    arrow = [
        {"ph": phase, "cat": "fwdbwd", "id": 5, "name": "fwdbwd", "pid": 7, "tid": 7, "ts": ts}
        for phase, ts in (("s", 0), ("f", 30))
    ]
    linked = converted(op("aten::mm", 0, 10, 1), op("MmBackward0", 30, 20, 2), *arrow)
    assert ("aten::mm", 0, "autograd") in waits_for(linked, find(linked, "MmBackward0"))


def queued(depth: int, kernel_us: int) -> list[dict[str, Any]]:
    """1,500 launches of 5 us in a queue of this depth: what the profiler would record."""
    events, ends, now = [op("a", 0, 10_000_000, 1)], [], 0
    for i in range(1500):
        start = now
        now = max(start + 5, ends[i - depth] if i >= depth else 0)
        begin = max(now, ends[-1] if ends else 0)
        ends.append(begin + kernel_us)
        events += [launch(start, i + 1) | {"dur": now - start}, kernel("k", begin, kernel_us, i + 1, 1)]
    return events


@pytest.mark.parametrize("depth", [1024, 1000])
def test_a_launch_into_a_full_queue_waits_for_the_activity_that_makes_room(depth: int) -> None:
    linked = converted(*queued(depth, 100))
    trace = linked.part.trace
    codes, words = trace.coded("name")
    launches = np.flatnonzero(codes == words.index("cudaLaunchKernel"))
    kernels = np.flatnonzero(codes == words.index("k"))
    is_segment = codes == words.index("host")
    own = np.bincount(np.maximum(trace.parent, 0), weights=trace.duration_ns * is_segment, minlength=len(trace))
    own[launches] += trace.duration_ns[launches]
    assert own[launches].max() <= 5_000  # never the waiting
    late = np.flatnonzero(trace.data_why == Why.SYNC)
    assert trace.data[late].tolist() == kernels[: 1500 - depth].tolist()


def test_a_launch_depends_on_the_queue_even_where_it_had_room() -> None:
    linked = converted(*queued(1024, 1))
    assert (linked.part.trace.data_why == Why.SYNC).sum() == 1500 - 1024


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_pair_brings_the_tensors_of_the_host_trace() -> None:
    tensor = ([[11, 2, 0, 256, 4, "cuda:0"]], [[256]], ["Tensor(float)"])
    host = read_host_json(host_json(node(3, "a", 2, rf_id=1, inputs=tensor)))
    device = read_device_json(device_json(op("a", 0, 10, 1), launch(2, 1), kernel("k", 5, 9, 1, 1)))
    linked = causal.convert(device, host)
    at = find(linked, "a")
    assert linked.part.trace.text("in_shapes", at) == "[[256]]"
    assert linked.part.trace.text("in_values", at) == "[[11, 2, 0, 256, 4, 'cuda:0']]"
    assert linked.report["device_ops_linked"] == linked.report["device_ops"] == 1
    assert linked.report["host_ops_timed"] == 1
    assert sum(u["count"] for u in linked.report["unmatched"]) == 2  # the observer's roots


def test_a_pair_of_two_runs_is_refused() -> None:
    host = read_host_json(host_json(node(3, "a", 2, rf_id=1)))
    with pytest.raises(MismatchError, match="two different runs"):
        causal.convert(read_device_json(device_json(op("b", 0, 10, 1))), host)


def test_link_writes_a_file_that_opens_with_its_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "t.json.gz"
    raw.write_bytes(
        gzip.compress(json.dumps(device_json(op("a", 0, 10, 1), launch(2, 1), kernel("k", 5, 9, 1, 1))).encode())
    )
    assert main(["link", str(raw), "-o", str(tmp_path / "t.et"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["device_ops"] == report["device_ops_linked"] == 1 and report["span_ns"] == 14_000
    job, opened = etude.open(tmp_path / "t.et"), etude.open(raw)
    assert job.timing is not None and opened.timing is not None
    assert job.timing.start_ns[0].tolist() == opened.timing.start_ns[0].tolist()
    assert job.timing.end_ns[0].tolist() == opened.timing.end_ns[0].tolist()  # of callers too
    assert main(["check", str(tmp_path / "t.et")]) == 0


def test_a_file_without_events_is_refused(tmp_path: Path) -> None:
    raw = tmp_path / "t.json"
    raw.write_text(json.dumps(device_json()))
    with pytest.raises(EtudeError, match="no operator"):
        etude.open(raw)


def lone_files(shared: Path) -> list[Path]:
    return sorted([*shared.glob("traces/public/*.kineto.json.gz"), *shared.glob("oracle/hta/inputs/*.json.gz")])


def edges_late_ns(trace: Trace, linked: causal.Linked) -> np.ndarray[Any, Any]:
    """How much later than the start of a node what it waits for ended, edge by edge."""
    target = np.repeat(np.arange(len(trace)), np.diff(trace.data_start))
    return linked.end_ns[trace.data] - linked.start_ns[target]


def test_every_lone_device_trace_becomes_a_job_that_passes_the_check(shared: Path) -> None:
    from etude.capture.ingest import reading

    files = [f for f in lone_files(shared) if f.stat().st_size < 500_000]
    assert len(files) > 15
    for path in files:
        linked = causal.convert(reading.load_device(path))
        job = causal.to_job("run", [linked])
        assert [f for f in check(job) if f.severity == "error"] == [], path
        trace = linked.part.trace
        assert (trace.duration_ns != UNKNOWN).all()
        assert (edges_late_ns(trace, linked) <= 2_000).all(), path


CALLS = (
    "cudaLaunchKernel", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventRecord", "cudaStreamWaitEvent",
    "cudaEventSynchronize", "cudaMemcpy",
)  # fmt: skip
OPERATORS = ("a", "autograd::engine::evaluate_function: X", "c10d::allreduce_", "gloo:all_reduce")


def odd_event(rng: random.Random) -> dict[str, Any]:
    ts, length, number = rng.randrange(300), rng.randrange(80), rng.randrange(1, 20)
    stream = rng.choice([7, 9, "default"])
    return rng.choice(
        [
            op(rng.choice(OPERATORS), ts, length, number, tid=rng.choice([7, 8, "pool"])),
            event("cuda_runtime", rng.choice(CALLS), ts, length, rng.choice([7, 8]), correlation=number),
            kernel(rng.choice(["k", "ncclDevKernel_AllReduce"]), ts, length, number, number, stream=7),
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", ts, length, 3, correlation=number, stream=stream),
            event("cuda_sync", "Stream Wait Event", ts, 3, 9, correlation=number, stream=9, wait_on_cuda_event_id=1),
            {"ph": rng.choice("sf"), "cat": "fwdbwd", "id": number, "name": "", "pid": 7, "tid": 7, "ts": ts},
        ]
    )


@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_events_the_graph_is_sound(seed: int) -> None:
    rng = random.Random(seed)
    linked = converted(op("first", 0, 1, 1), *(odd_event(rng) for _ in range(rng.randrange(80))))
    trace = linked.part.trace
    node = np.repeat(np.arange(len(trace)), np.diff(trace.data_start))
    assert (trace.data < node).all()  # so there is no circle
    assert (trace.duration_ns >= 0).all() and (trace.duration_ns <= linked.end_ns - linked.start_ns).all()
    on_thread = (trace.cpu == 1) & (trace.duration_ns > 0)
    for lane in np.unique(trace.lane[on_thread]).tolist():  # a thread does one thing at a time
        mine = np.flatnonzero(on_thread & (trace.lane == lane))
        assert (linked.start_ns[mine][1:] >= linked.end_ns[mine][:-1]).all()
