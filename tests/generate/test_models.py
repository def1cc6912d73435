"""Models: parameters as published, and what a description may say."""

import pytest

from etude.errors import UsageError
from etude.generate.build import local_of, sequence_of
from etude.generate.families import blocks_of
from etude.generate.hugging_face import from_config
from etude.generate.model import Model, model, names
from etude.generate.plan import Plan

SCALE = {"B": 10**9, "M": 10**6}


def params_of(m: Model, **plan: int) -> int:
    made = Plan.from_dict({"seq": sequence_of(m), **plan})
    return sum(block.params for block in blocks_of(m, local_of(m, made)))


@pytest.mark.parametrize("name", names())
def test_parameters_are_those_published(name: str):
    m = model(name)
    found = params_of(m)
    if m.params.isdigit():
        assert found == int(m.params)
    else:  # published rounded
        digits = len(m.params.partition(".")[2]) - 1
        assert round(found / SCALE[m.params[-1]], digits) == float(m.params[:-1])


def test_parameters_do_not_depend_on_the_plan():
    assert params_of(model("llama3-8b"), gpus=8, tp=8) == int(model("llama3-8b").params)
    assert params_of(model("mixtral-8x7b"), gpus=8, ep=8) == int(model("mixtral-8x7b").params)


CONFIGS = {
    "llama3-8b": {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "sliding_window": 131072,
        "use_sliding_window": False, "tie_word_embeddings": False,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
        "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
        "moe_layer_freq": 1, "vocab_size": 129280, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128, "v_head_dim": 128,
    },
    "gpt2": {
        "model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024,
    },
    "bert-base": {
        "model_type": "bert", "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12,
        "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_hugging_face_configs_are_the_models_of_the_catalogue(name: str):
    assert params_of(from_config(CONFIGS[name])) == int(model(name).params)


def test_a_model_of_a_file(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text("{layers: 2, hidden: 8, heads: 2, ffn: 16, vocab: 10, seq: 4, gated: true}\n")
    assert model(path).name == "tiny"
    assert params_of(model(path)) == 2 * (4 * 8 * 8 + 3 * 8 * 16 + 2 * 8) + 8 + 2 * 10 * 8


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("layers: 2", "needs `hidden`"),
        ("{layers: 2, hidden: 8, heads: 3, ffn: 16, vocab: 10}", "not a multiple of 3 heads"),
        ("{layers: 2, hidden: 8, heads: 2, ffn: 16, vocab: 10, layer: 3}", "unknown key `layer`"),
        ("{layers: 2, hidden: 8, heads: 2, ffn: 16, vocab: 10, experts: 4}", "top_k 0 of 4"),
        ("[1]", "expected keys and values"),
        ("{model_type: mamba}", "'mamba'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_place(tmp_path, text: str, problem: str):
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=problem) as caught:
        model(path)
    assert "m.yaml" in str(caught.value)


def test_an_unknown_model_names_those_near():
    with pytest.raises(UsageError, match="llama3-70b"):
        model("llama-3-70b")
