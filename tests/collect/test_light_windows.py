"""Light windows of a device, joined to one: written by hand, since no device is needed."""

from types import SimpleNamespace
from typing import Any

import pytest

from etude.capture.collect import detach, light


def window(base_ns: int, names: list[str], correlation: int, marks: int, **more: Any) -> dict[str, Any]:
    """Two events, of a call and of what it launched, and this many steps."""
    return {
        "name": [0, 1], "kind": [light.CALL, light.ACTIVITY], "thread": [1, 7], "correlation": 2 * [correlation],
        "start_ns": [0, 10], "end_ns": [5, 30], "names": names, "base_ns": base_ns,
        "marks_ns": [[base_ns + 100 * k, base_ns + 100 * k + 90] for k in range(marks)], "device": True, "starts": [0],
    } | more  # fmt: skip


def test_windows_of_a_process_become_one():
    first = window(1000, ["launch", "add"], 3, 2, launch_ns=2000.0)
    second = window(5000, ["mul", "launch"], 3, 3, name=[1, 0], launch_ns=3000.0)
    found = light.in_one([first, second])
    assert found["names"] == ["launch", "add", "mul"] and found["name"] == [0, 1, 0, 2]
    assert found["start_ns"] == [0, 10, 4000, 4010] and found["base_ns"] == 1000
    assert found["starts"] == [0, 2] and len(found["marks_ns"]) == 5
    assert found["correlation"] == [3, 3, 6, 6]  # not those of the first
    assert found["launch_ns"] == 2500.0
    assert first["name"] == [0, 1]  # as it was


def test_a_window_that_was_cut_off_has_no_cost_of_its_own():
    found = light.in_one([window(0, ["a", "b"], 1, 2, launch_ns=2000.0), window(900, ["a", "b"], 1, 2)])
    assert found["launch_ns"] == 2000.0


@pytest.mark.parametrize(("cuda", "started"), [("12.4", True), (None, True), ("13.0", False)])
def test_the_profiler_stays_where_it_cannot_be_taken_out(cuda: str | None, started: bool):
    device = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: started)
    torch = SimpleNamespace(cuda=device, version=SimpleNamespace(cuda=cuda), distributed=None)
    assert detach.detach(torch) is False


def test_how_many_steps_of_a_warm_up_are_light():
    assert [light.light_steps(warmup, 3) for warmup in (0, 2, 3, 6, 20)] == [0, 0, 1, 3, 4]
    assert light.light_steps(6, None) == 0


def test_what_a_profiler_adds_to_a_launch_is_the_mean_of_both_kinds_of_pass():
    """19 launches forward take 19 us more, 38 forward and back 76 us more: 1 and 2 us a launch."""
    capture = light.LightCapture.__new__(light.LightCapture)
    capture.plain_ns, capture._light_ns = (100_000, 300_000), (119_000, 376_000)
    capture._marks_ns = [[0, 5_000_000]]
    step = [{"cat": "kernel", "ts": 100.0 + k} for k in range(50)]
    passes = [{"cat": "kernel", "ts": 6000.0 + k} for k in range(31 * (19 + 38))]
    calls = [{"cat": "cuda_runtime", "ts": 6000.0 + k} for k in range(31 * 60)]
    assert capture._added_to_launch([*step, *passes, *calls], 0) == pytest.approx(1500.0)
