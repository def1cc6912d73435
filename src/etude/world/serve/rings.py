"""Cached pieces in order of use, and which is evicted first: kernels of every cache of serving.

A ring runs through the unused pieces that a place holds, from the least recently used to the newest; its two ends meet
in an extra entry after the last piece. Within one prompt the last piece is the oldest.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, I64
from etude.kernels.compile import kernel

ABSENT: Final = -1
LRU, TTL, BELADY, PINNED, EXPECTED = 0, 1, 2, 3, 4
"""Eviction policies: least recently used; the same, with expiry after a time; the latest next use (Belady); least
recently used, with pieces at the front of prompts only when nothing else is left; the latest expected use."""
NOT_AGAIN: Final = 1 << 62


class Ring(NamedTuple):
    newer: I32
    """(replica, piece, and the ends of its rings)."""
    older: I32
    used_at: I64
    """When a piece was used last: (replica, piece), ns."""
    soon: I64
    """Next request that asks for a piece: (piece)."""
    pinned: NDArray[np.uint8]
    due: I64
    """When a piece is expected again: (replica, piece), ns; only for EXPECTED."""
    user: I32
    """Session that used it last: (replica, piece)."""
    policy: int
    ttl_ns: int


def ring_of(replicas: int, pieces: int, ends: int, pinned: NDArray[np.uint8], policy: int, ttl_ns: int) -> Ring:
    """Empty rings: each end is its own neighbour."""
    newer = np.tile(np.arange(pieces + ends, dtype=np.int32), (replicas, 1))
    used_at = np.zeros((replicas, pieces), np.int64)
    watched = (replicas, pieces) if policy == EXPECTED else (1, 1)
    return Ring(
        newer, newer.copy(), used_at, np.full(pieces, NOT_AGAIN, np.int64), pinned, np.zeros(watched, np.int64),
        np.full(watched, ABSENT, np.int32), policy, ttl_ns,
    )  # fmt: skip


def no_ring() -> Ring:
    none, small, table = np.zeros(1, np.int64), np.zeros((1, 1), np.int32), np.zeros((1, 1), np.int64)
    return Ring(small, small, table, none, np.zeros(1, np.uint8), table, small, 0, 0)


def empty_ring(ring: Ring, i: int, end: int) -> None:
    """Nothing is left in one of the rings of a place, and who used its pieces is forgotten."""
    ring.newer[i, end] = ring.older[i, end] = end
    if ring.policy == EXPECTED:
        ring.user[i] = ABSENT


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
def expect(ring, i, one, session, now, again_ns):
    """A session used a piece, and is expected to use it again after a time. If another session used it before, it is
    expected after the interval between the two, if that is sooner."""
    due = now + again_ns
    if ring.user[i, one] != ABSENT and ring.user[i, one] != session:
        due = min(due, 2 * now - ring.used_at[i, one])
    ring.due[i, one] = due
    ring.user[i, one] = session


@kernel(allocates=False)
def goes_first(ring, i, end, now):
    """The piece of a ring that is evicted next; `end` if it is empty."""
    oldest = ring.newer[i, end]
    if ring.policy == EXPECTED:
        best, latest = oldest, np.int64(-1)
        one = oldest
        while one != end:
            # An overdue piece is expected after the time by which it is overdue.
            away = abs(ring.due[i, one] - now)
            if away > latest:
                best, latest = one, away
            one = ring.newer[i, one]
        return best
    if ring.policy == BELADY:
        best, latest = oldest, np.int64(-1)
        one = oldest
        while one != end:
            if ring.soon[one] == NOT_AGAIN:
                return one
            if ring.soon[one] > latest:  # within one request the oldest: the last of its prompt
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
