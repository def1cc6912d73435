"""Expandable segments: a pool is one chain from address `pool * SPACE` on, of which a part is mapped to memory, in
granules that are as large as segments of several blocks are otherwise."""

from __future__ import annotations

from etude.cost.allocator.blocks import (
    CAPACITY,
    FREE,
    HOLES,
    LARGE_SEGMENT,
    NOTHING,
    RESERVED,
    SMALL_SEGMENT,
    SPACE,
    UNMAPPED,
    chain,
    give_back,
    new_block,
    shelve,
    swallow,
    unshelve,
)
from etude.kernels.compile import kernel


@kernel(allocates=False)
def with_room_behind(arena, row):
    """Bytes to which a free block can grow in place."""
    after = arena.after[row]
    return arena.size[row] + (arena.size[after] if after >= 0 and arena.state[after] == UNMAPPED else 0)


@kernel(allocates=False)
def _add_hole(arena, row):
    arena.state[row] = UNMAPPED
    arena.holes[arena.number[HOLES]] = row
    arena.number[HOLES] += 1


@kernel(allocates=False)
def _drop_hole(arena, row):
    place = 0
    while arena.holes[place] != row:
        place += 1
    arena.number[HOLES] -= 1
    arena.holes[place] = arena.holes[arena.number[HOLES]]


@kernel(allocates=False)
def _map(arena, row, size):
    """Maps the start of an unmapped block, and shelves it with its free neighbours; NOTHING: the device is full."""
    number, pool = arena.number, arena.pool[row]
    granule = LARGE_SEGMENT if pool & 1 else SMALL_SEGMENT
    size = (size + granule - 1) // granule * granule
    if number[RESERVED] + size > number[CAPACITY]:
        return NOTHING
    number[RESERVED] += size
    _drop_hole(arena, row)
    if size < arena.size[row]:
        rest = new_block(arena, arena.size[row] - size, arena.address[row] + size, pool, UNMAPPED)
        chain(arena, row, rest)
        _add_hole(arena, rest)
        arena.size[row] = size
    give_back(arena, row)
    return row


@kernel(allocates=False)
def _has_space(arena, row, size):
    while size > 0 and row >= 0 and (arena.state[row] == FREE or arena.state[row] == UNMAPPED):
        size -= arena.size[row]
        row = arena.after[row]
    return size <= 0


@kernel(allocates=False)
def expand(arena, size, pool):
    """A block at the lowest address of the expandable segment where free and unmapped memory is enough."""
    number, found = arena.number, NOTHING
    for i in range(number[HOLES]):
        row = arena.holes[i]
        if arena.pool[row] != pool:
            continue
        if arena.before[row] >= 0 and arena.state[arena.before[row]] == FREE:
            row = arena.before[row]
        if (found < 0 or arena.address[row] < arena.address[found]) and _has_space(arena, row, size):
            found = row
    if found < 0:
        found = new_block(arena, SPACE, pool * SPACE, pool, UNMAPPED)
        _add_hole(arena, found)
    if arena.state[found] == UNMAPPED:
        found = _map(arena, found, min(arena.size[found], size))
    while found >= 0 and arena.size[found] < size:
        after = arena.after[found]
        found = _map(arena, after, min(arena.size[after], size - arena.size[found]))
    if found >= 0:
        unshelve(arena, found)
    return found


@kernel(allocates=False)
def unmap(arena, row):
    """Returns the whole granules of a free block to the device."""
    pool = arena.pool[row]
    granule = LARGE_SEGMENT if pool & 1 else SMALL_SEGMENT
    begin, end = arena.address[row], arena.address[row] + arena.size[row]
    low, high = (begin + granule - 1) // granule * granule, end // granule * granule
    if low >= high:
        return
    unshelve(arena, row)
    if high < end:
        rest = new_block(arena, end - high, high, pool, FREE)
        chain(arena, row, rest)
        shelve(arena, rest)
    hole = row
    if begin < low:
        hole = new_block(arena, high - low, low, pool, UNMAPPED)
        chain(arena, row, hole)
        arena.size[row] = low - begin
        shelve(arena, row)
    arena.size[hole] = high - low
    arena.number[RESERVED] -= high - low
    for other in (arena.before[hole], arena.after[hole]):
        if other >= 0 and arena.state[other] == UNMAPPED:
            _drop_hole(arena, other)
            swallow(arena, hole, other)
    _add_hole(arena, hole)
