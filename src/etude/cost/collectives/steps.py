"""Building blocks of the schedules of several algorithms, on many groups of members at once.

Groups are rows: `group[g, i]` is the member at position i of group g; `first[g, i]`, `count[g, i]` are the blocks of
that position, in the order given by `Passes.order`. `ready[m]` is the transfer after which member m may begin (-1: at
once); every step returns the new `ready`. The receiver must be ready too: it owns the buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.cost.schedule import Schedule, ScheduleBuilder
from etude.kernels.arrays import I64
from etude.model.schema import Collective

Groups = NDArray[np.int64]
Step = Callable[..., I64]

AR, RS, AG = Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER
A2A, BARRIER = Collective.ALL_TO_ALL, Collective.BARRIER
BROADCAST, REDUCE, GATHER, SCATTER = Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER

MOST_TRANSFERS: Final = 1 << 20
"""Largest schedule, if there is a choice."""


def in_order(n: int) -> list[int]:
    return list(range(n))


class Passes(NamedTuple):
    """A reduce-scatter and an all-gather, which an all-reduce does one after the other."""

    reduce_scatter: Step
    all_gather: Step
    order: Callable[[int], list[int]] = in_order
    """The positions of a group, in the required order of their blocks."""


def arrivals(build: ScheduleBuilder, group: Groups, ready: I64, ids: list[I64]) -> I64:
    """Every member becomes ready when its previous dependency, and all of `ids` (by receiving position), have
    arrived."""
    out = ready.copy()
    waits = np.stack([ready[group], *ids], axis=-1)
    if waits.shape[-1] == 2 and (waits[..., 0] < 0).all():
        out[group] = waits[..., 1]
    elif ids:
        out[group] = build.join(group, waits)
    return out


def pair(ready: I64, src: Groups, dst: Groups, *more: I64) -> I64 | None:
    if not more and (ready < 0).all():
        return None
    return np.stack([ready[src], ready[dst], *more], axis=-1)


def flat(members: int) -> Groups:
    return np.arange(members, dtype=np.int64)[None, :]


def alone(n: int) -> I64:
    return np.full(n, -1, np.int64)


def owned(collective: Collective, n: int, parts: int = 1) -> dict[str, Any]:
    """n * parts blocks; block i * parts + k belongs to member i."""
    owner = np.repeat(np.arange(n), parts).astype(np.int32)
    return {"owners": n if collective in (AG, GATHER) else 1, "blocks": n * parts, "block_owner": owner}


def scattered(
    collective: Collective, algorithm: str, n: int, passes: Passes, scatter: dict[str, Any], gather: dict[str, Any]
) -> Schedule:
    """Reduce-scatter, all-gather, or one after the other, with extra arguments for each of the two."""
    build, group, ready = ScheduleBuilder(), flat(n), alone(n)
    order = np.array(passes.order(n))
    first, count = np.argsort(order)[None, :], np.ones((1, n), np.int64)
    if collective != AG:
        ready = passes.reduce_scatter(build, group, first, count, ready, **scatter)
    if collective != RS:
        passes.all_gather(build, group, first, count, ready, **gather)
    return build.schedule(collective, algorithm, n, **(owned(collective, n) | {"block_owner": order.astype(np.int32)}))
