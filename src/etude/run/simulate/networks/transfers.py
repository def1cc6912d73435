"""Kernels of networks with links: operations run transfer by transfer.

    join(state, place)      a member has arrived at its operation; False: no room, grow the state and join again
    next_time(state, ...)   when something happens next; NEVER if nothing will
    advance(state, ...)     all that happens up to a time, or up to the first instant that is the last of some member

Within an instant all events are applied first, then what became ready starts, ordered by operation and transfer: so the
order in which members arrive makes no difference.

An operation has costs of its own: a launch before its first transfers, more bytes on the wire than it sends (protocol,
jitter), lags on the latency of its routes; and a transfer whose sender or receiver computes when it starts is
slower.
"""

from __future__ import annotations

import numpy as np

from etude.kernels.arrays import I64
from etude.kernels.compile import kernel
from etude.kernels.heap import take
from etude.run.simulate.networks.external import post_outside
from etude.run.simulate.networks.flow import begin_beside, begin_flow, end_flow, leave_line, share_out, take_line
from etude.run.simulate.networks.links import hop
from etude.run.simulate.networks.queues import goes_by_packets, move_packets, next_packet, send
from etude.run.simulate.networks.resources import FULL
from etude.run.simulate.networks.slots import allocate, finish, member_done, put_event, ready_in_order, waits_less
from etude.run.simulate.networks.state import END, LAND, MOVE, NEVER, START, UNBORN, WHOLE, FlowState, LinkState


@kernel(allocates=False)
def join(state: LinkState, place: int) -> bool:
    """A member takes part from `clock.now_ns` on."""
    operation = state.places[place].operation
    it = state.carried[operation]
    if it.base == UNBORN and not allocate(state, operation):
        return False
    members, row = state.schedules.members, state.schedules.plans[it.plan].member0 + place - it.place0
    begin, end = members[row].touch_start, members[row + 1].touch_start
    for k in range(begin, end):
        waits_less(state, it.base + state.schedules.touch[k])
    if begin == end:
        member_done(state, operation, place - it.place0)
    return True


@kernel(allocates=False)
def _wire_bytes(state: LinkState, operation: int, row: int, size_bytes: int) -> float:
    """Bytes of a transfer on the wire: more for a protocol, with jitter, or next to compute."""
    it, amounts = state.carried[operation], state.amounts
    wire = np.float64(size_bytes)
    if it.wire_ppm != WHOLE:
        wire *= it.wire_ppm / WHOLE
    if it.factor0 >= 0:
        wire *= amounts.lag_ns[it.factor0 + row - state.schedules.plans[it.plan].transfer0] / WHOLE
    if it.seat0 >= 0:
        transfer = state.schedules.transfers[row]
        busy, rate = False, FULL
        for end in range(2):
            member = transfer.dst if end else transfer.src
            if member < it.members:
                busy |= amounts.instances[amounts.seat[it.seat0 + member]].computing > 0
                if len(amounts.work) > 0:
                    rate = min(rate, amounts.work[state.places[it.place0 + member].node].rate)
        if busy:
            wire = wire * state.costs.busy_milli / 1000
        if rate < FULL:
            wire = wire * FULL / rate
    return wire


@kernel(allocates=False)
def _move(state: LinkState, flows: FlowState | None, slot: int) -> None:
    """Moves the transfer to its next link, or onto all links of its route as soon as its connection is free."""
    it = state.carried[state.slots[slot].operation]
    size_bytes = state.amounts.size_bytes[it.size0 + slot - it.base]
    if (
        goes_by_packets(state, state.detail, slot, size_bytes)
        or flows is None
        or size_bytes == 0
        or take_line(state, slot)
    ):
        _move_on(state, flows, slot)


@kernel(allocates=False)
def _load(state: LinkState, flows: FlowState | None, link: int, size_bytes: int) -> float:
    """How long a link would be busy with one more transfer of this size, if those on it were as large."""
    it = state.links[link]
    if flows is not None:
        return (flows.links[link].active + 1) * size_bytes / it.bytes_per_ns
    return max(it.free_ns - state.clock[0].now_ns, 0) + (it.coming + 1) * size_bytes / it.bytes_per_ns


@kernel(allocates=False)
def _least_loaded(state: LinkState, flows: FlowState | None, first: int, size_bytes: int) -> int:
    """The least loaded of the equal routes that begin with `first`; ties go to the first."""
    best, least = first, np.inf
    for path in range(first, first + state.paths.choices):
        load = 0.0
        for k in range(state.paths.start[path], state.paths.start[path + 1]):
            load += _load(state, flows, state.paths.link[k], size_bytes)
        if load < least:
            best, least = path, load
    for k in range(state.paths.start[best], state.paths.start[best + 1]):
        state.links[state.paths.link[k]].coming += 1
    return best


@kernel(allocates=False)
def _move_on(state: LinkState, flows: FlowState | None, slot: int) -> None:
    here, amounts = state.slots[slot], state.amounts
    it = state.carried[here.operation]
    transfer = slot - it.base
    size_bytes = amounts.size_bytes[it.size0 + transfer]
    if here.hop == 0:
        if state.paths.choices > 1 and state.packets is None:
            here.path = _least_loaded(state, flows, here.path, size_bytes)
        row = state.schedules.plans[it.plan].transfer0 + transfer
        here.wire_bytes = _wire_bytes(state, here.operation, row, size_bytes)
    lag_ns = amounts.lag_ns[it.lag0 + transfer] if it.lag0 >= 0 else 0
    if flows is None:
        if post_outside(state, state.outside, slot, size_bytes, lag_ns):
            return
        if not send(state, state.packets, slot, size_bytes, lag_ns):
            hop(state, slot, size_bytes, lag_ns)
    elif here.by_packets:
        send(state, state.packets, slot, size_bytes, lag_ns)
        if size_bytes > 0 and state.paths.start[here.path] < state.paths.start[here.path + 1]:
            begin_beside(state, flows, slot)
    else:
        begin_flow(state, flows, slot, size_bytes, lag_ns)


@kernel(allocates=False)
def _start(state: LinkState, flows: FlowState | None, slot: int) -> None:
    """Starts a transfer that waits for nothing, or ends it if it goes nowhere."""
    now_ns, here = state.clock[0].now_ns, state.slots[slot]
    it = state.carried[here.operation]
    transfer = state.schedules.transfers[state.schedules.plans[it.plan].transfer0 + slot - it.base]
    here.hop = 0
    here.tail_ns = 0
    here.path = state.paths.of[it.path0 + slot - it.base]
    wait_ns = 0 if transfer.has_deps else it.launch_ns
    if transfer.src == transfer.dst:
        wait_ns += transfer.delay_ns
        if wait_ns == 0:
            finish(state, slot)
            return
        here.phase = END
    elif not transfer.has_deps:
        wait_ns += state.costs.endpoint_ns
        here.phase = START
    if wait_ns > 0:
        put_event(state, slot, now_ns + wait_ns)
    else:
        _move(state, flows, slot)


@kernel(allocates=False)
def _start_ready(state: LinkState, flows: FlowState | None) -> None:
    while state.clock[0].ready > 0:
        for k in range(ready_in_order(state)):
            _start(state, flows, state.order[k])


@kernel(allocates=False)
def _share(state: LinkState, flows: FlowState | None) -> None:
    """Updates the rates of the flows, if some began or ended."""
    if flows is not None:
        clock = flows.clock[0]
        if clock.fresh > 0 or clock.dirty > 0:
            share_out(state, flows)


@kernel(allocates=False)
def next_time(state: LinkState, flows: FlowState | None) -> int:
    if state.clock[0].ready > 0:
        _start_ready(state, flows)
    _share(state, flows)
    soon_ns = state.events.key[state.events.item[0]] if state.events.size[0] > 0 else NEVER
    return min(soon_ns, next_packet(state.packets))


@kernel(allocates=False)
def _is_there(state: LinkState, flows: FlowState | None, slot: int) -> bool:
    """The bytes have left their last link; False if the latency is still to pass."""
    if flows is not None:
        here = state.slots[slot]
        if here.phase == MOVE:
            end_flow(state, flows, slot)
            after = leave_line(state, slot)
            if after >= 0:
                _move_on(state, flows, after)
            here.phase = LAND
            if here.tail_ns > 0:
                put_event(state, slot, state.clock[0].now_ns + here.tail_ns)
                return False
    return True


@kernel(allocates=False)
def _receive_ns(state: LinkState, slot: int) -> int:
    """Time of the receiver between the landing of a transfer and its end."""
    it, costs = state.carried[state.slots[slot].operation], state.costs
    if costs.reduce_bytes_per_us > 0:
        row = state.schedules.plans[it.plan].transfer0 + slot - it.base
        if state.schedules.transfers[row].put > 0:
            size_bytes = state.amounts.size_bytes[it.size0 + slot - it.base]
            return costs.endpoint_ns + 3 * (1000 * size_bytes // costs.reduce_bytes_per_us)  # two reads, one write
    return costs.endpoint_ns


@kernel(allocates=False)
def _happen(state: LinkState, flows: FlowState | None, slot: int) -> None:
    """Handles the event of a slot."""
    here = state.slots[slot]
    if here.phase == START or (here.phase == MOVE and flows is None):
        _move(state, flows, slot)
        return
    if not _is_there(state, flows, slot):
        return
    if here.phase == LAND:
        took_ns = _receive_ns(state, slot)
        if took_ns > 0:
            here.phase = END
            put_event(state, slot, state.clock[0].now_ns + took_ns)
            return
    finish(state, slot)


@kernel(allocates=False)
def happen_all(state: LinkState, flows: FlowState | None, now_ns: int) -> None:
    """Handles all events of the instant."""
    clock, events = state.clock[0], state.events
    clock.now_ns = now_ns
    while True:
        if next_packet(state.packets) <= now_ns:
            if not move_packets(state, state.packets, flows, now_ns):
                return
        elif events.size[0] > 0 and events.key[events.item[0]] <= now_ns:
            _happen(state, flows, take(events))
        elif clock.ready > 0:
            _start_ready(state, flows)
        else:
            return


@kernel(allocates=False)
def advance(state: LinkState, flows: FlowState | None, until_ns: int) -> None:
    """Afterwards done[:clock.done] are the places that the network is done with; `clock.next_ns` is when something
    happens next, NEVER if only `next_time` can find out."""
    clock = state.clock[0]
    while clock.done == 0 and clock.next_ns <= until_ns and clock.crowded == 0:
        happen_all(state, flows, clock.next_ns)
        clock.next_ns = next_time(state, flows) if clock.done == 0 else NEVER


@kernel(allocates=False)
def run_alone(state: LinkState, flows: FlowState | None, joins_ns: I64, at: int, max_instants: int) -> int:
    """Drives the network without a workload: members join in the order of `posted`, each at its time. Returns how many
    have joined. The run is over if all have and `clock.next_ns` is NEVER; otherwise there is no room (`clock.crowded`)
    or this many instants have passed."""
    clock = state.clock[0]
    for _ in range(max_instants):
        clock.next_ns = next_time(state, flows)
        now_ns = min(clock.next_ns, joins_ns[at] if at < len(joins_ns) else NEVER)
        if now_ns == NEVER or clock.crowded:
            break
        if clock.next_ns == now_ns:
            happen_all(state, flows, now_ns)
        clock.now_ns = clock.next_ns = now_ns
        while at < len(joins_ns) and joins_ns[at] == now_ns and not clock.crowded:
            if join(state, state.posted[at]):
                at += 1
            else:
                clock.crowded = 1
        clock.done = 0
    return at
