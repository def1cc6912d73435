"""Links of a machine that change: from a time on, a level of its network has a part of its bandwidth.

time_s,infiniband
0,1
3600,0.25
7200,1
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from etude.base.errors import UsageError
from etude.machine import System
from etude.world.fleet.sharing.supply import read_steps

LEAST: Final = 0.001
"""Least part of a bandwidth: a network without any is a fault of its nodes."""


class ChangedNetwork(NamedTuple):
    """The network of a system from a time on."""

    time_ns: int
    system: System


def read_networks(path: str, system: System) -> list[ChangedNetwork]:
    """What a file says of the levels of a system. Raises UsageError."""
    if system.topology is not None:
        raise UsageError("links: a system that is a graph has no levels that change", where=path)
    names = tuple(level.name for level in system.levels)
    times, parts = read_steps(path, (), names)
    for name, values in parts.items():
        if not LEAST <= values.min() <= values.max() <= 1:
            hint = "1: all of its bandwidth; 0.25: a quarter"
            raise UsageError(f"{name}: a part of its bandwidth is {LEAST} to 1", where=path, hint=hint)
    found = []
    for row, time_ns in enumerate(times.tolist()):
        levels = tuple(
            replace(level, bandwidth_bytes_per_s=max(round(level.bandwidth_bytes_per_s * parts[level.name][row]), 1))
            if level.name in parts
            else level
            for level in system.levels
        )
        found.append(ChangedNetwork(time_ns, system.replace(levels=levels)))
    return found
