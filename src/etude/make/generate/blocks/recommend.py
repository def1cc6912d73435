"""DLRM as blocks: embedding tables spread over the expert-parallel ranks, multilayer perceptrons on every rank."""

from __future__ import annotations

from etude.base.errors import UsageError
from etude.cost import ops as work
from etude.make.generate.blocks.ops import (
    Op,
    Phase,
    Stream,
    activation,
    bytes_of,
    compute,
    embedding,
    exchanged,
    gemm,
    shapes,
)
from etude.make.generate.blocks.shard import Block, Shard, plain
from etude.make.generate.blocks.vision import alone
from etude.make.generate.model.shape import Model
from etude.model.schema import Collective


def blocks(model: Model, local: Shard) -> list[Block]:
    """A rank looks up its tables for the samples of all ranks; an exchange gives each rank all tables for its
    samples."""
    alone(local, "recommendation models")
    if model.tables % local.ep:
        raise UsageError(f"{model.tables} tables cannot be spread over {local.ep} ranks", hint="an --ep that divides")
    b, width, mine = local.samples, model.table_width, model.tables // local.ep
    lookups = b * local.ep * mine * model.pooling
    table = embedding(lookups, width, "tables", dtype=local.dtype, params=model.tables * model.table_rows * width,
                      local=mine * model.table_rows * width)  # fmt: skip
    size = bytes_of(b * model.tables * width, local.dtype)
    sparse = [
        table.replace(expert=True),
        *exchanged(Collective.ALL_TO_ALL, "ep", local.ep, size, "tables", Stream.EXPERT, dtype=local.dtype),
    ]
    vectors = model.tables + 1
    met = gemm(vectors, vectors, width, "interaction", dtype=local.dtype, batch=b)
    met = met.replace(
        backward=(met.replace(phase=Phase.INPUT), met.replace(phase=Phase.INPUT)),
        saved_bytes=bytes_of(b * vectors * width, local.dtype),
    )
    features = vectors * (vectors - 1) // 2 + width
    bottom = perceptron(local, model.dense_features, model.bottom, "bottom")
    top = [met, *perceptron(local, features, model.top, "top"), _loss(b)]
    out = bytes_of(b * vectors * width, local.dtype)
    return [Block("embedding", (*sparse, *bottom), out), Block("layers.0", tuple(top), 0)]


def perceptron(local: Shard, into: int, widths: tuple[int, ...], part: str) -> list[Op]:
    ops: list[Op] = []
    for i, width in enumerate(widths):
        ops += plain(local, local.samples, into, width, f"{part}.{i}", params=into * width + width)
        ops.append(activation(local.samples * width, f"{part}.{i}", gated=False, dtype=local.dtype))
        into = width
    return ops


def _loss(samples: int) -> Op:
    w = work.elementwise(samples, inputs=2, dtype="fp32")
    one = compute("aten::binary_cross_entropy", "loss", w, shapes((samples,), (samples,)), shapes((samples,)))
    return one.replace(backward=(one.replace(phase=Phase.INPUT),))
