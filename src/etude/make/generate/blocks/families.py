"""Blocks of a model, whatever its family."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from etude.make.generate.blocks import composed, encoder_decoder, recommend, transformer, vision
from etude.make.generate.blocks.shard import Block, Shard
from etude.make.generate.blocks.towers import with_towers
from etude.make.generate.model.shape import Family, Model

BLOCKS: Final[dict[Family, Callable[[Model, Shard], list[Block]]]] = {
    Family.DECODER: transformer.blocks,
    Family.ENCODER: transformer.blocks,
    Family.ENCODER_DECODER: encoder_decoder.blocks,
    Family.VIT: vision.vit,
    Family.DIT: vision.dit,
    Family.CONVNET: vision.convnet,
    Family.DLRM: recommend.blocks,
    Family.COMPOSED: composed.blocks,
}


def blocks_of(model: Model, local: Shard) -> list[Block]:
    """From first to last, with figures of one rank and one micro-batch."""
    return list(_made(model, local))


@lru_cache(maxsize=256)
def _made(model: Model, local: Shard) -> tuple[Block, ...]:
    """Cached: plans of a search often have the same shards."""
    found = BLOCKS[model.family](model, local)
    return tuple(with_towers(model, local, found) if model.towers else found)
