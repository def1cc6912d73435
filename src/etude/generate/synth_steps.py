"""The order of a role written out: nodes, and what each waits for, step after step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.errors import UsageError
from etude.generate.synth import Learned, LearnedRole
from etude.generate.synth_grammar import unfolded
from etude.model.schema import Kind

MAX_NODES: Final = 20_000_000


@dataclass(slots=True, eq=False)
class Unrolled:
    """Class, step and edges of each node."""

    node_class: NDArray[np.int64]
    step: NDArray[np.int64]
    data: list[list[int]]
    ctrl: list[list[int]]


def unrolled(learned: Learned, role: LearnedRole, steps: int, depth: float) -> Unrolled:
    """A role with so many steps (0: as many as were learned). Steps that were learned inside the program wait for one
    another as they did; a program that is one step begins again when all of it is over."""
    # A message more or less on one side would leave the other waiting.
    messages = {
        i for i, s in enumerate(learned.symbols) if learned.classes[s.node_class].kind in (Kind.SEND, Kind.RECV)
    }
    if role.step < 0:
        once = unfolded(role.order, depth, messages)
        parts, apart = [once] * max(steps, 1), True
    else:
        times, one = role.order[role.step]
        parts, apart = [unfolded(one, depth, messages)] * (steps or times), False
        parts[0] = unfolded(role.order[: role.step]) + parts[0]
        parts[-1] = parts[-1] + unfolded(role.order[role.step + 1 :])
    if sum(map(len, parts)) > MAX_NODES:
        raise UsageError(f"{sum(map(len, parts)):,} nodes a rank are too many", hint="fewer --steps")
    writer = _Writer(learned)
    for step, symbols in enumerate(parts):
        writer.place(symbols, step, apart)
    return Unrolled(np.array(writer.node_class, np.int64), np.array(writer.step, np.int64), writer.data, writer.ctrl)


@dataclass(slots=True)
class _Writer:
    learned: Learned
    node_class: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    data: list[list[int]] = field(default_factory=list)
    ctrl: list[list[int]] = field(default_factory=list)
    rows: dict[int, list[int]] = field(default_factory=dict)
    last: list[int] = field(default_factory=list)
    """Nodes of the step before that nothing in it waits for."""

    def place(self, symbols: list[int], step: int, apart: bool) -> None:
        base = len(self.node_class)
        if apart:
            self.rows = {}
        waited = set()
        for number in symbols:
            symbol = self.learned.symbols[number]
            row = len(self.node_class)
            for waits, edges in ((symbol.data, self.data), (symbol.ctrl, self.ctrl)):
                found = [self.rows[c][-back] for c, back in waits if len(self.rows.get(c, ())) >= back]
                edges.append(found)
                waited.update(found)
            self.node_class.append(symbol.node_class)
            self.step.append(step)
            self.rows.setdefault(symbol.node_class, []).append(row)
        if apart and step:
            self._join(base)
        self.last = [row for row in range(base, len(self.node_class)) if row not in waited]

    def _join(self, base: int) -> None:
        """A step begins when the one before has ended: one of its last nodes gathers the others."""
        *others, gate = self.last
        self.ctrl[gate] = [*self.ctrl[gate], *others]
        for row in range(base, len(self.node_class)):
            if not self.data[row] and not self.ctrl[row]:
                self.ctrl[row] = [gate]
