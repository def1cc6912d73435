"""What both network kernels share: live operations, what waits for what, and the queue of events.

Arrays only. A slot is one transfer (or, after them, one member) of a live operation. `reg` holds the counters.
"""

import numpy as np
from numba import njit

NEVER = np.int64(2**62)
SEQ, HEAP, TOP, READY, DONE, FLOWS, DIRTY, NEW, STAMP, LIVE, NOW = range(11)
START, MOVE, LAND = 0, 1, 2


@njit(cache=True, inline="always")
def _before(a, b, when, seq):
    return when[a] < when[b] or (when[a] == when[b] and seq[a] < seq[b])


@njit(cache=True)
def _sift_up(at, heap, pos, when, seq):
    slot = heap[at]
    while at > 0:
        up = (at - 1) >> 1
        if not _before(slot, heap[up], when, seq):
            break
        heap[at] = heap[up]
        pos[heap[at]] = at
        at = up
    heap[at] = slot
    pos[slot] = at


@njit(cache=True)
def _sift_down(at, size, heap, pos, when, seq):
    slot = heap[at]
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        if down + 1 < size and _before(heap[down + 1], heap[down], when, seq):
            down += 1
        if not _before(heap[down], slot, when, seq):
            break
        heap[at] = heap[down]
        pos[heap[at]] = at
        at = down
    heap[at] = slot
    pos[slot] = at


@njit(cache=True)
def schedule_event(slot, time, reg, heap, pos, when, seq):
    """Puts the slot's event into the queue, or moves it there. Of equal times, the one put first comes first."""
    seq[slot] = reg[SEQ]
    reg[SEQ] += 1
    old = when[slot]
    when[slot] = time
    if pos[slot] < 0:
        heap[reg[HEAP]] = slot
        reg[HEAP] += 1
        _sift_up(reg[HEAP] - 1, heap, pos, when, seq)
    elif time < old:
        _sift_up(pos[slot], heap, pos, when, seq)
    else:
        _sift_down(pos[slot], reg[HEAP], heap, pos, when, seq)


@njit(cache=True)
def pop_event(reg, heap, pos, when, seq):
    slot = heap[0]
    reg[HEAP] -= 1
    size = reg[HEAP]
    pos[slot] = -1
    if size:
        heap[0] = heap[size]
        _sift_down(0, size, heap, pos, when, seq)
    return slot


@njit(cache=True)
def allocate(op, reg, op_shape, op_base, shape_row, free_head, free_next, wait0, left0, waits, slot_op, pos):
    """Slots for an operation that goes live: those of one with the same schedule that ended, or new ones.

    False where there is no room: the caller makes some and comes again.
    """
    shape = op_shape[op]
    first, transfers, member0, members = shape_row[shape]
    base = free_head[shape]
    if base >= 0:
        free_head[shape] = free_next[base]
    else:
        base = reg[TOP]
        if base + transfers + members > len(waits):
            return False
        reg[TOP] += transfers + members
    for t in range(transfers):
        waits[base + t] = wait0[first + t]
        slot_op[base + t] = op
        pos[base + t] = -1
    for m in range(members):
        waits[base + transfers + m] = left0[member0 + m]
    op_base[op] = base
    reg[LIVE] += 1
    return True


@njit(cache=True)
def join_member(op, member, reg, op_shape, op_base, op_left, shape_row, touch_start, touch, waits, ready):
    """A member has come: transfers that waited for nobody else become ready. True if it has nothing to do at all."""
    shape = op_shape[op]
    first, transfers, member0, members = shape_row[shape]
    base = op_base[op]
    row = member0 + member
    for k in range(touch_start[row], touch_start[row + 1]):
        slot = base + touch[k]
        waits[slot] -= 1
        if waits[slot] == 0:
            ready[reg[READY]] = slot
            reg[READY] += 1
    return touch_start[row] == touch_start[row + 1]


@njit(cache=True)
def member_done(op, member, reg, op_shape, op_base, op_left, free_head, free_next, done_op, done_member):
    done_op[reg[DONE]] = op
    done_member[reg[DONE]] = member
    reg[DONE] += 1
    _one_less(op, reg, op_shape, op_base, op_left, free_head, free_next)


@njit(cache=True)
def _one_less(op, reg, op_shape, op_base, op_left, free_head, free_next):
    """`op_left` counts members that are not done and transfers that have not ended; at 0 its slots are free."""
    op_left[op] -= 1
    if op_left[op] == 0:
        base, shape = op_base[op], op_shape[op]
        free_next[base] = free_head[shape]
        free_head[shape] = base
        op_base[op] = -2
        reg[LIVE] -= 1


@njit(cache=True)
def finish_transfer(
    slot, reg, op_shape, op_base, op_left, op_members, shape_row, src, dst, succ_start, succ, waits, slot_op, ready,
    free_head, free_next, done_op, done_member,
):  # fmt: skip
    """What waited for this transfer may become ready; its two members may be done."""
    op = slot_op[slot]
    shape, base = op_shape[op], op_base[op]
    first, transfers, member0, members = shape_row[shape]
    t = slot - base
    for k in range(succ_start[first + t], succ_start[first + t + 1]):
        other = base + succ[k]
        waits[other] -= 1
        if waits[other] == 0:
            ready[reg[READY]] = other
            reg[READY] += 1
    ends = 1 if src[first + t] == dst[first + t] else 2
    for end in range(ends):
        member = src[first + t] if end == 0 else dst[first + t]
        row = base + transfers + member
        waits[row] -= 1
        if waits[row] == 0 and member < op_members[op]:
            member_done(op, member, reg, op_shape, op_base, op_left, free_head, free_next, done_op, done_member)
    _one_less(op, reg, op_shape, op_base, op_left, free_head, free_next)


@njit(cache=True)
def in_order(reg, ready, slot_op, key):
    """Ready transfers by operation, then by their number in its schedule: whoever came first within an instant."""
    count = reg[READY]
    for i in range(count):
        key[i] = np.int64(slot_op[ready[i]]) << 32 | np.int64(ready[i])
    sorted_ = True
    for i in range(1, count):
        if key[i] < key[i - 1]:
            sorted_ = False
            break
    if not sorted_:
        key[:count].sort()
        for i in range(count):
            ready[i] = key[i] & 0xFFFFFFFF
