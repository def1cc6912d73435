"""The shape of a group on a system: everything that a closed form needs to know about its members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I32, I64
from etude.kernels.compile import kernel
from etude.kernels.distinct import numbered_rows
from etude.machine.system import LevelKind, System

SPAN_COLUMNS: Final = 4
"""Numbers of a level in a row of `span_rows`."""
REPEATED: Final = -1


@dataclass(frozen=True, slots=True)
class GroupSpan:
    """A group at one level. `units` parts of the level's `size` hold members (the most in any one part)."""

    level: int
    units: int
    below: int
    """Most members under one unit."""
    below_least: int
    """Fewest members under one unit: the ports of the unit."""
    crossings: int
    """Hops of this level on a path that visits every member once."""
    whole: bool
    """All units of the level are used, so that a ring closes; units of a mesh never do."""


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Where the members of a group are, level by level; levels at which nothing differs are left out."""

    size: int
    spans: tuple[GroupSpan, ...]
    regular: bool
    """The same number of members under every unit of every level, so the group is a product of levels."""


def group_shape(system: System, members: Any) -> GroupShape:
    """The shape of the group of these ranks. Refuses a repeated rank."""
    flat = np.asarray(members, np.int64).ravel()
    return group_shapes(system, flat, np.array([0, len(flat)]))[1][0]


def group_shapes(system: System, members: Any, start: I64) -> tuple[I32, tuple[GroupShape, ...]]:
    """The distinct shapes of many groups, and the row of each group in them; group g is members[start[g]:start[g+1]].

    Refuses a group without members, and one with a repeated rank.
    """
    sizes = np.array([level.size for level in system.levels], np.int64)
    found = np.zeros((len(start) - 1, 2 + SPAN_COLUMNS * len(sizes)), np.int64)
    span_rows(system.device_of(members), start, sizes, found)
    if (found[:, 0] == 0).any():
        raise UsageError("a group without members has no cost")
    twice = found[:, 1] == REPEATED
    if twice.any():
        raise UsageError(f"a group of {found[twice, 0][0]} members names a rank twice")
    number, first = numbered_rows(found)
    return number.astype(np.int32), tuple(_shape(system, row) for row in found[first].tolist())


def _shape(system: System, row: list[int]) -> GroupShape:
    spans = []
    for number, level in enumerate(system.levels):
        units, below, least, crossings = row[2 + SPAN_COLUMNS * number :][:SPAN_COLUMNS]
        if units:
            whole = units == level.size and level.kind != LevelKind.MESH
            spans.append(GroupSpan(number, units, below, least, crossings, whole))
    return GroupShape(row[0], tuple(spans), bool(row[1]))


@kernel
def span_rows(devices: I64, start: I64, sizes: I64, found: I64) -> None:
    """Fills a row per group: members, whether it is regular (or REPEATED), and per level of `sizes` the units, most and
    fewest members below one, and crossings; zeros at a level at which nothing differs."""
    for g in range(len(start) - 1):
        unit = np.sort(devices[start[g] : start[g + 1]])
        held = np.ones(len(unit), np.int64)
        inside = len(unit)
        found[g, 0], found[g, 1] = inside, 1
        for i in range(1, inside):
            if unit[i] == unit[i - 1]:
                found[g, 1] = REPEATED
        if inside == 0 or found[g, 1] == REPEATED:
            continue
        for number in range(len(sizes)):
            size = sizes[number]
            most, least, widest, narrowest, parents = 0, held[0], 0, inside, 0
            i = 0
            while i < inside:
                parent, units, members = unit[i] // size, 0, 0
                while i < inside and unit[i] // size == parent:
                    most, least = max(most, held[i]), min(least, held[i])
                    members += held[i]
                    units += 1
                    i += 1
                widest, narrowest = max(widest, units), min(narrowest, units)
                unit[parents], held[parents] = parent, members
                parents += 1
            if most != least or widest != narrowest:
                found[g, 1] = 0
            if inside > parents:
                at = 2 + SPAN_COLUMNS * number
                found[g, at], found[g, at + 1], found[g, at + 2], found[g, at + 3] = (
                    widest,
                    most,
                    least,
                    inside - parents,
                )
            inside = parents
