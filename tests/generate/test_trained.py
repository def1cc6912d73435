"""What is trained: operations, gradients and memory worked out by hand; whatever is left out, the job is sound."""

import numpy as np
import pytest

from etude.base.errors import EtudeError
from etude.machine import open_system
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import Generated, generate
from etude.model.check.whole import check
from etude.model.schema import Collective, Kind
from etude.run.simulate.run import simulate

TINY = Model(name="tiny", layers=4, hidden=64, heads=4, kv_heads=2, head_size=16, ffn=128, vocab=512, gated=True)
LAYER = 64 * 128 + 64 * 64 + 64 * 256 + 128 * 64
"""Weights of its products: 64 x (64 + 2 x 32), 64 x 64, 64 x 256 and 128 x 64."""
NORMS = 2 * 64
HEAD = 64 * 512
TOKENS = 2 * 32
CORE = 4 * 16 * 2 * (2 * 32 * 33 // 2)
"""Operations of one product of attention, scores or context: heads x size x 2 x pairs of two samples of 32 tokens."""


def made(train: str, **plan: object) -> Generated:
    options = {"seq": 32, "micro_batch": 2, "gpus": 1, **plan}
    return generate(TINY, Plan.from_dict({"train": train, **options}))


def flops(found: Generated, *parts: str) -> int:
    """Operations of all nodes whose module ends in one of these."""
    total = 0
    for rank in found.job.ranks.tolist():
        trace = found.job.trace(rank)
        codes, words = trace.coded("module")
        rows = np.array([w.endswith(parts) for w in words] + [False])[codes] & (trace.kind == int(Kind.COMP))
        total += int(trace.flops[rows].sum())
    return total


PRODUCTS = ("attention.qkv", "attention.out", "ffn.up", "ffn.down", "head.logits")


def test_forward_alone_is_a_third_of_the_products_and_two_sevenths_of_attention():
    assert flops(made("all"), *PRODUCTS) == 6 * TOKENS * (4 * LAYER + HEAD)
    assert flops(made("forward"), *PRODUCTS) == 2 * TOKENS * (4 * LAYER + HEAD)
    assert flops(made("all"), "attention.core") == 4 * 7 * CORE
    assert flops(made("forward"), "attention.core") == 4 * 2 * CORE


def test_frozen_weights_pass_gradients_on():
    assert flops(made("frozen"), *PRODUCTS) == 4 * TOKENS * (4 * LAYER + HEAD)
    assert flops(made("frozen"), "attention.core") == 4 * 7 * CORE


def test_forward_alone_recomputes_nothing():
    assert flops(made("forward", recompute="full"), *PRODUCTS) == 2 * TOKENS * (4 * LAYER + HEAD)


@pytest.mark.parametrize("last", [1, 2, 3])
def test_the_last_layers_have_their_part_of_the_backward(last: int):
    found = made(f"layers:{4 - last}..")
    assert flops(found, *PRODUCTS[:-1]) == 2 * TOKENS * 4 * LAYER + 4 * TOKENS * last * LAYER
    assert flops(found, "head.logits") == 6 * TOKENS * HEAD
    assert flops(found, "attention.core") == 4 * 2 * CORE + last * 5 * CORE


def test_layers_in_the_middle():
    """Layers 1 and 2 train, 3 and the head pass gradients on, 0 goes forward alone."""
    found = made("layers:1..2")
    assert flops(found, *PRODUCTS[:-1]) == TOKENS * LAYER * (2 + 6 + 6 + 4)
    assert flops(found, "head.logits") == 4 * TOKENS * HEAD


def test_all_layers_are_everything():
    assert flops(made("layers:0.."), *PRODUCTS) == flops(made("all"), *PRODUCTS)


def gradient_bytes(found: Generated) -> int:
    """Of one rank."""
    trace = found.job.trace(0)
    reduced = trace.collective == int(Collective.ALL_REDUCE)
    return int(trace.in_bytes[reduced & (trace.in_bytes > 4)].sum())


ADAPTER = 16 * ((64 + 128) + (64 + 64) + (64 + 256) + (128 + 64))
"""r (m + n) of each product, rank 16."""


@pytest.mark.parametrize(
    ("train", "params"),
    [
        ("all", 4 * (LAYER + NORMS) + 64 + 2 * HEAD),
        ("frozen", 0),
        ("forward", 0),
        ("layers:3..", LAYER + NORMS + 64 + HEAD),
        ("layers:1..2", 2 * (LAYER + NORMS)),
        ("lora:16", 4 * ADAPTER),
        ("lora:16:qkv", 4 * 16 * (64 + 128)),
    ],
)
def test_gradients_are_those_of_what_is_trained(train: str, params: int):
    found = made(train, gpus=2, clip=False)
    assert gradient_bytes(found) == 4 * params
    (memory,) = found.memory
    assert memory.gradients == 4 * params
    assert memory.optimizer == 12 * params
    base = 4 * (LAYER + NORMS) + 64 + 2 * HEAD
    assert memory.weights == 2 * (base + (params if train.startswith("lora") else 0))


def test_adapters_by_hand():
    """Down and up: two products forward, and for each one for its input and one for its weight."""
    plain, lora = flops(made("frozen"), *PRODUCTS[:-1]), flops(made("lora:16"), *PRODUCTS[:-1])
    sums = TOKENS * (128 + 64 + 256 + 64)  # what the adapters give, added to what the products give
    assert lora - plain == 4 * (6 * TOKENS * ADAPTER + sums)


def test_adapters_are_as_large_however_they_are_split():
    assert made("lora:16", gpus=2, tp=2).params == made("lora:16").params == made("all").params + 4 * ADAPTER
    # By its outputs a weight has its upper half split, by its inputs its lower half.
    split = 16 * ((64 + 64) + (32 + 64) + (64 + 128) + (64 + 64))
    (memory,) = made("lora:16", gpus=2, tp=2).memory
    assert memory.optimizer == 12 * 4 * split


@pytest.mark.parametrize("sp", [True, False])
def test_halves_of_adapters_that_are_whole_on_each_rank_are_summed(sp: bool):
    """Of a layer: the lower half beside qkv and up, the upper half beside out and down, 64 x 16 each."""
    trace = made("lora:16", gpus=2, tp=2, sp=sp, clip=False).job.trace(0)
    codes, words = trace.coded("phase")
    weight = np.array([w == "backward-weight" for w in words] + [False])[codes]
    summed = (trace.collective == int(Collective.ALL_REDUCE)) & weight
    assert trace.in_bytes[summed].tolist() == [4 * 4 * (4 * 64 * 16)]


def test_what_was_kept_for_gradients_of_weights_alone_is_not_kept():
    """Kept is what goes into the core, the activation and the norms; no input of a product, no ids of tokens."""
    core = 2 * TOKENS * 16 * (4 + 2 * 2) + 4 * TOKENS * 4
    norms = 2 * 2 * TOKENS * 64
    activation = 2 * 2 * TOKENS * 128
    layers = 4 * (core + norms + activation)
    head = 2 * TOKENS * 64 + 4 * TOKENS * 512
    (memory,) = made("frozen").memory
    assert memory.activation_bytes == layers + head
    (memory,) = made("forward").memory
    assert memory.activation_bytes == 0


def test_stages_that_do_not_train_get_no_gradients():
    """Four stages, the last layer trained: activations over three borders, gradients over none."""
    found = made("layers:3..", gpus=4, pp=4, global_batch=4, clip=False)
    sent = [int((found.job.trace(r).kind == int(Kind.SEND)).sum()) for r in range(4)]
    assert sent == [2, 2, 2, 0]
    assert [m.optimizer > 0 for m in found.memory] == [False, False, False, True]


@pytest.mark.parametrize("train", ["forward", "frozen", "lora:8", "layers:2..", "layers:1..2"])
@pytest.mark.parametrize(
    "plan",
    [
        {"gpus": 2, "zero": 3, "recompute": "full"},
        {"gpus": 4, "tp": 2, "zero": 1},
        {"gpus": 4, "pp": 4, "schedule": "zb1p", "recompute": "selective"},
        {"gpus": 2, "pp": 2, "schedule": "interleaved:2", "global_batch": 8},
        {"gpus": 2, "pp": 2, "schedule": "dualpipe", "global_batch": 8},
        {"gpus": 4, "cp": 2, "zero": 2, "host": "5us"},
    ],
    ids=["fsdp", "tp", "zb1p", "interleaved", "dualpipe", "cp"],
)
def test_jobs_are_sound_and_run(train: str, plan: dict[str, object]):
    job = made(train, **plan).job
    assert list(check(job)) == []
    assert simulate(job, open_system("dgx-h100").for_ranks(job.world_size)).makespan_ns > 0


@pytest.mark.parametrize(
    "train", ["", "some", "lora", "lora:0", "lora:x", "lora:4:ffn", "layers:3", "layers:5..2", "forward:1"]
)
def test_what_is_no_way_to_train_is_refused(train: str):
    with pytest.raises(EtudeError, match="train"):
        made(train)


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(EtudeError, match="layers 0 to 3"):
        made("layers:4..")


def test_a_rank_that_alone_trains_has_nobody_to_sum_the_norm_with():
    plan = {"seq": 32, "pp": 2, "gpus": 2, "global_batch": 4, "train": "layers:0..0"}
    found = generate(TINY, Plan.from_dict(plan))
    assert all(len(found.job.groups.ranks(g)) > 1 for g in range(len(found.job.groups)))
    assert not any((t.kind == int(Kind.COLL)).any() for t in found.job.traces)


@pytest.mark.parametrize("schedule", ["1f1b", "async:2"])
def test_a_table_that_trains_trains_wherever_it_is_used(schedule: str):
    """Layer 0 and the embedding train, and the head on the last stage has a copy of its table: it makes a gradient of
    it, which is summed with that of the embedding, and updates its copy."""
    tied = TINY.replace(tied=True)
    plan = {
        "seq": 32,
        "pp": 4,
        "gpus": 4,
        "global_batch": 16,
        "schedule": schedule,
        "train": "layers:0..0",
        "clip": False,
    }
    found = generate(tied, Plan.from_dict(plan))
    assert list(check(found.job)) == []
    assert flops(found, "head.logits") == 16 * 6 * 32 * HEAD
    assert flops(found, "ffn.up") == 16 * 32 * 64 * 256 * (
        2 * 4 + 2 * 3 + 4
    )  # layer 0: twice back; others: input alone
    words = found.job.trace(3).coded("module")[1]
    assert any(w.startswith("optimizer") for w in words)
    sums = [r for r in found.job.ranks.tolist() if "ends" in found.job.trace(r).group_slots]
    assert {0, 3} <= set(sums)
