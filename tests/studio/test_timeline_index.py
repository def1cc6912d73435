"""The index of a timeline: every slice is in it once, and what a window draws is all that is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.tell.studio import windows
from etude.tell.studio.index import TimelineIndex, places
from etude.tell.studio.session import StudioSession
from etude.tell.view.slices import slices_of
from later import later
from studio_stage import asked, job_folder, session_of

later("starlette")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> StudioSession:
    return session_of(job_folder(tmp_path_factory.mktemp("studio")))


@pytest.fixture(scope="module")
def index(session: StudioSession) -> TimelineIndex:
    return session.runs[0].index


def all_rows(index: TimelineIndex) -> list[tuple[int, int]]:
    return [(int(rank), row) for at, rank in enumerate(index.ranks) for row in index.rows_of(at)]


def test_the_index_has_the_slices_of_the_timeline(session: StudioSession, index: TimelineIndex) -> None:
    drawn = slices_of(session.runs[0].run())
    expected = sorted(
        zip(drawn.start_ns.tolist(), drawn.end_ns.tolist(), [drawn.names[n] for n in drawn.name], strict=True)
    )
    found = []
    for rank, row in all_rows(index):
        part, shift = index.row(row), int(index.shift_ns[windows.position(index, rank)])
        found += [
            (s + shift, e + shift, index.names[part.name_of[n]])
            for s, e, n in zip(part.start.tolist(), part.end.tolist(), part.node.tolist(), strict=True)
        ]
    assert sorted(found) == expected
    assert index.span_ns == drawn.span_ns


def test_no_two_slices_of_a_row_overlap(index: TimelineIndex) -> None:
    for _, row in all_rows(index):
        part = index.row(row)
        assert (part.start[1:] >= part.end[:-1]).all()


@pytest.mark.parametrize("pixels", [1, 37, 1000])
@pytest.mark.parametrize("cut", [(0.0, 1.0), (0.25, 0.5), (0.5, 0.501)])
def test_a_window_leaves_no_slice_out(index: TimelineIndex, pixels: int, cut: tuple[float, float]) -> None:
    first, last = (int(share * index.span_ns) for share in cut)
    rows = all_rows(index)
    says, (place, start, end, busy, _, _, slices, _) = windows.window(index, rows, first, last, pixels)
    assert says["exact"]
    for at, (rank, row) in enumerate(rows):
        part, shift = index.row(row), int(index.shift_ns[windows.position(index, rank)])
        inside = [
            (s + shift, e + shift)
            for s, e in zip(part.start.tolist(), part.end.tolist(), strict=True)
            if e + shift > first and s + shift < last
        ]
        mine = place == at
        assert slices[mine].sum() >= len(inside)  # the last piece may reach behind the window
        assert slices[mine].sum() - len(inside) <= max(int(slices[mine].max(initial=0)), 0)
        assert busy[mine].sum() >= sum(e - s for s, e in inside)
        for s, e in inside:
            assert ((start[mine] <= s) & (end[mine] >= e)).any()


def test_bins_have_the_time_of_the_slices(index: TimelineIndex) -> None:
    width = index.head["bins_width_ns"]
    for _, row in all_rows(index):
        part = index.row(row)
        total = np.asarray(index.bins[row]).astype(np.float64).sum() / 65535 * width
        assert total == pytest.approx(float((part.end - part.start).sum()), abs=width * 0.02)


def test_a_range_counts_what_is_inside(index: TimelineIndex) -> None:
    rows = all_rows(index)
    found = windows.range_breakdown(index, rows, 0, index.span_ns, top=10_000)
    by_hand: dict[str, list[int]] = {}
    for _, row in rows:
        part = index.row(row)
        for s, e, n in zip(part.start.tolist(), part.end.tolist(), part.node.tolist(), strict=True):
            by_hand.setdefault(index.names[part.name_of[n]], []).append(e - s)
    assert {one["name"]: (one["time_ns"], one["count"]) for one in found["top"]} == {
        name: (sum(all_of), len(all_of)) for name, all_of in by_hand.items()
    }


def test_the_index_is_kept_and_read_again(
    session: StudioSession, index: TimelineIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = session.runs[0].source.path
    assert index.folder.parent == places(path)[0] and not index.folder.is_relative_to(path)
    monkeypatch.setattr("etude.tell.studio.building.build", None)
    again = session_of(path).runs[0].index
    assert again.folder == index.folder and again.span_ns == index.span_ns


def test_a_changed_input_has_another_index(tmp_path: Path) -> None:
    path = job_folder(tmp_path)
    before = session_of(path).runs[0].index.folder
    (path / "note.txt").write_text("changed")
    assert session_of(path).runs[0].index.folder != before


def test_steps_from_slice_to_slice(session: StudioSession) -> None:
    row = asked(session, "rows", ranks=[1])["rows"][0]
    one = asked(session, "slice", rank=1, row=row["row"], time_ns=0, by=0)["slice"]
    then = asked(session, "slice", rank=1, row=row["row"], time_ns=one["start_ns"], by=1)["slice"]
    back = asked(session, "slice", rank=1, row=row["row"], time_ns=then["start_ns"], by=-1)["slice"]
    assert then["start_ns"] > one["start_ns"] and back == one


def test_search_finds_the_next_one(session: StudioSession) -> None:
    found = asked(session, "search", text="ALL_REDUCE", ranks=[0, 1])
    assert found["names"] and "all_reduce" in found["next"]["name"].lower()
    later_one = asked(session, "search", text="all_reduce", ranks=[0, 1], after_ns=found["next"]["start_ns"])["next"]
    assert later_one["start_ns"] > found["next"]["start_ns"]
    assert asked(session, "search", text="no such name", ranks=[0])["next"] is None


def test_a_rank_that_is_not_there_is_named(session: StudioSession) -> None:
    from studio_stage import TOKEN, client

    answer: Any = client(session).post(f"/{TOKEN}/api/rows", json={"ranks": [99]})
    assert answer.status_code == 400 and "rank 99" in answer.json()["problem"]
