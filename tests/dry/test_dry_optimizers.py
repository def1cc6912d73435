"""Steps of programs with several optimizers."""

import sys
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.surface.cli import main

pytest.importorskip("torch")
PROGRAM = Path(__file__).parent / "programs" / "dry_critic.py"


@pytest.mark.parametrize(
    ("options", "iterations"), [((), 1), (("--warmup", "0"), 1), (("--warmup", "2", "--steps", "3"), 3)]
)
def test_a_critic_that_learns_twice_makes_one_step_with_its_maker(
    options: tuple[str, ...], iterations: int, tmp_path: Path
) -> None:
    command = [sys.executable, str(PROGRAM), "critic"]
    assert main(["collect", "--dry", "-o", str(tmp_path / "job"), *options, "--", *command]) == 0
    trace = etude.open(tmp_path / "job").traces[0]
    names = [trace.text("name", i) for i in range(len(trace))]
    # The critic twice with what the maker makes, and both once more for the maker.
    assert names.count("aten::addmm") == 6 * iterations and names.count("aten::exp") == iterations
    # A weight and a bias in each of three steps; the maker's loss adds to the gradients of the critic's two.
    assert names[-1] == "aten::add_" and names.count("aten::add_") == (3 * 2 + 2) * iterations
    assert np.unique(trace.step).tolist() == list(range(iterations))


def test_an_optimizer_that_never_steps_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "--dry", "-o", str(tmp_path / "job"), "--", sys.executable, str(PROGRAM), "unused"]) == 0
    assert "an optimizer that the program made has not stepped, and is in no step" in capsys.readouterr().err
    trace = etude.open(tmp_path / "job").traces[0]
    assert [trace.text("name", i) for i in range(len(trace))].count("aten::addmm") == 2
