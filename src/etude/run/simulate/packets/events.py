"""Kernels of packets: what happens at ports, switches, receivers and senders, one event after the other.

Events of one instant happen in the order in which they were scheduled.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from etude.kernels.compile import kernel
from etude.kernels.heap import put, take
from etude.run.simulate.packets.state import (
    ACK,
    ARRIVED,
    DATA,
    EMITS,
    FORWARDED,
    NOTICE,
    NOTIFIES,
    OF_FLOW,
    OF_PORT,
    PAUSE,
    RESUME,
    SENT,
    TOLD,
    PacketState,
    Table,
)

ROOM: Final = 8
"""Packets that an event may make."""
GAIN: Final = 1 / 256
"""Of DCQCN's estimate of congestion."""
FAST_ROUNDS: Final = 5


@kernel(allocates=False)
def _schedule(state: PacketState, item: int, time_ps: int, turn: int) -> None:
    put(state.events, item, time_ps, turn)


@kernel(allocates=False)
def _turn(state: PacketState) -> int:
    clock = state.clock[0]
    clock.turn += 1
    return clock.turn


@kernel(allocates=False)
def _append(packets: Table, line: Any, packet: int) -> None:
    packets[packet].next = -1
    if line.head < 0:
        line.head = packet
    else:
        packets[line.tail].next = packet
    line.tail = packet
    line.count += 1


@kernel(allocates=False)
def _pop(packets: Table, line: Any) -> int:
    packet = line.head
    line.head = packets[packet].next
    line.count -= 1
    return packet


@kernel(allocates=False)
def _later(state: PacketState, line: Any, packet: int, item: int, time_ps: int) -> None:
    """Puts a packet at the end of a line that is served in order of time."""
    it = state.packets[packet]
    it.time_ps, it.turn = time_ps, _turn(state)
    _append(state.packets, line, packet)
    if line.head == packet:
        _schedule(state, item, time_ps, it.turn)


@kernel(allocates=False)
def _due(state: PacketState, line: Any, item: int) -> int:
    """Takes the packet that is due, and schedules the one after it."""
    packet = _pop(state.packets, line)
    if line.head >= 0:
        after = state.packets[line.head]
        _schedule(state, item, after.time_ps, after.turn)
    return packet


@kernel(allocates=False)
def _new(state: PacketState, kind: int, flow: int, size_bytes: int, number: int) -> int:
    clock = state.clock[0]
    packet = clock.free
    it = state.packets[packet]
    clock.free = it.next
    it.kind, it.flow, it.size_bytes, it.number = kind, flow, size_bytes, number
    it.place, it.came_over, it.marked = 0, -1, 0
    return packet


@kernel(allocates=False)
def _drop(state: PacketState, packet: int) -> None:
    """The packet is over."""
    clock = state.clock[0]
    state.packets[packet].next = clock.free
    clock.free = packet


@kernel(allocates=False)
def _hops(state: PacketState, packet: int) -> int:
    it = state.packets[packet]
    flow = state.flows[it.flow]
    if it.kind == DATA or flow.back0 < 0:
        return flow.path1 - flow.path0
    return flow.back1 - flow.back0


@kernel(allocates=False)
def _port_of(state: PacketState, packet: int) -> int:
    """The next port on its way."""
    it = state.packets[packet]
    flow = state.flows[it.flow]
    if it.kind == DATA:
        return state.link[flow.path0 + it.place]
    if flow.back0 < 0:
        return state.back[state.link[flow.path1 - 1 - it.place]]
    return state.link[flow.back0 + it.place]


# -- ports -------------------------------------------------------------------------------------------------------------


@kernel(allocates=False)
def _next_flow(state: PacketState, number: int) -> int:
    """The flow whose turn it is at its first port; -1: none has a packet ready."""
    last = state.ports[number].turn_of
    if last < 0:
        return -1
    at = state.flows[last].after
    while True:
        it = state.flows[at]
        if it.emitted > it.sent:
            return at
        if at == last:
            return -1
        at = it.after


@kernel(allocates=False)
def _serve(state: PacketState, number: int) -> None:
    """The port begins to send, if it may and there is something."""
    port, rules = state.ports[number], state.rules
    if port.sending >= 0 or port.paused:
        return
    if port.own.head >= 0:
        packet = _pop(state.packets, port.own)
    elif port.passing.head >= 0:
        packet = _pop(state.packets, port.passing)
    else:
        flow = _next_flow(state, number)
        if flow < 0:
            return
        port.turn_of = flow
        it = state.flows[flow]
        it.sent += 1
        payload = rules.payload_bytes if rules.pads or it.sent < it.packets else it.last_bytes
        packet = _new(state, DATA, flow, payload + rules.header_bytes, it.sent)
        state.clock[0].sent += 1
        if it.sent == it.packets:
            _leave_ring(state, port, flow)
    port.sending = packet
    moving_ps = np.int64(np.rint(state.packets[packet].size_bytes * port.ps_per_byte))
    port.busy_ps += moving_ps
    item = OF_PORT * number + SENT
    _schedule(state, item, state.clock[0].now_ps + moving_ps, _turn(state))


@kernel(allocates=False)
def _enter_ring(state: PacketState, port: Any, flow: int) -> None:
    """The flow comes after those of its port that wait for their turn."""
    it = state.flows[flow]
    if port.turn_of < 0:
        it.before = it.after = flow
        port.turn_of = flow
        return
    after = port.turn_of
    last = state.flows[after].before
    it.before, it.after = last, after
    state.flows[last].after = flow
    state.flows[after].before = flow


@kernel(allocates=False)
def _leave_ring(state: PacketState, port: Any, flow: int) -> None:
    it = state.flows[flow]
    if it.after == flow:
        port.turn_of = -1
        return
    state.flows[it.before].after = it.after
    state.flows[it.after].before = it.before
    if port.turn_of == flow:
        port.turn_of = it.before


@kernel(allocates=False)
def _sent(state: PacketState, number: int) -> None:
    """A packet has left its port completely."""
    port, clock, rules = state.ports[number], state.clock[0], state.rules
    packet = port.sending
    it = state.packets[packet]
    port.carried_bytes += it.size_bytes
    if it.place > 0:
        if rules.mark_bytes > 0 and it.kind == DATA and port.queue_bytes > rules.mark_bytes:
            it.marked = 1
            port.marks += 1
        port.queue_bytes -= it.size_bytes
        _let_go(state, it.came_over, it.size_bytes)
    it.came_over = number
    it.place += 1
    _later(state, port.wire, packet, OF_PORT * number + ARRIVED, clock.now_ps + port.wire_ps)
    port.sending = -1
    _serve(state, number)


@kernel(allocates=False)
def _let_go(state: PacketState, number: int, size_bytes: int) -> None:
    """A packet that came over this port's link has left the switch."""
    port = state.ports[number]
    port.held_bytes -= size_bytes
    if port.pausing and port.held_bytes < port.resume_bytes:
        port.pausing = 0
        port.resumes += 1
        _tell(state, number, RESUME)


@kernel(allocates=False)
def _tell(state: PacketState, number: int, kind: int) -> None:
    """A pause or resume goes back over the wire."""
    port = state.ports[number]
    packet = _new(state, kind, -1, 0, 0)
    _later(state, port.told, packet, OF_PORT * number + TOLD, state.clock[0].now_ps + port.wire_ps)


@kernel(allocates=False)
def _told(state: PacketState, number: int) -> None:
    port, now_ps = state.ports[number], state.clock[0].now_ps
    packet = _due(state, port.told, OF_PORT * number + TOLD)
    kind = state.packets[packet].kind
    _drop(state, packet)
    if kind == PAUSE:
        if not port.paused:
            port.paused_since_ps = now_ps
        port.paused = 1
        return
    if port.paused:
        port.paused_ps += now_ps - port.paused_since_ps
    port.paused = 0
    _serve(state, number)
    flow = port.turn_of
    if flow < 0:
        return
    first = flow
    while True:
        it = state.flows[flow]
        if it.stalled:
            it.stalled = 0
            _schedule(state, _of_flow(state, flow, EMITS), now_ps, _turn(state))
        flow = it.after
        if flow == first:
            return


@kernel(allocates=False)
def _arrived(state: PacketState, number: int) -> None:
    """A packet is whole at the end of a wire."""
    port, clock = state.ports[number], state.clock[0]
    packet = _due(state, port.wire, OF_PORT * number + ARRIVED)
    it = state.packets[packet]
    if it.place == _hops(state, packet):
        _received(state, packet)
        return
    port.held_bytes += it.size_bytes
    port.most_held_bytes = max(port.most_held_bytes, port.held_bytes)
    if port.pause_bytes > 0 and port.to_switch and not port.pausing and port.held_bytes > port.pause_bytes:
        port.pausing = 1
        port.pauses += 1
        _tell(state, number, PAUSE)
    _later(state, port.inside, packet, OF_PORT * number + FORWARDED, clock.now_ps + port.switch_ps)


@kernel(allocates=False)
def _forwarded(state: PacketState, number: int) -> None:
    """A packet joins the queue of its next port."""
    packet = _due(state, state.ports[number].inside, OF_PORT * number + FORWARDED)
    after = _port_of(state, packet)
    port = state.ports[after]
    port.queue_bytes += state.packets[packet].size_bytes
    port.most_queue_bytes = max(port.most_queue_bytes, port.queue_bytes)
    _append(state.packets, port.passing, packet)
    _serve(state, after)


# -- ends --------------------------------------------------------------------------------------------------------------


@kernel(allocates=False)
def _of_flow(state: PacketState, flow: int, what: int) -> int:
    return OF_PORT * len(state.ports) + OF_FLOW * flow + what


@kernel(allocates=False)
def _answer(state: PacketState, kind: int, flow: int, number: int) -> None:
    packet = _new(state, kind, flow, state.rules.answer_bytes, number)
    port = _port_of(state, packet)
    _append(state.packets, state.ports[port].own, packet)
    _serve(state, port)


@kernel(allocates=False)
def _received(state: PacketState, packet: int) -> None:
    it, clock, rules = state.packets[packet], state.clock[0], state.rules
    number, kind, marked, flow = it.number, it.kind, it.marked, it.flow
    here = state.flows[flow]
    _drop(state, packet)
    if kind == DATA:
        here.received += 1
        if here.received == here.packets:
            here.delivered_ps = clock.now_ps
            state.delivered[clock.delivered] = flow
            clock.delivered += 1
        if marked and rules.notice_ps > 0:
            if here.quiet_ps > 0:
                here.was_marked = 1
            else:
                _notify(state, flow)
        if rules.answers:
            _answer(state, ACK, flow, number)
    elif kind == ACK:
        clock.acknowledged += 1
        here.acked += 1
        if here.acked == here.done_at:
            here.finished_ps = clock.now_ps
        if here.window > 0 and here.stalled:
            here.stalled = 0
            _schedule(state, _of_flow(state, flow, EMITS), clock.now_ps, _turn(state))
    else:
        here.target = here.rate
        here.rate *= 1 - here.alpha / 2
        here.alpha = (1 - GAIN) * here.alpha + GAIN
        here.rounds = 0
        here.cut_ps = clock.now_ps


@kernel(allocates=False)
def _notify(state: PacketState, flow: int) -> None:
    clock, here = state.clock[0], state.flows[flow]
    clock.notices += 1
    here.was_marked = 0
    here.quiet_ps = clock.now_ps + state.rules.notice_ps
    _answer(state, NOTICE, flow, 0)
    _schedule(state, _of_flow(state, flow, NOTIFIES), here.quiet_ps, _turn(state))


@kernel(allocates=False)
def _quiet(state: PacketState, flow: int) -> None:
    """The interval after a notice is over."""
    here = state.flows[flow]
    here.quiet_ps = 0
    if here.was_marked:
        _notify(state, flow)


@kernel(allocates=False)
def _raise_rate(state: PacketState, flow: int) -> None:
    """DCQCN: a step up for each interval without a notice."""
    here, now_ps = state.flows[flow], state.clock[0].now_ps
    while now_ps - here.cut_ps >= state.rules.raise_ps:
        here.cut_ps += state.rules.raise_ps
        here.alpha *= 1 - GAIN
        here.rounds += 1
        if here.rounds > FAST_ROUNDS:
            here.target = min(here.target + 0.05, 1.0)
        here.rate = min((here.rate + here.target) / 2, 1.0)


@kernel(allocates=False)
def _emit(state: PacketState, flow: int) -> None:
    """The sender has the next packet ready, if it may."""
    here, clock, rules = state.flows[flow], state.clock[0], state.rules
    number = state.link[here.path0]
    port = state.ports[number]
    if here.emitted == here.packets:
        return
    if port.paused or (here.window > 0 and here.emitted - here.acked >= here.window):
        here.stalled = 1
        return
    if rules.raise_ps > 0:
        _raise_rate(state, flow)
    full = rules.payload_bytes + rules.header_bytes
    gap_ps = np.int64(np.rint(full * port.ps_per_byte / here.rate))
    if here.emitted > 0 and clock.now_ps < here.emitted_ps + gap_ps:
        _look_again(state, flow, here.emitted_ps + gap_ps)
        return
    here.emitted += 1
    here.emitted_ps = clock.now_ps
    _serve(state, number)
    if here.emitted < here.packets:
        _look_again(state, flow, clock.now_ps + gap_ps)


@kernel(allocates=False)
def _look_again(state: PacketState, flow: int, time_ps: int) -> None:
    """The sender's next event: its packet, or an interval from now, by when it may be faster."""
    if state.flows[flow].rate < 1.0:
        time_ps = min(time_ps, state.clock[0].now_ps + state.rules.raise_ps)
    _schedule(state, _of_flow(state, flow, EMITS), time_ps, _turn(state))


@kernel(allocates=False)
def begin(state: PacketState, flow: int, path0: int, path1: int, size_bytes: int, now_ps: int) -> None:
    """A flow of at least one byte begins. Its row has `back0`, `back1`, `window`, and `packets` if there are more."""
    here, rules = state.flows[flow], state.rules
    here.path0, here.path1 = path0, path1
    whole = (size_bytes + rules.payload_bytes - 1) // rules.payload_bytes
    here.packets = max(here.packets, whole)
    here.done_at = whole
    here.last_bytes = size_bytes - (whole - 1) * rules.payload_bytes
    here.emitted = here.sent = here.received = here.acked = 0
    here.delivered_ps = here.finished_ps = -1
    here.begin_ps = now_ps
    here.stalled = here.was_marked = here.quiet_ps = here.rounds = 0
    here.cut_ps = now_ps
    here.rate = here.target = here.alpha = 1.0
    _enter_ring(state, state.ports[state.link[path0]], flow)
    _schedule(state, _of_flow(state, flow, EMITS), now_ps, _turn(state))


@kernel(allocates=False)
def advance(state: PacketState, until_ps: int, until_delivered: bool) -> None:
    """All events up to a time; or, if asked, up to the instant at which a flow is delivered. Stops with
    `clock.crowded` where there are too few packets."""
    clock, events, ports = state.clock[0], state.events, OF_PORT * len(state.ports)
    while events.size[0] > 0 and events.key[events.item[0]] <= until_ps:
        now_ps = events.key[events.item[0]]
        if until_delivered and clock.delivered > 0 and now_ps > clock.now_ps:
            return
        if not _has_room(state):
            clock.crowded = 1
            return
        item = take(events)
        clock.now_ps = now_ps
        clock.events += 1
        if item >= ports:
            flow, what = (item - ports) // OF_FLOW, (item - ports) % OF_FLOW
            if what == EMITS:
                _emit(state, flow)
            else:
                _quiet(state, flow)
            continue
        number, what = item // OF_PORT, item % OF_PORT
        if what == SENT:
            _sent(state, number)
        elif what == ARRIVED:
            _arrived(state, number)
        elif what == FORWARDED:
            _forwarded(state, number)
        else:
            _told(state, number)


@kernel(allocates=False)
def _has_room(state: PacketState) -> bool:
    packet = state.clock[0].free
    for _ in range(ROOM):
        if packet < 0:
            return False
        packet = state.packets[packet].next
    return True
