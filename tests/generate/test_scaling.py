"""Scales only to 8-bit products: bytes that are cast, gathered, exchanged and kept, by hand."""

from collections import Counter

import pytest

from etude.base.errors import EtudeError
from etude.make.generate.model.open import open_model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import Generated, generate
from etude.model.schema import Collective
from etude.model.trace import Trace

DENSE = open_model("llama3-8b").replace(layers=1, hidden=256, heads=4, kv_heads=4, head_size=64, ffn=512, vocab=512)
MIXTURE = open_model("mixtral-8x7b").replace(
    layers=1, hidden=256, heads=4, kv_heads=4, head_size=64, ffn=512, expert_ffn=512, vocab=512
)
TOKENS, HIDDEN = 128, 256


def made(scaling: str, model: object = DENSE, **more: object) -> Generated:
    plan = {"gpus": 1, "seq": TOKENS, "precision": "fp8", "scaling": scaling} | more
    return generate(model, Plan(**plan))  # type: ignore[arg-type]


def moved(trace: Trace, part: str, name: str) -> list[int]:
    paths, words = trace.coded("module")
    names, called = trace.coded("name")
    return [
        int(trace.tensor_bytes[i])
        for i in range(len(trace))
        if words[paths[i]].endswith(part) and called[names[i]] == name
    ]


@pytest.mark.parametrize(("scaling", "scales"), [("delayed", 0), ("current", 0), ("block", 4 / 128), ("mx", 1 / 32)])
def test_a_cast_writes_both_layouts_with_their_scales(scaling: str, scales: float):
    """What goes into the product of queries, keys and values: 2 bytes read, 1 written twice; its gradient is three
    times as wide."""
    trace, size = made(scaling).job.trace(0), TOKENS * HIDDEN
    into = moved(trace, "attention.qkv", "aten::_to_copy")
    assert into == [(4 + 2 * scales) * size, (4 + 2 * scales) * 3 * size]
    looked = moved(trace, "attention.qkv", "aten::amax")
    assert looked == ([2 * size, 2 * 3 * size] if scaling == "current" else [])


def test_a_cast_to_4_bits_reads_three_times():
    """2 bytes read for the largest value, for rows and for columns; half a byte and 1/16 of one written for each of
    the two layouts."""
    trace, size = made("delayed", precision="fp4").job.trace(0), TOKENS * HIDDEN
    each = 3 * 2 + 2 * (1 / 2 + 1 / 16)
    assert moved(trace, "attention.qkv", "aten::_to_copy") == [each * size, each * 3 * size]


@pytest.mark.parametrize(("scaling", "scales"), [("delayed", 0), ("current", 0), ("block", 1 / 32), ("mx", 1 / 32)])
def test_gathers_of_what_was_cast_carry_scales(scaling: str, scales: float):
    """Over two tensor-parallel ranks each gives its half of the tokens: 3 gathers of what goes into a product or of
    gradients a pair of layers, in 8 bits; the head's in 16."""
    trace = made(scaling, gpus=2, tp=2).job.trace(0)
    sizes = Counter(trace.in_bytes[trace.collective == Collective.ALL_GATHER].tolist())
    half = TOKENS * HIDDEN // 2
    assert sizes[half * (1 + scales)] == 6
    assert sizes[2 * half] == 3


@pytest.mark.parametrize(("scaling", "scales"), [("delayed", 0), ("block", 1 / 32), ("mx", 1 / 32)])
def test_tokens_go_to_experts_with_scales(scaling: str, scales: float):
    """Two copies of a token; out in 8 bits and back in 16, and so do gradients."""
    trace = made(scaling, MIXTURE, gpus=4, ep=4, global_batch=4).job.trace(0)
    sizes = Counter(trace.in_bytes[trace.collective == Collective.ALL_TO_ALL].tolist())
    each = TOKENS * 2 * HIDDEN
    assert sizes == Counter({each * (1 + scales): 2, each * 2: 2})


def test_weights_are_held_in_both_layouts_with_their_scales():
    """A layer of 4 x 256 x 256 and 3 x 256 x 512 weights in 8 bits, twice; a byte more for 32 of them, 4 for 128^2."""
    plain, current, block, mx = (made(s).memory[0].weights for s in ("delayed", "current", "block", "mx"))
    weights = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * 512
    assert (current - plain, block - plain, mx - plain) == (0, 2 * weights * 4 // 128**2, 2 * weights // 32)
    cast = [moved(made(s).job.trace(0), "quantise", "aten::_to_copy")[0] for s in ("delayed", "current", "mx")]
    assert cast == [4 * weights, 6 * weights, 4 * weights + 2 * weights // 32]


def test_scaling_is_of_eight_bits():
    with pytest.raises(EtudeError, match="only to 8-bit products"):
        made("mx", precision="bf16")
