"""Who holds which devices of a machine, and for how long.

Every device has one holder at a time: a workload, or `free`, or `down` if its node is out of order. The device time
of all holders adds up to that of the machine, to the nanosecond. Nodes may be in several regions: whole nodes of a
holder are all in one, and there is a history of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.world.policies import PlacePolicy, placed

FREE: Final = "free"
DOWN: Final = "down"
_NOBODY: Final = -1


class DeviceSeat(NamedTuple):
    """Devices of one node."""

    node: int
    devices: tuple[int, ...]


class Holding(NamedTuple):
    """From a moment on, this many devices."""

    time_ns: int
    devices: int


@dataclass(slots=True)
class DevicePool:
    """Devices of equal nodes. `place` chooses the node of a seat."""

    nodes: int
    per_node: int
    place: PlacePolicy
    holder: I64 = field(init=False)
    """Number of the holder of each device, or -1: (node, device)."""
    up: NDArray[np.bool_] = field(init=False)
    leaving: NDArray[np.bool_] = field(init=False)
    """Nodes that will be down soon: they are not given to a workload any more."""
    names: list[str] = field(default_factory=list)
    history: dict[str, list[Holding]] = field(default_factory=dict)
    """Of each holder, its devices over time; at least one row, from 0 on."""
    region: I64 | None = None
    """Number of the region of each node, if there are several."""
    region_of: dict[str, int] = field(default_factory=dict)
    """The region of holders that are in one."""
    regional: list[dict[str, list[Holding]]] = field(default_factory=list)
    """The history by region, if there are several."""

    def __post_init__(self) -> None:
        self.holder = np.full((self.nodes, self.per_node), _NOBODY, np.int64)
        self.up, self.leaving = np.ones(self.nodes, bool), np.zeros(self.nodes, bool)
        self.history = {FREE: [Holding(0, self.nodes * self.per_node)], DOWN: [Holding(0, 0)]}
        for nodes in np.bincount(self.region).tolist() if self.region is not None else ():
            self.regional.append({FREE: [Holding(0, nodes * self.per_node)], DOWN: [Holding(0, 0)]})

    @property
    def count(self) -> int:
        return self.nodes * self.per_node

    def free(self) -> I64:
        """Free devices of each node that is up and stays so."""
        return np.where(self.up & ~self.leaving, (self.holder == _NOBODY).sum(axis=1), 0)

    def free_for(self, who: str) -> I64:
        """Those that a holder may have: of its region, if it is in one."""
        if self.region is None or who not in self.region_of:
            return self.free()
        return np.where(self.region == self.region_of[who], self.free(), 0)

    def meet(self, one: str, other: str) -> bool:
        """Whether one may have nodes that another has."""
        of = self.region_of
        return self.region is None or one not in of or other not in of or of[one] == of[other]

    def held(self, who: str) -> int:
        return self.history[who][-1].devices if who in self.history else 0

    def nodes_of(self, who: str) -> list[int]:
        """Nodes on which it has devices."""
        return np.flatnonzero((self.holder == self._number(who)).any(axis=1)).tolist()

    def holders_on(self, nodes: Iterable[int]) -> list[str]:
        """Who has devices on some of these nodes, in order of their names' first use."""
        found = np.unique(self.holder[list(nodes)])
        return [self.names[k] for k in found if k != _NOBODY]

    def take_nodes(self, who: str, count: int, now_ns: int) -> list[int]:
        """Whole free nodes, as many of these as there are. The first that are taken say its region."""
        if count and self.region is not None and who not in self.region_of:
            self.region_of[who] = self._roomiest(count)
        found = np.flatnonzero(self.free_for(who) == self.per_node)[:count].tolist()
        for node in found:
            self._take(who, DeviceSeat(node, tuple(range(self.per_node))), now_ns)
        return found

    def take_seat(self, who: str, devices: int, now_ns: int) -> DeviceSeat | None:
        """Free devices of one node, if a node has as many."""
        free = self.free_for(who)
        able = [(int(free[node]), int(node)) for node in np.flatnonzero(free >= devices)]
        if not able:
            return None
        node = able[placed(self.place, [left for left, _ in able], devices)][1]
        chosen = np.flatnonzero(self.holder[node] == _NOBODY)[:devices]
        seat = DeviceSeat(node, tuple(chosen.tolist()))
        self._take(who, seat, now_ns)
        return seat

    def give(self, seat: DeviceSeat, now_ns: int) -> None:
        """A workload gives devices back."""
        row = self.holder[seat.node]
        who = self.names[int(row[seat.devices[0]])]
        row[list(seat.devices)] = _NOBODY
        self._change(who, -len(seat.devices), now_ns, seat.node)
        self._change(FREE if self.up[seat.node] else DOWN, len(seat.devices), now_ns, seat.node)

    def give_node(self, node: int, now_ns: int) -> None:
        self.give(DeviceSeat(node, tuple(range(self.per_node))), now_ns)

    def fail(self, node: int, now_ns: int) -> None:
        """Its free devices are down; holders give theirs back themselves."""
        if self.up[node]:
            idle = int((self.holder[node] == _NOBODY).sum())
            self.up[node], self.leaving[node] = False, False
            self._change(FREE, -idle, now_ns, node)
            self._change(DOWN, idle, now_ns, node)

    def repair(self, node: int, now_ns: int) -> None:
        if not self.up[node]:
            idle = int((self.holder[node] == _NOBODY).sum())
            self.up[node] = True
            self._change(DOWN, -idle, now_ns, node)
            self._change(FREE, idle, now_ns, node)

    def device_ns(self, who: str, until_ns: int) -> int:
        """Device time of a holder from 0 on."""
        return held_ns(self.history.get(who, [Holding(0, 0)]), 0, until_ns)

    def _take(self, who: str, seat: DeviceSeat, now_ns: int) -> None:
        self.holder[seat.node, list(seat.devices)] = self._number(who)
        self._change(FREE, -len(seat.devices), now_ns, seat.node)
        self._change(who, len(seat.devices), now_ns, seat.node)

    def _number(self, who: str) -> int:
        if who not in self.names:
            self.names.append(who)
            self.history[who] = [Holding(0, 0)]
        return self.names.index(who)

    def _roomiest(self, count: int) -> int:
        """The first region that has as many free nodes, or the one with most."""
        assert self.region is not None
        whole = np.bincount(self.region[self.free() == self.per_node], minlength=len(self.regional))
        enough = np.flatnonzero(whole >= count)
        return int(enough[0] if len(enough) else whole.argmax())

    def _change(self, who: str, by: int, now_ns: int, node: int) -> None:
        if not by:
            return
        self._book(self.history[who], who, by, now_ns)
        if self.region is not None:
            rows = self.regional[int(self.region[node])].setdefault(who, [Holding(0, 0)])
            self._book(rows, who, by, now_ns)

    @staticmethod
    def _book(rows: list[Holding], who: str, by: int, now_ns: int) -> None:
        if now_ns < rows[-1].time_ns:
            raise ValueError(f"devices of {who} change at {now_ns}, and it is {rows[-1].time_ns} already")
        after = rows[-1].devices + by
        if rows[-1].time_ns == now_ns:
            rows[-1] = Holding(now_ns, after)
        else:
            rows.append(Holding(now_ns, after))


def held_ns(history: Sequence[Holding], start_ns: int, end_ns: int, *, most: int = 1 << 62) -> int:
    """Device time between two moments, of at most this many devices."""
    times = [min(max(row.time_ns, start_ns), end_ns) for row in history] + [end_ns]
    return sum(
        min(row.devices, most) * (later - first) for row, first, later in zip(history, times, times[1:], strict=False)
    )
