"""Ways to go through placements: all, greedy with swaps, annealing. Each simulates one placement of those that are the
same by symmetry, and none whose bytes alone take longer than what is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from etude.base.errors import UsageError
from etude.decide.search.placement_symmetry import Placement, Symmetry

MOST: Final = math.factorial(8)
"""Most placements that `all` enumerates, without symmetric ones."""
ROUND: Final = 16
"""Placements that `all` simulates at once, whatever the number of workers: what is tried does not depend on it."""
WARM: Final = 0.02
COOLING: Final = 0.98
"""Annealing takes a step up of 2% with probability 1/e at first, and less with each try. That does not depend on how
many tries are allowed: more of them go on where fewer end."""


@dataclass(slots=True)
class Tried:
    """What was simulated, and what was pruned."""

    times_of: Callable[[Sequence[Placement]], Sequence[int]]
    """Simulated, in ns."""
    least_of: Callable[[Placement], int]
    symmetry: Symmetry
    tries: int
    """Most simulations."""
    advance: Callable[[int], None]
    times: dict[Placement, int] = field(default_factory=dict)
    names: dict[Placement, str] = field(default_factory=dict)
    cut: set[Placement] = field(default_factory=set)
    """Pruned since the bytes alone take longer."""

    @property
    def best(self) -> tuple[int, Placement]:
        return min((time, placement) for placement, time in self.times.items())

    @property
    def full(self) -> bool:
        return len(self.times) >= self.tries

    def score(self, placement: Sequence[int], name: str, limit_ns: float = math.inf) -> int | None:
        """ns, of an equivalent placement; None if it cannot be below the limit, or if tries are used up."""
        same = self.symmetry.same(placement)
        if same in self.times:
            return self.times[same]
        if self.full:
            return None
        if self.least_of(same) >= limit_ns:
            self.cut.add(same)
            return None
        self.cut.discard(same)
        self.simulate([same], name)
        return self.times[same]

    def simulate(self, some: Sequence[Placement], name: str) -> None:
        for placement, time in zip(some, self.times_of(some), strict=True):
            self.times[placement], self.names[placement] = time, name
            self.advance(1)


def classes_of(symmetry: Symmetry, ranks: int, devices: int) -> Iterator[Placement]:
    """One placement of each class, in the order of tuples. The first of a class begins with firsts of its parts."""

    def go(begun: Placement) -> Iterator[Placement]:
        if len(begun) == ranks:
            yield begun
            return
        for device in range(devices):
            if device not in begun and symmetry.same((*begun, device)) == (*begun, device):
                yield from go((*begun, device))

    return go(())


def every(tried: Tried, ranks: int, devices: int) -> None:
    """All placements; earlier tries set the first limit."""
    classes = []
    for placement in classes_of(tried.symmetry, ranks, devices):
        classes.append(placement)
        if len(classes) > MOST:
            raise UsageError(
                f"{ranks} ranks on {devices} devices have more than {MOST:,} placements, even without symmetries",
                hint="--method greedy or anneal",
            )
    tried.tries = len(classes)
    left = iter([placement for placement in classes if placement not in tried.times])
    while some := _round(tried, left):
        tried.simulate(some, "all")


def _round(tried: Tried, left: Iterator[Placement]) -> list[Placement]:
    """The next candidates whose bytes alone do not take longer than the best so far."""
    some: list[Placement] = []
    limit_ns = tried.best[0]
    for placement in left:
        if tried.least_of(placement) >= limit_ns:
            tried.cut.add(placement)
        else:
            some.append(placement)
        if len(some) == ROUND:
            break
    return some


def _changed(placement: Placement, rank: int, other: int, free: Sequence[int]) -> Placement:
    """Swaps two ranks, or moves one to a free device: `other` counts the ranks, then those."""
    found = list(placement)
    if other < len(found):
        found[rank], found[other] = found[other], found[rank]
    else:
        found[rank] = free[other - len(found)]
    return tuple(found)


def _free(placement: Placement, devices: int) -> list[int]:
    return sorted(set(range(devices)) - set(placement))


def greedy(tried: Tried, ranks: int, devices: int) -> None:
    """From the best so far, every swap of two ranks (or move to a free device) that is better, until none is."""
    now_ns, now = tried.best
    better = True
    while better and not tried.full:
        better = False
        for rank in range(ranks):
            for other in range(rank + 1, ranks + devices - ranks):
                free = _free(now, devices)
                there = _changed(now, rank, other, free)
                time = tried.score(there, "swap", now_ns)
                if time is not None and time < now_ns:
                    now_ns, now, better = time, there, True


def anneal(tried: Tried, ranks: int, devices: int, seed: int) -> None:
    """Random swaps; a worse one is accepted with a probability that falls."""
    rng = np.random.default_rng(seed)
    now_ns, now = tried.best
    warm = WARM * now_ns
    for _ in range(20 * tried.tries):
        if tried.full:
            return
        rank, other = (int(x) for x in rng.choice(devices, 2, replace=False)) if devices > 1 else (0, 0)
        if rank >= ranks:
            rank, other = other, rank
        draw = float(rng.random())
        if rank >= ranks or rank == other:
            continue
        there = _changed(now, rank, other, _free(now, devices))
        limit = now_ns - warm * math.log(max(draw, 1e-300))
        before = len(tried.times)
        time = tried.score(there, "anneal", limit)
        warm *= COOLING ** (len(tried.times) - before)
        if time is not None and time <= limit:
            now_ns, now = time, there
