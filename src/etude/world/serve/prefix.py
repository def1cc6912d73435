"""Prompts with common prefixes, in compiled code: the ids of their pieces, and which of these a replica still holds.

Keys and values of a piece are available from the pass that reads its last token. Running requests share them; unused
ids stay until their room is needed, and are evicted in the order of a ring (`rings`): by default the least recently
used first, and within one request the last first, so that what remains is a prefix.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I32, I64
from etude.kernels.compile import kernel
from etude.world.serve.cache import POLICIES, CacheRules
from etude.world.serve.pieces import CachePieces, pieces_of
from etude.world.serve.requests import BLOCK_TOKENS, Requests
from etude.world.serve.reuse import again_ns
from etude.world.serve.rings import (
    ABSENT,
    EXPECTED,
    Ring,
    expect,
    expired,
    goes_first,
    no_ring,
    put_newest,
    ring_of,
    unlink,
)

MOST: Final = 1 << 28
"""Limit of replicas times ids."""


class Prefix(NamedTuple):
    pieces: CachePieces
    blocks: I64
    """Blocks of keys and values that an id fills."""
    refs: I32
    """Requests that use an id: (replica, id); ABSENT: it is not there."""
    ring: Ring
    """Ids that are held and unused."""


def prefix_of(requests: Requests, rules: CacheRules, replicas: int, block: int) -> Prefix:
    """An empty cache."""
    if requests.chained and BLOCK_TOKENS % block and len(requests.block):
        raise UsageError(
            f"{BLOCK_TOKENS} tokens per id are not a multiple of the block size {block}", hint="--block-size 16"
        )
    pieces = pieces_of(requests, rules, block, way="prefix")
    count = len(pieces.size)
    if replicas * count > MOST:
        raise UsageError(
            f"{count:,} ids of blocks on {replicas} replicas are too many", hint="use --first, or fewer replicas"
        )
    ring = ring_of(replicas, count, 1, pieces.pinned, POLICIES[rules.policy], rules.ttl_ns)
    return Prefix(pieces, pieces.size // block, np.full((replicas, count), ABSENT, np.int32), ring)


def no_prefix() -> Prefix:
    none, bytes_, table = np.zeros(1, np.int64), np.zeros(1, np.uint8), np.zeros((1, 1), np.int32)
    pieces = CachePieces(none, none, none, none, none, none, bytes_)
    return Prefix(pieces, none, table, no_ring())


@kernel(allocates=False)
def leading(prefix, i, r, now):
    """How many ids at the front of a prompt are held; the blocks that they fill; those of unused ids."""
    count, blocks, idle = 0, 0, 0
    for k in range(prefix.pieces.start[r], prefix.pieces.start[r + 1]):
        one = prefix.pieces.ids[k]
        if prefix.refs[i, one] == ABSENT or (prefix.refs[i, one] == 0 and expired(prefix.ring, i, one, now)):
            break
        count += 1
        blocks += prefix.blocks[one]
        if prefix.refs[i, one] == 0:
            idle += prefix.blocks[one]
    return count, blocks, idle


@kernel(allocates=False)
def share(state, i, r, count):
    """A request that enters uses `count` held ids at the front of its prompt."""
    prefix, mine = state.prefix, state.replica[i]
    held = 0
    for k in range(prefix.pieces.start[r], prefix.pieces.start[r] + count):
        one = prefix.pieces.ids[k]
        if prefix.refs[i, one] == 0:
            unlink(prefix.ring, i, one)
            mine.cached -= prefix.blocks[one]
            mine.used += prefix.blocks[one]
        prefix.refs[i, one] += 1
        held += prefix.blocks[one]
    mine.peak = max(mine.peak, mine.used)
    state.request[r].refs, state.request[r].held = count, held


@kernel(allocates=False)
def keep(state, i, r):
    """Ids whose last token a request has read become available to others. If another request has read them meanwhile,
    one copy is kept."""
    prefix, mine, asked = state.prefix, state.replica[i], state.request[r]
    if asked.reused and asked.computed < asked.prompt:
        return  # what was found may be anywhere: only a complete prompt has all of its prefix
    pieces = prefix.pieces
    while pieces.start[r] + asked.refs < pieces.start[r + 1]:
        if asked.computed < pieces.ends[pieces.start[r] + asked.refs]:
            break
        one = pieces.ids[pieces.start[r] + asked.refs]
        if prefix.refs[i, one] == ABSENT:
            prefix.refs[i, one] = 0
        elif prefix.refs[i, one] == 0:
            unlink(prefix.ring, i, one)
            mine.cached -= prefix.blocks[one]
        else:
            mine.used -= prefix.blocks[one]
        prefix.refs[i, one] += 1
        asked.refs += 1


@kernel(allocates=False)
def release(state, i, r):
    """A request releases all that it holds."""
    prefix, mine, asked = state.prefix, state.replica[i], state.request[r]
    now, later = state.clock[0].now_ns, np.int64(0)
    if prefix.ring.policy == EXPECTED:
        later = again_ns(state.reuse, asked.finish_ns, asked.task)
    while asked.refs > 0:
        asked.refs -= 1
        k = prefix.pieces.start[r] + asked.refs
        one = prefix.pieces.ids[k]
        asked.held -= prefix.blocks[one]
        prefix.refs[i, one] -= 1
        prefix.ring.soon[one] = prefix.pieces.next_use[k]
        if prefix.ring.policy == EXPECTED:
            expect(prefix.ring, i, one, asked.session, now, later)
        if prefix.refs[i, one] == 0:
            put_newest(prefix.ring, i, one, len(prefix.blocks))
            mine.used -= prefix.blocks[one]
            mine.cached += prefix.blocks[one]
        prefix.ring.used_at[i, one] = now
    mine.used -= asked.held
    asked.held = 0


@kernel(allocates=False)
def evict(state, i, room):
    """Evicts unused ids until the rest fits."""
    prefix, mine = state.prefix, state.replica[i]
    while mine.used + mine.cached > room:
        one = goes_first(prefix.ring, i, len(prefix.blocks), state.clock[0].now_ns)
        unlink(prefix.ring, i, one)
        prefix.refs[i, one] = ABSENT
        mine.cached -= prefix.blocks[one]
        mine.evicted += 1
