"""Symmetries of a system: renumberings of its devices that change no way between any two of them but the names of its
links. Placements that one of them turns into each other take the same time.

A switch, or a full mesh, lets its units change places; a ring turns and is mirrored; a mesh is mirrored. Each of these
is taken only if the routes say so: it must turn the way from a to b, link by link, into the way from its a to its b,
over links as fast. So ties on an even ring, which are split, leave every second rotation, and routing by dimension
leaves no exchange of dimensions. Kinds of devices stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.machine.fabrics import topology_of_system
from etude.machine.routes import Routes
from etude.machine.system import LINED, LevelKind, System

Placement = tuple[int, ...]

MOST_DEVICES: Final = 128
"""Most devices for which symmetries are searched: every pair of devices is compared."""
FLOWS: Final = 2
"""Flows between a pair whose routes are compared: ties of a ring are split by flow too."""


class Symmetry:
    """`same(placement)` is the representative of all symmetric placements: the first in the order of tuples."""

    def __init__(self, system: System) -> None:
        self.sizes = [level.size for level in system.levels]
        self.devices = len(system)
        self.maps: list[I64] = [np.arange(self.devices)]
        self.free: list[int] = []
        """Levels whose units may be exchanged."""
        if system.topology is None and 1 < self.devices <= MOST_DEVICES:
            self._find(system)
        self._tables = [found.tolist() for found in self.maps]

    @property
    def everything(self) -> bool:
        """Whether all placements are equivalent: one switch."""
        return any(self.sizes[level] == self.devices for level in self.free)

    def same(self, placement: Sequence[int]) -> Placement:
        found = [self._relabelled([table[device] for device in placement]) for table in self._tables]
        return min(found)

    def _find(self, system: System) -> None:
        ways = _Routes(system)
        for number, level in enumerate(system.levels):
            if level.kind not in LINED and all(ways.keeps(m) for m in _exchanges(self.sizes, number)):
                self.free.append(number)
        turns = [_turns(level.kind, level.size) for level in system.levels]
        kept = []
        for chosen in product(*turns):
            found = _applied(self.sizes, chosen)
            if ways.keeps(found):
                kept.append(found)
        self.maps = kept

    def _relabelled(self, placement: list[int]) -> Placement:
        """Units of free levels numbered in the order in which ranks use them, the outermost level first."""
        if not self.free:
            return tuple(placement)
        seen: dict[tuple[int, ...], dict[int, int]] = {}
        found = []
        for device in placement:
            parents: tuple[int, ...] = ()
            place = 0
            for level in range(len(self.sizes) - 1, -1, -1):
                below = prod(self.sizes[:level])
                unit = device // below % self.sizes[level]
                if level in self.free:
                    names = seen.setdefault((level, *parents), {})
                    unit_now = names.setdefault(unit, len(names))
                else:
                    unit_now = unit
                parents = (*parents, unit)
                place += unit_now * below
            found.append(place)
        return tuple(found)


class _Routes:
    """The routes between all pairs of devices, and whether a renumbering preserves them."""

    def __init__(self, system: System) -> None:
        bare = system.replace(placement=())
        self.topology = topology_of_system(bare)
        self.routes, self.count = Routes(self.topology), len(bare)
        self.kind = bare.kind_of(np.arange(self.count))
        self.src, self.dst = np.divmod(np.arange(self.count**2), self.count)
        self.known = [self._paths(np.arange(self.count), flow) for flow in range(FLOWS)]

    def _paths(self, place: I64, flow: int) -> tuple[I64, NDArray[np.int32]]:
        vertex = self.topology.device.astype(np.int64)[place]
        return self.routes.paths(vertex[self.src], vertex[self.dst], flow)

    def keeps(self, place: I64) -> bool:
        if (self.kind[place] != self.kind).any():
            return False
        to = np.full(len(self.topology.src), -1, np.int64)
        back = to.copy()
        for flow, (start, links) in enumerate(self.known):
            start_now, links_now = self._paths(place, flow)
            if (start_now != start).any():
                return False
            # Of each link the last image counts; a link with two, or two with one, is found by looking again.
            to[links], back[links_now] = links_now, links
            if (to[links] != links_now).any() or (back[links_now] != links).any():
                return False
            for column in (self.topology.bytes_per_s, self.topology.latency_ns):
                if (column[links] != column[links_now]).any():
                    return False
        return True


def _turns(kind: LevelKind, size: int) -> list[I64]:
    """Possible permutations of the units of a level; the identity first."""
    unit = np.arange(size)
    if kind == LevelKind.RING and size > 2:
        return [(sign * unit + by) % size for sign in (1, -1) for by in range(size)]
    return [unit, unit[::-1]] if kind in LINED and size > 1 else [unit]


def _applied(sizes: Sequence[int], turns: Sequence[I64]) -> I64:
    """The device that replaces each, if each level has its units permuted."""
    device = np.arange(prod(sizes))
    found, below = np.zeros(len(device), np.int64), 1
    for size, turn in zip(sizes, turns, strict=True):
        found += turn[device // below % size] * below
        below *= size
    return found


def _exchanges(sizes: Sequence[int], level: int) -> list[I64]:
    """Exchanges of neighbouring units of a level, under each parent separately: they generate all permutations."""
    below, size = prod(sizes[:level]), sizes[level]
    found = []
    for first in range(0, prod(sizes), below * size):
        for unit in range(size - 1):
            place = np.arange(prod(sizes))
            a, b = first + unit * below, first + (unit + 1) * below
            place[a : a + below], place[b : b + below] = place[b : b + below].copy(), place[a : a + below].copy()
            found.append(place)
    return found
