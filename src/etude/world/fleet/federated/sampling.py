"""Which of the available clients are asked in a round.

| way | a client's weight |
|---|---|
| uniform, psp | the same for all |
| weighted | its samples |
| awpsp | larger for those that are rarely available, that stay, that were rarely asked; lower for more of one group |

`awpsp` uses only what earlier rounds have shown: how often a client was available, how often it stayed for the next
round, how often it was asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64, Bool
from etude.world.fleet.federated.clients import Clients

SAMPLES: Final = ("uniform", "psp", "weighted", "awpsp")
FAR: Final = 50.0
"""Rounds ahead of or behind the mean beyond which nothing changes."""


@dataclass(slots=True)
class ClientStatistics:
    """Statistics of each client so far."""

    rounds: int
    there: F64
    stayed: F64
    """Rounds in which it was there, and in the next one too."""
    drawn: I64
    last: Bool

    @classmethod
    def nothing(cls, count: int) -> ClientStatistics:
        return cls(0, np.zeros(count), np.zeros(count), np.zeros(count, np.int64), np.zeros(count, np.bool_))

    def watch(self, there: Bool) -> None:
        self.stayed += self.last & there
        self.there += there
        self.rounds += 1
        self.last = there


def availability_weights(there: I64, seen: ClientStatistics) -> F64:
    """Weights of available clients. Counts begin with one and one, so that none is certain after a round."""
    often = (seen.there[there] + 1) / (seen.rounds + 2)
    stays = (seen.stayed[there] + 1) / (seen.there[there] + 1)
    ahead = np.clip(seen.drawn[there] - seen.drawn.mean(), -FAR, FAR)
    return np.asarray(stays / often * np.exp(-ahead))


def place_in_group(times: F64, group: I64) -> I64:
    """How many of the same group come before; 0 for those of no group."""
    order = np.lexsort((times, group))
    own, row = group[order], np.arange(len(group))
    begins = np.concatenate([[True], own[1:] != own[:-1]])
    place = np.empty(len(group), np.int64)
    place[order] = row - np.maximum.accumulate(np.where(begins, row, 0))
    return np.where(group >= 0, place, 0)


def sampled(
    rng: np.random.Generator,
    there: I64,
    clients: Clients,
    count: int,
    sample: str,
    seen: ClientStatistics | None = None,
) -> I64:
    """Without replacement; all if there are no more than wanted."""
    if len(there) <= count:
        return there
    if sample in ("uniform", "psp"):
        return rng.choice(there, count, replace=False)
    if sample == "awpsp":
        assert seen is not None
        weight = availability_weights(there, seen)
    else:
        weight = clients.samples[there]
        if np.count_nonzero(weight) < count:
            raise UsageError(f"fewer than {count} available clients have samples", hint="--sample uniform")
    # smallest of exponential times: in proportion to the remaining weights
    with np.errstate(divide="ignore"):
        times = rng.exponential(size=len(there)) / weight
    if sample == "awpsp":  # correlated clients are spread over rounds: the n-th of a group counts 1/n² as much
        times *= (1.0 + place_in_group(times, clients.group[there])) ** 2
    return there[np.argpartition(times, count - 1)[:count]]
