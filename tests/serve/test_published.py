"""Rows of published serving: engines by name, precisions, stages; worked by hand."""

from typing import Any

import pytest

from etude.base.errors import UsageError
from etude.machine import open_device, open_system
from etude.make.generate.model import open_model
from etude.steps.measured import gpu_system
from etude.world.serve import Engine, deployed
from etude.world.serve.catalogue import pass_tables
from etude.world.serve.deployment import VLLM_SHARE, MemoryShare, _blocks, expert_params, replica_plan
from etude.world.serve.measured.engines import bench_limits, engine_of
from etude.world.serve.measured.published import _load, _split, predicted_row
from etude.world.serve.network import staged_ns
from etude.world.serve.pass_time import times_ns
from etude.world.serve.stacks import ServingStack, serving_stack
from etude.world.serve.steps import PassContent

ROW = {
    "model": "openai-community/gpt2", "gpu_type": "H100", "gpus": "1", "tp": "1", "weight_precision": "bf16",
    "engine": "vLLM", "input_tokens": "64", "output_tokens": "8", "load": "static batch", "max_batch": "2",
    "ttft_s": "0.01", "tpot_s": "0.001",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "version", "device", "tokens", "mixed"),
    [
        ("vLLM", "", "h100", 8192, True),
        ("vllm", "0.12.0", "a100", 2048, True),
        ("vllm", "0.12.0", "rtx4090", 2048, True),
        ("vLLM", "2024 (not stated)", "h100", 2048, False),
        ("vllm", "0.6.3", "h100", 2048, False),
        ("sglang", "0.5.6", "h100", 8192, False),
        ("SGLang", "0.5.6", "b200", 16384, False),
        ("TensorRT-LLM", "1.0.0rc3", "b200", 8192, True),
        ("TRT-LLM", "", "a100", 8192, True),
        ("of my own", "", "h100", 8192, True),
    ],
)
def test_rules_of_engines_by_name_version_and_device(name: str, version: str, device: str, tokens: int, mixed: bool):
    found = engine_of(name, version, open_device(device))
    assert (found.max_num_batched_tokens, found.mixed) == (tokens, mixed)
    assert found.reserve == found.kv_as_weights == (found.name == "TensorRT-LLM")


@pytest.mark.parametrize(
    ("name", "version", "stack"),
    [
        ("vLLM", "2024 (not stated)", "vllm-2024"),
        ("vllm", "0.6.3", "vllm-2024"),
        ("vllm", "0.19.0", "vllm-0.12"),
        ("vllm", "", "vllm-0.12"),
        ("sglang", "0.5.6", "sglang"),
        ("TensorRT-LLM", "0.17", "tensorrt-llm"),
        ("TensorRT-LLM", "2024 (not stated)", "tensorrt-llm"),
        ("TensorRT-LLM", "1.0.0rc3", "tensorrt-llm-1.0"),
        ("TRT-LLM", "", "tensorrt-llm-1.0"),
        ("not stated in the repository", "2023", "eager-2023"),
        ("not stated", "", "vllm"),
    ],
)
def test_stacks_of_engines_by_name_and_version(name: str, version: str, stack: str):
    found = engine_of(name, version, open_device("h100")).stack
    assert found == stack
    assert serving_stack(found, "h100").source


def test_a_pass_without_graphs_takes_what_the_host_takes_to_launch_its_kernels():
    """GPT-2 on an H100, decoding one sequence: its kernels at 16 us each are far above the device's time, and then the
    engine has 13.5 ms of its own."""
    model, engine = open_model("gpt2"), Engine()
    placed = deployed(model, replica_plan(model, 1), open_system("dgx-h100"), engine, stack="eager-2023")
    kernels = placed.cost.floor_ns[3] / 1250  # gaps of 1,250 ns
    decode = PassContent(0, 0.0, 1, 100, 1, 100)
    assert times_ns(placed.cost, [decode])[0] == pytest.approx(16_000 * kernels + 13_500_000, abs=1)


def test_casts_in_other_kernels_leave_as_many_kernels_as_a_wide_pass_has():
    """GPT-2 has four products in each of 12 layers, and casts the input of each."""
    model, system = open_model("gpt2"), open_system("dgx-h100")
    wide, narrow = (pass_tables(model, replica_plan(model, 1, precision=one), system) for one in ("bf16", "fp8"))
    assert (wide.kernels[1], narrow.kernels[1]) == (0, 48)
    assert narrow.kernels[0] - 48 == wide.kernels[0]
    apart, fused = (narrow.step_cost(ServingStack(kernel_ns=1000.0, casts=casts)) for casts in (1.0, 0.0))
    assert apart.floor_ns[3] - fused.floor_ns[3] == 48_000
    assert all(apart.layers_ns > fused.layers_ns)


def test_the_row_says_whose_rules_it_took():
    said = predicted_row({**ROW, "engine": "TensorRT-LLM", "load": "closed loop", "concurrency": "2"}).assumed
    assert "stack tensorrt-llm-1.0 for the engine `TensorRT-LLM`" in said
    rules = "rules of the engine: TensorRT-LLM's, prompts share passes with tokens out"
    assert any(text.startswith(rules) for text in said)


def test_keys_and_values_of_tensorrt_llm_take_the_bits_of_narrow_weights():
    wide = predicted_row({**ROW, "weight_precision": "fp8"}).assumed
    narrow = predicted_row({**ROW, "weight_precision": "fp8", "engine": "TensorRT-LLM"}).assumed
    assert "keys and values in the precision of the computation" in wide
    assert "keys and values in fp8, as checkpoints in 8 or 4 bits have them" in narrow


def test_weights_in_four_bits_are_read_sooner_than_in_sixteen():
    """A token of Llama 3 8B reads 15 GB in bf16 and 5 GB in fp4, whose embedding and head keep 16 bits; gaps stay."""
    row = {**ROW, "model": "meta-llama/Meta-Llama-3-8B", "gpu_type": "B200", "max_batch": "1"}
    wide, narrow = (predicted_row({**row, "weight_precision": one}).predicted["tpot_s"] for one in ("bf16", "nvfp4"))
    assert 0.3 < narrow / wide < 0.9


def test_four_bits_of_a_dense_model_are_refused_and_of_experts_packed():
    with pytest.raises(UsageError, match="weights in int4 of a model without experts are not predicted"):
        predicted_row({**ROW, "weight_precision": "int4"})
    said = predicted_row({**ROW, "model": "openai/gpt-oss-20b", "weight_precision": "fp4"}).assumed
    assert "fp4: experts in mxfp4, as they are published, and the rest in 16 bits" in said
    assert "mxfp4: experts take 4.25 bits per weight, the rest is bf16" in said


def test_parameters_of_experts():
    """Mixtral: 32 layers of 8 experts of three products, 4,096 x 14,336."""
    assert expert_params(open_model("mixtral-8x7b")) == 32 * 8 * 3 * 4096 * 14336
    assert expert_params(open_model("gpt2")) == 0


def placed(pp: int) -> Any:
    model = open_model("gpt2")
    return deployed(model, replica_plan(model, 1), open_system("dgx-h100"), Engine(), stack="none", pp=pp)


def test_two_stages_hold_half_of_the_weights_each():
    """124,439,808 parameters of 2 bytes, half of them elsewhere; a block of 16 tokens takes 12 x 2 x 768 x 2 x 16
    bytes."""
    one, two = placed(1), placed(2)
    assert (one.weights_bytes, two.weights_bytes) == (248_879_616, 124_439_808)
    assert abs(two.blocks - one.blocks - 124_439_808 / 589_824) < 1


def test_stages_send_their_tokens_on():
    """100 tokens of 768 values in 2 bytes over 450 GB/s after 700 ns, once between two stages, thrice between four; 16
    stages take the network between machines: 50 GB/s after 2 us."""
    model, system = open_model("gpt2"), open_system("dgx-h100")
    assert staged_ns(model, system, 1, 2, 100) == pytest.approx(700 + 153_600 / 450)
    assert staged_ns(model, system, 1, 4, 100) == pytest.approx(3 * (700 + 153_600 / 450))
    assert staged_ns(model, system, 1, 16, 100) == pytest.approx(15 * (2000 + 153_600 / 50))
    assert staged_ns(model, system, 2, 2, 100) == pytest.approx(700 + 76_800 / 450)
    plain, staged = placed(1).cost, placed(2).cost
    # 50,257 x 768 weights of the logits, in 2 bytes at 3.35 TB/s x 0.917, are read on the last stage.
    logits_ns = 50_257 * 768 * 2 / (3350 * 0.917)
    assert (staged.head_ns - plain.head_ns).tolist() == pytest.approx([logits_ns] * len(plain.head_ns))
    sent = staged.layers_ns - plain.layers_ns + logits_ns
    assert sent.tolist() == pytest.approx([700 + tokens * 1536 / 450 for tokens in plain.tokens])


@pytest.mark.parametrize(
    ("prompt", "output", "requests"),
    [(128, 128, "30,000"), (1024, 1024, "3,000"), (1024, 8192, "1,500"), (2048, 2048, "1,500"), (20000, 2000, "1,000")],
)
def test_requests_that_are_all_there_at_the_start_are_fewer_the_longer_they_are(
    prompt: int, output: int, requests: str, monkeypatch: pytest.MonkeyPatch
):
    """As TensorRT-LLM's performance pages say they measure."""
    seen: list[str] = []
    monkeypatch.setattr("etude.world.serve.measured.published._equal", lambda count, *_: seen.append(f"{count:,}"))
    row = {**ROW, "load": "offline, all at once", "input_tokens": str(prompt), "output_tokens": str(output)}
    _load(row, 1, engine_of("TensorRT-LLM", "0.17", open_device("h100")), [])
    assert seen == [requests]


def test_an_engine_takes_its_part_of_the_memory_that_weights_leave_or_of_all():
    """GPT-2 with 1,000 MB beside 600 MB of weights and passes: 90% of all leaves 300 MB, 95% of the rest 380 MB; a
    block takes 10 MB."""
    shares = VLLM_SHARE, MemoryShare(fraction=0.95, of_rest=True)
    taken = [_blocks("gpt2", 10**9, 500e6, 100e6, 10e6, share) for share in shares]
    assert taken == [30, 38]
    at_once, served = (
        engine_of("TensorRT-LLM", "1.0", open_device("h100"), at_once=one).share for one in (True, False)
    )
    assert (at_once.fraction, served.fraction, at_once.of_rest, served.of_rest) == (0.95, 0.9, True, True)
    assert engine_of("vllm", "0.12", open_device("h100"), at_once=True).share == VLLM_SHARE


@pytest.mark.parametrize(
    ("model", "params", "device", "more", "limits"),
    [
        # 122 x 128 heads x 56 = 874,496 bytes a token, as if DeepSeek's latents were whole heads; 8 GPUs of 141 GB
        # less 671 GB of weights, of which 95%: 433,200,000,000 / (874,496 x 9,216) = 53.8 requests, 60.5 tokens.
        ("deepseek-v3", 671e9, "h200", {"precision": "fp8", "ranks": 8, "prompt": 1024, "output": 8192}, (64, 2048)),
        # A prompt is not cut: 8,192 tokens and one for each sequence.
        ("deepseek-v3", 671e9, "h200", {"precision": "fp8", "ranks": 8, "prompt": 8192, "output": 1024}, (64, 8256)),
        # 160 x 8 heads x 128 = 163,840 bytes a token; 0.95 x (80 GB - 19.8 GB of weights in 4 bits, counted in pairs)
        # for 2,048 of them: 170 requests, in steps of 32, and 340 tokens.
        ("llama3-70b", 70.55e9, "h100", {"precision": "fp4", "ranks": 1, "prompt": 1024, "output": 1024}, (192, 2048)),
        # Four stages: 0.95 x (320 GB - 70.55 GB) for 4,096 tokens each, 353 requests, over four stages.
        ("llama3-70b", 70.55e9, "h100", {"precision": "fp8", "ranks": 1, "pp": 4, "prompt": 2048, "output": 2048},
         (96, 2144)),
    ],
)  # fmt: skip
def test_limits_of_a_pass_in_the_bench_of_tensorrt_llm(
    model: str, params: float, device: str, more: dict[str, Any], limits: tuple[int, int]
):
    assert bench_limits(open_model(model), params, open_device(device), kv_bytes=1.0, **{"pp": 1, **more}) == limits


def test_rows_of_tensorrt_llm_are_measured_with_the_limits_of_its_bench():
    row = {**ROW, "engine": "TensorRT-LLM", "load": "offline, all at once", "num_requests": "4", "max_batch": ""}
    del row["max_batch"], row["ttft_s"], row["tpot_s"]
    since = predicted_row({**row, "engine_version": "1.0", "output_tokens_per_s": "100"}).assumed
    # 12 layers of keys and values of 768: 36,864 bytes a token; 80 GB hold more than the 4,096 requests that it takes,
    # with 9 tokens each, and at most 32,768 tokens.
    assert any("max_num_seqs 4,096, max_num_batched_tokens 32,768" in line for line in since)
    before = predicted_row({**row, "engine_version": "0.17", "output_tokens_per_s": "100"}).assumed
    assert any("max_num_seqs 2,048, max_num_batched_tokens 8,192" in line for line in before)


def test_passes_with_prompts_have_no_graphs_in_tensorrt_llm_from_1_0_on():
    """GPT-2 on an H100: what the host takes to launch its kernels is a lower limit of a pass with a prompt alone."""
    model, engine = open_model("gpt2"), Engine()
    placed = deployed(model, replica_plan(model, 1), open_system("dgx-h100"), engine, stack="tensorrt-llm-1.0")
    decode, prompt = PassContent(0, 0.0, 8, 800, 8, 100), PassContent(8, 36.0, 0, 0, 1, 0)
    of_decode, of_prompt = times_ns(placed.cost, [decode, prompt])
    kernels = placed.cost.floor_ns[3] / 752  # gaps of 752 ns
    assert of_prompt == pytest.approx(65_446 * kernels + 14_012 + 412_792 + 7_212, abs=1)
    assert of_decode < of_prompt / 3


@pytest.mark.parametrize(
    ("version", "load", "more", "shared"),
    [
        ("1.0 (PyTorch backend)", "offline, all at once", {}, True),
        ("0.17", "offline, all at once", {}, False),
        ("1.0 (PyTorch backend)", "offline, all at once", {"ep": "2"}, False),
        ("1.0 (PyTorch backend)", "closed loop", {}, False),
    ],
)
def test_tensorrt_llm_measures_experts_with_requests_on_each_rank(
    version: str, load: str, more: dict[str, str], shared: bool
):
    row = {**ROW, "gpus": "2", "load": load, **more}
    rules = engine_of("TensorRT-LLM", version, open_device("h100"), at_once="at once" in load)
    found = _split(row, open_model("mixtral-8x7b"), rules, [])
    assert (found.copies, found.tp, found.ep) == ((2, 1, 2) if shared else (1, 2, int(more.get("ep", 1))))
    dense = _split(row, open_model("gpt2"), rules, [])
    assert (dense.copies, dense.tp, dense.ep) == (1, 2, 1)


def test_an_engine_has_its_own_work_on_each_stage():
    """Four stages with a quarter of the layers each: 412,792 ns for a pass and 7,212 for a sequence on each."""
    model, engine, system = open_model("gpt2"), Engine(), open_system("dgx-h100")
    one, four = (
        deployed(model, replica_plan(model, 1), system, engine, stack="vllm-0.12", pp=pp).cost for pp in (1, 4)
    )
    assert (four.engine_ns / 4).tolist() == one.engine_ns.tolist() == [412_792, 412_792, 7_212, 7_212]
    assert (four.floor_ns[4], one.floor_ns[4]) == (4 * 14_012, 14_012)
    assert four.floor_ns[:4].tolist() == one.floor_ns[:4].tolist()


def test_stages_of_a_row():
    row = {**ROW, "gpus": "2", "pp": "2"}
    found = predicted_row(row)
    assert "2 stages of layers: requests in 2 groups that follow one another through them" in found.assumed
    with pytest.raises(UsageError, match="1 copies of 2 stages on 3 GPUs"):
        predicted_row({**row, "gpus": "3"})


@pytest.mark.parametrize(
    ("name", "device", "memory_gb", "bandwidth_gb_s"),
    [
        ("GH200 480GB", "NVIDIA H100 SXM5 80GB", 96, 4000),
        ("RTX PRO 6000 Blackwell Server", "NVIDIA RTX PRO 6000 Blackwell Server Edition 96GB", 96, 1597),
        ("Intel Max 1550 (PVC)", "Intel Data Center GPU Max 1550 128GB, both tiles", 128, 3276.8),
        ("Gaudi 2", "Intel Gaudi 2 96GB", 96, 2450),
        ("H100 NVL", "NVIDIA H100 SXM5 80GB", 94, 3900),
        ("B300 SXM", "NVIDIA B300 SXM 288GB", 288, 8000),
    ],
)
def test_accelerators_of_tables(name: str, device: str, memory_gb: float, bandwidth_gb_s: float):
    found = gpu_system(name).device
    assert found.name == device
    assert found.memory_bytes == memory_gb * 1e9
    assert found.memory_bandwidth_bytes_per_s == pytest.approx(bandwidth_gb_s * 1e9)


def test_a_row_without_a_measured_figure_is_refused_with_the_columns():
    row = {name: value for name, value in ROW.items() if name not in ("ttft_s", "tpot_s")} | {"tokens_per_s": "900"}
    with pytest.raises(UsageError, match="no figure was measured") as problem:
        predicted_row(row)
    assert "output_tokens_per_s" in problem.value.hint
