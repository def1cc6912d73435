"""What ties ranks together: arrivals, members of a call and the critical path are those of the tables of the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import etude
from etude.steps.asked.runs import RunSource
from etude.store.times import write_timing
from etude.tell.studio import ties
from etude.tell.studio.session import StudioRun, StudioSession
from later import later
from studio_stage import asked, job_folder

later("starlette")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> StudioSession:
    """Rank 2 is slow, so that it arrives last."""
    folder = tmp_path_factory.mktemp("studio")
    place = job_folder(folder)
    write_timing(etude.simulate(etude.open(place), "dgx-h100", slow_ranks={2: 2.0}), folder / "times.csv")
    return StudioSession((StudioRun.of(RunSource(place, "", folder / "times.csv")),))


def cells(found: dict[str, Any], measure: str) -> Any:
    values = [np.nan if v is None else v for v in found["measures"][measure]]
    return np.array(values, float).reshape(len(found["ranks"]), len(found["columns"]))


def test_the_slow_rank_arrives_last(session: StudioSession) -> None:
    found = asked(session, "arrivals")
    late, waits = cells(found, "late"), cells(found, "waits")
    assert found["calls"] > len(found["columns"]) == len(found["labels"]) == ties.MOST_CALLS
    assert np.nanmin(late, axis=0).max() == 0 and np.nanmin(waits, axis=0).max() == 0
    shared = ~np.isnan(late[2])
    assert np.nanargmax(late[:, shared].sum(axis=1)) == 2
    spread = (late + waits)[:, shared]
    assert np.nanmax(spread, axis=0) == pytest.approx(np.nanmin(spread, axis=0))
    run, origin = session.runs[0].run(), session.runs[0].index.origin_ns
    begins = set(np.concatenate([part.start_ns for part in run.parts()]).tolist())
    assert {v + origin for v in found["first_ns"] if v is not None} <= begins


def test_of_many_calls_those_with_the_largest_spread_are_shown(
    session: StudioSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ties.arrivals(session.runs[0])
    monkeypatch.setattr(ties, "MOST_CALLS", 5)
    few = ties.arrivals(StudioRun(session.runs[0].source, session.runs[0].index))
    spread = np.nanmax(cells(whole, "late"), axis=0)
    assert len(few["columns"]) == 5 and few["calls"] == whole["calls"] > 5
    assert sorted(np.nanmax(cells(few, "late"), axis=0)) == sorted(np.sort(spread)[-5:])


def test_a_collective_has_its_members_and_others_none(session: StudioSession) -> None:
    ranks = [0, 1, 2, 3]
    slice_ = asked(session, "search", text="all_reduce", ranks=[0], after_ns=-1)["next"]
    found = asked(session, "members", rank=0, node=slice_["node"], ranks=ranks)
    assert found["of"] == len(found["members"]) and found["label"].startswith("all_reduce ")
    assert [0, slice_["row"], slice_["start_ns"], slice_["end_ns"]] in found["members"]
    begins = [one[2] for one in found["members"]]
    assert found["spread_ns"] == max(begins) - min(begins)
    for rank, row, first, _ in found["members"]:
        there = asked(session, "slice", rank=rank, row=row, time_ns=first, by=0)["slice"]
        assert there["start_ns"] == first and there["sort"] == "communication"
    assert asked(session, "members", rank=0, node=slice_["node"], ranks=[0])["members"] == [
        one for one in found["members"] if one[0] == 0
    ]
    other = asked(session, "slice", rank=0, row=slice_["row"], time_ns=0, by=1)["slice"]
    kinds = asked(session, "members", rank=0, node=10**6, ranks=ranks)
    assert kinds == {"members": []} and other


def test_the_path_is_that_of_the_command(session: StudioSession) -> None:
    found = asked(session, "path")
    table = etude.critical_path(session.runs[0].run())
    pieces = np.array(found["pieces"]).reshape(-1, 3)
    assert found["length_ns"] == session.runs[0].index.span_ns == pieces[-1, 2] - pieces[0, 1]
    assert (pieces[1:, 1] == pieces[:-1, 2]).all() and (pieces[1:, 0] != pieces[:-1, 0]).all()
    assert set(pieces[:, 0].tolist()) == set(table["rank"].to_pylist())
    by_rank = {rank: int((pieces[pieces[:, 0] == rank] @ [0, -1, 1]).sum()) for rank in set(pieces[:, 0].tolist())}
    own = dict.fromkeys(by_rank, 0)
    for row in table.to_pylist():
        own[row["rank"]] += row["end_ns"] - row["start_ns"]
    assert by_rank == own and sum(found["kinds"].values()) == found["length_ns"]
    assert found["left_out"] == 0
