"""Availability by round: two states of each client, and of each group of clients that go away together.

A client that is available for a part a of the rounds and away for d rounds at a time comes back with μ = 1/d a round
and leaves with λ = μ(1 - a)/a, so that a = μ/(λ + μ). A client of a group is there when it is and its group is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etude.base.errors import ClusterError, UsageError
from etude.base.figures import figure
from etude.kernels.arrays import F64, Bool
from etude.world.fleet.federated.clients import Clients


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPresence:
    """What all groups of clients are like."""

    available: float = figure("number", "fraction of the rounds in which a group is available", 1.0)
    away: float = figure("number", "mean rounds per absence; 0: drawn anew each round", 0.0)

    def __post_init__(self) -> None:
        if not 0 < self.available <= 1:
            raise ClusterError(f"available {self.available:g} is not between 0 and 1", hint="available=0.9")


def presence(clients: Clients, together: GroupPresence, rounds: int, seed: int) -> Bool:
    """[round, client]. The draws are independent of the sampling, so all samplers see the same absences."""
    rng = np.random.default_rng((seed, 1))
    there = two_states(clients.available, clients.away, rounds, rng)
    if (clients.group >= 0).any() and together.available < 1:
        groups = int(clients.group.max()) + 1
        of = two_states(np.full(groups, together.available), np.full(groups, together.away), rounds, rng)
        there &= (clients.group < 0) | of[:, clients.group]
    return there


def two_states(available: F64, away: F64, rounds: int, rng: np.random.Generator) -> Bool:
    """[round, one]: starts in the stationary distribution."""
    back = np.divide(1.0, away, out=available.astype(np.float64).copy(), where=away > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        leave = np.where(available > 0, back * (1 - available) / available, 1.0)
    back = np.where(available > 0, back, 0.0)
    if (back > 1).any() or (leave > 1).any():
        worst = int(np.flatnonzero((back > 1) | (leave > 1))[0])
        raise UsageError(
            f"available {available[worst]:g} with absences of {away[worst]:g} rounds is not possible: it would be "
            "available for less than one round at a time",
            hint="use longer absences, or 0 for rounds that are drawn anew",
        )
    out = np.empty((rounds, len(available)), np.bool_)
    now = rng.random(len(available)) < available
    for k in range(rounds):
        out[k] = now
        now = np.where(now, rng.random(len(available)) >= leave, rng.random(len(available)) < back)
    return out
