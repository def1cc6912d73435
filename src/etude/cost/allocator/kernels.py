"""The loop over events."""

from __future__ import annotations

from typing import NamedTuple

from etude.cost.allocator.blocks import (
    ALLOC,
    ALLOCATED,
    ASKED,
    BLOCK,
    COMPLETED,
    DOUBLE,
    EMPTY,
    EMPTY_CACHE,
    FINE,
    FULL,
    GONE,
    NOTHING,
    PEAK,
    REQUESTED,
    RESERVED,
    SMALL,
    UNKNOWN,
    USED,
    WAITING,
    give_back,
)
from etude.cost.allocator.segments import found_block, release_all, split
from etude.kernels.arrays import I64, U8
from etude.kernels.compile import kernel


class AllocatorColumns(NamedTuple):
    """Events, by row."""

    action: U8
    block: I64
    size_bytes: I64
    stream: I64
    class_id: I64


class Owners(NamedTuple):
    row: I64  # of each block of the events, or NOTHING, EMPTY, GONE
    class_id: I64  # of each block
    now: I64  # bytes of each class
    at_peak: I64  # bytes of each class when most was allocated


class Series(NamedTuple):
    """After each event."""

    allocated: I64
    reserved: I64
    requested: I64
    taken: I64  # the block that an allocation got
    address: I64  # and where it is


@kernel
def _allocate(requests, i, arena, owners):
    block, asked, number = requests.block[i], requests.size_bytes[i], arena.number
    if owners.row[block] >= 0 or owners.row[block] == EMPTY:
        return DOUBLE
    if asked == 0:
        owners.row[block] = EMPTY
        return FINE
    size = (asked + BLOCK - 1) // BLOCK * BLOCK
    row = found_block(arena, owners, size, 2 * requests.stream[i] + (1 if size > SMALL else 0))
    if row < 0:
        return FULL
    split(arena, row, size)
    arena.state[row], arena.owner[row], arena.asked[row] = USED, block, asked
    owners.row[block], owners.class_id[block] = row, requests.class_id[i]
    owners.now[requests.class_id[i]] += arena.size[row]
    number[ALLOCATED] += arena.size[row]
    number[ASKED] += asked
    if number[ALLOCATED] > number[PEAK]:
        number[PEAK] = number[ALLOCATED]
        owners.at_peak[:] = owners.now
    return FINE


@kernel(allocates=False)
def _free(action, block, arena, owners):
    row = owners.row[block]
    if row == EMPTY or (row == GONE and action == COMPLETED):
        owners.row[block] = EMPTY if action == REQUESTED else NOTHING
        return FINE
    if row < 0 or (arena.state[row] == WAITING) != (action == COMPLETED):
        return UNKNOWN
    if action != COMPLETED:
        arena.number[ALLOCATED] -= arena.size[row]
        owners.now[owners.class_id[block]] -= arena.size[row]
        arena.state[row] = WAITING
    if action != REQUESTED:
        arena.number[ASKED] -= arena.asked[row]
        give_back(arena, row)
        owners.row[block] = NOTHING
    return FINE


@kernel
def run(requests, arena, owners, series):
    """(how it ended, events until then): all events, or the first that cannot be."""
    number, n = arena.number, len(requests.action)
    for i in range(n):
        action, block = requests.action[i], requests.block[i]
        ended = FINE
        if action == EMPTY_CACHE:
            release_all(arena, owners)
        elif action == ALLOC:
            ended = _allocate(requests, i, arena, owners)
            if ended == FINE and owners.row[block] >= 0:
                row = owners.row[block]
                series.taken[i], series.address[i] = arena.size[row], arena.address[row]
        else:
            ended = _free(action, block, arena, owners)
        if ended != FINE:
            return ended, i
        series.allocated[i], series.reserved[i] = number[ALLOCATED], number[RESERVED]
        series.requested[i] = number[ASKED]
    return FINE, n
