"""Placement: free processors, memory and parts of devices of each node, and the tightest fit for a job."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.world.fleet.sharing.cluster import WHOLE, Cluster
from etude.world.fleet.sharing.jobs import Jobs


class Seat(NamedTuple):
    """Resources that a job holds on one node."""

    node: int
    devices: tuple[int, ...]
    milli: int
    cpu: int
    memory: int


class Free:
    """Free resources of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.cpu, self.memory = cluster.cpu_milli.copy(), cluster.memory_mib.copy()
        widest = int(cluster.gpus.max(initial=1)) or 1
        self.device = np.where(np.arange(widest) < cluster.gpus[:, None], WHOLE, 0).astype(np.int64)
        self.sum = self.device.sum(axis=1)
        self.whole = (self.device == WHOLE).sum(axis=1)

    def seats(self, jobs: Jobs, job: int) -> list[Seat]:
        """The tightest place for a job; empty if it does not fit now."""
        kind, gpus, milli = jobs.kind[job], int(jobs.gpus[job]), int(jobs.gpu_milli[job])
        cpu, memory = int(jobs.cpu_milli[job]), int(jobs.memory_mib[job])
        fits = (self.cpu >= cpu) & (self.memory >= memory)
        right = self._of_kind(kind)
        if right is not None:
            fits &= right
        if gpus == 0:  # on nodes with the fewest devices, to keep the others free
            return self._tightest(
                fits, self.cluster.gpus * (1 << 40) + np.minimum(self.cpu, 1 << 39), (), 0, cpu, memory
            )
        if gpus == 1 and milli < WHOLE:
            fits &= (self.device >= milli).any(axis=1)
            return self._tightest(fits, self.sum, None, milli, cpu, memory)
        alone = fits & (self.whole >= gpus)
        if alone.any():
            node = int(np.where(alone, self.sum, 1 << 60).argmin())
            return [Seat(node, self._free_devices(node, gpus), WHOLE, cpu, memory)]
        widest = int(self.cluster.gpus.max() if right is None else self.cluster.gpus[right].max(initial=0))
        return self._gang(right, gpus, cpu, memory) if gpus > widest else []

    def _of_kind(self, kind: str) -> NDArray[np.bool_] | None:
        """Nodes of a kind; `T4|P100` means either. None: any kind."""
        if not kind:
            return None
        wanted = [k for k, name in enumerate(self.cluster.kinds) if name in kind.split("|")]
        return np.isin(self.cluster.kind, wanted)

    def _tightest(
        self, fits: NDArray[np.bool_], left: I64, devices: tuple[int, ...] | None, milli: int, cpu: int, memory: int
    ) -> list[Seat]:
        if not fits.any():
            return []
        node = int(np.where(fits, left, 1 << 62).argmin())
        if devices is None:
            row = self.device[node]
            devices = (int(np.where(row >= milli, row, 1 << 40).argmin()),)
        return [Seat(node, devices, milli, cpu, memory)]

    def _free_devices(self, node: int, count: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self.device[node] == WHOLE)[:count].tolist())

    def _gang(self, right: NDArray[np.bool_] | None, gpus: int, cpu: int, memory: int) -> list[Seat]:
        """Places for more devices than a node has: the emptiest nodes, with processors and memory in proportion."""
        free = self.whole if right is None else np.where(right, self.whole, 0)
        if int(free.sum()) < gpus:
            return []
        seats, left = [], gpus
        for node in np.argsort(-free, kind="stable").tolist():
            take = min(int(free[node]), left)
            part = cpu * take // gpus, memory * take // gpus
            if take and self.cpu[node] >= part[0] and self.memory[node] >= part[1]:
                seats.append(Seat(node, self._free_devices(node, take), WHOLE, *part))
                left -= take
            if not left:
                return seats
        return []

    def take(self, seats: list[Seat], sign: int = 1) -> None:
        """Takes places, or with -1 gives them back."""
        for seat in seats:
            self.cpu[seat.node] -= sign * seat.cpu
            self.memory[seat.node] -= sign * seat.memory
            if seat.devices:
                row = self.device[seat.node]
                row[list(seat.devices)] -= sign * seat.milli
                self.sum[seat.node] = row.sum()
                self.whole[seat.node] = (row == WHOLE).sum()

    def leave(self, node: int) -> None:
        """Marks a node as gone; no job is on it."""
        self.device[node], self.sum[node], self.whole[node], self.cpu[node] = 0, 0, 0, -1

    def come(self, node: int) -> None:
        self.device[node] = np.where(np.arange(self.device.shape[1]) < self.cluster.gpus[node], WHOLE, 0)
        self.sum[node], self.whole[node] = self.device[node].sum(), int(self.cluster.gpus[node])
        self.cpu[node], self.memory[node] = self.cluster.cpu_milli[node], self.cluster.memory_mib[node]

    def give_back(self, seats: list[Seat]) -> None:
        self.take(seats, -1)


def impossible(cluster: Cluster, jobs: Jobs) -> list[int]:
    """Jobs that do not fit the empty cluster. One of each class is tried."""
    known: dict[tuple[object, ...], bool] = {}
    free, found = Free(cluster), []
    for job in range(len(jobs)):
        sort = sort_of(jobs, job)
        if sort not in known:
            known[sort] = bool(free.seats(jobs, job))
        if not known[sort]:
            found.append(job)
    return found


def sort_of(jobs: Jobs, job: int) -> tuple[object, ...]:
    """Class of a job: jobs of one class fit the same places."""
    return (int(jobs.gpus[job]), int(jobs.gpu_milli[job]), int(jobs.cpu_milli[job]), int(jobs.memory_mib[job]),
            jobs.kind[job])  # fmt: skip
