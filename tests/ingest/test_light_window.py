"""Times of the program from a light window. Windows are written by hand; what they come to is worked out by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from etude.base.errors import TraceError, UsageError
from etude.capture.ingest import program_time
from etude.capture.ingest.causal import convert, to_job
from etude.capture.ingest.light_cost import fitted, without_cost
from etude.capture.ingest.light_window import CALL, LightWindow
from etude.capture.ingest.program_clock import as_window, in_program_time
from etude.capture.ingest.program_time import ESTIMATED, PROGRAM, RECORDED, WantedTimes
from etude.model import frames
from etude.model.as_recorded import as_recorded, is_twice_timed
from etude.model.schema import TimeSource
from light_windows import MAIN, STREAM, US, event, full, light, rows, traced, window


def test_calls_and_what_they_launched_are_as_in_the_light_window():
    moved, joined = in_program_time(full(), window(steps=3))
    assert (joined.steps, joined.paired, joined.of, joined.why_not) == (2, 6, 6, "")
    assert rows(moved, "cuda_runtime") == ([0, 60, 120, 180, 240, 300], [5.0] * 6)
    assert rows(moved, "kernel") == ([4, 64, 124, 184, 244, 304], [20.0] * 6)
    assert moved.base_ns == 180 * US  # the first of several light steps, in which the profiler starts, does not count
    starts, lengths = rows(moved, "user_annotation")
    assert starts == [0, 180] and lengths == [180, 180]


def test_operators_are_divided_between_the_calls():
    moved, _ = in_program_time(full(), window(steps=3))
    (starts, lengths), (calls, _) = rows(moved, "cpu_op"), rows(moved, "cuda_runtime")
    for start, length, call in zip(starts, lengths, calls, strict=True):
        assert start <= call and start + length >= call + 5
    assert all(a + b <= c + 1e-6 for a, b, c in zip(starts, lengths, starts[1:], strict=False))


def test_a_step_that_does_something_else_keeps_the_recorded_times():
    recorded = full(name="cudaMemcpyAsync")
    moved, joined = in_program_time(recorded, window(steps=3))
    assert moved is recorded and "step 0 does something else" in joined.why_not


def test_one_step_may_stand_for_several_and_waits_for_the_device():
    # three kernels of 100 us, launched every 60 us: the device needs 300, so a step begins every 304 us
    moved, joined = in_program_time(full(steps=3), window(steps=1, kernel=100))
    assert joined.done
    starts, _ = rows(moved, "user_annotation")
    assert starts == [0, 304, 608]


def test_steps_that_stand_for_all_follow_one_another_and_take_as_long_as_asked():
    told = light(steps=8)
    for which in (3, 4):
        told["marks_ns"][which][1] += 200 * US  # held up; the next begins as before
    given = LightWindow.of(told)
    assert given is not None
    assert given.used() == [1, 2, 3, 4, 5, 6, 7]
    assert given.run(3, 180 * US) == (5, 6, 7) and given.run(2, 380 * US) == (3, 4)
    assert given.run(9, 380 * US) == (3,)  # there is no such run
    assert replace(given, chosen=(5, 6)).step_ns == 180 * US and given.typical_ns() == 180 * US


def test_steps_in_which_a_profiler_starts_do_not_count():
    told = light(steps=6) | {"starts": [0, 3]}
    given = LightWindow.of(told)
    assert given is not None
    assert given.used() == [1, 2, 4, 5] and given.run(2, 180 * US) == (1, 2) and len(given.run(3, 180 * US)) == 1


def test_calls_that_launch_nothing_cost_nothing_where_the_cost_of_a_launch_is_known():
    told = light(steps=3)
    calls = [row for row, kind in enumerate(told["kind"]) if kind == 1]
    last = calls[-1]
    told["correlation"] = [0 if row == last else one for row, one in enumerate(told["correlation"])]
    by_call, by_launch = (LightWindow.of(told | {name: 2000.0}) for name in ("call_ns", "launch_ns"))
    assert by_call is not None and by_launch is not None
    assert by_call.weights().tolist() == [1.0] * len(calls) and by_call.profiler_ns == 2000.0
    assert by_launch.weights().tolist() == [1.0] * (len(calls) - 1) + [0.0] and by_launch.profiler_ns == 2000.0


def test_where_the_device_sets_the_pace_the_measured_cost_counts_and_not_the_step():
    busy = window(steps=3, kernel=70, launch_ns=5 * US)
    plain = program_time._without_profiler(busy, 2, 0)
    slow = program_time._without_profiler(busy, 2, round(plain.step_ns))
    assert slow.start_ns.tolist() == plain.start_ns.tolist() != busy.start_ns.tolist()


def test_a_graph_in_program_time_begins_with_an_idle_device():
    moved, _ = in_program_time(full(), window(steps=4, kernel=90))  # the second step begins 90 us behind its host
    trace = to_job("run", [convert(moved)]).traces[0]
    waits = [row for row in range(len(trace)) if trace.text("name", row) == frames.DISPATCH]
    assert max((int(trace.duration_ns[row]) for row in waits), default=0) <= 20 * US
    first = int(np.flatnonzero(trace.stream == STREAM)[0])
    assert trace.duration_ns[first] == 90 * US


def test_without_cost_nothing_moves():
    given = window(steps=3)
    for cost in (0.0, 0.4):
        same = without_cost(given, cost)
        assert same.start_ns.tolist() == given.start_ns.tolist() and same.steps_ns == given.steps_ns


def test_a_host_that_pays_less_is_faster_and_its_device_follows():
    eased = without_cost(window(steps=2), 10 * US)
    assert eased.step_ns == 150 * US  # one step counts: three calls, 10 us less each
    calls = eased.start_ns[eased.kind == CALL]
    assert np.diff(calls).tolist() == [50 * US] * 5


def test_a_device_that_is_busy_throughout_takes_as_long_with_a_faster_host():
    given = window(steps=2, kernel=100)
    assert given.step_ns == without_cost(given, 20 * US).step_ns == 300 * US


def test_a_call_that_waits_for_the_device_goes_on_waiting():
    told = light(steps=1, kernel=100)
    told["names"].append("cudaStreamSynchronize")
    for name, value in (("name", 2), ("kind", 1), ("thread", MAIN), ("correlation", 0), ("start_ns", 130 * US),
                        ("end_ns", 310 * US)):  # fmt: skip
        told[name].append(value)  # until the last kernel is done, at 304 us
    told["marks_ns"] = [[0, 320 * US]]
    given = LightWindow.of(told)
    assert given is not None
    eased = without_cost(given, 20 * US)
    assert eased.end_ns[-1] - eased.end_ns[eased.kind == 2].max() == 6 * US
    assert eased.steps_ns[0][1] >= 300 * US


def test_a_cost_is_found_that_makes_a_step_as_long_as_it_was_timed():
    eased, cost = fitted(window(steps=3), 120 * US)
    assert eased.step_ns == pytest.approx(120 * US, rel=1e-3) and cost == pytest.approx(20 * US, rel=0.02)
    same, nothing = fitted(window(steps=3), 500 * US)
    assert nothing == 0 and same.step_ns == 180 * US


def test_a_recording_is_a_window_of_its_own_with_its_other_events_counted():
    found = as_window(full())
    assert found is not None
    own, weight = found
    assert len(own.steps_ns) == 2 and weight.sum() == 8  # six operators and the two steps
    assert as_window(traced([event("cpu_op", "aten::add", 0.0, 5.0)])) is None


def test_which_times_a_recording_gets():
    manifest = {"steps": {"numbers": [0, 1], "unprofiled": {"count": 2, "step_ns": 150 * US}},
                "windows": [{"kind": "full", "step_ns": 1000 * US}]}  # fmt: skip
    told = light(steps=3, call_ns=5 * US)
    _, program = program_time.timed(full(), told, manifest, WantedTimes())
    assert (program.kind, program.anchored, program.recorded_step_ns) == (PROGRAM, True, 1000 * US)
    moved, alone = program_time.timed(full(), told, manifest, WantedTimes(anchor=False))
    assert (alone.kind, alone.anchored) == (PROGRAM, False)
    assert rows(moved, "user_annotation")[0][1] == 165  # 180 less 5 us of each of three calls
    _, estimated = program_time.timed(full(), {}, manifest, WantedTimes())
    assert estimated.kind == ESTIMATED and estimated.low_ns < 150 * US < estimated.high_ns
    recorded = full()
    for wanted, has in (
        (WantedTimes(as_recorded=True), manifest),
        (WantedTimes(anchor=False), manifest),
        (WantedTimes(), {}),
    ):
        same, kept = program_time.timed(recorded, {}, has, wanted)
        assert kept.kind == RECORDED and same is recorded


def test_an_older_light_file_has_no_clock_and_a_broken_one_is_refused():
    assert LightWindow.of({"name": [], "names": []}) is None
    broken = {"marks_ns": [[0, "later"]], "name": [0], "names": [], "kind": "x", "start_ns": [1e40]}
    for name, value in broken.items():
        with pytest.raises(TraceError, match="is not the light window"):
            LightWindow.of(light() | {name: value})


def test_a_time_that_nothing_reads_is_refused():
    with pytest.raises(UsageError, match="is not read here"):
        program_time.timed(traced([event("cpu_op", "aten::add", 0.0, 5.0)]), {}, {}, WantedTimes(unprofiled_ns=US))
    _, found = program_time.timed(full(), {}, {}, WantedTimes(unprofiled_ns=150 * US))
    assert found.kind == ESTIMATED


def test_nodes_keep_when_they_ran_under_the_profiler_and_say_where_their_times_come_from():
    recorded, (moved, _) = full(), in_program_time(full(), window(steps=3))
    job = to_job("run", [convert(moved)])
    trace = job.traces[0]
    kernels = np.flatnonzero(trace.stream == STREAM)
    assert trace.duration_ns[kernels].tolist() == trace.recorded_duration_ns[kernels].tolist() == [20 * US] * 6
    assert (trace.time_source[kernels] == TimeSource.LIGHT).all()
    assert trace.recorded_start_ns[kernels].tolist() == [US * at for at in (165, 465, 765, 1165, 1465, 1765)]
    operators = [row for row in range(len(trace)) if trace.text("name", row) == "aten::add"]
    assert (trace.time_source[operators] == TimeSource.CORRECTED).all()
    assert (trace.recorded_end_ns - trace.recorded_start_ns)[operators].tolist() == [200 * US] * 6
    before, after = to_job("run", [convert(recorded)]), as_recorded(job)
    assert after.timing is not None and before.timing is not None
    assert after.timing.span() == before.timing.span()
    assert after.traces[0].duration_ns.sum() == before.traces[0].duration_ns.sum()
    assert not is_twice_timed(before.traces[0])


def test_an_estimate_has_nothing_measured_lightly():
    moved, _ = program_time.timed(full(), {}, {}, WantedTimes(unprofiled_ns=150 * US))
    source = convert(moved).part.trace.time_source
    assert set(source.tolist()) == {TimeSource.CORRECTED, TimeSource.RECORDED}


def test_works_of_gloo_stay_in_their_step_whichever_thread_took_them():
    """Steps of 900 us recorded, 300 us in the light window: an add, then a sum that is waited for until 600 or 200 us.
    Of gloo's two threads one took the first sum and the other the second, in the light window one took both."""
    events = []
    for step, worker in enumerate((21, 22)):
        t = 1000.0 * step
        events.append(event("user_annotation", f"ProfilerStep#{step}", t, 900.0))
        for name, at, dur in (("c10d::allreduce_", 30, 30), ("aten::add", 600, 60)):
            events.append(event("cpu_op", name, t + at, dur))
        events.append(event("user_annotation", "gloo:all_reduce", t + 60, 540) | {"tid": worker})
    names = ["c10d::allreduce_", "gloo:all_reduce", "aten::add"]
    told: dict[str, Any] = {key: [] for key in ("name", "kind", "thread", "correlation", "start_ns", "end_ns")}
    for step in range(2):
        for name, thread, at, dur in ((0, MAIN, 10, 10), (1, 22, 120, 80), (2, MAIN, 200, 20)):
            row = (name, 0, thread, -1, (300 * step + at) * US, (300 * step + at + dur) * US)
            for key, value in zip(told, row, strict=True):
                told[key].append(value)
    marks = [[300 * US * step, 300 * US * (step + 1)] for step in range(2)]
    given = LightWindow.of(told | {"names": names, "base_ns": 0, "marks_ns": marks, "device": False})
    assert given is not None
    moved, joined = in_program_time(traced(events), given)
    assert (joined.paired, joined.of, joined.why_not) == (4, 4, "")
    starts, lengths = (list(map(float, one)) for one in rows(moved, "user_annotation"))
    assert [round(one) for one in starts] == [0, 20, 300, 320]
    assert [round(one) for one in lengths] == [300, 180, 300, 180]
