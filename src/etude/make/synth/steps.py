"""The order of a role written out: nodes, and what each waits for, step after step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.make.synth.grammar import unfolded
from etude.make.synth.learned import Learned, LearnedRole
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
    """A role with this many steps (0: as many as were learned). Steps wait for one another as they did; where they
    begin from the first again, the first waits until all is over."""
    # A message more or less on one side would leave the other waiting.
    sends = {number for number, one in enumerate(learned.classes) if one.kind in (Kind.SEND, Kind.RECV)}
    messages = {number for number, symbol in enumerate(learned.symbols) if symbol.node_class in sends}
    each = [unfolded(one, depth, messages) for _, one in role.order]
    turns = _turns(role, steps)
    if sum(len(each[turn]) for turn in turns) > MAX_NODES:
        raise UsageError(
            f"{sum(len(each[turn]) for turn in turns):,} nodes per rank are too many", hint="use fewer --steps"
        )
    writer = _StepWriter(learned)
    for step, turn in enumerate(turns):
        again = step > 0 and (turn < turns[step - 1] or (turn == turns[step - 1] and turn != role.step))
        writer.place(each[turn], step, again)
    return Unrolled(np.array(writer.node_class, np.int64), np.array(writer.step, np.int64), writer.data, writer.ctrl)


def _turns(role: LearnedRole, steps: int) -> list[int]:
    """Which of the role's steps come, in order."""
    learned = [turn for turn, (times, _) in enumerate(role.order) for _ in range(times)]
    if not steps:
        return learned
    if role.step < 0:
        return (learned * -(-steps // len(learned)))[:steps]
    others = len(role.order) - 1
    if steps <= others:
        return [role.step] * steps
    return [turn for turn in range(len(role.order)) for _ in range(steps - others if turn == role.step else 1)]


@dataclass(slots=True)
class _StepWriter:
    learned: Learned
    node_class: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    data: list[list[int]] = field(default_factory=list)
    ctrl: list[list[int]] = field(default_factory=list)
    rows: dict[int, list[int]] = field(default_factory=dict)
    last: list[int] = field(default_factory=list)
    """Nodes of the step before that nothing in it waits for."""

    def place(self, symbols: list[int], step: int, again: bool) -> None:
        base = len(self.node_class)
        if again:
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
        if again:
            self._join(base)
        self.last = [row for row in range(base, len(self.node_class)) if row not in waited]

    def _join(self, base: int) -> None:
        """A step begins when the one before has ended: one of its last nodes gathers the others."""
        *others, gate = self.last
        self.ctrl[gate] = [*self.ctrl[gate], *others]
        for row in range(base, len(self.node_class)):
            if not self.data[row] and not self.ctrl[row]:
                self.ctrl[row] = [gate]
