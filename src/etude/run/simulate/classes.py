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

from etude.kernels.arrays import I32, I64, U64
from etude.kernels.compile import kernel
from etude.kernels.csr import starts
from etude.kernels.distinct import first_rows, numbered_rows, slices
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
        np.arange(ranks, dtype=np.int32), np.arange(ranks, dtype=np.int32), np.arange(groups, dtype=np.int32), groups
    )


def stable_classes(start: I64, matching: Matching, groups: UsedGroups, distance: I32) -> RankClasses:
    """The coarsest classes. `start` separates ranks that differ by themselves, `distance` separates links by cost."""
    links, uses = matching.links, matching.uses
    color = numbered_rows(start)[0].astype(np.int32)
    still = np.stack([groups.shape.astype(np.int64), groups.lacks, groups.partial], 1)
    still = numbered_rows(np.column_stack([still, np.unique(groups.factor, return_inverse=True)[1].reshape(-1)]))[0]
    link = numbered_rows(np.stack([links.send_side, links.recv_side, links.pairing, distance], 1))[0].astype(np.int32)
    while True:
        group = _group_colors(color, matching, groups, still)
        h = np.zeros((len(color), 2), np.uint64)
        add_fingerprints(h, uses.at, uses.side, group[groups.of_use], 0)
        there = np.append(color, np.int32(-1))  # -1: the peer is absent
        add_fingerprints(h, links.src_at, link, there[links.dst_at], 1)
        add_fingerprints(h, links.dst_at, link, there[links.src_at], 2)
        finer = numbered_rows(np.column_stack([color, h.view(np.int64)]))[0].astype(np.int32)
        if finer.max(initial=-1) == color.max(initial=-1):
            first = numbered_rows(color[:, None])[1]
            return RankClasses(color, first.astype(np.int32), group, int(group.max(initial=-1)) + 1)
        color = finer


def _group_colors(color: I32, matching: Matching, groups: UsedGroups, still: I64) -> I32:
    uses = matching.uses
    mine = color[uses.at]
    once = _first_of_each(groups.of_use, mine, uses.side)
    h = np.zeros((len(groups.group), 2), np.uint64)
    add_fingerprints(h, groups.of_use[once], mine[once], uses.side[once], 0)
    return numbered_rows(np.column_stack([still, h.view(np.int64)]))[0].astype(np.int32)


def _first_of_each(group: I32, *columns: I32) -> I64:
    """Where each distinct row is first; those of a group are next to each other."""
    start = starts(group)
    found = [np.zeros(0, np.int64)]
    for low, high in slices(start):
        rows = slice(start[low], start[high])
        found.append(start[low] + first_rows(np.stack([column[rows] for column in (group, *columns)], 1)))
    return np.concatenate(found)


@kernel
def add_fingerprints(h: U64, at: I32, first: I32, second: I32, kind: int) -> None:
    """Adds a 128-bit fingerprint of (kind, first[i], second[i]) to h[at[i]], if that is not -1. Sums do not depend on
    the order."""
    for i in range(len(at)):
        if at[i] < 0:
            continue
        for half in range(2):
            x = np.uint64(0x9E3779B97F4A7C15) if half == 0 else np.uint64(0xC2B2AE3D27D4EB4F)
            for part in (np.int64(kind), np.int64(first[i]), np.int64(second[i])):
                x = (x ^ np.uint64(part)) + np.uint64(0x9E3779B97F4A7C15)
                x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
                x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
                x = x ^ (x >> np.uint64(31))
            h[at[i], half] += x
