"""The walk back along the critical path. Arrays only; every index was checked before.

A node is (at, row): a rank's position among those present, and a row of its program. Ranks of one run share times, so
columns are those of runs, one after the other; `place` says where a rank's begin. Times are on one clock.
"""

import numpy as np
from numba import njit

COMP, SEND, RECV, COLL = 5, 6, 7, 8
FRAME, SYNC = 1, 2
"""Roles: an operator that only calls others; a host call that waits for the device."""
LAUNCH = 1
"""Why of an edge."""
NODE, GAP, LAUNCHING = 0, 1, 2
"""What a segment is: a node that runs, time before a node that nothing explains, the way from a launch to a kernel."""


@njit(cache=True)
def _index(keys, key):
    """Position of a key in an ascending array, -1 where it is not."""
    i = np.searchsorted(keys, key)
    return i if i < len(keys) and keys[i] == key else -1


@njit(cache=True)
def _seen(instant, count, at, row):
    for i in range(count):
        if instant[i, 0] == at and instant[i, 1] == row:
            return True
    return False


@njit(cache=True)
def _before(at, row, cursor, place, shift, start, end, role, dep_start, dep, why, lane_prev, unknown, instant, count):
    """(row, when it let go, by a launch?) of what node (at, row) waited for longest; row -1 where it is nothing.

    Of a dependency that ends later than the cursor only its part before counts: a kernel starts while its launch is
    still on. A frame takes no time: it lets go when it starts.
    """
    base = place[at]
    best, best_ns, launched = -1, np.int64(unknown), False
    for e in range(dep_start[base + row], dep_start[base + row + 1] + 1):
        if e < dep_start[base + row + 1]:
            d = dep[e]
            by_launch = why[e] == LAUNCH
        else:
            d = lane_prev[base + row]
            by_launch = False
        if d < 0 or start[base + d] == unknown or end[base + d] == unknown:
            continue
        begin = start[base + d] + shift[at]
        ns = begin if role[base + d] == FRAME else min(end[base + d] + shift[at], cursor)
        if begin > cursor or _seen(instant, count, at, d):
            continue
        if best < 0 or ns > best_ns:
            best, best_ns, launched = d, ns, by_launch
    return best, best_ns, launched


@njit(cache=True)
def _waited_inside(at, row, cursor, place, shift, start, end, role, dep_start, dep, cpu, ended, ended_of, unknown):
    """The device node whose end released a host node that was waiting; -1 where it is none."""
    base = place[at]
    begin = start[base + row]
    best, best_ns = -1, begin
    for e in range(dep_start[base + row], dep_start[base + row + 1]):
        d = dep[e]
        if d < 0 or cpu[base + d] == 1 or start[base + d] == unknown or end[base + d] == unknown:
            continue
        if end[base + d] > best_ns and end[base + d] + shift[at] <= cursor:
            best, best_ns = d, end[base + d]
    if best < 0 and role[base + row] == SYNC:
        rows = ended[ended_of[at, 0] : ended_of[at, 1]]
        i, j = 0, len(rows)
        while i < j:  # the last device node that ended by then
            m = (i + j) // 2
            if end[base + rows[m]] + shift[at] <= cursor:
                i = m + 1
            else:
                j = m
        if i > 0 and end[base + rows[i - 1]] > begin:
            best = rows[i - 1]
    return best


@njit(cache=True)
def walk(
    at, row, first_ns, place, shift, start, end, kind, role, cpu, dep_start, dep, why, lane_prev, ended, ended_of,
    slot, group_start, group_of, use_key, use_of_key, use_at, use_side, use_group, side_start, side_rows,
    send_key, send_to, recv_key, recv_from, rendezvous, ranks, unknown,
):  # fmt: skip
    """Segments of the path from its end to its beginning: at, row, what, from, until."""
    out = np.empty((1024, 5), np.int64)
    size = 0
    instant = np.empty((1024, 2), np.int64)
    count = 0
    cursor = end[place[at] + row] + shift[at]
    while True:
        base = place[at]
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
        k = kind[base + row]
        begin = start[base + row] + shift[at]
        # whose start decided when this one could go on: the last member of a collective, the other end of a message
        if k == COLL:
            group = -1 if slot[base + row] < 0 else group_of[group_start[at] + slot[base + row]]
            u = _index(use_key, np.int64(group + 1) * ranks + at)
            if u >= 0:
                side = use_side[use_of_key[u]]
                number = _index(side_rows[side_start[side] : side_start[side + 1]], row)
                last_at, last_row, last_ns, ready_ns = at, row, begin, np.int64(unknown)
                lo, hi = np.searchsorted(use_group, group), np.searchsorted(use_group, group, side="right")
                for m in range(lo, hi):
                    other, side = use_at[m], use_side[m]
                    if number < 0 or number >= side_start[side + 1] - side_start[side]:
                        continue
                    r = side_rows[side_start[side] + number]
                    s = start[place[other] + r]
                    if s == unknown or s + shift[other] > cursor or _seen(instant, count - 1, other, r):
                        continue
                    s += shift[other]
                    if s < last_ns:
                        continue
                    _, ready, _ = _before(other, r, s, place, shift, start, end, role, dep_start, dep, why, lane_prev,
                                          unknown, instant, count)  # fmt: skip
                    if s > last_ns or ready > ready_ns:
                        last_at, last_row, last_ns, ready_ns = other, r, s, ready
                if last_at != at:
                    at, row, base, begin = last_at, last_row, place[last_at], last_ns
                    instant[count, 0], instant[count, 1] = at, row
                    count += 1
        elif k == SEND or k == RECV:
            keys, partner = (send_key, send_to) if k == SEND else (recv_key, recv_from)
            p = _index(keys, np.int64(at) << 32 | row)
            if p >= 0:
                other, r = partner[p] >> 32, np.int64(partner[p] & 0xFFFFFFFF)
                s, e = start[place[other] + r], end[place[other] + r]
                if s != unknown and e != unknown and not _seen(instant, count, other, r):
                    s, e = s + shift[other], e + shift[other]
                    if rendezvous:
                        through = s > begin
                    elif k == RECV:
                        _, ready, _ = _before(at, row, begin, place, shift, start, end, role, dep_start, dep, why,
                                              lane_prev, unknown, instant, count)  # fmt: skip
                        through = e > begin or (e == begin and ready < begin)
                    else:
                        through = False
                    if through and s <= cursor:
                        at, row, base, begin = other, r, place[other], s
                        instant[count, 0], instant[count, 1] = at, row
                        count += 1
        waited = -1
        if cpu[base + row] == 1:
            waited = _waited_inside(at, row, cursor, place, shift, start, end, role, dep_start, dep, cpu, ended,
                                    ended_of, unknown)  # fmt: skip
        if waited >= 0:
            begin = end[base + waited] + shift[at]
            out[size, 0], out[size, 1], out[size, 2], out[size, 3], out[size, 4] = at, row, NODE, begin, cursor
            size += 1
            row = waited
            if begin < cursor:
                count = 0
            cursor = begin
            continue
        begin = cursor if role[base + row] == FRAME else min(begin, cursor)
        out[size, 0], out[size, 1], out[size, 2], out[size, 3], out[size, 4] = at, row, NODE, begin, cursor
        size += 1
        if begin < cursor:
            instant[0, 0], instant[0, 1] = at, row
            count = 1
        cursor = begin
        prev, ns, launched = _before(at, row, cursor, place, shift, start, end, role, dep_start, dep, why, lane_prev,
                                     unknown, instant, count)  # fmt: skip
        if prev < 0:
            ns = min(first_ns, cursor)
        if ns < cursor:
            what = LAUNCHING if launched else GAP
            out[size, 0], out[size, 1], out[size, 2], out[size, 3], out[size, 4] = at, row, what, ns, cursor
            size += 1
            cursor = ns
            count = 0
        if prev < 0:
            return out[:size]
        row = prev
