"""What a place keeps, in order of use, and what goes first when room is needed: kernels of every cache of serving.

A ring runs through the pieces that a place holds and that nobody uses, from the one that was used longest ago to the
newest; its two ends meet in a place of its own behind the last piece. Of one prompt the last piece is the oldest.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.compile import kernel

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
ABSENT: Final = -1
LRU, TTL, BELADY, PINNED = 0, 1, 2, 3
"""What goes first: what was used longest ago; the same, and nothing is found after a time; what is asked for latest
from now on; what was used longest ago, and pieces at the front of prompts only when nothing else is left."""
NOT_AGAIN: Final = 1 << 62


class Ring(NamedTuple):
    newer: I32
    """(replica, piece, and the ends of its rings)."""
    older: I32
    used_at: I64
    """When a piece was used last: (replica, piece), ns."""
    soon: I64
    """Request that asks for a piece next, of those after the last that did: (piece)."""
    pinned: NDArray[np.uint8]
    policy: int
    ttl_ns: int


def ring_of(replicas: int, pieces: int, ends: int, pinned: NDArray[np.uint8], policy: int, ttl_ns: int) -> Ring:
    """Empty ones: each end is its own neighbour."""
    newer = np.tile(np.arange(pieces + ends, dtype=np.int32), (replicas, 1))
    used_at = np.zeros((replicas, pieces), np.int64)
    return Ring(newer, newer.copy(), used_at, np.full(pieces, NOT_AGAIN, np.int64), pinned, policy, ttl_ns)


@kernel(allocates=False)
def unlink(ring, i, one):
    ring.newer[i, ring.older[i, one]] = ring.newer[i, one]
    ring.older[i, ring.newer[i, one]] = ring.older[i, one]


@kernel(allocates=False)
def put_newest(ring, i, one, end):
    before = ring.older[i, end]
    ring.older[i, one], ring.newer[i, one] = before, end
    ring.newer[i, before] = one
    ring.older[i, end] = one


@kernel(allocates=False)
def expired(ring, i, one, now):
    return ring.policy == TTL and now - ring.used_at[i, one] > ring.ttl_ns


@kernel(allocates=False)
def goes_first(ring, i, end):
    """The piece of a ring that is given up; `end` if it is empty."""
    oldest = ring.newer[i, end]
    if ring.policy == BELADY:
        best, latest = oldest, np.int64(-1)
        one = oldest
        while one != end:
            if ring.soon[one] == NOT_AGAIN:
                return one
            if ring.soon[one] > latest:  # of those asked for by one request the oldest: the last of its prompt
                best, latest = one, ring.soon[one]
            one = ring.newer[i, one]
        return best
    if ring.policy == PINNED:
        one = oldest
        while one != end:
            if not ring.pinned[one]:
                return one
            one = ring.newer[i, one]
    return oldest
