"""Towers of a decoder: images or sounds become tokens, which the decoder's layers process with the text."""

from __future__ import annotations

from dataclasses import replace

from etude.make.generate.blocks.composed import built
from etude.make.generate.blocks.shard import Block, Shard
from etude.make.generate.model.shape import Model


def with_towers(model: Model, local: Shard, decoder: list[Block]) -> list[Block]:
    """The embedding, the towers one after another, the layers: text is passed along with the output of a tower."""
    embedding, *layers = decoder
    found = [embedding]
    for tower in model.towers:
        made = built(tower.blocks, tower.streams, local, f"{tower.name}.")
        found += [replace(block, out_bytes=block.out_bytes + embedding.out_bytes) for block in made]
    return [*found, *layers]


def tower_blocks(model: Model, local: Shard) -> list[Block]:
    """Blocks of the towers only."""
    return [b for tower in model.towers for b in built(tower.blocks, tower.streams, local, f"{tower.name}.")]
