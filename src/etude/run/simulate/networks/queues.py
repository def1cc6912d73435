"""Kernels of the model `packets`: a transfer is a flow of packets over the ports of its route.

Its flow has the number of its slot. Links carry payload, so packets have no headers here and no ACKs: what these take
of a link is in its rate. A transfer has landed when its last packet has.
"""

from __future__ import annotations

import numpy as np

from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel
from etude.run.simulate.networks.slots import put_event
from etude.run.simulate.networks.state import LAND, NEVER, LinkState
from etude.run.simulate.packets.events import advance, begin
from etude.run.simulate.packets.state import PacketRules, PacketState, make_packets

PACKET_BYTES = 4096
PAUSE_PACKETS, RESUME_PACKETS = 15, 12
"""Thresholds of PFC, on top of what a link moves until a pause or resume has an effect."""
PS = 1000
RULES = PacketRules(
    payload_bytes=PACKET_BYTES,
    header_bytes=0,
    answer_bytes=0,
    pads=False,
    answers=False,
    pause_bytes=PAUSE_PACKETS * PACKET_BYTES,
    resume_bytes=RESUME_PACKETS * PACKET_BYTES,
    mark_bytes=0,
    notice_ps=0,
    raise_ps=0,
)


def ports_of_links(bytes_per_s: F64, latency_ns: I64, link: I64, way: I64, slots: int) -> PacketState:
    """A port at each link: its latency is that of the wire, and its buffer has room for what is on its way."""
    wire_ps, none = np.asarray(latency_ns, np.int64) * PS, np.full(len(bytes_per_s), -1)
    zero, one = np.zeros_like(wire_ps), np.ones_like(wire_ps)
    made = make_packets(RULES, bytes_per_s, wire_ps, zero, one, link, way, none, slots)
    moves = np.ceil(2 * wire_ps * bytes_per_s / 1e12).astype(np.int64)
    made.ports["pause_bytes"] += moves
    made.ports["resume_bytes"] += moves
    return made


@kernel(allocates=False)
def send(state: LinkState, packets: PacketState | None, slot: int, size_bytes: int, lag_ns: int) -> bool:
    """The transfer begins; False if the network has no packets."""
    if packets is None:
        return False
    here, paths = state.slots[slot], state.paths
    first, last, now_ns = paths.start[here.path], paths.start[here.path + 1], state.clock[0].now_ns
    here.tail_ns = lag_ns
    if size_bytes == 0 or first == last:
        for k in range(first, last):
            lag_ns += state.links[paths.link[k]].latency_ns
        here.phase = LAND
        put_event(state, slot, now_ns + max(lag_ns, 0))
        return True
    flow = packets.flows[slot]
    flow.way0, flow.ways, flow.back0, flow.window, flow.packets = here.path, 1, -1, 0, 0
    begin(packets, slot, max(np.int64(np.ceil(here.wire_bytes)), 1), now_ns * PS)
    for k in range(first, last):
        state.links[paths.link[k]].carried_bytes += size_bytes
    return True


@kernel(allocates=False)
def next_packet(packets: PacketState | None) -> int:
    """The ns at whose end the next event of a packet has happened."""
    if packets is None:
        return NEVER
    events = packets.events
    return (events.key[events.item[0]] + PS - 1) // PS if events.size[0] > 0 else NEVER


@kernel(allocates=False)
def move_packets(state: LinkState, packets: PacketState | None, now_ns: int) -> bool:
    """All events of packets up to the instant; transfers whose last packet arrived have landed. False: no room."""
    if packets is None:
        return True
    clock = packets.clock[0]
    advance(packets, now_ns * PS, False)
    for k in range(clock.delivered):
        slot = packets.delivered[k]
        here = state.slots[slot]
        here.phase = LAND
        put_event(state, slot, now_ns + max(here.tail_ns, 0))
    clock.delivered = 0
    if clock.crowded:
        state.clock[0].crowded = 1
        return False
    return True


@kernel(allocates=False)
def is_crowded(packets: PacketState | None) -> bool:
    return packets is not None and packets.clock[0].crowded > 0
