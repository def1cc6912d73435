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
        digits = len(m.params.partition(".")[2]) - 1
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
    m = open_model("unsloth/Qwen3-8B-AWQ")
    assert "scaled" in m.assumed  # another lab's: its size is all that is known
    m = open_model("Qwen/Qwen3-8B-AWQ")
    assert m.replace(name="", assumed="") == open_model("Qwen/Qwen3-8B").replace(name="")
    assert m.assumed == "the shape: that of qwen3-8b, of which the id is a variant"


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("some/Foo-13B", 13e9, 13e9),
        ("some/Foo-350M-Instruct", 350e6, 350e6),
        ("some/Qwen3-60B-A6B", 60e9, 6e9),
        ("some/Llama-17B-32E", 0, 17e9),
        ("some/Mist-8x3B", 8 * 3e9 * 0.82, 3e9 * 1.8),
    ],
)
def test_an_unknown_id_has_the_parameters_that_it_states(name: str, total: float, active: float):
    m = open_model(name)
    assert m.assumed.startswith("the shape: that of ")
    found = params_of(m)
    assert not total or abs(found / total - 1) < 0.06
    if m.experts:
        token = params_of(m.replace(experts=m.top_k))
        assert abs(token / active - 1) < 0.05


def test_an_unknown_id_without_a_size_is_refused():
    with pytest.raises(UsageError, match="its id does not state its size"):
        open_model("some/model")


def test_models_of_the_measured_leaderboard_are_known(shared):
    names = set()
    for file in ("ml_energy_llm.csv", "ml_energy_diffusion.csv"):
        names |= {line.partition(",")[0] for line in (shared / "measured" / file).read_text().splitlines()[1:]}
    assert len(names) > 20
    assert not [one for one in sorted(names) if open_model(one).assumed]
