"""Binary heaps: of (key, item), of keys alone, and of items whose keys may change.

The least key comes first. None of them grows: whoever makes the arrays knows how many entries there can be.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.compile import kernel

KEY, ITEM = 0, 1
"""Columns of an entry."""


class Heap(NamedTuple):
    """Entries in any order of their items where keys are equal. entry[0] is the first, if there is one."""

    entry: NDArray[np.int64]  # a row of (key, item) each
    size: NDArray[np.int64]  # one number: entries in use


def empty_heap(capacity: int) -> Heap:
    return Heap(np.empty((capacity, 2), np.int64), np.zeros(1, np.int64))


@kernel(allocates=False)
def push(heap, key, item):
    entry = heap.entry
    i = heap.size[0]
    heap.size[0] = i + 1
    while i > 0:
        up = (i - 1) >> 1
        if entry[up, KEY] <= key:
            break
        entry[i, KEY] = entry[up, KEY]
        entry[i, ITEM] = entry[up, ITEM]
        i = up
    entry[i, KEY] = key
    entry[i, ITEM] = item


@kernel(allocates=False)
def pop(heap):
    """Takes the first entry out and returns its item."""
    entry = heap.entry
    first = entry[0, ITEM]
    size = heap.size[0] - 1
    heap.size[0] = size
    key, item = entry[size, KEY], entry[size, ITEM]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and entry[down + 1, KEY] < entry[down, KEY]:
            down += 1
        if entry[down, KEY] >= key:
            break
        entry[i, KEY] = entry[down, KEY]
        entry[i, ITEM] = entry[down, ITEM]
        i = down
    entry[i, KEY] = key
    entry[i, ITEM] = item
    return first


# -- keys alone: many small heaps, each a part of one array ------------------------------------------------------------


@kernel(allocates=False)
def push_key(keys, size, key):
    """Puts a key into a heap of `size` keys."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if keys[up] <= key:
            break
        keys[i] = keys[up]
        i = up
    keys[i] = key


@kernel(allocates=False)
def pop_key(keys, size):
    """Takes the least of `size` keys out and returns it."""
    first = keys[0]
    size -= 1
    key = keys[size]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and keys[down + 1] < keys[down]:
            down += 1
        if keys[down] >= key:
            break
        keys[i] = keys[down]
        i = down
    keys[i] = key
    return first


# -- items 0, 1, ..., each in the heap at most once, whose keys may change ---------------------------------------------


class Queue(NamedTuple):
    """Items by (key, turn): of equal keys the one with the lower turn comes first. item[0] is the first of all."""

    item: NDArray[np.int64]
    place: NDArray[np.int64]  # of each item in `item`, -1 where it is not queued
    key: NDArray[Any]  # of each item: int64 or float64
    turn: NDArray[np.int64]  # of each item
    size: NDArray[np.int64]  # one number: items in the queue


def empty_queue(items: int, key: type = np.int64) -> Queue:
    numbers = np.empty(items, np.int64), np.full(items, -1, np.int64)
    return Queue(*numbers, np.zeros(items, key), np.zeros(items, np.int64), np.zeros(1, np.int64))


@kernel(allocates=False)
def put(queue, item, key, turn):
    """Puts an item into the queue, or moves it to where its new key belongs."""
    before, turn_before = queue.key[item], queue.turn[item]
    queue.key[item], queue.turn[item] = key, turn
    place = queue.place[item]
    if place < 0:
        place = queue.size[0]
        queue.size[0] = place + 1
        _move_up(queue, place, item)
    elif key < before or (key == before and turn < turn_before):
        _move_up(queue, place, item)
    else:
        _move_down(queue, place, item)


@kernel(allocates=False)
def take(queue):
    """Takes the first item out and returns it."""
    first = queue.item[0]
    queue.place[first] = -1
    size = queue.size[0] - 1
    queue.size[0] = size
    if size:
        _move_down(queue, 0, queue.item[size])
    return first


@kernel(allocates=False)
def _move_up(queue, place, item):
    heap, places, keys, turns = queue.item, queue.place, queue.key, queue.turn
    key, turn = keys[item], turns[item]
    while place > 0:
        up = (place - 1) >> 1
        over = heap[up]
        if keys[over] < key or (keys[over] == key and turns[over] <= turn):
            break
        heap[place] = over
        places[over] = place
        place = up
    heap[place] = item
    places[item] = place


@kernel(allocates=False)
def _move_down(queue, place, item):
    heap, places, keys, turns, size = queue.item, queue.place, queue.key, queue.turn, queue.size[0]
    key, turn = keys[item], turns[item]
    while True:
        down = 2 * place + 1
        if down >= size:
            break
        under = heap[down]
        if down + 1 < size:
            other = heap[down + 1]
            if keys[other] < keys[under] or (keys[other] == keys[under] and turns[other] < turns[under]):
                down += 1
                under = other
        if key < keys[under] or (key == keys[under] and turn <= turns[under]):
            break
        heap[place] = under
        places[under] = place
        place = down
    heap[place] = item
    places[item] = place
