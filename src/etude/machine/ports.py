"""Ports: which levels of a system a device reaches through a port of its own, and which through the level below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from etude.machine.system import Level, LevelKind, LevelPort


def is_product(levels: Sequence[Level]) -> bool:
    """Whether every switch except the innermost is one of rails, or there is none: the levels are the dimensions of a
    grid, and a device has ports in all of them."""
    return all(level.kind != LevelKind.SWITCH or level.rails or at == 0 for at, level in enumerate(levels))


def own_ports(levels: Sequence[Level]) -> list[bool]:
    """For each level, whether a device has its own port to it; if not, it is reached through the level below.

    What `port` says, else: a device has at most two ports, one to scale up and one to scale out, and the second
    belongs to the level at which the bandwidth of a device changes most (the innermost of these). Where it never
    changes, as in a fat tree of one NIC a device, there is one port. Only a switch can be passed through.
    """
    rate = [level.bandwidth_bytes_per_s for level in levels]
    change = [0.0] + [abs(math.log(b / a)) for a, b in pairwise(rate)]
    second = change.index(max(change)) if max(change) > 0 else 0
    own = []
    for at, level in enumerate(levels):
        wanted = at in (0, second) if level.port == LevelPort.NONE else level.port == LevelPort.OWN
        own.append(at == 0 or wanted or levels[at - 1].kind != LevelKind.SWITCH)
    return own


def ports_of(levels: Sequence[Level]) -> list[int]:
    """For each level, the level whose port leads to it."""
    own = [True] * len(levels) if is_product(levels) else own_ports(levels)
    port = 0
    found = []
    for at, new in enumerate(own):
        port = at if new else port
        found.append(port)
    return found
