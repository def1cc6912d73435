"""Rows of tables: models, plans and measured figures, worked by hand; the contract of `etude predict --rows`."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from etude.base.errors import EtudeError
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import Model, open_model
from etude.steps.measured.gpus import gpu_system
from etude.steps.measured.row_figures import out_of_scope, step_flops, step_seconds
from etude.steps.measured.row_models import row_model
from etude.steps.measured.rows import Case, Refused, cases_of, predict_rows, predicted_case, read_rows
from etude.steps.step import predict, step_time
from etude.surface.cli import main

H100 = open_system("dgx-h100")
PLAN = Plan(gpus=16, tp=2, seq=4096, micro_batch=1, global_batch=64)
LLAMA = open_model("llama2-7b")
ROW = {"model": "Llama-2-7B", "gpu_type": "H100-80GB", "gpus": "8", "tp": "1", "pp": "1", "global_batch": "128",
       "seq": "4096", "micro_batch": "1", "measured_metric": "step time", "value": "4", "unit": "s",
       "precision": "bf16",
       "stack": "nemo", "year": "2025"}  # fmt: skip


def figure(metric: str, value: float, unit: str, m: Model = LLAMA, plan: Plan = PLAN) -> float:
    return step_seconds({"measured_metric": metric, "value": str(value), "unit": unit}, m, plan, H100)


def test_times_tokens_and_samples():
    assert figure("step time", 2.5, "s") == 2.5
    assert figure("iteration time", 2500, "ms") == 2.5
    assert figure("tokens/s per GPU", 1000, "tok/s/GPU") == 64 * 4096 / 16 / 1000
    assert figure("tokens/s", 16000, "tok/s") == 64 * 4096 / 16000
    assert figure("samples/s", 32, "samples/s") == 2.0
    assert figure("samples/s per GPU", 2, "samples/s") == 2.0
    # 3,600 GPU-hours for a trillion tokens: each GPU makes 1e12 / (3600 * 3600) a second
    assert figure("GPU-hours per 1T tokens", 3600, "GPU-hours") == pytest.approx(64 * 4096 / 16 / (1e12 / 3600 / 3600))


def test_flops_as_the_megatron_papers_count_them():
    m = Model(
        name="gpt",
        layers=36,
        hidden=4096,
        heads=32,
        ffn=16384,
        vocab=51200,
        seq=2048,
        norm="layer",
        bias=True,
        tied=True,
    )
    plan = Plan(gpus=128, tp=4, seq=2048, micro_batch=16, global_batch=512, recompute="full")
    b, s, n, h, v = 512, 2048, 36, 4096, 51200
    hardware = 96 * b * s * n * h**2 * (1 + s / (6 * h) + v / (16 * n * h))  # Narayanan et al. 2021
    model = 72 * b * s * n * h**2 * (1 + s / (6 * h) + v / (12 * n * h))  # Korthikanti et al. 2022
    told = "TFLOP/s per GPU (hardware FLOPs incl. recompute)"
    assert figure(told, 142, "TFLOP/s", m, plan) == pytest.approx(hardware / 128 / 142e12, rel=1e-6)
    assert figure("model TFLOP/s per GPU", 142, "TFLOP/s", m, plan) == pytest.approx(model / 128 / 142e12, rel=1e-6)
    assert figure("MFU", 50, "%", m, plan) == pytest.approx(model / 128 / (0.5 * 989.4e12), rel=1e-6)


@pytest.mark.parametrize(
    ("metric", "value", "unit"), [("time to train", 11, "min"), ("loss", 2, ""), ("step time", -1, "s")]
)
def test_what_is_no_step_is_refused(metric: str, value: float, unit: str):
    with pytest.raises(EtudeError):
        figure(metric, value, unit)


def test_bandwidth_and_serving_are_out_of_scope():
    assert out_of_scope({"measured_metric": "bus bandwidth at 67108864 B", "unit": "GB/s"})
    assert out_of_scope({"measured_metric": "serving throughput", "unit": "tok/s"})
    assert not out_of_scope({"measured_metric": "tokens/s per GPU", "unit": "tok/s/GPU"})


def test_models_by_name_or_by_shape():
    assert row_model({"model": "Llama-3.1-405B"}, []) == open_model("llama3-405b")
    assert row_model({"model": "Nemotron-4-15B", "layers": "32", "hidden": "6144"}, []) == open_model("nemotron4-15b")
    other = row_model(
        {"model": "Llama-2-7B", "layers": "16", "hidden": "4096", "heads": "32", "ffn": "11008", "vocab": "32000"}, []
    )
    assert (other.layers, other.gated) == (16, True)
    said: list[str] = []
    guessed = row_model({"model": "GPT 175B", "params": "1.75e11"}, said)
    assert 0.9 < 12 * guessed.layers * guessed.hidden**2 / 1.75e11 < 1.1
    assert said
    with pytest.raises(EtudeError, match="shape"):
        row_model({"model": "mystery"}, [])


@pytest.mark.parametrize(
    ("said", "system"),
    [
        ("TPU v5e", "tpu-v5e-pod"),
        ("NVIDIA H20 96GB", "h20-node"),
        ("MI355X", "mi355x-node"),
        ("MI350X", "mi355x-node"),
        ("Trainium2", "trn2"),
        ("AWS trn2.48xlarge", "trn2"),
        ("TPU v7", "tpu-v7-pod"),
        ("TPU Ironwood", "tpu-v7-pod"),
        ("AMD Instinct MI325X", "mi300x-node"),
    ],
)
def test_gpus_of_tables_are_systems_of_the_catalogue(said: str, system: str):
    assert gpu_system(said).name == system


def test_gpus_of_tables():
    assert gpu_system("H100-80GB (RoCE)") == H100
    assert gpu_system("A100-40GB").device.memory_bytes == 40_000_000_000
    limited = gpu_system("H100-96GB(HBM2e,500W)").device
    assert limited.memory_bytes == 96_000_000_000
    assert limited.sustained_fraction / H100.device.sustained_fraction == pytest.approx((5 / 7) ** (1 / 3))
    slower = limited.ops["attention"].flop_efficiency / H100.device.ops["attention"].flop_efficiency
    assert slower == pytest.approx((5 / 7) ** (1 / 3))
    with pytest.raises(EtudeError, match="no system for the GPU"):
        gpu_system("abacus")


def case(**changes: str) -> Case | Refused:
    return next(cases_of([{**ROW, **changes}]))


def test_where_a_row_was_published_changes_nothing():
    plain, other = case(source="a paper"), case(source="PaXML and Megatron-Bridge and torchtitan")
    assert isinstance(plain, Case)
    assert isinstance(other, Case)
    assert (plain.plan, plain.stack, plain.step_s) == (other.plan, other.stack, other.step_s)


def test_a_row_that_says_no_axes_has_a_plan_that_fits_with_the_recipe():
    big = {"model": "GPT 177B", "layers": "96", "hidden": "12288", "heads": "96", "ffn": "49152", "vocab": "131072",
           "gpus": "4608", "tp": "", "pp": "", "micro_batch": "", "global_batch": "1152"}  # fmt: skip
    found = case(**big, stack="megatron-core", year="2024")  # its gradients are in fp32
    assert isinstance(found, Case)
    assert found.plan.pp > 1
    assert found.plan.schedule.startswith("interleaved")
    assert found.plan.recompute == "none"


SHAPED = {"layers": "32", "hidden": "4096", "heads": "32", "ffn": "14336", "vocab": "128256", "params": "8.03e9"}


def test_the_name_of_a_model_changes_nothing_that_its_row_states():
    named, other, odd = (case(**SHAPED, model=name) for name in ("Llama-3-8B", "Acme-8B", "GPT-like"))
    for found in (other, odd):
        assert isinstance(named, Case) and isinstance(found, Case)
        assert (found.model, found.plan, found.stack) == (named.model, named.plan, named.stack)
    assert predicted_case(named)["predicted"] == predicted_case(other)["predicted"]


@pytest.mark.parametrize(
    ("params", "gated", "tied"),
    # 10 layers of n = 1,024: 4 n² of attention and 8 or 12 n² of the rest, and 50,000 n once or twice
    [("1.772e8", False, True), ("2.284e8", False, False), ("2.191e8", True, True), ("2.703e8", True, False)],
)
def test_parameters_decide_between_gates_and_tied_heads(params: str, gated: bool, tied: bool):
    shape = {"layers": "10", "hidden": "1024", "heads": "8", "ffn": "4096", "vocab": "50000", "params": params}
    for name in ("Acme", "Llama-X", "GPT-X"):
        found = row_model({"model": name, **shape}, [])
        assert (found.gated, found.tied, found.kv) == (gated, tied, 8)
    assert row_model({"model": "Acme", **shape, "gated": "no", "tied": "yes", "kv_heads": "4"}, []).kv == 4


def test_columns_or_notes_describe_experts():
    shape = {"model": "Acme-30B-A3B", "layers": "48", "hidden": "2048", "heads": "32", "vocab": "151936"}
    with pytest.raises(EtudeError, match="mixture of experts by its name"):
        row_model(shape, [])
    dense = {"layers": "32", "hidden": "4096", "heads": "32", "ffn": "14336", "vocab": "32000"}
    assert row_model({"model": "Acme", **dense}, []).name == "mistral-7b"
    assert row_model({"model": "Acme-8x7B", **dense}, []).name == "mixtral-8x7b"
    columns = row_model({**shape, "experts": "128", "top_k": "8", "expert_ffn": "768", "shared_ffn": "768"}, [])
    said: list[str] = []
    noted = row_model({**shape, "notes": "MoE: 128 experts, top-8, expert ffn 768, shared 1, dense layers 0"}, said)
    assert said[0] == "experts as the notes say"
    for found in (columns, noted):
        assert (found.experts, found.top_k, found.expert_ffn, found.shared_ffn, found.gated) == (128, 8, 768, 768, True)
    whole = row_model({**shape, "params": "3.05e10", "ffn": "6144"}, [])
    assert whole.name == "qwen3-30b-a3b"


def test_adapters_are_priced_without_gradients_of_frozen_weights():
    """Of the three products of a weight the one for its gradient goes; what is left is more than half of the step."""
    full = case(tp="2", gpus="8")
    by_name, by_column = case(tp="2", gpus="8", model="Llama-2-7B (LoRA)"), case(tp="2", gpus="8", train="lora")
    noted = case(tp="2", gpus="8", train="lora", notes="rank 64")
    assert (
        isinstance(full, Case) and isinstance(by_name, Case) and isinstance(by_column, Case) and isinstance(noted, Case)
    )
    assert (by_name.plan, by_name.model) == (by_column.plan, full.model)
    assert (by_name.plan.train, noted.plan.train, full.plan.train) == ("lora:16:qkv", "lora:64:qkv", "all")
    assert any("adapters of rank 16" in text for text in by_name.assumed)
    ahead = [replace(one, plan=one.plan.replace(host_ns=0)) for one in (full, by_name)]
    times = [predicted_case(one)["predicted"]["step"] for one in ahead]
    assert 0.6 < times[1] / times[0] < 0.9
    flops = [step_flops(one.model, one.plan.replace(seq=1), hardware=False) for one in (full, by_name)]
    assert flops[1] / flops[0] == pytest.approx(4 / 6, rel=1e-3)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"model": "Llama-2-7B QLoRA"}, "QLoRA is not priced"),
        ({"train": "dpo"}, "more than one pass"),
        ({"notes": "DPO with a frozen reference"}, "more than one pass"),
        ({"train": "the best part"}, "is not known"),
        ({"model": "Llama-2-7B frozen"}, "is not known"),
        ({"precision": "posit8"}, "the precision `posit8` is not known"),
    ],
)
def test_what_is_trained_and_is_not_priced_is_refused_by_name(more: dict[str, str], said: str):
    found = case(**more)
    assert isinstance(found, Refused)
    assert said in found.why


def test_four_bits_are_faster_than_eight_where_units_have_them():
    steps = {}
    for precision in ("bf16", "fp8-mx", "nvfp4"):
        found = case(gpu_type="B200", precision=precision, stack="megatron-bridge")
        assert isinstance(found, Case)
        ahead = replace(found, plan=found.plan.replace(host_ns=0))
        steps[precision] = predicted_case(ahead)["predicted"]["step"]
    assert steps["nvfp4"] < 0.8 * steps["fp8-mx"] < 0.7 * steps["bf16"]


def test_products_of_four_bits_without_units_for_them_are_said():
    found = predict_rows([ROW | {"precision": "nvfp4"}])[0]
    assert [note for note in found["assumed"] if "has no units for fp4" in note]


@pytest.mark.parametrize(("name", "text"), [("gpus", "8.5"), ("layers", "-32"), ("lora_rank", "x"), ("dp", "1.5")])
def test_counts_are_whole_numbers(name: str, text: str):
    row = ROW | {"model": "Acme LoRA", "hidden": "4096", "layers": "32"} | {name: text}
    if name == "dp":
        row["gpus"] = ""
    (found,) = cases_of([row])
    assert isinstance(found, Refused)
    assert found.why == f"`{text}` of `{name}` is not a whole number"


def test_columns_that_change_nothing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "rows.csv"
    row = {"comment": "mine", "globalbatch": "64", "source": ""} | ROW
    path.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    assert main(["predict", "rows", str(path)]) == 0
    assert "columns that are not read: `comment`, `globalbatch`\n" in capsys.readouterr().err


def test_stacks_by_their_release():
    for name in ("NVIDIA NeMo Framework Release 25.04", "nemo-25.04"):
        found = case(stack=name, year="")
        assert isinstance(found, Case)
        assert (found.stack.name, found.year) == ("nemo", 2025)
        assert f"stack nemo for `{name}`" in found.assumed


def test_columns_that_do_not_divide_are_padded():
    shape = {**SHAPED, "model": "odd", "ffn": "10923", "params": "", "tp": "2"}
    found = case(**shape)
    assert isinstance(found, Case)
    assert found.model.ffn == 10924
    assert "feed-forward padded from 10,923 to 10,924 columns for 2 tensor-parallel ranks" in found.assumed
    assert "predicted" in predicted_case(found)


def test_notes_say_that_a_run_was_eager():
    found = case(stack="torchtitan", notes="FSDP eager; local batch 2")
    assert isinstance(found, Case)
    assert found.plan.unfused == "activation,norm"
    other = case(stack="torchtitan", notes="FSDP+compile")
    assert isinstance(other, Case)
    assert other.plan.unfused == ""


def test_the_value_of_a_row_changes_no_rule():
    plain, other = case(), case(value="400")
    assert isinstance(plain, Case)
    assert isinstance(other, Case)
    assert plain.plan == other.plan


def test_an_empty_or_unknown_stack_is_the_default_and_says_so():
    for name in ("", "what is this"):
        found = case(stack=name)
        assert isinstance(found, Case)
        assert found.stack.name == "default"
        assert any("default stack" in text for text in found.assumed)


def test_notes_say_what_is_sharded():
    sharded = case(notes="FSDP FULL_SHARD", stack="llm-foundry")
    assert isinstance(sharded, Case)
    assert sharded.plan.zero == 3
    first = case(notes="FSDP (ZeRO-1-like resharding)", stack="llm-foundry")
    assert isinstance(first, Case)
    assert first.plan.zero == 1


def test_unsaid_axes_are_chosen_to_fit():
    found = case(model="GPT-3-175B", gpus="1024", tp="", pp="", micro_batch="", global_batch="1536", seq="2048")
    assert isinstance(found, Case)
    assert found.plan.tp * found.plan.pp >= 16  # 175B parameters, 16 bytes each, in 80 GB


def test_a_row_that_cannot_be_is_refused_alone():
    records = predict_rows(
        [{**ROW, "gpu_type": "abacus"}, {**ROW, "measured_metric": "bus bandwidth", "unit": "GB/s"}, ROW]
    )
    assert [r["row"] for r in records] == [1, 3]
    assert "abacus" in records[0]["refused"]
    assert records[1]["measured"] == {"step": 4.0}
    assert 1 < records[1]["predicted"]["step"] < 10


def test_many_micro_batches_are_a_straight_line():
    """Within half a percent of the whole step, with and without a pipeline."""
    m = LLAMA.replace(layers=8)
    for plan in (
        Plan(gpus=8, zero=1, micro_batch=1, global_batch=8 * 12, seq=4096),
        Plan(gpus=8, tp=2, pp=4, micro_batch=1, global_batch=32, seq=4096),
        Plan(gpus=8, zero=3, micro_batch=1, global_batch=8 * 7, seq=4096),
        Plan(gpus=8, tp=2, pp=4, micro_batch=1, global_batch=16, seq=4096, schedule="interleaved:2"),
    ):
        whole = predict(m, plan, H100, check=False).step_time_ns / 1e9
        assert step_time(m, plan, H100) == pytest.approx(whole, rel=0.005)


def test_rows_as_a_script_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows([ROW, {**ROW, "stack": ""}, {**ROW, "measured_metric": "time to train", "unit": "min"}])
    assert main(["predict", "--rows", str(path), "--json"]) == 0
    out = capsys.readouterr()
    rows = json.loads(out.out)["rows"]
    told = ["assumed", "basis", "high", "high_50", "low", "low_50", "measured", "predicted", "row", "stack"]
    assert [sorted(r) for r in rows] == [told, told, ["refused", "row"]]
    assert [r["row"] for r in rows] == [1, 2, 3]
    assert "2 rows predicted, 1 rejected" in out.err


@pytest.mark.parametrize(("text", "problem"), [("", "has no rows"), ("model,unit\na,b\n", "no column `gpu_type`")])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str, problem: str):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(EtudeError, match=problem):
        read_rows(path)
    with pytest.raises(EtudeError, match="cannot be read"):
        read_rows(tmp_path / "none.csv")
