"""Kernels of the studio: rows of slices that do not overlap, as columns on disk, in; what is drawn of them, out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, I64, U8
from etude.kernels.compile import kernel

SORTS = 8
"""More than there are sorts of slices."""


class RowSlices(NamedTuple):
    """Slices of one row, by start; none overlaps the next."""

    start: I64
    end: I64
    node: I32
    sort_of: U8
    """By node."""
    name_of: I32
    """By node."""


class DrawnPieces(NamedTuple):
    """What is drawn: single slices, and short neighbours together."""

    start: I64
    end: I64
    busy: I64
    """Time in which one of its slices runs."""
    node: I32
    """Its first slice."""
    name: I32
    """-1: several."""
    slices: I32
    """How many it is."""
    sort: U8
    """The sort that has most of its time."""


@kernel(allocates=False)
def first_ending_after(end, time):
    """First slice of a row that ends after a time."""
    low, high = 0, len(end)
    while low < high:
        middle = (low + high) // 2
        if end[middle] > time:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def pieces_of_row(slices, first_ns, last_ns, least_ns, out):
    """Fills `out` with the pieces of a row in a window; returns how many. A slice of `least_ns` or more is a piece.
    Shorter ones are drawn together with neighbours less than that away, up to `2 * least_ns` in all, and counted."""
    start, end, node = slices.start, slices.end, slices.node
    by_sort = np.zeros(SORTS, np.int64)
    used = 0
    i = first_ending_after(end, first_ns)
    while i < len(start) and start[i] < last_ns and used < len(out.start):
        first, last, busy = i, end[i], end[i] - start[i]
        name = slices.name_of[node[i]]
        i += 1
        if busy < least_ns:
            by_sort[:] = 0
            by_sort[slices.sort_of[node[first]]] = busy + 1
            while (
                i < len(start)
                and end[i] - start[i] < least_ns
                and start[i] - last < least_ns
                and end[i] - start[first] <= 2 * least_ns
            ):
                last = max(last, end[i])
                busy += end[i] - start[i]
                by_sort[slices.sort_of[node[i]]] += end[i] - start[i] + 1
                if slices.name_of[node[i]] != name:
                    name = np.int32(-1)
                i += 1
            out.sort[used] = np.argmax(by_sort)
        else:
            out.sort[used] = slices.sort_of[node[first]]
        out.start[used], out.end[used], out.busy[used] = start[first], last, busy
        out.node[used], out.name[used], out.slices[used] = node[first], name, i - first
        used += 1
    return used


@kernel(allocates=False)
def add_to_bins(slices, first_ns, width_ns, out):
    """Adds the time of the slices of a row to `out`, by bin and sort."""
    start, end, node = slices.start, slices.end, slices.node
    for i in range(len(start)):
        sort = slices.sort_of[node[i]]
        at = (start[i] - first_ns) // width_ns
        now = start[i]
        while now < end[i] and at < len(out):
            until = min(end[i], first_ns + (at + 1) * width_ns)
            out[at, sort] += until - now
            now = until
            at += 1


@kernel(allocates=False)
def add_by_name(slices, first_ns, last_ns, time_ns, count, by_sort):
    """Adds the time that the slices of a row have in a window, by name and by sort."""
    start, end, node = slices.start, slices.end, slices.node
    i = first_ending_after(end, first_ns)
    while i < len(start) and start[i] < last_ns:
        inside = min(end[i], last_ns) - max(start[i], first_ns)
        name = slices.name_of[node[i]]
        time_ns[name] += inside
        count[name] += 1
        by_sort[slices.sort_of[node[i]]] += inside
        i += 1


@kernel(allocates=False)
def next_named(slices, wanted, after_ns):
    """First slice of a row that starts after a time and has one of the wanted names; -1: none."""
    start, node = slices.start, slices.node
    for i in range(first_ending_after(slices.end, after_ns), len(start)):
        if start[i] > after_ns and wanted[slices.name_of[node[i]]]:
            return i
    return -1


def room_for(pieces: int) -> DrawnPieces:
    """Room for this many pieces."""
    kinds: tuple[type[np.generic], ...] = (np.int64, np.int64, np.int64, np.int32, np.int32, np.int32, np.uint8)
    columns: list[NDArray[Any]] = [np.empty(pieces, kind) for kind in kinds]
    return DrawnPieces(*columns)
