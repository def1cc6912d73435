"""Where a block comes from: a free one, a new segment, or one for which cached segments were returned."""

from __future__ import annotations

from etude.cost.allocator.addresses import return_address, take_address
from etude.cost.allocator.blocks import (
    ASKED,
    BLOCK,
    CAPACITY,
    EXPANDABLE,
    FREE,
    FREES,
    GONE,
    LARGE_SEGMENT,
    MAX_SPLIT,
    NOTHING,
    OWN_SEGMENT,
    RESERVED,
    RETRIES,
    ROWS,
    SEGMENT_UNIT,
    SMALL,
    SMALL_SEGMENT,
    UNLIMITED,
    USED,
    WAITING,
    chain,
    drop,
    give_back,
    new_block,
    place_of,
    shelve,
    unshelve,
)
from etude.cost.allocator.expandable import expand, unmap, with_room_behind
from etude.kernels.compile import kernel


@kernel(allocates=False)
def _best_fit(arena, size, pool):
    """Takes the smallest free block that fits off the list; NOTHING: there is none."""
    number = arena.number
    place = place_of(arena, pool, size, 0)
    if place == number[FREES] or arena.pool[arena.free[place]] != pool:
        return NOTHING
    if number[EXPANDABLE]:  # a block that can grow counts with what it can grow to
        while place + 1 < number[FREES] and arena.pool[arena.free[place + 1]] == pool:
            if with_room_behind(arena, arena.free[place + 1]) >= with_room_behind(arena, arena.free[place]):
                break
            place += 1
    row = arena.free[place]
    if size < number[MAX_SPLIT] <= arena.size[row]:
        return NOTHING
    if size >= number[MAX_SPLIT] and arena.size[row] >= size + LARGE_SEGMENT:
        return NOTHING
    unshelve(arena, row)
    return row


@kernel(allocates=False)
def _new_segment(arena, size, pool):
    """A block that is a segment of its own; NOTHING: the device is full."""
    number = arena.number
    if size <= SMALL:
        size = SMALL_SEGMENT
    elif size < OWN_SEGMENT:
        size = LARGE_SEGMENT
    else:
        size = (size + SEGMENT_UNIT - 1) // SEGMENT_UNIT * SEGMENT_UNIT
    if number[RESERVED] + size > number[CAPACITY]:
        return NOTHING
    number[RESERVED] += size
    return new_block(arena, size, take_address(arena, size), pool, USED)


@kernel(allocates=False)
def _release(arena, row):
    """Returns a free block that is a whole segment to the device."""
    unshelve(arena, row)
    arena.number[RESERVED] -= arena.size[row]
    return_address(arena, arena.address[row], arena.size[row])
    drop(arena, row)


@kernel(allocates=False)
def _release_oversized(arena, size, pool):
    """Returns as many blocks that are never split as make room for `size`; whether they do."""
    wanted = max(size, arena.number[MAX_SPLIT])
    place, total = place_of(arena, pool, wanted, 0), 0
    if place < arena.number[FREES] and arena.pool[arena.free[place]] == pool:
        _release(arena, arena.free[place])
        return True
    while total < wanted and place > 0:
        place -= 1
        row = arena.free[place]
        if arena.pool[row] != pool or arena.size[row] < arena.number[MAX_SPLIT]:
            break
        total += arena.size[row]
        _release(arena, row)
    return total >= wanted


@kernel
def release_all(arena, owners):
    """Waits for blocks that other streams use, and returns all memory that no block is in."""
    number = arena.number
    for row in range(number[ROWS]):
        if arena.state[row] == WAITING:
            owners.row[arena.owner[row]] = GONE
            number[ASKED] -= arena.asked[row]
            give_back(arena, row)
    for row in arena.free[: number[FREES]].copy():
        if number[EXPANDABLE]:
            unmap(arena, row)
        elif arena.before[row] < 0 and arena.after[row] < 0:
            _release(arena, row)


@kernel
def found_block(arena, owners, size, pool):
    """A block of at least `size` bytes, with all that it was found in; NOTHING: out of memory."""
    number = arena.number
    row = _best_fit(arena, size, pool)
    for attempt in range(3):
        if row >= 0:
            break
        if attempt == 1 and (number[MAX_SPLIT] == UNLIMITED or not _release_oversized(arena, size, pool)):
            continue
        if attempt == 2:
            release_all(arena, owners)
            number[RETRIES] += 1
        row = expand(arena, size, pool) if number[EXPANDABLE] else _new_segment(arena, size, pool)
    return row


@kernel(allocates=False)
def split(arena, row, size):
    """Frees the rest of a block, if it is worth it."""
    pool, rest = arena.pool[row], arena.size[row] - size
    if pool & 1 == 0 or arena.number[EXPANDABLE]:
        splits = rest >= BLOCK
    else:
        splits = rest > SMALL and size < arena.number[MAX_SPLIT]
    if splits:
        left = new_block(arena, rest, arena.address[row] + size, pool, FREE)
        chain(arena, row, left)
        shelve(arena, left)
        arena.size[row] = size
