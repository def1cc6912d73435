"""Weights that several ranks hold, and how their gradients come together: each case worked out by hand."""

from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.make.generate.model import open_model
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.totals import by_group
from etude.make.generate.train.job import Generated, generate
from etude.model.schema import Collective, Kind

TINY = Model(name="tiny", layers=4, hidden=64, heads=8, kv_heads=4, ffn=128, vocab=256, seq=32, gated=True)
MIXTURE = TINY.replace(experts=8, top_k=2, expert_ffn=32)
LATENT = TINY.replace(kv_heads=0, q_rank=32, kv_rank=16, rope_size=4, nope_size=8, value_size=8)
LAYER = 64 * 8 * (8 + 4 + 4 + 8) + 3 * 64 * 128
"""Weights of a layer's products: queries, keys, values, out; up, gate, down."""


def made(m: Model, **plan: Any) -> Generated:
    return generate(m, Plan.from_dict({"bucket": 10**12, "seq": m.seq, "clip": False, **plan}))


def calls(found: Generated, group: str, rank: int = 0) -> Counter[tuple[str, int]]:
    """(kind, input bytes) of a rank's collectives on a group."""
    trace = found.job.trace(rank)
    slots = np.array([*trace.group_slots, ""])[trace.group]
    rows = np.flatnonzero((slots == group) & (trace.kind == Kind.COLL))
    return Counter((Collective(trace.collective[r]).name.lower(), int(trace.in_bytes[r])) for r in rows)


# -- tied embeddings -----------------------------------------------------------------------------------------------


def test_a_tied_head_on_another_stage_has_the_table_too():
    """Gemma 2 9B: 256,000 x 3,584 weights at 2 + 4 + 12 bytes are 16.5 GB on the last of two stages."""
    both = [made(open_model("gemma2-9b").replace(tied=tied), gpus=2, pp=2, seq=512) for tied in (True, False)]
    tied, untied = (one.memory[1] for one in both)
    assert tied.static_bytes == untied.static_bytes
    assert both[0].memory[1].static_bytes - both[0].memory[0].static_bytes == 18 * 3584  # the last norm


def test_one_rank_with_both_ends_has_one_table():
    found = made(TINY.replace(tied=True), gpus=2, pp=2, schedule="zbv")
    assert found.memory[0].weights == 2 * (2 * (LAYER + 128) + 256 * 64 + 64)
    assert calls(found, "ends") == {}


@pytest.mark.parametrize(("zero", "each"), [(0, 256 * 64), (1, 256 * 64), (2, 256 * 64 // 2), (3, 256 * 64 // 2)])
def test_the_ends_sum_what_they_have_of_the_table(zero: int, each: int):
    found = made(TINY.replace(tied=True), gpus=4, pp=2, zero=zero)
    assert [calls(found, "ends", r) for r in (0, 3)] == [Counter({("all_reduce", 4 * each): 1})] * 2


def test_a_decoder_behind_an_encoder_has_the_table_too():
    m = TINY.replace(family="encoder_decoder", encoder_layers=4, kv_heads=8, tied=True)
    found = made(m, gpus=4, pp=4, stages=[2, 2, 2, 2])
    assert [bool(calls(found, "ends", r)) for r in range(4)] == [True, False, True, True]
    assert found.memory[2].weights - found.memory[1].weights > 2 * 256 * 64


# -- twins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("zero", "part"), [(0, 1), (1, 4), (2, 4), (3, 4)])
def test_twins_of_a_dual_pipeline_sum_their_shards(zero: int, part: int):
    """Both hold a stage from each end: one layer with the embedding, one with the head; over 4 copies."""
    found = made(TINY.replace(layers=2), gpus=8, pp=2, schedule="dualpipe", global_batch=32, zero=zero)
    weights = 2 * (LAYER + 128) + 2 * 256 * 64 + 64
    assert calls(found, "twins") == {("all_reduce", 4 * weights // part): 1}


# -- what is not split over tensor-parallel ranks -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "weights"),
    [
        ({}, 4 * 2 * 64 + 64),
        ({"norm": "layer"}, 2 * (4 * 2 * 64 + 64)),
        ({"bias": True}, 4 * 2 * 64 + 64 + 4 * 2 * 64),
        ({"qk_norm": True}, 4 * 2 * 64 + 64 + 4 * 2 * 8),
        ({"positions": "learned", "max_positions": 32}, 4 * 2 * 64 + 64 + 32 * 64),
        ({"experts": 8, "top_k": 2, "expert_ffn": 32}, 4 * 2 * 64 + 64 + 4 * 8 * 64),
    ],
    ids=str,
)
def test_gradients_of_weights_that_all_have_are_summed(more: dict[str, Any], weights: int):
    """Norms, biases after a sum, positions and routers see the tokens of one rank alone; heads are one rank's alone."""
    found = made(TINY.replace(**more), gpus=2, tp=2)
    assert calls(found, "tp")["all_reduce", 4 * weights] == 1


def test_without_sequence_parallelism_only_what_heads_share_is_summed():
    kinds = [made(TINY.replace(qk_norm=q), gpus=2, tp=2, sp=False) for q in (False, True)]
    sums = [calls(one, "tp") for one in kinds]
    assert sums[1] - sums[0] == {("all_reduce", 4 * 4 * 2 * 8): 1}
    assert not sums[0] - sums[1]


def test_latent_attention_sums_its_projections_down():
    found = made(LATENT, gpus=2, tp=2)
    down = 64 * 32 + 64 * (16 + 4) + 32 + 16
    assert calls(found, "tp")["all_reduce", 4 * (4 * (2 * 64 + down) + 64)] == 1


def test_heads_of_keys_that_several_ranks_have():
    """2 heads of keys over 4 ranks: two ranks have the same one, whole, and sum its gradient."""
    found = made(TINY.replace(kv_heads=2), gpus=4, tp=4)
    mine = 64 * 8 * (2 + 1 + 1 + 2) + 3 * 64 * 128 // 4 + 2 * 64
    assert found.memory[0].weights == 2 * (4 * mine + 2 * 256 * 64 // 4 + 64)
    assert calls(found, "kv2") == {("all_reduce", 4 * 4 * 64 * 2 * 8): 1}
    names = {name: found.job.groups.ranks(i).tolist() for i, name in enumerate(found.job.groups.names)}
    assert [names["kv2.0"], names["kv2.1"]] == [[0, 1], [2, 3]]


# -- latent attention ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sp", [True, False])
def test_the_rotary_key_reaches_every_rank(sp: bool):
    """32 tokens with a key of 4 in 2 bytes, over 4 layers: gathered and its gradient scattered, or summed alone."""
    found = [calls(made(LATENT.replace(rope_size=n), gpus=2, tp=2, sp=sp), "tp") for n in (4, 6)]
    grown = [sum((n * size for (kind, size), n in one.items() if kind == "all_gather")) for one in found]
    assert grown[1] - grown[0] == (4 * 32 * 2 * 2 // 2 if sp else 0)
    kind = "reduce_scatter" if sp else "all_reduce"
    assert found[0][kind, 32 * 4 * 2] == 4


# -- experts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "sizes"),
    [
        ({}, {2: 16}),
        ({"precision": "fp8"}, {1: 8, 2: 8}),
        ({"precision": "fp8", "dispatch": "activations"}, {2: 16}),
    ],
    ids=str,
)
def test_tokens_go_out_in_8_bits_and_come_back_in_16(plan: dict[str, Any], sizes: dict[int, int]):
    """In each of 4 layers: out and back forward, out and back backward; 32 tokens with 2 experts each, 64 wide."""
    found = made(MIXTURE, gpus=4, ep=4, **plan)
    assert calls(found, "ep") == {("all_to_all", 32 * 2 * 64 * width): n for width, n in sizes.items()}


@pytest.mark.parametrize(
    ("plan", "shards", "replicas"),
    [({"gpus": 8, "ep": 2}, 2, 2), ({"gpus": 8, "ep": 4}, 1, 2), ({"gpus": 8, "ep": 8}, 1, 1)],
)
def test_experts_are_sharded_inside_the_groups_too(plan: dict[str, int], shards: int, replicas: int):
    """Groups of 4 ranks: with experts over 2 of them each expert has 2 copies in a group, over 4 one, over 8 half."""
    found = made(MIXTURE, zero=3, dp_shard=4, **plan)
    experts = 8 // plan["ep"] * 3 * 64 * 32
    dense = 2 * 256 * 64 + 64 + 4 * (64 * 8 * 24 + 2 * 64 + 8 * 64)
    assert found.memory[0].optimizer == 12 * (dense // 4 + 4 * experts // shards)
    scattered, summed = calls(found, "eshard"), calls(found, "ereplica") or calls(found, "edp")
    assert scattered["reduce_scatter", 4 * experts] == (4 if shards > 1 else 0)
    assert summed["all_reduce", 4 * experts // shards] == (4 if replicas > 1 else 0)


def test_experts_that_fit_no_group_are_refused():
    with pytest.raises(UsageError, match="do not fit groups of dp_shard 4"):
        made(MIXTURE, gpus=24, ep=6, zero=3, dp_shard=4)


def test_samples_of_different_length_need_experts_split_within_a_copy():
    """Ranks 0 and 1 are of one copy if tensor-parallel ranks are neighbours, and of two if copies are."""
    plan = {"gpus": 4, "tp": 2, "etp": 2, "lengths": "8:1,32:1"}
    assert made(MIXTURE, **plan).plan.etp == 2
    with pytest.raises(UsageError, match="split within a copy"):
        made(MIXTURE, order="dp-tp-cp-pp", **plan)


# -- further tokens --------------------------------------------------------------------------------------------------


def test_layers_that_predict_further_tokens():
    """A layer more, a product of 2 h x h, three norms, the same head again; the last stage has the table too."""
    plain, more = made(TINY, gpus=2, pp=2), made(TINY.replace(predict_layers=1), gpus=2, pp=2)
    layer = LAYER + 2 * 64
    assert more.params - plain.params == layer + 2 * 64 * 64 + 3 * 64
    assert more.memory[0].weights == plain.memory[0].weights
    assert more.memory[1].weights - plain.memory[1].weights == 2 * (layer + 2 * 64 * 64 + 3 * 64 + 256 * 64)
    assert calls(more, "ends", 0) == calls(more, "ends", 1) == {("all_reduce", 4 * 256 * 64): 1}
    tokens, pairs = more.tokens, more.plan.batch * 32 * 33 // 2
    assert more.model_flops - plain.model_flops == 6 * tokens * (LAYER + 2 * 64 * 64 + 64 * 256) + 12 * 8 * 8 * pairs


# -- model FLOPs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [{"tp": 4, "gpus": 4}, {"tp": 4, "gpus": 4, "sp": False}], ids=str)
def test_what_ranks_do_alike_counts_once(plan: dict[str, Any]):
    """Keys that two ranks make, projections down that all make."""
    for m in (TINY.replace(kv_heads=2), LATENT):
        assert made(m, **plan).model_flops == made(m).model_flops


# -- plans as data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [Plan(), Plan(gpus=8, pp=2, stages=(3, 5), host_ns=5000.0, sp=None, zero=3)], ids=str)
def test_a_plan_is_read_from_what_asdict_gives(plan: Plan):
    assert Plan.from_dict(asdict(plan)) == plan
    assert Model.from_dict(asdict(TINY)) == TINY


def test_a_field_by_both_its_names_is_refused():
    with pytest.raises(UsageError, match="`host` is given twice"):
        Plan.from_dict({"host": "5us", "host_ns": 5000})


def test_bytes_by_group_name_every_group():
    found = made(TINY.replace(tied=True, kv_heads=2), gpus=16, tp=4, pp=2, zero=1)
    assert set(by_group(found.job)) == {"tp", "kv2", "dp", "pp", "ends"}
