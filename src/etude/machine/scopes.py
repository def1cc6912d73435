"""Which ranks share something: each has its own, those of a node or of a level, or all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.machine.system import System
from etude.machine.tier import ALL, NODE, RANK


def scope_level(system: System, scope: str, where: str) -> int:
    """Position of the level whose units share it; -1: each rank has its own."""
    names = [level.name for level in system.levels]
    if scope in names:
        return names.index(scope)
    fixed = {RANK: -1, NODE: 0, ALL: len(names) - 1}
    if scope not in fixed:
        raise UsageError(
            f"{where}: system `{system.name}` has no level `{scope}`", hint=f"known: {', '.join([*fixed, *names])}"
        )
    return fixed[scope]


def units_of(system: System, level: int, ranks: Any) -> NDArray[np.int64]:
    """The unit of that level for each rank: equal for ranks that share it."""
    device = np.asarray(system.device_of(ranks), np.int64)
    return device // int(np.prod([1, *(each.size for each in system.levels[: level + 1])], dtype=np.int64))
