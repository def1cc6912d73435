"""Kernels of packets: flows that begin, and the loop over events.

Events of one instant happen in the order in which they were scheduled.
"""

from __future__ import annotations

from typing import Final

from etude.kernels.compile import kernel
from etude.kernels.heap import take
from etude.run.simulate.packets.ends import emit, end_quiet, pull, receive, retry
from etude.run.simulate.packets.lists import join_line, schedule_flow, take_due
from etude.run.simulate.packets.ports import (
    enter_ring,
    finish_sending,
    hold,
    join_queue,
    pause_or_resume,
    serve,
)
from etude.run.simulate.packets.samples import sample
from etude.run.simulate.packets.senders import offer, open_window
from etude.run.simulate.packets.state import (
    ARRIVED,
    EMITS,
    FORWARDED,
    LINE,
    LISTS,
    NOTIFIES,
    OF_FLOW,
    OF_PORT,
    RETRIES,
    SENT,
    TOLD,
    PacketState,
)
from etude.run.simulate.packets.ways import hops_of

ROOM: Final = 8
"""Packets that an event may make."""


@kernel(allocates=False)
def begin(state: PacketState, flow: int, size_bytes: int, now_ps: int) -> None:
    """A flow of at least one byte begins. Its row has its ways there and back, `window`, and `packets` if there are
    more."""
    here, rules = state.flows[flow], state.rules
    whole = (size_bytes + rules.payload_bytes - 1) // rules.payload_bytes
    here.packets = max(here.packets, whole)
    here.done_at = whole
    here.last_bytes = size_bytes - (whole - 1) * rules.payload_bytes
    here.emitted = here.sent = here.received = here.acked = here.highest = 0
    here.delivered_ps = here.finished_ps = -1
    here.begin_ps = now_ps
    here.stalled = here.was_marked = here.quiet_ps = here.rounds = 0
    here.cut_ps = now_ps
    here.rate = here.line_target = here.alpha = 1.0
    here.sprayed = here.nacked = here.early = here.trims = here.resent = 0
    here.received_bytes = here.unanswered_bytes = here.wants = 0
    here.target = here.given = here.again_bytes = 0
    here.in_pulled = here.in_idle = here.in_again = here.in_ready = 0
    here.lost.head = here.lost.tail = here.dropped.head = here.dropped.tail = -1
    for k in range(LISTS):
        state.after[LISTS * flow + k] = -1
    open_window(state, flow)
    schedule_flow(state, flow, EMITS, now_ps)
    if rules.fair and here.window == 0:
        here.window = here.window_bytes // (rules.payload_bytes + rules.header_bytes) + 1
    if rules.sender == LINE:
        enter_ring(state, state.ports[state.link[state.way[here.way0]]], flow)
    if rules.retry_ps > 0 and rules.answers:
        schedule_flow(state, flow, RETRIES, now_ps + rules.retry_ps)


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
        if now_ps >= clock.sample_ps:
            sample(state, now_ps)
        item = take(events)
        clock.now_ps = now_ps
        clock.events += 1
        if item >= ports:
            flow, what = (item - ports) // OF_FLOW, (item - ports) % OF_FLOW
            if what == EMITS:
                if state.rules.sender == LINE:
                    emit(state, flow)
                else:
                    serve(state, offer(state, flow))
            elif what == NOTIFIES:
                end_quiet(state, flow)
            else:
                retry(state, flow)
            continue
        number, what = item // OF_PORT, item % OF_PORT
        if what == SENT:
            finish_sending(state, number)
        elif what == ARRIVED:
            _arrive(state, number)
        elif what == FORWARDED:
            join_queue(state, take_due(state, state.ports[number].inside, item))
        elif what == TOLD:
            pause_or_resume(state, number)
        else:
            pull(state, number)


@kernel(allocates=False)
def _arrive(state: PacketState, number: int) -> None:
    """A packet is whole at the end of a wire."""
    port, clock = state.ports[number], state.clock[0]
    packet = take_due(state, port.wire, OF_PORT * number + ARRIVED)
    it = state.packets[packet]
    if it.place == hops_of(state, packet):
        receive(state, packet)
        return
    hold(state, number, it.size_bytes)
    join_line(state, port.inside, packet, OF_PORT * number + FORWARDED, clock.now_ps + port.switch_ps)


@kernel(allocates=False)
def _has_room(state: PacketState) -> bool:
    packet = state.clock[0].free
    for _ in range(ROOM):
        if packet < 0:
            return False
        packet = state.packets[packet].next
    return True
