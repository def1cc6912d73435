"""Availability of nodes over time, and the price of a device: spot and preemptible nodes.

A group of nodes has a file of its devices over time (the first nodes stay the longest), or each of its nodes is
reclaimed and comes back after random times from its own random stream: every policy sees the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.base.files import csv_rows
from etude.kernels.arrays import F64, I64
from etude.world.clock import Agenda
from etude.world.fleet.sharing.cluster import Cluster

SEEDS: Final = 7919
NODE: Final = "node"
"""A node comes or goes."""


class DevicePrices(NamedTuple):
    """Price of a device in dollars per hour, from each time on."""

    time_ns: I64
    price: F64

    def paid(self, start_ns: int, end_ns: int) -> float:
        """Cost of one device that is held from `start_ns` to `end_ns`, in dollars."""
        edges = np.clip(np.append(self.time_ns, np.iinfo(np.int64).max), start_ns, end_ns)
        return float((np.diff(edges) * self.price).sum()) / 3.6e12


class Supply:
    """Changes of nodes in order of time, one at a time; random changes never end."""

    def __init__(self, cluster: Cluster, seed: int = 0) -> None:
        self.later = Agenda()
        self.draws: dict[int, Iterator[int]] = {}
        self.prices: list[DevicePrices] = []
        self.away: list[int] = []
        """Nodes that are absent at the start."""
        for k, group in enumerate(cluster.groups):
            nodes = np.flatnonzero(cluster.group == k).tolist()
            if group.capacity and group.mtbf_ns:
                raise UsageError("capacity and mtbf cannot be combined", where=f"{cluster.name}: nodes[{k}]")
            flat = DevicePrices(np.zeros(1, np.int64), np.array([group.price]))
            self.prices.append(self._from_file(group.capacity, nodes, group.gpus, flat) if group.capacity else flat)
            for node in nodes if group.mtbf_ns else ():
                own = _times(np.random.default_rng((seed, SEEDS, node)), group.mtbf_ns, group.back_ns)
                self.draws[node] = own
                self.later.note(next(own), NODE, (node, False))
        if cluster.free_ns is not None:
            for node in np.flatnonzero(cluster.free_ns > 0).tolist():
                self.away.append(node)
                self.later.note(int(cluster.free_ns[node]), NODE, (node, True))

    def _from_file(self, path: str, nodes: list[int], gpus: int, flat: DevicePrices) -> DevicePrices:
        time_ns, of = read_steps(path, ("devices",), ("price",))
        devices, most = of["devices"], len(nodes) * gpus
        if devices.max() > most:
            raise UsageError(
                f"{devices.max():g} devices, but the nodes have {most}", where=path, hint="use a larger count"
            )
        there = np.ones(len(nodes), bool)
        for at, count in zip(time_ns.tolist(), devices.astype(np.int64).tolist(), strict=True):
            now = np.arange(len(nodes)) < count // max(gpus, 1)
            for k in np.flatnonzero(now != there).tolist():
                if at == 0:
                    self.away.append(nodes[k])
                else:
                    self.later.note(at, NODE, (nodes[k], bool(now[k])))
            there = now
        return DevicePrices(time_ns, of["price"]) if "price" in of else flat

    def next_ns(self) -> int:
        return self.later.next_ns()

    def due(self, now: float) -> Iterator[tuple[int, bool]]:
        """Takes the changes up to a moment: a node, and whether it is there from then on."""
        while (time_ns := self.next_ns()) <= now:
            node, there = self.later.pop()[1]
            if node in self.draws:
                self.later.note(time_ns + next(self.draws[node]), NODE, (node, not there))
            yield node, there

    @property
    def endless(self) -> bool:
        return bool(self.draws)


def _times(rng: np.random.Generator, up_ns: int, down_ns: int) -> Iterator[int]:
    while True:
        for mean in (up_ns, down_ns):
            yield max(round(rng.exponential(mean)), 1)


def read_steps(path: str, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> tuple[I64, dict[str, F64]]:
    """A CSV file of values that hold from `time_s` on: the times, and each of its other columns. Raises UsageError."""
    columns, rows = csv_rows(path)
    known, like = ("time_s", *needed, *optional), ",".join(("time_s", *needed))
    if unknown := [name for name in columns if name not in known]:
        raise UsageError(f"unknown column `{unknown[0]}`", where=path, hint=f"known: {', '.join(known)}")
    if missing := [name for name in ("time_s", *needed) if name not in columns]:
        raise UsageError(f"has no column `{missing[0]}`", where=path, hint=like)
    found: dict[str, F64] = {}
    for name in columns:
        try:
            found[name] = np.array([float(row[name]) for row in rows])
        except (TypeError, ValueError):
            raise UsageError(f"{name}: not a number in every row", where=path, hint=like) from None
        if not np.isfinite(found[name]).all() or (found[name] < 0).any():
            raise UsageError(f"{name}: negative, or not a number", where=path)
    time = found.pop("time_s")
    if not len(time) or time[0] != 0 or (np.diff(time) <= 0).any() or time[-1] > 9e9:
        raise UsageError("times must start at 0 and increase", where=path, hint=f"{like} / 0,32 / 600,16")
    return np.round(time * 1e9).astype(np.int64), found
