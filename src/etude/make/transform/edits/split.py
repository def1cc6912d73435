"""split and chunk: one node becomes several that follow one another, with equal parts of its work.

split into=4          four pieces of each node
chunk size=1MB        as many pieces as it takes that none is larger
"""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.make.transform.edits.definition import Definition, Here, Parameter, size, whole
from etude.make.transform.rewrite.rewriting import AFTER
from etude.make.transform.rewrite.selector import moved_bytes
from etude.model.job import VALUE_COLUMNS
from etude.model.schema import NO_TEXT, UNKNOWN, Why

MOST: Final = 4096
"""Most pieces of one node."""
_SHAPES: Final = ("in_shapes", "out_shapes", "in_strides", "out_strides")


def split(here: Here, into: int) -> None:
    _cut(here, here.rows, np.full(len(here.rows), into, np.int64))


def chunk(here: Here, size: int) -> None:
    moved = moved_bytes(here.trace)[here.rows]
    unknown = moved == UNKNOWN
    if unknown.any():
        here.note(f"{int(unknown.sum()):,} selected nodes have no known size and are not split")
    _cut(here, here.rows, np.where(unknown, 1, -(-np.maximum(moved, 1) // size)))


def _cut(here: Here, rows: I64, pieces: I64) -> None:
    """The node itself is its first piece; the others follow, each after the one before."""
    rows, pieces = rows[pieces > 1], pieces[pieces > 1]
    if not len(rows):
        return
    if pieces.max() > MOST:
        raise UsageError(f"a node would become {int(pieces.max()):,} pieces", hint=f"at most {MOST:,}")
    trace, made = here.trace, here.made
    columns = {name: getattr(trace, name)[rows] for name in VALUE_COLUMNS}
    shapeless = dict.fromkeys(_SHAPES, NO_TEXT)
    before = rows.copy()
    for number in range(1, int(pieces.max())):
        there = pieces > number
        values = {name: _part(column[there], pieces[there], number) for name, column in columns.items()}
        piece = made.copy(rows[there], AFTER + number, **values, **shapeless)
        made.wait(piece, before[there], Why.PROGRAM, data=False)
        before[there] = piece
    for name, column in columns.items():
        if (column != UNKNOWN).any():
            made.set(name, rows, _part(column, pieces, 0))
    for name in _SHAPES:  # of the whole: a piece is described by its FLOPs and bytes
        if (getattr(trace, name)[rows] != NO_TEXT).any():
            made.set(name, rows, NO_TEXT)
    made.leave(rows, before, order=True)


def _part(column: I64, pieces: I64, number: int) -> I64:
    """Equal parts of whole numbers: if there is a remainder, the first ones are larger by one."""
    part = column // pieces + (number < column % pieces)
    return np.where(column == UNKNOWN, UNKNOWN, part)


SPLIT = Definition(
    doc="each node becomes `into` nodes in a row with equal parts of its bytes, FLOPs and time",
    cannot="how efficient smaller kernels are: pieces have no shapes",
    parameters={"into": Parameter(read=whole(1), doc="pieces: 4")},
    selects="communication",
    rewrite=split,
)
CHUNK = Definition(
    doc="each node becomes a sequence of nodes of at most `size` bytes each",
    cannot="how efficient smaller kernels are: pieces have no shapes",
    parameters={"size": Parameter(read=lambda text: max(size(text), 1), doc="largest size of a piece: 1MB")},
    selects="communication",
    rewrite=chunk,
)
