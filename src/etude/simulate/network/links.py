"""Network model `links`: messages queue first-in first-out on the links of their way.

A link takes one message at a time, in the order in which they come to it. Store-and-forward: a message that a link
takes at t is whole at the next vertex at t + floor(latency + bytes / rate), and the link is free again at
t + floor(bytes / rate): ASTRA-sim's congestion-aware model. Cut-through: its head goes on after the latency alone, its
tail follows at the rate of the slowest link so far.
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


@njit(cache=True)
def _hop(
    slot, now, cut_through, reg, heap, pos, when, seq, phase, hop, tail_at, path0, path_start, path_link, size,
    rate, latency, free_at, link_bytes, link_busy,
):  # fmt: skip
    """The message is at its next link, or at its end."""
    first = path_start[path0] + hop[slot]
    if first == path_start[path0 + 1]:
        phase[slot] = LAND
        schedule_event(slot, max(now, tail_at[slot]), reg, heap, pos, when, seq)
        return
    link = path_link[first]
    begin = max(now, free_at[link])
    busy = np.int64(size / rate[link])
    link_bytes[link] += size
    hop[slot] += 1
    if cut_through:
        # Its tail cannot leave before it has come from the link before.
        end = max(begin + busy, tail_at[slot])
        link_busy[link] += end - begin
        free_at[link] = end
        tail_at[slot] = end + latency[link]
        schedule_event(slot, begin + latency[link], reg, heap, pos, when, seq)
    else:
        link_busy[link] += busy
        free_at[link] = begin + busy
        schedule_event(slot, begin + np.int64(latency[link] + size / rate[link]), reg, heap, pos, when, seq)


@njit(cache=True)
def settle(state, now):
    """Starts all that became ready in this instant, ordered by operation and transfer."""
    (reg, heap, pos, when, seq, phase, waits, slot_op, ready, done_op, done_member, op_shape, op_base, op_left,
     op_members, op_path0, op_bytes0, shape_row, src, dst, delay, has_deps, put, wait0, left0, succ_start, succ,
     touch_start, touch, path_start, path_link, t_bytes, rate, latency, link_bytes, link_busy, free_head, free_next,
     key, options, reduce_rate, hop, tail_at, free_at) = state  # fmt: skip
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
            hop[slot] = 0
            tail_at[slot] = 0
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
                phase[slot] = MOVE
                _hop(
                    slot, now, options[0], reg, heap, pos, when, seq, phase, hop, tail_at, op_path0[op] + t,
                    path_start, path_link, t_bytes[op_bytes0[op] + t], rate, latency, free_at, link_bytes, link_busy,
                )  # fmt: skip


@njit(cache=True)
def post(state, now, op, member):
    """The member of the operation has come to it. False where there is no room (grow the state, then again)."""
    (reg, heap, pos, when, seq, phase, waits, slot_op, ready, done_op, done_member, op_shape, op_base, op_left,
     op_members, op_path0, op_bytes0, shape_row, src, dst, delay, has_deps, put, wait0, left0, succ_start, succ,
     touch_start, touch, path_start, path_link, t_bytes, rate, latency, link_bytes, link_busy, free_head, free_next,
     key, options, reduce_rate, hop, tail_at, free_at) = state  # fmt: skip
    if op_base[op] == -1 and not allocate(
        op, reg, op_shape, op_base, shape_row, free_head, free_next, wait0, left0, waits, slot_op, pos
    ):
        return False
    if join_member(op, member, reg, op_shape, op_base, op_left, shape_row, touch_start, touch, waits, ready):
        member_done(op, member, reg, op_shape, op_base, op_left, free_head, free_next, done_op, done_member)
    return True


@njit(cache=True)
def next_time(state, now):
    """When something happens next; NEVER if nothing will. `now` is the last instant that was posted or advanced to."""
    settle(state, now)
    reg, heap, when = state[0], state[1], state[3]
    return when[heap[0]] if reg[1] > 0 else NEVER


@njit(cache=True)
def advance(state, now):
    """All that happens at `now`. Members that are done are the last entries of done_op and done_member."""
    (reg, heap, pos, when, seq, phase, waits, slot_op, ready, done_op, done_member, op_shape, op_base, op_left,
     op_members, op_path0, op_bytes0, shape_row, src, dst, delay, has_deps, put, wait0, left0, succ_start, succ,
     touch_start, touch, path_start, path_link, t_bytes, rate, latency, link_bytes, link_busy, free_head, free_next,
     key, options, reduce_rate, hop, tail_at, free_at) = state  # fmt: skip
    while True:
        if reg[HEAP] == 0 or when[heap[0]] > now:
            if reg[READY] == 0:
                break
            settle(state, now)
            continue
        slot = pop_event(reg, heap, pos, when, seq)
        op = slot_op[slot]
        t = slot - op_base[op]
        row = shape_row[op_shape[op], 0] + t
        size = t_bytes[op_bytes0[op] + t]
        if phase[slot] == START or phase[slot] == MOVE:
            phase[slot] = MOVE
            _hop(
                slot, now, options[0], reg, heap, pos, when, seq, phase, hop, tail_at, op_path0[op] + t, path_start,
                path_link, size, rate, latency, free_at, link_bytes, link_busy,
            )  # fmt: skip
            continue
        if phase[slot] == LAND:
            extra = options[1]
            if put[row] > 0 and reduce_rate[0] > 0:
                extra += 3 * np.int64(size / reduce_rate[0])  # a reduction reads twice and writes once
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
