"""Layers with a state, sparse attention, towers: work and memory by hand."""

import pytest

from etude.base.errors import UsageError
from etude.make.generate.blocks.families import blocks_of
from etude.make.generate.blocks.ops import Op
from etude.make.generate.model.open import open_model
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.serving import Serving, serve
from etude.make.generate.train.job import shard_of

DECODER = {"name": "m", "layers": 2, "hidden": 32, "heads": 4, "ffn": 64, "vocab": 100, "seq": 512}
STATE = {"state": 8, "ssm_heads": 8, "ssm_head_size": 16, "ssm_groups": 2}


def ops(part: str, seq: int = 512, tp: int = 1, **given: object) -> list[Op]:
    m = Model.from_dict(DECODER | given)
    return [op for b in blocks_of(m, shard_of(m, Plan(seq=seq, tp=tp))) for op in b.ops if op.part == part]


def test_a_scan_of_mamba_2_works_in_chunks_of_256_tokens():
    (one,) = ops("mixer.core", mixers="as", **STATE)
    inside = 2 * 256 * 8 * 2 + 8 * 2 * 256 * 16  # keys against queries for 2 groups, their scores onto 8 heads
    state = 8 * 4 * 8 * 16  # into the state and out of it
    assert one.flops == 512 * (inside + state)
    assert one.params == 3 * 8  # a decay, a step and a skip for each head
    (half,) = ops("mixer.core", tp=2, mixers="as", **STATE)
    assert 2 * half.flops == one.flops


def test_a_gated_delta_rule_works_in_chunks_of_64_tokens():
    (one,) = ops("mixer.core", mixers="ad", **STATE)
    assert one.flops == 512 * 8 * (2 * 64 * (3 * 8 + 2 * 16) + 6 * 8 * 16)


def test_a_delta_rule_that_decays_by_channels_has_narrow_gates_and_reads_its_decays():
    shape = {"state": 16, "ssm_heads": 8, "ssm_head_size": 16, "ssm_groups": 8, "conv_bias": False}
    (one,), (plain,) = (ops("mixer.core", mixers=f"a{kind}", **shape) for kind in "kd")
    assert one.flops == plain.flops == 512 * 8 * (2 * 64 * 5 * 16 + 6 * 16 * 16)
    assert one.size_bytes - plain.size_bytes == 512 * 8 * 16 * 2  # a decay for each channel of a key, in 16 bits
    assert one.params == 8 * 16 + 8  # a bias for each channel, a rate for each head
    (wide,), (narrow,) = ops("mixer.in", mixers="ak", **shape), ops("mixer.decay.in", mixers="ak", **shape)
    assert (wide.params, narrow.params) == (32 * (3 * 128 + 8), 32 * 16)
    (half,), (whole,) = (ops("mixer.decay.out", tp=tp, mixers="ak", **shape) for tp in (2, 1))
    assert (half.params, half.local_params, half.flops) == (16 * 128, 16 * 64, whole.flops / 2)
    (again,) = ops("mixer.decay.in", tp=2, mixers="ak", **shape)
    assert again.flops == narrow.flops  # every rank has it whole


def test_work_of_a_state_grows_with_tokens_and_that_of_attention_with_pairs():
    assert ops("mixer.core", 1024, mixers="s", **STATE)[0].flops == 2 * ops("mixer.core", mixers="s", **STATE)[0].flops
    long, short = (ops("attention.core", seq)[0].flops for seq in (1024, 512))
    assert long / short == (1024 * 1025) / (512 * 513)


def test_an_indexer_scores_all_pairs_and_attention_sees_the_best():
    latent = {"kv_rank": 16, "rope_size": 4, "nope_size": 8, "value_size": 8}
    index = {"index_heads": 2, "index_size": 8, "index_top": 100}
    pairs = 512 * 513 // 2
    seen = 100 * 101 // 2 + (512 - 100) * 100
    assert ops("indexer.scores", **latent, **index)[0].flops == 2 * 2 * 8 * pairs
    assert ops("attention.core", **latent, **index)[0].flops == 2 * 4 * seen * (12 + 8)
    assert ops("attention.core", **latent)[0].flops == 2 * 4 * pairs * (12 + 8)


def test_a_served_sequence_holds_keys_of_layers_with_attention_and_one_state_of_the_others():
    m = Model.from_dict(DECODER | {"layers": 4, "mixers": "sssa"} | STATE)
    found = [serve(m, Plan(), Serving(prefill=n, decode=3, batch=2)) for n in (64, 128)]
    token = 2 * 4 * 8 * 2  # keys and values of 4 heads of 8 in 16 bits, in the one layer
    mixed = 8 * 16 + 2 * 2 * 8  # channels of the short convolution: values and two sets of keys
    state = 3 * (4 * 8 * 16 * 8 + 3 * mixed * 2)
    assert [f.token_bytes for f in found] == [token, token]
    assert [f.kv_bytes for f in found] == [2 * (n + 4) * token + 2 * state for n in (64, 128)]


def test_a_tower_is_in_memory_and_its_work_in_training_alone():
    m = open_model("qwen3-vl-2b")
    served = serve(m, Plan(), Serving(prefill=16))
    assert served.params == 2_127_532_032
    assert served.weights_bytes == 2 * served.params
    names = [b.name for b in blocks_of(m, shard_of(m, Plan(seq=64)))]
    assert names[:2] == ["embedding", "vision.embedding.0"]
    assert sum(name.startswith("vision.layers.") for name in names) == 24


def test_states_are_not_split_over_context_parallel_ranks_nor_over_more_ranks_than_groups():
    with pytest.raises(UsageError, match="context-parallel"):
        blocks_of(m := Model.from_dict(DECODER | {"mixers": "s"} | STATE), shard_of(m, Plan(seq=64, cp=2)))
    with pytest.raises(UsageError, match="2 groups of a state"):
        blocks_of(m, shard_of(m, Plan(seq=64, tp=4)))
