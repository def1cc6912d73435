"""Kernels that turn the bytes of an XSpace (protobuf) into columns. None reads past the end of a message."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from etude.kernels.arrays import I64, U8
from etude.kernels.compile import kernel
from etude.kernels.varint import read_varint

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
NO_VALUE, NUMBER, DOUBLE, TEXT, REFERENCE = 0, 1, 2, 3, 4
"""Type of a stat's value: a number, the bits of a double, the position of a text, the id of the stat that names it."""


class Fields(NamedTuple):
    """The fields of a message in order."""

    number: I64
    wire: I64
    value: I64
    """The number of a varint; else where the content begins."""
    length: I64
    """Bytes of the content; 0 for a varint."""


class EventColumns(NamedTuple):
    """One entry per event."""

    metadata: I64
    offset_ps: I64
    duration_ps: I64
    occurrences: I64
    """For an event that represents several: how many; else 0."""
    value: I64
    """[stat, event]: of wanted stats."""
    length: I64
    """[stat, event]: bytes of a text."""
    what: U8
    """[stat, event]: NO_VALUE, NUMBER, ..."""


def event_columns(events: int, stats: int) -> EventColumns:
    """Empty columns."""
    metadata, offset, duration, occurrences = np.zeros((4, events), np.int64)
    value, length = np.zeros((2, stats, events), np.int64)
    return EventColumns(metadata, offset, duration, occurrences, value, length, np.zeros((stats, events), np.uint8))


@kernel(allocates=False)
def next_field(heap, p, end):
    """(number, wire, value or position of the content, its length, next byte); next byte < 0: bad from that position
    on."""
    key, q = read_varint(heap, p, end)
    if q < 0:
        return 0, 0, np.int64(0), np.int64(0), ~np.int64(p)
    number, wire = np.int64(key >> np.uint64(3)), np.int64(key & np.uint64(7))
    if wire == VARINT:
        value, after = read_varint(heap, q, end)
        if after < 0:
            return number, wire, np.int64(0), np.int64(0), ~np.int64(q)
        return number, wire, np.int64(value), np.int64(0), np.int64(after)
    length = np.int64(-1)
    begin = np.int64(q)
    if wire == BYTES:
        size, begin = read_varint(heap, q, end)
        if begin < 0:
            return number, wire, np.int64(0), np.int64(0), ~np.int64(q)
        length = np.int64(size)
    elif wire == FIXED64:
        length = np.int64(8)
    elif wire == FIXED32:
        length = np.int64(4)
    if length < 0 or length > end - begin:
        return number, wire, np.int64(0), np.int64(0), ~np.int64(p)
    return number, wire, np.int64(begin), length, np.int64(begin + length)


@kernel(allocates=False)
def index_fields(heap, p, end, fields):
    """Fills `fields`; returns (how many there are, possibly more than fit; where it went wrong or -1)."""
    count = 0
    while p < end:
        number, wire, value, length, after = next_field(heap, p, end)
        if after < 0:
            return count, ~after
        if count < len(fields.number):
            fields.number[count], fields.wire[count] = number, wire
            fields.value[count], fields.length[count] = value, length
        count += 1
        p = after
    return count, np.int64(-1)


@kernel(allocates=False)
def read_stat(heap, p, end):
    """(id, what, value, length of a text, where it went wrong or -1) of an XStat."""
    stat, what, found, size = np.int64(0), NO_VALUE, np.int64(0), np.int64(0)
    while p < end:
        number, wire, value, length, after = next_field(heap, p, end)
        if after < 0:
            return stat, what, found, size, ~after
        if number == 1 and wire == VARINT:
            stat = value
        elif number == 2 and wire == FIXED64:
            bits = np.uint64(0)
            for i in range(8):
                bits |= np.uint64(heap[value + i]) << np.uint64(8 * i)
            what, found = DOUBLE, np.int64(bits)
        elif (number == 3 or number == 4) and wire == VARINT:
            what, found = NUMBER, value
        elif (number == 5 or number == 6) and wire == BYTES:
            what, found, size = TEXT, value, length
        elif number == 7 and wire == VARINT:
            what, found = REFERENCE, value
        p = after
    return stat, what, found, size, np.int64(-1)


@kernel(allocates=False)
def read_events(heap, places, lengths, wanted, out, row):
    """Fills rows from `row` on of `out` from the XEvents at these positions; `wanted` are the ids of the stats to keep,
    in the order of `out.value`. Returns where it went wrong, or -1."""
    for at in range(len(places)):
        p, end = places[at], places[at] + lengths[at]
        while p < end:
            number, wire, value, length, after = next_field(heap, p, end)
            if after < 0:
                return ~after
            if wire == VARINT:
                if number == 1:
                    out.metadata[row] = value
                elif number == 2:
                    out.offset_ps[row] = value
                elif number == 3:
                    out.duration_ps[row] = value
                elif number == 5:
                    out.occurrences[row] = value
            elif number == 4 and wire == BYTES:
                stat, what, found, size, bad = read_stat(heap, value, value + length)
                if bad >= 0:
                    return bad
                for slot in range(len(wanted)):
                    if wanted[slot] == stat:
                        out.value[slot, row] = found
                        out.length[slot, row] = size
                        out.what[slot, row] = what
            p = after
        row += 1
    return np.int64(-1)
