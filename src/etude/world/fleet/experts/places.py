"""Places of experts: which rank holds a copy of which, before and after ranks are lost. Tokens choose experts evenly,
and the copies of an expert share its tokens."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64

EMPTY: Final = -1


def copies_of(place: I64, experts: int) -> I64:
    """How many ranks hold each expert."""
    return np.bincount(place[place >= 0], minlength=experts)


def loads_of(place: I64, experts: int) -> F64:
    """Load of each rank in units of one expert's tokens; the sum is the number of held experts."""
    part = np.append(1.0 / np.maximum(copies_of(place, experts), 1), 0.0)
    return np.asarray(part[place].sum(axis=1))


def spread(experts: int, redundant: int, ranks: int, node: int) -> I64:
    """Ranks x slots. Each expert once and the redundant copies, dealt evenly over experts: those with most tokens
    first, each to the rank with the least load, copies of one expert on different nodes if that is no worse, and then
    on ranks that share few other experts, so that the load of a lost rank spreads over several others."""
    if ranks < 2 or experts < ranks:
        raise UsageError(
            f"{experts} experts cannot be spread over {ranks} ranks", hint="--ep from 2 to the number of experts"
        )
    if (experts + redundant) % ranks:
        below = redundant - (experts + redundant) % ranks
        hint = f"--redundant {below if below >= 0 else below + ranks}"
        raise UsageError(f"{experts} experts and {redundant} copies are not a multiple of {ranks} ranks", hint=hint)
    if redundant > experts * (ranks - 1):
        problem = f"{redundant} copies of {experts} experts on {ranks} ranks"
        raise UsageError(problem, hint="use at most one copy of an expert per rank")
    more, rest = divmod(redundant, experts)
    e = np.arange(experts)
    copies = 1 + more + ((e + 1) * rest // experts - e * rest // experts)
    slots = (experts + redundant) // ranks
    place, used, load = np.full((ranks, slots), EMPTY), np.zeros(ranks, np.int64), np.zeros(ranks)
    order = sorted((int(copies[x]), copy, x) for x in range(experts) for copy in range(copies[x]))
    nodes = np.arange(ranks) // node
    for many, _, expert in order:
        holders = (place == expert).any(axis=1)
        near = np.isin(nodes, nodes[holders])
        open_ = np.flatnonzero((used < slots) & ~holders)
        if not len(open_):
            raise UsageError(f"{redundant} copies put an expert twice on a rank", hint="use fewer --redundant")
        shared = np.isin(place, place[holders][place[holders] != EMPTY]).sum(axis=1)
        rank = min(open_, key=lambda r: (round(float(load[r]), 9), near[r], shared[r], r))
        place[rank, used[rank]] = expert
        used[rank] += 1
        load[rank] += 1.0 / many
    return place


def without(place: I64, alive: NDArray[np.bool_], experts: int) -> I64:
    """The same ranks less those that are lost. Lost experts take free slots, or those of experts with other copies, so
    that the fullest rank has as little as possible; nothing else moves."""
    left = int(alive.sum())
    if not left:
        raise UsageError("no rank is left", hint="use fewer failures in --fail")
    slots = max(place.shape[1], -(-experts // left))
    found = np.full((len(place), slots), EMPTY)
    found[alive, : place.shape[1]] = place[alive]
    received = np.zeros(len(place), np.int64)
    for expert in np.flatnonzero(copies_of(found, experts) == 0):
        rank, slot = _best_slot(found, alive, received, experts)
        found[rank, slot] = expert
        received[rank] += 1
    return found


def _best_slot(place: I64, alive: NDArray[np.bool_], received: I64, experts: int) -> tuple[int, int]:
    copies, load, best = copies_of(place, experts), loads_of(place, experts), None
    for rank in np.flatnonzero(alive):
        free = np.flatnonzero(place[rank] == EMPTY)[:1]
        spare = free if len(free) else np.flatnonzero(copies[place[rank]] > 1)
        for slot in spare:
            after, victim = load.copy(), place[rank, slot]
            after[rank] += 1.0
            if victim != EMPTY:
                many = copies[victim]
                after[(place == victim).any(axis=1)] += 1.0 / (many - 1) - 1.0 / many
                after[rank] -= 1.0 / (many - 1)
            key = (round(float(after.max()), 9), int(received[rank]), int(rank), int(slot))
            best = key if best is None or key < best else best
    assert best is not None  # there are as many slots as experts
    return best[2], best[3]


def needs(old: I64, new: I64) -> list[list[int]]:
    """For each rank the experts that it is to hold and does not hold yet."""
    return [sorted({int(x) for x in b if x >= 0} - {int(x) for x in a}) for a, b in zip(old, new, strict=True)]
