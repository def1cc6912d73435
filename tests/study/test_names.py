"""Parameters of a study that no command has are refused before the first point runs."""

from pathlib import Path

import pytest

from etude.surface.cli import main

STUDY = """
workload: ops kernels 8,8,8
metrics: {ns: "rows[0].time_ns"}
baseline: {device: h100}
variants:
  other: {VARIANT}
"""


def refusal(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    file = tmp_path / "my.yaml"
    file.write_text(text)
    assert main(["study", "run", str(file), "-o", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
    return capsys.readouterr().err


def test_a_key_of_a_variant_that_the_command_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(tmp_path, STUDY.replace("{VARIANT}", "{unit: auto}"), capsys)
    assert "my.yaml: variants: other: `etude ops kernels` has no parameter `unit`" in said
    assert "did you mean `units`?" in said


def test_an_option_of_the_command_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = STUDY.replace("{VARIANT}", "{units: auto}").replace("8,8,8", "8,8,8 --kernels product:w8a8")
    said = refusal(tmp_path, text, capsys)
    assert "my.yaml: workload: `etude ops kernels` has no parameter `kernels`" in said


def test_an_axis_of_the_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(tmp_path, STUDY.replace("{VARIANT}", "{units: auto}") + "sweep: {sed: [1, 2]}\n", capsys)
    assert "my.yaml: sweep: `etude ops kernels` has no parameter `sed`" in said


def test_quick_of_a_study_that_defines_nothing_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(STUDY.replace("{VARIANT}", "{units: auto}"))
    assert main(["study", "run", str(file), "-o", str(tmp_path / "out"), "--quick"]) == 2
    assert "--quick" in capsys.readouterr().err
