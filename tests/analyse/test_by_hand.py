"""Recorded traces of every odd kind, analysed and worked out by hand from the raw events, to the ns."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import by_hand
import etude
from etude.analyse.breakdown import breakdown, kernel_types
from etude.analyse.counting import OURS, TOOLS, Counting, counting_of
from etude.analyse.idle import idle, stream_gaps
from etude.analyse.launches import queue_depth
from etude.analyse.memory import copies
from etude.analyse.operators import kernels
from etude.base.errors import UsageError
from etude.model.run import recorded
from recorded import device_json, event, launch

HTA = TOOLS["hta"]
WORK = (
    ("kernel", "gemm"),
    ("kernel", "void at::native::elementwise_kernel<128, 4>(int)"),
    ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    ("kernel", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"),
    ("kernel", "rcclGenericKernel"),
    ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)"),
    ("gpu_memcpy", "Memcpy DtoD (Device -> Device)"),
    ("gpu_memset", "Memset (Device)"),
    ("Memcpy", "Memcpy DtoH (Device -> Pinned)"),
    ("Kernel", "old"),
)
CALLS = ("cudaLaunchKernel", "cudaMemcpyAsync", "cuLaunchKernel", "hipLaunchKernel", "cudaGraphLaunch")
NS = st.integers(0, 9_000)
Piece = tuple[int, int, int, int, str, int]
PIECE = st.tuples(st.integers(0, len(WORK) - 1), NS, st.integers(0, 2_500), st.sampled_from((0, 7, 7, 20)),
                  st.sampled_from((*CALLS, "", "same")), st.integers(0, 4_000))  # fmt: skip
"""What runs, when, how long, where, what launched it (nothing; or the graph that launched the one before), how long
before it started."""


def document(pieces: list[Piece], steps: int, begins: int, extras: int) -> dict[str, Any]:
    """A profiler's trace: host from `begins` ns on, device work, and beside them what is none."""

    def us(ns: int) -> float:
        return (100_000 + ns) / 1000

    events = [event("cpu_op", "aten::mm", us(begins), 0.5), launch(us(begins), 1)]
    events.append(event("kernel", "gemm", us(9_000), 0.25, 7, correlation=1, stream=7, device=0))
    called = {1: begins}
    for number, (what, start, lasted, stream, call, before) in enumerate(pieces, 2):
        (category, name), correlation = WORK[what], events[-1]["args"]["correlation"]
        if call != "same" or start < called.get(correlation, start + 1):
            correlation = 10 * number
        if call and start >= begins and correlation not in called:
            called[correlation] = max(start - before, begins)
            events.append(launch(us(called[correlation]), correlation, "cudaGraphLaunch" if call == "same" else call))
        rate = {"memory bandwidth (GB/s)": 1.5 + number, "bytes": 64} if by_hand.MEMORY.search(name) else {}
        where = {"correlation": correlation, "stream": stream, "device": 0}
        events.append(event(category, name, us(start), lasted / 1000, stream, **where, **rate))
    ends = [4.0] * (steps - 1) + [30.0] * (steps > 0)
    events += [event("user_annotation", f"ProfilerStep#{i}", us(begins + 4_000 * i), end) for i, end in enumerate(ends)]
    if extras & 1:  # records of waits, whatever stream they name
        events.append(event("cuda_sync", "Stream Wait Event", us(30_000), 2.0, 7, stream=7, correlation=900))
        events.append(event("cuda_sync", "Context Sync", us(30_000), 2.0, 7, stream=-1, correlation=901))
    if extras & 2:  # Triton's launches name a stream, but run on the host
        events.append(event("cpu_op", "triton_poi_fused_0", us(30_000), 3.0, stream=0))
    if extras & 4:
        events.append(event("gpu_user_annotation", "forward", us(0), 50.0, 7))
        events.append({"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "python"}})
    return device_json(*events)


def earlier(events: list[by_hand.Event]) -> set[by_hand.Event]:
    """What a recording shows of the step before it, as Etude has it."""
    calls = {e.correlation for e in events if not e.on_device and e.category != "cuda_sync"}
    device = [e for e in events if e.on_device]
    known = [e for e in device if e.correlation in calls]
    found = {
        e for e in device if e.correlation not in calls
        and e.start < min([k.start for k in known if k.stream == e.stream] or [k.start for k in known])
    }  # fmt: skip
    several = len({e.name for e in events if e.name.startswith("ProfilerStep")}) > 1
    host = min(e.start for e in events if e.category in ("cpu_op", "cuda_runtime", "user_annotation"))
    return found if several or any(e.start < host for e in found) else set()


def times(job: etude.Job, counting: Counting) -> dict[str, int]:
    row = breakdown(recorded(job), counting).to_pylist()[0]
    other = row["exposed_comm_ns"] + row["exposed_memory_ns"]
    return {"span": row["span_ns"], "compute": row["compute_ns"], "other": other, "idle": row["idle_ns"]}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(PIECE, max_size=9), st.integers(0, 3), st.sampled_from((0, 2_000, 5_000)), st.integers(0, 7))
@example([(0, 100, 50, 7, "", 0), (2, 120, 0, 20, "cudaLaunchKernel", 10)], 2, 0, 7)
def test_a_recorded_trace_by_hand(tmp_path: Path, pieces: list[Piece], steps: int, begins: int, extras: int) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document(pieces, steps, begins, extras)))
    events, job = by_hand.read(path), etude.open(path)
    work = by_hand.device_work(events)
    assert times(job, HTA) == by_hand.temporal(work)
    gone = earlier(events)
    assert times(job, OURS) == by_hand.temporal([e for e in events if e.on_device and e not in gone])
    assert sum(r["time_ns"] for r in idle(recorded(job)).to_pylist()) == times(job, OURS)["idle"]
    running = {r["running"]: r["time_ns"] / 1000 for r in kernel_types(recorded(job), HTA).to_pylist()}
    assert {k: t for k, t in running.items() if k != "idle"} == pytest.approx(
        {k: t for k, t in by_hand.types(work).items() if t}
    )
    pct = breakdown(recorded(job), HTA)["overlap_pct"][0].as_py()
    assert pct == (None if by_hand.overlap_pct(work) is None else pytest.approx(by_hand.overlap_pct(work)))
    found = {r["name"]: (r["total_ns"], r["max_ns"]) for r in kernels(recorded(job), counting=HTA).to_pylist()}
    assert found == {
        name: (round(1000 * k["total"]), round(1000 * k["max"])) for name, k in by_hand.kernels(work).items()
    }
    gaps = {(r["stream"], r["cause"]): r["time_ns"] / 1000 for r in stream_gaps(recorded(job), HTA).to_pylist()}
    apart = [e.start for e in work]
    if len(set(apart)) == len(apart):  # of what starts at one time on a stream, who was before whom?
        assert gaps == pytest.approx(by_hand.gaps(events, work))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(PIECE, max_size=9), st.integers(0, 3))
def test_queues_and_rates_by_hand(tmp_path: Path, pieces: list[Piece], steps: int) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document(pieces, steps, 0, 0)))
    events, job = by_hand.read(path), etude.open(path)
    work = by_hand.device_work(events)
    ours = {r["stream"]: (r["events"], r["mean_depth"], r["most"])
            for r in queue_depth(recorded(job), HTA.enqueues).to_pylist()}  # fmt: skip
    assert ours == {s: pytest.approx(both[0]) for s, both in by_hand.queues(events, work).items()}
    turns = [t for e in work if e.rate for t in (e.start, e.end)]
    if len(set(turns)) == len(turns):  # of what ties the order of steps would count
        rates = {r["name"]: (r["events"], r["mean_rate_bytes_per_s"] / 1e9, r["most_rate_bytes_per_s"] / 1e9)
                 for r in copies(recorded(job), HTA).to_pylist()}  # fmt: skip
        assert rates == {n: pytest.approx(both[0]) for n, both in by_hand.rates(work).items()}


def test_counting_of_a_tool_that_nobody_knows() -> None:
    with pytest.raises(UsageError, match="unknown tool `nsys`"):
        counting_of("nsys")
