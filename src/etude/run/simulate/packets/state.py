"""State of a network of packets, as kernels take it. Times are in ps, from the begin of the run.

A port is the sending end of a link, with its queues; the link's wire and the switch behind it are the same row. A port
sends one packet at a time: first what its own device answers (ACKs), then what passes through, then the flows that
begin there, packet by packet in turn. Every packet is in one list: of a queue, of a wire, of a flow, or of the free
ones. A way is a row of links; a flow has one or several of equal length, in the order of their links.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import F64, I64
from etude.kernels.heap import Queue, empty_queue

Table = NDArray[Any]
DATA, ACK, NOTICE, PAUSE, RESUME, NACK, PULL, ASK = range(8)
"""Kinds of packets. A notice goes to the sender when queues are long, a NACK when a packet was cut or is missing; a
pull gives credit; a sender that has heard nothing for long asks what has come."""
LINE, WINDOW, DCTCP, NSCC, RCCC, EQDS, NDP = range(7)
"""Senders: at the rate of the line (RoCE), with a fixed window, with one that marks change, with one that delays and
marks change, and three with credit from their receivers."""
FIXED, SPRAY, TURNS, ROTATE, ADAPTIVE, FLOWLET = range(6)
"""How packets choose a way: all the flow's first one; by a hash of the flow and one of some entropies in turn; one
after the other; at switches in turn; at switches the shortest queue, for each packet or for each flow until it
pauses."""
OF_PORT: Final = 5
"""Events of a port: it has sent a packet, a packet arrives, a switch has forwarded one, a pause or resume arrives, its
device pulls."""
SENT, ARRIVED, FORWARDED, TOLD, PULLS = range(OF_PORT)
OF_FLOW: Final = 3
"""Events of a flow: its next packet, the end of its receiver's interval without notices, the time to send again."""
EMITS, NOTIFIES, RETRIES = range(OF_FLOW)
READY, PULLED, IDLE, AGAIN = range(4)
"""Lists of flows: those that may send at a port; those that its device pulls, that it pulls when there are no others,
and that it pulls first."""
LISTS: Final = 4
SAMPLES_BYTES: Final = 64 << 20
"""Most memory of samples of ports."""
FIRST_WIDTH_PS: Final = 1_000_000
"""Between two samples, until there are too many: then every second one is kept."""
DEPTH: Final = 8
"""Switches of a way whose last choice a flow remembers, there and back."""


def _numbers(*names: str | tuple[str, Any]) -> np.dtype[np.void]:
    return np.dtype([(name, np.int64) if isinstance(name, str) else name for name in names], align=True)


LIST: Final = _numbers("head", "tail", "count")
PORT: Final = _numbers(
    ("ps_per_byte", np.float64),
    ("idle_ps_per_byte", np.float64),  # ... where flows leave all of it
    "wire_ps",
    "switch_ps",  # between arrival and queue of the switch behind it
    "to_switch",  # 1: a switch is behind it, which pauses it
    "pause_bytes",  # 0: no PFC
    "resume_bytes",
    "mark_bytes",  # 0: no marks
    "mark_all_bytes",
    "room_bytes",  # of its queue; 0: no limit
    ("own", LIST),  # answers of the device
    ("urgent", LIST),  # what overtakes data: answers that pass through, and headers
    ("passing", LIST),
    ("wire", LIST),
    ("inside", LIST),  # in the switch behind it
    ("told", LIST),  # pauses and resumes on their way to it
    ("ready", LIST),  # flows
    ("pulled", LIST),
    ("idle", LIST),
    ("again", LIST),
    "rank",  # of the packet that its queue sent last
    "turn_of",  # the flow that was served last, or -1
    "sending",  # a packet, or -1
    "answers",  # since the last packet of a flow
    "paused",
    "queue_bytes",
    "urgent_bytes",
    "held_bytes",  # that came over it and have not left the switch behind it
    "pausing",  # 1: the switch behind it has paused it
    "pulling",  # 1: its device's next pull has a time
    ("pull_rate", np.float64),  # of the line
    ("pull_step", np.float64),
    ("marked_share", np.float64),
    "looked_ps",  # when the rate of pulls was last changed
    "came",  # packets of data and headers since then
    "came_marked",
    "came_cut",  # ... cut before the last link
    "cursor",
    "carried_bytes",
    "busy_ps",
    "pauses",
    "resumes",
    "paused_ps",
    "paused_since_ps",
    "marks",
    "trims",
    "drops",
    "most_queue_bytes",
    "peak_bytes",  # likewise, since the last sample
    "most_held_bytes",
    ("queue_byte_ps", np.float64),  # bytes in its queue, over time
    "queue_since_ps",
)
PACKET: Final = _numbers(
    "kind",
    "flow",
    "size_bytes",
    "full_bytes",  # before it was cut
    "number",
    "place",  # links that it has passed
    "came_over",  # the port that it came over, or -1
    "marked",
    "cut_at",  # the place at which it was cut, or -1
    "asks",  # 1: its receiver answers at once
    "target",  # credit that its sender asks for, or its receiver has given, or bytes received
    "tries",  # times that it was sent before
    "rank",  # with turns for flows: bytes that its queue sends before it has gone
    "way",  # it goes over ways way..last
    "last",
    "turned",  # 1: it goes back over the links of a way of data
    "life",  # of its flow, when it was made
    "sent_ps",
    "next",
    "before",
    "time_ps",
    "turn",
)
FLOW: Final = _numbers(
    "life",  # how often its row was used
    "net_ps",  # of an idle round trip on its first way, and its window
    "window_bytes",
    "way0",
    "ways",
    "back0",  # those of its answers; -1: the same ones back
    "backs",
    "packets",
    "last_bytes",  # payload of the last packet
    "emitted",
    "sent",
    "received",
    "acked",
    "done_at",  # packets of which the ACKs end it
    "begin_ps",
    "emitted_ps",
    "delivered_ps",
    "finished_ps",
    "stalled",  # 1: waits for its port to resume
    "before",
    "after",  # in the ring of the flows of its port
    "window",  # packets in flight; 0: no limit
    "sprayed",  # packets that were given a way
    "nacked",  # 1: its receiver has asked for what is missing
    "early",  # a bit for each packet that came before one that is missing
    ("lost", LIST),  # packets to send again
    ("dropped", LIST),  # ... once their time is over
    "highest",  # number of a packet that was received
    "received_bytes",
    "unanswered_bytes",
    "wants",  # 1: an answer once nothing is missing
    "target",  # credit that its receiver was asked for, and has given
    "given",
    "again_bytes",
    "in_pulled",
    "in_idle",
    "in_again",
    "in_ready",
    "rest_bytes",  # of new packets, with headers
    "lost_bytes",
    "flying_bytes",
    "heard_bytes",  # received, as its sender knows
    ("cwnd", np.float64),
    ("most_cwnd", np.float64),
    ("credit", np.float64),
    ("free", np.float64),  # credit that it began with
    "pulled",  # credit given, as its sender knows
    "base_ps",  # of an idle round trip
    ("delay_ps", np.float64),  # average
    ("grows", np.float64),
    "grown_bytes",
    "fast_bytes",
    "fast",
    "adjusted_ps",
    "cut_ps",  # of the last cut or raise
    "achieved_bytes",
    "achieved_ps",
    "ignored_bytes",
    "ignore_bytes",
    "adapts",
    ("rate", np.float64),  # of the line, 1: all of it
    ("line_target", np.float64),
    ("alpha", np.float64),
    "rounds",
    "quiet_ps",  # until then its receiver sends no notice; 0: none was sent
    "was_marked",
    "trims",
    "resent",
)
CLOCK: Final = _numbers(
    "now_ps",
    "turn",
    "free",
    "delivered",
    "crowded",
    "events",
    "sent",
    "acknowledged",
    "notices",
    "pulls",
    "resent",
    ("random", np.uint64),
    "sample_ps",  # when the next sample is taken
    "width_ps",  # between two samples
    "samples",
)


SAMPLE: Final = _numbers(
    ("queue_byte_ps", np.float64), *("busy_ps", "peak_bytes", "marks", "trims", "drops", "pauses", "paused_ps")
)
"""What has happened at a port until a time; `peak_bytes`: since the sample before."""


class PacketRules(NamedTuple):
    payload_bytes: int
    header_bytes: int
    answer_bytes: int  # of an ACK, notice, pull or header
    pads: bool  # the last packet has the full size
    answers: bool  # receivers send ACKs
    pause_bytes: int  # 0: no PFC
    resume_bytes: int
    mark_bytes: int  # 0: no marks
    notice_ps: int  # 0: receivers send no notices (DCQCN)
    raise_ps: int
    sender: int = LINE
    routing: int = FIXED
    entropies: int = 64
    early_packets: int = 0  # of `LINE`: how many may come before one that is missing, at most 64; -1: all
    mark_all_bytes: int = 0  # with `mark_bytes`: between them the share grows; 0: no marks below, all above
    room_bytes: int = 0  # of a queue; 0: no limit
    trims: bool = False  # what does not fit is cut to its header, which overtakes; else it is dropped
    control_bytes: int = 0  # room of answers and headers; 0: no limit
    answers_per_packet: int = 0  # of a device: 0: all before data
    window_bytes: int = 0
    base_ps: int = 0  # of an idle round trip; 0: as each flow's first way has it, with a window of 1.5 times its bytes
    retry_ps: int = 0  # after which a packet that was dropped is sent again
    pull_bytes: int = 0
    pull_ps_per_byte: float = 0.0  # 0: as the port of the receiver moves them, a little slower
    fair: bool = False  # queues send a packet of each flow in turn, by bytes; else first in, first out
    least_pull_rate: float = 1.0  # below 1: receivers pull more slowly where packets are cut on their way
    seed: int = 0


class PacketState(NamedTuple):
    clock: Table
    rules: PacketRules
    ports: Table
    packets: Table
    flows: Table
    link: I64
    way: I64  # way w is link[way[w]:way[w + 1]]
    back: I64  # the link in the other direction of each link
    after: I64  # LISTS of each flow: the next one in the list
    chosen: I64  # of each flow at each switch: link and time of the last packet; empty unless `FLOWLET`
    events: Queue  # OF_PORT of each port, then OF_FLOW of each flow
    delivered: I64  # flows whose last packet arrived
    samples: Table  # of the ports over time, if kept; else it has no rows


PORT_LISTS: Final = ("own", "urgent", "passing", "wire", "inside", "told", "ready", "pulled", "idle", "again")


def make_packets(
    rules: PacketRules,
    bytes_per_s: F64,
    wire_ps: I64,
    switch_ps: I64,
    to_switch: I64,
    link: I64,
    way: I64,
    back: I64,
    flows: int,
) -> PacketState:
    """Empty ports, one for each link, and room for this many flows."""
    ports = np.zeros(len(bytes_per_s), PORT)
    ports["idle_ps_per_byte"] = 1e12 / bytes_per_s
    ports["ps_per_byte"], ports["wire_ps"], ports["switch_ps"] = 1e12 / bytes_per_s, wire_ps, switch_ps
    ports["to_switch"] = to_switch
    for name in ("pause_bytes", "resume_bytes", "mark_bytes", "mark_all_bytes", "room_bytes"):
        ports[name] = getattr(rules, name)
    for name in PORT_LISTS:
        ports[name]["head"] = ports[name]["tail"] = -1
    ports["turn_of"] = ports["sending"] = -1
    ports["pull_rate"] = 1.0
    clock = np.zeros(1, CLOCK)
    clock["sample_ps"] = np.iinfo(np.int64).max
    clock["random"] = np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(rules.seed * 2 + 1)
    return PacketState(
        clock=clock,
        rules=rules,
        ports=ports,
        packets=_free(np.zeros(1 << 12, PACKET), 0),
        flows=np.zeros(flows, FLOW),
        link=link,
        way=way,
        back=back,
        after=np.zeros(LISTS * flows, np.int64),
        chosen=np.zeros(4 * DEPTH * flows if rules.routing == FLOWLET else 0, np.int64),
        events=empty_queue(OF_PORT * len(ports) + OF_FLOW * flows),
        delivered=np.zeros(flows, np.int64),
        samples=np.zeros((0, len(ports)), SAMPLE),
    )


def with_samples(state: PacketState) -> PacketState:
    """A copy that keeps what happens at its ports over time."""
    rows = min(max(SAMPLES_BYTES // max(len(state.ports) * SAMPLE.itemsize, 1), 16), 128) // 2 * 2
    state.clock["sample_ps"] = state.clock["width_ps"] = FIRST_WIDTH_PS
    return state._replace(samples=np.zeros((rows, len(state.ports)), SAMPLE))


def _free(packets: Table, begin: int) -> Table:
    packets["next"][begin:] = np.arange(begin + 1, len(packets) + 1)
    packets["next"][-1] = -1
    return packets


def with_more_packets(state: PacketState) -> PacketState:
    """A copy with twice the packets, if all are in use."""
    many = len(state.packets)
    packets = _free(np.concatenate((state.packets, np.zeros(many, PACKET))), many)
    packets["next"][-1] = state.clock[0]["free"]
    state.clock["free"], state.clock["crowded"] = many, 0
    return state._replace(packets=packets)


def with_more_flows(state: PacketState) -> PacketState:
    """A copy with twice the flows."""
    many, events = len(state.flows), state.events
    none = np.full(OF_FLOW * many, -1)
    return state._replace(
        flows=np.concatenate((state.flows, np.zeros(many, FLOW))),
        after=np.concatenate((state.after, np.zeros_like(state.after))),
        chosen=np.concatenate((state.chosen, np.zeros_like(state.chosen))),
        delivered=np.concatenate((state.delivered, np.zeros(many, np.int64))),
        events=Queue(
            np.concatenate((events.item, none)),
            np.concatenate((events.place, none)),
            np.concatenate((events.key, none)),
            np.concatenate((events.turn, none)),
            events.size,
        ),
    )
