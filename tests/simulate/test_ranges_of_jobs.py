"""The range of a simulated job is that of a prediction of the same case, or the words that nothing is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import etude
from etude.machine import open_system
from etude.run.simulate import simulate
from etude.steps.estimates import job_estimate
from etude.surface.cli.app import app

PLAN = ["llama3-8b", "--gpus", "8", "--tp", "2", "--zero", "1"]


def out_of(*args: str) -> dict[str, object]:
    done = CliRunner().invoke(app, [*args, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("jobs") / "job")
    assert CliRunner().invoke(app, ["generate", *PLAN, "-o", place]).exit_code == 0
    return place


def test_a_generated_job_has_the_range_of_its_prediction(job: str):
    predicted = out_of("predict", *PLAN, "--system", "dgx-h100")
    found = out_of("simulate", job, "--system", "dgx-h100", "--stack", "default")
    assert found["makespan_ns"] == predicted["step_time_ns"]
    for name in ("low", "high", "low_50", "high_50"):
        assert found[name]["makespan_ns"] == pytest.approx(predicted[name]["step_time_ns"])
    assert found["basis"]["makespan_ns"]["case"] == predicted["basis"]["step_time_ns"]["case"]


def test_without_a_stack_nothing_is_known_of_a_generated_job(job: str):
    found = out_of("simulate", job, "--system", "dgx-h100")
    assert found["low"] == {"makespan_ns": None}
    assert found["basis"]["makespan_ns"]["text"] == "no evidence for the step without a software stack"


def test_a_reader_sees_the_range_and_what_it_rests_on(job: str, caplog: pytest.LogCaptureFixture):
    CliRunner().invoke(app, ["simulate", job, "--system", "dgx-h100", "--stack", "default"])
    lines = caplog.messages
    assert any("done at " in line and line.endswith(")") and "–" in line for line in lines)
    assert any(line.startswith("range: 9 of 10, by ") for line in lines)


def test_an_edited_job_says_that_its_range_is_of_one_that_is_not(job: str, tmp_path: Path):
    place = str(tmp_path / "edited")
    assert CliRunner().invoke(app, ["edit", job, "compress group=tp ratio=2", "-o", place]).exit_code == 0
    found = out_of("simulate", place, "--system", "dgx-h100", "--stack", "default")
    assert found["basis"]["makespan_ns"]["text"].endswith("; an edited job, as if it was not")


@pytest.mark.parametrize(
    ("provenance", "said"),
    [
        ({"device": "NVIDIA A100-SXM4-80GB"}, "that was recorded on NVIDIA A100 SXM4 80GB, on NVIDIA H100 SXM5 80GB"),
        ({"device": "NVIDIA H100 80GB HBM3"}, "a recorded job: operators with times take as long again"),
        ({"timing": "recorded"}, "a recorded job: operators with times take as long again"),
        ({"sections": "a, b"}, "a step of several models"),
        ({}, "a job that does not say from which model and plan of training it was generated"),
    ],
)
def test_of_other_jobs_nothing_is_known(provenance: dict[str, str], said: str):
    system = open_system("dgx-h100")
    made = etude.generate("llama3-8b", gpus=1, seq=512, recompute="full").job
    found = job_estimate(simulate(made.replace(provenance=provenance), system), system, None)
    assert found.most is None
    assert said in found.about
