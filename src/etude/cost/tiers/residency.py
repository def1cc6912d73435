"""Which items stay in a room that does not hold all: misses, loads and stores of a policy.

    reside(accesses, room=64, policy="lru").misses

Items are numbers and of one size. An access to an item that is not there loads it, and another goes if the room is
full; one that was written goes with a store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.errors import UsageError
from etude.kernels.compile import kernel

I64 = NDArray[np.int64]

POLICIES: Final = ("lru", "lfu", "pinned", "belady", "min_pending")
LRU, LFU, PINNED, BELADY, MIN_PENDING = range(5)
NEVER: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    accesses: int
    misses: int
    stores: int
    """Items that were written and went."""

    def loaded_bytes(self, item_bytes: int) -> int:
        return self.misses * item_bytes

    def stored_bytes(self, item_bytes: int) -> int:
        return self.stores * item_bytes


def reside(accesses: I64, room: int, policy: str = "lru", writes: NDArray[np.bool_] | None = None) -> Residency:
    """`lru` drops what was used longest ago, `lfu` what was used least, `belady` what is used latest from now on,
    `min_pending` what has the fewest uses left; `pinned` keeps the items that came first and lets the others through.
    """
    if policy not in POLICIES:
        raise UsageError(f"unknown policy `{policy}`", hint=f"known: {', '.join(POLICIES)}")
    if room < 1:
        raise UsageError(f"room for {room} items", hint="at least one")
    items = np.asarray(accesses, np.int64)
    if len(items) and items.min() < 0:
        raise UsageError("an item has a negative number")
    written = np.zeros(len(items), bool) if writes is None else np.asarray(writes, bool)
    if len(written) != len(items):
        raise UsageError(f"{len(items)} accesses and {len(written)} marks of writing")
    misses, stores = _reside(items, _next_use(items), written, room, POLICIES.index(policy))
    return Residency(accesses=len(items), misses=int(misses), stores=int(stores))


@kernel
def _next_use(items: I64) -> I64:
    """When the item of each access comes again; NEVER where it does not."""
    found = np.full(len(items), NEVER, np.int64)
    if len(items) == 0:
        return found
    last = np.full(items.max() + 1, NEVER, np.int64)
    for i in range(len(items) - 1, -1, -1):
        found[i] = last[items[i]]
        last[items[i]] = i
    return found


@kernel
def _reside(items: I64, next_use: I64, written: NDArray[np.bool_], room: int, policy: int) -> tuple[int, int]:
    if len(items) == 0:
        return 0, 0
    count = items.max() + 1
    rank = np.zeros(count, np.int64)  # the least goes first
    uses, pending = np.zeros(count, np.int64), np.zeros(count, np.int64)
    is_dirty = np.zeros(count, np.bool_)
    place = np.full(count, -1, np.int64)
    held = np.zeros(min(room, count), np.int64)
    size, misses, stores = 0, 0, 0
    for i in range(len(items)):
        pending[items[i]] += 1
    for i in range(len(items)):
        item = items[i]
        uses[item] += 1
        pending[item] -= 1
        if policy == BELADY:
            rank[item] = -next_use[i]
        elif policy == LFU:
            rank[item] = uses[item]
        elif policy == MIN_PENDING:
            rank[item] = pending[item]
        else:
            rank[item] = i
        if place[item] < 0:
            misses += 1
            if size == room and policy == PINNED:
                stores += written[i]
                continue
            at = size
            if size < room:
                size += 1
            else:
                at = 0
                for k in range(1, size):
                    if rank[held[k]] < rank[held[at]]:
                        at = k
                gone = held[at]
                place[gone] = -1
                stores += is_dirty[gone]
                is_dirty[gone] = False
            held[at] = item
            place[item] = at
        if written[i]:
            is_dirty[item] = True
    return misses, stores
