"""open_ops(path): a database of operators: our own file, or a profile folder of a serving simulator."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from etude.cost.opdb import OpDatabase, read_ops
from etude.cost.opdb.profiles import META, ModelShape, read_profile
from etude.make.generate.model import Model, open_model


def open_ops(path: str | PathLike[str]) -> OpDatabase:
    """A file that `etude ops` made, or a folder with `meta.yaml` and `tp1/dense.csv`."""
    folder = Path(fspath(path))
    if folder.is_dir():
        return read_profile(folder, lambda name: shape_of(open_model(name)))
    return read_ops(path)


def shape_of(model: Model) -> ModelShape:
    """The dimensions of a model that its operators have."""
    return ModelShape(
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv,
        head_size=model.head,
        ffn=model.ffn,
        gated=model.gated,
        vocab=model.vocab,
        experts=model.experts,
        expert_ffn=model.expert_ffn if model.experts else 0,
    )


__all__ = ["META", "open_ops", "shape_of"]
