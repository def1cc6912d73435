"""Times of a recording for operators of a job that has none."""

import json

import pytest

from etude.base.errors import MismatchError
from etude.machine.system import Device
from etude.make.transform import with_operator_times
from etude.model.build import TraceBuilder
from etude.model.job import Job, assemble
from etude.model.schema import UNKNOWN, Kind


def texts(*shapes: list[int]) -> dict[str, str]:
    return {"in_shapes": json.dumps(list(shapes)), "in_types": json.dumps(["Tensor(float)"] * len(shapes))}


def recorded(*operators: tuple[str, dict[str, str], int, int, int], provenance: dict[str, str] | None = None) -> Job:
    """A step of (name, texts, host time before, host time inside, device time)."""
    made = TraceBuilder()
    for name, shapes, before, inside, device in operators:
        made.add(Kind.COMP, "host", cpu=1, thread=1, duration_ns=before, step=0)
        frame = made.add(Kind.COMP, name, cpu=1, thread=1, duration_ns=0, step=0, **shapes)
        made.add(Kind.COMP, "host", cpu=1, thread=1, duration_ns=inside, step=0, parent=frame)
        if device:
            made.add(Kind.COMP, "kernel", cpu=0, stream=7, duration_ns=device, step=0, parent=frame)
    return assemble("recorded", [made.part(rank=0)]).replace(provenance=provenance or {})


def dry(*operators: tuple[str, dict[str, str]], cpu: int = 0) -> Job:
    made = TraceBuilder()
    for i, (name, shapes) in enumerate(operators):
        place = {"cpu": 1, "thread": 1} if cpu else {"cpu": 0, "stream": 0}
        made.add(Kind.COMP, name, data=[i - 1] if i else [], step=0, **place, **shapes)
    return assemble("dry", [made.part(rank=0)])


MM = texts([64, 32], [32, 16])
ADD = texts([64, 16], [64, 16])
RUN = recorded(("aten::mm", MM, 100, 20, 5000), ("aten::add", ADD, 200, 30, 700))


def durations(job: Job) -> dict[str, list[int]]:
    trace = job.traces[0]
    names = [trace.text("name", i) for i in range(len(trace))]
    return {name: trace.duration_ns[[one == name for one in names]].tolist() for name in dict.fromkeys(names)}


def test_the_same_shapes_take_as_long_and_the_host_launches_them() -> None:
    found = with_operator_times(dry(("aten::mm", MM), ("aten::add", ADD)), RUN, None)
    assert durations(found.job) == {"host": [120, 230], "aten::mm": [5000], "aten::add": [700]}
    assert found.by_key == 1.0 and found.placed == 1.0
    trace = found.job.traces[0]
    edges = {(int(trace.data[e]), i) for i in range(4) for e in range(trace.data_start[i], trace.data_start[i + 1])}
    # The host, the product, the host again, the sum: launches, the host's own order, and the stream's.
    assert edges == {(0, 1), (0, 2), (2, 3), (1, 3)}


def test_other_shapes_take_as_long_as_they_have_elements() -> None:
    wider = texts([128, 16], [128, 16])
    found = with_operator_times(dry(("aten::add", wider)), RUN, None)
    assert durations(found.job)["aten::add"] == [1400]
    assert found.by_key == 0.0 and found.by_name == 1.0


def test_a_small_operator_says_little_of_a_large_one() -> None:
    """The shortest takes 2,000 ns; memory takes 4,000 ns for a million numbers of 4 bytes, and nothing to speak of for
    64: the million take twice as long, and not a million 64th."""
    device = Device(name="d", memory_bandwidth_bytes_per_s=1e12)
    run = recorded(("own::fill", texts([64]), 1, 1, 2000))
    found = with_operator_times(dry(("own::fill", texts([1_000_000]))), run, device)
    assert durations(found.job)["own::fill"] == [4000]
    found = with_operator_times(dry(("own::fill", texts([128]))), run, device)
    assert durations(found.job)["own::fill"] == [2000]


def test_the_nearest_shape_is_that_with_the_fewest_other_sizes() -> None:
    run = recorded(
        ("aten::mm", texts([64, 32], [32, 16]), 1, 1, 100), ("aten::mm", texts([96, 48], [48, 16]), 1, 1, 900)
    )
    found = with_operator_times(dry(("aten::mm", texts([128, 32], [32, 16]))), run, None)
    assert durations(found.job)["aten::mm"] == [round(100 * (128 * 32 + 32 * 16) / (64 * 32 + 32 * 16))]


def test_operators_of_the_host_take_their_own_time_there() -> None:
    run = recorded(("aten::mm", MM, 100, 4000, 0), ("aten::mm", texts([64, 32], [32, 32]), 100, 6000, 0))
    found = with_operator_times(dry(("aten::mm", MM), cpu=1), run, None)
    assert durations(found.job) == {"aten::mm": [4100]}


def test_in_place_operators_are_the_same_ones() -> None:
    run = recorded(("aten::add_", ADD, 10, 10, 700))
    assert durations(with_operator_times(dry(("aten::add", ADD)), run, None).job)["aten::add"] == [700]


def test_a_host_that_ran_ahead_is_as_fast_as_its_shortest_step() -> None:
    told = {"unprofiled_step_ns": "6000", "unprofiled_least_ns": "175"}
    run = recorded(("aten::mm", MM, 100, 20, 5000), ("aten::add", ADD, 200, 30, 700), provenance=told)
    found = with_operator_times(dry(("aten::mm", MM), ("aten::add", ADD)), run, None)
    assert durations(found.job)["host"] == [60, 115]  # 350 ns in all, and 175 in the shortest step


def test_operators_that_call_others_hold_their_kernels() -> None:
    made = TraceBuilder()
    outer = made.add(Kind.COMP, "aten::linear", cpu=1, thread=1, duration_ns=0, step=0, **MM)
    inner = made.add(Kind.COMP, "aten::addmm", cpu=1, thread=1, duration_ns=50, step=0, parent=outer, **MM)
    made.add(Kind.COMP, "kernel", cpu=0, stream=7, duration_ns=900, step=0, parent=inner)
    run = assemble("recorded", [made.part(rank=0)])
    for name in ("aten::linear", "aten::addmm"):
        assert durations(with_operator_times(dry((name, MM)), run, None).job)[name] == [900]


def test_a_recording_of_another_program_is_refused() -> None:
    with pytest.raises(MismatchError, match="no operator of the job"):
        with_operator_times(dry(("aten::conv", MM)), RUN, None)


def test_operators_that_nothing_is_known_of_have_no_time_on_the_device() -> None:
    found = with_operator_times(dry(("aten::mm", MM), ("aten::relu", texts([64, 16]))), RUN, None)
    assert durations(found.job)["aten::relu"] == [UNKNOWN]  # a simulation takes that of its system
    # The sum is not in the job: its host time counts for the product, and an unknown operator takes the mean of all.
    assert durations(found.job)["host"] == [350, 350]


def test_on_a_cpu_an_operator_that_was_not_recorded_takes_its_bytes_as_fast_as_those_that_were() -> None:
    """The recorded sum reads two tensors and writes one; a ReLU of that size reads one and writes one."""
    core = Device(name="core", cpu=True, peak_flop_per_s={"fp32": 1e15}, memory_bandwidth_bytes_per_s=1e9)
    large = texts([1024, 1024], [1024, 1024])
    run = recorded(("aten::add", large, 100, 9_000_000, 0), ("aten::add", large, 100, 9_000_000, 0))
    found = with_operator_times(dry(("aten::add", large), ("aten::relu", texts([1024, 1024])), cpu=1), run, core)
    assert durations(found.job)["aten::relu"][0] == pytest.approx(6_000_000, rel=0.01)
    assert found.by_key == pytest.approx(9 / 15, rel=0.01)
