"""The state of a network: tables that its kernels read and change.

An operation is a collective or a message. *Timed* operations last a known time from the moment all members have
arrived; *carried* ones are transfers over links. The analytic network carries nothing.

A *slot* is a transfer of a live operation or, after those, one of its members or, after those, one of its
connections.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, I64
from etude.kernels.heap import Heap, Queue
from etude.run.simulate.packets.state import PacketState

Table = NDArray[np.void]
"""An array of records: `slots[slot].phase`."""

NEVER: Final = np.iinfo(np.int64).max
MILLI: Final = 1000

WAITING, RUNNING, OVER = 0, 1, 2
"""Values of `status` of an operation."""
START, MOVE, LAND, END = 0, 1, 2, 3
"""Values of `phase` of a slot: at its event it starts, is in flight, has delivered its bytes, is over."""
UNBORN, RELEASED = -1, -2
"""Values of `base` of a carried operation: it has no slots yet, or no longer."""
WHOLE: Final = 1_000_000
"""Value of `wire_ppm`: exactly the bytes sent go over the wire."""


def _numbers(*names: str) -> np.dtype[np.void]:
    return np.dtype([(name, np.int64) for name in names], align=True)


OPERATION: Final = np.dtype(
    [
        ("missing", np.int32),  # members that have not arrived
        ("sender", np.int32),  # the node that alone begins it, or -1
        ("last_comer", np.int32),  # a list of the nodes that have arrived
        ("status", np.int32),  # this one and the following: if timed
        ("slow", np.int32),  # members that compute
        ("carried", np.int32),  # its number among the carried operations, or -1
        ("begin_ns", np.int64),
        ("end_ns", np.int64),
        ("duration_ns", np.int64),
        ("left", np.int64),  # with sharing: remaining work
        ("since_ns", np.int64),  # ... at this time
    ],
    align=True,
)
CARRIED: Final = _numbers(
    "plan",
    "base",  # its first slot, UNBORN or RELEASED
    "left",  # members that are not done and transfers that have not ended
    "members",
    "path0",
    "size0",
    "launch_ns",  # before its first transfers
    "wire_ppm",  # bytes on the wire per byte sent, in millionths
    "lag0",  # -1: its transfers take the latency of their route
    "factor0",  # -1: only `wire_ppm` applies to its transfers
    "seat0",  # -1: compute of its members does not matter
    "place0",
)
PLACE: Final = _numbers("operation", "node", "came", "done_ns")
"""For each member of each carried operation: its node or -1, 1 once it has arrived, when the network was done with it
or -1."""
PLAN: Final = _numbers("transfer0", "transfers", "member0", "members", "lines", "free")
"""For each schedule: where its transfers and members begin, and how many there are, including helpers; its largest
number of connections; `free` is a list of the slots of ended operations."""
TRANSFER: Final = _numbers(
    "src",
    "dst",
    "delay_ns",
    "has_deps",
    "put",  # > 0: arriving data is added to existing data
    "waits",  # transfers and members that it waits for
    "succ_start",
)
"""Transfers of the schedules, in sequence. The successors of transfer t are succ[succ_start of t:succ_start of t +
1]."""
MEMBER: Final = _numbers("transfers", "touch_start")
"""Likewise for members: how many transfers it takes part in, and where in `touch` they begin."""
SLOT: Final = np.dtype(
    [
        ("phase", np.int64),
        ("waits", np.int64),
        ("operation", np.int64),
        ("path", np.int64),
        ("hop", np.int64),  # links that its head has passed
        ("tail_ns", np.int64),  # when its tail arrives; for a flow its latency
        ("wire_bytes", np.float64),
        ("free_next", np.int64),
        ("line_next", np.int64),  # the next in line on its connection, or -1
        ("by_packets", np.int64),  # with both flows and packets: 1 if it goes by packets
        ("visit0", np.int64),  # for a flow: the first of its visits, if kept; for packets when it began
    ],
    align=True,
)
VISIT: Final = np.dtype(
    [
        ("operation", np.int32),  # carried
        ("link", np.int32),
        ("size_bytes", np.int64),
        ("came_ns", np.int64),  # at the link
        ("begin_ns", np.int64),  # when the link took it; a flow at once
        ("end_ns", np.int64),  # when its last byte was on the link
    ],
    align=True,
)
"""A transfer on a link, if link statistics are requested."""
LINK: Final = np.dtype(
    [
        ("latency_ns", np.int64),
        ("bytes_per_ns", np.float64),
        ("carried_bytes", np.int64),
        ("busy_ns", np.int64),
        ("free_ns", np.int64),  # model `links`: when it has forwarded what it took
        ("coming", np.int64),  # ... messages that chose it, with adaptive routing, and have not arrived yet
    ],
    align=True,
)
LINKS_CLOCK: Final = _numbers(
    "now_ns",  # the last instant posted or advanced to
    "next_ns",
    "turn",
    "top",  # slots that were ever in use
    "ready",  # entries in use of the lists of `LinkState`
    "done",
    "posted",
    "joined",
    "crowded",  # 1: there are too few slots
    "visits",  # kept so far
    "packet_transfers",  # with both flows and packets: those that went by packets, and their bytes
    "packet_bytes",
    "flow_transfers",
    "flow_bytes",
)
FLOW_CLOCK: Final = _numbers("live", "fresh", "dirty", "stamp")
FLOW_SLOT: Final = np.dtype(
    [
        ("rest_bytes", np.float64),
        ("speed", np.float64),
        ("new_speed", np.float64),
        ("since_ns", np.int64),
        ("bottleneck", np.int64),
        ("new_bottleneck", np.int64),
        ("mark", np.int64),  # the stamp of the last sharing that it took part in
        ("fixed", np.int64),
        ("live_at", np.int64),
    ],
    align=True,
)
FLOW_LINK: Final = np.dtype(
    [
        ("head", np.int64),  # a list of entries
        ("active", np.int64),
        ("busy_since_ns", np.int64),
        ("load", np.float64),
        ("free", np.float64),
        ("level", np.float64),
        ("looking", np.int64),  # flows that look for a rate
        ("mark", np.int64),
        ("is_dirty", np.int64),
        ("flows", np.int64),  # with packets: those on it that are not, and their speed
        ("flow_load", np.float64),
        ("exceeded", np.int64),  # 1: what came by several links was more than it could take
    ],
    align=True,
)
SHARED_INSTANCE: Final = np.dtype(
    [
        ("computing", np.int32),  # nodes that compute
        ("communicating", np.int32),
        ("slows_communication", np.int32),  # 1 while it computes, as operations see it
        ("slows_compute", np.int32),  # 1 while it communicates, as nodes see it
        ("first_computing", np.int32),  # a list of the nodes that compute
        ("first_communicating", np.int32),  # ... and of those in timed operations
        ("is_changed", np.int32),
    ],
    align=True,
)
"""For each simulated rank, if compute and communication slow each other down."""
SHARED_NODE: Final = np.dtype(
    [
        ("after", np.int32),  # the next in its list
        ("before", np.int32),
        ("left", np.int64),  # remaining work
        ("since_ns", np.int64),  # ... at this time; -1: it shares nothing
        ("klass", np.int32),  # by rate: class of the node
        ("rate", np.int32),  # ... current rate, of FULL
        ("kind", np.int32),  # ... kind of its kernel, or -1
        ("chunk", np.int64),  # ... work of a chunk; 0: yields at once
        ("border", np.int64),  # ... while held: work remaining at the end of the chunk
    ],
    align=True,
)
"""For each node, if it shares its device."""
ENTRY: Final = _numbers("after", "before")
"""A slot on a link: its neighbours there."""


class FlowState(NamedTuple):
    """State of the model `flow`."""

    clock: NDArray[Any]
    hop_bits: int  # an entry is its slot << hop_bits | the hop
    close: float  # a rate this close to its share stays
    looks: bool  # for links that are exceeded
    slots: Table
    links: Table
    entries: Table
    queue: Queue  # of links, by the rate that they give
    live: I64  # a list of slots
    fresh: I64  # ... those without a rate
    chosen: I64  # ... those that need a new rate
    dirty: I64  # a list of links that flows have left


class PacketDetail(NamedTuple):
    """Which transfers go by packets, where others are flows: those of these operations, over these paths, or that begin
    in one of these windows."""

    of_operation: NDArray[np.uint8]
    of_path: NDArray[np.uint8]
    since_ns: I64
    until_ns: I64


OUTSIDE_CLOCK: Final = _numbers(
    "posted",  # messages that the program does not know of yet
    "moving",  # ... and those that have not arrived
    "known_ns",  # up to when it has said what arrives
    "limit_ns",  # up to when it is asked
    "asks",  # 1: it is asked before anything else happens
)


class GivenTimes(NamedTuple):
    """Transfer t of a carried operation takes took_ns[first[operation] + t] from when it begins; no network is asked.
    Empty if a program is the network."""

    first: I64
    took_ns: I64
    began_ns: I64


class OutsideState(NamedTuple):
    """Messages for another program, which is the network; or transfers whose times are given."""

    clock: NDArray[Any]
    slot: I64
    at_ns: I64
    given: GivenTimes


class LinkCosts(NamedTuple):
    cut_through: bool  # of the model `links`
    endpoint_ns: int  # before the first transfers of a member, and after every arrival
    reduce_bytes_per_us: int  # 0: a reduction takes no time
    busy_milli: int  # for a transfer whose sender or receiver computes when it starts


class Schedules(NamedTuple):
    plans: Table
    transfers: Table
    succ: I64
    members: Table
    touch: I64


class Paths(NamedTuple):
    """Path p goes over link[start[p]:start[p + 1]]; transfer t of an operation takes path of[path0 + t], or one of the
    `choices` that begin there, on its connection line[path0 + t] (-1: not shared)."""

    of: I64
    line: I64
    start: I64
    link: I64
    choices: int


class Rates(NamedTuple):
    """Rates of the model `links`: link i moves bytes_per_ns[k] from since_ns[k] on, for k from start[i] to start[i +
    1]. Empty if no link changes."""

    start: I64
    since_ns: I64
    bytes_per_ns: NDArray[np.float64]


class Amounts(NamedTuple):
    """Amounts of the transfers of operations, from `size0`, `lag0` and `factor0` on; of their members, from `seat0`
    on."""

    size_bytes: I64
    lag_ns: I64  # includes the factors
    seat: I64  # the instance of each member
    instances: Table  # of `Sharing`
    work: Table  # likewise; empty where nodes have no rates


class LinkState(NamedTuple):
    """A network with links."""

    clock: NDArray[Any]
    costs: LinkCosts
    place_of: I64  # of each node
    places: Table
    posted: I64  # places that arrived in this instant, and join at its end
    done: I64  # places that the network finished at `now_ns`
    carried: Table
    schedules: Schedules
    paths: Paths
    amounts: Amounts
    slots: Table
    events: Queue  # of slots, by (time, turn)
    ready: I64  # slots that may start
    order: I64  # the same, in order
    links: Table
    rates: Rates
    visits: Table  # empty unless requested
    packets: PacketState | None  # of the model `packets`
    detail: PacketDetail | None  # with it: some transfers are flows
    outside: OutsideState | None  # another program is the network


class OperationState(NamedTuple):
    """What all networks have."""

    table: Table
    ends: Heap  # of (time, timed operation)
    done: I32  # nodes that the network is done with
    done_count: I64  # one number


class NetworkState(NamedTuple):
    operations: OperationState
    links: LinkState | None  # the analytic network has none
    flows: FlowState | None  # the model `links` has none: its links take one message at a time
