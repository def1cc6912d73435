"""Cards and metrics end to end: written with a job, read back, used."""

import json
from pathlib import Path

import pytest

from etude.store import cards
from etude.surface.cli import main

MODEL = ["gpt2", "--gpus", "4", "--tp", "2", "--global-batch", "4", "--seq", "128"]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def values(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, float]:
    return {row["metric"]: row["value"] for row in json.loads(run(capsys, "metrics", *argv, "--json"))["rows"]}


def test_a_generated_job_has_its_card_and_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, other = tmp_path / "job", tmp_path / "other"
    run(capsys, "generate", *MODEL, "-o", str(job))
    card = cards.find(job)
    assert card is not None
    assert (card.model.name, card.plan.ranks, card.plan.tp, card.plan.dp) == ("gpt2", 4, 2, 2)
    run(capsys, "convert", str(job), str(other), "--to", "et")
    assert cards.find(other) == card
    assert json.loads(run(capsys, "card", str(other), "--json"))["model"]["name"] == "gpt2"
    run(capsys, "generate", *MODEL, "-o", str(job), "--force")  # a card is no stranger in the folder


def test_metrics_of_a_job_agree_with_its_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job"
    run(capsys, "generate", *MODEL, "-o", str(job))
    found = values(capsys, str(job), "--system", "dgx-h100")
    told = json.loads(run(capsys, "predict", *MODEL, "--system", "dgx-h100", "--stack", "none", "--json"))
    assert found["avg_step_time"] == pytest.approx(told["step_time_ns"] / 1e9)
    assert found["mfu"] == pytest.approx(told["mfu"])
    assert found["tokens_per_second_per_device"] == pytest.approx(told["tokens_per_s_per_gpu"])
    assert 0 < found["bandwidth_utilisation_all_reduce"] < 1


def test_serving_tells_the_time_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["gpt2", "--serve", "--prefill", "64", "--decode", "4", "--batch", "2", "--pp", "2"]
    job = tmp_path / "job"
    run(capsys, "generate", *flags, "-o", str(job))
    found = values(capsys, str(job), "--system", "dgx-h100")
    told = json.loads(run(capsys, "predict", *flags, "--system", "dgx-h100", "--json"))
    assert found["ttft"] == pytest.approx(told["ttft_ns"]["mean"] / 1e9)
    assert found["tpot"] == pytest.approx(told["tpot_ns"]["mean"] / 1e9)
    assert found["tokens_per_second"] == pytest.approx(told["tokens_per_s"])


def test_traffic_is_who_sends_what_to_whom(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job"
    run(capsys, "generate", "micro", "all_gather", "--ranks", "4", "--bytes", "1000", "-o", str(job))
    rows = json.loads(run(capsys, "metrics", str(job), "--traffic", "--json"))
    assert {(r["src"], r["dst"]): r["size_bytes"] for r in rows} == {
        (a, b): 1000 for a in range(4) for b in range(4) if a != b
    }


def test_a_card_is_made_of_what_a_job_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job"
    run(capsys, "generate", "micro", "all_gather", "--ranks", "4", "--bytes", "1000", "-o", str(job))
    assert cards.find(job) is None
    run(capsys, "card", str(job), "--write")
    card = cards.find(job)
    assert card is not None
    assert card.plan.ranks == 4
    assert main(["card", str(job), "--write"]) == 2  # never over one that may have been completed by hand
    assert "exists already" in capsys.readouterr().err


def test_a_recorded_run_has_its_card_from_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shutil import copy

    run_of = Path(__file__).parent.parent / "src" / "etude" / "capture" / "sample"
    out = tmp_path / "job"
    run(capsys, "link", str(run_of), "-o", str(out))
    card = cards.find(out)
    assert card is not None
    assert (card.hardware.device, card.plan.ranks, card.software.tool) == ("NVIDIA H200", 1, "etude collect")
    assert card.software.versions["torch"]
    given = tmp_path / "run"
    given.mkdir()
    for file in run_of.glob("*.json*"):
        copy(file, given)
    (given / "card.yaml").write_text("name: ours\n")
    run(capsys, "link", str(given), "-o", str(tmp_path / "again"))
    assert cards.find(tmp_path / "again") == cards.find(given)  # what people wrote goes before what files say
