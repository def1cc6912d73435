"""A recording of `etude collect` has the times of its program in every command, and keeps those under the profiler."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from collected import PROGRAMS, finished, start
from etude.surface.cli import main
from later import TORCH, later

later("torch", TORCH)

FIGURES = ("timing", "step_ns", "busy_share")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The recording; what an earlier release knew of it, without the light window; and the recording, linked."""
    folder = tmp_path_factory.mktemp("times")
    run, before, stored = folder / "run", folder / "before", folder / "stored"
    collecting = ("-m", "etude", "collect", "-o", run, "--warmup", "6", "--steps", "3", "--")
    process = start(*collecting, sys.executable, PROGRAMS / "steady.py", "16")
    ended = finished(process)
    assert process.returncode == 0, ended
    before.mkdir()
    for name in ("trace.rank0.kineto.json.gz", "trace.rank0.et.json.gz"):
        shutil.copy(run / name, before / name)
    assert main(["link", str(run), "-o", str(stored), "--to", "parquet"]) == 0
    return {"run": run, "before": before, "stored": stored}


def told(capsys: pytest.CaptureFixture[str], verb: str, place: Path, *more: str) -> tuple[Any, str]:
    """What a command says with `--json`, and beside it."""
    capsys.readouterr()
    system = ("--system", "dgx-h100") if verb == "simulate" else ()
    assert main([verb, str(place), *system, *more, "--json"]) == 0
    out, err = capsys.readouterr()
    return json.loads(out), err


@pytest.mark.parametrize("verb", ["breakdown", "idle", "metrics", "simulate"])
def test_times_are_those_of_the_program_in_the_recording_and_in_the_stored_job(
    verb: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str]
):
    (found, said), (stored, again) = (told(capsys, verb, places[place]) for place in ("run", "stored"))
    assert found["timing"] == "program" and found["step_ns"] > 0
    assert all(text.count("times are those of the program; a step took") == 1 for text in (said, again))
    assert {name: stored[name] for name in FIGURES} == {name: found[name] for name in FIGURES}


@pytest.mark.parametrize("verb", ["breakdown", "idle", "metrics", "simulate"])
def test_as_recorded_gives_the_figures_of_the_recording_alone(
    verb: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str]
):
    before = told(capsys, verb, places["before"])[0]
    assert before["timing"] == "recorded"
    found = told(capsys, verb, places["run"], "--as-recorded")[0]
    assert {name: found[name] for name in FIGURES} == {name: before[name] for name in FIGURES}
    stored, said = told(capsys, verb, places["stored"], "--as-recorded")
    assert stored["timing"] == "recorded" and "those of the program" not in said
    # a node that stood still in the program but not under the profiler is cut in two here
    assert stored["step_ns"] == pytest.approx(before["step_ns"], rel=1e-6 if verb != "simulate" else 0.05)
    assert stored["busy_share"] == pytest.approx(before["busy_share"], rel=1e-6 if verb != "simulate" else 0.05)


def test_chakra_files_say_whose_times_they_have_and_have_no_others(
    places: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["link", str(places["run"]), "-o", str(tmp_path / "et")]) == 0
    assert "--to parquet" in capsys.readouterr().err
    found = told(capsys, "breakdown", tmp_path / "et")[0]
    assert found == told(capsys, "breakdown", places["run"])[0]
    assert main(["breakdown", str(tmp_path / "et"), "--as-recorded"]) == 2
    assert "has the times of the program alone" in capsys.readouterr().err


def test_nodes_say_where_their_times_come_from(places: dict[str, Path], capsys: pytest.CaptureFixture[str]):
    found = told(capsys, "info", places["stored"])[0]["nodes_by_time_source"]
    assert found["light"] > 0 and set(found) <= {"light", "corrected", "recorded"}
    assert (
        main(["query", str(places["stored"]), "select time_source, count(*) as n from nodes group by 1", "--json"]) == 0
    )
    rows = json.loads(capsys.readouterr().out)
    assert {row["time_source"]: row["n"] for row in rows} == found
    assert "nodes_by_time_source" not in told(capsys, "info", places["before"])[0]
