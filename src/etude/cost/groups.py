"""The shape of a group on a system: everything that a closed form needs to know about its members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.machine.system import LevelKind, System


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
    devices = np.sort(system.device_of(members).ravel())
    if not len(devices):
        raise UsageError("a group without members has no cost")
    if (np.diff(devices) == 0).any():
        raise UsageError(f"a group of {len(devices)} members names a rank twice")
    spans: list[GroupSpan] = []
    unit, regular = devices, True
    for number, level in enumerate(system.levels):
        inside, members_in = np.unique(unit, return_counts=True)
        parent, units_in = np.unique(inside // level.size, return_counts=True)
        regular = regular and len(set(members_in.tolist())) == 1 and len(set(units_in.tolist())) == 1
        units = int(units_in.max())
        if len(inside) > len(parent):
            crossings = len(inside) - len(parent)
            below, least = int(members_in.max()), int(members_in.min())
            closes = units == level.size and level.kind != LevelKind.MESH
            spans.append(GroupSpan(number, units, below, least, crossings, closes))
        unit = unit // level.size
    return GroupShape(len(devices), tuple(spans), regular)
