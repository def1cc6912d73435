"""Kernels of packets: what the two ends of a flow do."""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.kernels.compile import kernel
from etude.run.simulate.packets.lists import (
    append,
    append_flow,
    draw,
    free_packet,
    leave_flows,
    new_packet,
    pop,
    pop_flow,
    schedule_by,
    schedule_flow,
    schedule_port,
)
from etude.run.simulate.packets.ports import enter_ring, leave_ring, serve
from etude.run.simulate.packets.senders import (
    credit_wanted,
    cut_rate,
    go_back,
    hear_ack,
    hear_nack,
    lose,
    may_send,
    offer,
    raise_rate,
    take_credit,
)
from etude.run.simulate.packets.state import (
    ACK,
    AGAIN,
    ASK,
    DATA,
    EMITS,
    EQDS,
    IDLE,
    LINE,
    NACK,
    NDP,
    NOTICE,
    NOTIFIES,
    PULL,
    PULLED,
    PULLS,
    RCCC,
    READY,
    RETRIES,
    PacketState,
)
from etude.run.simulate.packets.ways import aim, port_of

UNANSWERED_BYTES: Final = 16_384
"""Accepted bytes after which a receiver answers, if nothing else makes it."""
PACE: Final = 0.99
"""Of the line's rate, at which receivers give credit."""
EMPTY_PULL_BYTES: Final = 1024
"""A pull without credit takes as long as one of these bytes."""
CALM_PS: Final = 18_000_000
"""About how often receivers look at the share of packets that were marked or cut."""


@kernel(allocates=False)
def _answer(state: PacketState, packet: int) -> None:
    """A packet that a device makes goes to its port."""
    aim(state, packet)
    number = port_of(state, packet)
    append(state.packets, state.ports[number].own, packet)
    serve(state, number)


@kernel(allocates=False)
def _answer_new(state: PacketState, kind: int, flow: int, number: int) -> None:
    _answer(state, new_packet(state, kind, flow, state.rules.answer_bytes, number))


@kernel(allocates=False)
def _turn_round(state: PacketState, packet: int, kind: int) -> None:
    """The packet that came is the answer."""
    it = state.packets[packet]
    it.kind, it.size_bytes, it.place, it.came_over = kind, state.rules.answer_bytes, 0, -1
    _answer(state, packet)


@kernel(allocates=False)
def receive(state: PacketState, packet: int) -> None:
    """A packet has come to its end."""
    it = state.packets[packet]
    kind, flow = it.kind, it.flow
    if it.life != state.flows[flow].life:  # of a flow that has ended
        free_packet(state, packet)
        return
    if kind == ASK:
        if state.rules.sender == NDP:
            _owe(state, flow)
        else:
            _ask_for(state, flow, it.target)
        it.number, it.target = state.flows[flow].received, state.flows[flow].received_bytes
        state.flows[flow].unanswered_bytes = 0
        _turn_round(state, packet, ACK)
        return
    if kind == DATA:
        if state.rules.sender == LINE:
            _receive_in_order(state, packet)
        elif it.cut_at >= 0:
            _receive_header(state, packet)
        else:
            _receive_data(state, packet)
        return
    if state.rules.sender == LINE:
        number = it.number
        free_packet(state, packet)
        _hear(state, kind, flow, number)
        return
    if kind == NACK:
        hear_nack(state, packet)
    else:
        if kind == ACK:
            _end(state, flow, it.number)
            hear_ack(state, packet)
        else:
            take_credit(state, flow, it.target)
        free_packet(state, packet)
    serve(state, offer(state, flow))


@kernel(allocates=False)
def _end(state: PacketState, flow: int, acked: int) -> None:
    here, clock = state.flows[flow], state.clock[0]
    clock.acknowledged += 1
    if acked > here.acked:
        here.acked = acked
        if acked >= here.done_at and here.finished_ps < 0:
            here.finished_ps = clock.now_ps


@kernel(allocates=False)
def _deliver(state: PacketState, flow: int) -> None:
    here, clock = state.flows[flow], state.clock[0]
    here.delivered_ps = clock.now_ps
    state.delivered[clock.delivered] = flow
    clock.delivered += 1


# -- receivers of `LINE` -----------------------------------------------------------------------------------------------


@kernel(allocates=False)
def _receive_in_order(state: PacketState, packet: int) -> None:
    """Packets are accepted in order, but for a few that come early."""
    it, rules = state.packets[packet], state.rules
    number, marked, flow = it.number, it.marked, it.flow
    here = state.flows[flow]
    free_packet(state, packet)
    if marked and rules.notice_ps > 0:
        if here.quiet_ps > 0:
            here.was_marked = 1
        else:
            _notify(state, flow)
    ahead = 0 if rules.early_packets < 0 else number - here.received - 1
    if ahead > 0:
        if ahead < rules.early_packets:
            here.early |= np.int64(1) << (ahead - 1)
        elif not here.nacked:
            here.nacked = 1
            _answer_new(state, NACK, flow, here.received)
        return
    if ahead < 0:
        return
    before = here.received
    here.received += 1
    while here.early & 1:
        here.early = (here.early >> 1) & np.int64(0x7FFFFFFFFFFFFFFF)
        here.received += 1
    here.early = (here.early >> 1) & np.int64(0x7FFFFFFFFFFFFFFF)
    here.nacked = 0
    if before < here.packets <= here.received:
        _deliver(state, flow)
    if rules.answers:
        _answer_new(state, ACK, flow, here.received)


@kernel(allocates=False)
def _hear(state: PacketState, kind: int, flow: int, number: int) -> None:
    """`LINE`: an answer."""
    here, clock = state.flows[flow], state.clock[0]
    if kind == ACK:
        _end(state, flow, number)
        if here.window > 0 and here.stalled:
            here.stalled = 0
            schedule_flow(state, flow, EMITS, clock.now_ps)
    elif kind == NACK:
        here.acked = max(here.acked, number)
        _restart(state, flow)
    else:
        cut_rate(state, flow)


@kernel(allocates=False)
def _restart(state: PacketState, flow: int) -> None:
    """All that was not acknowledged is sent again."""
    here = state.flows[flow]
    had_sent, had_emitted = here.sent == here.packets, here.emitted == here.packets
    if here.sent <= here.acked:
        return
    go_back(state, flow)
    if had_sent:
        enter_ring(state, state.ports[state.link[state.way[here.way0]]], flow)
    if had_emitted:
        schedule_flow(state, flow, EMITS, state.clock[0].now_ps)


@kernel(allocates=False)
def _notify(state: PacketState, flow: int) -> None:
    clock, here = state.clock[0], state.flows[flow]
    clock.notices += 1
    here.was_marked = 0
    here.quiet_ps = clock.now_ps + state.rules.notice_ps
    _answer_new(state, NOTICE, flow, 0)
    schedule_flow(state, flow, NOTIFIES, here.quiet_ps)


@kernel(allocates=False)
def end_quiet(state: PacketState, flow: int) -> None:
    """The interval after a notice is over."""
    here = state.flows[flow]
    here.quiet_ps = 0
    if here.was_marked:
        _notify(state, flow)


# -- receivers of the others -------------------------------------------------------------------------------------------


@kernel(allocates=False)
def _receive_data(state: PacketState, packet: int) -> None:
    it, rules = state.packets[packet], state.rules
    flow = it.flow
    here = state.flows[flow]
    _count_at_pacer(state, flow, it.marked > 0, False)
    first = here.received == 0
    here.received += 1
    here.received_bytes += it.size_bytes
    here.unanswered_bytes += it.size_bytes
    here.highest = max(here.highest, it.number)
    if here.received == here.packets:
        _deliver(state, flow)
    if rules.sender == NDP:
        _owe(state, flow)
    else:
        _ask_for(state, flow, it.target)
    answers = it.marked > 0 or first or it.asks > 0 or here.unanswered_bytes >= UNANSWERED_BYTES
    if it.asks:
        here.wants = 1
    if here.wants and here.received == here.highest:
        answers, here.wants = True, 0
    if not (answers or rules.sender == EQDS or rules.sender == NDP):
        free_packet(state, packet)
        return
    here.unanswered_bytes = 0
    it.number, it.target = here.received, here.received_bytes
    _turn_round(state, packet, ACK)


@kernel(allocates=False)
def _receive_header(state: PacketState, packet: int) -> None:
    it = state.packets[packet]
    flow, before_last = it.flow, it.cut_at < it.place - 1
    _count_at_pacer(state, flow, False, before_last)
    if state.rules.sender == NDP:
        _owe(state, flow)
    else:
        if state.rules.sender == EQDS:
            state.flows[flow].again_bytes += it.full_bytes
        _ask_for(state, flow, it.target)
        if state.rules.sender == EQDS:
            _pull_again(state, flow)
        elif state.rules.sender == RCCC:
            _pull_soon(state, flow)
    _turn_round(state, packet, NACK)


@kernel(allocates=False)
def _pacer_of(state: PacketState, flow: int) -> int:
    """The port by which the receiver answers."""
    here = state.flows[flow]
    if here.back0 >= 0:
        return state.link[state.way[here.back0]]
    return state.back[state.link[state.way[here.way0 + 1] - 1]]


@kernel(allocates=False)
def _start_pacer(state: PacketState, number: int) -> None:
    port = state.ports[number]
    if not port.pulling:
        port.pulling = 1
        schedule_port(state, number, PULLS, state.clock[0].now_ps)


@kernel(allocates=False)
def _pull_soon(state: PacketState, flow: int) -> None:
    here, number = state.flows[flow], _pacer_of(state, flow)
    if not here.in_pulled:
        here.in_pulled = 1
        append_flow(state.after, state.ports[number].pulled, flow, PULLED)
        _start_pacer(state, number)


@kernel(allocates=False)
def _pull_again(state: PacketState, flow: int) -> None:
    here, number = state.flows[flow], _pacer_of(state, flow)
    if not here.in_again:
        here.in_again = 1
        append_flow(state.after, state.ports[number].again, flow, AGAIN)
        _start_pacer(state, number)


@kernel(allocates=False)
def _owe(state: PacketState, flow: int) -> None:
    """`NDP`: a pull for each packet that came, until all have."""
    here = state.flows[flow]
    if here.received == here.packets:
        here.target = here.given
        return
    here.target += state.rules.payload_bytes + state.rules.header_bytes
    _pull_soon(state, flow)


@kernel(allocates=False)
def _ask_for(state: PacketState, flow: int, target: int) -> None:
    here = state.flows[flow]
    if state.rules.pull_bytes and target > here.target:
        here.target = target
        _pull_soon(state, flow)


@kernel(allocates=False)
def pull(state: PacketState, number: int) -> None:
    """A device gives credit to the flow whose turn it is."""
    port, rules, clock = state.ports[number], state.rules, state.clock[0]
    if port.again.head >= 0:
        flow = pop_flow(state.after, port.again, AGAIN)
        given = _give_again(state, flow)
    elif port.pulled.head >= 0:
        flow = pop_flow(state.after, port.pulled, PULLED)
        given = _give(state, flow)
    elif port.idle.head >= 0:
        flow = pop_flow(state.after, port.idle, IDLE)
        given = _give_idle(state, flow)
    else:
        port.pulling = 0
        return
    if given >= 0:
        clock.pulls += 1
        packet = new_packet(state, PULL, flow, rules.answer_bytes, 0)
        state.packets[packet].target = state.flows[flow].given
        _answer(state, packet)
    if given == 0:
        given = EMPTY_PULL_BYTES
    _look_at_marks(state, number)
    per_byte = rules.pull_ps_per_byte if rules.pull_ps_per_byte > 0 else port.idle_ps_per_byte / PACE
    gap_ps = np.int64(max(given, 0) * per_byte / port.pull_rate)
    schedule_port(state, number, PULLS, clock.now_ps + gap_ps)


@kernel(allocates=False)
def _give(state: PacketState, flow: int) -> int:
    """Credit for a flow that has asked. -1: it needs none any more."""
    here, rules = state.flows[flow], state.rules
    number = _pacer_of(state, flow)
    given = rules.pull_bytes
    if rules.sender == NDP:
        given = min(given, here.target - here.given)
    elif rules.sender == RCCC:
        given = max(min(given, here.target - here.given), 0)
    here.given += given
    here.in_pulled = 0
    if here.given < here.target:
        here.in_pulled = 1
        append_flow(state.after, state.ports[number].pulled, flow, PULLED)
    elif rules.sender != NDP:
        _rest(state, flow, number)
    return given if given > 0 or rules.sender == RCCC else -1


@kernel(allocates=False)
def _give_again(state: PacketState, flow: int) -> int:
    """`EQDS`: credit for packets that were cut."""
    here, rules = state.flows[flow], state.rules
    number = _pacer_of(state, flow)
    here.again_bytes = max(here.again_bytes - rules.pull_bytes, 0)
    here.given += rules.pull_bytes
    here.in_again = 0
    if here.again_bytes > 0:
        here.in_again = 1
        append_flow(state.after, state.ports[number].again, flow, AGAIN)
    elif here.given >= here.target and here.given - here.target < here.window_bytes:
        _rest(state, flow, number)
    return rules.pull_bytes


@kernel(allocates=False)
def _rest(state: PacketState, flow: int, number: int) -> None:
    """The flow has what it asked for: more comes when the device has nothing else to pull, up to a window."""
    here = state.flows[flow]
    if not here.in_idle and here.received < here.packets:
        here.in_idle = 1
        append_flow(state.after, state.ports[number].idle, flow, IDLE)


@kernel(allocates=False)
def _give_idle(state: PacketState, flow: int) -> int:
    here, rules = state.flows[flow], state.rules
    here.in_idle = 0
    if here.received == here.packets:
        return -1
    here.given += rules.pull_bytes
    if here.given - here.target < here.window_bytes and (rules.sender == EQDS or here.given >= here.target):
        _rest(state, flow, _pacer_of(state, flow))
    return rules.pull_bytes


@kernel(allocates=False)
def _count_at_pacer(state: PacketState, flow: int, marked: bool, cut_early: bool) -> None:
    if state.rules.least_pull_rate < 1.0:
        port = state.ports[_pacer_of(state, flow)]
        port.came += 1
        port.came_marked += marked
        port.came_cut += cut_early


@kernel(allocates=False)
def _look_at_marks(state: PacketState, number: int) -> None:
    """Receivers pull more slowly where packets are cut before the last link, or many are marked."""
    rules, port, now_ps = state.rules, state.ports[number], state.clock[0].now_ps
    if rules.least_pull_rate >= 1.0:
        return
    while port.looked_ps <= now_ps:
        port.looked_ps += np.int64((0.75 + draw(state) / 2) * CALM_PS)
        whole = port.came - port.came_cut
        share = port.came_marked / whole if whole > 0 else 0.0
        slower = port.came_cut > 0
        if slower:
            port.pull_rate -= port.came_cut / port.came
        port.marked_share = (port.marked_share + share) / 2
        if port.marked_share > 0.3:
            port.pull_rate *= 1 - (port.marked_share - 0.3) / 2
            slower = True
        port.pull_step = 0.01 if slower else max(port.pull_step, 0.01) * 1.1
        if not slower:
            port.pull_rate += port.pull_step / 1.1
        port.pull_rate = min(max(port.pull_rate, rules.least_pull_rate), 1.0)
        port.came = port.came_marked = port.came_cut = 0


@kernel(allocates=False)
def retire(state: PacketState, flow: int) -> None:
    """The row of a flow that was delivered is free for another one."""
    here = state.flows[flow]
    here.life += 1
    if here.packets == 0:
        return
    if state.rules.sender == LINE and here.sent < here.packets:  # its last answers were on their way
        leave_ring(state, state.ports[state.link[state.way[here.way0]]], flow)
    while here.lost.head >= 0:
        free_packet(state, pop(state.packets, here.lost))
    while here.dropped.head >= 0:
        free_packet(state, pop(state.packets, here.dropped))
    if here.in_ready:
        leave_flows(state.after, state.ports[state.link[state.way[here.way0]]].ready, flow, READY)
    if here.in_pulled or here.in_idle or here.in_again:
        port = state.ports[_pacer_of(state, flow)]
        if here.in_pulled:
            leave_flows(state.after, port.pulled, flow, PULLED)
        if here.in_idle:
            leave_flows(state.after, port.idle, flow, IDLE)
        if here.in_again:
            leave_flows(state.after, port.again, flow, AGAIN)


# -- senders -----------------------------------------------------------------------------------------------------------


@kernel(allocates=False)
def emit(state: PacketState, flow: int) -> None:
    """`LINE`: the sender has the next packet ready, if it may."""
    here, clock, rules = state.flows[flow], state.clock[0], state.rules
    number = state.link[state.way[here.way0]]
    port = state.ports[number]
    if here.emitted == here.packets:
        return
    if port.paused or (here.window > 0 and here.emitted - here.acked >= here.window):
        here.stalled = 1
        return
    if rules.raise_ps > 0:
        raise_rate(state, flow)
    full = rules.payload_bytes + rules.header_bytes
    gap_ps = np.int64(np.rint(full * port.ps_per_byte / here.rate))
    if here.emitted > 0 and clock.now_ps < here.emitted_ps + gap_ps:
        _look_again(state, flow, here.emitted_ps + gap_ps)
        return
    here.emitted += 1
    here.emitted_ps = clock.now_ps
    serve(state, number)
    if here.emitted < here.packets:
        _look_again(state, flow, clock.now_ps + gap_ps)


@kernel(allocates=False)
def _look_again(state: PacketState, flow: int, time_ps: int) -> None:
    """The sender's next event: its packet, or an interval from now, by when it may be faster."""
    if state.flows[flow].rate < 1.0:
        time_ps = min(time_ps, state.clock[0].now_ps + state.rules.raise_ps)
    schedule_flow(state, flow, EMITS, time_ps)


@kernel(allocates=False)
def retry(state: PacketState, flow: int) -> None:
    """The time of what was dropped is over; or nothing was heard for that time since the last packet was sent."""
    here, rules, clock = state.flows[flow], state.rules, state.clock[0]
    if rules.sender == LINE:
        if here.acked < here.packets:
            if here.acked <= here.heard_bytes:
                _restart(state, flow)
            here.heard_bytes = here.acked
            schedule_flow(state, flow, RETRIES, clock.now_ps + rules.retry_ps)
        return
    full = np.float64(rules.payload_bytes + rules.header_bytes)
    while here.dropped.head >= 0 and state.packets[here.dropped.head].time_ps <= clock.now_ps:
        packet = pop(state.packets, here.dropped)
        lose(state, packet)
        here.cwnd = max(here.cwnd - state.packets[packet].full_bytes, full)
        here.credit += state.packets[packet].full_bytes  # which its receiver did not give
    if here.acked < here.packets:
        waits = here.flying_bytes > 0 or not may_send(state, flow)
        if waits and clock.now_ps >= here.emitted_ps + rules.retry_ps:
            here.cwnd = max(here.cwnd - full, full)
            here.emitted_ps = clock.now_ps
            packet = new_packet(state, ASK, flow, rules.answer_bytes, 0)
            state.packets[packet].tries = 2
            if rules.sender == RCCC or rules.sender == EQDS:
                state.packets[packet].target = credit_wanted(state, flow, 1)
            _answer(state, packet)
        since_ps = here.emitted_ps if here.emitted_ps + rules.retry_ps > clock.now_ps else clock.now_ps
        schedule_by(state, flow, RETRIES, since_ps + rules.retry_ps)
        if here.dropped.head >= 0:
            schedule_by(state, flow, RETRIES, state.packets[here.dropped.head].time_ps)
    serve(state, offer(state, flow))
