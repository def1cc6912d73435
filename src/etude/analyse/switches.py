"""A switch behind which transfers are slow: of comparable transfers between nodes, all that a block of nodes has a part
in are slower than all others.

Half of the transfers may pass through it, so that a median over all says nothing; what counts is that the two sides are
apart, and that no comparable transfers say otherwise.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from etude.analyse.node_sets import log_ways
from etude.analyse.outliers import Profile
from etude.analyse.stretches import Slow
from etude.kernels.arrays import F64, I64, Bool

__all__ = ["behind_switch"]

FEWEST: Final = 6
"""Transfers between nodes from which it is looked for."""
CHANCE: Final = 1e-3
"""Highest probability that the transfers come in this order by chance, in one of the blocks that are tried."""
SIDE: Final = 0.15
"""Part of the transfers of a side that may lie beyond the others."""


def behind_switch(
    units: Sequence[tuple[int, ...]], family: I64, profiled: Profile, node: int, least: float
) -> tuple[Slow, tuple[int, ...], str, int] | None:
    """(what shows most, ranks, what is slow, units) of the block of nodes that explains most; `family` is equal for
    units that can be compared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        level = np.nanmean(profiled.log_slower, axis=1)
    known = np.isfinite(level) & np.array([len({r // node for r in unit}) > 1 for unit in units], bool)
    if known.sum() < FEWEST:
        return None
    members = sorted({r for unit, seen in zip(units, known, strict=True) if seen for r in unit})
    best: tuple[float, float, tuple[int, ...], Bool] | None = None
    tried = 0
    for block in _blocks(members, node):
        tried += 1
        inside = set(block)
        touches = np.array([bool(inside & set(unit)) for unit in units], bool)
        found = _apart(level, known, touches, family, least)
        if found is not None and (best is None or (found[0], found[1]) > best[:2]):
            best = (*found, block, touches & known)
    if best is None or tried * np.exp(-best[0]) > CHANCE:
        return None
    _, gap, block, touches = best
    segments = profiled.log_slower.shape[1]
    rows = np.flatnonzero(touches)
    first = int(rows[np.argmax(level[rows])])
    sure = 1 - max(tried * float(np.exp(-best[0])), 0.01)
    return Slow(first, float(np.exp(gap)), 0, segments - 1, True, sure), block, "a switch", len(rows)


def _blocks(members: Sequence[int], node: int) -> Iterator[tuple[int, ...]]:
    """Nodes, and blocks of 2, 4, 8, ... of them that begin at a multiple of their size; not all of the job."""
    size = node
    numbers = np.array(members)
    while size < numbers.max() + 1:
        for first in np.unique(numbers // size).tolist():
            block = tuple(numbers[numbers // size == first].tolist())
            if len(block) < len(members):
                yield block
        size *= 2


def _apart(level: F64, known: Bool, touches: Bool, family: I64, least: float) -> tuple[float, float] | None:
    """(minus the logarithm of the probability of this order by chance, how far the sides are apart); None if units of
    one family say otherwise."""
    sure, gaps = 0.0, []
    for one in np.unique(family[known]).tolist():
        mine = known & (family == one)
        through, past = level[mine & touches], level[mine & ~touches]
        if not len(through) or not len(past):
            continue
        low, high = np.quantile(through, SIDE, method="lower"), np.quantile(past, 1 - SIDE, method="higher")
        gap = float(low - high)
        if gap < np.log1p(least):
            return None
        gaps.append(float(np.median(through) - np.median(past)))
        sure += log_ways(len(through) + len(past), len(through))
    return (sure, float(np.median(gaps))) if gaps else None
