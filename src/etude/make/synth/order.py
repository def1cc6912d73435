"""The order of a program: its nodes as symbols, repeats folded, one step for all similar ones."""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.kernels.arrays import I64, distinct_values
from etude.make.synth.grammar import Folded, folded
from etude.make.synth.learned import LearnedRole, Symbol
from etude.make.synth.programs import FIELDS, LearnedProgram

Waits = list[list[int]]
"""What each place waits for."""

WINDOW: Final = 4096
"""Nodes back within which redundant dependencies are found."""


def learned_role(program: LearnedProgram, classes: I64, block: tuple[int, int], book: dict[Symbol, int]) -> LearnedRole:
    """The program. `block`: (first, end) of the steps that are taken for one, which is the one that takes the middle
    time of those that have one of them before; (0, 0): none are."""
    groups, peers = len(program.group_slots), len(program.peer_slots)
    begin, end = block
    data, ctrl = _waits(program)
    if not end:
        order = _by_step(_symbols(classes, data, ctrl, book), program.step)
        return LearnedRole(order=order, groups=groups, peers=peers)
    took = np.bincount(program.step, program.time_ns)
    model = sorted(range(begin + 1, end), key=lambda s: (took[s], s))[(end - begin - 1) // 2]
    twice = _Twice(program, classes, begin, end, model)
    symbols, step = _symbols(classes[twice.places], *twice.waits(data, ctrl), book), program.step[twice.places]
    before, one, behind = (
        _by_step(symbols[twice.part == p], step[twice.part == p]) for p in (_Twice.BEFORE, _Twice.MODEL, _Twice.BEHIND)
    )
    order = [*before, (end - begin, one[0][1]), *behind]
    return LearnedRole(order=order, groups=groups, peers=peers, step=len(before))


def _by_step(symbols: I64, step: I64) -> list[tuple[int, Folded]]:
    return [(1, folded(symbols[step == s])) for s in distinct_values(step)]


class _Twice:
    """What comes before the block, its model step twice, and what comes behind: dependencies on the previous step are
    then like those in any sequence."""

    BEFORE, FIRST, MODEL, BEHIND = range(4)

    def __init__(self, program: LearnedProgram, classes: I64, begin: int, end: int, model: int) -> None:
        self.program, self.classes, self.model = program, classes, model
        parts = [
            np.flatnonzero(mine)
            for mine in (program.step < begin, program.step == model, program.step == model, program.step >= end)
        ]
        self.places = np.concatenate(parts)
        self.part = np.repeat(range(4), [len(p) for p in parts])
        self.first = np.cumsum([0, *map(len, parts)])
        self.inside = (program.step >= begin) & (program.step < end)
        self.at = np.full(len(program), -1, np.int64)
        for part in (self.BEFORE, self.MODEL, self.BEHIND):
            self.at[parts[part]] = self.first[part] + np.arange(len(parts[part]))
        self.lane = program.what[:, [FIELDS.index("cpu"), FIELDS.index("lane")]]
        self.mine = parts[1]

    def waits(self, data: Waits, ctrl: Waits) -> tuple[Waits, Waits]:
        """What each place of this sequence waits for. What is before the block and is waited for from inside or
        behind it is left out: it is as far back as there are steps. Who waited for nothing else waits for the end of
        its lane in the step before."""
        found: tuple[Waits, Waits] = ([], [])
        for i, part in zip(self.places.tolist(), self.part.tolist(), strict=True):
            mapped = [sorted({self._target(j, part) for j in waits[i]} - {-1}) for waits in (data, ctrl)]
            if (data[i] or ctrl[i]) and not mapped[0] and not mapped[1] and part >= self.MODEL:
                mapped[1] = [self._end_of_lane(i) + int(self.first[part - 1])]
            for waits, some in zip(found, mapped, strict=True):
                waits.append([] if part == self.FIRST else some)
        return found

    def _target(self, j: int, part: int) -> int:
        """The position here of a place that is waited for from this part; -1: none."""
        if not self.inside[j]:
            return int(self.at[j]) if self.part[self.at[j]] == part else -1
        if part == self.BEHIND or self.program.step[j] == self.model:
            return int(self.at[self._twin(j)])
        return int(self.at[self._twin(j)] - len(self.mine))

    def _twin(self, j: int) -> int:
        """The place in the model step that corresponds to a place of another step: of its class the
        one that comes as late, where both have as many; or else what comes as late on its lane."""
        step = int(self.program.step[j])
        if step == self.model:
            return j
        theirs = np.flatnonzero((self.program.step == step) & (self.classes == self.classes[j]))
        same = self.mine[self.classes[self.mine] == self.classes[j]]
        if len(same) == len(theirs):
            return int(same[np.searchsorted(theirs, j)])
        lane = self._lane(j, self.mine)
        if not len(lane):
            return int(self.mine[-1])
        whole = self._lane(j, np.flatnonzero(self.program.step == step))
        return int(lane[round(int(np.searchsorted(whole, j)) / max(len(whole) - 1, 1) * (len(lane) - 1))])

    def _end_of_lane(self, i: int) -> int:
        """The last place of the model step on the lane of a place, counted from its beginning."""
        lane = self._lane(i, self.mine)
        return int(lane[-1] if len(lane) else self.mine[-1]) - int(self.mine[0])

    def _lane(self, i: int, places: I64) -> I64:
        """Those of the places that are on the lane of place i."""
        return places[(self.lane[places] == self.lane[i]).all(axis=1)]


def _symbols(classes: I64, data: Waits, ctrl: Waits, book: dict[Symbol, int]) -> I64:
    """A symbol for each place: its class, and what it waits for."""
    within, numbers = _within(classes).tolist(), classes.tolist()
    seen: dict[int, int] = {}
    found = []
    for i, number in enumerate(numbers):
        said = [tuple(sorted((numbers[j], seen[numbers[j]] - within[j]) for j in waits[i])) for waits in (data, ctrl)]
        found.append(book.setdefault(Symbol(number, *said), len(book)))
        seen[number] = seen.get(number, 0) + 1
    return np.array(found, np.int64)


def _within(classes: I64) -> I64:
    """Number of earlier nodes of its class, for each node."""
    order = np.argsort(classes, kind="stable")
    same = classes[order]
    first = np.concatenate([[0], np.flatnonzero(np.diff(same)) + 1]) if len(same) else np.zeros(0, np.int64)
    counts = np.diff(np.append(first, len(same)))
    within = np.empty(len(classes), np.int64)
    within[order] = np.arange(len(same)) - np.repeat(first, counts)
    return within


def _waits(program: LearnedProgram) -> tuple[Waits, Waits]:
    """Data and control dependencies of each place, without redundant ones."""
    place = np.empty(len(program), np.int64)
    place[program.order] = np.arange(len(program))
    found = []
    for which in ("data", "ctrl"):
        start, rows = getattr(program.trace, f"{which}_start").tolist(), getattr(program.trace, which)
        at = np.where(rows >= 0, place[np.maximum(rows, 0)], -1).tolist()
        found.append(
            [
                sorted({j for j in at[start[row] : start[row + 1]] if 0 <= j != i})
                for i, row in enumerate(program.order.tolist())
            ]
        )
    return _reduced(found[0], found[1])


def _reduced(data: Waits, ctrl: Waits) -> tuple[Waits, Waits]:
    """Removes redundant dependencies: bit k of `before[i]` says that node i - 1 - k comes before i anyway."""
    mask = (1 << WINDOW) - 1
    before: list[int] = []
    kept_data, kept_ctrl = [], []
    for i, (d, c) in enumerate(zip(data, ctrl, strict=True)):
        implied = 0
        for j in {*d, *c}:
            if i - j < WINDOW:
                implied |= before[j] << (i - j)
        implied &= mask
        kept_data.append([j for j in d if i - 1 - j >= WINDOW or not implied >> (i - 1 - j) & 1])
        kept_ctrl.append([j for j in c if i - 1 - j >= WINDOW or not implied >> (i - 1 - j) & 1])
        mine = implied
        for j in (*d, *c):
            if i - 1 - j < WINDOW:
                mine |= 1 << (i - 1 - j)
        before.append(mine)
    return kept_data, kept_ctrl
