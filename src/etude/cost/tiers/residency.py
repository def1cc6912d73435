"""Which items stay in a room that does not hold all: misses, loads and stores of a policy.

    reside(accesses, room=64, policy="lru").misses
    held(accesses, sizes, room_bytes, policy="belady").missed

An access to an absent item loads it, and evicts others if the room is full; evicting a written item is a store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.base.units import format_bytes
from etude.kernels.arrays import I64, Bool
from etude.kernels.compile import kernel

POLICIES: Final = ("lru", "lfu", "pinned", "belady", "min_pending")
LRU, LFU, PINNED, BELADY, MIN_PENDING = range(5)
NEVER: Final = 1 << 62


class AccessOutcome(NamedTuple):
    """The outcome of each access."""

    missed: Bool
    """The item was not there."""
    gone_at: I64
    """For the last access to an item before its eviction: the access that evicts it (itself, if it only passes through
    a full room); -1: the item stays."""
    is_dirty: Bool
    """It was written since it was loaded, and is evicted: a store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    accesses: int
    misses: int
    stores: int
    """Written items that were evicted."""

    def stored_bytes(self, item_bytes: int) -> int:
        return self.stores * item_bytes


def reside(accesses: I64, room: int, policy: str = "lru", writes: Bool | None = None) -> Residency:
    """Items of one size, `room` of them at a time. `lru` drops the least recently used, `lfu` the least frequently
    used, `belady` the one used latest from now on, `min_pending` the one with the fewest uses left; `pinned` keeps the
    items that came first and lets the others through."""
    if room < 1:
        raise UsageError(f"room for {room} items", hint="at least one")
    found = held(accesses, np.ones(len(accesses), np.int64), room, policy, writes)
    return Residency(accesses=len(accesses), misses=int(found.missed.sum()), stores=int(found.is_dirty.sum()))


def held(accesses: I64, sizes: I64, room: int, policy: str = "lru", writes: Bool | None = None) -> AccessOutcome:
    """Items of any sizes, which may change from one access to the next, in `room` bytes. Refuses an item that does not
    fit alone, except with `pinned`, which lets it through."""
    if policy not in POLICIES:
        raise UsageError(f"unknown policy `{policy}`", hint=f"known: {', '.join(POLICIES)}")
    items, of = np.asarray(accesses, np.int64), np.asarray(sizes, np.int64)
    if len(items) and items.min() < 0:
        raise UsageError("an item has a negative number")
    written = np.zeros(len(items), bool) if writes is None else np.asarray(writes, bool)
    if len(written) != len(items) or len(of) != len(items):
        raise UsageError(f"{len(items)} accesses, {len(of)} sizes and {len(written)} write flags")
    if policy != "pinned" and len(of) and of.max() > room:
        raise UsageError(
            f"an item of {format_bytes(int(of.max()))} does not fit a room of {format_bytes(room)}", hint="more room"
        )
    return _held(items, of, _next_use(items), written, room, POLICIES.index(policy))


@kernel
def _next_use(items: I64) -> I64:
    """The next access to the item of each access; NEVER: none."""
    found = np.full(len(items), NEVER, np.int64)
    if len(items) == 0:
        return found
    last = np.full(items.max() + 1, NEVER, np.int64)
    for i in range(len(items) - 1, -1, -1):
        found[i] = last[items[i]]
        last[items[i]] = i
    return found


class _Queue(NamedTuple):
    """A heap of eviction candidates: the lowest rank first, ties to the least recently used. Stale entries stay until
    they come up."""

    rank: I64
    used_at: I64
    item: I64
    length: I64


@kernel(allocates=False)
def _is_less(queue: _Queue, a: int, b: int) -> bool:
    return queue.rank[a] < queue.rank[b] or (queue.rank[a] == queue.rank[b] and queue.used_at[a] < queue.used_at[b])


@kernel(allocates=False)
def _swap(queue: _Queue, a: int, b: int) -> None:
    queue.rank[a], queue.rank[b] = queue.rank[b], queue.rank[a]
    queue.used_at[a], queue.used_at[b] = queue.used_at[b], queue.used_at[a]
    queue.item[a], queue.item[b] = queue.item[b], queue.item[a]


@kernel(allocates=False)
def _push(queue: _Queue, rank: int, used_at: int, item: int) -> None:
    at = queue.length[0]
    queue.rank[at], queue.used_at[at], queue.item[at] = rank, used_at, item
    queue.length[0] += 1
    while at and _is_less(queue, at, (at - 1) // 2):
        _swap(queue, at, (at - 1) // 2)
        at = (at - 1) // 2


@kernel(allocates=False)
def _drop(queue: _Queue) -> None:
    queue.length[0] -= 1
    last, at = queue.length[0], 0
    _swap(queue, 0, last)
    while 2 * at + 1 < last:
        least = 2 * at + 1
        if least + 1 < last and _is_less(queue, least + 1, least):
            least += 1
        if not _is_less(queue, least, at):
            break
        _swap(queue, least, at)
        at = least


@kernel
def _held(items: I64, sizes: I64, next_use: I64, written: Bool, room: int, policy: int) -> AccessOutcome:
    n = len(items)
    missed, is_dirty = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    gone_at = np.full(n, -1, np.int64)
    count = items.max() + 1 if n else 0
    uses, pending, size_of = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    last = np.full(count, -1, np.int64)
    is_there, was_written = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    queue = _Queue(np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(1, np.int64))
    used = 0
    for i in range(n):
        pending[items[i]] += 1
    for i in range(n):
        item = items[i]
        uses[item] += 1
        pending[item] -= 1
        if policy == BELADY:
            rank = -next_use[i]
        elif policy == LFU:
            rank = uses[item]
        elif policy == MIN_PENDING:
            rank = pending[item]
        else:
            rank = i
        missed[i] = not is_there[item]
        more = sizes[i] if missed[i] else sizes[i] - size_of[item]
        if missed[i] and policy == PINNED and used + more > room:
            gone_at[i], is_dirty[i] = i, written[i]
            continue
        last[item] = i  # entries of its own are out of date
        while used + more > room and queue.length[0]:  # none is left: a pinned item that has grown beyond the room
            gone, at = queue.item[0], queue.used_at[0]
            _drop(queue)
            if not is_there[gone] or last[gone] != at:
                continue
            gone_at[at], is_dirty[at] = i, was_written[gone]
            was_written[gone] = False
            used -= size_of[gone]
            is_there[gone] = False
        is_there[item] = True
        used += more
        size_of[item] = sizes[i]
        was_written[item] |= written[i]
        _push(queue, rank, i, item)
    return AccessOutcome(missed, gone_at, is_dirty)
