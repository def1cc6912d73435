"""Fragment: the ops of one action (a stage forward or backward) as rows with edges, ready to be placed many times.

How rows depend on one another: the compute stream runs in order, and `tip` is its last row. `value` is the row whose
result the next op takes as its input.

    compute            waits for the value, and for the tip's turn; becomes both
    weight gradient    waits for the tip's turn; becomes the tip, not the value
    communication      waits for the value, and for the tip's turn (as a kernel waits for the stream that issued it);
                       becomes the value, unless it was only started: then the ops that name it wait for it
    receive            waits for nothing

The first rows depend on the value and the tip of the fragment before: rows that need these are listed separately.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from etude.kernels.arrays import I32
from etude.make.generate.blocks.ops import Op, Phase
from etude.make.generate.blocks.recompute import redone
from etude.make.generate.blocks.shard import Block
from etude.make.generate.nodes import Book
from etude.model.schema import Kind

BEFORE = -1
"""Denotes the value or the tip of the fragment before."""


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """Rows of one action. Edges inside it are pairs (row, row that it waits for)."""

    op: I32
    module: I32
    data: I32
    """Edges, 2 x number of edges."""
    ctrl: I32
    on_value: list[int]
    """Rows that wait for the value of the fragment before."""
    on_tip: list[int]
    """Rows that wait for the tip of the fragment before."""
    value: int
    """Row with the result; BEFORE if there is none."""
    tip: int
    """Last row on the compute stream; BEFORE if there is none."""
    first: I32
    """First row of each block, in the order in which blocks run; len(op) for a block without rows."""
    last: I32
    """Tip after each block; BEFORE if there is no row yet."""
    blocks: I32
    """Index in the stage of each of these blocks."""

    def __len__(self) -> int:
        return len(self.op)


@dataclass(slots=True)
class Emitter:
    book: Book
    op: list[int] = field(default_factory=list)
    module: list[int] = field(default_factory=list)
    """Index of each row's module path in `paths`."""
    paths: dict[tuple[str, str], int] = field(default_factory=dict)
    data: list[tuple[int, int]] = field(default_factory=list)
    ctrl: list[tuple[int, int]] = field(default_factory=list)
    on_value: list[int] = field(default_factory=list)
    on_tip: list[int] = field(default_factory=list)
    value: int = BEFORE
    tip: int = BEFORE
    pending: dict[str, int] = field(default_factory=dict)

    def add(self, op: Op, prefix: str, phase: Phase | None = None) -> None:
        row = len(self.op)
        self.op.append(self.book.op(op, phase))
        self.module.append(self.paths.setdefault((prefix, op.part), len(self.paths)))
        for key in op.waits:
            if key in self.pending:
                self.data.append((row, self.pending[key]))
        if op.kind == Kind.RECV:
            self._after(row, op)
            return
        turn = self.tip
        if not op.side:
            self._wait(row, self.value, self.data, self.on_value)
        elif row == 0:
            self.on_value.append(row)
        if op.side or turn != self.value or turn == BEFORE:
            self._wait(row, turn, self.ctrl, self.on_tip)
        if op.kind == Kind.COMP:
            self.tip = row
            self.value = self.value if op.side else row
        else:
            self._after(row, op)

    def _after(self, row: int, op: Op) -> None:
        if op.start:
            self.pending[op.start] = row
        else:
            self.value = row

    def _wait(self, row: int, on: int, edges: list[tuple[int, int]], outside: list[int]) -> None:
        if on == BEFORE:
            outside.append(row)
        else:
            edges.append((row, on))

    def done(self, first: Sequence[int], last: Sequence[int], blocks: Sequence[int]) -> Fragment:
        def pairs(edges: list[tuple[int, int]]) -> I32:
            return np.array(edges, np.int32).reshape(-1, 2).T

        def rows(values: Iterable[int]) -> I32:
            return np.array(list(values), np.int32)

        return Fragment(
            op=rows(self.op),
            module=_numbers(self.book, self.paths)[rows(self.module)],
            data=pairs(self.data),
            ctrl=pairs(self.ctrl),
            on_value=self.on_value,
            on_tip=self.on_tip,
            value=self.value,
            tip=self.tip,
            first=rows(first),
            last=rows(last),
            blocks=rows(blocks),
        )


def _numbers(book: Book, paths: Iterable[tuple[str, str]]) -> I32:
    return np.array([book.module(f"{prefix}.{part}" if part else prefix) for prefix, part in paths], np.int32)


class Pattern(NamedTuple):
    """A fragment that stages with the same blocks share, except for the names of the blocks."""

    blocks: Sequence[Block]
    """Kept alive, because the key contains the ids of their ops."""
    fragment: Fragment
    paths: list[tuple[int, str]]
    """For each module: index of the block, and path inside the block."""
    module: I32
    """For each row: index into `paths`."""


def _alike(
    book: Book, kind: Hashable, blocks: Sequence[Block], emit: Callable[[], tuple[Emitter, Fragment]]
) -> Fragment:
    """The fragment that `emit` makes, or the known one of blocks with the same ops, with the names of these blocks."""
    key = kind, tuple(id(b.ops) for b in blocks)
    made = book.patterns.get(key)
    if made is None:
        emitter, fragment = emit()
        number = {b.name: i for i, b in enumerate(blocks)}
        paths = [(number[prefix], part) for prefix, part in emitter.paths]
        book.patterns[key] = Pattern(blocks, fragment, paths, np.array(emitter.module, np.int32))
        return fragment
    named = _numbers(book, [(blocks[number].name, part) for number, part in made.paths])
    return replace(made.fragment, module=named[made.module])


def forward(book: Book, blocks: Sequence[Block]) -> Fragment:
    """Fragment of a stage's forward pass."""
    return _alike(book, "forward", blocks, lambda: _forward(book, blocks))


def _forward(book: Book, blocks: Sequence[Block]) -> tuple[Emitter, Fragment]:
    emitter = Emitter(book)
    first, last = [], []
    for block in blocks:
        first.append(len(emitter.op))
        for op in block.ops:
            emitter.add(op, block.name)
        last.append(emitter.tip)
    return emitter, emitter.done(first, last, range(len(blocks)))


BOTH = (Phase.INPUT, Phase.WEIGHT)


def backward(book: Book, blocks: Sequence[Block], twice: frozenset[str], phases: Sequence[Phase] = BOTH) -> Fragment:
    """Fragment of a stage's backward pass, or of the part that `phases` names; blocks and their ops run from last to
    first."""
    return _alike(book, (twice, *phases), blocks, lambda: _backward(book, blocks, twice, phases))


def _backward(
    book: Book, blocks: Sequence[Block], twice: frozenset[str], phases: Sequence[Phase]
) -> tuple[Emitter, Fragment]:
    emitter = Emitter(book)
    first, last = [], []
    order = [number for number in reversed(range(len(blocks))) if blocks[number].goes_back]
    for number in order:
        block = blocks[number]
        first.append(len(emitter.op))
        again = redone(block, twice) if Phase.INPUT in phases else {}
        for i in reversed(range(len(block.ops))):
            for op in again.get(i, []):
                emitter.add(op, block.name, Phase.RECOMPUTE)
            for op in block.ops[i].backward:
                if op.phase in phases:
                    emitter.add(op, block.name)
        last.append(emitter.tip)
    return emitter, emitter.done(first, last, order)
