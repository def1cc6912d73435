"""Measured runs served again, and the command."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from etude.base.errors import EtudeError
from etude.surface.cli import main
from etude.world.serve.measured import predict_rows, replayed
from etude.world.serve.measured.reference import met
from etude.world.serve.measured.rows import middle, steady, steady_figures
from etude.world.serve.pass_time import times_ns
from etude.world.serve.stacks import serving_stack
from etude.world.serve.steps import PassContent, step_cost


@pytest.mark.parametrize("config", ["llama8b-chat-light-prefill_first", "llama8b-chat-medium-chunked"])
def test_recorded_steps_in_our_loop_give_the_measured_times(shared: Path, config: str):
    found = replayed(shared / "measured" / "h200_serving", config=config, steps="recorded")
    assert abs(found["error"]["ttft_s"]) < 0.01 and abs(found["error"]["tpot_s"]) < 0.01


def test_a_run_of_vllm_with_its_profile(shared: Path):
    profile = shared / "measured/vllm_profiles/RTX4090/meta-llama/Llama-3.1-8B/bf16"
    found = replayed(shared / "measured/vllm_runs/RTX4090/Llama-3.1-8B", ops=profile)
    assert abs(found["error"]["tpot_s"]) < 0.02
    assert abs(found["error"]["ttft_s"]) < 0.06 and abs(found["error"]["latency_s"]) < 0.06


def reference(folder: Path) -> Path:
    """Two requests of an engine whose steps take 10 ms, in 3 iterations; it idles before the second."""
    about = {
        "config": "a", "model": "llama8b", "policy": "chunked", "max_batch": 4, "kv_budget_tokens": 100,
        "max_prefill_tokens": 64, "chunk_tokens": 16,
    }  # fmt: skip
    (folder / "configs_llama8b.json").write_text(json.dumps({"info": {}, "configs": [about]}))
    (folder / "requests_llama8b.csv").write_text(
        "config,request,arrival_ns,prompt_tokens,output_tokens,first_token_ns,finish_ns\n"
        "a,0,0,8,2,10000000,20000000\na,1,90000000,8,1,100000000,100000000\n"
    )
    (folder / "iterations_llama8b.csv").write_text(
        "config,start_ns,duration_ns,graph_bucket\na,0,10000000,0\na,10000000,10000000,1\na,90000000,10000000,0\n"
    )
    return folder


def test_a_small_run_by_hand(tmp_path: Path):
    found = replayed(reference(tmp_path), config="a", steps="recorded")
    by_hand = pytest.approx({"ttft_s": 0.01, "tpot_s": 0.01, "latency_s": 0.015})
    assert found["measured"] == by_hand and found["predicted"] == by_hand


def test_a_grid_is_met_at_its_own_steps_and_changes_nothing_far_away():
    """Others of the pass take 1,000 ns; attention of 4 sequences with 64 keys is 400 ns in the table, 800 measured."""
    table = np.zeros((2, 1, 3, 3))
    table[:, :, 1:] += np.array([[1.0, 100.0, 1e6], [4.0, 400.0, 4e6]])
    axes = [0, 16], [0], [0, 1, 4], [1, 64, 1_000_000]
    cost = step_cost(tokens=[1, 8], layers_ns=[1000.0, 1000.0], attention=(*axes, table))
    shapes = [PassContent(0, 0.0, 4, 4 * keys, 0, keys) for keys in (64, 1_000_000)]
    found = times_ns(met(cost, shapes[:1], np.array([1800.0])), shapes)
    assert found[0] == 1800
    assert 4_001_000 < found[1] < 4_001_000 * 1.05
    assert met(cost, shapes[:1], np.array([1800.0])).grid_ns[1, 0, 2, 1] == pytest.approx(800)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"config": "b"}, "unknown configuration `b`"),
        ({"config": ""}, "no configuration is named"),
        ({"config": "a", "steps": "mine"}, "unknown steps `mine`"),
        ({"config": "a", "ops": Path()}, "--ops needs a run with meta.json"),
    ],
)
def test_what_a_folder_does_not_have_is_refused(tmp_path: Path, given: dict, problem: str):
    with pytest.raises(EtudeError, match=problem):
        replayed(reference(tmp_path), **given)


def test_a_folder_of_nothing_is_refused(tmp_path: Path):
    with pytest.raises(EtudeError, match="neither meta.json nor configs"):
        replayed(tmp_path, config="a")


SMALL = ["serve", "qwen3-0.6b", "--system", "dgx-h100", "--rate", "50", "--count", "60", "--prompt", "200", "--output"]


def test_the_command_gives_the_keys_that_scripts_read(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "r.parquet"
    assert main([*SMALL, "20", "--slo", "ttft=1s", "--requests-out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    keys = (
        "requests finished duration_s ttft_s tpot_s latency_s goodput_rps output_tokens_per_s energy_j kv_peak "
        "preemptions cache_hit_tokens"
    )
    assert set(keys.split()) <= set(found)
    assert {"mean", "p50", "p90", "p99"} <= set(found["ttft_s"])
    assert found["requests"] == found["finished"] == 60
    table = pq.read_table(out)
    wanted = ["request", "arrival_s", "prompt", "output", "first_token_s", "finish_s", "replica"]
    assert table.schema.names[: len(wanted)] == wanted and table.num_rows == 60
    # what was made once is kept
    assert list((tmp_path / "cache").rglob("*.npz"))
    assert main([*SMALL, "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tpot_s"] is None


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["serve"], "no model is given"),
        (["serve", "qwen3-0.6b"], "no system is given"),
        (["serve", "qwen3-0.6b", "--system", "dgx-h100"], "no requests are given"),
        ([*SMALL, "5", "--slo", "speed=1s"], "--slo: column 1: unknown key `speed`"),
        ([*SMALL, "5", "--rate", "9..1"], "--rate: column 1: `9..1`"),
        ([*SMALL, "5", "--router", "no.py:f"], "no.py: there is no such file"),
        (["serve", "--config", "x"], "--config is not read by `etude serve`"),
    ],
)
def test_bad_arguments_are_refused(tmp_path: Path, monkeypatch, capsys, arguments: list[str], problem: str):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(arguments) == 2
    assert problem in capsys.readouterr().err


ROW = "model,task,weight_precision,gpu,num_gpus,tp,dp,ep,avg_power_watts,avg_batch_size,avg_output_len,"


def test_rows_of_measured_serving_are_predicted_or_refused(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "rows.csv"
    path.write_text(
        ROW + "energy_per_token_joules,max_num_seqs,median_itl_ms,output_throughput_tokens_per_sec\n"
        "Qwen/Qwen3-0.6B,lm-arena-chat,bfloat16,H100,1,1,1,1,300,8,400,0.1,8,2,4000\n"
        "Qwen/Qwen3-0.6B,lm-arena-chat,bfloat16,H100,1,1,1,1,400,64,400,0.02,64,3,20000\n"
        "Qwen/Qwen3-0.6B,lm-arena-chat,bfloat16,TPU,1,1,1,1,400,64,400,0.02,64,3,20000\n"
        "Qwen/Qwen3-0.6B,lm-arena-chat,bfloat16,H100,1,1,1,1,400,x,400,0.02,64,3,20000\n"
    )
    assert main(["serve", "--rows", str(path), "--json"]) == 0
    few, many, *refused = json.loads(capsys.readouterr().out)["rows"]
    assert [one["row"] for one in (few, many, *refused)] == [0, 1, 2, 3]
    assert few["measured"]["median_itl_ms"] == 2
    assert few["predicted"]["median_itl_ms"] < many["predicted"]["median_itl_ms"]
    assert few["predicted"]["energy_per_token_joules"] > many["predicted"]["energy_per_token_joules"]
    assert many["predicted"]["energy_per_token_joules"] == pytest.approx(
        many["predicted"]["avg_power_watts"] / many["predicted"]["output_throughput_tokens_per_sec"]
    )
    assert "unknown GPU `TPU`" in refused[0]["refused"] and "not a number" in refused[1]["refused"]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"task": ""}, "no `task`"),
        ({"model": "nobody/nothing"}, "is not known"),
        ({"num_gpus": "1.5"}, "`num_gpus` is 1.5"),
        ({"num_gpus": "1e9"}, "`num_gpus` is 1e+09"),
        ({"avg_batch_size": "1e30"}, "a steady state"),
        ({"avg_batch_size": "0"}, "a steady state"),
        ({"dp": "2"}, "2 copies on 1 GPUs"),
        ({"weight_precision": "int3"}, "unknown precision `int3`"),
    ],
)
def test_a_row_that_says_nonsense_is_refused(tmp_path: Path, capsys, changed: dict, problem: str):
    row = {"model": "Qwen/Qwen3-0.6B", "gpu": "H100", "num_gpus": "1", "dp": "1", "task": "gpqa", "avg_batch_size": "8",
           "avg_output_len": "300", "weight_precision": "bfloat16"} | changed  # fmt: skip
    (tmp_path / "rows.csv").write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    assert main(["serve", "--rows", str(tmp_path / "rows.csv")]) == 0
    assert problem in capsys.readouterr().out


def test_passes_of_a_steady_state_read_all_prompts_that_come():
    """Of 300 sequences that answer 600 tokens each, one ends every other pass, and 250 tokens come in its place."""
    row = {
        "model": "Qwen/Qwen3-0.6B", "task": "lm-arena-chat", "weight_precision": "bfloat16", "gpu": "H100",
        "num_gpus": "1", "avg_batch_size": "300", "avg_output_len": "600", "max_num_seqs": "300",
    }  # fmt: skip
    asked = steady(row)
    assert "avg_power_watts" in steady_figures(asked, serving_stack("vllm-0.11", "h200"))  # as on H100
    shapes, often = asked.passes()
    assert often.sum() == pytest.approx(1.0) and often[0] == pytest.approx(math.exp(-0.5))
    assert shapes[0, 0] == 0 and (shapes[1:, 0] > 0).all() and (shapes[:, 2] == 300).all()
    assert often @ shapes[:, 0] == pytest.approx(0.5 * 250, rel=0.05)
    assert often @ (shapes[:, 4] - 300) == pytest.approx(0.5, rel=0.01)


def test_a_median_of_passes_that_come_more_or_less_often():
    times = np.array([5.0, 1.0, 9.0])
    assert [middle(times, np.array(w)) for w in ([0.6, 0.3, 0.1], [0.2, 0.6, 0.2], [0.1, 0.1, 0.8])] == [5.0, 1.0, 9.0]


def test_rows_without_their_columns_are_refused(tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_text("model,task\na,b\n")
    with pytest.raises(EtudeError, match="no column `gpu`"):
        predict_rows(path)


IMAGES = (
    "model,gpu,num_gpus,total_params_b,batch_latency_s,batch_size,inference_steps,image_height,image_width,num_frames\n"
)


def test_rows_of_images_are_predicted_on_any_number_of_gpus(tmp_path: Path):
    path, model = tmp_path / "rows.csv", "stabilityai/stable-diffusion-3.5-large"
    path.write_text(
        f"{IMAGES}{model},H100,1,8,6.6,4,28,1024,1024,\n{model},H100,1,8,13,8,28,1024,1024,\n"
        f"{model},H100,1,8,2,4,28,512,512,\n{model},H100,4,8,2,4,28,1024,1024,\n{model},H100,8,8,2,1,28,256,256,\n"
        f"{model},H100,1,8,2,1,28,256,256,\n"
    )
    one, two, small, spread, *least = (row["predicted"]["batch_latency_s"] for row in predict_rows(path))
    assert two == pytest.approx(2 * one) and small < one / 3
    assert one / 4 < spread < one / 2  # a quarter of the work each, and what they send
    assert least[0] > least[1]  # a host that issues all of a pass is no faster with more GPUs


def test_images_of_a_model_that_is_not_known_take_its_size(tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_text(
        f"{IMAGES}a/other,H100,1,12,6.6,4,28,1024,1024,\na/other,H100,1,24,6.6,4,28,1024,1024,\n"
        "a/other,H100,1,,6.6,4,28,1024,1024,\nQwen/Qwen3-0.6B,H100,1,,2,1,28,512,512,\n"
    )
    half, whole, no_size, text = predict_rows(path)
    assert whole["predicted"]["batch_latency_s"] == pytest.approx(2 * half["predicted"]["batch_latency_s"], rel=0.02)
    assert "is not known" in no_size["refused"] and "does not generate images" in text["refused"]
