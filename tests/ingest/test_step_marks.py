"""Steps by their marks: one series counts, whatever else is marked."""

from typing import Any

import numpy as np
import pytest

from etude.capture.ingest import causal
from etude.capture.ingest.linked import Linked
from etude.model.schema import UNKNOWN
from recorded import device_json, event, op, read_device_json


def mark(number: int, start: int, end: int, tid: int = 7) -> dict[str, Any]:
    return event("user_annotation", f"ProfilerStep#{number}", start, end - start, tid=tid)


RECORDED = [mark(6, 0, 100), mark(7, 100, 200), mark(8, 200, 300)]
OPERATORS = [op("aten::mm", at, 8, at) for at in range(1, 300, 10)]


def linked(*marks: dict[str, Any]) -> Linked:
    return causal.convert(read_device_json(device_json(*marks, *OPERATORS)))


def steps_of_operators(one: Linked) -> list[int]:
    trace = one.part.trace
    return [int(trace.step[i]) for i in range(len(trace)) if trace.text("name", i) == "aten::mm"]


@pytest.mark.parametrize(
    "own",
    [
        [mark(106, 60, 155), mark(107, 160, 255), mark(108, 260, 310)],  # crossing, cut off at the end
        [mark(6, 60, 155), mark(7, 160, 255)],  # the same numbers
        [mark(1, 10, 90), mark(2, 110, 190), mark(3, 210, 290)],  # inside
        [mark(1, 60, 155, tid=9), mark(2, 160, 255, tid=9)],  # by another thread
    ],
)
def test_steps_of_a_program_do_not_cross_those_of_the_recording(own: list[dict[str, Any]]) -> None:
    alone, both = linked(*RECORDED), linked(*own, *RECORDED)
    assert steps_of_operators(alone) == [6] * 10 + [7] * 10 + [8] * 10
    assert steps_of_operators(both) == steps_of_operators(alone)
    assert alone.part.notes == ()
    first = own[0]["name"]
    assert [note.what for note in both.part.notes] == [
        "two series of steps are marked, and overlap: that which covers less time is not counted "
        f"(the first of {len(own)} is `{first}`)"
    ]


def test_marks_that_follow_each_other_are_one_series_with_gaps_or_without() -> None:
    one = linked(mark(6, 0, 90), mark(7, 100, 190), mark(8, 189, 300))  # rounded ends
    assert one.part.notes == ()
    assert set(steps_of_operators(one)) == {6, 7, 8, UNKNOWN}
    assert np.count_nonzero(one.part.trace.step == 8) >= 11


def test_a_mark_that_reaches_a_little_into_the_next_one_leaves_no_step_out() -> None:
    one = linked(
        mark(6, 0, 1002), mark(7, 1000, 2002), mark(8, 2000, 3000), *[op("x", at, 8, at) for at in (1500, 2500)]
    )
    assert one.part.notes == ()
    assert set(np.unique(one.part.trace.step).tolist()) >= {6, 7, 8}
