"""What a knob shows is what the commands beside it give; SQL, maps and findings are those of the commands."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.surface.cli import main
from etude.tell.studio.session import StudioSession
from later import later
from studio_stage import TOKEN, asked, client, job_folder, session_of

later("starlette")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> StudioSession:
    return session_of(job_folder(tmp_path_factory.mktemp("studio")))


def refused(session: StudioSession, what: str, **given: Any) -> str:
    answer = client(session).post(f"/{TOKEN}/api/{what}", json=given)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["problem"])


STATES: tuple[dict[str, Any], ...] = (
    {"bandwidth": 2},
    {"latency": 4, "slow": 1.5, "rank": 3},
    {"kernels": 2, "compression": 4, "overlap": True},
    {"bandwidth": 0.5, "network": "flow", "edits": ["speed op=aten::mm by=1.5"]},
)


@pytest.mark.parametrize("state", STATES, ids=lambda state: "+".join(state))
def test_the_commands_that_are_shown_give_the_same_step(
    session: StudioSession,
    state: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = asked(session, "change", state=state)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "what-if").mkdir()
    for name, text in found["files"].items():
        (tmp_path / "what-if" / name).write_text(text)
    for line in found["commands"]:
        words = shlex.split(line)[1:]
        capsys.readouterr()
        assert main([*words, "--json"] if words[0] == "simulate" else words) == 0
    assert json.loads(capsys.readouterr().out)["makespan_ns"] == found["after"]["makespan_ns"]
    assert eval(found["python"], {"etude": etude}).makespan_ns == found["after"]["makespan_ns"]
    assert found["before"]["makespan_ns"] == etude.simulate(session.runs[0].job(), "dgx-h100").makespan_ns


def test_the_study_file_of_a_state_gives_the_same_step(session: StudioSession, tmp_path: Path) -> None:
    found = asked(session, "change", state={"bandwidth": 0.5, "latency": 2, "fuse": True, "slow": 1.25, "rank": 2})
    (tmp_path / "what-if.yaml").write_text(found["files"]["study.yaml"])
    row = etude.study(tmp_path / "what-if.yaml").run().to_pylist()[0]
    assert row["before"] == found["before"]["makespan_ns"] / 1e6
    assert row["after"] == found["after"]["makespan_ns"] / 1e6
    assert row["times_as_fast"] == found["before"]["makespan_ns"] / found["after"]["makespan_ns"]


def test_knobs_move_the_step_the_right_way(session: StudioSession) -> None:
    def makespan(**state: Any) -> int:
        return int(asked(session, "change", state=state)["after"]["makespan_ns"])

    usual = makespan()
    assert makespan(bandwidth=2) < usual < makespan(bandwidth=0.5)
    assert makespan(kernels=2) < usual < makespan(slow=2, rank=1)
    assert makespan(bandwidth=1, kernels=1) == usual


def test_a_knob_that_is_not_there_is_refused(session: StudioSession) -> None:
    assert "bandwith" in refused(session, "change", state={"bandwith": 2})
    assert "0.125 to 8" in refused(session, "change", state={"bandwidth": 0})
    assert "not as files" in refused(session, "change", state={"edits": ["@/etc/passwd"]})
    assert "catalogue" in refused(session, "change", state={"system": "/etc/passwd"})


def test_sql_is_that_of_the_command(session: StudioSession) -> None:
    found = asked(session, "query", sql="select rank, count(*) as nodes from nodes group by 1 order by 1")
    job = session.runs[0].job()
    assert found["columns"] == ["rank", "nodes"]
    assert found["rows"] == [[rank, len(job.trace(rank))] for rank in job.ranks.tolist()]
    assert found["command"].startswith("etude query ")


def test_sql_may_begin_with_a_comment(session: StudioSession) -> None:
    found = asked(session, "query", sql="-- all of them\nselect 6 * 7 as answer")
    assert found["rows"] == [[42]] and found["command"].startswith("etude query -- ")


@pytest.mark.parametrize(
    "sql", ["drop table nodes", "select * from read_csv('/etc/passwd')", "copy nodes to '/tmp/x'", "select nothing"]
)
def test_sql_only_reads_the_run(session: StudioSession, sql: str) -> None:
    assert refused(session, "query", sql=sql)


def test_tables_are_there_for_completion(session: StudioSession) -> None:
    found = asked(session, "tables")["tables"]
    assert {"nodes", "deps", "ranks"} <= set(found) and "duration_ns" in found["nodes"]


def test_the_map_has_the_steps_of_the_run(session: StudioSession) -> None:
    found = asked(session, "heat")
    table = etude.steps(session.runs[0].run()).to_pylist()
    assert found["by"] == "step" and len(found["columns"]) == 2
    at = {
        (rank, step): row * 2 + col
        for row, rank in enumerate(found["ranks"])
        for col, step in enumerate(found["columns"])
    }
    for row in table:
        cell = at[row["rank"], row["step"]]
        assert found["measures"]["time"][cell] == row["span_ns"]
        assert found["measures"]["waiting"][cell] == row["exposed_comm_ns"] + row["idle_ns"]
        assert found["last_ns"][cell] - found["first_ns"][cell] == row["end_ns"] - row["start_ns"]


def test_findings_lead_to_a_window(session: StudioSession) -> None:
    found = asked(session, "findings")
    span = session.runs[0].index.span_ns
    for one in found["findings"]:
        first, last = one["window"]
        assert 0 <= first < last <= span and one["words"] and one["command"].startswith("etude ")


def test_before_and_after_are_two_timelines(session: StudioSession) -> None:
    made = asked(session, "pair", state={"bandwidth": 0.25})
    before, after = made["numbers"]
    found = asked(session, "change", state={"bandwidth": 0.25})
    assert [one["span_ns"] for one in made["runs"]] == [found[key]["makespan_ns"] for key in ("before", "after")]
    assert asked(session, "rows", run=after, ranks=[0])["rows"]
    table = asked(session, "compare", first=before, second=after)["tables"]["Operations, the largest change first"]
    delta = table["rows"][0][table["columns"].index("delta_ns")]
    assert delta > 0


def test_a_plan_is_that_of_predict(session: StudioSession) -> None:
    given = {"model": "gpt2", "system": "dgx-h100", "gpus": 4, "tp": 2, "global_batch": 4, "seq": 128}
    found = asked(session, "plan", **given)
    own = etude.predict("gpt2", "dgx-h100", gpus=4, tp=2, global_batch=4, seq=128)
    assert (found["step_ns"], found["memory_bytes"]) == (own.step_time_ns, own.generated.memory_peak_bytes)
    assert found["fits"] and found["command"].startswith("etude predict gpt2 --gpus=4 --tp=2")
    assert "problem" in asked(session, "plan", **given | {"tp": 3})
    assert "catalogue" in refused(session, "plan", **given | {"model": "/etc/passwd"})


def test_files_to_share_are_those_of_the_commands(session: StudioSession, tmp_path: Path) -> None:
    answer = client(session).post(f"/{TOKEN}/api/share", json={"kind": "perfetto", "ranks": [1, 2]})
    etude.timeline(session.runs[0].run(), tmp_path / "own.pftrace", ranks=[1, 2])
    assert answer.status_code == 200 and answer.content == (tmp_path / "own.pftrace").read_bytes()
    assert answer.headers["x-etude-name"] == "run.pftrace"
    page = client(session).post(f"/{TOKEN}/api/share", json={"kind": "page", "ranks": []})
    assert page.content.startswith(b"<!doctype html>") or b"<html" in page.content[:200]
    assert refused(session, "share", kind="../x", ranks=[])


def test_a_what_if_is_saved_where_it_may_be(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    session = session_of(job_folder(tmp_path), out=out)
    state = {"kernels": 2, "bandwidth": 2}
    assert asked(session, "save", state=state, name="fast")["written"] == str(out / "fast")
    assert {one.name for one in (out / "fast").iterdir()} == {
        *("job", "system.yaml", "edits.txt", "commands.txt", "study.yaml")
    }
    system = etude.open_system(out / "fast" / "system.yaml")
    again = etude.simulate(etude.open(out / "fast" / "job"), system)
    assert again.makespan_ns == asked(session, "change", state=state)["after"]["makespan_ns"]
    for name in ("../fast", "fast", "/etc/x", "", ".hidden", "a/b"):
        assert refused(session, "save", state=state, name=name)
    assert sorted(one.name for one in tmp_path.iterdir() if not one.name.startswith(".")) == ["job", "out"]
    assert "--write" in str(
        client(session_of(job_folder(tmp_path))).post(f"/{TOKEN}/api/save", json={"state": state, "name": "x"}).json()
    )


def test_one_level_of_the_network_is_scaled_alone(session: StudioSession) -> None:
    from etude.machine import open_system
    from etude.tell.studio.change import machine_of, state_of

    found = machine_of(state_of({"bandwidth": 2, "latency": 0.5, "level": "infiniband"}, "dgx-h100"))
    for before, after in zip(open_system("dgx-h100").levels, found.levels, strict=True):
        by = 2 if before.name == "infiniband" else 1
        assert after.bandwidth_bytes_per_s == pytest.approx(by * before.bandwidth_bytes_per_s)
        assert after.latency_ns == pytest.approx(before.latency_ns / by)
    assert asked(session, "knobs")["levels"]["dgx-h100"] == ["nvlink", "infiniband"]
    bad = client(session).post(f"/{TOKEN}/api/change", json={"state": {"level": "ether"}})
    assert bad.status_code == 400 and "nvlink, infiniband" in bad.json()["hint"]
