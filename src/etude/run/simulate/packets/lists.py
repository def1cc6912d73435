"""Kernels of packets: lists of packets and flows, events, and random numbers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from etude.kernels.compile import kernel
from etude.kernels.heap import put
from etude.run.simulate.packets.state import LISTS, OF_FLOW, OF_PORT, PacketState, Table


@kernel(allocates=False)
def next_turn(state: PacketState) -> int:
    """Events of one instant happen in the order of their turns."""
    clock = state.clock[0]
    clock.turn += 1
    return clock.turn


@kernel(allocates=False)
def schedule_flow(state: PacketState, flow: int, what: int, time_ps: int) -> None:
    put(state.events, OF_PORT * len(state.ports) + OF_FLOW * flow + what, time_ps, next_turn(state))


@kernel(allocates=False)
def schedule_port(state: PacketState, port: int, what: int, time_ps: int) -> None:
    put(state.events, OF_PORT * port + what, time_ps, next_turn(state))


@kernel(allocates=False)
def schedule_by(state: PacketState, flow: int, what: int, time_ps: int) -> None:
    """At this time, or before it if the event has such a time already."""
    item = OF_PORT * len(state.ports) + OF_FLOW * flow + what
    if state.events.place[item] < 0 or state.events.key[item] > time_ps:
        put(state.events, item, time_ps, next_turn(state))


@kernel(allocates=False)
def append(packets: Table, line: Any, packet: int) -> None:
    packets[packet].next = -1
    packets[packet].before = line.tail
    if line.head < 0:
        line.head = packet
    else:
        packets[line.tail].next = packet
    line.tail = packet
    line.count += 1


@kernel(allocates=False)
def pop(packets: Table, line: Any) -> int:
    packet = line.head
    line.head = packets[packet].next
    if line.head < 0:
        line.tail = -1
    line.count -= 1
    return packet


@kernel(allocates=False)
def pop_last(packets: Table, line: Any) -> int:
    packet = line.tail
    line.tail = packets[packet].before
    if line.count == 1:
        line.head = line.tail = -1
    else:
        packets[line.tail].next = -1
    line.count -= 1
    return packet


@kernel(allocates=False)
def insert(packets: Table, line: Any, packet: int) -> None:
    """Puts a packet into a list in order of numbers."""
    number, at = packets[packet].number, line.tail
    if at < 0 or packets[at].number < number:
        append(packets, line, packet)
        return
    at, last = line.head, -1
    while packets[at].number < number:
        last, at = at, packets[at].next
    packets[packet].next = at
    if last < 0:
        line.head = packet
    else:
        packets[last].next = packet
    line.count += 1


@kernel(allocates=False)
def _last_before(packets: Table, line: Any, rank: int, packet: int) -> int:
    """The last packet in line of at most this rank, or, if it is negative, of the same flow; -1: there is none."""
    it, at = packets[packet], line.tail
    while at >= 0:
        other = packets[at]
        if (rank >= 0 and other.rank <= rank) or (rank < 0 and other.flow == it.flow and other.kind == it.kind):
            return at
        at = other.before if at != line.head else -1
    return -1


@kernel(allocates=False)
def append_in_turn(packets: Table, line: Any, packet: int, since: int) -> None:
    """Puts a packet where its flow's turn is. Its rank is that of the flow's last one in line, or `since`, that of the
    packet that was sent last, and its own bytes; lower ranks come first, of equal ones the one that came first."""
    it = packets[packet]
    last = _last_before(packets, line, -1, packet)
    it.rank = (packets[last].rank if last >= 0 else since) + it.size_bytes
    at = _last_before(packets, line, it.rank, packet)
    if at == line.tail:
        append(packets, line, packet)
        return
    after = line.head if at < 0 else packets[at].next
    it.before, it.next = at, after
    packets[after].before = packet
    if at < 0:
        line.head = packet
    else:
        packets[at].next = packet
    line.count += 1


@kernel(allocates=False)
def append_flow(after: Any, line: Any, flow: int, which: int) -> None:
    after[LISTS * flow + which] = -1
    if line.head < 0:
        line.head = flow
    else:
        after[LISTS * line.tail + which] = flow
    line.tail = flow
    line.count += 1


@kernel(allocates=False)
def pop_flow(after: Any, line: Any, which: int) -> int:
    flow = line.head
    line.head = after[LISTS * flow + which]
    line.count -= 1
    return flow


@kernel(allocates=False)
def leave_flows(after: Any, line: Any, flow: int, which: int) -> None:
    """Takes a flow out of the middle of a list."""
    before, at = -1, line.head
    while at >= 0 and at != flow:
        before, at = at, after[LISTS * at + which]
    if at < 0:
        return
    beyond = after[LISTS * flow + which]
    if before < 0:
        line.head = beyond
    else:
        after[LISTS * before + which] = beyond
    if line.tail == flow:
        line.tail = before
    line.count -= 1


@kernel(allocates=False)
def join_line(state: PacketState, line: Any, packet: int, item: int, time_ps: int) -> None:
    """Puts a packet at the end of a line that is served in order of time."""
    it = state.packets[packet]
    it.time_ps, it.turn = time_ps, next_turn(state)
    append(state.packets, line, packet)
    if line.head == packet:
        put(state.events, item, time_ps, it.turn)


@kernel(allocates=False)
def take_due(state: PacketState, line: Any, item: int) -> int:
    """Takes the packet that is due, and schedules the one after it."""
    packet = pop(state.packets, line)
    if line.head >= 0:
        after = state.packets[line.head]
        put(state.events, item, after.time_ps, after.turn)
    return packet


@kernel(allocates=False)
def new_packet(state: PacketState, kind: int, flow: int, size_bytes: int, number: int) -> int:
    clock = state.clock[0]
    packet = clock.free
    it = state.packets[packet]
    clock.free = it.next
    it.kind, it.flow, it.size_bytes, it.full_bytes, it.number = kind, flow, size_bytes, size_bytes, number
    it.place, it.came_over, it.marked, it.cut_at, it.asks, it.target, it.tries = 0, -1, 0, -1, 0, 0, 0
    it.way, it.last, it.turned, it.sent_ps = 0, 0, 0, clock.now_ps
    it.life = state.flows[flow].life if flow >= 0 else 0
    return packet


@kernel(allocates=False)
def free_packet(state: PacketState, packet: int) -> None:
    clock = state.clock[0]
    state.packets[packet].next = clock.free
    clock.free = packet


_A: Final = np.uint64(0xBF58476D1CE4E5B9)
_B: Final = np.uint64(0x94D049BB133111EB)
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)


@kernel(allocates=False)
def hash_of(a: int, b: int, c: int) -> int:
    """A number from 0 to 2^31 that depends on three."""
    x = np.uint64(a) * _STEP + np.uint64(b) * _A + np.uint64(c) * _B + _STEP
    x = (x ^ (x >> np.uint64(30))) * _A
    x = (x ^ (x >> np.uint64(27))) * _B
    return int((x ^ (x >> np.uint64(31))) >> np.uint64(33))


@kernel(allocates=False)
def draw(state: PacketState) -> float:
    """A random number from 0 to 1."""
    clock = state.clock[0]
    clock.random += _STEP
    x = clock.random
    x = (x ^ (x >> np.uint64(30))) * _A
    x = (x ^ (x >> np.uint64(27))) * _B
    return np.float64((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * (1.0 / 9007199254740992.0)
