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


@pytest.mark.parametrize(
    ("gpu", "gpus", "seqs", "known"),
    [("B200", 1, 8, False), ("B200", 1, 2000, True), ("B200", 2, 8, True), ("H100", 1, 8, True)],
)
def test_short_passes_of_one_b200_have_no_evidence_since_hosts_differ(tmp_path, gpu, gpus, seqs, known):
    head = "model,task,architecture,weight_precision,gpu,num_gpus,avg_batch_size,avg_output_len,max_num_seqs"
    path = tmp_path / "rows.csv"
    measured = "median_itl_ms,output_throughput_tokens_per_sec"
    cells = f"Qwen/Qwen3-8B,lm-arena-chat,Dense,bfloat16,{gpu},{gpus},{seqs},640,{seqs},5,1000"
    path.write_text(f"{head},{measured}\n{cells}\n")
    row = score(path).rows[0]
    assert row["basis"]["itl_s"]["evidence"] is known
    assert (row["high"]["tokens_per_s"] is not None) is known
    if not known:
        assert row["basis"]["itl_s"]["text"].endswith("on NVIDIA B200 SXM 180GB: hosts that were measured differ")


def test_experts_in_mxfp4_count_as_products_in_16_bits(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(
        "model,task,architecture,weight_precision,gpu,num_gpus,avg_batch_size,avg_output_len,max_num_seqs,"
        "median_itl_ms,output_throughput_tokens_per_sec\n"
        "openai/gpt-oss-120b,gpqa,MoE,mxfp4,H100,2,8,1700,8,7,1100\n"
    )
    found = score(path).rows[0]["basis"]["itl_s"]
    assert found["evidence"] and found["case"]["precision"] == "bf16"


def test_a_stream_of_short_passes_on_one_b200_has_no_ranges(capsys, tmp_path):
    """Unless its stack was calibrated on a host."""
    import json

    from etude.surface.cli import main
    from etude.world.serve.stacks import ServingStack, stack_file

    given = ["serve", "llama3-8b", "--system", "dgx-b200", "--rate", "4", "--count", "20", "--json"]
    assert main(given) == 0
    assert json.loads(capsys.readouterr().out)["high"]["tpot_s"] is None
    (tmp_path / "mine.yaml").write_text(stack_file({"b200": ServingStack(source="by hand")}))
    for more in (["--tp", "2"], ["--stack", str(tmp_path / "mine.yaml")]):
        assert main([*given, *more]) == 0
        assert json.loads(capsys.readouterr().out)["high"]["tpot_s"] is not None


def test_a_mean_time_between_tokens_has_the_errors_of_further_tokens():
    about = {"experts": True, "load": "closed loop"}
    assert serving_case("itl_s", "Intel Gaudi 3 128GB", **about) == serving_case(
        "tpot_s", "Intel Gaudi 3 128GB", **about
    )


@pytest.mark.parametrize(
    ("more", "text", "rate"),
    [
        (["--tp", "2", "--pp", "2"], "no evidence for the time of a further token of 2 stages", True),
        (
            ["--tp", "2", "--disaggregate", "1:1"],
            "no evidence for the time of a further token of prompts and tokens out on replicas of their own",
            False,
        ),
    ],
)
def test_layouts_that_were_not_measured_have_no_evidence(capsys, more, text, rate):
    """Of stages, tokens per second alone were."""
    import json

    from etude.surface.cli import main

    assert main(["serve", "llama3-8b", "--system", "dgx-h100", "--rate", "4", "--count", "20", "--json", *more]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["basis"]["tpot_s"]["text"] == text
    assert (found["high"]["output_tokens_per_s"] is not None) is rate


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
    # 128 tokens each: a request takes its first token and 127 more, and so do the ends of its range
    high = found["high"]
    assert high["latency_s"] == pytest.approx(high["ttft_s"] + 127 * high["tpot_s"], rel=1e-6)
    last_s = found["requests"] * 128 / found["high"]["output_tokens_per_s"]
    assert last_s < found["duration_s"]  # the last request came then: none of its tokens can be out before
    assert "pooled with other kinds of few rows or sources" in found["basis"]["tpot_s"]["text"]
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
