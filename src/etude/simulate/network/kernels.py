"""Network models as kernels: `links` and `flow` behind one interface.

    post(state, now, op, member)     a member has come to its operation; False: no room, grow the state and post again
    next_time(state, now)            when something happens next; NEVER if nothing will
    advance(state, now)              all that happens at `now`; who is done by it is in the rows DONE_OP, DONE_MEMBER
    run(state, ...)                  all three in a loop, without a workload
    join, proceed                    the same in turns with a workload: many at once, and until somebody is done

`now` is always the last instant posted or advanced to. Within an instant all events are applied first, then what became
ready starts, ordered by operation and transfer: so the order in which members come makes no difference.

`links`: a link takes one message at a time, in the order in which they come to it. Store-and-forward: a message that a
link takes at t is whole at the next vertex at t + floor(latency + bytes / rate), and the link is free again at
t + floor(bytes / rate). Cut-through: its head goes on after the latency alone, its tail follows at the rate of the
slowest link so far.

`flow`: all live flows share the links of their ways max-min fairly: every flow has a bottleneck, a full link on which
nobody is faster. Rates change when a flow begins or ends; a flow ends at a whole ns, and all that happens in one is
worked out once. Only flows that can feel a change are worked out again: those that began, those whose bottleneck no
longer is full, and those that are faster than the new share of a full link. All others still have their bottleneck, so
the rates are those that working out all of them would give.

A slot is one transfer of a live operation, or (after those) one of its members. All arrays are int64 but for the
rates, so that there is one specialisation of everything.

An operation has costs of its own: LAUNCH before its first transfers, WIRE_PPM on the time of its bytes (protocol,
jitter), lags (from LAG0 on, one for each transfer) on the latency of its ways, and transfers whose sender or receiver
computes when they start (seats from SEAT0 on say who that is) take BUSY_MILLI thousandths of their time.
"""

import numpy as np
from numba import njit

NEVER = 2**62

# state: reg, options, slots, slot_rates, entries, ops, shapes, transfers, members, succ_start, succ, touch, path_of,
#        path_start, path_link, sizes, lags, seats, load, links, link_rates
SEQ, QUEUED, TOP, READY_N, DONE_N, FLOWS_N, DIRTY_N, FRESH_N, STAMP, NOW = range(10)  # reg
FLOW_MODEL, CUT_THROUGH, ENDPOINT_NS, HOP_BITS, REDUCE_BYTES_PER_US, CLOSE_PPB, BUSY_MILLI = range(7)  # options
(HEAP, POS, WHEN, ORDER, PHASE, WAITS, OP, READY, DONE_OP, DONE_MEMBER, FREE_NEXT, KEY, HOP, TAIL_AT, SINCE, NECK,
 NEW_NECK, MARK, FIXED, CHOSEN, FRESH, LIVE, LIVE_AT, PATH) = range(24)  # slots  # fmt: skip
SLOT_ROWS = 24
REST, SPEED, NEW_SPEED = range(3)  # slot_rates
AFTER, BEFORE = range(2)  # entries: a slot on a link
SHAPE, BASE, LEFT, MEMBERS, PATH0, SIZE0, LAUNCH, WIRE_PPM, LAG0, SEAT0 = range(10)  # ops
WHOLE = 1_000_000  # in WIRE_PPM: what goes over the wire is what is sent
COMPUTING = 0  # column of load, as in simulate.kernels
FIRST, TRANSFERS, MEMBER0, MEMBERS_ALL, FREE_HEAD = range(5)  # shapes
SRC, DST, DELAY, HAS_DEPS, PUT, WAIT0 = range(6)  # transfers
TOUCH_START, LEFT0 = range(2)  # members
(LATENCY, BYTES, BUSY, FREE_AT, ACTIVE, BUSY_SINCE, HEAD, FLOWS, QUEUED_AT, LINK_MARK, HEAP_LINK, DIRTY,
 IS_DIRTY) = range(13)  # links  # fmt: skip
LINK_ROWS = 13
RATE, LOAD, FREE, LEVEL, HEAP_KEY = range(5)  # link_rates
START, MOVE, LAND, END = range(4)  # phases


# --- the queue of events --------------------------------------------------------------------------------------------


@njit(cache=True)
def _sift_up(at, heap, pos, when, order):
    slot = heap[at]
    while at > 0:
        up = (at - 1) >> 1
        over = heap[up]
        if when[over] < when[slot] or (when[over] == when[slot] and order[over] < order[slot]):
            break
        heap[at] = over
        pos[over] = at
        at = up
    heap[at] = slot
    pos[slot] = at


@njit(cache=True)
def _sift_down(at, size, heap, pos, when, order):
    slot = heap[at]
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        under = heap[down]
        if down + 1 < size:
            other = heap[down + 1]
            if when[other] < when[under] or (when[other] == when[under] and order[other] < order[under]):
                down += 1
                under = other
        if when[slot] < when[under] or (when[slot] == when[under] and order[slot] < order[under]):
            break
        heap[at] = under
        pos[under] = at
        at = down
    heap[at] = slot
    pos[slot] = at


@njit(cache=True)
def _put(slot, time, reg, slots):
    """Puts the slot's event into the queue, or moves it there. Of equal times, the one put first comes first."""
    heap, pos, when, order = slots[HEAP], slots[POS], slots[WHEN], slots[ORDER]
    order[slot] = reg[SEQ]
    reg[SEQ] += 1
    old = when[slot]
    when[slot] = time
    if pos[slot] < 0:
        heap[reg[QUEUED]] = slot
        reg[QUEUED] += 1
        _sift_up(reg[QUEUED] - 1, heap, pos, when, order)
    elif time < old:
        _sift_up(pos[slot], heap, pos, when, order)
    else:
        _sift_down(pos[slot], reg[QUEUED], heap, pos, when, order)


@njit(cache=True)
def _pop(reg, slots):
    heap, pos = slots[HEAP], slots[POS]
    slot = heap[0]
    reg[QUEUED] -= 1
    pos[slot] = -1
    if reg[QUEUED]:
        heap[0] = heap[reg[QUEUED]]
        _sift_down(0, reg[QUEUED], heap, pos, slots[WHEN], slots[ORDER])
    return slot


# --- operations -----------------------------------------------------------------------------------------------------


@njit(cache=True)
def _allocate(op, reg, slots, ops, shapes, transfers, members):
    """Slots for an operation that goes live: those of one with the same schedule that ended, or new ones."""
    shape = ops[SHAPE, op]
    count, first, member0 = shapes[TRANSFERS, shape], shapes[FIRST, shape], shapes[MEMBER0, shape]
    base = shapes[FREE_HEAD, shape]
    if base >= 0:
        shapes[FREE_HEAD, shape] = slots[FREE_NEXT, base]
    else:
        base = reg[TOP]
        if base + count + shapes[MEMBERS_ALL, shape] > slots.shape[1]:
            return False
        reg[TOP] += count + shapes[MEMBERS_ALL, shape]
    for t in range(count):
        slots[WAITS, base + t] = transfers[WAIT0, first + t]
        slots[OP, base + t] = op
        slots[POS, base + t] = -1
    for m in range(shapes[MEMBERS_ALL, shape]):
        slots[WAITS, base + count + m] = members[LEFT0, member0 + m]
    ops[BASE, op] = base
    return True


@njit(cache=True)
def _one_less(op, slots, ops, shapes):
    """LEFT counts members that are not done and transfers that have not ended; at 0 the slots are free."""
    ops[LEFT, op] -= 1
    if ops[LEFT, op] == 0:
        base, shape = ops[BASE, op], ops[SHAPE, op]
        slots[FREE_NEXT, base] = shapes[FREE_HEAD, shape]
        shapes[FREE_HEAD, shape] = base
        ops[BASE, op] = -2


@njit(cache=True)
def _member_done(op, member, reg, slots, ops, shapes):
    slots[DONE_OP, reg[DONE_N]] = op
    slots[DONE_MEMBER, reg[DONE_N]] = member
    reg[DONE_N] += 1
    _one_less(op, slots, ops, shapes)


@njit(cache=True)
def _less(slot, reg, slots):
    slots[WAITS, slot] -= 1
    if slots[WAITS, slot] == 0:
        slots[READY, reg[READY_N]] = slot
        reg[READY_N] += 1


@njit(cache=True)
def _finish(slot, reg, slots, ops, shapes, transfers, succ_start, succ):
    """What waited for this transfer may become ready; its two members may be done."""
    op = slots[OP, slot]
    shape, base = ops[SHAPE, op], ops[BASE, op]
    row = shapes[FIRST, shape] + slot - base
    for k in range(succ_start[row], succ_start[row + 1]):
        _less(base + succ[k], reg, slots)
    src, dst = transfers[SRC, row], transfers[DST, row]
    for end in range(1 if src == dst else 2):
        member = dst if end else src
        at = base + shapes[TRANSFERS, shape] + member
        slots[WAITS, at] -= 1
        if slots[WAITS, at] == 0 and member < ops[MEMBERS, op]:
            _member_done(op, member, reg, slots, ops, shapes)
    _one_less(op, slots, ops, shapes)


@njit(cache=True)
def _ready_in_order(reg, slots):
    """Moves the ready slots to the row KEY, by operation and then by transfer. Returns how many."""
    key, ready, of = slots[KEY], slots[READY], slots[OP]
    count = reg[READY_N]
    reg[READY_N] = 0
    in_order = True
    for i in range(count):
        key[i] = of[ready[i]] << 32 | ready[i]
        if i and key[i] < key[i - 1]:
            in_order = False
    if not in_order:
        key[:count].sort()
    for i in range(count):
        key[i] &= 0xFFFFFFFF
    return count


# --- links ----------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _hop(slot, now, path0, size, wire, lag, reg, options, slots, path_start, path_link, links, link_rates):
    """The message of `size` bytes, which are `wire` on the way, is at its next link, or at its end."""
    at = path_start[path0] + slots[HOP, slot]
    if at == path_start[path0 + 1]:
        slots[PHASE, slot] = LAND
        _put(slot, max(now, slots[TAIL_AT, slot]), reg, slots)
        return
    link = path_link[at]
    begin = max(now, links[FREE_AT, link])
    moving = wire / link_rates[RATE, link]
    latency = links[LATENCY, link]
    if at + 1 == path_start[path0 + 1]:
        latency = max(latency + lag, 0)
    links[BYTES, link] += size
    slots[HOP, slot] += 1
    if options[CUT_THROUGH]:
        # Its tail cannot leave before it has come from the link before.
        end = max(begin + np.int64(moving), slots[TAIL_AT, slot])
        slots[TAIL_AT, slot] = end + latency
        _put(slot, begin + latency, reg, slots)
    else:
        end = begin + np.int64(moving)
        _put(slot, begin + np.int64(latency + moving), reg, slots)
    links[BUSY, link] += end - begin
    links[FREE_AT, link] = end


# --- flow -----------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _begin_flow(
    slot, now, path0, size, wire, lag, reg, options, slots, slot_rates, entries, path_start, path_link, links
):  # fmt: skip
    """The flow is on all links of its way until it has drained; then it lands, after the latency of the way."""
    begin, end = path_start[path0], path_start[path0 + 1]
    for k in range(begin, end):
        lag += links[LATENCY, path_link[k]]
    lag = max(lag, 0)
    slots[TAIL_AT, slot] = lag
    if size == 0 or begin == end:
        slots[PHASE, slot] = LAND
        _put(slot, now + lag, reg, slots)
        return
    slots[PHASE, slot] = MOVE
    slot_rates[REST, slot] = wire
    slot_rates[SPEED, slot] = 0.0
    slots[SINCE, slot] = now
    slots[NECK, slot] = -1
    for k in range(begin, end):
        link = path_link[k]
        links[BYTES, link] += size
        if links[ACTIVE, link] == 0:
            links[BUSY_SINCE, link] = now
        links[ACTIVE, link] += 1
        entry = slot << options[HOP_BITS] | k - begin
        entries[AFTER, entry] = links[HEAD, link]
        entries[BEFORE, entry] = -1
        if links[HEAD, link] >= 0:
            entries[BEFORE, links[HEAD, link]] = entry
        links[HEAD, link] = entry
    slots[FRESH, reg[FRESH_N]] = slot
    reg[FRESH_N] += 1
    slots[LIVE, reg[FLOWS_N]] = slot
    slots[LIVE_AT, slot] = reg[FLOWS_N]
    reg[FLOWS_N] += 1


@njit(cache=True)
def _end_flow(
    slot, now, path0, reg, options, slots, slot_rates, entries, path_start, path_link, links, link_rates
):  # fmt: skip
    begin = path_start[path0]
    for k in range(begin, path_start[path0 + 1]):
        link = path_link[k]
        entry = slot << options[HOP_BITS] | k - begin
        after, before = entries[AFTER, entry], entries[BEFORE, entry]
        if before >= 0:
            entries[AFTER, before] = after
        else:
            links[HEAD, link] = after
        if after >= 0:
            entries[BEFORE, after] = before
        links[ACTIVE, link] -= 1
        link_rates[LOAD, link] -= slot_rates[SPEED, slot]
        if links[ACTIVE, link] == 0:
            link_rates[LOAD, link] = 0.0
            links[BUSY, link] += now - links[BUSY_SINCE, link]
        if not links[IS_DIRTY, link]:
            links[IS_DIRTY, link] = 1
            links[DIRTY, reg[DIRTY_N]] = link
            reg[DIRTY_N] += 1
    reg[FLOWS_N] -= 1
    last = slots[LIVE, reg[FLOWS_N]]
    slots[LIVE, slots[LIVE_AT, slot]] = last
    slots[LIVE_AT, last] = slots[LIVE_AT, slot]


@njit(cache=True)
def _queue_link(link, key, size, heap, at, keys):
    """Puts a link into the queue by key, or moves it there. Returns the size."""
    if at[link] < 0:
        at[link] = size
        heap[size] = link
        size += 1
    keys[link] = key
    i = at[link]
    while i > 0 and keys[heap[(i - 1) >> 1]] > key:
        heap[i] = heap[(i - 1) >> 1]
        at[heap[i]] = i
        i = (i - 1) >> 1
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and keys[heap[down + 1]] < keys[heap[down]]:
            down += 1
        if keys[heap[down]] >= key:
            break
        heap[i] = heap[down]
        at[heap[i]] = i
        i = down
    heap[i] = link
    at[link] = i
    return size


@njit(cache=True)
def _unqueue_link(size, heap, at, keys):
    """Takes the first link out. Returns the size."""
    at[heap[0]] = -1
    size -= 1
    if size:
        link = heap[size]
        heap[0] = link
        at[link] = 0
        _queue_link(link, keys[link], size, heap, at, keys)
    return size


@njit(cache=True)
def _touch(link, stamp, size, hop_bits, slots, slot_rates, entries, links, link_rates):
    """A link comes into play: what the flows that stay as they are leave of it, and the level at which it holds some of
    them (its own level: it is their bottleneck)."""
    links[LINK_MARK, link] = stamp
    link_rates[FREE, link] = link_rates[RATE, link] - link_rates[LOAD, link]
    links[FLOWS, link] = 0
    level = np.inf
    entry = links[HEAD, link]
    while entry >= 0:
        slot = entry >> hop_bits
        entry = entries[AFTER, entry]
        if slots[NECK, slot] == link and slots[MARK, slot] != stamp:
            level = slot_rates[SPEED, slot]
            break
    link_rates[LEVEL, link] = level
    links[QUEUED_AT, link] = -1
    if level < np.inf:
        size = _queue_link(link, level, size, links[HEAP_LINK], links[QUEUED_AT], link_rates[HEAP_KEY])
    return size


@njit(cache=True)
def _choose(
    slot, count, stamp, size, hop_bits, slots, slot_rates, entries, path_start, path_link, links, link_rates
):  # fmt: skip
    """The flow's rate is to be found anew: its part of every link is free again. Returns the size of the queue."""
    slots[MARK, slot] = stamp
    slots[FIXED, slot] = 0
    slots[CHOSEN, count] = slot
    path0 = slots[PATH, slot]
    for k in range(path_start[path0], path_start[path0 + 1]):
        link = path_link[k]
        if links[LINK_MARK, link] != stamp:
            size = _touch(link, stamp, size, hop_bits, slots, slot_rates, entries, links, link_rates)
        link_rates[FREE, link] += slot_rates[SPEED, slot]
        links[FLOWS, link] += 1
        share = max(link_rates[FREE, link], 0.0) / links[FLOWS, link]
        key = min(share, link_rates[LEVEL, link])
        # A key that is too small is put right when its turn comes.
        if links[QUEUED_AT, link] < 0 or key < link_rates[HEAP_KEY, link]:
            size = _queue_link(link, key, size, links[HEAP_LINK], links[QUEUED_AT], link_rates[HEAP_KEY])
    return size


@njit(cache=True)
def _share_out(
    now, reg, options, slots, slot_rates, entries, path_start, path_link, links, link_rates
):  # fmt: skip
    """Works out the rates again, as flows began or ended: water-filling from the lowest level up, in which flows that
    cannot feel the change never take part. Links come in the order of their level; at its level a link either gives
    all flows that still look for a rate their share, or shows whether it is still the bottleneck of those it held."""
    hop_bits, close = options[HOP_BITS], options[CLOSE_PPB] * 1e-9
    mark, neck, after = slots[MARK], slots[NECK], entries[AFTER]
    speed, free, level = slot_rates[SPEED], link_rates[FREE], link_rates[LEVEL]
    flows, heap, at, keys = links[FLOWS], links[HEAP_LINK], links[QUEUED_AT], link_rates[HEAP_KEY]
    reg[STAMP] += 1
    stamp = reg[STAMP]
    count = 0
    size = 0
    for i in range(reg[DIRTY_N]):
        link = links[DIRTY, i]
        links[IS_DIRTY, link] = 0
        if links[HEAD, link] >= 0 and links[LINK_MARK, link] != stamp:
            size = _touch(link, stamp, size, hop_bits, slots, slot_rates, entries, links, link_rates)
    for i in range(reg[FRESH_N]):
        size = _choose(
            slots[FRESH, i], count, stamp, size, hop_bits, slots, slot_rates, entries, path_start, path_link,
            links, link_rates,
        )  # fmt: skip
        count += 1
    reg[FRESH_N] = 0
    reg[DIRTY_N] = 0
    while size > 0:
        link = heap[0]
        share = max(free[link], 0.0) / flows[link] if flows[link] > 0 else np.inf
        key = min(share, level[link])
        if key == np.inf:
            size = _unqueue_link(size, heap, at, keys)
            continue
        if key > keys[link]:  # it grew while others were served
            size = _queue_link(link, key, size, heap, at, keys)
            continue
        holds = level[link] * (1 + close) < share
        if holds:
            level[link] = np.inf
            if flows[link] == 0 and free[link] <= close * link_rates[RATE, link]:
                continue  # as full as it was: whom it held stays
        chosen = count
        entry = links[HEAD, link]
        while entry >= 0:
            slot = entry >> hop_bits
            entry = after[entry]
            if mark[slot] != stamp and (neck[slot] == link if holds else speed[slot] > share * (1 + close)):
                size = _choose(
                    slot, count, stamp, size, hop_bits, slots, slot_rates, entries, path_start, path_link, links,
                    link_rates,
                )  # fmt: skip
                count += 1
        if not holds and count == chosen:
            _fix(link, share, stamp, hop_bits, slots, slot_rates, entries, path_start, path_link, links, link_rates)
    _apply(now, count, reg, slots, slot_rates, path_start, path_link, link_rates)


@njit(cache=True)
def _fix(
    link, share, stamp, hop_bits, slots, slot_rates, entries, path_start, path_link, links, link_rates
):  # fmt: skip
    """The link is the bottleneck of all flows on it that still look for a rate."""
    entry = links[HEAD, link]
    while entry >= 0:
        slot = entry >> hop_bits
        entry = entries[AFTER, entry]
        if slots[MARK, slot] != stamp or slots[FIXED, slot]:
            continue
        slots[FIXED, slot] = 1
        slots[NEW_NECK, slot] = link
        slot_rates[NEW_SPEED, slot] = share
        path0 = slots[PATH, slot]
        for k in range(path_start[path0], path_start[path0 + 1]):
            link_rates[FREE, path_link[k]] -= share
            links[FLOWS, path_link[k]] -= 1


@njit(cache=True)
def _apply(now, count, reg, slots, slot_rates, path_start, path_link, link_rates):
    """The new rates hold from now on."""
    rest, speed, new_speed = slot_rates[REST], slot_rates[SPEED], slot_rates[NEW_SPEED]
    for i in range(count):
        slot = slots[CHOSEN, i]
        slots[NECK, slot] = slots[NEW_NECK, slot]
        change = new_speed[slot] - speed[slot]
        if abs(change) <= 1e-13 * new_speed[slot]:
            continue
        path0 = slots[PATH, slot]
        for k in range(path_start[path0], path_start[path0 + 1]):
            link_rates[LOAD, path_link[k]] += change
        rest[slot] = max(rest[slot] - speed[slot] * (now - slots[SINCE, slot]), 0.0)
        slots[SINCE, slot] = now
        speed[slot] = new_speed[slot]
        # Less than a millionth of a ns is the noise of the division.
        left = np.ceil(rest[slot] / speed[slot] - 1e-6) if speed[slot] > 0 else 1e18
        end = now + max(np.int64(min(left, 1e18)), 0)
        if slots[POS, slot] < 0 or slots[WHEN, slot] != end:
            _put(slot, end, reg, slots)


# --- the interface --------------------------------------------------------------------------------------------------


@njit(cache=True)
def post(state, now, op, member):
    (reg, options, slots, slot_rates, entries, ops, shapes, transfers, members, succ_start, succ, touch, path_of,
     path_start, path_link, sizes, lags, seats, load, links, link_rates) = state  # fmt: skip
    if ops[BASE, op] == -1 and not _allocate(op, reg, slots, ops, shapes, transfers, members):
        return False
    base, row = ops[BASE, op], shapes[MEMBER0, ops[SHAPE, op]] + member
    begin, end = members[TOUCH_START, row], members[TOUCH_START, row + 1]
    for k in range(begin, end):
        _less(base + touch[k], reg, slots)
    if begin == end:
        _member_done(op, member, reg, slots, ops, shapes)
    return True


@njit(cache=True)
def _wire(size, op, row, options, ops, transfers, seats, load):
    """What the bytes of a transfer are to the links: more for a protocol, with jitter, or beside compute."""
    wire = np.float64(size)
    if ops[WIRE_PPM, op] != WHOLE:
        wire *= ops[WIRE_PPM, op] / WHOLE
    seat = ops[SEAT0, op]
    if seat >= 0:
        for end in range(2):
            member = transfers[DST, row] if end else transfers[SRC, row]
            if member < ops[MEMBERS, op] and load[seats[seat + member], COMPUTING] > 0:
                return wire * options[BUSY_MILLI] / 1000
    return wire


@njit(cache=True)
def _go(state, slot, now):
    """The transfer of the slot is on its way."""
    (reg, options, slots, slot_rates, entries, ops, shapes, transfers, members, succ_start, succ, touch, path_of,
     path_start, path_link, sizes, lags, seats, load, links, link_rates) = state  # fmt: skip
    op = slots[OP, slot]
    t = slot - ops[BASE, op]
    size = sizes[ops[SIZE0, op] + t]
    if slots[HOP, slot] == 0:
        row = shapes[FIRST, ops[SHAPE, op]] + t
        slot_rates[REST, slot] = _wire(size, op, row, options, ops, transfers, seats, load)
    wire = slot_rates[REST, slot]
    lag = lags[ops[LAG0, op] + t] if ops[LAG0, op] >= 0 else 0
    if options[FLOW_MODEL]:
        _begin_flow(
            slot, now, slots[PATH, slot], size, wire, lag, reg, options, slots, slot_rates, entries, path_start,
            path_link, links,
        )  # fmt: skip
    else:
        slots[PHASE, slot] = MOVE
        _hop(
            slot, now, slots[PATH, slot], size, wire, lag, reg, options, slots, path_start, path_link, links, link_rates
        )


@njit(cache=True)
def _start_ready(state, now):
    (reg, options, slots, slot_rates, entries, ops, shapes, transfers, members, succ_start, succ, touch, path_of,
     path_start, path_link, sizes, lags, seats, load, links, link_rates) = state  # fmt: skip
    while reg[READY_N] > 0:
        for i in range(_ready_in_order(reg, slots)):
            slot = slots[KEY, i]
            op = slots[OP, slot]
            t = slot - ops[BASE, op]
            row = shapes[FIRST, ops[SHAPE, op]] + t
            slots[HOP, slot] = 0
            slots[TAIL_AT, slot] = 0
            slots[PATH, slot] = path_of[ops[PATH0, op] + t]
            launch = 0 if transfers[HAS_DEPS, row] else ops[LAUNCH, op]
            if transfers[SRC, row] == transfers[DST, row]:
                if transfers[DELAY, row] + launch == 0:
                    _finish(slot, reg, slots, ops, shapes, transfers, succ_start, succ)
                else:
                    slots[PHASE, slot] = END
                    _put(slot, now + transfers[DELAY, row] + launch, reg, slots)
                continue
            if not transfers[HAS_DEPS, row]:
                launch += options[ENDPOINT_NS]
            if launch > 0:
                slots[PHASE, slot] = START
                _put(slot, now + launch, reg, slots)
            else:
                _go(state, slot, now)


@njit(cache=True)
def next_time(state, now):
    (reg, options, slots, slot_rates, entries, ops, shapes, transfers, members, succ_start, succ, touch, path_of,
     path_start, path_link, sizes, lags, seats, load, links, link_rates) = state  # fmt: skip
    if reg[READY_N] > 0:
        _start_ready(state, now)
    if reg[FRESH_N] > 0 or reg[DIRTY_N] > 0:
        _share_out(now, reg, options, slots, slot_rates, entries, path_start, path_link, links, link_rates)
    return slots[WHEN, slots[HEAP, 0]] if reg[QUEUED] > 0 else NEVER


@njit(cache=True)
def advance(state, now):
    (reg, options, slots, slot_rates, entries, ops, shapes, transfers, members, succ_start, succ, touch, path_of,
     path_start, path_link, sizes, lags, seats, load, links, link_rates) = state  # fmt: skip
    phase = slots[PHASE]
    while True:
        if reg[QUEUED] == 0 or slots[WHEN, slots[HEAP, 0]] > now:
            if reg[READY_N] == 0:
                break
            _start_ready(state, now)
            continue
        slot = _pop(reg, slots)
        op = slots[OP, slot]
        t = slot - ops[BASE, op]
        size = sizes[ops[SIZE0, op] + t]
        path0 = slots[PATH, slot]
        if phase[slot] == START or (phase[slot] == MOVE and not options[FLOW_MODEL]):
            _go(state, slot, now)
            continue
        if phase[slot] == MOVE:
            _end_flow(
                slot, now, path0, reg, options, slots, slot_rates, entries, path_start, path_link, links, link_rates
            )
            phase[slot] = LAND
            if slots[TAIL_AT, slot] > 0:
                _put(slot, now + slots[TAIL_AT, slot], reg, slots)
                continue
        if phase[slot] == LAND:
            extra = options[ENDPOINT_NS]
            if transfers[PUT, shapes[FIRST, ops[SHAPE, op]] + t] > 0 and options[REDUCE_BYTES_PER_US] > 0:
                extra += 3 * (1000 * size // options[REDUCE_BYTES_PER_US])  # reads twice, writes once
            if extra > 0:
                phase[slot] = END
                _put(slot, now + extra, reg, slots)
                continue
        _finish(slot, reg, slots, ops, shapes, transfers, succ_start, succ)


@njit(cache=True)
def run(state, at, joins, finish_ns, finish0, max_events):
    """Drives the network alone: joins are rows of (time, op, member), ordered by time. Returns how many were posted and
    whether it is over; if it is not, either the state has no room or `max_events` instants have passed."""
    reg, slots = state[0], state[2]
    for _ in range(max_events):
        event = next_time(state, reg[NOW])
        arrival = joins[at, 0] if at < len(joins) else NEVER
        now = min(event, arrival)
        if now >= NEVER:
            return at, True
        reg[NOW] = now
        if event <= now:
            advance(state, now)
        room = True
        while room and at < len(joins) and joins[at, 0] == now:
            room = post(state, now, joins[at, 1], joins[at, 2])
            at += room
        for k in range(reg[DONE_N]):
            finish_ns[finish0[slots[DONE_OP, k]] + slots[DONE_MEMBER, k]] = now
        reg[DONE_N] = 0
        if not room:
            break
    return at, False


@njit(cache=True)
def join(state, now, joins, at, count):
    """Posts joins[at:count], rows of (op, member). Returns how far it came: not to `count` if there is no room."""
    while at < count and post(state, now, joins[at, 0], joins[at, 1]):
        at += 1
    return at


@njit(cache=True)
def proceed(state, now, until, ended, max_events):
    """Goes on until some members are done, but not beyond the time `until`. Returns the last instant advanced to, when
    something happens next, and how many rows of (op, member) are in `ended`: if none, all up to `until` has happened,
    or `max_events` instants have passed."""
    reg, slots = state[0], state[2]
    event = now
    for _ in range(max_events):
        if reg[DONE_N] > 0:
            break
        event = next_time(state, now)
        if event >= NEVER or event > until:
            break
        now = event
        advance(state, now)
    count = reg[DONE_N]
    for i in range(count):
        ended[i, 0] = slots[DONE_OP, i]
        ended[i, 1] = slots[DONE_MEMBER, i]
    reg[DONE_N] = 0
    return now, event, count
