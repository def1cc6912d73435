"""Models: parameters as published, and what a description may say."""

import pytest

from etude.base.errors import UsageError
from etude.make.generate.blocks.families import blocks_of
from etude.make.generate.model.open import model_ids, model_names, open_model
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import sequence_of, shard_of

SCALE = {"B": 10**9, "M": 10**6}


def params_of(m: Model, **plan: int) -> int:
    made = Plan.from_dict({"seq": sequence_of(m), **plan})
    return sum(block.params for block in blocks_of(m, shard_of(m, made)))


@pytest.mark.parametrize("name", model_names())
def test_parameters_are_those_published(name: str):
    m = open_model(name)
    found = params_of(m)
    if not m.params:  # nobody published a sum: the entry says of what it is made
        assert "as published" in m.source
        return
    if m.params.isdigit():
        assert found == int(m.params)
    else:  # published rounded
        digits = max(len(m.params.partition(".")[2]) - 1, 0)
        assert round(found / SCALE[m.params[-1]], digits) == float(m.params[:-1])


def test_parameters_do_not_depend_on_the_plan():
    assert params_of(open_model("llama3-8b"), gpus=8, tp=8) == int(open_model("llama3-8b").params)
    assert params_of(open_model("mixtral-8x7b"), gpus=8, ep=8) == int(open_model("mixtral-8x7b").params)


def test_a_model_of_a_file(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text("{layers: 2, hidden: 8, heads: 2, ffn: 16, vocab: 10, seq: 4, gated: true}\n")
    assert open_model(path).name == "tiny"
    assert params_of(open_model(path)) == 2 * (4 * 8 * 8 + 3 * 8 * 16 + 2 * 8) + 8 + 2 * 10 * 8


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("layers: 2", "needs `hidden`"),
        ("{layers: 2, hidden: 8, heads: 3, ffn: 16, vocab: 10}", "not a multiple of 3 heads"),
        ("{layers: 2, hidden: 8, heads: 2, ffn: 16, vocab: 10, layer: 3}", "unknown key `layer`"),
        ("{layers: 2, hidden: 8, heads: 2, ffn: 16, vocab: 10, experts: 4}", "top_k 0 of 4"),
        ("[1]", "expected keys and values"),
        ("{model_type: rwkv}", "'rwkv'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_place(tmp_path, text: str, problem: str):
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=problem) as caught:
        open_model(path)
    assert "m.yaml" in str(caught.value)


def test_an_unknown_model_names_those_near():
    with pytest.raises(UsageError, match="llama3-70b"):
        open_model("llama-3-70b")


# -- ids of Hugging Face -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params"),  # as the pages of the weights give them
    [
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", 480_154_875_392),
        ("Qwen/Qwen3-VL-8B-Instruct", 8_767_123_696),
        ("google/gemma-3-12b-it", 12_187_325_040),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 108_641_793_536),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", 8_888_227_328),
        ("openai/gpt-oss-120b", 116_829_156_672),
    ],
)
def test_an_id_of_hugging_face_is_a_model(name: str, params: int):
    m = open_model(name)
    assert (m.name, m.assumed) == (name.partition("/")[2], "")
    assert params_of(m) == params


def test_every_id_that_is_listed_opens():
    assert len(model_ids()) > 150
    assert not [one for one in model_ids() if open_model(one).assumed]
    assert open_model("qwen/qwen3-8b").layers == 36  # however it is spelt


def test_a_variant_of_a_known_model_has_its_shape_and_says_so():
    m = open_model("Qwen/Qwen3-8B-AWQ")
    assert m.replace(name="", assumed="") == open_model("Qwen/Qwen3-8B").replace(name="")
    assert m.assumed == "the shape: that of qwen3-8b, of which the id is a variant"


def test_a_copy_of_a_known_model_by_others_has_its_shape_and_says_so():
    m = open_model("unsloth/Qwen3-8B-AWQ")
    assert m.replace(name="", assumed="") == open_model("Qwen/Qwen3-8B").replace(name="")
    assert m.assumed == "the shape: that of qwen3-8b (qwen/qwen3-8b), whose name the id has"


@pytest.mark.parametrize(
    "name", ["some/model", "some/Foo-13B", "some/Qwen3-60B-A6B", "some/Mist-8x3B", "a/Wan2.3-A14B"]
)
def test_an_id_without_a_published_shape_is_refused_whatever_size_it_states(name: str):
    with pytest.raises(UsageError, match="has no published shape of it\nhint: give its config.json with --hf"):
        open_model(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("google/gemma-3n-E4B-it", "`gemma3n` model has layers that are not supported: several residual streams"),
        ("google/gemma-3n-E2B", "an embedding for each layer, keys and values shared by layers"),
    ],
)
def test_an_id_whose_layers_are_not_built_is_refused_with_the_reason(name: str, why: str):
    with pytest.raises(UsageError, match=why):
        open_model(name)


@pytest.mark.parametrize(
    ("name", "total", "active", "tables"),  # as reports and model cards state them, in billions
    [
        ("kimi-k2", 1040, 32.6, 2),
        ("glm-4.5", 355, 32, 0),
        ("glm-4.5-air", 106, 12, 0),
        ("glm-4.6", 355, 32, 0),
        ("glm-5", 744, 40, 0),
        ("qwen3.5-397b-a17b", 397, 17, 2),
        ("minimax-m2", 230, 10, 0),
        ("hunyuan-a13b", 80, 13, 1),
        ("ernie-4.5-21b-a3b", 21.8, 3, 0),
        ("ernie-4.5-300b-a47b", 300, 47, 1),
        ("nemotron-3-nano-30b-a3b", 31.6, 3.6, 2),
        ("nemotron-3-nano-30b-a3b", 31.6, 3.2, 1),
        ("nemotron-3-super-120b-a12b", 120, 12, 0),
        ("granite-4.0-h-small", 32, 9, 1),
        ("granite-4.0-h-tiny", 7, 1, 0),
        ("qwen3-next-80b-a3b", 80, 3, 0),
        ("kimi-linear-48b-a3b", 49, 3, 1),
        ("gpt-oss-20b", 20.9, 3.61, 1),
        ("gpt-oss-120b", 116.8, 5.13, 1),
        ("deepseek-v3.2", 671, 37, 1),
        ("llama4-scout", 109, 17, 2),
        ("llama4-maverick", 400, 17, 2),
    ],
)
def test_all_and_active_parameters_are_those_published(name: str, total: float, active: float, tables: int):
    """A token uses `top_k` experts. Labs count embedding and head (2 tables), the head alone, or neither. Layers
    that predict further tokens are counted by some."""
    m = open_model(name)
    whole = [params_of(one) / 1e9 for one in (m, m.replace(predict_layers=0))]
    assert min(abs(one / total - 1) for one in whole) < 0.015
    token = params_of(m.replace(experts=m.top_k, predict_layers=0, towers=()))
    left_out = (1 if m.tied else 2) - tables
    found = (token - max(left_out, 0) * m.vocab * m.hidden) / 1e9
    rounding = 0.5 if active == int(active) else 0.05
    assert abs(found - active) < max(rounding, 0.015 * active)


def test_models_of_the_measured_leaderboard_are_known(shared):
    names = set()
    for file in ("ml_energy_llm.csv", "ml_energy_diffusion.csv"):
        names |= {line.partition(",")[0] for line in (shared / "measured" / file).read_text().splitlines()[1:]}
    assert len(names) > 20
    assert not [one for one in sorted(names) if open_model(one).assumed]
