"""Encoder-decoder transformers as blocks: the encoder's output is passed along with the decoder's."""

from __future__ import annotations

from dataclasses import replace

from etude.make.generate.blocks.attention import Heads, core
from etude.make.generate.blocks.ops import Op, add, bytes_of
from etude.make.generate.blocks.shard import Block, Shard, column, row
from etude.make.generate.blocks.transformer import embed, feed_forward, head, layer, normed, self_attention
from etude.make.generate.model.shape import Model


def blocks(model: Model, local: Shard) -> list[Block]:
    first = replace(local, seq=model.encoder_seq or local.seq)
    kept = bytes_of(first.rows * model.hidden, local.dtype)
    both = kept + bytes_of(local.rows * model.hidden, local.dtype)
    relative = (
        model.relative_buckets * model.heads,
        model.relative_buckets * local.split(model.heads, "attention heads"),
    )
    encode = tuple(layer(model, first, experts=False, causal=False))
    decode = tuple(decoder_layer(model, local, first))
    found = [Block("embedding", tuple(_with(embed(model, first), relative)), kept)]
    for i in range(model.encoder_layers):
        ops = (*encode, normed(model, first, "final_norm")) if i + 1 == model.encoder_layers else encode
        found.append(Block(f"encoder.{i}", ops, kept if i + 1 < model.encoder_layers else both))
    for i in range(model.layers):
        start = tuple(_again(model, local, relative)) if i == 0 else ()
        found.append(Block(f"decoder.{i}", (*start, *decode), both))
    return [*found, Block("head", tuple(head(model, local)), 0)]


def _with(ops: list[Op], relative: tuple[int, int]) -> list[Op]:
    """The relative position table of a stack of layers (whole, and a rank's heads of it) counts for its first op."""
    first, (params, held) = ops[0], relative
    return [first.replace(params=first.params + params, local_params=first.local_params + held), *ops[1:]]


def _again(model: Model, local: Shard, relative: tuple[int, int]) -> list[Op]:
    """The decoder's own tokens; their embedding is the encoder's."""
    first, *rest = embed(model, local)
    bare = first.replace(params=0, local_params=0, tied_params=first.local_params)
    return _with([bare, *rest], relative)


def decoder_layer(model: Model, local: Shard, encoder: Shard) -> list[Op]:
    residual = add(local.rows * model.hidden, "residual", dtype=local.dtype, backward=True)
    return [
        normed(model, local, "attention_norm"),
        *self_attention(model, local),
        residual,
        normed(model, local, "cross_norm"),
        *cross_attention(model, local, encoder),
        residual,
        normed(model, local, "ffn_norm"),
        *feed_forward(model, local),
        residual,
    ]


def cross_attention(model: Model, local: Shard, encoder: Shard) -> list[Op]:
    """Queries of the decoder against keys and values of the encoder."""
    h, d = model.hidden, model.head
    heads, wide = local.split(model.heads, "attention heads"), model.heads * d
    ops = column(local, h, heads * d, "cross.q", params=h * wide)
    ops += column(encoder, h, 2 * heads * d, "cross.kv", params=2 * h * wide)
    shape = Heads(
        samples=local.samples, queries=local.seq, keys=encoder.seq, heads=heads, kv_heads=heads, key_size=d,
        value_size=d, causal=False,
    )  # fmt: skip
    return [*ops, *core(local, shape, "cross.core"), *row(local, heads * d, h, "cross.out", params=wide * h)]
