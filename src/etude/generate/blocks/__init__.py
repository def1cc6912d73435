"""Blocks: layers, embeddings and heads as lists of ops with their backward."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.generate.blocks.families import blocks_of as blocks_of
    from etude.generate.blocks.ops import Op as Op
    from etude.generate.blocks.ops import in_types as in_types
    from etude.generate.blocks.shard import Block as Block
    from etude.generate.blocks.shard import Shard as Shard

__getattr__ = face(__name__)
