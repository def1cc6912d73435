"""Stable classes: ranks that must behave alike, so that one of each class is simulated.

Ranks begin in one class if they run the same program at the same speed. A class is split as long as its ranks
communicate with different classes, or at different cost: a group is what it costs and the set of (class, part of the
program) of its members, a rank is the groups and messages of each part of its program. When nothing splits any more,
what a rank sees of the others depends on classes only. The operation of a group ends a known time after the last of its
members came, and all members of one class come at one time; so by induction over time all ranks of a class do the same
at every instant. Which of them is simulated does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, I64, U64
from etude.model.match import Matching
from etude.run.simulate.groups import UsedGroups


@dataclass(frozen=True, slots=True, eq=False)
class RankClasses:
    of: I32
    """Class of the i-th rank present."""
    first: I32
    """Position of the first rank of each class: the one that is simulated."""
    group: I32
    """Class of each used group."""
    groups: int

    def __len__(self) -> int:
        return len(self.first)


def alone(ranks: int, groups: int) -> RankClasses:
    """Every rank in a class of its own."""
    return RankClasses(
        np.arange(ranks, dtype=np.int32),
        np.arange(ranks, dtype=np.int32),
        np.arange(groups, dtype=np.int32),
        groups,
    )


def stable_classes(start: I64, matching: Matching, groups: UsedGroups, distance: I32) -> RankClasses:
    """The coarsest classes. `start` separates ranks that differ by themselves, `distance` separates links by cost."""
    links, uses = matching.links, matching.uses
    color = _numbered(start)
    still = np.stack([groups.shape.astype(np.int64), groups.lacks, groups.partial], 1)
    still = _numbered(np.column_stack([still, np.unique(groups.factor, return_inverse=True)[1].reshape(-1)]))
    sends, recvs = np.flatnonzero(links.src_at >= 0), np.flatnonzero(links.dst_at >= 0)
    while True:
        group = _group_colors(color, matching, groups, still)
        there = np.append(color, -1)  # -1: the peer is absent
        h = np.zeros((len(color), 2), np.uint64)
        _add(h, uses.at, np.stack([np.zeros(len(uses.at), np.int64), uses.side, group[groups.of_use]], 1))
        for number, mine, me, other in (
            (1, sends, links.src_at, links.dst_at),
            (2, recvs, links.dst_at, links.src_at),
        ):
            part = np.stack([links.send_side, links.recv_side, links.pairing, distance, there[other]], 1)[mine]
            _add(h, me[mine], np.column_stack([np.full(len(mine), number), part]))
        finer = _numbered(np.column_stack([color, h.view(np.int64)]))
        if finer.max(initial=-1) == color.max(initial=-1):
            first = np.unique(color, return_index=True)[1]
            return RankClasses(
                color.astype(np.int32), first.astype(np.int32), group.astype(np.int32), int(group.max(initial=-1)) + 1
            )
        color = finer


def _group_colors(color: I64, matching: Matching, groups: UsedGroups, still: I64) -> I64:
    uses = matching.uses
    seen = np.unique(np.stack([groups.of_use, color[uses.at], uses.side], 1), axis=0)
    h = np.zeros((len(groups.group), 2), np.uint64)
    _add(h, seen[:, 0], seen[:, 1:])
    return _numbered(np.column_stack([still, h.view(np.int64)]))


def _numbered(rows: I64) -> I64:
    """Equal rows get equal numbers, in order of their first appearance."""
    if not len(rows):
        return np.zeros(0, np.int64)
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


def _add(h: U64, at: NDArray[np.signedinteger], rows: I64) -> None:
    """Adds a 128-bit fingerprint of each row to h[at]. Sums do not depend on the order."""
    for half, seed in ((0, 0x9E3779B97F4A7C15), (1, 0xC2B2AE3D27D4EB4F)):
        x = np.full(len(rows), seed, np.uint64)
        for column in range(rows.shape[1]):
            x = _mixed(x ^ rows[:, column].astype(np.int64).view(np.uint64))
        np.add.at(h[:, half], at, x)


def _mixed(x: U64) -> U64:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
