"""Kernels of the views: arrays in, arrays out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.kernels.compile import kernel
from etude.kernels.varint import put_varint


@kernel(allocates=False)
def varints(values, out):
    """Writes non-negative numbers as varints; `out` has room for ten bytes each. Returns the bytes written."""
    p = 0
    for v in values:
        p = put_varint(out, p, v)
    return p


class TrackSlices(NamedTuple):
    """Slices of one track, properly nested."""

    start: I64
    end: I64
    name: NDArray[np.int32]
    sort: NDArray[np.uint8]
    source_id: NDArray[np.uint64]
    size_bytes: I64  # below 0 if unknown, like all below
    stream: I64
    rank: I64
    shapes: NDArray[np.int32]  # rows of the interned texts
    group: NDArray[np.int32]
    flow_start: I64  # flows of slice i: flow[flow_start[i]:flow_start[i + 1]]
    flow: I64


_BEGIN, _END = 1, 2


@kernel(allocates=False)
def _put_event(out, p, time, uuid, slices, i):
    """One TracePacket with a TrackEvent: the begin of slice i, or an end if i is -1. Lengths always take two bytes, so
    that they can be filled in afterwards: protobuf allows it."""
    out[p] = 0x0A  # Trace.packet
    packet = p + 1
    p += 3
    out[p] = 0x40  # timestamp
    p = put_varint(out, p + 1, time)
    out[p], out[p + 1] = 0x50, 1  # trusted_packet_sequence_id
    out[p + 2], out[p + 3] = 0x68, 2  # sequence_flags: needs incremental state
    out[p + 4] = 0x5A  # track_event
    event = p + 5
    p += 7
    out[p], out[p + 1], out[p + 2] = 0x48, _BEGIN if i >= 0 else _END, 0x58  # type, track_uuid
    p = put_varint(out, p + 3, uuid)
    if i >= 0:
        p = _put_about(out, p, slices, i)
    _put_length(out, event, p - event - 2)
    _put_length(out, packet, p - packet - 2)
    return p


@kernel(allocates=False)
def _put_about(out, p, slices, i):
    out[p], out[p + 1] = 0x18, slices.sort[i]  # category_iids
    out[p + 2] = 0x50  # name_iid
    p = put_varint(out, p + 3, slices.name[i] + 1)
    p = _put_annotation(out, p, 1, slices.source_id[i])
    if slices.size_bytes[i] >= 0:
        p = _put_annotation(out, p, 2, np.uint64(slices.size_bytes[i]))
    if slices.stream[i] >= 0:
        p = _put_annotation(out, p, 3, np.uint64(slices.stream[i]))
    if slices.shapes[i] >= 0:
        p = _put_text(out, p, 4, np.uint64(slices.shapes[i] + 1))
    if slices.group[i] >= 0:
        p = _put_text(out, p, 5, np.uint64(slices.group[i] + 1))
    if slices.rank[i] >= 0:
        p = _put_annotation(out, p, 6, np.uint64(slices.rank[i]))
    for k in range(slices.flow_start[i], slices.flow_start[i + 1]):
        out[p], out[p + 1] = 0xF9, 0x02  # flow_ids
        p += 2
        v = np.uint64(slices.flow[k])
        for _ in range(8):
            out[p] = np.uint8(v & np.uint64(255))
            v >>= np.uint64(8)
            p += 1
    return p


@kernel(inline=True)
def _put_length(out, p, length):
    out[p] = np.uint8(length & 127) | np.uint8(128)
    out[p + 1] = np.uint8(length >> 7)


@kernel(allocates=False)
def _put_annotation(out, p, name, value):
    out[p] = 0x22  # debug_annotations
    length = p + 1
    out[p + 2], out[p + 3] = 0x08, name  # name_iid
    out[p + 4] = 0x18  # uint_value
    p = put_varint(out, p + 5, value)
    out[length] = np.uint8(p - length - 1)
    return p


@kernel(allocates=False)
def _put_text(out, p, name, text):
    out[p] = 0x22  # debug_annotations
    length = p + 1
    out[p + 2], out[p + 3] = 0x08, name  # name_iid
    out[p + 4], out[p + 5] = 0x88, 0x01  # string_value_iid
    p = put_varint(out, p + 6, text)
    out[length] = np.uint8(p - length - 1)
    return p


@kernel
def put_track(out, uuid, slices):
    """The begin and end events of one track; returns the bytes written."""
    p = 0
    start, end = slices.start, slices.end
    below = np.empty(len(start), np.int64)
    top = np.int64(-1)
    for i in range(len(start)):
        while top >= 0 and end[top] <= start[i]:
            p = _put_event(out, p, end[top], uuid, slices, -1)
            top = below[top]
        p = _put_event(out, p, start[i], uuid, slices, i)
        below[i] = top
        top = i
    while top >= 0:
        p = _put_event(out, p, end[top], uuid, slices, -1)
        top = below[top]
    return p


class DrawnSlices(NamedTuple):
    """Slices of a page, ordered by (row, start)."""

    row: I64
    start: I64
    end: I64
    sort: I64
    name: I64
    flag: I64
    node: I64


@kernel
def coarsen(slices, least_ns, out):
    """Merges slices shorter than `least_ns` that follow one another in a row; returns how many are left.

    `out` has columns row, start, end, sort, name (-1: several), flag, count,
    busy_ns and node, or no rows, to count only. A merged slice is at most four times `least_ns` long.
    """
    row, start, end, sort, name, flag = slices.row, slices.start, slices.end, slices.sort, slices.name, slices.flag
    used = 0
    by_sort = np.zeros(8, np.int64)
    i = 0
    while i < len(row):
        first, last = i, end[i]
        busy = end[i] - start[i]
        i += 1
        if busy < least_ns:
            while (
                i < len(row)
                and row[i] == row[first]
                and end[i] - start[i] < least_ns
                and start[i] - last < least_ns
                and end[i] - start[first] <= 4 * least_ns
            ):
                last = max(last, end[i])
                busy += end[i] - start[i]
                i += 1
        if len(out) > 0:
            one, marked = name[first], flag[first]
            by_sort[:] = 0
            for k in range(first, i):
                by_sort[sort[k]] += end[k] - start[k] + 1
                marked |= flag[k]
                if name[k] != one:
                    one = -1
            out[used, 0], out[used, 1], out[used, 2] = row[first], start[first], last
            out[used, 3], out[used, 4], out[used, 5] = np.argmax(by_sort), one, marked
            out[used, 6], out[used, 7], out[used, 8] = i - first, busy, slices.node[first]
        used += 1
    return used
