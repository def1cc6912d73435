"""Times of a device that was recorded alone. Windows are written by hand; what they come to is worked out by hand."""

from typing import Any

import numpy as np
import pytest

from etude.base.errors import TraceError
from etude.capture.ingest import program_time
from etude.capture.ingest.device_alone import DeviceAlone, as_alone
from etude.capture.ingest.light_window import ACTIVITY, CALL, LightWindow
from etude.capture.ingest.program_time import PROGRAM, WantedTimes
from light_windows import US, full, light, rows


def alone(
    steps: int = 5, every: int = 40, kernel: int = 20, launches: int = 3, gap: int = 0, **more: Any
) -> dict[str, Any]:
    """Each step: a kernel every `every` us from 4 us on; the device has a clock of its own, 7 s ahead."""
    start, marks = [], []
    for step in range(steps):
        t = step * (every * launches + gap)
        start += [US * (t + 4 + every * k) for k in range(launches)]
        marks.append([7_000_000 * US + US * t, 7_000_000 * US + US * (t + every * launches + gap)])
    return {
        "name": [0] * len(start), "stream": [3] * len(start), "start_ns": start,
        "end_ns": [one + kernel * US for one in start], "names": ["add"], "base_ns": 7_000_000 * US,
        "marks_ns": marks,
    } | more  # fmt: skip


def both(told: dict[str, Any], **given: Any) -> tuple[LightWindow, DeviceAlone]:
    window, device = LightWindow.of(light(steps=3, **given)), DeviceAlone.of({"alone": told})
    assert window is not None and device is not None
    return window, device


def test_kernels_are_as_the_device_had_them_and_launches_just_before_them():
    found = as_alone(*both(alone()))
    assert found is not None
    kernels, calls = (np.flatnonzero(found.kind == kind) for kind in (ACTIVITY, CALL))
    # the light window launches every 60 us; the device alone was given work every 40, 4 us after each launch
    first = found.steps_ns[0][0]
    assert ((found.start_ns[calls] - first) / US).tolist() == [0, 40, 80, 120, 160, 200]
    assert ((found.start_ns[kernels] - first) / US).tolist() == [4, 44, 84, 124, 164, 204]
    assert (found.end_ns - found.start_ns)[kernels].tolist() == [20 * US] * 6
    assert [end - begin for begin, end in found.steps_ns] == [120 * US, 120 * US]


def test_a_launch_is_never_later_than_its_kernel_where_work_is_queued():
    # kernels of 50 us, every 50: the device is never idle within a step, so only the marks say where the host was
    found = as_alone(*both(alone(every=50, kernel=50), kernel=50))
    assert found is not None
    kernels, calls = (np.flatnonzero(found.kind == kind) for kind in (ACTIVITY, CALL))
    assert (found.start_ns[calls] <= found.start_ns[kernels]).all()
    assert np.diff(found.start_ns[kernels]).tolist() == [50 * US] * 5


def test_steps_are_those_that_take_as_long_as_asked():
    told = alone(steps=6)
    late = 3  # this step, and what it launches, begin 30 us later; the one before takes as much longer
    for step in range(late, 6):
        told["marks_ns"][step] = [one + 30 * US for one in told["marks_ns"][step]]
        for column in ("start_ns", "end_ns"):
            told[column][3 * step :] = told[column][3 * step :]
            told[column][3 * step : 3 * step + 3] = [one + 30 * US for one in told[column][3 * step : 3 * step + 3]]
    told["marks_ns"][late - 1][1] += 30 * US
    window, device = both(told)
    assert device.lengths_ns(np.repeat(np.arange(6), 3)).tolist() == [
        one * US for one in (120, 120, 150, 120, 120, 120)
    ]
    slow = as_alone(window, device, 135.0 * US)
    usual = as_alone(window, device, 120.0 * US)
    assert slow is not None and usual is not None
    assert sorted(end - begin for begin, end in slow.steps_ns) == [120 * US, 150 * US]
    assert [end - begin for begin, end in usual.steps_ns] == [120 * US, 120 * US]


@pytest.mark.parametrize(
    "told",
    [
        alone(launches=2),  # a kernel less in each step
        alone(names=["mul"]),  # another kernel
        alone(steps=2),  # no two steps after the first
        alone(name=[0] * 14, stream=[3] * 14, start_ns=[*range(0, 1400, 100)], end_ns=[*range(50, 1450, 100)]),
    ],
)
def test_a_device_that_did_something_else_says_nothing(told: dict[str, Any]):
    assert as_alone(*both(told)) is None


def test_a_hosts_wait_ends_when_the_device_alone_is_done():
    """A step: a launch at 0, then a wait from 10 on for a kernel that ends at 104; alone it ends at 64."""
    rows_of: list[tuple[int, ...]] = []
    marks = []
    for step in range(3):
        t = 120 * step
        rows_of += [(0, CALL, 11, 1 + step, t, t + 5), (1, ACTIVITY, 7, 1 + step, t + 4, t + 104)]
        rows_of.append((2, CALL, 11, 0, t + 10, t + 106))
        marks.append([t * US, (t + 120) * US])
    column = [list(one) for one in zip(*rows_of, strict=True)]
    given = dict(zip(("name", "kind", "thread", "correlation", "start_ns", "end_ns"), column, strict=True))
    given |= {side: [US * one for one in given[side]] for side in ("start_ns", "end_ns")}
    names = ["cudaLaunchKernel", "add", "cudaStreamSynchronize"]
    window = LightWindow.of(given | {"names": names, "base_ns": 0, "marks_ns": marks, "device": True})
    device = DeviceAlone.of({"alone": alone(launches=1, every=80, kernel=60)})
    assert window is not None and device is not None
    found = as_alone(window, device)
    assert found is not None
    waits = np.flatnonzero(found.name == 2)
    begins = np.array([begin for begin, _ in found.steps_ns])
    assert ((found.end_ns[waits] - begins) / US).tolist() == [66, 66]  # 2 us after the kernel, as in the light window


def test_what_several_streams_did_is_matched_by_names():
    told = alone()
    second = {"name": [1] * 15, "stream": [9] * 15, "start_ns": told["start_ns"], "end_ns": told["end_ns"]}
    device = DeviceAlone.of(
        {"alone": told | {key: told[key] + second[key] for key in second} | {"names": ["add", "x"]}}
    )
    window = both(alone())[0]
    assert device is not None and as_alone(window, device) is None  # one stream more than the light window has


def test_times_of_the_device_alone_are_those_of_the_program():
    device = full()
    moved, timed = program_time.timed(
        device, light(steps=3) | {"alone": alone()}, {"world_size": 1, "steps": {"numbers": [0, 1]}}, WantedTimes()
    )
    assert (timed.kind, timed.anchored) == (PROGRAM, False)
    assert rows(moved, "kernel") == ([4, 44, 84, 124, 164, 204], [20.0] * 6)
    assert rows(moved, "user_annotation") == ([0, 120], [120, 120])


def test_without_a_match_the_light_window_takes_the_pace_of_the_device_alone():
    device = full()
    moved, timed = program_time.timed(
        device, light(steps=3, call_ns=1000.0) | {"alone": alone(launches=2, every=75)},
        {"world_size": 1, "steps": {"numbers": [0, 1]}}, WantedTimes(),
    )  # fmt: skip
    assert timed.kind == PROGRAM
    _, lengths = rows(moved, "user_annotation")
    assert all(abs(one - 150) < 15 for one in lengths)  # 180 in the light window


@pytest.mark.parametrize(
    "wrong", [{"names": []}, {"name": [0]}, {"marks_ns": [[0, 1]]}, {"start_ns": "x"}, {"base_ns": None}]
)
def test_damaged_files_are_refused(wrong: dict[str, Any]):
    with pytest.raises(TraceError, match="activities of a device alone"):
        DeviceAlone.of({"alone": alone() | wrong}, "light.json.gz")


def test_there_may_be_none():
    assert DeviceAlone.of({}) is None and DeviceAlone.of({"alone": {}}) is None
