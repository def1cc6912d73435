"""Blocks: layers, embeddings and heads as lists of ops with their backward."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.make.generate.blocks.families import blocks_of as blocks_of
    from etude.make.generate.blocks.ops import Op as Op
    from etude.make.generate.blocks.ops import in_types as in_types
    from etude.make.generate.blocks.shard import Block as Block
    from etude.make.generate.blocks.shard import Shard as Shard

__getattr__ = face(__name__)
