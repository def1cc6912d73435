"""Network model `flow`: all live flows share the links of their ways max-min fairly.

A flow's rate is the largest that leaves no slower flow on a full link worse off: every flow has a bottleneck, a full
link on which nobody is faster. Rates change when a flow begins or ends; times are whole ns (a flow ends at the next),
and what falls into one ns is worked out once. A flow drains at its rate, then lands after the latency of its way.

Only flows that can feel a change are worked out again: those that began, those whose bottleneck lost a flow, then any
other whose bottleneck no longer is one. When nobody is left to add, all conditions above hold, so the rates are those
that a full computation gives.
"""

import numpy as np
from numba import njit

from etude.simulate.network.events import (
    allocate,
    finish_transfer,
    in_order,
    join_member,
    member_done,
    pop_event,
    schedule_event,
)

NEVER = np.int64(2**62)
SEQ, HEAP, TOP, READY, DONE, FLOWS, DIRTY, NEW, STAMP, LIVE, NOW = range(11)
START, MOVE, LAND = 0, 1, 2
CLOSE = 1e-9
"""Relative difference below which two rates are the same."""


@njit(cache=True)
def _inject(slot, now, size, path0, reg, heap, pos, when, seq, phase, rest, since, speed, neck, path_start, path_link,
            latency, link_bytes, link_busy, active, busy_since, head, after, before, hops_max, fresh, live, live_at,
            lag):  # fmt: skip
    """The flow begins: it is on all links of its way until it has drained."""
    begin, end = path_start[path0], path_start[path0 + 1]
    total = np.int64(0)
    for k in range(begin, end):
        total += latency[path_link[k]]
    lag[slot] = total
    if size == 0 or begin == end:
        phase[slot] = LAND
        schedule_event(slot, now + total, reg, heap, pos, when, seq)
        return
    phase[slot] = MOVE
    rest[slot] = size
    since[slot] = now
    speed[slot] = 0.0
    neck[slot] = -1
    for k in range(begin, end):
        link = path_link[k]
        link_bytes[link] += size
        if active[link] == 0:
            busy_since[link] = now
        active[link] += 1
        entry = slot * hops_max + k - begin
        after[entry] = head[link]
        before[entry] = -1
        if head[link] >= 0:
            before[head[link]] = entry
        head[link] = entry
    fresh[reg[NEW]] = slot
    reg[NEW] += 1
    live[reg[FLOWS]] = slot
    live_at[slot] = reg[FLOWS]
    reg[FLOWS] += 1


@njit(cache=True)
def _drained(slot, now, path0, reg, speed, path_start, path_link, link_busy, active, busy_since, head, after, before,
             hops_max, load, dirty, is_dirty, live, live_at):  # fmt: skip
    begin = path_start[path0]
    for k in range(begin, path_start[path0 + 1]):
        link = path_link[k]
        entry = slot * hops_max + k - begin
        if before[entry] >= 0:
            after[before[entry]] = after[entry]
        else:
            head[link] = after[entry]
        if after[entry] >= 0:
            before[after[entry]] = before[entry]
        active[link] -= 1
        load[link] -= speed[slot]
        if active[link] == 0:
            load[link] = 0.0
            link_busy[link] += now - busy_since[link]
        if not is_dirty[link]:
            is_dirty[link] = True
            dirty[reg[DIRTY]] = link
            reg[DIRTY] += 1
    reg[FLOWS] -= 1
    last = live[reg[FLOWS]]
    live[live_at[slot]] = last
    live_at[last] = live_at[slot]


@njit(cache=True)
def _take(slot, chosen, count, mark, stamp):
    if mark[slot] != stamp:
        mark[slot] = stamp
        chosen[count] = slot
        return count + 1
    return count


@njit(cache=True)
def _fill(chosen, count, mark, stamp, slot_op, op_base, op_path0, path_start, path_link, rate, load, speed, new_speed,
          new_neck, fixed, head, after, hops_max, free, flows, touched, link_mark, level, heap_link, heap_key):  # fmt: skip
    """Water-filling of the chosen flows over what the others leave. Returns how many links they touch."""
    links = 0
    for i in range(count):
        slot = chosen[i]
        fixed[slot] = False
        op = slot_op[slot]
        path0 = op_path0[op] + slot - op_base[op]
        for k in range(path_start[path0], path_start[path0 + 1]):
            link = path_link[k]
            if link_mark[link] != stamp:
                link_mark[link] = stamp
                touched[links] = link
                links += 1
                free[link] = rate[link] - load[link]
                flows[link] = 0
                level[link] = -1.0
            free[link] += speed[slot]
            flows[link] += 1
    size = 0
    for i in range(links):
        link = touched[i]
        key = max(free[link], 0.0) / flows[link]
        at = size
        size += 1
        while at > 0 and heap_key[(at - 1) >> 1] > key:
            heap_key[at], heap_link[at] = heap_key[(at - 1) >> 1], heap_link[(at - 1) >> 1]
            at = (at - 1) >> 1
        heap_key[at], heap_link[at] = key, link
    while size > 0:
        link = heap_link[0]
        old = heap_key[0]
        share = 0.0
        stale = False
        if flows[link] > 0:
            share = max(free[link], 0.0) / flows[link]
            stale = share > old
        if flows[link] > 0 and not stale:
            level[link] = share
            entry = head[link]
            while entry >= 0:
                slot = entry // hops_max
                entry = after[entry]
                if mark[slot] != stamp or fixed[slot]:
                    continue
                fixed[slot] = True
                new_speed[slot] = share
                new_neck[slot] = link
                op = slot_op[slot]
                path0 = op_path0[op] + slot - op_base[op]
                for k in range(path_start[path0], path_start[path0 + 1]):
                    free[path_link[k]] -= share
                    flows[path_link[k]] -= 1
        if stale:
            key, item = share, link
        else:
            size -= 1
            if size == 0:
                break
            key, item = heap_key[size], heap_link[size]
        at = 0
        while True:
            down = 2 * at + 1
            if down >= size:
                break
            if down + 1 < size and heap_key[down + 1] < heap_key[down]:
                down += 1
            if heap_key[down] >= key:
                break
            heap_key[at], heap_link[at] = heap_key[down], heap_link[down]
            at = down
        heap_key[at], heap_link[at] = key, item
    return links


@njit(cache=True)
def _add_disturbed(chosen, count, links, mark, stamp, rate, free, touched, level, head, after, hops_max, speed,
                   new_speed, neck):  # fmt: skip
    """Flows outside whose bottleneck no longer is one, or who are faster than a link's new share allows."""
    before = count
    for i in range(links):
        link = touched[i]
        full = free[link] <= CLOSE * rate[link]
        fastest = 0.0
        entry = head[link]
        outside = False
        while entry >= 0:
            slot = entry // hops_max
            entry = after[entry]
            if mark[slot] == stamp:
                fastest = max(fastest, new_speed[slot])
            else:
                outside = True
        if not outside:
            continue
        entry = head[link]
        while entry >= 0:
            slot = entry // hops_max
            entry = after[entry]
            if mark[slot] == stamp:
                continue
            if neck[slot] == link and (not full or fastest > speed[slot] * (1 + CLOSE)):
                count = _take(slot, chosen, count, mark, stamp)
            elif level[link] >= 0 and speed[slot] > level[link] * (1 + CLOSE):
                count = _take(slot, chosen, count, mark, stamp)
    return count - before


@njit(cache=True)
def settle(state, now):
    """Works out the rates again if flows began or ended since."""
    (reg, heap, pos, when, seq, phase, waits, slot_op, ready, done_op, done_member, op_shape, op_base, op_left,
     op_members, op_path0, op_bytes0, shape_row, src, dst, delay, has_deps, put, wait0, left0, succ_start, succ,
     touch_start, touch, path_start, path_link, t_bytes, rate, latency, link_bytes, link_busy, free_head, free_next,
     key, options, reduce_rate, rest, speed, new_speed, since, neck, new_neck, mark, fixed, chosen, fresh, live, live_at,
     lag, after, before, active, busy_since, head, load, free, flows, touched, link_mark, level, heap_link, heap_key,
     dirty, is_dirty) = state  # fmt: skip
    if reg[NEW] == 0 and reg[DIRTY] == 0:
        return
    hops_max = options[2]
    reg[STAMP] += 1
    stamp = reg[STAMP]
    count = 0
    for i in range(reg[NEW]):
        count = _take(fresh[i], chosen, count, mark, stamp)
    for i in range(reg[DIRTY]):
        link = dirty[i]
        is_dirty[link] = False
        entry = head[link]
        while entry >= 0:
            slot = entry // hops_max
            entry = after[entry]
            if neck[slot] == link:
                count = _take(slot, chosen, count, mark, stamp)
    reg[NEW] = 0
    reg[DIRTY] = 0
    rounds = 0
    while count > 0:
        rounds += 1
        if count < reg[FLOWS] and (2 * count > reg[FLOWS] or rounds > 12):
            for i in range(reg[FLOWS]):
                count = _take(live[i], chosen, count, mark, stamp)
        # Marks of links are of this round, those of flows of this call.
        links = _fill(
            chosen, count, mark, stamp, slot_op, op_base, op_path0, path_start, path_link, rate, load, speed,
            new_speed, new_neck, fixed, head, after, hops_max, free, flows, touched, link_mark, level, heap_link,
            heap_key,
        )  # fmt: skip
        more = 0
        if count < reg[FLOWS]:
            more = _add_disturbed(
                chosen, count, links, mark, stamp, rate, free, touched, level, head, after, hops_max, speed,
                new_speed, neck,
            )  # fmt: skip
        count += more
        if more == 0:
            break
        for i in range(links):
            link_mark[touched[i]] = stamp - 1
    for i in range(count):
        slot = chosen[i]
        neck[slot] = new_neck[slot]
        change = new_speed[slot] - speed[slot]
        if abs(change) <= 1e-13 * new_speed[slot]:
            continue
        op = slot_op[slot]
        path0 = op_path0[op] + slot - op_base[op]
        for k in range(path_start[path0], path_start[path0 + 1]):
            load[path_link[k]] += change
        rest[slot] = max(rest[slot] - speed[slot] * (now - since[slot]), 0.0)
        since[slot] = now
        speed[slot] = new_speed[slot]
        left = np.ceil(rest[slot] / speed[slot] - 1e-6) if speed[slot] > 0 else 4e18
        end = now + max(np.int64(min(left, 4e18)), 0)
        if pos[slot] < 0 or when[slot] != end:
            schedule_event(slot, end, reg, heap, pos, when, seq)


@njit(cache=True)
def start_ready(state, now):
    """Starts all that became ready in this instant, ordered by operation and transfer."""
    (reg, heap, pos, when, seq, phase, waits, slot_op, ready, done_op, done_member, op_shape, op_base, op_left,
     op_members, op_path0, op_bytes0, shape_row, src, dst, delay, has_deps, put, wait0, left0, succ_start, succ,
     touch_start, touch, path_start, path_link, t_bytes, rate, latency, link_bytes, link_busy, free_head, free_next,
     key, options, reduce_rate, rest, speed, new_speed, since, neck, new_neck, mark, fixed, chosen, fresh, live, live_at,
     lag, after, before, active, busy_since, head, load, free, flows, touched, link_mark, level, heap_link, heap_key,
     dirty, is_dirty) = state  # fmt: skip
    while reg[READY] > 0:
        in_order(reg, ready, slot_op, key)
        count, reg[READY] = reg[READY], 0
        for i in range(count):
            key[i] = ready[i]
        for i in range(count):
            slot = key[i]
            op = slot_op[slot]
            t = slot - op_base[op]
            row = shape_row[op_shape[op], 0] + t
            if src[row] == dst[row] and delay[row] == 0:
                finish_transfer(
                    slot, reg, op_shape, op_base, op_left, op_members, shape_row, src, dst, succ_start, succ, waits,
                    slot_op, ready, free_head, free_next, done_op, done_member,
                )  # fmt: skip
            elif src[row] == dst[row]:
                phase[slot] = LAND + 1
                schedule_event(slot, now + delay[row], reg, heap, pos, when, seq)
            elif options[1] > 0 and not has_deps[row]:
                phase[slot] = START
                schedule_event(slot, now + options[1], reg, heap, pos, when, seq)
            else:
                _inject(
                    slot, now, t_bytes[op_bytes0[op] + t], op_path0[op] + t, reg, heap, pos, when, seq, phase, rest,
                    since, speed, neck, path_start, path_link, latency, link_bytes, link_busy, active, busy_since,
                    head, after, before, options[2], fresh, live, live_at, lag,
                )  # fmt: skip


@njit(cache=True)
def post(state, now, op, member):
    """The member of the operation has come to it. False where there is no room (grow the state, then again)."""
    (reg, heap, pos, when, seq, phase, waits, slot_op, ready, done_op, done_member, op_shape, op_base, op_left) = (
        state[:14]
    )
    shape_row, wait0, left0, touch_start, touch = state[17], state[23], state[24], state[27], state[28]
    free_head, free_next = state[36], state[37]
    if op_base[op] == -1 and not allocate(
        op, reg, op_shape, op_base, shape_row, free_head, free_next, wait0, left0, waits, slot_op, pos
    ):
        return False
    if join_member(op, member, reg, op_shape, op_base, op_left, shape_row, touch_start, touch, waits, ready):
        member_done(op, member, reg, op_shape, op_base, op_left, free_head, free_next, done_op, done_member)
    return True


@njit(cache=True)
def next_time(state, now):
    """When something happens next; NEVER if nothing will. Rates are settled first, so `now` must be the last instant
    that was posted or advanced to."""
    start_ready(state, now)
    settle(state, now)
    reg, heap, when = state[0], state[1], state[3]
    return when[heap[0]] if reg[1] > 0 else NEVER


@njit(cache=True)
def advance(state, now):
    """All that happens at `now`. Members that are done are the last entries of done_op and done_member."""
    (reg, heap, pos, when, seq, phase, waits, slot_op, ready, done_op, done_member, op_shape, op_base, op_left,
     op_members, op_path0, op_bytes0, shape_row, src, dst, delay, has_deps, put, wait0, left0, succ_start, succ,
     touch_start, touch, path_start, path_link, t_bytes, rate, latency, link_bytes, link_busy, free_head, free_next,
     key, options, reduce_rate, rest, speed, new_speed, since, neck, new_neck, mark, fixed, chosen, fresh, live, live_at,
     lag, after, before, active, busy_since, head, load, free, flows, touched, link_mark, level, heap_link, heap_key,
     dirty, is_dirty) = state  # fmt: skip
    while True:
        if reg[HEAP] == 0 or when[heap[0]] > now:
            if reg[READY] == 0:
                break
            start_ready(state, now)
            continue
        slot = pop_event(reg, heap, pos, when, seq)
        op = slot_op[slot]
        t = slot - op_base[op]
        row = shape_row[op_shape[op], 0] + t
        size = t_bytes[op_bytes0[op] + t]
        path0 = op_path0[op] + t
        if phase[slot] == START:
            _inject(
                slot, now, size, path0, reg, heap, pos, when, seq, phase, rest, since, speed, neck, path_start,
                path_link, latency, link_bytes, link_busy, active, busy_since, head, after, before, options[2],
                fresh, live, live_at, lag,
            )  # fmt: skip
            continue
        if phase[slot] == MOVE:
            _drained(
                slot, now, path0, reg, speed, path_start, path_link, link_busy, active, busy_since, head, after,
                before, options[2], load, dirty, is_dirty, live, live_at,
            )  # fmt: skip
            phase[slot] = LAND
            if lag[slot] > 0:
                schedule_event(slot, now + lag[slot], reg, heap, pos, when, seq)
                continue
        if phase[slot] == LAND:
            extra = options[1]
            if put[row] > 0 and reduce_rate[0] > 0:
                extra += 3 * np.int64(size / reduce_rate[0])
            phase[slot] = LAND + 1
            if extra > 0:
                schedule_event(slot, now + extra, reg, heap, pos, when, seq)
                continue
        finish_transfer(
            slot, reg, op_shape, op_base, op_left, op_members, shape_row, src, dst, succ_start, succ, waits, slot_op,
            ready, free_head, free_next, done_op, done_member,
        )  # fmt: skip


@njit(cache=True)
def run(state, at, joins, finish_ns, finish0):
    """Drives the model alone: joins are rows of (time, op, member), ordered by time. Returns how many were posted;
    fewer than all means that the state has no room."""
    reg, done_op, done_member = state[0], state[9], state[10]
    while True:
        event = next_time(state, reg[NOW])
        arrival = joins[at, 0] if at < len(joins) else NEVER
        now = min(event, arrival)
        if now >= NEVER:
            return at
        reg[NOW] = now
        if event <= now:
            advance(state, now)
        while at < len(joins) and joins[at, 0] == now:
            if not post(state, now, joins[at, 1], joins[at, 2]):
                return at
            at += 1
        for k in range(reg[DONE]):
            finish_ns[finish0[done_op[k]] + done_member[k]] = now
        reg[DONE] = 0
