"""Kernels of the views: arrays in, arrays out."""

import numpy as np

from etude.kernels.compile import kernel
from etude.kernels.varint import put_varint

MAX_TRACKS = 256
"""Tracks of one lane. What overlaps more than this many slices lies in the last one, over others."""


@kernel
def nest(lane, start, end, track, depth):
    """Fills the track and the depth of each slice; slices are ordered by (lane, start, longest first).

    A slice goes to the first track of its lane where the slice that is open, if any, holds all of it.
    """
    below = np.empty(len(lane), np.int64)
    top = np.full(MAX_TRACKS, -1, np.int64)
    used = 0
    for i in range(len(lane)):
        if i == 0 or lane[i] != lane[i - 1]:
            top[:used] = -1
            used = 0
        t = 0
        while t < used:
            while top[t] >= 0 and end[top[t]] <= start[i]:
                top[t] = below[top[t]]
            if top[t] < 0 or end[top[t]] >= end[i]:
                break
            t += 1
        if t == MAX_TRACKS:
            t -= 1
        used = max(used, t + 1)
        below[i] = top[t]
        track[i] = t
        depth[i] = depth[top[t]] + 1 if top[t] >= 0 else 0
        top[t] = i
    return used


@kernel
def varints(values, out):
    """Writes non-negative numbers as varints; `out` has room for ten bytes each. Returns the bytes written."""
    p = 0
    for v in values:
        p = put_varint(out, p, v)
    return p


@kernel
def put_event(out, p, time, kind, uuid, name, sort, source_id, size_bytes, flows):
    """One TracePacket with a TrackEvent. Lengths take two bytes where one would do for most, so that they can be
    written once what they count has been: protobuf allows it."""
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
    out[p], out[p + 1], out[p + 2] = 0x48, kind, 0x58  # type, track_uuid
    p = put_varint(out, p + 3, uuid)
    if kind == 1:
        out[p], out[p + 1] = 0x18, sort  # category_iids
        out[p + 2] = 0x50  # name_iid
        p = put_varint(out, p + 3, name + 1)
        p = _put_annotation(out, p, 1, source_id)
        if size_bytes >= 0:
            p = _put_annotation(out, p, 2, np.uint64(size_bytes))
        for flow in flows:
            out[p], out[p + 1] = 0xF9, 0x02  # flow_ids
            p += 2
            v = np.uint64(flow)
            for _ in range(8):
                out[p] = np.uint8(v & np.uint64(255))
                v >>= np.uint64(8)
                p += 1
    _put_length(out, event, p - event - 2)
    _put_length(out, packet, p - packet - 2)
    return p


@kernel(inline=True)
def _put_length(out, p, length):
    out[p] = np.uint8(length & 127) | np.uint8(128)
    out[p + 1] = np.uint8(length >> 7)


@kernel
def _put_annotation(out, p, name, value):
    out[p] = 0x22  # debug_annotations
    length = p + 1
    out[p + 2], out[p + 3] = 0x08, name  # name_iid
    out[p + 4] = 0x18  # uint_value
    p = put_varint(out, p + 5, value)
    out[length] = np.uint8(p - length - 1)
    return p


@kernel
def put_track(out, start, end, uuid, name, sort, source_id, size_bytes, flow_start, flow):
    """The begin and end events of one track, properly nested; returns the bytes written."""
    p = 0
    below = np.empty(len(start), np.int64)
    top = np.int64(-1)
    none = flow[:0]
    for i in range(len(start)):
        while top >= 0 and end[top] <= start[i]:
            p = put_event(out, p, end[top], 2, uuid, 0, 0, np.uint64(0), -1, none)
            top = below[top]
        p = put_event(out, p, start[i], 1, uuid, name[i], sort[i], source_id[i], size_bytes[i],
                      flow[flow_start[i] : flow_start[i + 1]])  # fmt: skip
        below[i] = top
        top = i
    while top >= 0:
        p = put_event(out, p, end[top], 2, uuid, 0, 0, np.uint64(0), -1, none)
        top = below[top]
    return p


@kernel
def coarsen(row, start, end, sort, name, flag, node, least_ns, out):
    """Merges slices shorter than `least_ns` that follow one another in a row; returns how many are left.

    Slices are ordered by (row, start). `out` has columns row, start, end, sort, name (-1: several), flag, count,
    busy_ns and node, or no rows, to count only. A merged slice is at most four times `least_ns` long.
    """
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
            out[used, 6], out[used, 7], out[used, 8] = i - first, busy, node[first]
        used += 1
    return used
