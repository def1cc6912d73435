"""Times of the program from a recording alone: recordings and what they come to are worked out by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.capture.ingest import program_time
from etude.capture.ingest.program_time import ESTIMATED, RECORDED, WantedTimes
from etude.capture.ingest.recording_cost import host_cost
from etude.capture.link.device import DeviceTrace, read_device

US = 1000
MAIN, OTHER, STREAM = 11, 12, 7
OBSERVED = (6.0, 10.0, 6.0, 10.0, 6.0, 10.0, 8.0, 20.0)
"""µs from each boundary of an iteration to the next: to `aten::t`, in it, to `aten::addmm`, to the launch, in it, to
the end of `aten::addmm`, to that of `aten::linear`, and in Python until the next iteration; 76 us."""
PROFILED = (1.0, 0.5, 1.0, 2.0, 5.0, 1.3, 0.2, 9.0)
"""The same without the observer; 20 us."""


def traced(events: list[dict[str, Any]]) -> DeviceTrace:
    text = json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 0, "traceEvents": events}).encode()
    return read_device(np.frombuffer(text + bytes(64), np.uint8).copy(), len(text))


def event(category: str, name: str, begin: float, end: float, **args: Any) -> dict[str, Any]:
    at = {"tid": STREAM, "pid": 0} if category == "kernel" else {"tid": args.pop("tid", MAIN), "pid": 1}
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": end - begin, "args": args, **at}


def recording(pieces: tuple[float, ...] = OBSERVED, **options: Any) -> DeviceTrace:
    return traced(events_of(pieces, **options))


def events_of(
    pieces: tuple[float, ...], *, kernel: float = 5.0, steps: int = 2, iterations: int = 25,
    marks: bool = True, calls: bool = True,
) -> list[dict[str, Any]]:  # fmt: skip
    """Steps of iterations, one after the other: `aten::linear` calls `aten::t` and `aten::addmm`, which launches."""
    events, at, free = [], 0.0, 0.0
    for step in range(steps):
        begin = at
        for k in range(iterations):
            t = at + np.cumsum((0.0, *pieces))
            number = 1 + step * iterations + k
            events += [event("cpu_op", "aten::linear", t[0], t[7]), event("cpu_op", "aten::t", t[1], t[2]),
                       event("cpu_op", "aten::addmm", t[3], t[6])]  # fmt: skip
            if calls:
                events.append(event("cuda_runtime", "cudaLaunchKernel", t[4], t[5], correlation=number))
            free = max(free, t[4] + 2)
            events.append(event("kernel", "gemm", free, free + kernel, correlation=number, stream=STREAM, device=0))
            free += kernel
            at = float(t[-1])
        if marks:
            events.append(event("user_annotation", f"ProfilerStep#{step}", begin, at))
    return events


def starts(trace: DeviceTrace, category: str) -> np.ndarray[Any, Any]:
    return np.sort(trace.start_ns[trace.is_category(category) & trace.is_phase("X")]) / US


@pytest.mark.parametrize(
    ("pieces", "observed", "each"),
    # six pieces of compiled code of 0.7 us, half of a call of 6 us and half of 20 us of Python
    [(OBSERVED, True, 6 * 0.7 + 3 + 10),
     # less 0.6 us a piece and 2.9 us of the call, at most half: 0.5, 0.25, 0.5, 1.4, 2.5, 0.7, 0.1 and 8.4 us
     (PROFILED, False, 14.35)],
)  # fmt: skip
def test_an_iteration_takes_its_own_time(pieces: tuple[float, ...], observed: bool, each: float) -> None:
    given = recording(pieces)
    cost = host_cost(given)
    assert cost is not None and cost.observed == observed
    moved, found = program_time.timed(given, {}, {}, WantedTimes())
    assert (found.kind, found.anchored) == (ESTIMATED, False)
    assert np.diff(starts(moved, "cuda_runtime")) == pytest.approx(each, abs=0.01)
    assert np.diff(starts(moved, "kernel")) == pytest.approx(each, abs=0.01)
    # from the first kernel to the last one, 5 us long, in two steps
    assert found.step_ns == pytest.approx((49 * each + 5) / 2 * US, abs=10)
    assert found.recorded_step_ns == pytest.approx((49 * sum(pieces) + 5) / 2 * US, abs=10)


def test_the_range_is_that_of_the_host() -> None:
    _, found = program_time.timed(recording(), {}, {}, WantedTimes())
    assert found.low_ns == pytest.approx((49 * 0.75 * 17.2 + 5) / 2 * US, abs=30)
    assert found.high_ns == pytest.approx((49 * 1.6 * 17.2 + 5) / 2 * US, abs=30)
    _, alone = program_time.timed(recording(PROFILED), {}, {}, WantedTimes())
    assert alone.high_ns == alone.recorded_step_ns  # a profiler alone may cost nothing


def test_a_device_that_is_busy_throughout_takes_as_long() -> None:
    moved, found = program_time.timed(recording(kernel=100.0), {}, {}, WantedTimes())
    assert np.diff(starts(moved, "kernel")) == pytest.approx(100)
    assert found.step_ns == found.recorded_step_ns == found.high_ns == 2500 * US
    assert found.low_ns == 2250 * US


def test_what_takes_longer_than_recording_does_is_of_the_program() -> None:
    # 500 us of Python: 30 of the first 60 and the rest; 400 us in `aten::t`: 0.7 and what exceeds 150
    moved, _ = program_time.timed(recording((*OBSERVED[:7], 500.0)), {}, {}, WantedTimes())
    assert np.diff(starts(moved, "cuda_runtime")) == pytest.approx(6 * 0.7 + 3 + 470, abs=0.01)
    moved, _ = program_time.timed(recording((6.0, 400.0, *OBSERVED[2:])), {}, {}, WantedTimes())
    assert np.diff(starts(moved, "cuda_runtime")) == pytest.approx(6 * 0.7 + 3 + 10 + 250, abs=0.01)


def test_python_that_waits_for_another_thread_is_counted_once() -> None:
    """The main thread does nothing while another one, from 100 us on, does what `recording` does."""
    work = [event("cpu_op", "aten::ones", 0.0, 10.0, tid=MAIN)]
    for k in range(30):
        t = 100 + 76.0 * k + np.cumsum((0.0, *OBSERVED))
        for name, begin, end in (("MmBackward0", 0, 7), ("aten::t", 1, 2), ("aten::mm", 3, 6)):
            work.append(event("cpu_op", name, t[begin], t[end], tid=OTHER))
    work.append(event("cpu_op", "aten::ones", 2400.0, 2410.0, tid=MAIN))
    cost = host_cost(traced(work))
    assert cost is not None
    main = cost.took_ns[cost.at_ns == 10 * US]
    # until the other begins, at 100, and since it ended, at 100 + 29 * 76 + 56
    assert main.tolist() == [(90 + 2400 - 2360) * US]


@pytest.mark.parametrize(
    "given",
    [recording(marks=False), recording(calls=False), recording(iterations=5), recording(steps=0),
     traced([event("cpu_op", "aten::add", 0.0, 5.0)])],
    ids=["no steps", "no calls", "too few events", "empty", "one operator"],
)  # fmt: skip
def test_a_recording_without_a_basis_stays_as_it_is(given: DeviceTrace) -> None:
    same, found = program_time.timed(given, {}, {}, WantedTimes())
    assert same is given and found.kind == RECORDED


def test_an_estimate_is_not_made_unasked() -> None:
    given = recording()
    for wanted in (WantedTimes(as_recorded=True), WantedTimes(estimate=False)):
        same, found = program_time.timed(given, {}, {}, wanted)
        assert same is given and found.kind == RECORDED
    known = {"steps": {"unprofiled": {"step_ns": 600 * US}}}
    assert program_time.timed(given, {}, known, WantedTimes())[1].anchored
    assert not program_time.timed(given, {}, known, WantedTimes(anchor=False))[1].anchored


def test_kernels_launched_before_the_recording_keep_the_device() -> None:
    """A stream that still does 3,000 us of earlier work: what is launched meanwhile waits for that."""
    events = [event("user_annotation", "ProfilerStep#0", 0.0, 1900.0)]
    events += [event("kernel", "earlier", 100.0 * k, 100.0 * k + 100, stream=STREAM, correlation=9000 + k)
               for k in range(30)]  # fmt: skip
    for k in range(25):
        t = 76.0 * k + np.cumsum((0.0, *OBSERVED))
        events += [event("cpu_op", "aten::linear", t[0], t[7]), event("cpu_op", "aten::t", t[1], t[2]),
                   event("cpu_op", "aten::addmm", t[3], t[6]),
                   event("cuda_runtime", "cudaLaunchKernel", t[4], t[5], correlation=1 + k),
                   event("kernel", "gemm", 3000 + 5 * k, 3005 + 5 * k, stream=STREAM, correlation=1 + k)]  # fmt: skip
    moved, found = program_time.timed(traced(events), {}, {}, WantedTimes())
    assert found.step_ns == found.recorded_step_ns == 3125 * US
    assert starts(moved, "kernel")[30:] == pytest.approx(3000 + 5 * np.arange(25))


def test_ranks_that_wait_for_one_another_stay_as_recorded(tmp_path: Path) -> None:
    for rank in range(2):
        text = json.dumps({"schemaVersion": 1, "traceEvents": events_of(OBSERVED)})
        (tmp_path / f"run.rank{rank}.kineto.json").write_text(text)
    assert etude.open(tmp_path / "run.rank0.kineto.json").provenance["timing"] == ESTIMATED
    assert "timing" not in etude.open(tmp_path).provenance
