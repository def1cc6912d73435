"""PyTorch's caching allocator of device memory: what it reserves for a sequence of allocations and frees.

    events = AllocatorEvents.of(action=[ALLOC, ALLOC, FREE], block=[0, 1, 0], size_bytes=[3 << 20, 100, 0])
    simulate_allocator(events).peak_reserved_bytes     # 23068672: segments of 20 MiB and 2 MiB

The native allocator with its default settings, or with those of `AllocatorSettings`, rule by rule: sizes rounded up to
512 bytes; small blocks (up to 1 MiB) in segments of 2 MiB and large ones in segments of 20 MiB, from 10 MiB on in one
of their own; the smallest free block of the stream that fits, split where enough is left; free neighbours are one
block; when the device is full, free segments are returned and it is tried again. Not modelled: private pools of
CUDA graphs, garbage collection, sizes rounded to parts of powers of two. Of free blocks of one size the one at the
lowest address is taken; addresses of segments are the driver's, of which `addresses.py` is an approximation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError, UsageError
from etude.cost.allocator import blocks as inner
from etude.cost.allocator import kernels as loop
from etude.kernels.arrays import I64, U8, as_read


class AllocatorAction(IntEnum):
    """What happens to a block of memory."""

    NONE = 0
    ALLOC = inner.ALLOC
    FREE = inner.FREED
    """Its owner frees it, and it can be used again."""
    FREE_REQUESTED = inner.REQUESTED
    """Its owner frees it, but another stream may still use it (`record_stream`)."""
    FREE_COMPLETED = inner.COMPLETED
    """No stream uses it any more."""
    EMPTY_CACHE = inner.EMPTY_CACHE
    """`torch.cuda.empty_cache()`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """As in `PYTORCH_ALLOC_CONF`."""

    capacity_bytes: int | None = None
    """Bytes of the device that the allocator may reserve; None: no limit."""
    max_split_bytes: int | None = None
    """Blocks of this size and more are not split; None: all may be."""
    expandable_segments: bool = False

    def __post_init__(self) -> None:
        if self.capacity_bytes is not None and self.capacity_bytes < 0:
            raise UsageError(f"a capacity of {self.capacity_bytes} bytes")
        if self.max_split_bytes is not None and self.max_split_bytes <= inner.LARGE_SEGMENT:
            raise UsageError(f"blocks are split up to {self.max_split_bytes} bytes", hint="more than 20 MiB")

    @classmethod
    def parse(cls, text: str, capacity_bytes: int | None = None) -> Self:
        """`expandable_segments:True,max_split_size_mb:128`, the value of the environment variable."""
        max_split, expandable = None, False
        for part in filter(None, text.replace(" ", "").split(",")):
            name, _, value = part.partition(":")
            if name == "expandable_segments" and value in ("True", "False"):
                expandable = value == "True"
            elif name == "max_split_size_mb" and value.isdigit():
                max_split = int(value) * inner.MIB
            elif part != "backend:native":
                problem = f"`{part}` of the allocator's settings is not modelled"
                hint = "modelled: expandable_segments:True, max_split_size_mb:N"
                raise UsageError(problem, where="PYTORCH_ALLOC_CONF", hint=hint)
        return cls(capacity_bytes=capacity_bytes, max_split_bytes=max_split, expandable_segments=expandable)


DEFAULT_SETTINGS: Final = AllocatorSettings()


@dataclass(frozen=True, slots=True, eq=False)
class AllocatorEvents:
    """What an allocator is asked for, in order. A number stands for one block at a time. Sizes and classes are read of
    allocations alone, streams too: a block is freed on the stream that it was allocated on."""

    action: U8
    block: I64
    size_bytes: I64
    stream: I64
    class_id: I64
    """What the block is for, as the caller numbers it."""

    def __post_init__(self) -> None:
        for name in ("block", "size_bytes", "stream", "class_id"):
            column = getattr(self, name)
            if len(column) != len(self.action):
                raise UsageError(f"{len(column)} rows of `{name}`, {len(self.action)} of `action`")
        for name in ("size_bytes", "class_id"):
            if getattr(self, name).min(initial=0) < 0:
                raise UsageError(f"`{name}` is negative in row {int(getattr(self, name).argmin())}")
        known = np.isin(self.action, [a for a in AllocatorAction if a])
        if not known.all():
            row = int(known.argmin())
            raise UsageError(f"unknown action {int(self.action[row])} in row {row}")

    @classmethod
    def of(
        cls,
        action: Sequence[int] | NDArray[np.integer],
        block: Sequence[int] | NDArray[np.integer],
        size_bytes: Sequence[int] | NDArray[np.integer],
        stream: Sequence[int] | NDArray[np.integer] | None = None,
        class_id: Sequence[int] | NDArray[np.integer] | None = None,
    ) -> Self:
        """From columns of any type of whole numbers; without streams and classes all are 0."""
        nothing = np.zeros(len(action), np.int64)
        rest = (block, size_bytes, nothing if stream is None else stream, nothing if class_id is None else class_id)
        return cls(np.asarray(action, np.uint8), *(np.asarray(column).astype(np.int64) for column in rest))

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True, eq=False)
class AllocatorTimeline:
    """Bytes after each event; up to the allocation that found no memory, if there was one."""

    allocated_bytes: I64
    """Of blocks that have an owner, as `torch.cuda.memory_allocated` counts them: rounded up."""
    reserved_bytes: I64
    """Of segments, as `torch.cuda.memory_reserved` counts them."""
    requested_bytes: I64
    """As they were asked for, until their streams are done with them."""
    taken_bytes: I64
    """The block that an allocation got; 0 for other events."""
    address: I64
    """Where that block is."""
    class_bytes: I64
    """Allocated bytes of each class when most was allocated."""
    retries: int
    """Times that cached segments were returned to make room."""
    failed_event: int | None
    """The allocation that found no memory; None: there is none."""

    @property
    def peak_allocated_bytes(self) -> int:
        return int(self.allocated_bytes.max(initial=0))

    @property
    def peak_reserved_bytes(self) -> int:
        return int(self.reserved_bytes.max(initial=0))


def simulate_allocator(
    events: AllocatorEvents,
    settings: AllocatorSettings = DEFAULT_SETTINGS,
    *,
    segment_addresses: Sequence[int] | NDArray[np.integer] = (),
) -> AllocatorTimeline:
    """What PyTorch's caching allocator holds over a sequence of events. `segment_addresses`: where the driver put the
    first segments, in their order, if it is known."""
    block, stream = (np.unique(column, return_inverse=True)[1] for column in (events.block, events.stream))
    columns = as_read(events.action), *map(as_read, (block, events.size_bytes, stream, events.class_id))
    placed = np.asarray(segment_addresses).astype(np.int64)
    arena = _empty_arena(events, settings, int(stream.max(initial=0)) + 1, placed)
    blocks, classes = int(block.max(initial=0)) + 1, int(events.class_id.max(initial=0)) + 1
    nothing = np.full(blocks, inner.NOTHING, np.int64)
    owners = loop.Owners(nothing, *(np.zeros(count, np.int64) for count in (blocks, classes, classes)))
    series = loop.Series(*(np.zeros(len(events), np.int64) for _ in range(5)))
    ended, count = loop.run(loop.AllocatorColumns(*columns), arena, owners, series)
    if ended in (inner.DOUBLE, inner.UNKNOWN):
        verb = "is allocated twice" if ended == inner.DOUBLE else "is freed and was not allocated"
        raise TraceError(f"block {events.block[count]} {verb}", where=f"event {count}")
    return AllocatorTimeline(
        allocated_bytes=series.allocated[:count],
        reserved_bytes=series.reserved[:count],
        requested_bytes=series.requested[:count],
        taken_bytes=series.taken[:count],
        address=series.address[:count],
        class_bytes=owners.at_peak,
        retries=int(arena.number[inner.RETRIES]),
        failed_event=count if ended == inner.FULL else None,
    )


def _empty_arena(events: AllocatorEvents, settings: AllocatorSettings, streams: int, placed: I64) -> inner.Arena:
    """Between two blocks in use there are at most three others: free, unmapped, free."""
    rows = 4 * (int((events.action == AllocatorAction.ALLOC).sum()) + 2 * streams)
    number = np.zeros(inner.NUMBERS, np.int64)
    number[inner.CAPACITY] = inner.UNLIMITED if settings.capacity_bytes is None else settings.capacity_bytes
    number[inner.MAX_SPLIT] = inner.UNLIMITED if settings.max_split_bytes is None else settings.max_split_bytes
    number[inner.EXPANDABLE] = settings.expandable_segments
    number[inner.LOWEST] = inner.TOP
    size, address, before, after, pool, owner, asked, free, holes, spare = (np.empty(rows, np.int64) for _ in range(10))
    gaps = np.empty(rows, np.int64), np.empty(rows, np.int64)
    state = np.empty(rows, np.uint8)
    return inner.Arena(
        size, address, before, after, pool, state, owner, asked, free, holes, spare, *gaps, placed, number
    )
