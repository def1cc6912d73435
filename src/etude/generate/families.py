"""Blocks of a model, whatever its family."""

from __future__ import annotations

from etude.errors import UsageError
from etude.generate import transformer
from etude.generate.local import Block, Local
from etude.generate.model import Family, Model


def blocks_of(model: Model, local: Local) -> list[Block]:
    if model.family in (Family.DECODER, Family.ENCODER):
        return transformer.blocks(model, local)
    raise UsageError(f"models of family `{model.family}` are not generated yet")
