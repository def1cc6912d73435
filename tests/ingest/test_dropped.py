"""What a recording lacks is said: launches without activity, activity without launch, what Kineto logged."""

from typing import Any

import pytest

from etude.capture.ingest import causal
from etude.capture.ingest.dropped import dropped
from etude.capture.link.device import DeviceTrace
from recorded import device_json, kernel, launch, op, read_device_json


def recorded(*events: dict[str, Any], **members: Any) -> DeviceTrace:
    return read_device_json(device_json(op("aten::mm", 0, 100, 1), *events, **members))


def notes(*events: dict[str, Any], **members: Any) -> list[str]:
    return [note.what for note in dropped(recorded(*events, **members), 0)]


def pair(number: int, at: float) -> list[dict[str, Any]]:
    return [launch(at, number), kernel(f"k{number}", at + 2, 1, number, 1)]


WHOLE = [event for i in range(4) for event in pair(10 + i, 5.0 + 10 * i)]


def test_a_whole_recording_has_no_notes() -> None:
    assert notes(*WHOLE) == []


def test_launches_at_the_end_without_activity_were_cut_off() -> None:
    found = notes(*WHOLE, launch(60, 20), launch(61, 21))
    assert found == ["the last 2 of 6 launches have no device activity: the recording ends before it"]


def test_launches_in_between_without_activity_were_dropped() -> None:
    assert notes(launch(1, 20), *WHOLE) == ["1 of 5 launches have no device activity: records were dropped"]


def test_what_is_captured_into_a_graph_is_not_missing() -> None:
    begin, end = (launch(at, 30 + at, f"cudaStream{w}Capture") for at, w in ((50, "Begin"), (60, "End")))
    assert notes(*WHOLE, begin, launch(55, 20), end) == []


def test_activity_that_nobody_launched_is_of_before_or_dropped() -> None:
    [before] = notes(kernel("old", 1, 1, 99, 0), *WHOLE)
    assert before.startswith("1 device activity was launched before")
    [lost] = notes(*WHOLE, kernel("lost", 90, 1, 99, 0))
    assert lost.startswith("1 of 5 device activities have no launch in the trace")


def test_what_the_profiler_said_of_lost_records_is_told_and_nothing_else() -> None:
    said = ["WARNING:2026-01-08 08:51:59 865:3386 Cupti.cpp:47] Dropped 120 activity records", "WARNING: hello"]
    assert notes(*WHOLE, WARNING=said) == ["the profiler said: Dropped 120 activity records"]


def test_what_lies_at_an_edge_of_the_recording_is_marked() -> None:
    events = recorded(kernel("old", 1, 1, 99, 0), launch(2, 20), *WHOLE, launch(60, 21))
    assert [(note.rank, note.at_edge) for note in dropped(events, 3)] == [(3, True), (3, False), (3, True)]


def test_notes_go_with_the_job() -> None:
    linked = causal.convert(recorded(*WHOLE, launch(60, 20)))
    [note] = causal.to_job("run", [linked]).notes
    assert note.rank == 0
    assert "no device activity" in note.what


NAN = float("nan")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("ts", NAN, "2 events have an unreadable start time: they are left out"),
        ("ts", 1e17, "2 events have an unreadable start time: they are left out"),
        ("dur", NAN, "2 events have an unreadable duration: they count as instants"),
        ("dur", float("inf"), "2 events have an unreadable duration: they count as instants"),
        ("dur", None, "2 events have an unreadable duration: they count as instants"),
        ("dur", "long", "2 events have an unreadable duration: they count as instants"),
        ("dur", -3.0, "2 events have a negative duration: they count as instants"),
    ],
)
def test_times_that_are_none_are_told(key: str, value: object, words: str) -> None:
    events = [dict(event) for event in WHOLE]
    for event in (events[3], events[5]):  # the second and the third kernel
        event[key] = value
    found = [note for note in notes(*events) if note.startswith(words)]
    assert len(found) == 1 and found[0].endswith("the first is event 4 of the file, `k11`")
