"""Transfers under construction, for schedules that are read from files."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from etude.base.errors import ClusterError, CycleError
from etude.cost.schedule import Put, Schedule
from etude.kernels.arrays import I32, I64

MOST_BLOCKS: Final = 1 << 22
"""Of the payload of all members: each has a row."""


class TransferPoints:
    """Transfers and joins under construction, by the keys that others wait for."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, Put, int]] = []  # src, dst, first, count, put, delay
        self.waits: list[list[Any]] = []

    def add(self, src: int, dst: int, first: int, count: int, put: Put, waits: list[Any], delay_ns: int = 0) -> int:
        self.rows.append((src, dst, first, count, put, delay_ns))
        self.waits.append(waits)
        return len(self.rows) - 1

    def schedule(self, number: dict[Any, int], where: str, **more: Any) -> Schedule:
        """`number` maps keys that others wait for to transfers."""
        if not 1 <= more["blocks"] <= MOST_BLOCKS:
            raise ClusterError(f"{more['blocks']:,} chunks: 1 to {MOST_BLOCKS:,} are read", where=where)
        largest = max((row[3] for row in self.rows), default=0)
        if largest > more["blocks"]:
            raise ClusterError(f"a transfer of {largest:,} chunks, of {more['blocks']:,} that there are", where=where)
        deps = [sorted({number[w] for w in waits} - {i}) for i, waits in enumerate(self.waits)]
        columns = np.array([(*row[:4], int(row[4]), row[5]) for row in self.rows], np.int64).reshape(-1, 6).T
        start = np.cumsum([0, *map(len, deps)]).astype(np.int64)
        dep = np.array([d for ds in deps for d in ds], np.int32)
        _refuse_cycles(start, dep, where)
        size = len(self.rows)
        return Schedule(
            src=columns[0].astype(np.int32), dst=columns[1].astype(np.int32), first=columns[2].copy(),
            count=columns[3].copy(), stride=np.ones(size, np.int64), put=columns[4].astype(np.uint8),
            delay_ns=columns[5].copy(), chunk=np.zeros(size, np.int32), dep_start=start, dep=dep,
            block_owner=np.full(more["blocks"], -1, np.int32), **more,
        )  # fmt: skip


def _refuse_cycles(start: I64, dep: I32, where: str) -> None:
    left = np.diff(start).tolist()
    after: list[list[int]] = [[] for _ in left]
    for i in range(len(left)):
        for d in dep[start[i] : start[i + 1]]:
            after[d].append(i)
    ready = [i for i, n in enumerate(left) if n == 0]
    done = 0
    while ready:
        done += 1
        for other in after[ready.pop()]:
            left[other] -= 1
            if left[other] == 0:
                ready.append(other)
    if done < len(left):
        raise CycleError(f"{len(left) - done} transfers wait for one another in a cycle", where=where)
