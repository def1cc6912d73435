"""A swarm: every client sends its update to every other one, in chunks, over access links, without a server.

Time advances in slots; in a slot the fastest link carries one chunk, and a slower link accumulates credit until it can
carry a whole one. In a slot a sender picks a receiver with free capacity that lacks a chunk, and one of the chunks it
lacks; a received chunk can be passed on from the next slot on. Both choices are random.

A warm-up hides the origin of chunks: a client joins after a random lag, and until every client holds `warmup` of all
chunks, senders prefer the chunks of others. `peers`, rounded up to an even number, is the most
clients that one exchanges chunks with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import ClusterError, UsageError
from etude.base.figures import figure
from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel

MOST: Final = 400_000_000
"""Largest number of transfers in a round."""
WORD: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    chunk_bytes: float = figure("bytes", "size of a chunk", 16e6)
    warmup: float = figure("number", "fraction of all chunks that every client has when the warm-up ends; 0: none", 0.0)
    lag_ns: float = figure("time", "longest lag before a client joins", 0.0)
    peers: int = figure(
        "count", "most other clients that a client exchanges chunks with, rounded up to an even number; 0: all", 0
    )

    def __post_init__(self) -> None:
        if self.warmup >= 1:
            raise ClusterError(f"warmup {self.warmup:g}: nothing is left to send after it", hint="--warmup 0.1")


class SwarmRound(NamedTuple):
    """Result of one round."""

    end_s: F64
    """For each client: when it held everything, or the end if it never did."""
    warm_s: float
    """Time from the first chunk to the end of the warm-up; 0: no warm-up."""
    held: F64
    """For each client: fraction of the updates of others that it holds completely."""
    sent_bytes: F64
    got_bytes: F64
    bound_s: float


def max_flow_s(size: float, up: F64, down: F64) -> float:
    """Lower bound of the time to spread an update of `size` bytes from each client to all others, s."""
    n = len(up)
    if n < 2:
        return 0.0
    return float(max(size / up.min(), (n - 1) * size / down.min(), n * (n - 1) * size / up.sum()))


def spread(
    rules: Swarm, size: float, up: F64, down: F64, ready_s: F64, rng: np.random.Generator, end_s: float = math.inf
) -> SwarmRound:
    """Spreads updates of `size` bytes, each available from `ready_s` on; a client joins with a random lag after the
    first one is. All transfers stop at `end_s`. Raises UsageError for more than MOST transfers."""
    n, chunks = len(up), max(math.ceil(size / rules.chunk_bytes), 1)
    if n * (n - 1) * chunks > MOST:
        raise UsageError(
            f"{chunks:,} chunks of each of {n:,} clients to all others are too many to simulate",
            hint=f"--chunk {math.ceil(size * n * (n - 1) / MOST / 1e6):,}MB, or fewer clients in a round",
        )
    each = size / chunks
    slot_s = each / float(max(up.max(), down.max()))
    first = float(ready_s.min())
    joins = np.ceil(rng.random(n) * rules.lag_ns / 1e9 / slot_s).astype(np.int64)
    offers = np.maximum(np.ceil((ready_s - first) / slot_s - 1e-9).astype(np.int64), joins)
    last = np.iinfo(np.int64).max if math.isinf(end_s) else int(max((end_s - first) / slot_s + 1e-9, 0))
    warm = math.ceil(rules.warmup * n * chunks)
    links = SwarmLinks(up * slot_s / each, down * slot_s / each, joins, offers, _near(n, rules.peers, rng))
    out = _spread(links, chunks, warm, last, int(rng.integers(1, 2**62)))
    ended, warm_slot, held, sent, got, slots = out
    ends = np.where(ended >= 0, ended, slots) * slot_s + first
    warm_s = (warm_slot if warm_slot >= 0 else slots) * slot_s if warm else 0.0
    return SwarmRound(ends, float(warm_s), held / max(n - 1, 1), sent * each, got * each, max_flow_s(size, up, down))


class SwarmLinks(NamedTuple):
    up: F64
    """Chunks per slot."""
    down: F64
    joins: I64
    """Slot from which a client sends and receives."""
    offers: I64
    """Slot from which it has its own update."""
    near: NDArray[np.bool_]
    """[sender, receiver]: whether they exchange chunks."""


def _near(n: int, peers: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which clients exchange chunks: neighbours on random rings through all clients."""
    if not peers or peers >= n - 1:
        return ~np.eye(n, dtype=np.bool_)
    near = np.zeros((n, n), np.bool_)
    for _ in range((peers + 1) // 2):
        ring = rng.permutation(n)
        near[ring, np.roll(ring, 1)] = True
    return near | near.T


@kernel
def _next(state: int) -> int:
    state ^= (state << 13) & 0x7FFFFFFFFFFFFFFF
    state ^= state >> 7
    return state ^ (state << 17) & 0x7FFFFFFFFFFFFFFF


@kernel
def _lacking(of: Any, has: Any, low: int, high: int, start: int) -> int:
    """A word from `low` up to `high` in which `of` holds a chunk that `has` lacks, searched from `start` on and around;
    -1: none."""
    for k in range(start, high):
        if of[k] & ~has[k]:
            return k
    for k in range(low, start):
        if of[k] & ~has[k]:
            return k
    return -1


@kernel
def _spread(links: SwarmLinks, chunks: int, warm: int, last: int, state: int) -> Any:
    up, down, joins, offers, near = links
    n = len(up)
    words = (chunks + WORD - 1) // WORD
    whole = np.zeros(words, np.uint64)
    for c in range(chunks):
        whole[c // WORD] |= np.uint64(1) << np.uint64(c % WORD)
    holds, comes = np.zeros((n, n * words), np.uint64), np.zeros((n, n * words), np.uint64)
    for i in range(n):
        comes[i, i * words : (i + 1) * words] = whole
    count, ended = np.full(n, chunks), np.full(n, -1)
    sent, got = np.zeros(n, np.int64), np.zeros(n, np.int64)
    give, take = np.zeros(n), np.zeros(n)
    order, open_to = np.arange(n), np.zeros(n, np.int64)
    log_peer, log_word, log_bit = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.uint64)
    left, warm_slot, slot = n if n > 1 else 0, -1, 0
    while left and slot < last:
        for i in range(n):
            if slot >= joins[i]:
                give[i], take[i] = min(give[i] + up[i], 2.0), min(take[i] + down[i], 2.0)
            if offers[i] == slot:
                holds[i, i * words : (i + 1) * words] = whole
        rooms = 0
        for i in range(n):
            if count[i] < n * chunks and take[i] >= 1.0 - 1e-9:
                open_to[rooms] = i
                rooms += 1
        logged = 0
        for k in range(n):
            state = _next(state)
            j = k + state % (n - k)
            order[k], order[j] = order[j], order[k]
            a = order[k]
            if give[a] < 1.0 - 1e-9 or not rooms:
                continue
            state = _next(state)
            first = state % rooms
            own, own_end = a * words, (a + 1) * words
            for t in range(rooms):
                at = first + t if first + t < rooms else first + t - rooms
                b = open_to[at]
                if not near[a, b]:
                    continue
                state = _next(state)
                if warm_slot < 0 and warm:
                    start = state % (n * words)
                    word = _lacking(holds[a], comes[b], own_end, n * words, max(start, own_end)) if start >= own else -1
                    if word < 0:
                        word = _lacking(holds[a], comes[b], 0, own, start % own if own else 0)
                    if word < 0:
                        word = _lacking(holds[a], comes[b], own_end, n * words, own_end)
                    if word < 0:
                        word = _lacking(holds[a], comes[b], own, own_end, own + start % words)
                else:
                    word = _lacking(holds[a], comes[b], 0, n * words, state % (n * words))
                if word < 0:
                    continue
                useful = holds[a, word] & ~comes[b, word]
                turn = np.uint64((state >> 20) % WORD)
                above = (useful >> turn) << turn
                useful = above if above else useful
                bit = useful & (~useful + np.uint64(1))
                comes[b, word] |= bit
                log_peer[logged], log_word[logged], log_bit[logged] = b, word, bit
                logged += 1
                give[a] -= 1.0
                take[b] -= 1.0
                sent[a] += 1
                got[b] += 1
                count[b] += 1
                if take[b] < 1.0 - 1e-9 or count[b] == n * chunks:
                    rooms -= 1
                    open_to[at] = open_to[rooms]
                break
        slot += 1
        for k in range(logged):
            b = log_peer[k]
            holds[b, log_word[k]] |= log_bit[k]
            if count[b] == n * chunks and ended[b] < 0:
                ended[b] = slot
                left -= 1
        if warm_slot < 0 and warm and count.min() >= warm:
            warm_slot = slot
    held = np.zeros(n)
    for i in range(n):
        for o in range(n):
            if o != i:
                full = True
                for w in range(words):
                    full &= comes[i, o * words + w] == whole[w]
                held[i] += 1.0 if full else 0.0
    return ended, warm_slot, held, sent, got, slot
