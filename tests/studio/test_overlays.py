"""What is drawn over a timeline: flows between ranks, counters, notes; and two runs step by step."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.model.schema import Kind
from etude.steps.asked.runs import RunSource
from etude.tell.studio.counters import lowest_highest
from etude.tell.studio.notes import LONGEST
from etude.tell.studio.session import StudioSession, open_input
from later import later
from studio_stage import TOKEN, asked, client

later("starlette")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> StudioSession:
    place = tmp_path_factory.mktemp("pipeline") / "job"
    made = etude.generate("gpt2", gpus=4, pp=2, seq=64, global_batch=8, steps=2)
    etude.convert(made.job, place, to="parquet")
    return StudioSession((open_input(RunSource(place, "dgx-h100")),))


def whole(session: StudioSession) -> dict[str, int]:
    return {"first_ns": 0, "last_ns": asked(session, "about")["runs"][0]["span_ns"]}


def test_every_send_has_its_receive_and_every_collective_its_members(session: StudioSession) -> None:
    found = asked(session, "flows", ranks=[0, 1, 2, 3], **whole(session))
    job = session.run({}).job()
    sends = sum(int((job.trace(rank).kind == Kind.SEND).sum()) for rank in range(4))
    messages = [places for kind, places in found["flows"] if kind == "message"]
    assert len(messages) == sends > 0 and found["left_out"] == 0
    assert all(len(places) == 8 and places[3] <= places[7] for places in messages)
    members = [len(places) // 4 for kind, places in found["flows"] if kind == "collective"]
    assert set(members) <= {2, 4} and members
    shown = asked(session, "flows", ranks=[0, 2], **whole(session))["flows"]
    assert {rank for _, places in shown for rank in places[::4]} <= {0, 2}


def test_a_slice_waits_for_what_its_node_depends_on(session: StudioSession) -> None:
    trace = session.run({}).job().trace(0)
    found = {n: asked(session, "waits", rank=0, node=n) for n in (30, 60)}
    for node, one in found.items():
        data = trace.data[trace.data_start[node] : trace.data_start[node + 1]]
        ctrl = trace.ctrl[trace.ctrl_start[node] : trace.ctrl_start[node + 1]]
        expected = {n for n in (*data.tolist(), *ctrl.tolist()) if n >= 0}
        assert one["of"] == len(expected) and {before["node"] for before in one["before"]} <= expected


def test_lowest_and_highest_by_hand() -> None:
    time, value = np.array([10, 20, 21, 22, 40]), np.array([1.0, 5.0, 9.0, 2.0, 3.0])
    low, high = lowest_highest(time, value, np.array([0.0, 10, 20, 30, 40, 50]))
    assert low.tolist() == [0.0, 1.0, 2.0, 2.0, 3.0]
    assert high.tolist() == [0.0, 1.0, 9.0, 2.0, 3.0]


def test_power_is_that_of_the_energy(session: StudioSession) -> None:
    window = whole(session)
    found = asked(session, "counters", name="power", ranks=[0, 1, 2, 3], parts=2000, **window)
    joules = sum((np.array(one["low"]) + np.array(one["high"])).sum() / 2 for one in found["series"])
    joules *= window["last_ns"] / 2000 / 1e9
    expected = sum(etude.energy(session.run({}).run()).by_class.values())
    assert joules == pytest.approx(expected, rel=0.05)
    assert asked(session, "counters", name="memory", ranks=[0], parts=10, **window)["why"]


def test_notes_are_kept_beside_the_index_and_checked(session: StudioSession) -> None:
    words = "<script>x</script> \u202eevil 🔥"
    notes = [{"time_ns": 5, "ranks": [0], "text": words}, {"time_ns": 1, "ranks": [], "text": "first"}]
    assert [note["time_ns"] for note in asked(session, "keep", notes=notes)["notes"]] == [1, 5]
    again = StudioSession((open_input(session.run({}).source),))
    assert asked(again, "notes")["notes"][1]["text"] == words
    wrong: list[Any] = ["x", [1], [{"time_ns": "x", "ranks": [], "text": ""}], [{**notes[0], "path": "../x"}]]
    wrong += [[{**notes[0], "text": "x" * (LONGEST + 1)}], notes * 251]
    for bad in wrong:
        assert client(session).post(f"/{TOKEN}/api/keep", json={"notes": bad}).status_code == 400
    assert len(asked(session, "keep", notes=[])["notes"]) == 0


def test_two_runs_step_by_step(session: StudioSession) -> None:
    pair = asked(session, "pair", state={"kernels": 2})
    assert pair["command"].startswith("etude edit")
    first, second = pair["numbers"]
    found = asked(session, "compare", first=first, second=second)
    assert [step[0] for step in found["steps"]] == [0, 1]
    tables = [etude.steps(session.computed[number].run()) for number in pair["numbers"]]
    for step, *times in found["steps"]:
        for at, table in enumerate(tables):
            rows = [row for row in table.to_pylist() if row["step"] == step]
            start, end = min(row["start_ns"] for row in rows), max(row["end_ns"] for row in rows)
            assert times[2 * at : 2 * at + 2] == [start, end - start]
    assert found["ratios"]["aten::mm"] == pytest.approx(0.5, rel=0.02)


def test_the_times_under_the_profiler(tmp_path: Path) -> None:
    """A step of 1,000 us in which kernels are short: the program has less of the host than the recording."""
    place = tmp_path / "trace.json.gz"
    place.write_bytes(gzip.compress(json.dumps(profile()).encode()))
    session = StudioSession((open_input(RunSource(place)),))
    about = asked(session, "about")["runs"][0]
    found = asked(session, "recorded")
    assert found["run"]["words"].endswith("--as-recorded") and "as_recorded=True" in found["run"]["python"]
    assert found["number"] == asked(session, "recorded")["number"]
    assert asked(session, "rows", run=found["number"], ranks=[0])["rows"]
    assert found["run"]["span_ns"] == 1_030_000 >= about["span_ns"]


def profile() -> dict[str, Any]:
    """One operator a time, each launching one kernel."""
    events: list[dict[str, Any]] = []
    for number in range(10):
        at = 100 * number
        ids = {"External id": number + 1}
        cpu = {"ph": "X", "pid": 1, "tid": 1}
        events.append(cpu | {"cat": "cpu_op", "name": "aten::mm", "ts": at, "dur": 60, "args": ids})
        launch = {"correlation": number + 1, **ids}
        events.append(
            cpu | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 20, "dur": 10, "args": launch}
        )
        kernel = {"stream": 7, "device": 0, **launch}
        events.append(
            {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "gemm", "ts": at + 80, "dur": 50, "args": kernel}
        )
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": events}
