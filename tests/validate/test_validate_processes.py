"""Delays in programs that run. Nothing is timed; each start of PyTorch costs seconds, so there are few."""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from collected import ENVIRONMENT, finished, start
from etude.base.errors import UsageError
from etude.capture.collect import Delay, DelayKind, DelayPlan, Moment, launch_delayed
from etude.capture.collect.delays import NONE
from etude.capture.collect.moments import Moments, choose
from etude.decide.validate import ValidateOptions, validate
from etude.decide.validate.measuring import DelayLength
from etude.surface.cli import main
from later import TORCH, later

torch = later("torch", TORCH)

PROGRAM = Path(__file__).resolve().parent / "programs.py"
QUICK = ValidateOptions(modules=1, delays=(DelayLength(time_ns=200_000),), repeats=1, steps=2, warmup=4)


@pytest.fixture(autouse=True)
def source_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def program(kind: str, steps: int) -> list[str]:
    return [sys.executable, str(PROGRAM), kind, str(steps)]


def test_moments_come_once_in_a_step_in_their_order():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    came: list[str] = []
    moments = Moments(torch, lambda called: choose(called, 0, ["0", "2"]), lambda moment: came.append(moment.mark))
    for _ in range(4):
        loss = model(torch.ones(1, 2)).sum() + model(torch.ones(1, 2)).sum()
        loss.backward()
        moments.step_done()
        came.append("-")
    step = ["1:forward:0", "3:forward:2", "3:backward:2", "1:backward:0", "-"]
    assert [text.removeprefix("etude.moment:") for text in came] == ["-", "-", *step, *step]


def test_a_delay_is_put_into_each_step_of_its_blocks(tmp_path: Path):
    delays = (Delay(Moment(1, "0"), DelayKind.HOST, 1000), Delay(Moment(3, "2", True), DelayKind.DEVICE, 1000),
              Delay(Moment(9, "9"), DelayKind.HOST, 1000))  # fmt: skip
    done = launch_delayed(program("plain", 10**9), tmp_path, DelayPlan(delays, (NONE, 0, NONE, 1, NONE, 2), 2, 3))
    assert (done.exit_code, done.failures) == (0, ())  # it was ended
    assert [(b.delay, b.count) for b in done.blocks()] == [(NONE, 0), (0, 2), (NONE, 0), (1, 2), (NONE, 0), (2, 0)]
    assert all((b.injected_ns >= 2000) == (b.count == 2) for b in done.blocks())


def test_a_program_is_validated_in_as_many_runs_as_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "validated"
    flags = ["--modules", "1", "--repeats", "1", "--steps", "2", "--warmup", "4", "--delay", "200us", "-o", str(out)]
    assert main(["validate", *flags, "--json", "--", *program("plain", 14)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["where"] for one in found["places"]] == ["module:1", "backward:1", "device:1"]
    assert {"where", "injected_ns", "measured_ns", "predicted_ns"} <= set(found["places"][0])
    assert 0 <= found["score"] <= 1
    assert found["runs"] == 2  # of 14 steps 4 warm up, and 5 blocks have two: none, a delay, none, another, none
    assert all(one["injected_ns"] >= 200_000 and one["pairs"] == 1 for one in found["places"])
    assert json.loads((out / "validate.json").read_text()) == found
    assert (out / "run" / "trace.rank0.manifest.json").is_file()


def test_a_program_that_fails(tmp_path: Path):
    with pytest.raises(UsageError, match=r"ended with exit code 1\nhint: (.*\n)*RuntimeError: out of luck"):
        validate(program("fails", 20), QUICK)


def test_no_program(capsys: pytest.CaptureFixture[str]):
    assert main(["validate"]) == 2
    assert main(["validate", "--", "no-such-program"]) == 2
    assert "no-such-program: command not found" in capsys.readouterr().err


def test_ctrl_c_ends_the_program_and_leaves_nothing(tmp_path: Path):
    noted = tmp_path / "noted"
    made = start("-m", "etude", "validate", "-o", tmp_path / "out", "--", *program("plain", 10**9), noted,
                 TMPDIR=str(tmp_path))  # fmt: skip
    while not (noted.exists() and noted.read_text()) and made.poll() is None:
        time.sleep(0.05)
    made.send_signal(signal.SIGINT)
    ended = finished(made)
    assert made.returncode == 130, ended
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(noted.read_text()), 0)
        pytest.fail("the program still runs")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("torchinductor")] == ["noted"]
