"""Stacks of engines from what was measured: constants that are put in come out, and files are read where they are of
use."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.world.serve.measured.calibration import bench_stream, calibrate_engine, with_constants
from etude.world.serve.stacks import ServingStack, serving_stack, stack_file

BASE = ServingStack(products=1.2, decode_attention=1.5, attention=1.1, pass_ns=3000.0, source="by hand")
SAME = {"memory": 1.0, "compute": 1.0, "pass_ns": 3000.0, "sequence_ns": 10.0}


def test_constants_are_factors_on_what_they_are_of():
    """Without a value of its own, work of the matrix units starts at that of all products."""
    found = with_constants(BASE, SAME | {"memory": 2.0, "compute": 0.5})
    assert (found.products, found.decode_attention, found.rest) == (2.4, 3.0, 2.0)
    assert (found.dense, found.attention) == (0.6, 0.55)
    assert (found.pass_ns, found.sequence_ns, found.network) == (3000, 10, BASE.network)


def test_a_constant_is_found_and_held_near_its_start():
    """Times of further tokens that are 1.25 times as long follow the factor; what is 10 times off does not."""
    near = calibrate_engine(BASE, lambda stack, held: {"tpot_s": np.log([stack.products / 1.5] * 4)}, "")
    assert near.constants["memory"] == pytest.approx(1.25, rel=0.03)
    assert near.before["tpot_s"]["bias"] == pytest.approx(-0.2) and not near.worse
    far = calibrate_engine(BASE, lambda stack, held: {"tpot_s": np.log([stack.products / 12.0] * 4)}, "")
    assert far.constants["memory"] <= 2.0


def test_what_is_held_out_does_not_count_and_is_what_is_shown():
    """Fitted to 1.25, compared with a half that was right before: it is worse, and that is said."""
    found = calibrate_engine(
        BASE, lambda stack, held: {"tpot_s": np.log([stack.products / (1.2 if held else 1.5)] * 3)}, ""
    )
    assert found.constants["memory"] == pytest.approx(1.25, rel=0.03)
    assert found.before["tpot_s"]["p50"] == 0 and found.after["tpot_s"]["bias"] == pytest.approx(0.25, abs=0.03)
    assert found.worse == ("tpot_s",)


def test_a_file_is_of_its_device(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(stack_file({"h100": replace(BASE, dense=0.9)}))
    assert serving_stack(str(path), "h100") == replace(BASE, dense=0.9)
    with pytest.raises(UsageError, match="has no values for a100"):
        serving_stack(str(path), "a100")
    (tmp_path / "other.yaml").write_text("products: 2\n")
    with pytest.raises(UsageError, match="is not the stack of an engine"):
        serving_stack(str(tmp_path / "other.yaml"), "h100")


def result(path: Path, **more: object) -> Path:
    """8 requests, 0.1 s apart; a first token after 4 ms, and 2 ms for each of 9 more."""
    record = {
        "request_throughput": 1.0,
        "start_times": [0.1 * i for i in range(8)],
        "input_lens": [256] * 8,
        "output_lens": [10] * 8,
        "ttfts": [0.004] * 8,
        "itls": [[0.002] * 9] * 8,
        "errors": [""] * 8,
    }
    path.write_text(json.dumps({k: v for k, v in (record | more).items() if v is not None}))
    return path


def test_a_result_that_does_not_say_when_needs_its_users(tmp_path: Path):
    """With 3 users the fourth request waits for the first, the fifth for the second."""
    path = result(tmp_path / "r.json", start_times=None, request_rate=2.0)
    with pytest.raises(UsageError, match="when its requests were sent"):
        bench_stream(path)
    requests, measured = bench_stream(path, users=3)
    assert requests.parent.tolist() == [0, 1, 2, 3, 4]
    assert measured["ttft_s"].tolist() == [0.004] * 8 and measured["tpot_s"] == pytest.approx(0.002)


def test_the_command_writes_a_stack_that_serves(tmp_path: Path, capsys):
    """gpt2 takes 0.7 ms a token by the catalogue; here an engine takes 2 ms, most of them its own."""
    path, out = result(tmp_path / "r.json"), tmp_path / "mine.yaml"
    assert main(["calibrate", "engine", str(path), "gpt2", "--system", "dgx-h100", "-o", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["fitted"], found["held_out"]) == (4, 4)
    assert found["before"]["tpot_s"]["p50"] > 0.5 and found["after"]["tpot_s"]["p50"] < 0.1
    stream = ["--rate", "2", "--count", "20", "--output", "10", "--prompt", "256"]
    assert main(["serve", "gpt2", "--system", "dgx-h100", *stream, "--stack", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tpot_s"]["mean"] == pytest.approx(0.002, rel=0.1)
    assert main(["serve", "gpt2", "--system", "dgx-a100", *stream, "--stack", str(out)]) == 2


def test_what_is_left_of_a_calibrated_stack_is_its_range(tmp_path: Path, capsys):
    """Of 10 requests 5 are held out, the least that count; a further token is as far off as nine of ten of them."""
    ten = {"input_lens": [256] * 10, "output_lens": [10] * 10, "errors": [""] * 10, "itls": [[0.002] * 9] * 10,
           "start_times": [0.1 * i for i in range(10)], "ttfts": [0.004] * 10}  # fmt: skip
    path, out = result(tmp_path / "r.json", **ten), tmp_path / "mine.yaml"
    given = ["gpt2", "--system", "dgx-h100"]
    assert main(["calibrate", "engine", str(path), *given, "-o", str(out), "--json"]) == 0
    left = json.loads(capsys.readouterr().out)["after"]["tpot_s"]["p90"]
    stream = ["--rate", "2", "--count", "10", "--output", "10", "--prompt", "256", "--stack", str(out), "--json"]
    assert main(["serve", *given, *stream]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["basis"]["tpot_s"]["text"] == "5 requests of its own run, held out"
    assert found["high"]["itl_s"] == pytest.approx(found["itl_s"]["mean"] * (1 + left), abs=1e-7)
    assert main(["serve", *given, *stream, "--tp", "2"]) == 0  # two ranks were not measured
    assert "published serving" in json.loads(capsys.readouterr().out)["basis"]["tpot_s"]["text"]


def test_a_result_of_sglang_without_send_times_fits_the_engines_own_time(tmp_path: Path, capsys):
    """`sglang.bench_serving --output-details` of 2 users: its layout has no `start_times`."""
    path, out = (
        result(tmp_path / "sglang.json", start_times=None, backend="sglang", max_concurrency=2),
        tmp_path / "s.yaml",
    )
    given = ["calibrate", "engine", str(path), "gpt2", "--system", "dgx-h100", "--stack", "sglang", "-o", str(out)]
    assert main(given) == 2 and "--users" in capsys.readouterr().err
    assert main([*given, "--users", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["fitted"], found["held_out"]) == (4, 4)
    assert found["after"]["tpot_s"]["p50"] < 0.1 < found["before"]["tpot_s"]["p50"]
    assert serving_stack(str(out), "h100").pass_ns > serving_stack("sglang", "h100").pass_ns


def test_a_few_published_rows_fit_a_stack_on_half_of_them(tmp_path: Path, capsys):
    """Static batches that take 2 ms a token where the catalogue has less; every second row is held out."""
    path, out = tmp_path / "rows.csv", tmp_path / "r.yaml"
    head = "model,gpu_type,gpus,weight_precision,engine,load,input_tokens,output_tokens,max_batch,tpot_s"
    cells = [f"gpt2,H100,1,bf16,vllm,static batch,256,{n},{batch},0.002" for n in (16, 32) for batch in (1, 2)]
    path.write_text("\n".join([head, *cells, "gpt2,H100,1,w2a2,vllm,static batch,256,16,1,0.002", ""]))
    assert main(["calibrate", "engine", str(path), "--system", "dgx-h100", "-o", str(out), "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["fitted"], found["held_out"]) == (2, 2) and "row 5 is refused" in said.err
    assert 2 * found["after"]["tpot_s"]["p50"] < found["before"]["tpot_s"]["p50"] and found["worse"] == []
