"""Requests of a recommender on replicas whose memory is shared by embeddings and keys and values, in compiled code.

A replica answers one request at a time, first come first served. What a request lacks is loaded from the host before it
is computed, so that later ones wait as well. Both kinds are evicted least recently used first, each from its own part.
In addition, lists of what the same requests would find with each ratio give the hit curves for a controller: after each
window, it chooses the ratio that would have loaded the fewest bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel
from etude.world.serve.rings import Ring, put_newest, unlink

TURN, LEAST, SESSION, RESIDENCY = 0, 1, 2, 3
EMBEDDINGS, KEYS = 0, 1
LOADED = 0
HITS, MISSES, ANSWERED, DECIDED = 1, 3, 5, 6
"""Columns of `counts`: bytes from the host; embeddings and keys and values found; the same not found; requests;
decisions."""


class SplitStream(NamedTuple):
    arrival: I64
    session: I64
    start: I64
    """Start of the ids of a request in `ids`."""
    ids: I64
    kind: I64
    """Kind of each id: EMBEDDINGS or KEYS."""
    size: I64
    """Bytes of each id."""
    first_ns: I64
    """Time until the first token, if the user's keys and values are held; (request, 2): or must be computed."""
    rest_ns: I64
    """Further tokens."""


class CacheLists(NamedTuple):
    """What is there, in order of use: a row for each list, a ring for each kind."""

    ring: Ring
    there: NDArray[np.uint8]
    used: I64
    """Bytes: (list, kind)."""


class SplitState(NamedTuple):
    """What is held, and what came of it, by replica or request."""

    lists: CacheLists
    ghosts: CacheLists
    """What each ratio would hold: a row for each replica and ratio."""
    curve: F64
    """Bytes that each ratio would have loaded in this window: (replica, ratio)."""
    known: NDArray[np.uint8]
    """Users whose keys and values the host has."""
    counts: I64
    free: I64
    """When each replica is free."""
    first: I64
    """Time of the first token of each request."""
    finish: I64
    chosen: I64
    """Index of the ratio of each window: (replica, window)."""
    best: I64
    """The one that would have loaded least."""


class CacheSplit(NamedTuple):
    room: int
    ratios: F64
    every: int
    """Requests of a window."""
    decide_ns: int
    ns_per_byte: float
    router: int


@kernel(allocates=False)
def _shrink(lists, stream, i, kind, room):
    """Evicts the least recently used until the rest fits."""
    end = len(stream.size) + kind
    while lists.used[i, kind] > room:
        one = lists.ring.newer[i, end]
        unlink(lists.ring, i, one)
        lists.there[i, one] = 0
        lists.used[i, kind] -= stream.size[one]


@kernel(allocates=False)
def _touch(lists, stream, i, one, room):
    """True if it was held; it becomes the newest. What is larger than the room is not kept."""
    kind = stream.kind[one]
    found = lists.there[i, one] == 1
    if found:
        unlink(lists.ring, i, one)
    elif stream.size[one] > room:
        return False
    else:
        lists.there[i, one] = 1
        lists.used[i, kind] += stream.size[one]
    put_newest(lists.ring, i, one, len(stream.size) + kind)
    _shrink(lists, stream, i, kind, room)
    return found


@kernel(allocates=False)
def _part(split, ratio, kind):
    share = np.int64(split.room * ratio + 0.5)
    return share if kind == EMBEDDINGS else split.room - share


@kernel(allocates=False)
def _missing(lists, stream, i, r):
    """Bytes of a request that a replica lacks."""
    total = np.int64(0)
    for k in range(stream.start[r], stream.start[r + 1]):
        if not lists.there[i, stream.ids[k]]:
            total += stream.size[stream.ids[k]]
    return total


@kernel(allocates=False)
def _route(lists, stream, split, free, r):
    """`residency`: where its first token would come soonest, including loads; ties by number."""
    if split.router == TURN:
        return r % len(free)
    if split.router == SESSION:
        return stream.session[r] % len(free)
    best, soonest = 0, np.inf
    for i in range(len(free)):
        at = float(max(free[i], stream.arrival[r]))
        if split.router == RESIDENCY:
            at += _missing(lists, stream, i, r) * split.ns_per_byte
        if at < soonest:
            best, soonest = i, at
    return best


@kernel(allocates=False)
def _least(curve, best):
    for g in range(len(curve)):
        if curve[g] < curve[best]:
            best = g
    return best


@kernel(allocates=False)
def _choice(split, curve, now):
    """The ratio that would have loaded least; the one in use if none is better by more than a decision costs."""
    best = _least(curve, now)
    saved = (curve[now] - curve[best]) * split.ns_per_byte
    return best if saved > split.decide_ns else now


@kernel(allocates=False)
def answer_in_order(stream, split, plan, state):
    """`plan` is the index of the ratio for each replica and window, of which only the first is read if a controller
    decides."""
    lists, ghosts, curve, known, counts, free, first, finish, chosen, best = state
    grid = len(split.ratios)
    for r in range(len(stream.arrival)):
        i = _route(lists, stream, split, free, r)
        w = counts[i, ANSWERED] // split.every
        if counts[i, ANSWERED] % split.every == 0:
            if w and plan[i, w] < 0:
                free[i] = max(free[i], stream.arrival[r]) + split.decide_ns
                g = _choice(split, curve[i], chosen[i, w - 1])
                counts[i, DECIDED] += 1
            else:
                g = plan[i, w]
            if w:
                best[i, w - 1] = _least(curve[i], chosen[i, w - 1])
            chosen[i, w] = g
            for k in range(grid):
                curve[i, k] = 0.0
            for kind in range(2):
                _shrink(lists, stream, i, kind, _part(split, split.ratios[g], kind))
        ratio = split.ratios[chosen[i, w]]
        computes, load = 0, np.int64(0)
        for k in range(stream.start[r], stream.start[r + 1]):
            one = stream.ids[k]
            kind = stream.kind[one]
            fresh = kind == KEYS and not known[one]
            if _touch(lists, stream, i, one, _part(split, ratio, kind)):
                counts[i, HITS + kind] += 1
            elif fresh:
                computes = 1
                known[one] = 1
            else:
                counts[i, MISSES + kind] += 1
                load += stream.size[one]
            if grid > 1:
                for g in range(grid):
                    there = _touch(ghosts, stream, i * grid + g, one, _part(split, split.ratios[g], kind))
                    if not there and not fresh:
                        curve[i, g] += stream.size[one]
        counts[i, LOADED] += load
        counts[i, ANSWERED] += 1
        begin = max(free[i], stream.arrival[r])
        first[r] = begin + np.int64(load * split.ns_per_byte + 0.5) + stream.first_ns[r, computes]
        finish[r] = first[r] + stream.rest_ns[r]
        free[i] = finish[r]
    for i in range(len(free)):
        if counts[i, ANSWERED]:
            w = (counts[i, ANSWERED] - 1) // split.every
            best[i, w] = _least(curve[i], chosen[i, w])
