"""What `etude score` prints: the JSON, refusals, what was assumed, and the same figures as the commands below."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from etude.decide.score import score
from etude.surface.cli import main
from score_files import (
    BENCH,
    CONTENTION,
    DIFFUSION,
    EAGER,
    ENERGY,
    NCCL,
    NCCL_TESTS,
    OFFLOAD,
    OPERATORS,
    PUBLISHED,
    SERVING,
    TRAINING,
    VIDUR,
    vllm_folder,
)

PARTS = ["row", "measured", "predicted", "low", "high", "low_50", "high_50", "basis", "assumed"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def told(*words: Any) -> dict[str, Any]:
        assert main([*map(str, words), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return told


def file(place: Path, text: str, name: str = "rows.csv") -> Path:
    path = place / name
    path.write_text(text)
    return path


FIGURES = [
    (EAGER, {"step_s": 0.005, "peak_memory_bytes": 1e9}),
    (SERVING, {"itl_s": 0.008, "tokens_per_s": 1900.0, "power_w": 600.0, "energy_j_per_token": 0.5}),
    (DIFFUSION, {"latency_s": 1.5}),
    (OPERATORS, {"time_s": 9e-6}),
    (NCCL, {"time_s": 40e-6}),
    (CONTENTION, {"time_s": 10150e-9}),
    (OFFLOAD, {"time_s": 30e-6}),
    (PUBLISHED, {"ttft_s": 0.02, "tpot_s": 0.008, "latency_s": 0.2}),
]


@pytest.mark.parametrize(("text", "measured"), FIGURES)
def test_one_name_for_each_figure_and_nothing_else(tmp_path: Path, text: str, measured: dict[str, float], run: Any):
    found = run("score", file(tmp_path, text))
    assert list(found) == ["kind", "rows", "summary"]
    first = found["rows"][0]
    assert list(first) == PARTS
    assert first["measured"] == pytest.approx(measured)
    assert list(first["predicted"]) and set(measured) <= set(first["predicted"])
    assert all(isinstance(value, float) and value > 0 for value in first["predicted"].values())
    for name, basis in first["basis"].items():
        low, high = first["low"][name], first["high"][name]
        assert low < first["predicted"][name] < high if basis["evidence"] else (low, high) == (None, None)
    assert all(list(row) in (PARTS, ["row", "refused"]) for row in found["rows"])
    assert [row["row"] for row in found["rows"]] == list(range(1, len(text.splitlines())))


def test_refusals_are_counted_by_reason(tmp_path: Path, run: Any):
    found = run("score", file(tmp_path, TRAINING))
    assert found["rows"][1] == {"row": 2, "refused": "there is no system for the GPU `Cray-1`"}
    assert found["summary"]["refused"] == {
        "there is no system for the GPU `Cray-1`": 1,
        "a row of serving or bandwidth, not of a training step": 1,
    }
    assert found["summary"]["step_s"]["rows"] == 1
    reasons = {
        SERVING: "unknown task `chess`",
        VIDUR: "operator `sing` is not known",
        NCCL: "there is no system for `Z80`",
        ENERGY: "power by the values of data is not modelled",
        CONTENTION: "the background ended before the operator",
        OFFLOAD: "copies from one buffer of the host to another are not predicted",
        PUBLISHED: "weights in int4 of a model without experts are not predicted",
    }
    for text, reason in reasons.items():
        assert reason in run("score", file(tmp_path, text))["summary"]["refused"]


def test_a_value_that_is_no_number_refuses_its_row_alone(tmp_path: Path):
    found = score(file(tmp_path, OPERATORS.replace(",9\n", ",nine\n")))
    assert "cannot be read" in found.rows[0]["refused"]
    assert "predicted" in found.rows[1]


def test_what_a_row_does_not_state_is_listed(tmp_path: Path):
    said = {text: score(file(tmp_path, text)).rows[0]["assumed"] for text in (SERVING, TRAINING, DIFFUSION, PUBLISHED)}
    assert "prompts of 100 tokens, 250 on average, for the task lm-arena-chat" in said[SERVING]
    assert {"system dgx-h100 for the GPU H100", "stack vllm-0.11"} <= set(said[SERVING])
    assert "system dgx-h100 for the GPU `H100-80GB`" in said[TRAINING]
    assert "model llama2-7b of the catalogue" in said[TRAINING]
    assert {"stack xdit-0.4", "text encoders are left out"} <= set(said[DIFFUSION])
    assert any("max_num_batched_tokens 8,192" in text for text in said[PUBLISHED])
    assert "stack vllm-0.12 for the engine `vLLM`" in said[PUBLISHED]


def test_several_files(tmp_path: Path, run: Any):
    one, two = file(tmp_path, OPERATORS, "a.csv"), file(tmp_path, OFFLOAD, "b.csv")
    found = run("score", one, two)
    assert list(found) == ["files"]
    assert [list(part) for part in found["files"]] == [["file", "kind", "rows", "summary"]] * 2
    assert [(part["file"], part["kind"]) for part in found["files"]] == [(str(one), "operators"), (str(two), "offload")]


def test_some_rows(tmp_path: Path, run: Any, capsys: pytest.CaptureFixture[str]):
    path = file(tmp_path, OPERATORS)
    assert [row["row"] for row in run("score", path, "--first", 1)["rows"]] == [1]
    assert [row["row"] for row in run("score", path, "--rows", "2-9")["rows"]] == [2]
    for words in (["--rows", "0"], ["--rows", "x"], ["--rows", "7"], ["--rows", "1", "--first", "1"]):
        assert main(["score", str(path), *words]) == 2
    assert "there are 2 rows" in capsys.readouterr().err


def test_options_that_a_kind_does_not_read_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = file(tmp_path, DIFFUSION)
    assert main(["score", str(path), "--stack", "nemo"]) == 2
    told = capsys.readouterr().err
    assert "--stack is not read by diffusion" in told
    assert "read by: training, serving, requests" in told
    assert main(["score", str(path), "--max-num-seqs", "8"]) == 2
    assert "--max-num-seqs is not read by diffusion" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TRAINING, ["--system", "nowhere"]),
        (TRAINING, ["--stack", "nothing"]),
        (TRAINING, ["--ops", "none.parquet"]),
        (SERVING, ["--stack", "nothing"]),
        (OPERATORS, ["--system", "nowhere"]),
        (NCCL, ["--system", "nowhere"]),
    ],
)
def test_options_that_no_row_can_be_predicted_with_are_errors(tmp_path: Path, text: str, words: list[str]):
    assert main(["score", str(file(tmp_path, text)), *words]) == 2


def test_the_table_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["score", str(file(tmp_path, OPERATORS))]) == 0
    told = capsys.readouterr()
    assert told.out.split()[:7] == ["kind", "figure", "rows", "median", "p90", "bias", "refused"]
    assert "assumed, 2 rows: device h200: the row names none" in told.err


@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_rows_are_written(tmp_path: Path, ending: str, run: Any, capsys: pytest.CaptureFixture[str]):
    path, out = file(tmp_path, OFFLOAD), tmp_path / f"out.{ending}"
    found = run("score", path, "-o", out)
    if ending == "json":
        assert json.loads(out.read_text()) == found
    else:
        rows = list(csv.DictReader(out.open())) if ending == "csv" else pq.read_table(out).to_pylist()
        assert [row["kind"] for row in rows] == ["offload", "offload"]
        assert float(rows[0]["predicted_time_s"]) == found["rows"][0]["predicted"]["time_s"]
        assert "host to another" in rows[1]["refused"]
    assert main(["score", str(path), "-o", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["score", str(path), "-o", str(out), "-f"]) == 0
    assert main(["score", str(path), "-o", str(tmp_path / "out.txt")]) == 2


def test_the_same_as_predict_rows(tmp_path: Path, run: Any):
    path = file(tmp_path, TRAINING + TRAINING.splitlines()[1].replace("nemo", "megatron-lm") + "\n")
    old = {row["row"]: row for row in run("predict", "--rows", path)["rows"]}
    new = {row["row"]: row for row in run("score", path)["rows"]}
    for number in (1, 4):
        assert new[number]["predicted"]["step_s"] == old[number]["predicted"]["step"]
        assert new[number]["measured"]["step_s"] == old[number]["measured"]["step"]
        assert set(old[number]["assumed"]) <= set(new[number]["assumed"])
    assert new[2]["refused"] == old[2]["refused"]


def test_the_same_as_serve_rows_and_energy_rows(tmp_path: Path, run: Any):
    path = file(tmp_path, SERVING)
    old, new = run("serve", "--rows", path)["rows"][0], run("score", path)["rows"][0]
    assert new["predicted"]["tokens_per_s"] == old["predicted"]["output_throughput_tokens_per_sec"]
    assert new["predicted"]["itl_s"] == old["predicted"]["median_itl_ms"] * 1e-3
    path = file(tmp_path, ENERGY)
    old, new = run("energy", "--rows", path)["rows"][1], run("score", path)["rows"][1]
    assert new["predicted"]["power_w"] == old["predicted"]["mean_w"]


def test_the_same_as_serve_run(tmp_path: Path, run: Any):
    on = ["--system", "dgx-h100", "--max-num-seqs", 8]
    old = run("serve", "llama3-8b", *on, "--run", BENCH)
    new = run("score", BENCH, "--model", "llama3-8b", *on)["rows"][0]
    assert (new["measured"], new["predicted"]) == (old["measured"], old["predicted"])
    folder = vllm_folder(tmp_path / "run")
    old, new = run("serve", "--run", folder), run("score", folder)["rows"][0]
    assert new["row"] == "run"
    assert (new["measured"], new["predicted"]) == (old["measured"], old["predicted"])
    assert set(old["assumed"]) < set(new["assumed"])
    assert "max_num_batched_tokens 2,048" in new["assumed"]


def test_requests_need_a_model_and_a_system(capsys: pytest.CaptureFixture[str]):
    assert main(["score", str(BENCH)]) == 2
    assert "do not say what they ran on" in capsys.readouterr().err


def test_the_text_of_nccl_tests(tmp_path: Path, run: Any):
    """Four GPUs: a bus bandwidth of 1.5 times the algorithm's is an all-reduce, that of 8 bytes with it."""
    found = run("score", file(tmp_path, NCCL_TESTS, "log.txt"))
    assert [row["measured"] for row in found["rows"]] == [{"time_s": 13.67e-6}, {"time_s": 40e-6}]
    assert "system dgx-h100 for `NVIDIA H100 80GB HBM3`" in found["rows"][0]["assumed"]
    table = NCCL.replace("8,8,all_reduce", "4,4,all_reduce")
    same = run("score", file(tmp_path, table))["rows"][0]
    assert found["rows"][1]["predicted"] == same["predicted"]


def test_gathers_of_nccl_tests_count_what_a_rank_has_in_the_end(tmp_path: Path, run: Any):
    """A gather of 1 GiB moves half of what an all-reduce of 1 GiB does, and needs its name: an all-to-all looks the
    same."""
    reduces = NCCL_TESTS.replace("1048576", "1073741824").replace("262144", "268435456")
    gathers = reduces.replace("sum", "none").replace("39.32", "19.66")
    assert run("score", file(tmp_path, gathers, "log.txt"))["summary"]["refused"] == {
        "the text does not say which collective it is": 2
    }
    texts = (reduces, "# all_gather_perf\n" + gathers)
    whole, half = (run("score", file(tmp_path, text))["rows"][1]["predicted"]["time_s"] for text in texts)
    assert half == pytest.approx(whole / 2, rel=0.3)


def test_a_pair_of_recordings(shared: Path):
    found = score(shared / "traces" / "h200_pairs", first=1)
    assert found.rows[0]["row"] == "gpt8_b1 -> gpt8_b96"
    assert found.summary()["time_s"]["median"] < 0.05
