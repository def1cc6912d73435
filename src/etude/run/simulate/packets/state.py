"""State of a network of packets, as kernels take it. Times are in ps, from the begin of the run.

A port is the sending end of a link, with its queue; the link's wire and the switch behind it are the same row. A port
sends one packet at a time: first what its own device answers (ACKs), then what passes through, then the flows that
begin there, packet by packet in turn. Every packet is in one list: of a queue, of a wire, or of the free ones.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import F64, I64
from etude.kernels.heap import Queue, empty_queue

Table = NDArray[Any]
DATA, ACK, NOTICE, PAUSE, RESUME = range(5)
"""Kinds of packets; a notice goes to the sender when queues are long."""
OF_PORT: Final = 4
"""Events of a port: it has sent a packet, a packet arrives, a switch has forwarded one, a pause or resume arrives."""
SENT, ARRIVED, FORWARDED, TOLD = range(OF_PORT)
OF_FLOW: Final = 2
"""Events of a flow: its next packet, the end of its receiver's interval without notices."""
EMITS, NOTIFIES = range(OF_FLOW)


def _numbers(*names: str | tuple[str, Any]) -> np.dtype[np.void]:
    return np.dtype([(name, np.int64) if isinstance(name, str) else name for name in names], align=True)


LIST: Final = _numbers("head", "tail", "count")
PORT: Final = _numbers(
    ("ps_per_byte", np.float64),
    "wire_ps",
    "switch_ps",  # between arrival and queue of the switch behind it
    "to_switch",  # 1: a switch is behind it, which pauses it
    "pause_bytes",  # 0: no PFC
    "resume_bytes",
    ("own", LIST),  # answers of the device
    ("passing", LIST),
    ("wire", LIST),
    ("inside", LIST),  # in the switch behind it
    ("told", LIST),  # pauses and resumes on their way to it
    "turn_of",  # the flow that was served last, or -1
    "sending",  # a packet, or -1
    "paused",
    "queue_bytes",
    "held_bytes",  # that came over it and have not left the switch behind it
    "pausing",  # 1: the switch behind it has paused it
    "carried_bytes",
    "busy_ps",
    "pauses",
    "resumes",
    "paused_ps",
    "paused_since_ps",
    "marks",
    "most_queue_bytes",
    "most_held_bytes",
)
PACKET: Final = _numbers(
    "kind", "flow", "size_bytes", "number", "place", "came_over", "marked", "next", "time_ps", "turn"
)
"""`place`: links that it has passed; `came_over`: the port that it came over, or -1."""
FLOW: Final = _numbers(
    "path0",
    "path1",  # its links are link[path0:path1]
    "back0",
    "back1",  # those of its ACKs; -1: the same way back
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
    ("rate", np.float64),  # of the line, 1: all of it
    ("target", np.float64),
    ("alpha", np.float64),
    "rounds",
    "cut_ps",  # of the last cut or raise
    "quiet_ps",  # until then its receiver sends no notice; 0: none was sent
    "was_marked",
    "pauses",
)
CLOCK: Final = _numbers("now_ps", "turn", "free", "delivered", "crowded", "events", "sent", "acknowledged", "notices")


class PacketRules(NamedTuple):
    payload_bytes: int
    header_bytes: int
    answer_bytes: int  # of an ACK or notice
    pads: bool  # the last packet has the full size
    answers: bool  # receivers send ACKs
    pause_bytes: int  # 0: no PFC
    resume_bytes: int
    mark_bytes: int  # 0: no marks
    notice_ps: int  # 0: receivers send no notices (DCQCN)
    raise_ps: int


class PacketState(NamedTuple):
    clock: Table
    rules: PacketRules
    ports: Table
    packets: Table
    flows: Table
    link: I64
    back: I64  # the link in the other direction of each link
    events: Queue  # OF_PORT of each port, then OF_FLOW of each flow
    delivered: I64  # flows whose last packet arrived


def make_packets(
    rules: PacketRules, bytes_per_s: F64, wire_ps: I64, switch_ps: I64, to_switch: I64, link: I64, back: I64, flows: int
) -> PacketState:
    """Empty ports, one for each link, and room for this many flows."""
    ports = np.zeros(len(bytes_per_s), PORT)
    ports["ps_per_byte"], ports["wire_ps"], ports["switch_ps"] = 1e12 / bytes_per_s, wire_ps, switch_ps
    ports["to_switch"] = to_switch
    ports["pause_bytes"], ports["resume_bytes"] = rules.pause_bytes, rules.resume_bytes
    for name in ("own", "passing", "wire", "inside", "told"):
        ports[name]["head"] = ports[name]["tail"] = -1
    ports["turn_of"] = ports["sending"] = -1
    return PacketState(
        clock=np.zeros(1, CLOCK),
        rules=rules,
        ports=ports,
        packets=_free(np.zeros(1 << 12, PACKET), 0),
        flows=np.zeros(flows, FLOW),
        link=link,
        back=back,
        events=empty_queue(OF_PORT * len(ports) + OF_FLOW * flows),
        delivered=np.zeros(flows, np.int64),
    )


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
        delivered=np.concatenate((state.delivered, np.zeros(many, np.int64))),
        events=Queue(
            np.concatenate((events.item, none)),
            np.concatenate((events.place, none)),
            np.concatenate((events.key, none)),
            np.concatenate((events.turn, none)),
            events.size,
        ),
    )
