"""Kernels of packets: which way a packet goes.

Ways of a flow with the same first links are adjacent, so what a packet may still take is always a row of ways, which
each switch narrows down.
"""

from __future__ import annotations

from typing import Final

from etude.kernels.compile import kernel
from etude.run.simulate.packets.lists import draw, hash_of
from etude.run.simulate.packets.state import (
    ADAPTIVE,
    ASK,
    DATA,
    DEPTH,
    FIXED,
    FLOWLET,
    ROTATE,
    SPRAY,
    TURNS,
    PacketState,
)

PAUSE_PS: Final = 10_000_000
"""Of a flow, after which it may choose again."""


@kernel(allocates=False)
def aim(state: PacketState, packet: int) -> None:
    """Gives a packet its ways, as its sender decides."""
    it, rules = state.packets[packet], state.rules
    flow = state.flows[it.flow]
    first, count = flow.way0, flow.ways
    it.turned = 0
    if it.kind != DATA and it.kind != ASK:
        if flow.back0 < 0:
            it.turned = 1
        else:
            first, count = flow.back0, flow.backs
    it.way = it.last = first
    if count == 1 or rules.routing == FIXED:
        return
    if rules.routing == ROTATE or rules.routing == ADAPTIVE or rules.routing == FLOWLET:
        if not it.turned:
            it.last = first + count - 1
        return
    turn = flow.sprayed
    flow.sprayed += 1
    if rules.routing == SPRAY:
        it.way = first + hash_of(it.flow, turn % rules.entropies, rules.seed) % count
    elif rules.routing == TURNS:
        it.way = first + (turn + hash_of(it.flow, count, rules.seed)) % count
    it.last = it.way


@kernel(allocates=False)
def hops_of(state: PacketState, packet: int) -> int:
    way = state.packets[packet].way
    return state.way[way + 1] - state.way[way]


@kernel(allocates=False)
def port_of(state: PacketState, packet: int) -> int:
    """The next port on its way, which is chosen here if it has several."""
    it = state.packets[packet]
    if it.turned:
        return state.back[state.link[state.way[it.way + 1] - 1 - it.place]]
    if it.way < it.last:
        _narrow(state, packet)
    return state.link[state.way[it.way] + it.place]


@kernel(allocates=False)
def _narrow(state: PacketState, packet: int) -> None:
    it, rules = state.packets[packet], state.rules
    place = it.place
    count = _branches(state, it.way, it.last, place)
    if count == 1:
        return
    first = state.link[state.way[it.way] + place]
    take = -1
    if rules.routing == ROTATE:
        port = state.ports[first]
        take = (hash_of(first, port.cursor // (5 * count), rules.seed) + port.cursor) % count
        port.cursor += 1
    elif rules.routing == FLOWLET:
        take = _of_flowlet(state, packet, count)
    else:
        take = _emptiest(state, it.way, it.last, place, False)
    way, last, at = it.way, it.last, -1
    before = -1
    for w in range(way, last + 1):
        link = state.link[state.way[w] + place]
        if link != before:
            before, at = link, at + 1
            if at == take:
                it.way = w
        if at == take:
            it.last = w


@kernel(allocates=False)
def _branches(state: PacketState, way: int, last: int, place: int) -> int:
    """Different next links of these ways."""
    count, before = 0, -1
    for w in range(way, last + 1):
        link = state.link[state.way[w] + place]
        if link != before:
            before, count = link, count + 1
    return count


@kernel(allocates=False)
def _class(state: PacketState, link: int, coarse: bool) -> int:
    """How full a queue is: its bytes; or which of the shares of 5, 10 and 20% of its size it exceeds."""
    port = state.ports[link]
    if not coarse:
        return port.queue_bytes
    size = port.room_bytes
    if port.queue_bytes * 20 < size:
        return 0
    if port.queue_bytes * 10 < size:
        return 1
    return 2 if port.queue_bytes * 5 < size else 3


@kernel(allocates=False)
def _emptiest(state: PacketState, way: int, last: int, place: int, coarse: bool) -> int:
    """Which of the next links has the shortest queue; of equal ones any."""
    best, found, ties = -1, 0, 0
    at, before = -1, -1
    for w in range(way, last + 1):
        link = state.link[state.way[w] + place]
        if link == before:
            continue
        before, at = link, at + 1
        level = _class(state, link, coarse)
        if best < 0 or level < best:
            best, found, ties = level, at, 1
        elif level == best:
            ties += 1
            if draw(state) * ties < 1:
                found = at
    return found


@kernel(allocates=False)
def _of_flowlet(state: PacketState, packet: int, count: int) -> int:
    """The link of the packet before, unless the flow has paused and, every second time, another one is emptier."""
    it, now_ps = state.packets[packet], state.clock[0].now_ps
    row = 2 * (DEPTH * (2 * it.flow + (it.kind != DATA)) + min(it.place, DEPTH - 1))
    held, at, before = -1, -1, -1
    for w in range(it.way, it.last + 1):
        link = state.link[state.way[w] + it.place]
        if link != before:
            before, at = link, at + 1
            if link == state.chosen[row] - 1:
                held = at
    if held < 0 or (now_ps - state.chosen[row + 1] > PAUSE_PS and draw(state) < 0.5):
        best = _emptiest(state, it.way, it.last, it.place, True)
        if held < 0 or _class(state, _link_at(state, it.way, it.last, it.place, best), True) < _class(
            state, state.chosen[row] - 1, True
        ):
            held = best
    state.chosen[row] = _link_at(state, it.way, it.last, it.place, held) + 1
    state.chosen[row + 1] = now_ps
    return held


@kernel(allocates=False)
def _link_at(state: PacketState, way: int, last: int, place: int, take: int) -> int:
    at, before = -1, -1
    for w in range(way, last + 1):
        link = state.link[state.way[w] + place]
        if link != before:
            before, at = link, at + 1
            if at == take:
                return link
    return before
