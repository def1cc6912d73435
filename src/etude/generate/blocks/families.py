"""Blocks of a model, whatever its family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from etude.generate.blocks import encoder_decoder, recommend, transformer, vision
from etude.generate.blocks.shard import Block, Shard
from etude.generate.model.shape import Family, Model

BLOCKS: Final[dict[Family, Callable[[Model, Shard], list[Block]]]] = {
    Family.DECODER: transformer.blocks,
    Family.ENCODER: transformer.blocks,
    Family.ENCODER_DECODER: encoder_decoder.blocks,
    Family.VIT: vision.vit,
    Family.DIT: vision.dit,
    Family.CONVNET: vision.convnet,
    Family.DLRM: recommend.blocks,
}


def blocks_of(model: Model, local: Shard) -> list[Block]:
    """From first to last, figures of one rank and one micro-batch."""
    return BLOCKS[model.family](model, local)
