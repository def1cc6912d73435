"""Time of single messages in closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.machine.system import LINED, Level, LevelKind, System


def p2p_time_ns(system: System, src: Any, dst: Any, size_bytes: Any) -> I64:
    """Time of single messages between ranks, in ns, elementwise over arrays. A message to the own rank is free."""
    a, b = system.device_of(src), system.device_of(dst)
    sizes = np.asarray(size_bytes, np.float64)
    if sizes.size and not sizes.min() >= 0:
        raise UsageError("the size of a message is negative or unknown")
    a, b, sizes = np.broadcast_arrays(a, b, sizes)
    time, rate = np.zeros(a.shape), np.full(a.shape, np.inf)
    crossed, on_links = np.zeros(a.shape, bool), np.zeros(a.shape, bool)
    for number in reversed(range(len(system.levels))):
        level, below = system.levels[number], math.prod(v.size for v in system.levels[:number])
        here, there = a // below % level.size, b // below % level.size
        apart = here != there
        lined, hops = level.kind in LINED, np.abs(here - there)
        if level.kind == LevelKind.RING:
            hops = np.minimum(hops, level.size - hops)
        elif not lined:
            hops = apart
        # A switch reaches any device; along the rings of a torus every dimension is travelled, and where the level
        # above is of rails, the right one is reached at this level.
        rails = number + 1 < len(system.levels) and system.levels[number + 1].rails
        travelled = apart & (~crossed | (on_links & lined) | rails)
        time += np.where(travelled, hops * level.latency_ns, 0.0)
        rate = np.where(travelled, np.minimum(rate, _alone(level)), rate)
        on_links = np.where(apart, lined, on_links)
        crossed = crossed | apart
    time += np.where(crossed, system.collectives.p2p_launch_ns + sizes / rate, 0.0)
    time = np.where(crossed, np.maximum(time, system.collectives.p2p_least_ns), 0.0)
    return np.ceil(time - 1e-6).astype(np.int64)


def p2p_start_ns(system: System, src: int, dst: int, size_bytes: int) -> int:
    """What a message costs besides latency and bytes: its launch, and the extra time of a short one."""
    launch, least = system.collectives.p2p_launch_ns, system.collectives.p2p_least_ns
    if not least:
        return round(launch)
    settings = replace(system.collectives, p2p_least_ns=0.0)
    bare = int(p2p_time_ns(system.replace(collectives=settings), src, dst, size_bytes))
    return round(launch + max(least - bare, 0.0))


def _alone(level: Level) -> float:
    """Bytes per ns of one message that has the level to itself."""
    rate = level.bandwidth_bytes_per_s * level.efficiency / 1e9
    if level.kind == LevelKind.FULL:
        return rate / max(level.size - 1, 1)
    return rate / 2 if level.kind == LevelKind.MESH or (level.kind == LevelKind.RING and level.size > 2) else rate
