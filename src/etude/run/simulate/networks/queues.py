"""Kernels of the model `packets`: a transfer is a flow of packets over the ports of its route.

Its flow has the number of its slot. Links carry payload, so packets have no headers here: what these take of a link is
in its rate. A transfer has landed when its last packet has.
"""

from __future__ import annotations

import numpy as np

from etude.base.errors import ClusterError
from etude.kernels.arrays import I64
from etude.kernels.compile import kernel
from etude.machine.topology import Topology
from etude.run.simulate.networks.flow import end_flow
from etude.run.simulate.networks.slots import keep_visit, put_event
from etude.run.simulate.networks.state import LAND, NEVER, FlowState, LinkState, PacketDetail
from etude.run.simulate.packets.ends import retire
from etude.run.simulate.packets.events import advance, begin
from etude.run.simulate.packets.state import (
    ADAPTIVE,
    DCTCP,
    EQDS,
    FIXED,
    NDP,
    NSCC,
    RCCC,
    SPRAY,
    PacketRules,
    PacketState,
    make_packets,
    with_samples,
)

PACKET_BYTES = 4096
PAUSE_PACKETS, RESUME_PACKETS = 15, 12
"""Thresholds of PFC, on top of what a link moves until a pause or resume has an effect."""
CREDIT_BYTES = 64 << 10
"""Buffer behind a link that gives credits, on top of the same."""
ANSWER_BYTES = 64
LEAST_ROOM_PACKETS = 16
MARK_SHARES = 0.2, 0.8
"""Of a queue's room: no marks below, all above."""
RETRY_PS = 15_000_000
NOTICE_PS, RAISE_PS = 50_000_000, 55_000_000
"""DCQCN: between two notices of a receiver, and after which a sender without one is faster."""
SLOWEST_PULLS = 0.2
"""Of the line, where receivers slow down since packets are cut on their way."""
PS = 1000
_LOSSLESS = PacketRules(
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
    early_packets=-1,
)
_DCQCN = _LOSSLESS._replace(answer_bytes=ANSWER_BYTES, notice_ps=NOTICE_PS, raise_ps=RAISE_PS)
_WINDOWS = _LOSSLESS._replace(answer_bytes=ANSWER_BYTES, answers=True, pause_bytes=0, resume_bytes=0)
_CUT = _WINDOWS._replace(trims=True, pull_bytes=PACKET_BYTES)
FABRICS = {
    "roce": _LOSSLESS,
    "roce-dcqcn": _DCQCN,
    "roce-lossy": _DCQCN._replace(answers=True, pause_bytes=0, resume_bytes=0, early_packets=0, retry_ps=RETRY_PS),
    "dctcp": _WINDOWS._replace(sender=DCTCP, retry_ps=RETRY_PS),
    "infiniband": _LOSSLESS._replace(pause_bytes=CREDIT_BYTES, resume_bytes=CREDIT_BYTES),
    "fair": _LOSSLESS._replace(answers=True, pause_bytes=0, resume_bytes=0, fair=True),
    "ultra-ethernet": _CUT._replace(sender=NSCC, pull_bytes=0, retry_ps=RETRY_PS),
    "ultra-ethernet-credits": _CUT._replace(
        sender=RCCC, pull_bytes=4 * PACKET_BYTES, least_pull_rate=SLOWEST_PULLS, retry_ps=RETRY_PS
    ),
    "eqds": _CUT._replace(sender=EQDS, retry_ps=RETRY_PS),
    "ndp": _CUT._replace(sender=NDP, retry_ps=RETRY_PS),
}
"""Rules by the names of fabrics. Those with a time after which packets are sent again have finite queues, and all
but those of windows alone mark packets."""
ROUTINGS = {"static": FIXED, "spray": SPRAY, "adaptive": ADAPTIVE}


def ports_of_links(topology: Topology, fabric: str, routing: str, link: I64, way: I64, slots: int) -> PacketState:
    """A port at each link: its latency is that of the wire, and its buffer has room for what is on its way."""
    bytes_per_s, wire_ps = topology.bytes_per_s, np.asarray(topology.latency_ns, np.int64) * PS
    rules = FABRICS[fabric]._replace(routing=ROUTINGS[routing])
    moves = np.ceil(2 * wire_ps * bytes_per_s / 1e12).astype(np.int64)
    back = reverse_links(topology)
    if rules.answer_bytes and len(back) and back.min() < 0:
        one_way = topology.link_name(int(np.flatnonzero(back < 0)[0]))
        raise ClusterError(
            f"{one_way} has no link in the other direction, over which answers to packets would go",
            where=topology.name,
            hint="`--fabric roce`, whose senders need no answers",
        )
    room, marks = np.zeros_like(moves), rules.retry_ps > 0 or rules.notice_ps > 0
    if marks:
        if rules.trims and routing == "static":  # its senders always spread their packets
            rules = rules._replace(routing=SPRAY)
        hops = int(np.diff(way).max(initial=1))
        trip_ps = 2 * hops * wire_ps.max(initial=0) + hops * 1e12 * (PACKET_BYTES + ANSWER_BYTES) / bytes_per_s
        room = np.maximum(trip_ps * bytes_per_s / 1e12, LEAST_ROOM_PACKETS * PACKET_BYTES).astype(np.int64)
        if rules.retry_ps:
            wait_ps = float((6e12 * room / bytes_per_s).max(initial=0))
            rules = rules._replace(retry_ps=RETRY_PS + round(wait_ps), room_bytes=int(room.max(initial=0)))
    zero, one = np.zeros_like(wire_ps), np.ones_like(wire_ps)
    made = make_packets(rules, bytes_per_s, wire_ps, zero, one, link, way, back, slots)
    if marks:
        made.ports["room_bytes"] = room if rules.retry_ps else 0
        for name, share in zip(("mark_bytes", "mark_all_bytes"), MARK_SHARES, strict=True):
            made.ports[name] = np.round(share * room)
    if rules.pause_bytes:
        made.ports["pause_bytes"] += moves
        made.ports["resume_bytes"] += moves
    return with_samples(made)


def reverse_links(topology: Topology) -> I64:
    """Of each link the one in the other direction, of several the one with the same rank among them; -1: none."""
    n = len(topology.kind)
    src, dst = topology.src.astype(np.int64), topology.dst.astype(np.int64)
    there, back = src * n + dst, dst * n + src
    order = np.argsort(there, kind="stable")
    first = np.searchsorted(there[order], there)
    rank = np.empty(len(there), np.int64)
    rank[order] = np.arange(len(there))
    rank -= first
    begin, end = (np.searchsorted(there[order], back, side=side) for side in ("left", "right"))
    at = np.minimum(begin + rank, end - 1)
    return np.where(end > begin, order[np.clip(at, 0, None)], -1)


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
    retire(packets, slot)
    here.visit0 = now_ns
    flow = packets.flows[slot]
    flow.way0, flow.ways, flow.back0, flow.window, flow.packets = here.path, paths.choices, -1, 0, 0
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
def move_packets(state: LinkState, packets: PacketState | None, flows: FlowState | None, now_ns: int) -> bool:
    """All events of packets up to the instant; transfers whose last packet arrived have landed. False: no room."""
    if packets is None:
        return True
    clock = packets.clock[0]
    advance(packets, now_ns * PS, False)
    for k in range(clock.delivered):
        slot = packets.delivered[k]
        here = state.slots[slot]
        _leave_flows(state, flows, slot)
        here.phase = LAND
        put_event(state, slot, now_ns + max(here.tail_ns, 0))
        _keep_visit(state, slot, now_ns)
    clock.delivered = 0
    if clock.crowded:
        state.clock[0].crowded = 1
        return False
    return True


@kernel(allocates=False)
def _leave_flows(state: LinkState, flows: FlowState | None, slot: int) -> None:
    if flows is not None:
        end_flow(state, flows, slot)


@kernel(allocates=False)
def goes_by_packets(state: LinkState, detail: PacketDetail | None, slot: int, size_bytes: int) -> bool:
    """Whether a transfer that begins goes by packets, where others are flows."""
    if detail is None:
        return False
    here, clock = state.slots[slot], state.clock[0]
    chosen = detail.of_operation[here.operation] > 0 or detail.of_path[here.path] > 0
    for k in range(len(detail.since_ns)):
        chosen |= detail.since_ns[k] <= clock.now_ns < detail.until_ns[k]
    here.by_packets = chosen
    if chosen:
        clock.packet_transfers += 1
        clock.packet_bytes += size_bytes
    else:
        clock.flow_transfers += 1
        clock.flow_bytes += size_bytes
    return chosen


@kernel(allocates=False)
def _keep_visit(state: LinkState, slot: int, now_ns: int) -> None:
    """Statistics: the whole transfer, as one on the first link of its way."""
    here = state.slots[slot]
    if len(state.visits) > 0:
        it = state.carried[here.operation]
        link = state.paths.link[state.paths.start[here.path]]
        begin_ns = here.visit0
        keep_visit(state, slot, link, state.amounts.size_bytes[it.size0 + slot - it.base], begin_ns, now_ns)
        state.visits[state.clock[0].visits - 1].came_ns = begin_ns


@kernel(allocates=False)
def is_crowded(packets: PacketState | None) -> bool:
    return packets is not None and packets.clock[0].crowded > 0
