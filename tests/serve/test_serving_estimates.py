"""What rows of serving are like, for the ranges of their figures."""

import pytest

from etude.decide.score import score
from etude.world.serve.estimates import load_of, serving_case


@pytest.mark.parametrize(
    ("text", "rate", "load"),
    [
        ("static batch", "", "static batch"),
        ("closed loop", "3", "closed loop"),
        ("requests at a rate (Poisson)", "3.5", "at a rate"),
        ("offline, all at once", "", "all at once"),
    ],
)
def test_loads_by_their_words(text: str, rate: str, load: str):
    assert load_of(text, rate) == load


def test_a_case_has_its_model_load_and_precision():
    found = serving_case("tpot_s", "NVIDIA H100 SXM5 80GB", experts=True, load="closed loop", precision="nvfp4", gpus=8)
    assert (found.figure, found.kind) == ("time of a further token", "experts, closed loop")
    assert (found.precision, found.gpus, found.named) == ("fp4", 8, True)


def test_rows_of_a_leaderboard_have_cases(tmp_path):
    from score_files import SERVING

    path = tmp_path / "rows.csv"
    path.write_text(SERVING)
    row = score(path).rows[0]
    assert set(row["basis"]) == {"itl_s", "tokens_per_s", "power_w", "energy_j_per_token"}
    case = row["basis"]["itl_s"]["case"]
    assert case["figure"] == "time between tokens" and case["kind"].endswith(", steady state")
    assert case["device"].startswith("NVIDIA H100")


def test_a_stream_has_ranges_of_its_means(capsys):
    import json

    from etude.surface.cli import main

    assert main(["serve", "gpt2", "--system", "dgx-h100", "--rate", "4", "--count", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    times = ("ttft_s", "tpot_s", "itl_s", "latency_s")
    parts = {f"{name}.{part}" for name in times for part in found["ttft_s"] if part != "mean"}
    assert set(found["basis"]) == {*times, *parts, "output_tokens_per_s", "energy_j", "within_limits", "goodput_rps"}
    assert found["basis"]["goodput_rps"]["text"] == "no evidence for requests within limits, of which none was given"
    assert found["high"]["ttft_s.p99"] / found["ttft_s"]["p99"] == pytest.approx(
        found["high"]["ttft_s"] / found["ttft_s"]["mean"]
    )
    assert found["basis"]["ttft_s.p99"]["text"].endswith("as wide as that of the mean")
    assert found["low"]["tpot_s"] < found["tpot_s"]["mean"] < found["high"]["tpot_s"]
    assert "too few rows of dense models, at a rate" in found["basis"]["tpot_s"]["text"]
    assert (
        main(["serve", "gpt2", "--system", "dgx-h100", "--rate", "4", "--count", "20", "--stack", "none", "--json"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["high"]["tpot_s"] is None
    assert found["basis"]["tpot_s"]["text"] == "no evidence for the time of a further token without a software stack"


def test_requests_within_limits_are_fewer_at_the_far_end_of_their_times(capsys):
    import json

    from etude.surface.cli import main

    given = ["serve", "gpt2", "--system", "dgx-h100", "--rate", "4", "--count", "20"]
    assert main([*given, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    limit = first["ttft_s"]["p90"] * 1.001
    assert main([*given, "--slo", f"ttft={limit * 1e6:.0f}us", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    low, high = found["low"], found["high"]
    assert low["within_limits"] < found["within_limits"] == 0.9 <= high["within_limits"]
    assert low["goodput_rps"] == pytest.approx(found["goodput_rps"] * low["within_limits"] / 0.9)
    assert found["basis"]["within_limits"]["text"].startswith("ttft_s at the ends of their ranges: ")
