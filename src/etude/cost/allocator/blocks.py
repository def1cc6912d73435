"""Blocks of memory, in chains that are segments, and the free ones in order.

A pool is one stream's small or large blocks: 2 x stream, and 1 more for large ones. Free blocks are in one list by
(pool, size, address), so that the first one from (pool, wanted size) on is the best fit.
"""

from __future__ import annotations

from typing import NamedTuple

from etude.kernels.arrays import I64, U8
from etude.kernels.compile import kernel

MIB = 1 << 20
BLOCK = 512
"""Sizes of blocks are multiples of it, and so are parts of small blocks that are split off."""
SMALL = MIB
"""The largest small block; a part of a large block is split off if it is larger."""
SMALL_SEGMENT, LARGE_SEGMENT = 2 * MIB, 20 * MIB
OWN_SEGMENT = 10 * MIB
"""From this size on a block has a segment of its own, of a multiple of `SEGMENT_UNIT`."""
SEGMENT_UNIT = 2 * MIB
PIECE = 32 * MIB
"""Addresses are reserved in multiples of it, from TOP downwards."""
TOP = 1 << 60
SPACE = LARGE_SEGMENT << 22
"""Addresses of an expandable segment: a multiple of both granules."""

FREE, USED, WAITING, UNMAPPED = range(4)
"""States of a block. WAITING: freed by its owner, but another stream may still use it."""
ALLOC, FREED, REQUESTED, COMPLETED, EMPTY_CACHE = range(1, 6)
NOTHING, EMPTY, GONE = -1, -2, -3
"""Instead of a block's row: not allocated; allocated with no bytes; completed by `release_all`."""
UNLIMITED = 1 << 62
CAPACITY, MAX_SPLIT, EXPANDABLE, ALLOCATED, ASKED, RESERVED, PEAK = range(7)
LOWEST, GAPS, ROWS, SPARE, FREES, HOLES, RETRIES, PLACED, NUMBERS = range(7, 16)
"""Places in `Arena.number`: what is given, bytes now, and counts."""
FINE, DOUBLE, UNKNOWN, FULL = range(4)
"""How an event ended: well, at a block that is allocated already, at one that is not, out of memory."""


class Arena(NamedTuple):
    """Blocks by row; `number` has the single figures."""

    size: I64
    address: I64
    before: I64  # row of the neighbour in the segment, or NOTHING
    after: I64
    pool: I64
    state: U8
    owner: I64  # the block's number in the events
    asked: I64  # bytes that were asked for
    free: I64  # rows of free blocks, in order
    holes: I64  # rows of unmapped blocks, in any order
    spare: I64  # rows to use again
    gap: I64  # addresses without a segment, in any order
    gap_size: I64
    placed: I64  # addresses of the first segments, where they are known
    number: I64


@kernel(allocates=False)
def new_block(arena, size, address, pool, state):
    number = arena.number
    if number[SPARE]:
        number[SPARE] -= 1
        row = arena.spare[number[SPARE]]
    else:
        row = number[ROWS]
        number[ROWS] += 1
    arena.size[row], arena.address[row], arena.pool[row], arena.state[row] = size, address, pool, state
    arena.before[row], arena.after[row], arena.owner[row] = NOTHING, NOTHING, NOTHING
    return row


@kernel(allocates=False)
def drop(arena, row):
    arena.state[row] = USED  # so that no scan of free or waiting blocks sees it
    arena.spare[arena.number[SPARE]] = row
    arena.number[SPARE] += 1


@kernel(allocates=False)
def place_of(arena, pool, size, address):
    """The place in `free` of the first block that is not before (pool, size, address)."""
    low, high = 0, arena.number[FREES]
    while low < high:
        middle = (low + high) >> 1
        row = arena.free[middle]
        if arena.pool[row] != pool:
            is_before = arena.pool[row] < pool
        elif arena.size[row] != size:
            is_before = arena.size[row] < size
        else:
            is_before = arena.address[row] < address
        if is_before:
            low = middle + 1
        else:
            high = middle
    return low


@kernel(allocates=False)
def shelve(arena, row):
    place = place_of(arena, arena.pool[row], arena.size[row], arena.address[row])
    arena.state[row] = FREE
    for i in range(arena.number[FREES], place, -1):
        arena.free[i] = arena.free[i - 1]
    arena.free[place] = row
    arena.number[FREES] += 1


@kernel(allocates=False)
def unshelve(arena, row):
    place = place_of(arena, arena.pool[row], arena.size[row], arena.address[row])
    arena.number[FREES] -= 1
    for i in range(place, arena.number[FREES]):
        arena.free[i] = arena.free[i + 1]


@kernel(allocates=False)
def chain(arena, row, after):
    """Puts a block behind another."""
    then = arena.after[row]
    arena.before[after], arena.after[after], arena.after[row] = row, then, after
    if then >= 0:
        arena.before[then] = after


@kernel(allocates=False)
def swallow(arena, row, other):
    """Makes a neighbour a part of a block; the neighbour is in no list."""
    arena.size[row] += arena.size[other]
    if arena.before[row] == other:
        arena.address[row] = arena.address[other]
        arena.before[row] = arena.before[other]
        if arena.before[row] >= 0:
            arena.after[arena.before[row]] = row
    else:
        arena.after[row] = arena.after[other]
        if arena.after[row] >= 0:
            arena.before[arena.after[row]] = row
    drop(arena, other)


@kernel(allocates=False)
def give_back(arena, row):
    """Frees a block, as one with its free neighbours."""
    for other in (arena.before[row], arena.after[row]):
        if other >= 0 and arena.state[other] == FREE:
            unshelve(arena, other)
            swallow(arena, row, other)
    shelve(arena, row)
