"""The walk back along the critical path. Arrays only; every index was checked before.

A node is (at, row): a rank's position among those present, and a row of its program. The walk sees the columns of one
rank, without copies, and of the others only their common communication; where the path continues on another rank it
stops, and the caller passes the columns of that one. Times of `Others` are on one clock, those of `Columns` on their
rank's own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from etude.kernels.arrays import I32, I64, U8
from etude.kernels.compile import kernel
from etude.model.schema import UNKNOWN

FRAME, SYNC, HOST, SEND, RECV, COLL = 1, 2, 4, 8, 16, 32
"""Bits of a role: an operator that only calls others; a host call that waits for the device; on the host; its role for
other ranks."""
LAUNCH = 1
"""Reason of an edge."""
NODE, GAP, LAUNCHING = 0, 1, 2
"""What a segment is: a node that runs, time before a node that nothing explains, the delay from a launch to a
kernel."""
DONE, ELSEWHERE, FULL = 0, 1, 2
"""Why the walk stops: at the beginning, at a node of another rank, because the output is full."""
AT, ROW, CURSOR, SIZE, COUNT, ARRIVED = range(6)
"""Cells of the walk's state: the current node and time, segments found, nodes of this instant, and whether the node was
reached from another rank."""


class Columns(NamedTuple):
    """What the walk reads of a program and its times."""

    start: I64
    end: I64
    role: U8
    dep_start: I64
    dep: I32
    why: U8
    lane_prev: I32  # previous node on the lane
    slot: I32  # of its group; empty where all collectives are of the world
    ended: I32  # nodes of the device by their end
    call: I32  # copy calls, ascending
    copy: I32  # and the copy of each


class Meetings(NamedTuple):
    """Collectives. A member is a rank in a group; members are sorted by group. The k-th calls of all members are
    one."""

    slot_start: I64  # groups of the rank at i: slot_group[slot_start[i]:slot_start[i + 1]]
    slot_group: I32
    key: I64  # (group + 1) * ranks + at, ascending; the group -1 is the world
    member: I64  # of each key
    at: I32  # of each member
    group: I32
    clock_ns: I64
    side: I32
    first: I64  # where its calls begin in start_ns and ready_ns, which are on its own clock
    side_start: I64  # rows of the calls of a side
    side_rows: I32
    start_ns: I64
    ready_ns: I64  # when what each call waited for was done


class Partners(NamedTuple):
    """The other ends of messages. A node is at << 32 | row."""

    node: I64  # ascending
    other: I64
    start_ns: I64  # of the other end
    end_ns: I64


class JointWork(NamedTuple):
    """What ranks do together."""

    ranks: int
    meetings: Meetings
    of_send: Partners
    of_recv: Partners


class PathWalk(NamedTuple):
    """Where the walk is and what it has found."""

    place: I64
    segment: I64  # at, row, what, from, until
    instant: I64  # at, row of the nodes that it was at in the instant where it is


@kernel(allocates=False)
def _lower(keys, key):
    """The first position in an ascending array whose key is not below this one."""
    i, j = 0, len(keys)
    while i < j:
        m = (i + j) // 2
        if keys[m] < key:
            i = m + 1
        else:
            j = m
    return i


@kernel(allocates=False)
def _index(keys, key):
    """Position of a key in an ascending array, -1 where it is not."""
    i = _lower(keys, key)
    return i if i < len(keys) and keys[i] == key else -1


@kernel(allocates=False)
def _seen(instant, count, at, row):
    for i in range(count):
        if instant[i, 0] == at and instant[i, 1] == row:
            return True
    return False


@kernel(allocates=False)
def _before(columns, row, cursor, walk):
    """(row, release time, by a launch?) of what a node of this rank waited for longest; row -1 if nothing.

    A dependency that ends after the cursor counts only up to it: a kernel starts while its launch is still running. A
    frame takes no time: it releases when it starts.
    """
    start, end, dep_start = columns.start, columns.end, columns.dep_start
    at, count = walk.place[AT], walk.place[COUNT]
    best, best_ns, launched = -1, np.int64(UNKNOWN), False
    for e in range(dep_start[row], dep_start[row + 1] + 1):
        in_lane = e == dep_start[row + 1]
        d = columns.lane_prev[row] if in_lane else columns.dep[e]
        if d < 0 or start[d] == UNKNOWN or end[d] == UNKNOWN:
            continue
        ns = start[d] if columns.role[d] & FRAME else min(end[d], cursor)
        if start[d] > cursor or _seen(walk.instant, count, at, d):
            continue
        if best < 0 or ns > best_ns:
            best, best_ns, launched = d, ns, not in_lane and columns.why[e] == LAUNCH
    return best, best_ns, launched


@kernel
def ready(columns, rows):
    """When everything that each of these rows waited for was done; UNKNOWN where it waited for nothing."""
    found = np.full(len(rows), UNKNOWN, np.int64)
    nowhere = PathWalk(np.zeros(COUNT + 1, np.int64), np.empty((0, 5), np.int64), np.empty((0, 2), np.int64))
    for i in range(len(rows)):
        start = columns.start[rows[i]]
        if start != UNKNOWN:
            found[i] = _before(columns, rows[i], start, nowhere)[1]
    return found


@kernel(allocates=False)
def last_ended(columns, time):
    """The device node that was the last to end by a time; -1 where none had."""
    rows = columns.ended
    i, j = 0, len(rows)
    while i < j:
        m = (i + j) // 2
        if columns.end[rows[m]] <= time:
            i = m + 1
        else:
            j = m
    return rows[i - 1] if i else np.int32(-1)


@kernel(allocates=False)
def _held(columns, row):
    """Until when what it waited for besides its launch held a device node up, or its lane did."""
    before = columns.lane_prev[row]
    until = np.int64(UNKNOWN) if before < 0 else columns.end[before]
    for e in range(columns.dep_start[row], columns.dep_start[row + 1]):
        d = columns.dep[e]
        if d >= 0 and columns.why[e] != LAUNCH and columns.end[d] != UNKNOWN:
            until = max(until, columns.end[d])
    return until


@kernel(allocates=False)
def waited_inside(columns, row, cursor):
    """The device node whose end released a host node that was waiting; -1 where it is none."""
    start, end, role = columns.start, columns.end, columns.role
    begin = start[row]
    best, best_ns = -1, begin
    for e in range(columns.dep_start[row], columns.dep_start[row + 1]):
        d = columns.dep[e]
        if d < 0 or role[d] & HOST or start[d] == UNKNOWN or end[d] == UNKNOWN:
            continue
        if end[d] > best_ns and end[d] <= cursor:
            best, best_ns = d, end[d]
    if best >= 0:
        return best
    which = _index(columns.call, row)
    if which >= 0:
        c = columns.copy[which]
        # A copy call that returned when its copy was done; clocks of host and device differ by a little. Until the copy
        # begins the call waits only if the device had something else to do.
        slack = (end[row] - begin) // 20
        on = begin < start[c] and start[c] <= cursor and end[c] <= cursor + slack
        if on and (start[c] < cursor or _held(columns, c) > begin):
            return c
    if role[row] & SYNC:
        last = last_ended(columns, cursor)
        if last >= 0 and end[last] > begin:
            best = last
    return best


@kernel(allocates=False)
def _last_member(columns, row, begin, meetings, ranks, walk):
    """(at, row, start) of the member of a collective that came last; of several, the one that waited for other things
    longest."""
    at, cursor, count = walk.place[AT], walk.place[CURSOR], walk.place[COUNT]
    slot = columns.slot[row] if len(columns.slot) else np.int32(-1)
    group = np.int64(-1) if slot < 0 else np.int64(meetings.slot_group[meetings.slot_start[at] + slot])
    last_at, last_row, last_ns, ready_ns = at, row, begin, np.int64(UNKNOWN)
    k = _index(meetings.key, (group + 1) * ranks + at)
    if k < 0:
        return last_at, last_row, last_ns
    side_start = meetings.side_start
    side = meetings.side[meetings.member[k]]
    number = _index(meetings.side_rows[side_start[side] : side_start[side + 1]], row)
    for m in range(_lower(meetings.group, group), _lower(meetings.group, group + 1)):
        side = meetings.side[m]
        if number < 0 or number >= side_start[side + 1] - side_start[side]:
            continue
        call = meetings.first[m] + number
        s, r = meetings.start_ns[call], np.int64(meetings.side_rows[side_start[side] + number])
        if s == UNKNOWN or s + meetings.clock_ns[m] > cursor or _seen(walk.instant, count - 1, meetings.at[m], r):
            continue
        s += meetings.clock_ns[m]
        since = meetings.ready_ns[call]
        if since != UNKNOWN:
            since += meetings.clock_ns[m]
        if s > last_ns or (s == last_ns and since > ready_ns):
            last_at, last_row, last_ns, ready_ns = np.int64(meetings.at[m]), r, s, since
    return last_at, last_row, last_ns


@kernel(allocates=False)
def _other_end(columns, clock_ns, row, begin, others, rendezvous, walk):
    """(at, row, start) of the other end of a message if the path goes on there, else as given."""
    at, cursor, count = walk.place[AT], walk.place[CURSOR], walk.place[COUNT]
    is_recv = columns.role[row] & RECV != 0
    partners = others.of_recv if is_recv else others.of_send
    p = _index(partners.node, at << 32 | row)
    if p < 0:
        return at, row, begin
    other, r = partners.other[p] >> 32, partners.other[p] & 0xFFFFFFFF
    s, e = partners.start_ns[p], partners.end_ns[p]
    if s == UNKNOWN or e == UNKNOWN or s > cursor or _seen(walk.instant, count, other, r):
        return at, row, begin
    if rendezvous:
        through = s > begin
    elif is_recv:
        since = _before(columns, row, begin - clock_ns, walk)[1]
        through = e > begin or (e == begin and (since == UNKNOWN or since + clock_ns < begin))
    else:
        through = False
    return (other, r, s) if through else (at, row, begin)


@kernel(allocates=False)
def _add(walk, row, what, begin, end):
    size = walk.place[SIZE]
    walk.segment[size, 0], walk.segment[size, 1], walk.segment[size, 2] = walk.place[AT], row, what
    walk.segment[size, 3], walk.segment[size, 4] = begin, end
    walk.place[SIZE] = size + 1


@kernel(allocates=False)
def _visit(walk, at, row):
    """The walk is at this node."""
    count = walk.place[COUNT]
    walk.instant[count, 0], walk.instant[count, 1] = at, row
    walk.place[AT], walk.place[ROW], walk.place[COUNT] = at, row, count + 1


@kernel(allocates=False)
def _step(columns, clock_ns, row, first_ns, walk):
    """Over the node where the walk is, and the wait before it. Returns the row before, -1 at the beginning."""
    place, role = walk.place, columns.role[row]
    cursor = place[CURSOR]
    waited = waited_inside(columns, row, cursor - clock_ns) if role & HOST else -1
    if waited >= 0:
        begin = min(columns.end[waited] + clock_ns, cursor)
        _add(walk, row, NODE, begin, cursor)
        if begin < cursor:
            place[COUNT] = 0
        place[CURSOR] = begin
        return waited
    begin = cursor if role & FRAME else min(columns.start[row] + clock_ns, cursor)
    _add(walk, row, NODE, begin, cursor)
    if begin < cursor:
        place[COUNT] = 0
        _visit(walk, place[AT], row)
    place[CURSOR] = begin
    prev, since, launched = _before(columns, row, begin - clock_ns, walk)
    ns = since + clock_ns if prev >= 0 else min(first_ns, begin)
    if ns < begin and not launched and not role & HOST:
        # Nothing recorded explains the wait: a stream waited for another one, and no event says so.
        other = last_ended(columns, begin - clock_ns)
        if (
            other >= 0
            and columns.end[other] + clock_ns > ns
            and not _seen(walk.instant, place[COUNT], place[AT], other)
        ):
            prev, ns = other, columns.end[other] + clock_ns
    if ns < begin:
        _add(walk, row, LAUNCHING if launched else GAP, ns, begin)
        place[CURSOR] = ns
        place[COUNT] = 0
    return prev


@kernel(allocates=False)
def walk_rank(columns, clock_ns, others, first_ns, rendezvous, walk):
    """Walks on at the rank where the walk is, whose columns and clock these are; returns why it stops."""
    place = walk.place
    while True:
        if place[SIZE] + 2 > len(walk.segment) or place[COUNT] + 3 > len(walk.instant):
            return FULL
        row = place[ROW]
        if not place[ARRIVED]:
            at = place[AT]
            _visit(walk, at, row)
            begin = columns.start[row] + clock_ns
            if columns.role[row] & COLL:
                to, row, begin = _last_member(columns, row, begin, others.meetings, others.ranks, walk)
            elif columns.role[row] & (SEND | RECV):
                to, row, begin = _other_end(columns, clock_ns, row, begin, others, rendezvous, walk)
            else:
                to = at
            if to != at or row != place[ROW]:
                _visit(walk, to, row)
            if to != at:
                place[ARRIVED] = 1
                return ELSEWHERE
        place[ARRIVED] = 0
        row = _step(columns, clock_ns, row, first_ns, walk)
        if row < 0:
            return DONE
        place[ROW] = row
