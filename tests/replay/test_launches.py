"""Host time between launches, by hand: from light steps with driver calls alone, and inside compiled graphs."""

from pathlib import Path

import numpy as np
import pytest

import etude
from etude.model.build import TraceBuilder
from etude.model.schema import Kind
from etude.model.trace import Trace
from etude.run.replay import plan
from etude.run.replay.between import Busy, mostly_inside
from etude.run.replay.host_time import graph_ns
from etude.run.replay.launches import host_between_launches, launch_clocks
from etude.run.replay.light import LightEvents
from etude.run.replay.program import NOTHING, StepKind

I64 = np.int64


def window() -> tuple[Trace, np.ndarray, np.ndarray]:
    """One step of 1,000 ns: two launches of the main thread, one of another, and a wait of 300 that costs 5 itself."""
    b = TraceBuilder()
    b.add(Kind.COMP, "ProfilerStep#3", cpu=1, thread=1, step=3)
    launch = "cudaLaunchKernel"
    rows = ((launch, 1, 20), (launch, 1, 20), ("cuLaunchKernel", 2, 20), ("cudaDeviceSynchronize", 1, 5))
    for at, (name, thread, own) in enumerate(rows):
        b.add(Kind.COMP, name, cpu=1, thread=thread, step=3, correlation=at + 1, duration_ns=own)
    start, end = np.array([1000, 1100, 1300, 1200, 1600]), np.array([2000, 1120, 1320, 1220, 1900])
    return b.build(), start, end


def light(names: list[str], **columns: list[int]) -> LightEvents:
    given = {key: np.array(value, I64) for key, value in columns.items()}
    nothing = np.zeros(0)
    return LightEvents(names, **given, event_ns=nothing, pass_ns=nothing, cpu_ns=nothing.astype(I64))


NAMES = ["ProfilerStep#1", "cudaLaunchKernel", "cuLaunchKernel", "cudaDeviceSynchronize"]


def test_moments_of_the_window_are_those_of_the_same_driver_calls_in_a_light_step():
    trace, start, end = window()
    # Ten times as fast from 500 on; the wait takes 45, of which 5 are its own cost.
    told = light(NAMES, name=[0, 1, 2, 1, 3], thread=[7, 7, 9, 7, 7], start_ns=[500, 510, 520, 530, 550],
                 end_ns=[600, 512, 522, 532, 595])  # fmt: skip
    (clock,), why = launch_clocks(trace, np.ones(5, np.bool_), start, end, told)
    assert why == ""
    assert clock(np.array([1000, 1100, 1150, 1300, 1600, 1900, 2000])).tolist() == [0, 10, 15, 30, 50, 55, 60]
    kinds = np.array([StepKind.MARK, StepKind.CALL, StepKind.STAND_IN, StepKind.CALL, StepKind.END], I64)
    moments = np.array([1000, 1100, NOTHING, 1300, 2000])
    found = host_between_launches(kinds, np.zeros(5, I64), moments, [clock], np.full(5, 99))
    assert found.tolist() == [0, 10, 0, 20, 30]
    assert host_between_launches(kinds, np.zeros(5, I64), moments, [], np.full(5, 99)).tolist() == [99] * 5


def test_a_light_step_of_another_program_is_left_out_with_the_reason():
    trace, start, end = window()
    inside = np.ones(5, np.bool_)
    fewer = light(NAMES, name=[0, 1], thread=[7, 7], start_ns=[0, 10], end_ns=[100, 12])
    other = light(NAMES, name=[0, 1, 2, 3, 3], thread=[7, 7, 9, 7, 7], start_ns=[0, 10, 20, 30, 50],
                  end_ns=[100, 12, 22, 32, 95])  # fmt: skip
    assert launch_clocks(trace, inside, start, end, fewer) == (
        [], "a step of the window has 4 driver calls, light step 1 has 1",
    )  # fmt: skip
    assert launch_clocks(trace, inside, start, end, other) == (
        [], "light step 1 has other driver calls than the window",
    )  # fmt: skip
    none = light(NAMES, name=[1], thread=[7], start_ns=[10], end_ns=[12])
    assert launch_clocks(trace, inside, start, end, none) == ([], "the file has no steps")


def test_inside_a_compiled_graph_the_recorded_time_counts_less_that_of_events():
    assert graph_ns(np.array([100, 100, 10]), np.array([0, 2, 2]), 4.0).tolist() == [100, 64, 0]  # 4.5 units an event
    graphs = Busy(np.array([10, 100]), np.array([50, 140]))
    found = mostly_inside(graphs, np.array([10, 30, 70, 90, 120, 130]))
    assert found.tolist() == [False, True, False, False, True, True]


def test_the_host_of_a_compiled_model_takes_its_time(shared: Path):
    """A step was recorded in 57.5 ms and takes 32.4 ms without the profiler; the device is busy for 11.8 ms."""
    path = shared / "measured" / "hf" / "bert_compiled"
    if not path.is_dir():
        pytest.skip("needs ../shared/measured/hf")
    for trusted in (False, True):
        program = plan(etude.open(path), recording=path, trust_code=trusted)[0]
        assert program.steps.host_ns.sum() / 3 == pytest.approx(program.about["unprofiled_step_ns"], rel=0.1)
