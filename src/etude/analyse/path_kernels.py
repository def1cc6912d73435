"""The walk back along the critical path. Arrays only; every index was checked before.

A node is (at, row): a rank's position among those present, and a row of its program. Ranks of one run share its
columns. Those of all runs are not put one behind the other, which would be a copy of the whole job: `columns` says
where in memory each of them lies, and the caller keeps them alive. Times are on one clock.
"""

import numpy as np
from numba import carray
from numba.core import cgutils, types
from numba.extending import intrinsic

from etude.kernels.compile import kernel

FRAME, SYNC, HOST, SEND, RECV, COLL = 1, 2, 4, 8, 16, 32
"""Bits of a role: an operator that only calls others; a host call that waits for the device; on the host; what it is to
other ranks."""
LAUNCH = 1
"""Why of an edge."""
NODE, GAP, LAUNCHING = 0, 1, 2
"""What a segment is: a node that runs, time before a node that nothing explains, the way from a launch to a kernel."""
NODES, START, END, ROLE, DEP_START, DEP, WHY, LANE_PREV, SLOT, ENDED, NUM_ENDED, CALL, COPY, NUM_COPIES = range(14)
"""Of each run in `columns`: its nodes; addresses; and lengths of what is not as long as it has nodes. No SLOT is that
of the world."""


@intrinsic
def _pointer(typing, address):
    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@kernel
def _i64(columns, run, which, size):
    return carray(_pointer(columns[run, which]), (size,), np.int64)


@kernel
def _i32(columns, run, which, size):
    return carray(_pointer(columns[run, which]), (size,), np.int32)


@kernel
def _u8(columns, run, which, size):
    return carray(_pointer(columns[run, which]), (size,), np.uint8)


@kernel
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


@kernel
def _index(keys, key):
    """Position of a key in an ascending array, -1 where it is not."""
    i = _lower(keys, key)
    return i if i < len(keys) and keys[i] == key else -1


@kernel
def _seen(instant, count, at, row):
    for i in range(count):
        if instant[i, 0] == at and instant[i, 1] == row:
            return True
    return False


@kernel
def _before(at, row, cursor, run_of, shift, columns, unknown, instant, count):
    """(row, when it let go, by a launch?) of what node (at, row) waited for longest; row -1 where it is nothing.

    Of a dependency that ends later than the cursor only its part before counts: a kernel starts while its launch is
    still on. A frame takes no time: it lets go when it starts.
    """
    run = run_of[at]
    nodes = columns[run, NODES]
    start, end, role = _i64(columns, run, START, nodes), _i64(columns, run, END, nodes), _u8(columns, run, ROLE, nodes)
    dep_start = _i64(columns, run, DEP_START, nodes + 1)
    edges = dep_start[nodes]
    dep, why = _i32(columns, run, DEP, edges), _u8(columns, run, WHY, edges)
    best, best_ns, launched = -1, np.int64(unknown), False
    for e in range(dep_start[row], dep_start[row + 1] + 1):
        if e < dep_start[row + 1]:
            d = dep[e]
            by_launch = why[e] == LAUNCH
        else:
            d = _i32(columns, run, LANE_PREV, nodes)[row]
            by_launch = False
        if d < 0 or start[d] == unknown or end[d] == unknown:
            continue
        begin = start[d] + shift[at]
        ns = begin if role[d] & FRAME else min(end[d] + shift[at], cursor)
        if begin > cursor or _seen(instant, count, at, d):
            continue
        if best < 0 or ns > best_ns:
            best, best_ns, launched = d, ns, by_launch
    return best, best_ns, launched


@kernel
def _last_ended(at, time, run_of, shift, columns):
    """(The device node of a rank that was the last to end by a time, its end); row -1 where none had."""
    run = run_of[at]
    end = _i64(columns, run, END, columns[run, NODES])
    rows = _i32(columns, run, ENDED, columns[run, NUM_ENDED])
    i, j = 0, len(rows)
    while i < j:
        m = (i + j) // 2
        if end[rows[m]] + shift[at] <= time:
            i = m + 1
        else:
            j = m
    if i == 0:
        return np.int32(-1), np.int64(0)
    return rows[i - 1], end[rows[i - 1]]


@kernel
def _held(at, row, run_of, columns, unknown):
    """Until when what it waited for beside its launch held a device node up, or its lane did."""
    run = run_of[at]
    nodes = columns[run, NODES]
    end = _i64(columns, run, END, nodes)
    dep_start = _i64(columns, run, DEP_START, nodes + 1)
    edges = dep_start[nodes]
    dep, why = _i32(columns, run, DEP, edges), _u8(columns, run, WHY, edges)
    before = _i32(columns, run, LANE_PREV, nodes)[row]
    until = np.int64(unknown) if before < 0 else end[before]
    for e in range(dep_start[row], dep_start[row + 1]):
        if dep[e] >= 0 and why[e] != LAUNCH and end[dep[e]] != unknown:
            until = max(until, end[dep[e]])
    return until


@kernel
def _waited_inside(at, row, cursor, run_of, shift, columns, unknown):
    """The device node whose end released a host node that was waiting; -1 where it is none."""
    run = run_of[at]
    nodes = columns[run, NODES]
    start, end, role = _i64(columns, run, START, nodes), _i64(columns, run, END, nodes), _u8(columns, run, ROLE, nodes)
    dep_start = _i64(columns, run, DEP_START, nodes + 1)
    dep = _i32(columns, run, DEP, dep_start[nodes])
    begin = start[row]
    best, best_ns = -1, begin
    for e in range(dep_start[row], dep_start[row + 1]):
        d = dep[e]
        if d < 0 or role[d] & HOST or start[d] == unknown or end[d] == unknown:
            continue
        if end[d] > best_ns and end[d] + shift[at] <= cursor:
            best, best_ns = d, end[d]
    if best >= 0:
        return best
    copies = columns[run, NUM_COPIES]
    which = _index(_i32(columns, run, CALL, copies), row)
    if which >= 0:
        c = _i32(columns, run, COPY, copies)[which]
        # A copy call that returned when its copy was done; clocks of host and device differ by a little. Until the copy
        # begins the call waits only if the device had something else to do.
        slack = (end[row] - begin) // 20
        on = begin < start[c] and start[c] + shift[at] <= cursor and end[c] + shift[at] <= cursor + slack
        if on and (start[c] + shift[at] < cursor or _held(at, c, run_of, columns, unknown) > begin):
            return c
    if role[row] & SYNC:
        last, ended = _last_ended(at, cursor, run_of, shift, columns)
        if last >= 0 and ended > begin:
            best = last
    return best


@kernel
def _time(which, at, row, run_of, columns):
    run = run_of[at]
    return _i64(columns, run, which, columns[run, NODES])[row]


@kernel
def _role(at, row, run_of, columns):
    run = run_of[at]
    return _u8(columns, run, ROLE, columns[run, NODES])[row]


@kernel
def _group(at, row, run_of, columns, group_start, group_of):
    """The group of a collective; -1 is the world."""
    run = run_of[at]
    if columns[run, SLOT] == 0:
        return -1
    slot = _i32(columns, run, SLOT, columns[run, NODES])[row]
    return -1 if slot < 0 else group_of[group_start[at] + slot]


@kernel
def walk(
    at, row, first_ns, run_of, shift, columns, group_start, group_of, use_key, use_of_key, use_at, use_side, use_group,
    side_start, side_rows, send_key, send_to, recv_key, recv_from, rendezvous, ranks, unknown,
):  # fmt: skip
    """Segments of the path from its end to its beginning: at, row, what, from, until."""
    out = np.empty((1024, 5), np.int64)
    size = 0
    instant = np.empty((1024, 2), np.int64)
    count = 0
    cursor = _time(END, at, row, run_of, columns) + shift[at]
    while True:
        if size + 4 > len(out):
            grown = np.empty((2 * len(out), 5), np.int64)
            grown[:size] = out[:size]
            out = grown
        if count + 2 > len(instant):
            more = np.empty((2 * len(instant), 2), np.int64)
            more[:count] = instant[:count]
            instant = more
        instant[count, 0], instant[count, 1] = at, row
        count += 1
        k = _role(at, row, run_of, columns)
        begin = _time(START, at, row, run_of, columns) + shift[at]
        # whose start decided when this one could go on: the last member of a collective, the other end of a message
        if k & COLL:
            group = _group(at, row, run_of, columns, group_start, group_of)
            u = _index(use_key, np.int64(group + 1) * ranks + at)
            if u >= 0:
                side = use_side[use_of_key[u]]
                number = _index(side_rows[side_start[side] : side_start[side + 1]], row)
                last_at, last_row, last_ns, ready_ns = at, row, begin, np.int64(unknown)
                lo, hi = _lower(use_group, group), _lower(use_group, group + 1)
                for m in range(lo, hi):
                    other, side = use_at[m], use_side[m]
                    if number < 0 or number >= side_start[side + 1] - side_start[side]:
                        continue
                    r = side_rows[side_start[side] + number]
                    s = _time(START, other, r, run_of, columns)
                    if s == unknown or s + shift[other] > cursor or _seen(instant, count - 1, other, r):
                        continue
                    s += shift[other]
                    if s < last_ns:
                        continue
                    _, ready, _ = _before(other, r, s, run_of, shift, columns, unknown, instant, count)
                    if s > last_ns or ready > ready_ns:
                        last_at, last_row, last_ns, ready_ns = other, r, s, ready
                if last_at != at:
                    at, row, begin = last_at, last_row, last_ns
                    instant[count, 0], instant[count, 1] = at, row
                    count += 1
        elif k & (SEND | RECV):
            keys, partner = (send_key, send_to) if k & SEND else (recv_key, recv_from)
            p = _index(keys, np.int64(at) << 32 | row)
            if p >= 0:
                other, r = partner[p] >> 32, np.int64(partner[p] & 0xFFFFFFFF)
                s, e = _time(START, other, r, run_of, columns), _time(END, other, r, run_of, columns)
                if s != unknown and e != unknown and not _seen(instant, count, other, r):
                    s, e = s + shift[other], e + shift[other]
                    if rendezvous:
                        through = s > begin
                    elif k & RECV:
                        _, ready, _ = _before(at, row, begin, run_of, shift, columns, unknown, instant, count)
                        through = e > begin or (e == begin and ready < begin)
                    else:
                        through = False
                    if through and s <= cursor:
                        at, row, begin = other, r, s
                        instant[count, 0], instant[count, 1] = at, row
                        count += 1
        here = _role(at, row, run_of, columns)
        waited = _waited_inside(at, row, cursor, run_of, shift, columns, unknown) if here & HOST else -1
        if waited >= 0:
            begin = min(_time(END, at, waited, run_of, columns) + shift[at], cursor)
            out[size, 0], out[size, 1], out[size, 2], out[size, 3], out[size, 4] = at, row, NODE, begin, cursor
            size += 1
            row = waited
            if begin < cursor:
                count = 0
            cursor = begin
            continue
        begin = cursor if here & FRAME else min(begin, cursor)
        out[size, 0], out[size, 1], out[size, 2], out[size, 3], out[size, 4] = at, row, NODE, begin, cursor
        size += 1
        if begin < cursor:
            instant[0, 0], instant[0, 1] = at, row
            count = 1
        cursor = begin
        prev, ns, launched = _before(at, row, cursor, run_of, shift, columns, unknown, instant, count)
        if prev < 0:
            ns = min(first_ns, cursor)
        if ns < cursor and not launched and not here & HOST:
            # Nothing recorded explains the wait: a stream waited for another one, and no event says so.
            other, ended = _last_ended(at, cursor, run_of, shift, columns)
            if other >= 0 and ended + shift[at] > ns and not _seen(instant, count, at, other):
                prev, ns = other, ended + shift[at]
        if ns < cursor:
            what = LAUNCHING if launched else GAP
            out[size, 0], out[size, 1], out[size, 2], out[size, 3], out[size, 4] = at, row, what, ns, cursor
            size += 1
            cursor = ns
            count = 0
        if prev < 0:
            return out[:size]
        row = prev
