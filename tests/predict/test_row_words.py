"""What words of a row say of its plan: every expectation is read off the text by hand."""

from typing import Any

import pytest

from etude.steps.measured.gpus import gpu_system
from etude.steps.measured.row_words import noted_fields, recompute_fields
from etude.steps.measured.rows import Case, case_or_refused

POLICIES = {"minimal": "selective:norm"}
MIXTURE = {"model": "mix", "layers": "16", "hidden": "2048", "heads": "16", "vocab": "32000", "experts": "64",
           "top_k": "4", "expert_ffn": "1024", "gpu_type": "H100-80GB", "gpus": "64", "tp": "1", "pp": "2", "ep": "32",
           "micro_batch": "1", "global_batch": "256", "seq": "2048", "value": "1", "unit": "s", "stack": "nemo-bridge",
           "measured_metric": "step time", "precision": "bf16", "year": "2026"}  # fmt: skip


def case(**changes: str) -> Case:
    found = case_or_refused({**MIXTURE, **changes}, 1)
    assert isinstance(found, Case), found
    return found


@pytest.mark.parametrize(
    ("notes", "zero"),
    [
        ("FSDP", 3),
        ("FSDP2 over all GPUs", 3),
        ("FULL_SHARD", 3),
        ("FSDP On, GA 4", 3),
        ("ETP 1, EDP 1, FSDP /, GA 128", None),
        ("FSDP off", None),
        ("FSDP: no", None),
        ("no FSDP", None),
        ("without FSDP, ZeRO-1", 1),
        ("FSDP=0", None),
        ("no ZeRO-3, FSDP", 3),
        ("distributed optimizer", None),
    ],
)
def test_what_notes_say_to_be_absent_is_absent(notes: str, zero: int | None):
    assert noted_fields(notes, tp=1, gated=True).get("zero") == zero


@pytest.mark.parametrize(
    ("stack", "notes", "zero"),
    [("PyTorch FSDP", "", 3), ("xla-fsdp", "", 3), ("DeepSpeed ZeRO-2", "", 2), ("DeepSpeed ZeRO 3", "ZeRO-1", 1),
     ("DeepSpeed", "", None)],
)  # fmt: skip
def test_the_name_of_a_stack_says_what_is_sharded_where_notes_do_not(stack: str, notes: str, zero: int | None):
    assert noted_fields(notes, tp=1, gated=True, stack=stack).get("zero") == zero


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", None),
        ("none", "none"),
        ("none stated", None),
        ("not stated", None),
        ("full", "full"),
        ("selective", "selective"),
        ("selective, sequence parallel", "selective"),
        ("norm, act", "selective:norm,activation"),
        ("selective (layernorm, moe)", "selective:norm,experts"),
        ("mla_up_proj", "selective:latent"),
        ("core_attn + moe_act", "selective:attention,activation"),
        ("minimal", "selective:norm"),
        ("sometimes", None),
    ],
)
def test_words_for_recomputation(text: str, kind: str | None):
    assert recompute_fields(text, POLICIES, []).get("recompute") == kind


def test_a_part_that_is_not_priced_is_said():
    said: list[str] = []
    assert recompute_fields("norm, shared_expert", {}, said) == {"recompute": "selective:norm"}
    assert said == ["of what is recomputed, `shared_expert` is not priced"]
    assert recompute_fields("sometimes", {}, said) == {}
    assert said[-1] == "recomputation `sometimes` is not known: as if it said nothing"


def test_a_token_goes_to_each_node_once_where_its_stack_or_its_notes_say_so():
    # 32 ranks with experts on nodes of 8; on racks of 72 all of them are in one domain
    assert case().plan.ep_node == 8
    assert case(gpu_type="GB200").plan.ep_node == 32
    assert case(notes="dispatcher A2A").plan.ep_node == 0
    assert case(stack="megatron-core").plan.ep_node == 0
    assert case(stack="megatron-core", notes="dispatcher DeepEP").plan.ep_node == 8


def test_notes_and_releases_say_what_overlaps():
    assert case().plan.schedule.startswith("interleaved")
    assert case(notes="dispatcher A2A, 1f1b overlap").plan.schedule.startswith("paired")
    deepseek = {
        "model": "DeepSeek-V3",
        "gpu_type": "GB300",
        "layers": "61",
        "hidden": "7168",
        "gpus": "256",
        "heads": "",
        "vocab": "",
        "experts": "",
        "top_k": "",
        "expert_ffn": "",
        "interleave": "4",
        "precision": "fp8-mx",
    }
    before, since = case(**deepseek), case(**deepseek, notes="container 26.06.01; dropless")
    assert before.plan.schedule.startswith("interleaved")
    assert before.plan.host_ns > 0
    assert since.plan.schedule.startswith("paired")
    assert (since.plan.host_ns, since.plan.recompute) == (0, "none")


def test_exchanges_overlap_another_micro_batch_without_a_pipeline_too():
    alone = {"pp": "1", "notes": "dispatcher A2A, 1f1b overlap"}
    assert case(**alone).plan.schedule == "paired:1"
    assert case(pp="1").plan.schedule == "1f1b"


def test_dropped_tokens_give_experts_a_capacity():
    assert case().plan.capacity == 0.0
    assert case(notes="fp8-cs; token-drop MoE; 128 experts").plan.capacity == 1.0
    assert case(notes="token-dropless, router load force-balanced").plan.capacity == 0.0


def test_since_26_06_recipes_of_experts_are_one_graph():
    qwen = {
        "model": "Qwen3-30B-A3B",
        "layers": "48",
        "hidden": "2048",
        "heads": "32",
        "vocab": "",
        "experts": "",
        "top_k": "",
        "expert_ffn": "",
        "gpu_type": "GB300",
        "stack": "megatron-bridge",
        "precision": "fp8",
    }
    before, since = case(**qwen, notes="container 26.04"), case(**qwen, notes="container 26.06")
    assert before.plan.host_ns > 0 and before.plan.schedule.startswith("interleaved")
    assert since.plan.host_ns == 0 and since.plan.schedule.startswith("paired")


def test_products_in_4_bits_do_not_overlap_tensor_parallel_collectives():
    llama = {
        "model": "Llama-3-70B",
        "layers": "80",
        "hidden": "8192",
        "heads": "64",
        "ffn": "28672",
        "vocab": "128256",
        "experts": "",
        "top_k": "",
        "expert_ffn": "",
        "ep": "1",
        "tp": "2",
        "gpu_type": "GB200",
        "gpus": "64",
        "stack": "megatron-bridge",
    }
    assert case(**llama, precision="fp8").plan.tp_chunks == 2
    assert case(**llama, precision="nvfp4").plan.tp_chunks == 1


def test_of_a_rack_of_72_a_job_of_several_has_64():
    def first(found: Case) -> int:
        return found.system.levels[0].size

    assert first(case(gpu_type="GB200", gpus="64")) == 72  # one rack: any part of it
    several = case(gpu_type="GB200", gpus="128")
    assert first(several) == 64
    assert "64 of the 72 GPUs of each nvlink domain" in several.assumed
    assert first(case(gpus="128")) == 8


@pytest.mark.parametrize(
    ("name", "system", "node"),
    [
        ("Trainium1 NeuronCore-v2", "trn1", 32),
        ("NVIDIA B300", "dgx-b300", 8),
        ("Blackwell (type not stated, ~184 GiB)", "dgx-b200", 8),
    ],
)
def test_accelerators_of_tables(name: str, system: str, node: int):
    found = gpu_system(name)
    assert found.name == system
    inside = found.levels[:-1]
    product = 1
    for level in inside:
        product *= level.size
    assert product == node


def test_the_size_in_a_name_stands_for_parameters():
    shape: dict[str, Any] = dict.fromkeys(("layers", "hidden", "heads", "vocab", "experts", "top_k", "expert_ffn"), "")
    found = case(**shape, model="Zeta2.5-14B SFT (full)", pp="1", ep="1")
    # width = 128 layers, 12 layers x width^2: (14e9 x 128 / 12)^(1/3) = 5305, in heads of 128: 41 x 128; 42.4 layers
    assert (found.model.layers, found.model.hidden) == (42, 5248)
    assert "14 billion parameters, by its name" in found.assumed
    refused = case_or_refused({**MIXTURE, **shape, "model": "Zeta-30B-A3B"}, 1)
    assert not isinstance(refused, Case)


def test_heads_of_a_guessed_shape_are_shared_by_its_ranks():
    shape: dict[str, Any] = dict.fromkeys(("layers", "hidden", "heads", "vocab", "experts", "top_k", "expert_ffn"), "")
    # 23e9 x 128 / 12 = 2.453e11, its cube root 6261: 6.1 times 8 heads of 128 each; 23e9 / (12 x 6144^2) = 50.8 layers
    found = case(**shape, model="GPT-23B", tp="8", pp="1", ep="1", gpu_type="B200")
    assert (found.model.hidden, found.model.heads, found.model.layers) == (6144, 48, 51)


def test_the_time_of_a_step_needs_a_batch():
    refused = case_or_refused({**MIXTURE, "micro_batch": "", "global_batch": ""}, 1)
    assert not isinstance(refused, Case)
    assert refused.why == "the time of a step of an unknown batch"
    tokens = {"unit": "tok/s/GPU", "measured_metric": "tokens/s per GPU", "value": "1000"}
    assert case(**tokens, micro_batch="", global_batch="").plan.batch > 0
