"""Steps of programs without optimizer: calls of their largest model."""

import json
import sys
from pathlib import Path

import pytest

import etude
from etude.model.trace import Trace
from etude.surface.cli import main

pytest.importorskip("torch")
PROGRAMS = Path(__file__).parent / "programs"


def dry(out: Path, what: str, *options: str) -> Trace:
    command = [sys.executable, str(PROGRAMS / "dry_infer.py"), what]
    assert main(["collect", "--dry", "-o", str(out), *options, "--", *command]) == 0
    return etude.open(out).traces[0]


def operators(trace: Trace) -> list[str]:
    return [trace.text("name", i).removeprefix("aten::") for i in range(len(trace))]


CALL = ["addmm", "relu", "addmm", "_softmax", "randn", "addmm"]
"""From a call of the model to the next: the rows of the next batch go through the small one before it."""
FLOPS = [2 * 16 * 64 * 128, 2 * 16 * 128 * 32, 2 * 16 * 64 * 64]


def test_a_step_is_a_call_of_the_largest_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = dry(tmp_path / "job", "loop")
    assert operators(trace) == CALL
    assert [int(flops) for flops in trace.flops if flops > 0 and flops in FLOPS] == FLOPS
    told = capfd.readouterr().err
    # One call is skipped, one is the job, 16 that are alike follow; the 19th tells that the 18th is over.
    assert "a step is one call of Sequential, and call 2 of 19 is the job" in told
    assert "the rest of the program was not run" in told and "evaluated" not in told


def test_steps_that_are_asked_for(tmp_path: Path) -> None:
    trace = dry(tmp_path / "job", "loop", "--warmup", "3", "--steps", "2")
    assert operators(trace) == CALL * 2
    assert trace.step.tolist() == [0] * 6 + [1] * 6


def test_one_call_is_a_step_and_the_whole_is_all(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert operators(dry(tmp_path / "job", "once")) == CALL[:4]
    assert "call 1 of 1 is the job" in capfd.readouterr().err
    names = operators(dry(tmp_path / "whole", "loop", "--whole"))
    told = capfd.readouterr().err
    assert names.count("_softmax") == 40 and names[0] != "addmm"  # weights are made first
    assert "evaluated" in told and "call" not in told.partition("assumed")[2]


def test_calls_that_are_not_alike_are_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = dry(tmp_path / "job", "grow")
    assert trace.text("in_shapes", 1) == "[[17, 128]]"
    assert "calls are not alike, and --whole takes all of them" in capfd.readouterr().err


def test_an_evaluation_before_training_is_no_step(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = dry(tmp_path / "job", "train")
    assert {trace.text("phase", i) for i in range(len(trace))} == {"forward", "backward", "optimizer"}
    assert "one call of" not in capfd.readouterr().err


def test_a_prediction_has_the_step_of_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    def step_ns(*words: str) -> int:
        command = f"{sys.executable} {PROGRAMS / 'dry_infer.py'} grow"
        assert main(["predict", "--program", command, "--system", "dgx-h100", "--json", *words]) == 0
        return int(json.loads(capsys.readouterr().out)["step_ns"])

    # Six calls, and what makes weights and batches.
    assert step_ns("--whole") > 6 * step_ns() > 0
