"""Links over which transfers take longer than over comparable ones, and which end is the cause.

A transfer belongs to a unit: the ranks of a group, or the two ends of a message. A slow port slows every unit that
contains its rank, a slow link every unit that contains both of its ends; so the slow and the normal units together
identify it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.analyse.operations import CollectiveCalls, group_name, group_size, messages, times_of
from etude.analyse.outliers import Profile, families, profile, rounded_to, shared
from etude.analyse.segments import Segments
from etude.analyse.stretches import Slow, shows, slower_units, standing_out
from etude.analyse.switches import behind_switch
from etude.kernels.arrays import F64, I64
from etude.model.job import ranges
from etude.model.match import WORLD
from etude.model.run import Run
from etude.model.schema import UNKNOWN
from etude.model.timing import Origin

Samples = tuple[I64, I64, I64, F64]
"""Unit, key, segment and log time of each transfer."""

SHORT: Final = 0.4
"""Part of what long messages of a size take below which a receive found its message already there."""
STRETCH: Final = 5
"""Fewest steps of a stretch in which one of many links is slow: in fewer one of them is by chance."""
FEW_LINKS: Final = 4
FEWEST: Final = 3
"""Fewest transfers by which a single unit can be slow: one may take twice as long by chance."""
ALONE: Final = 1.25
"""Slow-down in every n-th step from which a unit that has no peers is named."""
MOST_PAIRS: Final = 512
"""Largest slow group whose pairs are all tried."""


@dataclass(frozen=True, slots=True)
class SlowLink:
    slow: Slow
    """The unit in which it shows most."""
    ranks: tuple[int, ...]
    """Suspected ranks: one rank (its port), both ends of a link, or all of a group if they cannot be distinguished."""
    label: str
    units: int
    """Units in which it shows."""


class Links:
    """Transfers by unit, with a key shared by comparable ones."""

    def __init__(self, run: Run, stretches: Segments, ranks_per_node: int) -> None:
        self.run, self.job, self.segments, self.node = run, run.job, stretches, ranks_per_node
        self.units: list[tuple[int, ...]] = []
        self.labels: list[str] = []
        self.keys: dict[tuple[Any, ...], int] = {}

    def slow(self, found: CollectiveCalls, least: float) -> Iterator[SlowLink]:
        parts = [part for part in (self._transfers(found), self._sent()) if part is not None]
        if not parts:
            return
        unit, key, segment, log = (np.concatenate([p[k] for p in parts]) for k in range(4))
        inside = segment >= 0
        unit, key, segment, log = unit[inside], key[inside], segment[inside], log[inside]
        alone = shared(unit, key, len(self.keys)) < 2  # of two equals the slower is named, as likely only
        shape = len(self.units), len(self.keys), self.segments.count
        for itself in (False, True):  # those that have peers are compared with them, others with themselves over time
            mine = alone[key] == itself
            if mine.any():
                step_ns = rounded_to(np.rint(np.exp(log[mine])).astype(np.int64))
                profiles = profile(unit[mine], key[mine], segment[mine], log[mine], shape, step_ns=step_ns)
                named = [one for one in slower_units(profiles, least) if not (itself and _by_chance(one))]
                if self.segments.by_step:
                    least_steps = 1 if self.are_few else STRETCH
                    named = [one for one in named if one.whole or one.segments(shape[2]).sum() >= least_steps]
                if not self.segments.by_step:  # less than half of a run may be part of one step
                    named = [one for one in named if 2 * one.segments(shape[2]).sum() >= shape[2]]
                shared_by = (
                    None
                    if itself
                    else behind_switch(
                        self.units, families(unit[mine], key[mine], len(self.units)), profiles, self.node, least
                    )
                )
                if shared_by is not None:
                    yield SlowLink(*shared_by)
                    inside_it = set(shared_by[1])
                    named = [one for one in named if not inside_it & set(self.units[one.unit])]
                times = np.bincount(unit[mine], minlength=len(self.units))
                causes = [
                    one for one in self._causes(named, profiles) if one.units > 1 or times[one.slow.unit] >= FEWEST
                ]
                left = standing_out([cause.slow for cause in causes], len(np.unique(unit[mine])))
                yield from (cause for cause in causes if cause.slow in left)

    @property
    def are_few(self) -> bool:
        return len(self.units) <= FEW_LINKS

    def _causes(self, named: list[Slow], profiles: Profile) -> Iterator[SlowLink]:
        """Slow units that one rank or link explains become one finding; the highest confidence first."""
        left = sorted(named, key=lambda one: (-one.confidence, -one.factor))
        while left:
            first, meant, together = left[0], set(self.units[left[0].unit]), []
            likely, leaning, clear = (np.flatnonzero(units).tolist() for units in shows(profiles, first))
            for one in left:
                if one.unit not in clear and (both := meant & set(self.units[one.unit])):
                    meant = both
                    together.append(one)
            left = [one for one in left if one not in together]
            ranks = self._narrowed(meant, likely, leaning, clear)
            yield SlowLink(first, ranks, self.labels[first.unit], len(together))

    def _narrowed(self, meant: set[int], likely: list[int], leaning: list[int], clear: list[int]) -> tuple[int, ...]:
        """The one rank, or one pair, among those that all slow units share, that other units point to."""
        if len(meant) < 2:
            return tuple(meant)
        fine = [both for u in clear if (both := meant & set(self.units[u]))]
        cleared = set().union(*fine)
        spoken = self._beside(meant, likely) - cleared
        if len(spoken) == 1:
            return tuple(spoken)
        ports = meant - cleared
        if len(meant) > 2 and len(ports) == 1 and ports <= self._beside(meant, leaning):
            return tuple(ports)
        if 2 < len(meant) <= MOST_PAIRS and not ports:
            fine = [unit for unit in fine if len(unit) > 1]
            pairs = [p for p in combinations(sorted(meant), 2) if not any(unit.issuperset(p) for unit in fine)]
            if len(pairs) == 1:
                return pairs[0]
        return tuple(sorted(meant))

    def _beside(self, meant: set[int], units: list[int]) -> set[int]:
        """Which of these ranks are in one of these units, apart from units that contain all of them."""
        found = (meant & set(self.units[u]) for u in units)
        return set().union(*(both for both in found if both != meant))

    def _place(self, ranks: NDArray[np.signedinteger]) -> tuple[int, ...]:
        """Relative position of ranks: their distances, and which of them share a node."""
        return (*(ranks - ranks[0]).tolist(), *(ranks // self.node - ranks[0] // self.node).tolist())

    def _transfers(self, found: CollectiveCalls) -> Samples | None:
        """Transfers of collectives: the time of the member that waited least."""
        if not len(found):
            return None
        seen = (found.start_ns != UNKNOWN) & (found.end_ns != UNKNOWN)
        lasted = np.where(seen, found.end_ns - np.where(seen, found.start_ns, 0), 2**62)
        transfer = np.minimum.reduceat(lasted, found.first[:-1])
        size, seen = group_size(self.job, found.group), np.bincount(found.of[seen], minlength=len(found))
        whole = (seen == size) | (size < 0)  # if a member is missing, the minimum may include waiting
        good = (transfer > 0) & (transfer < 2**62) & (seen > 1) & whole
        unit, key = np.full(len(found), -1, np.int64), np.zeros(len(found), np.int64)
        for group in np.unique(found.group[good]).tolist():
            mine = np.flatnonzero(good & (found.group == group))
            members = self._members(found, group, mine)
            unit[mine] = len(self.units)
            self.units.append(tuple(members.tolist()))
            self.labels.append(f"collectives of group `{group_name(self.job, group)}` ({ranges(members)})")
            place = self._place(members)
            for i in mine.tolist():
                what = (int(found.collective[i]), int(found.size_bytes[i]), place)
                key[i] = self.keys.setdefault(what, len(self.keys))
        rows = np.flatnonzero(unit >= 0)
        first = found.first[rows]
        segment = self.segments.of_ranks(self.run, found.at[first], found.row[first])
        return unit[rows], key[rows], segment, np.log(transfer[rows].astype(np.float64))

    def _members(self, found: CollectiveCalls, group: int, rows: I64) -> NDArray[np.int32]:
        """Members of a group: as the job says, otherwise those seen in its calls."""
        if group == WORLD:
            return self.job.ranks
        known = self.job.groups.ranks(group)
        if known is not None and len(known):
            return known
        seen = np.concatenate([found.at[found.first[i] : found.first[i + 1]] for i in rows.tolist()])
        return self.job.ranks[np.unique(seen)]

    def _sent(self) -> Samples | None:
        """Transfers of messages: the send if simulated, the shorter of send and receive if measured."""
        job, timing = self.job, self.run.timing
        found = messages(job)
        sent, there = times_of(timing, found.src_at, found.src_row), times_of(timing, found.dst_at, found.dst_row)
        known = (sent[0] != UNKNOWN) & (sent[1] != UNKNOWN) & (there[0] != UNKNOWN) & (there[1] != UNKNOWN)
        lasted = np.where(known, sent[1] - np.where(known, sent[0], 0), 0)
        if timing.origin != Origin.SIMULATED:
            lasted = np.minimum(lasted, np.where(known, there[1] - np.where(known, there[0], 0), 0))
        src, dst = job.ranks[found.src_at].astype(np.int64), job.ranks[found.dst_at].astype(np.int64)
        pair = np.minimum(src, dst) << 32 | np.maximum(src, dst)
        lasted = np.where(_short(lasted, found.size_bytes, pair), 0, lasted)
        good = np.flatnonzero((lasted > 0) & (src != dst))
        if not len(good):
            return None
        ends = np.stack([np.minimum(src, dst), np.maximum(src, dst)], 1)[good]
        pairs, which = np.unique(ends, axis=0, return_inverse=True)
        base = len(self.units)
        self.units += [(int(a), int(b)) for a, b in pairs.tolist()]
        self.labels += [f"messages between ranks {a} and {b}" for a, b in pairs.tolist()]
        places = [self._place(pair) for pair in pairs]
        # the two directions are not comparable: the way back may be waited for differently
        what = zip(found.size_bytes[good].tolist(), which.reshape(-1).tolist(), (src < dst)[good].tolist(), strict=True)
        key = [self.keys.setdefault(("message", size, on, places[pair]), len(self.keys)) for size, pair, on in what]
        segment = self.segments.of_ranks(self.run, found.src_at[good], found.src_row[good])
        return which.reshape(-1) + base, np.array(key, np.int64), segment, np.log(lasted[good].astype(np.float64))


def _by_chance(one: Slow) -> bool:
    """Of a unit without peers: it is as slow throughout, or in every n-th step by little, for one of many n."""
    return one.whole or (one.every > 1 and one.factor < ALONE)


def _short(lasted: I64, size: I64, pair: I64) -> NDArray[np.bool_]:
    """Messages that took far less than others of their size: nothing was transferred while both ends were there. Long
    ones are those of most pairs, since a slow link alone makes its own long."""
    sizes, of = np.unique(size, return_inverse=True)
    short = np.zeros(len(lasted), bool)
    for one in range(len(sizes)):
        mine = np.flatnonzero((of.reshape(-1) == one) & (lasted > 0))
        if len(mine):
            rows = mine[np.lexsort((lasted[mine], pair[mine]))]
            first = np.flatnonzero(np.diff(pair[rows], prepend=pair[rows[0]] - 1))
            count = np.diff(first, append=len(rows))
            long = lasted[rows[first + (9 * (count - 1)) // 10]]  # of each pair
            short[mine] = lasted[mine] < SHORT * np.quantile(long, 0.5, method="lower")
    return short
