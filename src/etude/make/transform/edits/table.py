"""All edits, one line each."""

from typing import Final

from etude.make.transform.edits import (
    compress,
    data,
    drop,
    dtype,
    fuse,
    merge,
    offload,
    one_sided,
    overlap,
    progress,
    recompute,
    relax,
    rounds,
    scale,
    speed,
    split,
)
from etude.make.transform.edits.definition import Definition

TABLE: Final[dict[str, Definition]] = {
    "speed": speed.EDIT,
    "dtype": dtype.EDIT,
    "drop": drop.EDIT,
    "compress": compress.EDIT,
    "fuse": fuse.EDIT,
    "merge": merge.EDIT,
    "split": split.SPLIT,
    "chunk": split.CHUNK,
    "rounds": rounds.EDIT,
    "relax": relax.EDIT,
    "recompute": recompute.EDIT,
    "overlap": overlap.EDIT,
    "one_sided": one_sided.EDIT,
    "offload": offload.EDIT,
    "data": data.EDIT,
    "progress": progress.EDIT,
    "scale": scale.EDIT,
}
