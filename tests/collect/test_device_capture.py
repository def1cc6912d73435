"""Activities of a device alone: records as CUPTI writes them, made by hand, since no device is needed."""

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from etude.capture.collect import device_alone, recorder
from etude.capture.collect.device_alone import DeviceCapture

RECORD = 160
LAST = 12
"""Code of CUPTI: there are no more records."""


class Cupti:
    """One buffer of records, and a clock that goes on by 100 ns a look."""

    def __init__(self, records: list[bytes], end: int = LAST) -> None:
        self.buffer = ctypes.create_string_buffer(b"".join(records), RECORD * len(records) or 1)
        self.count, self.end, self.now = len(records), end, 0

    def cuptiActivityGetNextRecord(self, buffer: Any, used: Any, record: Any) -> int:  # noqa: N802
        at, here = buffer.value, ctypes.cast(record, ctypes.POINTER(ctypes.c_void_p))
        following = at if here[0] is None else here[0] + RECORD
        if following >= at + used.value:
            return self.end
        here[0] = following
        return 0

    def cuptiGetTimestamp(self, place: Any) -> int:  # noqa: N802
        self.now += 100
        ctypes.cast(place, ctypes.POINTER(ctypes.c_uint64))[0] = self.now
        return 0


def kernel(name: Any, start: int, end: int, stream: int = 7) -> bytes:
    """As in the header of CUPTI: kind, times at 16 and 24, stream at 48, a pointer to the name at 104."""
    text = struct.pack("<I12xQQ16xI52xQ", 3, start, end, stream, ctypes.addressof(name))
    return text.ljust(RECORD, b"\0")


def copy(start: int, end: int, stream: int = 7, kind: int = 1) -> bytes:
    return struct.pack("<I12xQQ8xI", kind, start, end, stream).ljust(RECORD, b"\0")


def captured(records: list[bytes], steps: int = 2, end: int = LAST) -> DeviceCapture:
    found = DeviceCapture.__new__(DeviceCapture)
    found.running = found.works = True
    found.marks_ns, found._records, found.behind_ns = [], [], 0
    found._cupti = Cupti(records, end)
    for _ in range(steps):
        found.mark()
    found.unmark()
    found._read(ctypes.addressof(found._cupti.buffer), RECORD * len(records))
    return found


def test_kernels_copies_and_sets_with_names_streams_and_times():
    name = ctypes.create_string_buffer(b"_Z3addPfi")
    found = captured([kernel(name, 150, 170), copy(110, 120, 9), copy(130, 140, kind=2)]).events()
    assert found["names"] == ["Memcpy", "Memset", "add(float*, int)"]
    assert found["name"] == [0, 1, 2] and found["stream"] == [9, 7, 7]  # by start
    assert found["base_ns"] == 100 and found["marks_ns"] == [[100, 200], [300, 400]]
    assert found["start_ns"] == [10, 30, 50] and found["end_ns"] == [20, 40, 70]


def test_names_that_are_no_symbols_stay():
    name = ctypes.create_string_buffer(b"triton_poi_fused_add_0")
    assert captured([kernel(name, 150, 170)]).events()["names"] == ["triton_poi_fused_add_0"]


def test_other_kinds_of_records_are_left_out():
    assert captured([copy(110, 120), copy(130, 140, kind=9)]).events()["names"] == ["Memcpy"]


@pytest.mark.parametrize(
    ("records", "end"),
    [
        ([], LAST),
        ([copy(110, 120)], 1),  # the buffer cannot be read to its end
        ([copy(50, 120)], LAST),  # before the first step
        ([copy(120, 110)], LAST),  # ends before it begins
        ([copy(110, 120, stream=1 << 30)], LAST),  # no stream has such a number
    ],
)
def test_records_that_cannot_be_those_of_the_steps_are_not_kept(records: list[bytes], end: int):
    assert captured(records, end=end).events() == {}


def test_a_step_that_was_cut_off_leaves_nothing():
    found = captured([copy(110, 120)], steps=3)
    found.marks_ns[-1] = found.marks_ns[-1][:1]
    assert found.events() == {} and len(found.took_ns) == 1


def test_without_cupti_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device_alone.detach, "library", lambda: "")
    found = DeviceCapture(SimpleNamespace())
    assert not found.running and not found.works and found.events() == {}
    found.stop()


class Window:
    """A capture that counts its steps; each takes a ms."""

    def __init__(self, torch: Any = None, works: bool = True) -> None:
        self.running, self.works, self.marks = True, works, 0

    @property
    def steps(self) -> int:
        return max(self.marks - 1, 0)

    @property
    def took_ns(self) -> list[int]:
        return [1_000_000] * self.steps

    def mark(self) -> None:
        self.marks += 1

    def stop(self) -> None:
        self.running = False


def recording(detached: bool, full_only: bool = False) -> recorder.Recorder:
    found = recorder.Recorder.__new__(recorder.Recorder)
    found._alone, found._detached, found._torch = None, detached, None
    found.options = SimpleNamespace(full_only=full_only)
    return found


def test_twenty_steps_after_a_first_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder, "DeviceCapture", Window)
    found = recording(True)
    assert [found._record_alone() for _ in range(23)] == [True] * 21 + [False] * 2
    assert found._alone is not None and found._alone.steps == 20 and not found._alone.running


@pytest.mark.parametrize(("detached", "full_only"), [(False, False), (True, True)])
def test_no_steps_where_the_profiler_stays_or_one_window_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, detached: bool, full_only: bool
):
    monkeypatch.setattr(recorder, "DeviceCapture", Window)
    assert not recording(detached, full_only)._record_alone()


def test_none_where_cupti_refuses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder, "DeviceCapture", lambda torch: Window(works=False))
    found = recording(True)
    assert not found._record_alone() and found._alone is not None and not found._alone.running


def test_a_host_that_runs_ahead_has_the_work_of_the_device_added():
    """Ten steps of 3 ms for the host, after which the device works for another 33 ms: 6.3 ms a step."""
    found = recorder.Recorder.__new__(recorder.Recorder)
    cuda = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True)
    found._torch, found._detached = SimpleNamespace(cuda=cuda), True
    found._before_ns, found._after_ns = [], [3_000_000] * 10
    found._behind_ns = {"before": 0, "after": 33_000_000}
    told = found._unprofiled()
    assert told is not None and told["step_ns"] == told["after"]["step_ns"] == 6_300_000
    found._after_ns[4] = 900_000_000  # something was compiled
    told = found._unprofiled()
    assert told is not None and told["step_ns"] == (27_000_000 + 33_000_000) // 9
