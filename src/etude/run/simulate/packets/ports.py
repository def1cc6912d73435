"""Kernels of packets: ports and their queues, PFC, and what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.kernels.compile import kernel
from etude.run.simulate.packets.lists import (
    append,
    append_flow,
    append_in_turn,
    draw,
    free_packet,
    join_line,
    new_packet,
    next_turn,
    pop,
    pop_flow,
    pop_last,
    schedule_by,
    schedule_flow,
    schedule_port,
    take_due,
)
from etude.run.simulate.packets.senders import may_send, next_of_flow, packet_bytes
from etude.run.simulate.packets.state import (
    ARRIVED,
    DATA,
    EMITS,
    LINE,
    OF_PORT,
    PAUSE,
    READY,
    RESUME,
    RETRIES,
    SENT,
    TOLD,
    PacketState,
)
from etude.run.simulate.packets.ways import aim, port_of


@kernel(allocates=False)
def _next_in_ring(state: PacketState, number: int) -> int:
    """`LINE`: the flow whose turn it is at its first port; -1: none has a packet ready."""
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
def _next_packet(state: PacketState, number: int) -> int:
    """The next packet of the flows that begin here; -1: none may send."""
    port = state.ports[number]
    if state.rules.sender != LINE:
        while port.ready.head >= 0:
            flow = pop_flow(state.after, port.ready, READY)
            state.flows[flow].in_ready = 0
            if may_send(state, flow):
                packet = next_of_flow(state, flow, port.ready.count)
                if may_send(state, flow):
                    state.flows[flow].in_ready = 1
                    append_flow(state.after, port.ready, flow, READY)
                return packet
        return -1
    flow = _next_in_ring(state, number)
    if flow < 0:
        return -1
    port.turn_of = flow
    it = state.flows[flow]
    it.sent += 1
    packet = new_packet(state, DATA, flow, packet_bytes(state, flow, it.sent), it.sent)
    aim(state, packet)
    state.clock[0].sent += 1
    if it.sent == it.packets:
        leave_ring(state, port, flow)
    return packet


@kernel(allocates=False)
def serve(state: PacketState, number: int) -> None:
    """The port begins to send, if it may and there is something."""
    port, rules = state.ports[number], state.rules
    if port.sending >= 0 or port.paused:
        return
    packet = -1
    if port.own.head >= 0:
        if rules.answers_per_packet and port.answers >= rules.answers_per_packet:
            packet = _next_packet(state, number)
            port.answers = 0
        if packet < 0:
            packet = pop(state.packets, port.own)
            port.answers += port.ready.head >= 0
    elif port.urgent.head >= 0:
        packet = pop(state.packets, port.urgent)
    elif port.passing.head >= 0:
        packet = pop(state.packets, port.passing)
        port.rank = state.packets[packet].rank
    else:
        packet = _next_packet(state, number)
    if packet < 0:
        return
    port.sending = packet
    moving_ps = np.int64(np.rint(state.packets[packet].size_bytes * port.ps_per_byte))
    port.busy_ps += moving_ps
    schedule_port(state, number, SENT, state.clock[0].now_ps + moving_ps)


@kernel(allocates=False)
def enter_ring(state: PacketState, port: Any, flow: int) -> None:
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
def leave_ring(state: PacketState, port: Any, flow: int) -> None:
    it = state.flows[flow]
    if it.after == flow:
        port.turn_of = -1
        return
    state.flows[it.before].after = it.after
    state.flows[it.after].before = it.before
    if port.turn_of == flow:
        port.turn_of = it.before


@kernel(allocates=False)
def _fill(state: PacketState, port: Any, size_bytes: int) -> None:
    """The queue of data becomes longer, or shorter."""
    now_ps = state.clock[0].now_ps
    port.queue_byte_ps += np.float64(port.queue_bytes) * (now_ps - port.queue_since_ps)
    port.queue_since_ps = now_ps
    port.queue_bytes += size_bytes
    port.most_queue_bytes = max(port.most_queue_bytes, port.queue_bytes)
    port.peak_bytes = max(port.peak_bytes, port.queue_bytes)


@kernel(allocates=False)
def _mark(state: PacketState, port: Any, packet: int, queue_bytes: int) -> None:
    share = 1.0
    if queue_bytes <= port.mark_bytes:
        return
    if queue_bytes < port.mark_all_bytes:
        share = (queue_bytes - port.mark_bytes) / (port.mark_all_bytes - port.mark_bytes)
    if share < 1.0 and draw(state) >= share:
        return
    state.packets[packet].marked = 1
    port.marks += 1


@kernel(allocates=False)
def finish_sending(state: PacketState, number: int) -> None:
    """A packet has left its port completely."""
    port, clock, rules = state.ports[number], state.clock[0], state.rules
    packet = port.sending
    it = state.packets[packet]
    port.carried_bytes += it.size_bytes
    if it.place > 0:
        is_data = it.kind == DATA and it.cut_at < 0
        if port.mark_bytes > 0 and is_data and rules.sender == LINE:
            _mark(state, port, packet, port.queue_bytes)
        if is_data or not rules.trims:
            _fill(state, port, -it.size_bytes)
        else:
            port.urgent_bytes -= it.size_bytes
        if port.mark_bytes > 0 and is_data and rules.sender != LINE:
            _mark(state, port, packet, port.queue_bytes)
        _let_go(state, it.came_over, it.size_bytes)
    it.came_over = number
    it.place += 1
    join_line(state, port.wire, packet, OF_PORT * number + ARRIVED, clock.now_ps + port.wire_ps)
    port.sending = -1
    serve(state, number)


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
    packet = new_packet(state, kind, -1, 0, 0)
    join_line(state, port.told, packet, OF_PORT * number + TOLD, state.clock[0].now_ps + port.wire_ps)


@kernel(allocates=False)
def hold(state: PacketState, number: int, size_bytes: int) -> None:
    """A packet came over this port's link into a switch, which may pause the port."""
    port = state.ports[number]
    port.held_bytes += size_bytes
    port.most_held_bytes = max(port.most_held_bytes, port.held_bytes)
    if port.pause_bytes > 0 and port.to_switch and not port.pausing and port.held_bytes > port.pause_bytes:
        port.pausing = 1
        port.pauses += 1
        _tell(state, number, PAUSE)


@kernel(allocates=False)
def pause_or_resume(state: PacketState, number: int) -> None:
    port, now_ps = state.ports[number], state.clock[0].now_ps
    packet = take_due(state, port.told, OF_PORT * number + TOLD)
    kind = state.packets[packet].kind
    free_packet(state, packet)
    if kind == PAUSE:
        if not port.paused:
            port.paused_since_ps = now_ps
        port.paused = 1
        return
    if port.paused:
        port.paused_ps += now_ps - port.paused_since_ps
    port.paused = 0
    serve(state, number)
    flow = port.turn_of
    if flow < 0:
        return
    first = flow
    while True:
        it = state.flows[flow]
        if it.stalled:
            it.stalled = 0
            schedule_flow(state, flow, EMITS, now_ps)
        flow = it.after
        if flow == first:
            return


@kernel(allocates=False)
def join_queue(state: PacketState, packet: int) -> None:
    """A packet joins the queue of its next port, or what of it fits."""
    number = port_of(state, packet)
    port, rules, it = state.ports[number], state.rules, state.packets[packet]
    if rules.trims and (it.kind != DATA or it.cut_at >= 0):
        _join_urgent(state, port, packet)
    elif port.room_bytes == 0 or it.kind != DATA or port.queue_bytes + it.size_bytes <= port.room_bytes:
        _fill(state, port, it.size_bytes)
        if rules.fair:
            append_in_turn(state.packets, port.passing, packet, port.rank)
        else:
            append(state.packets, port.passing, packet)
    elif not rules.trims:
        _drop(state, port, packet)
    elif port.passing.head >= 0 and draw(state) < 0.5:
        youngest = pop_last(state.packets, port.passing)
        _fill(state, port, -state.packets[youngest].size_bytes)
        _cut(state, port, youngest)
        _fill(state, port, it.size_bytes)
        append(state.packets, port.passing, packet)
    else:
        _cut(state, port, packet)
    serve(state, number)


@kernel(allocates=False)
def _cut(state: PacketState, port: Any, packet: int) -> None:
    it, header_bytes = state.packets[packet], state.rules.answer_bytes
    _let_go(state, it.came_over, it.size_bytes - header_bytes)
    it.size_bytes, it.cut_at = header_bytes, it.place
    port.trims += 1
    state.flows[it.flow].trims += 1
    _join_urgent(state, port, packet)


@kernel(allocates=False)
def _join_urgent(state: PacketState, port: Any, packet: int) -> None:
    it, room = state.packets[packet], state.rules.control_bytes
    if room > 0 and it.kind == DATA and port.urgent_bytes + it.size_bytes > room:
        _drop(state, port, packet)
        return
    port.urgent_bytes += it.size_bytes
    append(state.packets, port.urgent, packet)


@kernel(allocates=False)
def _drop(state: PacketState, port: Any, packet: int) -> None:
    """A packet of data is lost. Its sender has it again when its time is over."""
    it, rules, now_ps = state.packets[packet], state.rules, state.clock[0].now_ps
    _let_go(state, it.came_over, it.size_bytes)
    port.drops += 1
    flow = it.flow
    if rules.sender == LINE:
        free_packet(state, packet)
        return
    here, time_ps = state.flows[flow], max(it.sent_ps + rules.retry_ps, now_ps)
    it.size_bytes, it.time_ps, it.turn = it.full_bytes, time_ps, next_turn(state)
    append(state.packets, here.dropped, packet)
    schedule_by(state, flow, RETRIES, time_ps)
