"""The levels of a graph: what closed forms need, if it is regular enough to have them.

Devices within h hops of one another form a unit. A level is the least h at which units of one size divide all devices;
in a graph of nodes on a fabric that gives the node, then the pod, then all. Its rate is the combined rate of the
shortest routes from a device at their narrowest stage, its latency that of the longest of these routes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.kernels.compile import kernel
from etude.machine.routes import Routes, net_of
from etude.machine.system import Level, LevelKind
from etude.machine.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """Levels, innermost first, and the device number of each rank in them."""

    levels: tuple[Level, ...]
    place: I64
    irregular: str = ""
    """Why the levels are one switch for all, at the rate of the slowest device: the graph is irregular."""


def levels_of(topology: Topology) -> Levels:
    """The levels as rank 0 sees them, if every other rank sees the same."""
    count = len(topology)
    if count == 1:
        one = Level(name="alone", kind=LevelKind.SWITCH, size=1, bandwidth_bytes_per_s=1.0)
        return Levels((one,), np.zeros(1, np.int64))
    routes, device = Routes(topology), topology.device.astype(np.int64)
    start, links = routes.paths(device, np.full(count, device[0]))
    hops, width = np.diff(start), _widths(topology, start, links)
    order, unit, inside = np.arange(count), 1, 0
    levels: list[Level] = []
    for reach in np.unique(hops[1:]).tolist():
        near = int((hops <= reach).sum())
        if near % unit or count % near:
            continue  # a part of a unit: devices one hop farther belong to it as well
        here = np.flatnonzero((hops > inside) & (hops <= reach))
        units = _units(topology, order, near, reach)
        if units is None or np.ptp(width[here]) > 0:
            continue  # a level has one rate
        order, far = units, int(here[-1])
        levels.append(_level(topology, routes, far, near // unit, reach, levels))
        unit, inside = near, reach
    why = "" if unit == count else "its devices do not form units of one size by hops"
    if topology.forwards[device].any() and [level.kind for level in levels] != [LevelKind.FULL]:
        why = "its devices forward traffic of others"
    if why:
        return Levels((_flat(topology, width, start, links),), np.arange(count), why)
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    return Levels(tuple(levels), place)


def _units(topology: Topology, order: I64, size: int, reach: int) -> I64 | None:
    """Ranks, unit by unit, if the sets within `reach` hops are equally large and the same for all members."""
    rank_of = np.full(len(topology.kind), -1, np.int64)
    rank_of[topology.device] = np.arange(len(topology))
    found, good = _gathered(order, size, reach, topology.device.astype(np.int64), rank_of, net_of(topology))
    return found if good else None


@kernel
def _gathered(order, size, reach, device, rank_of, net):  # type: ignore[no-untyped-def]
    """A search of `reach` hops from the first rank that is in no unit yet, until all are in one. The order within a
    unit is kept, so units inside it stay together."""
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    out = np.empty(len(order), np.int64)
    taken = np.zeros(len(order), np.bool_)
    seen = np.full(len(rank_of), -1, np.int64)
    queue, depth = np.empty(len(rank_of), np.int64), np.empty(len(rank_of), np.int64)
    filled = 0
    for first in order:
        if taken[first]:
            continue
        begin = filled
        queue[0], depth[0] = device[first], 0
        seen[device[first]] = first
        head, tail = 0, 1
        while head < tail:
            v, away = queue[head], depth[head]
            head += 1
            if rank_of[v] >= 0:
                r = rank_of[v]
                if taken[r] or filled == begin + size:
                    return out, False
                taken[r] = True
                out[filled] = r
                filled += 1
            if away == reach or (away > 0 and not net.forwards[v]):
                continue
            for k in range(net.out_start[v], net.out_start[v + 1]):
                u = net.dst[net.out_link[k]]
                if seen[u] != first:
                    seen[u] = first
                    queue[tail], depth[tail] = u, away + 1
                    tail += 1
        if filled != begin + size:
            return out, False
        part = out[begin:filled]
        out[begin:filled] = part[np.argsort(position[part])]
    return out, True


def _level(topology: Topology, routes: Routes, far: int, size: int, hops: int, before: list[Level]) -> Level:
    """Rate and latency between rank 0 and `far`, over all equal routes."""
    goal = int(topology.device[far])
    _, way = routes.paths(topology.device[:1].astype(np.int64), np.array([goal]))
    latency = float(topology.latency_ns[way].sum())
    narrow = int(way[np.argmin(topology.bytes_per_s[way])])
    name = topology.link_names[topology.link_type[narrow]] or f"level{len(before)}"
    if name in [level.name for level in before]:
        name = f"{name}{len(before)}"
    if hops == 1:
        peers = np.flatnonzero((topology.src == topology.device[0]) & np.isin(topology.dst, topology.device))
        rate = float(topology.bytes_per_s[peers].sum())
        return Level(name=name, kind=LevelKind.FULL, size=size, bandwidth_bytes_per_s=rate, latency_ns=latency)
    rate = _narrowest(topology, routes, goal)
    return Level(name=name, kind=LevelKind.SWITCH, size=size, bandwidth_bytes_per_s=rate, latency_ns=latency)


def _narrowest(topology: Topology, routes: Routes, goal: int) -> float:
    """Sum of the link rates at each stage of the shortest routes from rank 0 to the goal; the least of the sums."""
    left = routes.hops_to(goal)
    on_the_way = np.zeros(len(topology.kind), np.bool_)
    on_the_way[topology.device[0]] = True
    closer = left[topology.dst] == left[topology.src] - 1
    rates = []
    for hops in range(int(left[topology.device[0]]), 0, -1):
        stage = np.flatnonzero(closer & on_the_way[topology.src] & (left[topology.src] == hops))
        on_the_way[topology.dst[stage]] = True
        rates.append(float(topology.bytes_per_s[stage].sum()))
    return min(rates)


def _widths(topology: Topology, start: I64, links: Any) -> NDArray[np.float64]:
    """Smallest rate on each route; infinite on an empty one."""
    width = np.full(len(start) - 1, np.inf)
    some = np.diff(start) > 0
    width[some] = np.minimum.reduceat(topology.bytes_per_s[links], start[:-1][some])
    return width


def _flat(topology: Topology, width: NDArray[np.float64], start: I64, links: Any) -> Level:
    """One switch, as slow as the slowest route to rank 0 and with the latency of the farthest."""
    latency = np.add.reduceat(topology.latency_ns[links], start[:-1][np.diff(start) > 0]).max()
    return Level(
        name="graph",
        kind=LevelKind.SWITCH,
        size=len(topology),
        bandwidth_bytes_per_s=float(width.min()),
        latency_ns=float(latency),
    )
