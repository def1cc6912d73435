"""Schedule: a collective algorithm as arrays. Transfers between members, what each carries and what it waits for.

The data is cut into `blocks`; a transfer carries the blocks first, first + stride, ... (`count` of them). A transfer
from a member to itself moves nothing: it joins what it waits for, and takes `delay_ns`. Members from `members` on are
helpers: switches that reduce or copy, and are always ready.

A schedule has no size. `transfer_bytes(size)` cuts the size exactly: remainders go to the first blocks, so that no byte
is lost or made up. `size` is what Etude calls `in_bytes`: the whole vector of an all-reduce, reduce-scatter,
all-to-all, broadcast or reduce, the contribution of one member to an all-gather or gather, all parts of a scatter.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import ClusterError
from etude.kernels.arrays import I32, I64
from etude.model.schema import Collective

IN_FLIGHT: Final = 4
"""Most blocks or chunks in progress on one connection: what queues before a slow link must not share it."""


class Put(IntEnum):
    """What a transfer does with the data at the receiver."""

    COPY = 0
    REDUCE = 1
    """Added to what the receiver has."""
    REDUCE_INPUT = 2
    """The sender's own input, not its partial sum; added."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Schedule:
    """Transfer i goes from member src[i] to dst[i] after transfers dep[dep_start[i]:dep_start[i + 1]] have arrived."""

    collective: Collective
    algorithm: str
    members: int
    helpers: int = 0
    src: I32
    dst: I32
    first: I64
    count: I64
    stride: I64
    put: NDArray[np.uint8]
    chunk: I32
    delay_ns: I64
    dep_start: I64
    dep: I32
    owners: int
    """The blocks of a chunk form this many equal runs, each of which holds `size` bytes."""
    blocks: int
    """Blocks of one chunk; those of chunk c are numbered from c * blocks on."""
    chunks: int = 1
    block_owner: I32
    """For one chunk: the owner of each block (-1: none)."""
    root: int = 0
    protocol: str = ""
    """The protocol that it was written for, if given: `ll`, `ll128`, `simple`."""
    control_bytes: I64 | None = None
    """For a schedule with control messages: bytes of each transfer in addition to its blocks."""
    fixed_bytes: I64 | None = None
    """For a schedule with fixed sizes (a trace): bytes of each transfer, whatever the size."""

    def __post_init__(self) -> None:
        if len(self.src) and not min(self.src.min(), self.dst.min()) >= 0:
            raise ClusterError(f"{self.algorithm}: a transfer has a negative member")
        if len(self.src) and max(self.src.max(), self.dst.max()) >= self.members + self.helpers:
            raise ClusterError(f"{self.algorithm}: a transfer's member is outside its {self.members}")
        if len(self.dep) and not 0 <= self.dep.min() <= self.dep.max() < len(self.src):
            raise ClusterError(f"{self.algorithm}: a transfer waits for one that does not exist")
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __len__(self) -> int:
        """Number of transfers, joins included."""
        return len(self.src)

    def renumbered(self, order: I64) -> Schedule:
        """The same with member order[i] instead of member i; helpers stay. Not for one with a root."""
        to = np.concatenate([order, np.arange(self.members, self.members + self.helpers)])
        owner = np.where(self.block_owner >= 0, to[np.maximum(self.block_owner, 0)], -1)
        return replace(
            self,
            src=to[self.src].astype(np.int32),
            dst=to[self.dst].astype(np.int32),
            block_owner=owner.astype(np.int32),
        )

    def transfer_bytes(self, size_bytes: int) -> I64:
        if size_bytes < 0:
            raise ClusterError(f"{self.algorithm}: {size_bytes} bytes")
        if self.fixed_bytes is not None:
            return self.fixed_bytes
        per = max(self.blocks // self.owners, 1)
        size = np.array([size_bytes // self.chunks + (c < size_bytes % self.chunks) for c in range(self.chunks)])
        whole, rest = np.divmod(size, per)
        at = self.first - self.chunk.astype(np.int64) * self.blocks
        left = rest[self.chunk]

        def before(block: I64) -> I64:
            return block // per * left + np.minimum(block % per, left)

        more = before(at + self.count) - before(at)
        strided = np.flatnonzero((self.stride != 1) & (self.count > 0))
        if len(strided):
            count = self.count[strided]
            begin = np.cumsum(count) - count
            step = np.arange(count.sum()) - np.repeat(begin, count)
            block = np.repeat(at[strided], count) + step * np.repeat(self.stride[strided], count)
            more[strided] = np.add.reduceat((block % per < np.repeat(left[strided], count)).astype(np.int64), begin)
        moved: I64 = np.where(self.src == self.dst, 0, self.count * whole[self.chunk] + more)
        return moved if self.control_bytes is None else moved + self.control_bytes


class ScheduleBuilder:
    """Collects transfers in rows; ids are their numbers in the one."""

    def __init__(self) -> None:
        self.size = 0
        self.columns: list[tuple[Any, ...]] = []
        self.rows: list[tuple[int, NDArray[Any]]] = []

    def add(
        self, src: Any, dst: Any, first: Any, count: Any, *, after: Any = None, put: Put = Put.COPY, stride: int = 1
    ) -> I64:
        """Transfers of one shape; `after` has one more axis: what each waits for, -1 for nothing. Returns their ids."""
        src = np.asarray(src, np.int64)
        shape = src.shape
        columns = [np.broadcast_to(np.asarray(v, np.int64), shape).ravel() for v in (src, dst, first, count)]
        self.columns.append((*columns, np.full(src.size, put, np.uint8), np.full(src.size, stride, np.int64)))
        if after is not None and src.size:
            wait = np.asarray(after, np.int64)
            self.rows.append((self.size, wait.reshape(src.size, -1)))
        ids = np.arange(self.size, self.size + src.size).reshape(shape)
        self.size += src.size
        return ids

    def join(self, member: Any, after: Any) -> I64:
        """A point that is reached when all of `after` (one more axis) have arrived at the member."""
        return self.add(member, member, 0, 0, after=after)

    def schedule(self, collective: Collective, algorithm: str, members: int, **more: Any) -> Schedule:
        none = np.zeros(0, np.int64)
        parts = [np.concatenate(p) for p in zip(*self.columns, strict=True)] if self.columns else [none] * 6
        src, dst, first, count, put, stride = parts
        who = np.concatenate([np.repeat(at + np.arange(len(w)), w.shape[1]) for at, w in self.rows] or [none])
        what = np.concatenate([w.ravel() for _, w in self.rows] or [none])
        who, what = who[what >= 0], what[what >= 0]
        start = np.zeros(self.size + 1, np.int64)
        np.cumsum(np.bincount(who, minlength=self.size), out=start[1:])
        more.setdefault("block_owner", np.full(more["blocks"], -1, np.int32))
        return Schedule(
            collective=collective, algorithm=algorithm, members=members,
            src=src.astype(np.int32), dst=dst.astype(np.int32), first=first, count=count, stride=stride,
            put=put.astype(np.uint8), chunk=np.zeros(self.size, np.int32), delay_ns=np.zeros(self.size, np.int64),
            dep_start=start, dep=what[np.argsort(who, kind="stable")].astype(np.int32), **more,
        )  # fmt: skip


def message() -> Schedule:
    """One message from member 0 to member 1."""
    build = ScheduleBuilder()
    build.add(0, 1, 0, 1)
    return build.schedule(Collective.NONE, "message", 2, owners=1, blocks=1)


def chunked(one: Schedule, chunks: int, window: int = 2) -> Schedule:
    """The schedule once for each of `chunks` equal parts of the data.

    Transfer i of chunk c waits for transfer i of chunk c - window: so chunks follow one another through the steps
    instead of sharing every link at once.
    """
    if chunks < 1 or window < 1:
        raise ClusterError(f"{one.algorithm}: {chunks} chunks, window {window}", hint="both must be at least 1")
    if chunks == 1 or one.fixed_bytes is not None:
        return one
    size = len(one)
    at = np.repeat(np.arange(chunks), size)
    deps = np.diff(one.dep_start)
    late = at >= window
    own = np.tile(deps, chunks)
    start = np.zeros(size * chunks + 1, np.int64)
    np.cumsum(own + late, out=start[1:])
    dep = np.empty(start[-1], np.int32)
    last = start[1:][late] - 1
    dep[last] = (np.arange(size * chunks) - window * size)[late]
    keep = np.ones(len(dep), np.bool_)
    keep[last] = False
    dep[keep] = (one.dep[None, :] + np.arange(chunks)[:, None] * size).ravel()

    def tiled(column: NDArray[Any]) -> NDArray[Any]:
        return np.tile(column, chunks)

    return replace(
        one,
        src=tiled(one.src), dst=tiled(one.dst), first=tiled(one.first) + at * one.blocks, count=tiled(one.count),
        stride=tiled(one.stride), put=tiled(one.put), chunk=at.astype(np.int32), delay_ns=tiled(one.delay_ns),
        dep_start=start, dep=dep, chunks=chunks,
        control_bytes=None if one.control_bytes is None else tiled(one.control_bytes) * (at == 0),
    )  # fmt: skip
