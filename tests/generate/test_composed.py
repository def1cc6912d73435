"""Models composed of parts: FLOPs as another program counts them, small ones worked by hand, what is refused."""

import pytest

from etude.base.errors import UsageError
from etude.make.generate.blocks.families import blocks_of
from etude.make.generate.blocks.shard import Block
from etude.make.generate.model.open import open_model
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import generate, is_product, sequence_of, shard_of

FLOPS = {
    # One sample forward: PyTorch's FlopCounterMode over the modules of torchvision and diffusers on the meta device.
    "alexnet": 1428376960,
    "vgg16": 30940528640,
    "mobilenet-v2": 601548544,
    "resnet-18": 3628146688,
    "resnet-50": 8178368512,
    "sdxl-unet": 6761236398080,
    "flux.1-dev": 74384653418496,
    "sd3.5-large": 31121114907648,
    "sd3.5-medium": 11249573707776,
    "wan2.1-1.3b": 283001787777024,
    "wan2.1-14b": 6523436592005120,
    "cogvideox-5b": 332197712101376,
    "pixart-sigma": 6633579773952,
    "hunyuanvideo": 12068592207003648,
}
NEARLY = {"hunyuandit-v1.2": 14365800964096, "sana1.5-1.6b": 2966661160960}
"""A pooler of one query, a column of ones beside the values: not built, less than 3 in 10,000."""


def blocks(m: Model, **plan: int) -> list[Block]:
    return blocks_of(m, shard_of(m, Plan.from_dict({"seq": sequence_of(m), **plan})))


def flops(found: list[Block]) -> int:
    return sum(op.flops for block in found for op in block.ops if is_product(op.name))


@pytest.mark.parametrize("name", FLOPS)
def test_forward_flops_are_those_that_pytorch_counts(name: str):
    assert flops(blocks(open_model(name))) == FLOPS[name]


@pytest.mark.parametrize("name", NEARLY)
def test_forward_flops_are_nearly_those_that_pytorch_counts(name: str):
    assert flops(blocks(open_model(name))) == pytest.approx(NEARLY[name], rel=3e-4)


def model(*pieces: dict, streams: list[dict] | None = None) -> Model:
    given = {"name": "m", "family": "composed", "seq": 8, "streams": streams or [{"name": "x", "width": 4}]}
    return Model.from_dict(given | {"blocks": list(pieces)})


def test_widths_and_parameters_follow_from_part_to_part():
    m = model(
        {"name": "in", "parts": [{"part": "linear", "out": 6}]},
        {
            "name": "layers",
            "repeat": 3,
            "parts": [{"part": "norm"}, {"part": "attention", "heads": 2}, {"part": "mlp", "ffn": 10, "bias": False}],
        },
        {"name": "out", "parts": [{"part": "linear", "out": 1, "bias": False}, {"part": "loss"}]},
    )
    found = blocks(m)
    assert [b.name for b in found] == ["in", "layers.0", "layers.1", "layers.2", "out"]
    layer = 2 * 6 + (6 * 18 + 18) + (6 * 6 + 6) + 2 * 6 * 10
    assert [b.params for b in found] == [4 * 6 + 6, layer, layer, layer, 6]
    # 8 tokens: qkv, scores and context over all pairs, out, two of the perceptron
    assert flops(found[1:2]) == 2 * 8 * (6 * 18 + 6 * 6 + 2 * 6 * 10) + 2 * 2 * 8 * 8 * 6
    assert found[0].out_bytes == 8 * 6 * 2


def test_streams_that_share_weights_are_counted_once_and_what_is_aside_stays():
    m = model(
        {"name": "a", "parts": [{"part": "linear", "stream": "x+y", "out": 6, "bias": False}]},
        {"name": "b", "parts": [{"part": "linear", "stream": "t", "out": 50, "aside": True}, {"part": "norm"}]},
        {"name": "c", "parts": [{"part": "linear", "stream": "t", "out": 1}, {"part": "loss"}]},
        streams=[
            {"name": "x", "width": 4},
            {"name": "y", "width": 4, "tokens": 3},
            {"name": "t", "width": 5, "tokens": 1},
        ],
    )
    first, second, third = blocks(m)
    assert (first.params, flops([first])) == (24, 2 * (8 + 3) * 4 * 6)
    assert (second.params, third.params) == (5 * 50 + 50 + 12, 5 + 1)
    # to the next stage goes what is still needed: x and t after the first, x (for the loss) and t after the second
    assert (first.out_bytes, second.out_bytes) == (2 * (8 * 6 + 5), 2 * (8 * 6 + 5))


def test_what_was_kept_is_joined_last_first_and_travels_between_stages():
    keep, join = {"part": "keep", "name": "s"}, {"part": "join", "name": "s"}
    m = model(
        {"name": "down", "repeat": 2, "parts": [{"part": "linear", "out": 4}, keep]},
        {"name": "up", "repeat": 2, "parts": [join, {"part": "linear", "out": 4}]},
        {"name": "out", "parts": [{"part": "loss"}]},
    )
    found = blocks(m)
    assert [b.params for b in found] == [20, 20, 8 * 4 + 4, 8 * 4 + 4, 0]
    one = 8 * 4 * 2
    assert [b.out_bytes for b in found] == [2 * one, 3 * one, 2 * one, one, 0]


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([{"part": "linear"}], "needs `out`"),
        ([{"part": "linar", "out": 3}], "unknown value `linar`"),
        ([{"part": "linear", "out": 3, "wide": 3}], "unknown key `wide`"),
        ([{"part": "linear", "out": 3, "stream": "z"}], "no stream `z`"),
        ([{"part": "conv", "out": 3}], "needs a stream of images"),
        ([{"part": "join", "name": "s"}], "no result was kept as `s`"),
    ],
)
def test_parts_that_cannot_be_are_refused(parts: list[dict], problem: str):
    with pytest.raises(UsageError, match=problem):
        blocks(model({"name": "in", "parts": parts}))


def test_tensor_parallel_ranks_share_the_layers_and_pipelines_the_blocks():
    whole, part = (generate(open_model("flux.1-dev"), Plan(gpus=g, tp=g, seq=64)) for g in (1, 4))
    assert part.params == whole.params == 11_901_408_320
    both = generate(open_model("pixart-sigma"), Plan(gpus=2, pp=2, seq=64))
    assert sum(b.params for stage in both.layout.stages for b in stage) == 610_856_096
    with pytest.raises(UsageError, match="convolutions cannot be split"):
        blocks(open_model("vgg16").replace(seq=2), tp=2)
