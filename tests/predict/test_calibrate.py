"""The fit of stacks on rows whose factors are known, and `etude calibrate`."""

import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from etude.cost.stacks import Efficiency, Stack, open_stack
from etude.cost.stacks.stack import KNOBS
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.steps.measured.calibration import Calibrated
from etude.steps.measured.outcomes import CENTRE, StepOutcome
from etude.steps.measured.rows import Case
from etude.steps.measured.stack_fit import FitSample, efficiency_under, fit_effects, held_out, of_stack, stack_groups
from etude.surface.cli import main

H100 = open_system("dgx-h100")
SHARED = Path(os.environ.get("ETUDE_SHARED", Path(__file__).resolve().parents[3] / "shared"))


def sample(stack: Stack, shares: tuple[float, ...], factor: float, source: str = "") -> FitSample:
    """A step of 1 s at the centre, of which each knob has a share; products take `factor` of what they do there."""
    slope = tuple(share / centre for share, centre in zip(shares, CENTRE.values(), strict=True))
    measured = 1 + shares[0] * (factor - 1)
    case = Case(
        row=1, model=open_model("llama3-8b"), plan=Plan(), system=H100, stack=stack, step_s=measured, assumed=()
    )
    return FitSample(case, StepOutcome(1.0, slope), source)


def stack(name: str, family: str = "megatron") -> Stack:
    return Stack(name=name, family=family)


def shares(rng: np.random.Generator) -> tuple[float, ...]:
    products = rng.uniform(0.3, 0.9)
    return (products, 0.0, (1 - products) / 2, (1 - products) / 2, 0.0, 0.0, 0.0)


def test_a_factor_that_many_rows_share_is_found():
    rng = np.random.default_rng(1)
    samples = [sample(stack("a"), shares(rng), 1.2) for _ in range(40)]
    by = efficiency_under(fit_effects(samples, of_stack), of_stack(samples[0].case))
    assert by.products == pytest.approx(1.2 * CENTRE.products, rel=0.03)
    assert by.rest == pytest.approx(CENTRE.rest, rel=0.08)


def test_two_odd_rows_move_their_stack_little_and_others_not():
    rng = np.random.default_rng(2)
    many = [sample(stack("a"), shares(rng), 1.0) for _ in range(40)]
    odd = [sample(stack("b"), shares(rng), 1.6) for _ in range(2)]
    effects = fit_effects(many + odd, of_stack)
    a, b = (efficiency_under(effects, stack_groups(stack(n), "hopper")).products for n in "ab")
    assert a == pytest.approx(CENTRE.products, rel=0.06)
    assert a < b < 1.5 * a  # by less than what they say


def test_a_stack_without_rows_has_what_its_family_has():
    rng = np.random.default_rng(3)
    samples = [sample(stack("a"), shares(rng), 1.3) for _ in range(20)]
    samples += [sample(stack("x", "xla"), shares(rng), 1.0) for _ in range(20)]
    effects = fit_effects(samples, of_stack)
    new, other = (
        efficiency_under(effects, stack_groups(stack("new", f), "hopper")).products for f in ("megatron", "xla")
    )
    assert new > 1.05 * other


def test_no_row_of_a_source_has_a_part_in_its_own_prediction():
    rng = np.random.default_rng(4)
    samples = [sample(stack("a"), shares(rng), 1.0, "one") for _ in range(10)]
    apart = [sample(stack("a"), shares(rng), 2.0, "two") for _ in range(3)]
    first = held_out(samples + apart, of_stack)
    moved = [replace(s, case=replace(s.case, step_s=3 * s.case.step_s)) for s in apart]
    again = held_out(samples + moved, of_stack)
    before, after = np.array(first[10:]), np.array(again[10:])
    assert 3 * (1 + after) == pytest.approx(1 + before, rel=1e-6)  # the same prediction


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Steps of a small model, 1.3 times as long as the default stack takes for them."""
    from etude.steps.measured.rows import predict_rows

    said = {"model": "tiny", "layers": "4", "heads": "16", "vocab": "32000", "seq": "2048", "gpus": "8", "tp": "1",
            "pp": "1", "gpu_type": "H100", "micro_batch": "2", "global_batch": "16", "recompute": "none", "unit": "s",
            "precision": "bf16", "measured_metric": "step time", "value": "1"}  # fmt: skip
    rows = [{**said, "hidden": str(h), "ffn": str(4 * h)} for h in (2048, 3072, 4096)]
    for row, found in zip(rows, predict_rows(rows, open_stack("default")), strict=True):
        row["value"] = str(1.3 * found["predicted"]["step"])
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_calibrate_learns_from_rows_and_its_stack_predicts(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "mine.yaml"
    assert main(["calibrate", str(measured), "-o", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == 3
    assert told["before"]["p50"] == pytest.approx(0.3 / 1.3, abs=0.03)
    assert told["after"]["p50"] < 0.08
    mine, base = open_stack(out), open_stack("default")
    assert mine.on("hopper", experts=False).products > 1.1 * base.on("hopper", experts=False).products
    assert main(["predict", "--rows", str(measured), "--stack", str(out), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    for row in rows:
        assert row["stack"] == "mine"
        assert row["predicted"]["step"] == pytest.approx(row["measured"]["step"], rel=0.12)  # it was 23% off
    assert (
        main(
            [
                "predict",
                "llama3-8b",
                "--gpus",
                "8",
                "--zero",
                "3",
                "--system",
                "dgx-h100",
                "--stack",
                str(out),
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["stack"] == "mine"
    assert "its own rows" in found["basis"]["step_time_ns"]["text"]
    assert found["low"]["step_time_ns"] < found["step_time_ns"] < found["high"]["step_time_ns"]
    assert "its own rows" not in found["basis"]["memory_peak_bytes"]["text"]  # of which they say nothing


def test_calibrate_refuses_what_it_cannot_read(measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["calibrate", str(measured), "-o", str(tmp_path / "mine.txt")]) == 2
    assert main(["calibrate", str(tmp_path / "none.csv"), "-o", str(tmp_path / "mine.yaml")]) == 2
    assert main(["calibrate", str(measured), "-o", str(measured.with_suffix(".yaml")), "--from", "nemesis"]) == 2
    assert not (tmp_path / "mine.yaml").exists()
    capsys.readouterr()


def test_calibrate_of_a_run_takes_kernels_as_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Recorded on one H200: ops that a factor was not made of are no further off than without it."""
    recording = SHARED / "traces" / "h200" / "gpt_train_kineto.json.gz"
    if not recording.exists():
        pytest.skip("no reference data")
    out = tmp_path / "mine.yaml"
    assert main(["calibrate", str(recording), "-o", str(out), "--from", "eager"]) == 2  # which system?
    capsys.readouterr()
    assert main(["calibrate", str(recording), "-o", str(out), "--from", "eager", "--system", "dgx-h200", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] > 10
    assert told["after"]["p50"] <= told["before"]["p50"]
    mine, base = open_stack(out).efficiency["any"], open_stack("eager").efficiency["any"]
    assert (mine.network, mine.fp8) == (base.network, base.fp8)


def test_errors_of_ops_count_by_their_time_and_a_worse_stack_is_called_so():
    """One op of 8 ms that is right now, and two of 1 ms that are not: by count they decide, by time it does."""
    found = Calibrated(
        stack=open_stack("eager"),
        rows=3,
        refused=(),
        before=(0.5, 0.1, 0.1),
        after=(0.0, 0.3, 0.3),
        weights=(8.0, 1.0, 1.0),
    )
    assert found.quantiles(found.before) == (0.5, 0.5) and found.quantiles(found.after) == (0.0, 0.3)
    assert not found.worse and replace(found, weights=()).worse


def test_knobs_are_those_of_the_files():
    assert set(KNOBS) == set(Efficiency.__dataclass_fields__)
