"""Kernels of packets: what a sender may send, and how it reacts to answers.

`LINE` has the next packet ready at its rate, whether or not its port is free; all others hand a packet to their port
when it is their turn and window or credit allow it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.kernels.compile import kernel
from etude.run.simulate.packets.lists import append_flow, insert, new_packet, pop
from etude.run.simulate.packets.state import DATA, DCTCP, EQDS, NDP, NSCC, RCCC, READY, PacketState
from etude.run.simulate.packets.ways import aim

GAIN: Final = 1 / 256
"""Of DCQCN's estimate of congestion."""
LEAST_RATE: Final = 1e-5
"""Of DCQCN, of the line: one notice after the other would make a rate as small as none."""
FAST_ROUNDS: Final = 5
MEMORY: Final = 0.0125
"""Of NSCC's average of delays."""
REFERENCE_BYTES: Final = 150_000.0
"""Bandwidth-delay product for which NSCC's constants are: 100 Gb/s and 12 us."""
REFERENCE_PS: Final = 12_000_000.0
TARGET: Final = 0.75
"""Of NSCC's queueing delay, of an idle round trip."""
LEAST_PACKETS: Final = 16
"""Of a window: answers come for every few packets."""
QUICK_PS: Final = 1_000_000
"""A queueing delay below which NSCC grows fast."""


@kernel(allocates=False)
def packet_bytes(state: PacketState, flow: int, number: int) -> int:
    here, rules = state.flows[flow], state.rules
    payload = rules.payload_bytes if rules.pads or number < here.packets else here.last_bytes
    return payload + rules.header_bytes


@kernel(allocates=False)
def may_send(state: PacketState, flow: int) -> bool:
    """Whether there is something to send, and window and credit are enough."""
    here, sender = state.flows[flow], state.rules.sender
    if here.lost.head >= 0:
        size = state.packets[here.lost.head].full_bytes
    elif here.sent < here.packets:
        size = packet_bytes(state, flow, here.sent + 1)
    else:
        return False
    if sender == RCCC:
        return here.credit + here.free > 0
    if sender in (EQDS, NDP):
        return here.credit + here.free >= size
    return here.cwnd >= here.flying_bytes + size


@kernel(allocates=False)
def offer(state: PacketState, flow: int) -> int:
    """Puts a flow in the line of its port, if it may send. Returns the port."""
    here = state.flows[flow]
    number = state.link[state.way[here.way0]]
    if not here.in_ready and may_send(state, flow):
        here.in_ready = 1
        append_flow(state.after, state.ports[number].ready, flow, READY)
    return number


@kernel(allocates=False)
def next_of_flow(state: PacketState, flow: int, ready: int) -> int:
    """The flow's next packet; `ready` other flows are in the line of its port."""
    here, rules, clock = state.flows[flow], state.rules, state.clock[0]
    if here.lost.head >= 0:
        packet = pop(state.packets, here.lost)
        it = state.packets[packet]
        it.kind, it.size_bytes = DATA, it.full_bytes
        it.place, it.came_over, it.marked, it.cut_at = 0, -1, 0, -1
        it.tries += 1
        here.lost_bytes -= it.full_bytes
        here.resent += 1
        clock.resent += 1
    else:
        here.sent += 1
        packet = new_packet(state, DATA, flow, packet_bytes(state, flow, here.sent), here.sent)
        it = state.packets[packet]
        here.rest_bytes -= it.full_bytes
        clock.sent += 1
    it.sent_ps = here.emitted_ps = clock.now_ps
    size = it.full_bytes
    here.flying_bytes += size
    if rules.sender == RCCC or rules.sender == EQDS or rules.sender == NDP:
        _spend(state, flow, size)
        it.target = credit_wanted(state, flow, ready)
        it.asks = here.rest_bytes == 0 or here.credit + here.free <= 0
    else:
        it.asks = here.rest_bytes == 0 or here.flying_bytes + size >= here.cwnd
    if it.tries:
        it.asks = 1
    aim(state, packet)
    return packet


@kernel(allocates=False)
def _spend(state: PacketState, flow: int, size: int) -> None:
    """Credit that was given first, then what the flow began with."""
    here = state.flows[flow]
    here.credit -= size
    if here.credit < 0 and here.free > 0:
        taken = min(here.free, -here.credit)
        here.free -= taken
        here.credit += taken


@kernel(allocates=False)
def credit_wanted(state: PacketState, flow: int, ready: int) -> int:
    """All credit that the sender asks for from the begin, in bytes."""
    here, rules = state.flows[flow], state.rules
    most = np.float64(here.window_bytes)
    wanted = np.float64(here.rest_bytes + here.lost_bytes)
    wanted = min(wanted, most) - here.credit - here.free
    full = rules.payload_bytes + rules.header_bytes
    if here.free > 0 and wanted < full and here.rest_bytes > 0:  # what was free ends with the first answer
        wanted = np.float64(full)
    if rules.sender == RCCC and ready > 1:
        wanted /= ready
    return int(np.ceil((wanted + here.pulled) / 256)) * 256


@kernel(allocates=False)
def take_credit(state: PacketState, flow: int, given: int) -> None:
    """A pull: credit given so far."""
    here, rules = state.flows[flow], state.rules
    if rules.sender == RCCC:
        here.free = 0
    if given > here.pulled:
        here.credit += given - here.pulled
        here.pulled = given
        if rules.sender == RCCC:
            here.credit = min(here.credit, np.float64(here.window_bytes))
        elif rules.sender == NDP:  # a pull may come before the NACK of what it is for
            here.credit = min(here.credit, np.float64(here.rest_bytes + here.lost_bytes + here.flying_bytes))


@kernel(allocates=False)
def hear_ack(state: PacketState, packet: int) -> None:
    """An ACK, with the bytes that its receiver has."""
    it, rules, now_ps = state.packets[packet], state.rules, state.clock[0].now_ps
    here = state.flows[it.flow]
    fresh = max(it.target - here.heard_bytes, 0)
    here.heard_bytes += fresh
    here.flying_bytes -= fresh
    if rules.sender == RCCC or rules.sender == EQDS:
        here.free = 0
    elif rules.sender == DCTCP:
        if it.marked:
            here.cwnd -= fresh // 3
        else:
            here.cwnd += np.floor(fresh * (rules.payload_bytes + rules.header_bytes) / here.cwnd)
        here.cwnd = max(here.cwnd, np.float64(rules.payload_bytes + rules.header_bytes))
    elif rules.sender == NSCC:
        here.achieved_bytes += fresh
        here.grown_bytes += fresh
        here.ignored_bytes += fresh
        delay_ps = here.delay_ps
        trip_ps = now_ps - it.sent_ps
        if it.tries < 2:
            _shorten_base(state, it.flow, trip_ps)
            if trip_ps >= here.base_ps:
                delay_ps = np.float64(trip_ps - here.base_ps)
                seen_ps = delay_ps
                if not it.marked and delay_ps > TARGET * here.net_ps:
                    seen_ps = 0.25 * here.base_ps
                here.delay_ps += MEMORY * (seen_ps - here.delay_ps)
        _adjust_window(state, it.flow, it.marked > 0, delay_ps, fresh)


@kernel(allocates=False)
def _shorten_base(state: PacketState, flow: int, trip_ps: int) -> None:
    here = state.flows[flow]
    if trip_ps < here.base_ps:
        here.base_ps = trip_ps
        here.most_cwnd = np.floor(np.float64(here.window_bytes) * trip_ps / here.net_ps)


@kernel(allocates=False)
def _bound_window(state: PacketState, flow: int) -> None:
    here, rules = state.flows[flow], state.rules
    least = np.float64(rules.payload_bytes + rules.header_bytes)
    here.cwnd = min(max(here.cwnd, least), here.most_cwnd)


@kernel(allocates=False)
def _adapts_quickly(state: PacketState, flow: int, lost: bool, marked: bool, delay_ps: float) -> bool:
    """After losses: the window becomes what was delivered in a while, and what was in flight then is not counted."""
    here, rules, now_ps = state.flows[flow], state.rules, state.clock[0].now_ps
    target_ps, done = TARGET * here.net_ps, False
    if here.ignored_bytes < here.ignore_bytes and marked:
        done = True
    elif now_ps > here.achieved_ps:
        late = here.adapts or lost or delay_ps > 4 * target_ps
        if here.achieved_ps != 0 and late and here.achieved_bytes < np.floor(here.most_cwnd / 8):
            here.cwnd = max(np.float64(here.achieved_bytes), np.float64(rules.payload_bytes + rules.header_bytes))
            here.ignore_bytes, here.ignored_bytes = here.flying_bytes, 0
            here.adapts = 0
            done = True
        here.achieved_bytes = 0
        here.achieved_ps = now_ps + here.base_ps + np.int64(target_ps)
    if done:
        here.grows, here.grown_bytes = 0.0, 0
    return done


@kernel(allocates=False)
def _adjust_window(state: PacketState, flow: int, marked: bool, delay_ps: float, fresh: int) -> None:
    """NSCC: on marks and the queueing delay against its target."""
    if _adapts_quickly(state, flow, False, marked, delay_ps):
        return
    here, rules, now_ps = state.flows[flow], state.rules, state.clock[0].now_ps
    target_ps, full = TARGET * here.net_ps, rules.payload_bytes + rules.header_bytes
    scale = here.window_bytes / 1.5 / REFERENCE_BYTES
    if not marked and delay_ps >= target_ps:
        here.grows += 5 * rules.payload_bytes * scale * fresh
    elif not marked:
        if not _grows_fast(state, flow, delay_ps, fresh, scale):
            gain = 4.0 * rules.payload_bytes * scale * (target_ps / REFERENCE_PS) / target_ps
            here.grows += gain * fresh * (target_ps - delay_ps)
    elif delay_ps >= target_ps:
        here.fast = here.fast_bytes = 0
        if here.delay_ps > target_ps and now_ps - here.cut_ps > here.base_ps:
            here.cwnd *= max(1 - 0.8 * (here.delay_ps - target_ps) / here.delay_ps, 0.5)
            here.cwnd = max(here.cwnd, np.float64(full))
            here.cut_ps = now_ps
    _bound_window(state, flow)
    if here.grown_bytes > 8 * full or now_ps - here.adjusted_ps > here.net_ps:
        here.cwnd += np.floor(here.grows / here.cwnd)
        if now_ps - here.adjusted_ps >= here.net_ps:
            here.cwnd += np.floor(0.15 * rules.payload_bytes * scale)
            here.adjusted_ps = now_ps
        here.grows, here.grown_bytes = 0.0, 0
    _bound_window(state, flow)


@kernel(allocates=False)
def _grows_fast(state: PacketState, flow: int, delay_ps: float, fresh: int, scale: float) -> bool:
    """After a window without queues."""
    here = state.flows[flow]
    if delay_ps < QUICK_PS:
        here.fast_bytes += fresh
        if here.fast_bytes > here.cwnd or here.fast:
            here.cwnd += np.floor(fresh * 0.25 * scale)
            here.fast = 1
            return True
    else:
        here.fast_bytes = 0
    here.fast = 0
    return False


@kernel(allocates=False)
def hear_nack(state: PacketState, packet: int) -> None:
    """A packet was cut: it becomes the sender's, to be sent again."""
    it, rules = state.packets[packet], state.rules
    here, size = state.flows[it.flow], it.full_bytes
    if rules.sender == RCCC or rules.sender == EQDS:
        here.free = 0
    elif rules.sender == DCTCP:
        here.cwnd = max(here.cwnd - size, np.float64(rules.payload_bytes + rules.header_bytes))
    elif rules.sender == NSCC:
        _shorten_base(state, it.flow, state.clock[0].now_ps - it.sent_ps)
        here.ignored_bytes += size
        here.delay_ps += MEMORY * (here.net_ps - here.delay_ps)
        here.adapts = 1
        if not _adapts_quickly(state, it.flow, True, True, 0.0):
            here.cwnd -= size
            _bound_window(state, it.flow)
    lose(state, packet)


@kernel(allocates=False)
def lose(state: PacketState, packet: int) -> None:
    it = state.packets[packet]
    here = state.flows[it.flow]
    here.flying_bytes -= it.full_bytes
    here.lost_bytes += it.full_bytes
    insert(state.packets, here.lost, packet)


@kernel(allocates=False)
def open_window(state: PacketState, flow: int) -> None:
    """Window or credit with which a flow begins."""
    here, rules = state.flows[flow], state.rules
    here.rest_bytes = (here.packets - 1) * packet_bytes(state, flow, 1) + packet_bytes(state, flow, here.packets)
    if here.packets == 1:
        here.rest_bytes = packet_bytes(state, flow, 1)
    here.lost_bytes = here.flying_bytes = here.heard_bytes = here.pulled = 0
    here.net_ps, here.window_bytes = rules.base_ps, rules.window_bytes
    if rules.base_ps == 0:
        _size_by_way(state, flow)
    here.cwnd = here.most_cwnd = np.float64(here.window_bytes)
    here.free = min(here.cwnd, np.float64(here.rest_bytes)) if rules.sender == NDP else here.cwnd
    here.credit = here.delay_ps = here.grows = 0.0
    here.base_ps = here.net_ps
    here.grown_bytes = here.fast_bytes = here.fast = here.adapts = 0
    here.adjusted_ps = here.achieved_bytes = here.achieved_ps = here.ignored_bytes = here.ignore_bytes = 0


@kernel(allocates=False)
def _size_by_way(state: PacketState, flow: int) -> None:
    """The idle round trip of the flow's first way, and one and a half times what its slowest link moves in it, or a few
    packets."""
    here, rules = state.flows[flow], state.rules
    both = rules.payload_bytes + rules.header_bytes + rules.answer_bytes
    trip_ps, slowest = 0.0, 0.0
    for k in range(state.way[here.way0], state.way[here.way0 + 1]):
        port = state.ports[state.link[k]]
        trip_ps += 2 * (port.wire_ps + port.switch_ps) + both * port.ps_per_byte
        slowest = max(slowest, port.ps_per_byte)
    here.net_ps = np.int64(trip_ps)
    here.window_bytes = np.int64(max(1.5 * trip_ps / slowest, LEAST_PACKETS * both))


@kernel(allocates=False)
def raise_rate(state: PacketState, flow: int) -> None:
    """DCQCN: a step up for each interval without a notice."""
    here, now_ps = state.flows[flow], state.clock[0].now_ps
    while now_ps - here.cut_ps >= state.rules.raise_ps:
        here.cut_ps += state.rules.raise_ps
        here.alpha *= 1 - GAIN
        here.rounds += 1
        if here.rounds > FAST_ROUNDS:
            here.line_target = min(here.line_target + 0.05, 1.0)
        here.rate = min((here.rate + here.line_target) / 2, 1.0)


@kernel(allocates=False)
def cut_rate(state: PacketState, flow: int) -> None:
    """DCQCN: a notice."""
    here = state.flows[flow]
    here.line_target = here.rate
    here.rate = max(here.rate * (1 - here.alpha / 2), LEAST_RATE)
    here.alpha = (1 - GAIN) * here.alpha + GAIN
    here.rounds = 0
    here.cut_ps = state.clock[0].now_ps


@kernel(allocates=False)
def go_back(state: PacketState, flow: int) -> None:
    """`LINE`: all packets after those that were acknowledged are sent again."""
    here = state.flows[flow]
    back = here.sent - here.acked
    here.sent -= back
    here.emitted -= back
    here.resent += back
    state.clock[0].resent += back
