"""Sparse attention: an indexer scores every key with a few small heads, and attention sees the best of them."""

from __future__ import annotations

from typing import Final

from etude.cost.ops import OpClass, Work
from etude.make.generate.blocks.ops import Op, Phase, bytes_of, compute, norm, shapes
from etude.make.generate.blocks.shard import Shard, plain
from etude.make.generate.model.shape import Model

SCORES: Final = "sparse_attention::index_scores"
DTYPE: Final = "fp8"
"""Scores are computed in 8 bits, as published."""


def indexer(model: Model, local: Shard, pairs: int) -> list[Op]:
    """Queries from the low rank, one key for all heads, a weight for each head. Every tensor-parallel rank computes all
    of it."""
    heads, size, h = model.index_heads, model.index_size, model.hidden
    rank = model.q_rank or h
    return [
        *plain(local, local.tokens, rank, heads * size, "indexer.q", params=rank * heads * size),
        *plain(local, local.tokens, h, size, "indexer.k", params=h * size),
        norm(local.tokens, size, "indexer.k_norm", dtype=local.dtype, kind="layer", params=2 * size).replace(unit=""),
        *plain(local, local.tokens, h, heads, "indexer.weights", params=h * heads),
        scores(model, local.samples * pairs, local.tokens, local.samples * local.seq),
    ]


def scores(model: Model, pairs: int, queries: int, keys: int) -> Op:
    """Scores of all pairs, summed over heads; the best are picked. Backward does each product twice."""
    heads, size = model.index_heads, model.index_size
    moved = bytes_of((queries * heads + keys) * size, DTYPE) + 4 * pairs
    w = Work(op_class=OpClass.ATTENTION, flops=2 * heads * size * pairs, size_bytes=moved, dtype=DTYPE)
    ins, outs = shapes((queries, heads, size), (keys, size)), shapes((queries, model.index_top))
    back = Work(op_class=OpClass.ATTENTION, flops=2 * w.flops, size_bytes=2 * moved, dtype=DTYPE)
    grad = compute(f"{SCORES}_backward", "indexer.scores", back, outs, ins, phase=Phase.INPUT)
    return compute(SCORES, "indexer.scores", w, ins, outs, backward=(grad,), unit="index",
                   saved_bytes=8 * queries * min(model.index_top, keys))  # fmt: skip
