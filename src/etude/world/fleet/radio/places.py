"""Slow changes: placement of functions and services. All placements are tried if they are few, else single moves."""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel
from etude.world.fleet.radio.shares import DEADLINES, Members, expected_at

FEW: Final = 20_000


@kernel
def best_place(members: Members, factor: F64, place: I64, horizon_s: float, migrate_s: float) -> I64:
    """The placement with the most members in time over the horizon, with equal weight, if a moving member does nothing
    for `migrate_s`. With 0 this is the best placement; with infinity it is the current one. Ties: the fewest moves."""
    nodes = len(members.node_gpu)
    tries = 1.0
    for _ in range(len(place)):
        tries *= nodes
    if tries > FEW:
        return _by_moves(members, factor, place, horizon_s, migrate_s)
    found, most = place.copy(), worth(members, factor, place, place, horizon_s, migrate_s)
    tried = np.zeros_like(place)
    for number in range(int(tries)):
        rest = number
        for i in range(len(place)):
            tried[i] = rest % nodes
            rest //= nodes
        value = worth(members, factor, place, tried, horizon_s, migrate_s)
        if value > most:
            found, most = tried.copy(), value
    return found


@kernel
def _by_moves(members: Members, factor: F64, place: I64, horizon_s: float, migrate_s: float) -> I64:
    found, most = place.copy(), worth(members, factor, place, place, horizon_s, migrate_s)
    better = True
    while better:
        better, tried = False, found.copy()
        for i in range(len(place)):
            for node in range(len(members.node_gpu)):
                tried[i] = node
                value = worth(members, factor, place, tried, horizon_s, migrate_s)
                if value > most:
                    found, most, better = tried.copy(), value, True
            tried[i] = found[i]
    return found


@kernel
def worth(members: Members, factor: F64, now: I64, place: I64, horizon_s: float, migrate_s: float) -> float:
    """Member seconds in time, minus a small penalty per move that prevents useless moves."""
    expected, total, moves = expected_at(members, factor, place, DEADLINES), 0.0, 0
    for i in range(len(place)):
        if place[i] == now[i]:
            total += expected[i] * horizon_s
        else:
            total += expected[i] * max(horizon_s - migrate_s, 0.0)
            moves += 1
    if moves and not np.isfinite(migrate_s):
        return -np.inf
    return total - 1e-9 * moves * horizon_s
