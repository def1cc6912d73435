"""What the event machine is made of: pools of records, and the tables around them.

A pool is an array of records with names. Those that come and go are on a free list through their `next`: record 0 of
such a pool is its anchor, whose `next` is the first free record, and record 1 takes the writes when the pool has run
dry, until the machine, which is notified, stops. So neither is ever handed out.

Pools begin as zeros that were never written, so that room which is never needed costs nothing: a free record whose
`next` is 0 was never used, and the one after it is the next free one. For the same reason 0 is an empty slot in the
tables of times and of matches and an empty line at a link. Everywhere else -1 means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, I64
from etude.model.schema import Collective

Records = NDArray[np.void]


def _numbers(count: int) -> Iterator[Any]:
    """0, 1, 2, ... as NumPy numbers: a kernel that is called with plain ones is compiled once per number."""
    return map(np.int64, range(count))


def record(*names: str, small: tuple[str, ...] = (), real: tuple[str, ...] = ()) -> np.dtype[np.void]:
    """A record of int64 fields, `small` ones of int32, `real` ones of float64."""
    kinds = [(n, np.int64) for n in names] + [(n, np.float64) for n in real] + [(n, np.int32) for n in small]
    return np.dtype(kinds, align=True)


NONE: Any = np.int64(-1)
UNUSED: Any = np.int64(0)
ANCHOR: Any = np.int64(0)
SINK: Any = np.int64(1)
FIRST: Any = np.int64(2)
"""The first record of a pool that is handed out."""
TAG_RANGE: Any = np.int64(500_000_000)
"""ASTRA-sim takes tags modulo this; tags of collectives follow behind."""

# --- what numbers mean ------------------------------------------------------------------------------------------------
RUNNING, DONE, POOL_FULL, AMBIGUOUS, EVENT_AT_ZERO, BAD_NODE, EMPTY_MESSAGE, BAD_PEER, TREE_BROKEN = _numbers(9)
ENDLESS_CHUNKS, OVERLONG = np.int64(9), np.int64(10)
EVENT_BATCH, EVENT_ARRIVAL, EVENT_LINK_FREE, EVENT_RECEIVE, EVENT_START = _numbers(5)  # low 3 bits of a payload
CALL_BUNDLE, CALL_NODE_DONE, CALL_COLLECTIVE_DONE, CALL_MEMORY_FREE = _numbers(4)
TELL_NOBODY, TELL_NODE, TELL_STREAM, TELL_HANDSHAKE_SEND, TELL_HANDSHAKE_RECEIVE = _numbers(5)
RINGED, CONNECTED, SWITCHED = _numbers(3)
RING, DIRECT, HALVING_DOUBLING, BINARY_TREE = _numbers(4)
TURN_ALL, TURN_FIRST_HALF, TURN_SECOND_HALF = _numbers(3)
ACT_TIMED, ACT_SKIP, ACT_COLLECTIVE, ACT_SEND, ACT_RECEIVE, ACT_MEMORY, ACT_REFUSED, ACT_CUSTOM = _numbers(8)
ON_CPU, ON_COMP, ON_COMM, ON_NOTHING, NUM_RESOURCES = _numbers(5)
IN_CUSTOM = NUM_RESOURCES
"""The resource of nodes of a collective that is given as a trace: they need none, and are identified by it."""
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = (
    np.int64(c)
    for c in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
)

# --- the event queue --------------------------------------------------------------------------------------------------
CLOCK = record(
    "now", "status", "error_node", "num_events", "finished_ranks", "heap_size", "bucket", "last_time", "last_bucket",
    "open_batch", "tell", "tell_arg", "match_count", "num_fresh", "finished_members", "error_collective",
    "num_overflowed",
)  # fmt: skip
HEAP = record("key", "bucket")
TIME = record("time", "bucket")
BUCKET = record("next", "head", "tail", "time")
EVENT = record("next", "payload")
BATCH = record("next", "time", "head", "tail", "rank")
CALL = record("next", "kind", "arg", "then_ns", "registered_ns")


class EventQueue(NamedTuple):
    """The clock, events by time, and calls: what one rank does at one instant."""

    clock: Records
    """One record: the time and all else that is one number."""
    heap: Records
    times: Records
    buckets: Records
    events: Records
    batches: Records
    calls: Records
    first_batch: I64
    """Of each rank's list."""


# --- messages; a receive that waits for its message is a record of the same pool --------------------------------------
SETTINGS = record(
    "is_aware", "npus", "endpoint_ns", "queues", "at_once", "has_rendezvous", "works_ahead",
    real=("memory_bytes_per_s",),
)  # fmt: skip
DIMENSION = record("kind", "size", "stride", real=("bytes_per_ns", "latency_ns"))
MESSAGE = record(
    "next", "src", "dst", "size", "tell_sender", "sender", "tell_receiver", "receiver", "behind", "at", "step", "hops",
    "tag",
)  # fmt: skip
MATCH = record("key1", "key2", "head", "tail")
LINK = record("is_busy", "head", "tail")


class Wires(NamedTuple):
    """The network and what is on it."""

    settings: Records
    """One record: the command line and the system file as numbers."""
    dims: Records
    messages: Records
    matches: Records
    links: Records


# --- streams: one chunk of one collective on one rank -----------------------------------------------------------------
TEMPLATE = record(
    "algorithm", "collective", "level", "size", "stride", "group", "window", "turn", "tree", "starts_tree_globally"
)
STREAM = record(
    "next", "rank", "node", "tag", "phase", "phases", "algorithm", "collective", "size", "index", "stride", "base",
    "group", "direction", "width", "left", "free", "received", "zero", "nonzero", "toggle", "bytes", "offset",
    "is_doubling", "packets", "sent", "send_bytes", "send_offset", "send_doubling", "state", "reductions", "delay_ns",
    "parent", "child1", "child2", "role", "member",
)  # fmt: skip
PHASE = record("template", "queue", "direction", "bytes", "mirror")
QUEUE = record("head", "tail", "running")


class Streams(NamedTuple):
    """Chunks on their way through the dimensions, and the plans that they follow."""

    plan_start: I64
    """Plan p goes through templates[plan_start[p]:plan_start[p+1]]."""
    templates: Records
    members: I64
    """Ranks of the world, then of each group."""
    streams: Records
    phases: Records
    """[stream, phase]"""
    queues: Records
    """[rank, dimension x queue]"""
    turns: I64
    """[rank, dimension, kind of turn]: whose turn it is"""
    trees: I64
    """[rank, tree]: which of its two trees is next"""


class Machine(NamedTuple):
    """All that messages of collectives need."""

    queue: EventQueue
    wires: Wires
    streams: Streams


# --- collectives and who has joined them ------------------------------------------------------------------------------
COLLECTIVE = record("node", "plan", "chunk_bytes", "chunks", "open_chunks", "communicator", "member")
COMMUNICATOR = record("start", "size", "tag_base", "joined", "stream", "plan", "chunk_bytes", "chunks", "shape")
JOIN = record("streams", "joined_ns", "collective", "finish_ns", "registered_ns", "scratch")
MEMO = record("shape", "plan", "chunk_bytes", "chunks", "finish_ns", "registered_ns")
NUM_MEMOS = 1021


class Collectives(NamedTuple):
    """One record per collective node, one per communicator (the world first), one per member of a communicator."""

    collectives: Records
    communicators: Records
    joins: Records
    plan_key: I64
    memos: Records


# --- nodes and ranks --------------------------------------------------------------------------------------------------
# A collective that is given as a trace has its nodes behind all others, one run of rows per instance. The collective
# itself keeps their first row as its peer, how many there are as its collective, and how many are still open as its
# tag; the nodes keep the collective's row as their collective.
NODE = record(
    "duration_ns",
    "bytes",
    "start_ns",
    "end_ns",
    "child_start",
    small=("rank", "key", "at_key", "action", "resource", "peer", "tag", "waits", "collective"),
)
RANK = record("streams", "ongoing", "finish_ns", "in_collective", "done_at_ns")
LINE = record("start", "count")
SERVER = record("is_busy", "head", "tail")


class AstraProgram(NamedTuple):
    """The nodes of all ranks and how far each rank is."""

    nodes: Records
    """One more than nodes: children of node i are child[nodes[i].child_start:nodes[i+1].child_start]."""
    child: I32
    rank_start: I64
    ranks: Records
    busy: I64
    """[rank, resource]: nodes that hold it"""
    lines: Records
    """[rank, resource]: where in `ready` the heap of ready nodes is"""
    ready: I32
    fresh: I64
    """Nodes that became ready during a pass."""
    servers: Records
    """Remote memories that serve one request at a time."""


class Simulation(NamedTuple):
    """A run: the machine, the machine on which collectives are worked out ahead, and what they work on."""

    machine: Machine
    side: Machine
    collectives: Collectives
    program: AstraProgram
