"""Program: all nodes of one pipeline rank's step. Fragments are placed one after another and connected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from etude.kernels.arrays import I32, I64
from etude.make.generate.blocks.ops import Op
from etude.make.generate.nodes import Book, End, StepNodes, Units
from etude.make.generate.train.fragment import BEFORE, Fragment


class StepProgram:
    """Rows and edges in order of creation. `place` returns the row at which a fragment begins.

    A fragment is placed once for each micro-batch, so `place` only records where; the columns are built at the end, all
    places of a fragment at once.
    """

    def __init__(self, book: Book) -> None:
        self.book = book
        self.rows = 0
        self._placed: dict[int, tuple[Fragment, list[int], list[int]]] = {}
        """id of a fragment -> (fragment, its first rows, its micro-batches)."""
        self._single: list[tuple[int, int, int, int, int]] = []
        """Single nodes: row, op, module, micro-batch, tag."""
        self._steps: list[tuple[int, int]] = [(0, 0)]
        """(first row, step) of each step."""
        self._data: list[tuple[int, int]] = []
        self._ctrl: list[tuple[int, int]] = []
        self.units: list[tuple[int, ...]] = []
        """Rows of `Units`, recorded where directives rewrite the program."""
        self.ends: list[End] = []
        self._pairs: list[tuple[int, int, int]] = []
        """Rows at which two actions that run together begin, meet and end."""

    def begin(self, step: int) -> None:
        """All rows added from now on belong to this step."""
        if self._steps[-1][1] != step:
            self._steps.append((self.rows, step))

    def place(self, fragment: Fragment, micro_batch: int, values: Sequence[int] = (), tips: Sequence[int] = ()) -> int:
        base = self.rows
        _, bases, micros = self._placed.setdefault(id(fragment), (fragment, [], []))
        bases.append(base)
        micros.append(micro_batch)
        self.rows += len(fragment.op)
        self._data += [(base + row, w) for row in fragment.on_value for w in values if w != BEFORE]
        self._ctrl += [(base + row, w) for row in fragment.on_tip for w in tips if w != BEFORE]
        return base

    def together(self, first: int, second: int, end: int) -> None:
        """The rows of two actions, `first` to `second` and on to `end`, take turns: collectives of a group meet in the
        order of rows, so that those of one action come between those of the other."""
        self._pairs.append((first, second, end))

    def add(
        self,
        op: Op,
        module: str,
        *,
        micro_batch: int = -1,
        data: Sequence[int] = (),
        ctrl: Sequence[int] = (),
        tag: int = -1,
    ) -> int:
        """Adds a single node and returns its row."""
        row = self.rows
        path = f"{module}.{op.part}" if op.part else module
        self._single.append((row, self.book.op(op), self.book.module(path), micro_batch, tag))
        self.rows += 1
        self.join(row, data, ctrl)
        return row

    def join(self, row: int, data: Sequence[int] = (), ctrl: Sequence[int] = ()) -> None:
        """Adds dependencies of a row on others."""
        self._data += [(row, w) for w in data if w != BEFORE]
        self._ctrl += [(row, w) for w in ctrl if w != BEFORE]

    def _rows(self) -> tuple[I32, I32, I64, I64]:
        """Op, module, micro-batch and tag of every row."""
        op, module = np.empty(self.rows, np.int32), np.empty(self.rows, np.int32)
        micro, tag = np.empty(self.rows, np.int64), np.full(self.rows, -1, np.int64)
        for fragment, bases, micros in self._placed.values():
            at = np.array(bases)[:, None] + np.arange(len(fragment.op))
            op[at], module[at] = fragment.op, fragment.module
            micro[at] = np.array(micros)[:, None]
        if self._single:
            row, one, path, batch, number = np.array(self._single).T
            op[row], module[row], micro[row], tag[row] = one, path, batch, number
        return op, module, micro, tag

    def _edges(self, name: str, more: list[tuple[int, int]]) -> I32:
        """Edges inside fragments and between them."""
        found = [np.array(more, np.int32).reshape(-1, 2).T]
        for fragment, bases, _ in self._placed.values():
            inside: I32 = getattr(fragment, name)
            found.append((inside[:, None, :] + np.array(bases, np.int32)[None, :, None]).reshape(2, -1))
        return np.concatenate(found, axis=1)

    def nodes(self) -> StepNodes:
        """All nodes of the program, with fragments expanded."""
        op, module, micro, tag = self._rows()
        data, ctrl = self._edges("data", self._data), self._edges("ctrl", self._ctrl)
        if self._pairs:
            order = turns(self._pairs, self.rows, np.concatenate([data, ctrl], axis=1))
            place = np.empty_like(order)
            place[order] = np.arange(self.rows, dtype=np.int32)
            op, module, micro, tag = op[order], module[order], micro[order], tag[order]
            data, ctrl = place[data], place[ctrl]
        since, step = np.array(self._steps, np.int64).T
        units = np.array(self.units, np.int64).reshape(-1, len(Units._fields)).T
        return StepNodes(
            book=self.book,
            op=op,
            module=module,
            micro=micro,
            tag=tag,
            step=np.repeat(step, np.diff(since, append=self.rows)),
            data=data,
            ctrl=ctrl,
            units=Units(*units),
            ends=tuple(self.ends),
        )


def turns(pairs: Sequence[tuple[int, int, int]], rows: int, edges: I32) -> I32:
    """The order of rows in which those of each pair (where it begins, where its second part does, where it ends) take
    turns, evenly over both parts. `edges` (row, row that it waits for) never point forward: a pair whose second part
    waits for the first keeps its order."""
    begin, middle, end = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    waits, on = edges
    at = np.maximum(np.searchsorted(begin, waits, side="right") - 1, 0)
    inside = (waits >= middle[at]) & (waits < end[at]) & (on >= begin[at]) & (on < middle[at])
    whole = np.zeros(len(pairs), bool)
    whole[at[inside]] = True
    order = np.arange(rows, dtype=np.int32)
    known: dict[tuple[int, int], I32] = {}
    for one, two, last in (pairs[i] for i in np.flatnonzero(~whole).tolist()):
        sizes = two - one, last - two
        if sizes not in known:
            when = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
            known[sizes] = np.argsort(when, kind="stable").astype(np.int32)
        order[one:last] = one + known[sizes]
    return order
