"""What other verbs wrote, in the studio: tables, charts, a timeline of rows that have times, SQL, a page in a frame."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import etude
from etude.steps.asked.runs import RunSource
from etude.surface.cli import main
from etude.tell.archive import Lake
from etude.tell.studio import folders
from etude.tell.studio.folders import StudioFolder
from etude.tell.studio.index import places
from etude.tell.studio.session import StudioSession, open_input
from etude.tell.studio.tables import build_tables, slices_in
from later import later
from studio_stage import TOKEN, asked, client

later("starlette")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> StudioSession:
    place = tmp_path_factory.mktemp("served") / "served"
    words = "serve gpt2 --system dgx-h100 --rate 20 --count 12 --output 8 --prompt 64 --replicas 2 -o"
    assert main([*words.split(), str(place)]) == 0
    return session_at(place)


def session_at(place: Path) -> StudioSession:
    return StudioSession((open_input(RunSource(place)),))


def test_a_served_stream_has_a_timeline_of_its_replicas(served: StudioSession) -> None:
    about = asked(served, "about")["runs"][0]
    assert about["kind"] == "served stream" and about["units"] == ["replica 0", "replica 1"]
    rows = asked(served, "rows", ranks=[0, 1])["rows"]
    assert {row["lane"] for row in rows} == {"requests", "passes"}
    tables = served.runs[0].tables  # type: ignore[union-attr]
    passes = sum(row["slices"] for row in rows if row["lane"] == "passes")
    assert passes == len(tables["passes"])
    parts = sum(row["slices"] for row in rows if row["lane"] == "requests")
    assert parts == 3 * 12


def test_its_charts_are_queries_that_ask_gives_too(served: StudioSession) -> None:
    found = asked(served, "charts")
    first = next(one for one in found["charts"] if one["title"] == "requests: time to the first token")
    rows = asked(served, "query", sql=first["sql"])["rows"]
    assert [row[1] for row in rows] == pytest.approx(first["series"][""]["y"])
    assert asked(served, "tables")["tables"]["passes"][:2] == ["replica", "start_ns"]


def test_what_needs_a_trace_says_so(served: StudioSession) -> None:
    for what in ("heat", "findings", "path", "knobs", "change"):
        answer = client(served).post(f"/{TOKEN}/api/{what}", json={})
        assert answer.status_code == 400 and "has no trace" in answer.json()["problem"]


def test_its_page_is_framed_and_asks_nobody(served: StudioSession) -> None:
    page = client(served).get(f"/{TOKEN}/page/0")
    policy = page.headers["content-security-policy"]
    assert page.status_code == 200 and "Etude report" in page.text
    assert "sandbox" in policy and "default-src 'none'" in policy and "connect-src" not in policy
    assert "script-src 'sha256-" in policy and "style-src 'sha256-" in policy and "unsafe" not in policy
    for other in ("1", "x", "-1", "%2e%2e", "0%2f..", "99999999999"):
        assert client(served).get(f"/{TOKEN}/page/{other}").status_code in (403, 404)
    assert client(served).get("/wrong/page/0").status_code == 403


def test_a_study_and_an_archive(tmp_path: Path) -> None:
    study = tmp_path / "study"
    study.mkdir()
    (study / "study.yaml").write_text("title: <b>x</b>\n")
    points = pa.table({"variant": ["a", "a", "b"], "step": [1.0, 3.0, 5.0], "commands": ["x"] * 3})
    pq.write_table(points, study / "points.parquet")
    pq.write_table(pa.table({"variant": ["b"], "metric": ["step"], "ratio": [2.5]}), study / "rows.parquet")
    session = session_at(study)
    found = {one["title"]: one for one in asked(session, "charts")["charts"]}
    assert found["points: step"]["x"] == ["a", "b"] and found["points: step"]["y"] == [2.0, 5.0]
    assert asked(session, "query", sql="select max(step) as m from points")["rows"] == [[5.0]]
    assert asked(session, "about")["runs"][0]["slices"] == 0

    lake = tmp_path / "lake"
    made = etude.generate("gpt2", gpus=1, seq=64)
    Lake(lake).add(etude.simulate(made.job, "dgx-h100"))
    session = session_at(lake)
    assert asked(session, "about")["runs"][0]["kind"] == "archive"
    assert len(asked(session, "query", sql="select run from runs")["rows"]) == 1
    assert len(asked(session, "charts")["charts"]) >= 2


def test_slices_of_tables_by_hand(tmp_path: Path) -> None:
    tables = {
        "job_states": pa.table({"start_s": [0.0, 2.0], "end_s": [2.0, 5.0], "state": ["train", "<i>down</i>"]}),
        "chat_requests": pa.table(
            {
                "arrival_s": [1.0, 1.5],
                "scheduled_s": [1.25, None],
                "first_token_s": [2.0, None],
                "finish_s": [3.0, None],
                "replica": [4, -1],
            }
        ),
        "holdings": pa.table({"time_s": [0.0], "devices": [8]}),
    }
    found = slices_in(tables)
    assert [(one.label, one.unit, one.name) for one in found] == [
        ("states", ["job", "job"], ["train", "<i>down</i>"]),
        ("requests", ["chat replica 4"], ["waits"]),
        ("requests", ["chat replica 4"], ["first token"]),
        ("requests", ["chat replica 4"], ["further tokens"]),
    ]
    assert [one.start_ns.tolist() for one in found] == [[0, 2 * 10**9], [10**9], [1_250_000_000], [2 * 10**9]]
    build_tables(found, tmp_path, {"name": "x"})
    head = json.loads((tmp_path / "head.json").read_text())
    assert head["slices"] == 5 and head["sets"]["chat"] == [1]


def test_many_points_are_windows_with_their_extremes() -> None:
    import numpy as np

    x = np.arange(10_000.0)
    y = np.zeros(10_000)
    y[5_003] = 9.0
    found = folders._windowed(x, y)
    assert len(found["x"]) == folders.WINDOWS and max(found["high"]) == 9.0 and max(found["y"]) == 0.0


def test_the_index_is_kept(served: StudioSession) -> None:
    folder = served.runs[0]
    assert isinstance(folder, StudioFolder)
    again = StudioFolder.of(folder.path, folder.kind)
    assert again.index.folder == folder.index.folder
    assert any(again.index.folder.parent == place for place in places(folder.path))
