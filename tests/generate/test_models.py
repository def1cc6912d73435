"""Models: parameters as published, and what a description may say."""

import pytest

from etude.errors import UsageError
from etude.generate.blocks.families import blocks_of
from etude.generate.model.open import model_names, open_model
from etude.generate.model.shape import Model
from etude.generate.plan import Plan
from etude.generate.train.job import sequence_of, shard_of

SCALE = {"B": 10**9, "M": 10**6}


def params_of(m: Model, **plan: int) -> int:
    made = Plan.from_dict({"seq": sequence_of(m), **plan})
    return sum(block.params for block in blocks_of(m, shard_of(m, made)))


@pytest.mark.parametrize("name", model_names())
def test_parameters_are_those_published(name: str):
    m = open_model(name)
    found = params_of(m)
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
        ("{model_type: mamba}", "'mamba'"),
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
