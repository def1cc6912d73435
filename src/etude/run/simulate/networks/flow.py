"""Kernels of the model `flow`: all live flows share the links of their routes max-min fairly.

Every flow has a bottleneck, a full link on which no flow is faster. Rates change when a flow begins or ends; a flow
ends at a whole ns, and rates are computed once per ns. Transfers of one operation over one connection go in order, one
after the other, as bytes of a connection do: they take one share of a link, however many are ready.

Only flows that a change can affect are computed again: those that began, those whose bottleneck is no longer full, and
those that are faster than the new share of a full link. All others still have their bottleneck, so the rates equal
those of a full computation.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.kernels.compile import kernel
from etude.kernels.heap import empty_queue, put, take
from etude.run.simulate.networks.slots import keep_visit, put_event
from etude.run.simulate.networks.state import (
    ENTRY,
    FLOW_CLOCK,
    FLOW_LINK,
    FLOW_SLOT,
    LAND,
    MOVE,
    FlowState,
    LinkState,
    Paths,
    Table,
)
from etude.run.simulate.packets.state import PacketState

LEAST_SHARE: Final = 1e-3
"""Of a link, that flows leave to packets."""
EXCEEDS: Final = 1e-6


def make_flows(links: int, slots: int, most_hops: int, tolerance: float) -> FlowState:
    """State of the flows before there are any."""
    hop_bits = (most_hops - 1).bit_length()
    of_links = np.zeros(links, FLOW_LINK)
    of_links["head"] = -1
    return FlowState(
        clock=np.zeros(1, FLOW_CLOCK),
        hop_bits=hop_bits,
        close=max(round(tolerance * 1e9), 1) * 1e-9,
        looks=False,
        slots=np.zeros(slots, FLOW_SLOT),
        links=of_links,
        entries=np.zeros(slots << hop_bits, ENTRY),
        queue=empty_queue(links, np.float64),
        live=np.zeros(slots, np.int64),
        fresh=np.zeros(slots, np.int64),
        chosen=np.zeros(slots, np.int64),
        dirty=np.zeros(links, np.int64),
    )


def grown(flows: FlowState) -> FlowState:
    """A copy with twice the slots."""
    return flows._replace(
        slots=twice(flows.slots),
        entries=twice(flows.entries),
        live=twice(flows.live),
        fresh=twice(flows.fresh),
        chosen=twice(flows.chosen),
    )


def twice(array: NDArray[Any]) -> NDArray[Any]:
    """A copy followed by as many zeros."""
    return np.concatenate((array, np.zeros_like(array)))


@kernel(allocates=False)
def _connection(state: LinkState, slot: int) -> int:
    """The slot of the transfer's connection; -1 if it is not shared."""
    it = state.carried[state.slots[slot].operation]
    line, plan = state.paths.line[it.path0 + slot - it.base], state.schedules.plans[it.plan]
    return it.base + plan.transfers + plan.members + line if line >= 0 else -1


@kernel(allocates=False)
def take_line(state: LinkState, slot: int) -> bool:
    """True: the transfer now owns the connection; False: others are ahead, and it waits for its turn."""
    at = _connection(state, slot)
    if at < 0:
        return True
    line = state.slots[at]  # `waits`: 1 if in use; `hop`: the first transfer in line, or -1; `path`: the last
    if line.waits == 0:
        line.waits = 1
        return True
    state.slots[slot].line_next = -1
    if line.hop < 0:
        line.hop = slot
    else:
        state.slots[line.path].line_next = slot
    line.path = slot
    return False


@kernel(allocates=False)
def leave_line(state: LinkState, slot: int) -> int:
    """The transfer has drained. Returns the next one in line, or -1."""
    at = _connection(state, slot)
    if at < 0:
        return -1
    line = state.slots[at]
    after = line.hop
    if after < 0:
        line.waits = 0
    else:
        line.hop = state.slots[after].line_next
    return after


@kernel(allocates=False)
def begin_flow(state: LinkState, flows: FlowState, slot: int, size_bytes: int, lag_ns: int) -> None:
    """The flow is on all links of its route until it has drained; then it lands, after the latency of the route."""
    it, paths, now_ns = state.slots[slot], state.paths, state.clock[0].now_ns
    begin, end = paths.start[it.path], paths.start[it.path + 1]
    for k in range(begin, end):
        lag_ns += state.links[paths.link[k]].latency_ns
    it.tail_ns = max(lag_ns, 0)
    if size_bytes == 0 or begin == end:
        it.phase = LAND
        put_event(state, slot, now_ns + it.tail_ns)
        return
    it.phase = MOVE
    it.visit0 = state.clock[0].visits
    for k in range(begin, end):
        link = paths.link[k]
        keep_visit(state, slot, link, size_bytes, now_ns, -1)
        state.links[link].carried_bytes += size_bytes
        if flows.links[link].active == 0:
            flows.links[link].busy_since_ns = now_ns
        flows.links[link].flows += 1
        _enter(flows, link, slot << flows.hop_bits | k - begin)
    _add_flow(flows, slot, it.wire_bytes, now_ns)


@kernel(allocates=False)
def begin_beside(state: LinkState, flows: FlowState, slot: int) -> None:
    """A transfer goes by packets: among flows it takes part in the sharing, so that these leave it its share."""
    it, paths = state.slots[slot], state.paths
    begin, end = paths.start[it.path], paths.start[it.path + 1]
    for k in range(begin, end):
        if flows.links[paths.link[k]].active == 0:
            flows.links[paths.link[k]].busy_since_ns = state.clock[0].now_ns
        _enter(flows, paths.link[k], slot << flows.hop_bits | k - begin)
    _add_flow(flows, slot, np.inf, state.clock[0].now_ns)


@kernel(allocates=False)
def _leave_to_packets(
    state: LinkState, packets: PacketState | None, flows: FlowState, link: int, slot: int, change: float, leaves: int
) -> None:
    """A flow takes more of a link, or less, or leaves it: packets have the rest."""
    if packets is None:
        return
    if state.slots[slot].by_packets:
        return
    it, port = flows.links[link], packets.ports[link]
    it.flows -= leaves
    it.flow_load += change
    if it.flows == 0:
        it.flow_load = 0.0
        port.ps_per_byte = port.idle_ps_per_byte
        return
    whole = state.links[link].bytes_per_ns
    port.ps_per_byte = 1e3 / max(whole - it.flow_load, LEAST_SHARE * whole)


@kernel(allocates=False)
def _add_flow(flows: FlowState, slot: int, wire_bytes: float, now_ns: int) -> None:
    """Adds a live flow without a rate."""
    it, clock = flows.slots[slot], flows.clock[0]
    it.rest_bytes = wire_bytes
    it.speed = 0.0
    it.since_ns = now_ns
    it.bottleneck = -1
    it.live_at = clock.live
    flows.fresh[clock.fresh] = slot
    flows.live[clock.live] = slot
    clock.fresh += 1
    clock.live += 1


@kernel(allocates=False)
def _enter(flows: FlowState, link: int, entry: int) -> None:
    """Adds a flow to a link."""
    it, entries = flows.links[link], flows.entries
    it.active += 1
    entries[entry].after = it.head
    entries[entry].before = -1
    if it.head >= 0:
        entries[it.head].before = entry
    it.head = entry


@kernel(allocates=False)
def _leave(flows: FlowState, link: int, entry: int) -> None:
    """Removes a flow from a link."""
    it, clock, entries = flows.links[link], flows.clock[0], flows.entries
    after, before = entries[entry].after, entries[entry].before
    if before >= 0:
        entries[before].after = after
    else:
        it.head = after
    if after >= 0:
        entries[after].before = before
    it.active -= 1
    if not it.is_dirty:
        it.is_dirty = 1
        flows.dirty[clock.dirty] = link
        clock.dirty += 1


@kernel(allocates=False)
def end_flow(state: LinkState, flows: FlowState, slot: int) -> None:
    """The flow has drained."""
    paths, path, clock = state.paths, state.slots[slot].path, flows.clock[0]
    begin = paths.start[path]
    for k in range(begin, paths.start[path + 1]):
        link = paths.link[k]
        it = flows.links[link]
        if len(state.visits) > 0:
            state.visits[state.slots[slot].visit0 + k - begin].end_ns = state.clock[0].now_ns
        _leave(flows, link, slot << flows.hop_bits | k - begin)
        it.load -= flows.slots[slot].speed
        _leave_to_packets(state, state.packets, flows, link, slot, -flows.slots[slot].speed, 1)
        if it.active == 0:
            it.load = 0.0
            state.links[link].busy_ns += state.clock[0].now_ns - it.busy_since_ns
    clock.live -= 1
    last, at = flows.live[clock.live], flows.slots[slot].live_at
    flows.live[at] = last
    flows.slots[last].live_at = at


@kernel(allocates=False)
def _touch(flows: FlowState, links: Table, link: int) -> None:
    """Brings a link into the computation: the capacity that unaffected flows leave, and the level at which it is the
    bottleneck of some of them."""
    it, stamp = flows.links[link], flows.clock[0].stamp
    it.mark = stamp
    it.free = links[link].bytes_per_ns - it.load
    it.looking = 0
    it.level = np.inf
    entry = it.head
    while entry >= 0:
        slot = flows.slots[entry >> flows.hop_bits]
        entry = flows.entries[entry].after
        if slot.bottleneck == link and slot.mark != stamp:
            it.level = slot.speed
            break
    flows.queue.place[link] = -1
    if it.level < np.inf:
        put(flows.queue, link, it.level, 0)


@kernel(allocates=False)
def _choose(state: LinkState, flows: FlowState, slot: int, count: int) -> None:
    """Marks the flow for a new rate: its share of every link is free again."""
    stamp, it, paths = flows.clock[0].stamp, flows.slots[slot], state.paths
    it.mark = stamp
    it.fixed = 0
    flows.chosen[count] = slot
    path = state.slots[slot].path
    for k in range(paths.start[path], paths.start[path + 1]):
        number = paths.link[k]
        link = flows.links[number]
        if link.mark != stamp:
            _touch(flows, state.links, number)
        link.free += it.speed
        link.looking += 1
        key = min(max(link.free, 0.0) / link.looking, link.level)
        # A key that is too small is corrected when its turn comes.
        if flows.queue.place[number] < 0 or key < flows.queue.key[number]:
            put(flows.queue, number, key, 0)


@kernel(allocates=False)
def share_out(state: LinkState, flows: FlowState) -> None:
    """Computes the rates again after flows began or ended: water-filling from the lowest level up, without flows that
    the change cannot affect. Links come in the order of their level; at its level a link either gives all flows without
    a rate their share, or shows whether it is still the bottleneck of its flows."""
    queue, close = flows.queue, flows.close
    count = _begin_sharing(state, flows)
    while queue.size[0] > 0:
        number = queue.item[0]
        link = flows.links[number]
        share = max(link.free, 0.0) / link.looking if link.looking > 0 else np.inf
        key = min(share, link.level)
        if key == np.inf:
            take(queue)
            continue
        if key > queue.key[number]:  # it grew while others were served
            put(queue, number, key, 0)
            continue
        holds = link.level * (1 + close) < share
        if holds:
            link.level = np.inf
            if link.looking == 0 and link.free <= close * state.links[number].bytes_per_ns:
                continue  # as full as before: its flows keep their rates
        chosen = _choose_on(state, flows, number, count, share, holds)
        if not holds and chosen == count:
            if flows.looks:
                _look(state, flows, number)
            _fix(state.paths, state.slots, flows, number, share)
        count = chosen
    _apply(state, flows, count)


@kernel(allocates=False)
def _begin_sharing(state: LinkState, flows: FlowState) -> int:
    """Brings in links that flows have left and flows without a rate. Returns how many are chosen."""
    clock = flows.clock[0]
    clock.stamp += 1
    for k in range(clock.dirty):
        link = flows.links[flows.dirty[k]]
        link.is_dirty = 0
        if link.head >= 0 and link.mark != clock.stamp:
            _touch(flows, state.links, flows.dirty[k])
    count = clock.fresh
    for k in range(count):
        _choose(state, flows, flows.fresh[k], k)
    clock.fresh = 0
    clock.dirty = 0
    return count


@kernel(allocates=False)
def _choose_on(state: LinkState, flows: FlowState, link: int, count: int, share: float, holds: bool) -> int:
    """Chooses the flows bound by the link, or those that are faster than its share. Returns how many are chosen."""
    stamp, most = flows.clock[0].stamp, share * (1 + flows.close)
    entry = flows.links[link].head
    while entry >= 0:
        slot = entry >> flows.hop_bits
        it = flows.slots[slot]
        entry = flows.entries[entry].after
        if it.mark != stamp and (it.bottleneck == link if holds else it.speed > most):
            _choose(state, flows, slot, count)
            count += 1
    return count


@kernel(allocates=False)
def _look(state: LinkState, flows: FlowState, link: int) -> None:
    """Whether a full link is exceeded: the shares of its flows on the first links of their routes are more than it can
    take."""
    it, wanted, entry = flows.links[link], 0.0, flows.links[link].head
    while entry >= 0 and not it.exceeded:
        slot = entry >> flows.hop_bits
        first = state.paths.link[state.paths.start[state.slots[slot].path]]
        wanted += state.links[first].bytes_per_ns / flows.links[first].active
        entry = flows.entries[entry].after
    if wanted > state.links[link].bytes_per_ns * (1 + EXCEEDS):
        it.exceeded = 1


@kernel(allocates=False)
def _fix(paths: Paths, slots: Table, flows: FlowState, link: int, share: float) -> None:
    """The link is the bottleneck of all flows on it that have no rate yet."""
    stamp, entry = flows.clock[0].stamp, flows.links[link].head
    while entry >= 0:
        slot = entry >> flows.hop_bits
        it = flows.slots[slot]
        entry = flows.entries[entry].after
        if it.mark != stamp or it.fixed:
            continue
        it.fixed = 1
        it.new_bottleneck = link
        it.new_speed = share
        path = slots[slot].path
        for k in range(paths.start[path], paths.start[path + 1]):
            flows.links[paths.link[k]].free -= share
            flows.links[paths.link[k]].looking -= 1


@kernel(allocates=False)
def _apply(state: LinkState, flows: FlowState, count: int) -> None:
    """Applies the new rates from now on."""
    paths, events, now_ns = state.paths, state.events, state.clock[0].now_ns
    for k in range(count):
        slot = flows.chosen[k]
        it = flows.slots[slot]
        it.bottleneck = it.new_bottleneck
        change = it.new_speed - it.speed
        if abs(change) <= 1e-13 * it.new_speed:
            continue
        path = state.slots[slot].path
        for at in range(paths.start[path], paths.start[path + 1]):
            flows.links[paths.link[at]].load += change
            _leave_to_packets(state, state.packets, flows, paths.link[at], slot, change, 0)
        it.rest_bytes = max(it.rest_bytes - it.speed * (now_ns - it.since_ns), 0.0)
        it.since_ns = now_ns
        it.speed = it.new_speed
        if state.slots[slot].by_packets:
            continue
        # Less than a millionth of a ns is rounding noise of the division.
        left_ns = np.ceil(it.rest_bytes / it.speed - 1e-6) if it.speed > 0 else 1e18
        end_ns = now_ns + max(np.int64(min(left_ns, 1e18)), 0)
        if events.place[slot] < 0 or events.key[slot] != end_ns:
            put_event(state, slot, end_ns)
