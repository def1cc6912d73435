"""Availability of nodes over time, and the price of a device: spot and preemptible nodes.

A group of nodes has a file of its devices over time (the first nodes stay the longest), or each of its nodes is
reclaimed and comes back after random times from its own random stream: every policy sees the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.files import csv_rows
from etude.kernels.arrays import F64
from etude.world.fleet.sharing.cluster import Cluster

SEEDS: Final = 7919


class SupplyChange(NamedTuple):
    time_ns: int
    node: int
    there: bool


class DevicePrices(NamedTuple):
    """Price of a device in dollars per hour, from each time on."""

    time_ns: NDArray[np.int64]
    price: F64

    def paid(self, start_ns: int, end_ns: int) -> float:
        """Cost of one device that is held from `start_ns` to `end_ns`, in dollars."""
        edges = np.clip(np.append(self.time_ns, np.iinfo(np.int64).max), start_ns, end_ns)
        return float((np.diff(edges) * self.price).sum()) / 3.6e12


class Supply:
    """Changes of nodes in order of time, one at a time; random changes never end."""

    def __init__(self, cluster: Cluster, seed: int = 0) -> None:
        self.heap: list[tuple[int, int, bool]] = []
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
                heapq.heappush(self.heap, (next(own), node, False))
        if cluster.free_ns is not None:
            for node in np.flatnonzero(cluster.free_ns > 0).tolist():
                self.away.append(node)
                heapq.heappush(self.heap, (int(cluster.free_ns[node]), node, True))

    def _from_file(self, path: str, nodes: list[int], gpus: int, flat: DevicePrices) -> DevicePrices:
        time_ns, devices, price = read_capacity(path, len(nodes) * gpus)
        there = np.ones(len(nodes), bool)
        for at, count in zip(time_ns.tolist(), devices.tolist(), strict=True):
            now = np.arange(len(nodes)) < count // max(gpus, 1)
            for k in np.flatnonzero(now != there).tolist():
                if at == 0:
                    self.away.append(nodes[k])
                else:
                    heapq.heappush(self.heap, (at, nodes[k], bool(now[k])))
            there = now
        return flat if price is None else DevicePrices(time_ns, price)

    @property
    def next_ns(self) -> int | None:
        return self.heap[0][0] if self.heap else None

    def pop(self) -> SupplyChange:
        time_ns, node, there = heapq.heappop(self.heap)
        if node in self.draws:
            heapq.heappush(self.heap, (time_ns + next(self.draws[node]), node, not there))
        return SupplyChange(time_ns, node, there)

    @property
    def endless(self) -> bool:
        return bool(self.draws)


def _times(rng: np.random.Generator, up_ns: int, down_ns: int) -> Iterator[int]:
    while True:
        for mean in (up_ns, down_ns):
            yield max(round(rng.exponential(mean)), 1)


def read_capacity(path: str, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64], F64 | None]:
    """Times, devices from then on, and prices if the file has them. Raises UsageError."""
    columns, rows = csv_rows(path)
    known = ("time_s", "devices", "price")
    if unknown := [name for name in columns if name not in known]:
        raise UsageError(f"unknown column `{unknown[0]}`", where=path, hint=f"known: {', '.join(known)}")
    if missing := [name for name in known[:2] if name not in columns]:
        raise UsageError(f"has no column `{missing[0]}`", where=path, hint="time_s,devices")
    found: list[F64] = []
    for name in columns:
        try:
            column = np.array([float(row[name]) for row in rows])
        except (TypeError, ValueError):
            raise UsageError(f"{name}: not a number in every row", where=path) from None
        if not np.isfinite(column).all() or (column < 0).any():
            raise UsageError(f"{name}: negative, or not a number", where=path)
        found.append(column)
    of = dict(zip(columns, found, strict=True))
    time, devices = of["time_s"], of["devices"]
    if not len(time) or time[0] != 0 or (np.diff(time) <= 0).any():
        raise UsageError("times must start at 0 and increase", where=path, hint="time_s,devices / 0,32 / 600,16")
    if devices.max() > most:
        raise UsageError(f"{devices.max():g} devices, but the nodes have {most}", where=path, hint="use a larger count")
    return np.round(time * 1e9).astype(np.int64), devices.astype(np.int64), of.get("price")
