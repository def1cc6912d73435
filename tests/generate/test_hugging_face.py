"""Configs of Hugging Face: parameters as the published weights have them, and what is not understood is refused."""

import json
from pathlib import Path

import pytest

from etude.base.errors import UsageError
from etude.make.generate.blocks.families import blocks_of
from etude.make.generate.model.hugging_face import READERS, from_config
from etude.make.generate.model.open import open_model
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import sequence_of, shard_of

CONFIGS = json.loads(Path(__file__).with_name("hugging_face.json").read_text())
LLAMA = CONFIGS["llama3.1-8b"][1]


def params_of(m: Model) -> int:
    return sum(block.params for block in blocks_of(m, shard_of(m, Plan(seq=sequence_of(m)))))


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_the_published_weights(name: str):
    params, config = CONFIGS[name]
    assert params_of(from_config(config)) == params


def test_the_layer_that_predicts_further_tokens_is_built():
    """DeepSeek-V3: 671B and a module of 11.6B beside the embedding and the head that it shares with the model."""
    given = CONFIGS["deepseek-v3"][1]
    with_it, without = (params_of(from_config(given | {"num_nextn_predict_layers": n})) for n in (1, 0))
    assert without == 671_026_419_200
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168 + 1536 + 512
    experts = 257 * 3 * 7168 * 2048 + 256 * 7168 + 256
    assert with_it - without == attention + experts + 2 * 7168 * 7168 + 5 * 7168


def test_windows_are_those_of_the_layers():
    def windows(name: str) -> list[int]:
        m = from_config(CONFIGS[name][1])
        return [m.window_of(i) for i in range(7)]

    assert windows("mistral-7b") == [4096] * 7
    assert windows("gemma2-9b") == [4096, 0, 4096, 0, 4096, 0, 4096]
    assert windows("gemma3-1b") == [512, 512, 512, 512, 512, 0, 512]
    assert windows("gpt-oss-20b") == [128, 0, 128, 0, 128, 0, 128]
    assert windows("qwen2.5-7b") == [0] * 7


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model_type": "rwkv"}, "`model_type` 'rwkv'"),
        ({"model_type": "ovis2", "text_config": {}}, "`model_type` ovis2: a model of several towers"),
        ({"hidden_size": None}, "key `hidden_size` is missing"),
        ({"hidden_size": "big"}, "`hidden_size` big: expected a number"),
        ({"num_hidden_layers": -2}, "`num_hidden_layers` -2"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "`architectures`"),
        ({"layer_types": ["linear_attention"]}, "`linear_attention` is not supported"),
        ({"num_local_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [3]}, "`mlp_only_layers`"),
        ({"num_local_experts": 8}, "key `num_experts_per_tok` is missing"),
    ],
)
def test_a_config_that_is_not_understood_is_refused_by_its_key(changes: dict, problem: str):
    with pytest.raises(UsageError, match=problem):
        from_config(LLAMA | changes)


def test_a_diffusion_transformer_is_the_one_of_the_catalogue():
    for name in ("wan2.1-1.3b", "wan2.1-14b"):
        read, known = from_config(CONFIGS[f"{name}, diffusers"][1]), open_model(name)
        assert (read.streams, read.blocks) == (known.streams, known.blocks)
    native, diffusers = (from_config(CONFIGS[f"wan2.2-5b, {kind}"][1]) for kind in ("native", "diffusers"))
    assert native.replace(name="") == diffusers.replace(name="")


WAN = CONFIGS["wan2.1-14b, diffusers"][1]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (WAN | {"image_dim": 1280}, "`image_dim` 1280: a second cross-attention"),
        (WAN | {"patch_size": [2, 2, 2]}, "`patch_size`"),
        (
            WAN | {"_class_name": "WanPipeline"},
            "`_class_name` WanPipeline: .*\nhint: save its `transformer/config.json`",
        ),
        (WAN | {"_class_name": "MochiTransformer3DModel"}, "`_class_name` 'MochiTransformer3DModel' is not supported"),
        ({"_class_name": "WanModel", "model_type": "i2v"}, "`model_type` i2v: whether it attends to an image"),
        ({"model_type": "gemma3n", "text_config": {}}, "a `gemma3n` model has layers that are not supported: .*AltUp"),
        ({"model_type": "gemma3n_text"}, "a `gemma3n_text` model"),
        (CONFIGS["kimi_linear, 1"][1] | {"layer_types": None}, "`layer_types` None: which layers have attention"),
        (CONFIGS["kimi_linear, 1"][1] | {"mla_use_output_gate": True}, "`mla_use_output_gate`"),
        (CONFIGS["kimi_linear, 1"][1] | {"mlp_layer_types": ["sparse"]}, "`mlp_layer_types`"),
        (CONFIGS["hunyuan_v1_moe, 1"][1] | {"moe_topk": [1, 2, 2]}, "`moe_topk` .*: layers of several shapes"),
        (CONFIGS["hunyuan_v1_moe, 1"][1] | {"use_cla": True}, "`use_cla`"),
        (CONFIGS["ernie4_5_moe, 1"][1] | {"use_bias": True}, "`use_bias`"),
        (CONFIGS["glm_moe_dsa, 1"][1] | {"indexer_types": ["full", "shared"]}, "`indexer_types` .*: layers that share"),
    ],
)
def test_what_is_not_built_is_refused_and_nothing_similar_taken(config: dict, problem: str):
    with pytest.raises(UsageError, match=problem):
        from_config(config)


def test_a_layer_that_is_left_out_is_said():
    given = CONFIGS["ernie4_5_moe, 1"][1]
    assert from_config(given).assumed == ""
    assert from_config(given | {"num_nextn_predict_layers": 1}).assumed == "no layers that predict further tokens"


def test_a_tower_with_more_than_is_built_is_refused_by_its_key():
    tower = {"model_type": "siglip_vision_model", "hidden_size": 8, "image_size": 28, "patch_size": 14}
    with pytest.raises(UsageError, match="vision_use_head"):
        from_config(
            {"model_type": "gemma3", "text_config": LLAMA | {"model_type": "gemma3_text"}, "vision_config": tower}
        )
    sizes = {"hidden_size": 8, "image_size": 28, "patch_size": 14, "projector_input_dim": 4, "projector_output_dim": 4}
    with pytest.raises(UsageError, match="`intermediate_size` 30"):
        llama4 = json.loads(json.dumps(CONFIGS["llama4_text, 1"][1]))
        from_config({"model_type": "llama4", "text_config": llama4, "vision_config": sizes | {"intermediate_size": 30}})
    with pytest.raises(UsageError, match="`hybrid_override_pattern`"):
        from_config({"model_type": "nemotron_h", "hybrid_override_pattern": "MX", "hidden_size": 8})


def test_every_model_type_that_is_read_has_a_count_of_another_program():
    counted = {config.get("_class_name", config.get("model_type")) for _, config in CONFIGS.values()}
    aliases = {"kimi_k2", "mt5", "camembert", "xlm-roberta", "gpt-sw3", "qwen3_vl_text", "qwen3_vl_moe_text"}
    aliases |= {"qwen3_omni_moe", "qwen3_omni_moe_text", "qwen3_omni_moe_thinker", "gemma3", "llama4"}  # the catalogue
    aliases |= {"nemotron_h", "deepseek_v32", "qwen3_next", "jamba", "Flux2Transformer2DModel"}
    assert sorted(set(READERS) - counted - aliases) == []
