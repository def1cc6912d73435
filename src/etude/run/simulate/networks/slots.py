"""Kernels of slots: events of transfers, their dependents, and the order in which ready ones start."""

from __future__ import annotations

from etude.kernels.arrays import I64
from etude.kernels.compile import kernel
from etude.kernels.heap import put
from etude.run.simulate.networks.state import RELEASED, LinkState


@kernel(allocates=False)
def put_event(state: LinkState, slot: int, time_ns: int) -> None:
    """Puts the slot's event into the queue, or moves it there. At equal times, the one put first comes first."""
    clock = state.clock[0]
    put(state.events, slot, time_ns, clock.turn)
    clock.turn += 1


@kernel(allocates=False)
def keep_visit(state: LinkState, slot: int, link: int, size_bytes: int, begin_ns: int, end_ns: int) -> None:
    """Statistics: records the slot's transfer on a link."""
    if len(state.visits) > 0:
        clock = state.clock[0]
        visit = state.visits[clock.visits]
        clock.visits += 1
        visit.operation = state.slots[slot].operation
        visit.link = link
        visit.size_bytes = size_bytes
        visit.came_ns = clock.now_ns
        visit.begin_ns = begin_ns
        visit.end_ns = end_ns


@kernel(allocates=False)
def allocate(state: LinkState, operation: int) -> bool:
    """Slots for an operation that goes live: reused from an ended one with the same schedule, or new."""
    clock, slots = state.clock[0], state.slots
    plan = state.schedules.plans[state.carried[operation].plan]
    base = plan.free
    if base >= 0:
        plan.free = slots[base].free_next
    else:
        base = clock.top
        if base + plan.transfers + plan.members + plan.lines > len(slots):
            return False
        clock.top += plan.transfers + plan.members + plan.lines
    for t in range(plan.transfers):
        slots[base + t].waits = state.schedules.transfers[plan.transfer0 + t].waits
        slots[base + t].operation = operation
        state.events.place[base + t] = -1
    for m in range(plan.members):
        slots[base + plan.transfers + m].waits = state.schedules.members[plan.member0 + m].transfers
    for k in range(plan.lines):
        line = slots[base + plan.transfers + plan.members + k]
        line.waits = 0
        line.hop = -1
    state.carried[operation].base = base
    return True


@kernel(allocates=False)
def one_less(state: LinkState, operation: int) -> None:
    """One more member is done, or one more transfer has ended; after the last one the slots are free."""
    it = state.carried[operation]
    it.left -= 1
    if it.left == 0:
        plan = state.schedules.plans[it.plan]
        state.slots[it.base].free_next = plan.free
        plan.free = it.base
        it.base = RELEASED


@kernel(allocates=False)
def member_done(state: LinkState, operation: int, member: int) -> None:
    """The network is done with a member: its place is the last of done[:clock.done]."""
    clock, place = state.clock[0], state.carried[operation].place0 + member
    state.places[place].done_ns = clock.now_ns
    state.done[clock.done] = place
    clock.done += 1
    one_less(state, operation)


@kernel(allocates=False)
def waits_less(state: LinkState, slot: int) -> None:
    it = state.slots[slot]
    it.waits -= 1
    if it.waits == 0:
        clock = state.clock[0]
        state.ready[clock.ready] = slot
        clock.ready += 1


@kernel(allocates=False)
def finish(state: LinkState, slot: int) -> None:
    """What waited for this transfer may become ready; its two members may be done."""
    operation = state.slots[slot].operation
    it = state.carried[operation]
    plan, transfers = state.schedules.plans[it.plan], state.schedules.transfers
    row = plan.transfer0 + slot - it.base
    base, members = it.base, it.base + plan.transfers
    for k in range(transfers[row].succ_start, transfers[row + 1].succ_start):
        waits_less(state, base + state.schedules.succ[k])
    src, dst = transfers[row].src, transfers[row].dst
    for end in range(1 if src == dst else 2):
        member = dst if end else src
        state.slots[members + member].waits -= 1
        if state.slots[members + member].waits == 0 and member < it.members:
            member_done(state, operation, member)
    one_less(state, operation)


@kernel(allocates=False)
def ready_in_order(state: LinkState) -> int:
    """Moves the ready slots to `order`, by operation and then by transfer. Returns how many."""
    clock, order = state.clock[0], state.order
    count = clock.ready
    clock.ready = 0
    in_order = True
    for k in range(count):
        order[k] = state.slots[state.ready[k]].operation << 32 | state.ready[k]
        if k and order[k] < order[k - 1]:
            in_order = False
    if not in_order:
        sort(order, count)
    for k in range(count):
        order[k] &= 0xFFFFFFFF
    return count


@kernel(allocates=False)
def sort(keys: I64, count: int) -> None:
    """Heap sort, in place: NumPy's would allocate."""
    for end in range(count // 2 - 1, -1, -1):
        _sink(keys, end, count)
    for end in range(count - 1, 0, -1):
        keys[0], keys[end] = keys[end], keys[0]
        _sink(keys, 0, end)


@kernel(allocates=False)
def _sink(keys: I64, at: int, count: int) -> None:
    key = keys[at]
    while 2 * at + 1 < count:
        down = 2 * at + 1
        if down + 1 < count and keys[down + 1] > keys[down]:
            down += 1
        if keys[down] <= key:
            break
        keys[at] = keys[down]
        at = down
    keys[at] = key
