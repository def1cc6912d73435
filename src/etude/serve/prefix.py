"""Prompts that begin alike, in compiled code: the ids of their blocks, and which of these a replica still holds.

An id stands for 512 tokens of a prompt, the last for what is left of it. Its keys and values are there from the pass
that reads its last token. Requests that run share them; ids that no request uses stay until their room is needed, the
one that was used longest ago first, and of one request the last first, so that what is there begins at the front.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.errors import UsageError
from etude.kernels.compile import kernel
from etude.serve.requests import BLOCK_TOKENS, Requests
from etude.serve.state import CACHED, COMPUTED, EVICTED, HELD, PEAK, PROMPT, REFS, USED

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
ABSENT: Final = -1
MOST: Final = 1 << 28
"""Of replicas times ids."""


class Prefix(NamedTuple):
    start: I64
    """Ids of request r are ids[start[r] : start[r + 1]]."""
    ids: I64
    blocks: I64
    """Blocks of keys and values that an id fills."""
    refs: I32
    """Requests that use an id: (replica, id); ABSENT: it is not there."""
    newer: I32
    """Of ids that are there and that no request uses, a ring through one place more: (replica, id)."""
    older: I32


def prefix_of(requests: Requests, replicas: int, block: int) -> Prefix:
    """Nothing is there yet."""
    if not len(requests.block):
        raise UsageError("the requests name no blocks", hint="`hash_ids`, as Mooncake's files have; or --cache none")
    if BLOCK_TOKENS % block:
        raise UsageError(f"{BLOCK_TOKENS} tokens of an id are not whole blocks of {block}", hint="--block-size 16")
    count = int(requests.block.max()) + 1
    if replicas * count > MOST:
        raise UsageError(f"{count:,} ids of blocks on {replicas} replicas are too many", hint="--first, or fewer")
    owner = np.repeat(np.arange(len(requests)), np.diff(requests.block_start))
    place = np.arange(len(requests.block)) - requests.block_start[owner]
    tokens = np.minimum(requests.prompt[owner] - place * BLOCK_TOKENS, BLOCK_TOKENS)
    wrong = np.flatnonzero(tokens <= 0)
    if len(wrong):
        raise UsageError("has more blocks than its prompt fills", where=f"request {owner[wrong[0]]}")
    blocks = np.full(count, BLOCK_TOKENS, np.int64)
    np.minimum.at(blocks, requests.block, tokens)
    ring = np.full((replicas, count + 1), count, np.int32)
    refs = np.full((replicas, count), ABSENT, np.int32)
    return Prefix(requests.block_start, requests.block, blocks // block, refs, ring, ring.copy())


def no_prefix() -> Prefix:
    none, table = np.zeros(1, np.int64), np.zeros((1, 1), np.int32)
    return Prefix(none, none, none, table, table, table)


@kernel(allocates=False)
def leading(prefix, i, r):
    """How many ids at the front of a prompt are there; the blocks that they fill; those of ids that nobody uses."""
    count, blocks, idle = 0, 0, 0
    for k in range(prefix.start[r], prefix.start[r + 1]):
        one = prefix.ids[k]
        if prefix.refs[i, one] == ABSENT:
            break
        count += 1
        blocks += prefix.blocks[one]
        if prefix.refs[i, one] == 0:
            idle += prefix.blocks[one]
    return count, blocks, idle


@kernel(allocates=False)
def _unlink(prefix, i, one):
    prefix.newer[i, prefix.older[i, one]] = prefix.newer[i, one]
    prefix.older[i, prefix.newer[i, one]] = prefix.older[i, one]


@kernel(allocates=False)
def _put_newest(prefix, i, one):
    end = len(prefix.blocks)
    before = prefix.older[i, end]
    prefix.older[i, one], prefix.newer[i, one] = before, end
    prefix.newer[i, before] = one
    prefix.older[i, end] = one


@kernel(allocates=False)
def share(state, i, r, count):
    """A request that enters uses so many ids at the front of its prompt, which are there."""
    prefix, mine = state.prefix, state.replica[i]
    held = 0
    for k in range(prefix.start[r], prefix.start[r] + count):
        one = prefix.ids[k]
        if prefix.refs[i, one] == 0:
            _unlink(prefix, i, one)
            mine[CACHED] -= prefix.blocks[one]
            mine[USED] += prefix.blocks[one]
        prefix.refs[i, one] += 1
        held += prefix.blocks[one]
    mine[PEAK] = max(mine[PEAK], mine[USED])
    state.request[r, REFS], state.request[r, HELD] = count, held


@kernel(allocates=False)
def keep(state, i, r):
    """Ids whose last token a request has read are there for others. Where they were there already, because another
    request read them meanwhile, one copy is kept."""
    prefix, mine, asked = state.prefix, state.replica[i], state.request[r]
    while prefix.start[r] + asked[REFS] < prefix.start[r + 1]:
        if asked[COMPUTED] < min((asked[REFS] + 1) * BLOCK_TOKENS, asked[PROMPT]):
            break
        one = prefix.ids[prefix.start[r] + asked[REFS]]
        if prefix.refs[i, one] == ABSENT:
            prefix.refs[i, one] = 0
        elif prefix.refs[i, one] == 0:
            _unlink(prefix, i, one)
            mine[CACHED] -= prefix.blocks[one]
        else:
            mine[USED] -= prefix.blocks[one]
        prefix.refs[i, one] += 1
        asked[REFS] += 1


@kernel(allocates=False)
def release(state, i, r):
    """A request gives up all that it holds."""
    prefix, mine, asked = state.prefix, state.replica[i], state.request[r]
    while asked[REFS] > 0:
        asked[REFS] -= 1
        one = prefix.ids[prefix.start[r] + asked[REFS]]
        asked[HELD] -= prefix.blocks[one]
        prefix.refs[i, one] -= 1
        if prefix.refs[i, one] == 0:
            _put_newest(prefix, i, one)
            mine[USED] -= prefix.blocks[one]
            mine[CACHED] += prefix.blocks[one]
    mine[USED] -= asked[HELD]
    asked[HELD] = 0


@kernel(allocates=False)
def evict(state, i, room):
    """Ids that nobody uses go, until what is left fits."""
    prefix, mine = state.prefix, state.replica[i]
    while mine[USED] + mine[CACHED] > room:
        one = prefix.newer[i, len(prefix.blocks)]
        _unlink(prefix, i, one)
        prefix.refs[i, one] = ABSENT
        mine[CACHED] -= prefix.blocks[one]
        mine[EVICTED] += 1
