"""Where everything lies in the event machine's memory.

The kernels see a few flat arrays, because passing many costs minutes of compilation. `mem` is an int64 array with a
header (the scalars and where each pool begins) and the pools: fixed-size records that are addressed by the index of
their first word, so `mem[stream + ST_RANK]` is the rank of a stream. Records that come and go are on free lists
through their first word. The first record of a pool is never handed out: when a pool runs dry the machine is told
to stop, and until it does, that record takes the writes. `tab` holds, in the same way, what describes the network,
the plans and the communicators; `rate` its few real numbers.

A machine begins as zeros that nobody has written, so that room which is never needed costs nothing. Records lie behind
the header, so 0 is no record's address: a free record whose first word is 0 was never used and the next one follows
it, and 0 is an empty slot in the tables of times and of messages and an empty line at a link.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np


def _numbers(count: int) -> Iterator[Any]:
    """0, 1, 2, ... as numpy numbers: a kernel that is called with plain ones is compiled once per number."""
    return map(np.int64, range(count))


NONE: Any = np.int64(-1)
UNUSED: Any = np.int64(0)

# --- mem: scalars, free lists, places of the pools ---------------------------------------------------------------
(
    NOW,
    CURRENT,
    HEAP_SIZE,
    LAST_TIME,
    LAST_BUCKET,
    STATUS,
    ERROR_NODE,
    NUM_EVENTS,
    NUM_FRESH,
    FINISHED_RANKS,
    NESTED_DONE,
    CURRENT_REG,
    OPEN_BATCH,
    TELL_BACK,
    TELL_ARG,
    MATCH_COUNT,
    FREE_BUCKET,
    FREE_EVENT,
    FREE_BATCH,
    FREE_CALL,
    FREE_MESSAGE,
    FREE_STREAM,
    AT_HEAP,
    AT_TIMES,
    AT_BUCKETS,
    AT_EVENTS,
    AT_BATCHES,
    AT_CALLS,
    AT_MESSAGES,
    AT_MATCHES,
    AT_LINKS,
    AT_STREAMS,
    AT_QUEUES,
    AT_RANKS,
    AT_LINES,
    AT_FRESH,
    AT_SERVERS,
    TIME_MASK,
    MATCH_MASK,
    RANK_WIDTH,
    STREAM_WIDTH,
    NUM_SCALARS,
) = _numbers(42)

# --- status ---------------------------------------------------------------------------------------------------
(RUNNING, DONE, POOL_FULL, AMBIGUOUS, EVENT_AT_ZERO, BAD_NODE, EMPTY_MESSAGE, BAD_PEER, TREE_BROKEN, ENDLESS_CHUNKS) = (
    _numbers(10)
)

# --- event queue ------------------------------------------------------------------------------------------------
EVENT_BATCH, EVENT_ARRIVAL, EVENT_LINK_FREE, EVENT_RECEIVE, EVENT_START = map(
    np.int64, range(5)
)  # low 3 bits of a payload
EVENT_NEXT, EVENT_PAYLOAD, NUM_EVENT = _numbers(3)
BUCKET_NEXT, BUCKET_HEAD, BUCKET_TAIL, BUCKET_TIME, NUM_BUCKET = _numbers(5)
HEAP_KEY, HEAP_BUCKET, NUM_HEAP = _numbers(3)
TIME_KEY, TIME_BUCKET, NUM_TIME = _numbers(3)

# --- calls: what one rank does at one instant ---------------------------------------------------------------------
CALL_BUNDLE, CALL_NODE_DONE, CALL_COLLECTIVE_DONE, CALL_MEMORY_FREE = _numbers(4)
CALL_NEXT, CALL_KIND, CALL_ARG, CALL_DELAY, CALL_REG, NUM_CALL = _numbers(6)
BATCH_NEXT, BATCH_TIME, BATCH_HEAD, BATCH_TAIL, BATCH_RANK, NUM_BATCH = _numbers(6)

# --- messages; a receive that waits for its message is a record of the same pool -----------------------------------
BACK_NONE, BACK_NODE, BACK_STREAM, BACK_HANDSHAKE_SEND, BACK_HANDSHAKE_RECEIVE = _numbers(5)
(
    MSG_NEXT,
    MSG_SRC,
    MSG_DST,
    MSG_SIZE,
    MSG_SEND_BACK,
    MSG_SEND_ARG,
    MSG_RECV_BACK,
    MSG_RECV_ARG,
    MSG_BEHIND,
    MSG_AT,
    MSG_STEP,
    MSG_HOPS,
    MSG_TAG,
    NUM_MSG,
) = _numbers(14)
MATCH_KEY1, MATCH_KEY2, MATCH_HEAD, MATCH_TAIL, NUM_MATCH = _numbers(5)
LINK_BUSY, LINK_HEAD, LINK_TAIL, NUM_LINK = _numbers(4)

# --- streams: one chunk of one collective on one rank; its phases follow in the same record -------------------------
(
    ST_NEXT,
    ST_RANK,
    ST_NODE,
    ST_TAG,
    ST_PHASE,
    ST_PHASES,
    ST_IMPL,
    ST_COM,
    ST_N,
    ST_INDEX,
    ST_STRIDE,
    ST_BASE,
    ST_GROUP,
    ST_DIRECTION,
    ST_WIDTH,
    ST_LEFT,
    ST_FREE,
    ST_RECEIVED,
    ST_ZERO,
    ST_NONZERO,
    ST_TOGGLE,
    ST_BYTES,
    ST_OFFSET,
    ST_HALVING,
    ST_PACKETS,
    ST_SENT,
    ST_SEND_BYTES,
    ST_SEND_OFFSET,
    ST_SEND_HALVING,
    ST_STATE,
    ST_REDUCTIONS,
    ST_DELAY,
    ST_PARENT,
    ST_CHILD1,
    ST_CHILD2,
    ST_ROLE,
    ST_MEMBER,
    NUM_STREAM,
) = _numbers(38)
PHASE_TEMPLATE, PHASE_QUEUE, PHASE_DIRECTION, PHASE_BYTES, PHASE_MIRROR, NUM_PHASE = _numbers(6)
QUEUE_HEAD, QUEUE_TAIL, QUEUE_RUNNING, NUM_QUEUE = _numbers(4)

# --- ranks: these columns, then three turn counters and four tree counters per dimension ---------------------------
(
    RANK_BATCHES,
    RANK_STREAMS,
    RANK_CPU,
    RANK_COMP,
    RANK_COMM,
    RANK_ONGOING,
    RANK_FINISH,
    RANK_COLLECTIVE,
    RANK_DONE_AT,
    RANK_FIXED,
) = _numbers(10)
TURN_ALL, TURN_FIRST_HALF, TURN_SECOND_HALF = _numbers(3)

# --- ready nodes: per rank and resource a heap in `ready`; remote memories that serve one request at a time ----------
LINE_START, LINE_COUNT, NUM_LINE = _numbers(3)
SERVER_BUSY, SERVER_HEAD, SERVER_TAIL, NUM_SERVER = _numbers(4)

# --- tab: constants and places ------------------------------------------------------------------------------------
(
    IS_AWARE,
    NPUS,
    DIMS,
    ENDPOINT_NS,
    QUEUES,
    AT_ONCE,
    HAS_RENDEZVOUS,
    MAX_PHASES,
    IS_AHEAD,
    TAB_DIMS,
    TAB_MEMBERS,
    TAB_PLAN_START,
    TAB_PLANS,
    TAB_PLAN_KEY,
    TAB_COLLECTIVES,
    TAB_COMMS,
    TAB_STREAMS,
    TAB_JOINED_NS,
    TAB_JOINED,
    TAB_FINISH_NS,
    TAB_REG_NS,
    TAB_SCRATCH,
    TAB_CHUNKS_OPEN,
    TAB_MEMO,
    NUM_TAB,
) = _numbers(25)
DIM_KIND, DIM_SIZE, DIM_STRIDE, NUM_DIM = _numbers(4)
RINGED, CONNECTED, SWITCHED = _numbers(3)
RATE_MEMORY, NUM_RATE = _numbers(2)  # then bytes per ns and latency in ns, dimension by dimension

# --- plans: the phases a chunk goes through -----------------------------------------------------------------------
RING, DIRECT, HALVING_DOUBLING, BINARY_TREE = _numbers(4)
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = _numbers(4)
(
    PLAN_IMPL,
    PLAN_COM,
    PLAN_LEVEL,
    PLAN_SIZE,
    PLAN_STRIDE,
    PLAN_GROUP,
    PLAN_WINDOW,
    PLAN_TURN,
    PLAN_TREE,
    PLAN_TREE_START_GLOBAL,
    NUM_PLAN,
) = _numbers(11)

# --- collectives, one record per COMM_COLL node; communicators, the world first, then the groups ---------------------
COLL_NODE, COLL_PLAN, COLL_CHUNK_BYTES, COLL_CHUNKS, COLL_COMM, COLL_MEMBER, NUM_COLL = _numbers(7)
(
    COMM_START,
    COMM_SIZE,
    COMM_TAG_BASE,
    COMM_JOINED,
    COMM_STREAM,
    COMM_PLAN,
    COMM_BYTES,
    COMM_CHUNKS,
    COMM_SHAPE,
    NUM_COMM,
) = _numbers(10)
MEMO_SHAPE, MEMO_PLAN, MEMO_BYTES, MEMO_CHUNKS, MEMO_FINISH, MEMO_REG, NUM_MEMO = _numbers(7)
NUM_MEMOS: Any = np.int64(1021)

# --- nodes: `small` is int32[nodes, NUM_SMALL], `large` int64[nodes, NUM_LARGE] --------------------------------------
(
    NODE_RANK,
    NODE_KEY,
    NODE_AT_KEY,
    NODE_ACTION,
    NODE_RESOURCE,
    NODE_PEER,
    NODE_TAG,
    NODE_WAITS,
    NODE_COLLECTIVE,
    NUM_SMALL,
) = _numbers(10)
NODE_DURATION, NODE_BYTES, NODE_START, NODE_END, NODE_CHILD, NUM_LARGE = _numbers(6)
ACT_TIMED, ACT_SKIP, ACT_COLLECTIVE, ACT_SEND, ACT_RECEIVE, ACT_MEMORY, ACT_REFUSED, ACT_CUSTOM = _numbers(8)
ON_CPU, ON_COMP, ON_COMM, ON_NOTHING, NUM_RESOURCES = _numbers(5)

# A collective given as a trace has its nodes behind all others, one run of rows per instance. They need no resource;
# the word of the resource says so. The collective itself keeps its first row as its peer, how many there are as its
# collective, and how many are still open as its tag; the nodes keep the collective's row as their collective.
IN_CUSTOM = NUM_RESOURCES
