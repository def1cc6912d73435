"""State of the loop over requests and passes: requests, replicas, and the clock."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np

from etude.kernels.arrays import F64, I64
from etude.world.serve.requests import Requests

NEVER: Final = np.int64(2**62)
NOBODY: Final = -1
DONE, FULL, ASKED, STUCK, PAUSED, HALTED = 0, 1, 2, 3, 4, 5
"""Why the loop stopped: all is done; the log of passes is full; a hook is to be asked; a request can never run; the
clock came to UNTIL, or with STOPS a request was answered; no pass runs, as requested by HALT."""
TURN, LEAST, TOKENS, TWO, SESSION, ASK, BY_PREFIX, AFFINITY, BALANCE = 0, 1, 2, 3, 4, 5, 6, 7, 8
"""Routers."""
ROUTE, PLACE, CODEC = 0, 1, 2
"""Questions to hooks."""
BOTH, PREFILL, DECODE, OFF = 0, 1, 2, 3
"""What a replica does."""
FCFS, DEADLINE_FIRST, FAIR, TIER_FIRST, SHORTEST = 0, 1, 2, 3, 4
"""Order of waiting requests."""
SERIAL, EAGER, CAP, SLACK = 0, 1, 2, 3
"""How many branches of an answer run in parallel."""
BEST, LEARNT, ASK_CODEC = -1, -2, -3
"""Choice of the codec: the fastest at the link's rate; the fastest at the observed rate; or by a hook."""
PROMPTS, ANSWERS = 0, 1
"""What is routed: requests as they arrive, or answers whose prompt was read elsewhere."""
MEANT, SENT_NOW = 0, 1
"""Whether the transfer of keys and values is only estimated, or made."""
DRAWS: Final = 1 << 30
PRIME: Final = (1 << 31) - 1
NONE, NOTED = np.int64(0), np.int64(1)
"""A literal would cause a second compilation of what it is passed to."""


class KvWire(NamedTuple):
    """How keys and values get from one replica to another: each has a port out and a port in."""

    token_bytes: float
    ns_per_byte: float
    """Initial rate of a port."""
    later: F64
    """Later rates: from time, ns, and ns per byte: (changes, 2)."""
    latency_ns: int
    codec: F64
    """Bytes sent per raw byte, ns of encoding and of decoding a raw byte, ns per call: (codec, 4)."""
    choice: int
    """Row of `codec`, BEST, LEARNT, or ASK_CODEC."""
    weight: float
    """Weight of the newest transfer in the running mean of a link."""


class Rules(NamedTuple):
    """How an engine builds passes. Counts; flags are 0 or 1."""

    chunked: int
    token_budget: int
    max_seqs: int
    block: int
    reserve: int
    """A request holds room for its whole answer from the start."""
    whole_prompt: int
    """A request enters only if its whole prompt fits, though it is read in pieces."""
    caching: int
    """Blocks that a request released keep their content until others need them, the last of its tokens first."""
    ahead: int
    barrier: int
    """Whether replicas start their passes together, and wait for the longest."""
    router: int
    prefix: int
    """Whether prompts with a common prefix share blocks, by their ids."""
    order: int
    swap_ns: float
    """Time to move the keys and values of a token to the host or back; 0: preempted requests are recomputed."""
    admit: int
    admit_value: float
    tpot_ns: float
    """Limit from which slack is counted."""
    speculate: int
    """Tokens that a draft proposes for each sequence."""
    accept: float
    draft: int
    """Machine of the draft model; NOBODY: it takes no time."""
    depth: float
    """Fraction of the layers that decodes go through."""
    horizon: int
    """Lookahead of the router `balance`, in steps."""
    apart: int
    """Whether prefill has separate replicas."""
    place: int
    """Router for answers whose prompt is read."""
    wire: KvWire
    steal: int
    """Whether an idle replica takes over the first request that another could not take into its last pass."""
    lora_slots: int
    """Adapters that may be in use at the same time."""
    lora_load_ns: int
    lora_pass_ns: float
    """Time added to passes with adapters: per pass, per adapter, per token."""
    lora_adapter_ns: float
    lora_token_ns: float
    image_ns: int
    """Time of the tower for each image of an entering request."""


class RequestColumn(IntEnum):
    """Columns of a request: first what it asks for, then its progress, then what happened. One array compiles in a
    tenth of the time of thirty."""

    ARRIVAL = 0
    PROMPT = 1
    OUTPUT = 2
    SESSION = 3
    TENANT = 4
    TIER = 5
    DEADLINE = 6
    BRANCHES = 7
    PARENTS = 8
    COMPUTED = 9  # tokens whose keys and values are held
    PLANNED = 10  # output tokens, including passes in progress
    OUT = 11
    HELD = 12  # blocks
    LEFT = 13  # blocks that it held when it was preempted
    LEFT_AT = 14  # blocks taken by then, and those to be taken before the first of its own
    NEXT = 15  # next in its queue
    REPLICA = 16
    QUEUED = 17  # when the engine accepted it, between two passes
    SCHEDULED = 18
    FIRST = 19
    FINISH = 20
    PREEMPTED = 21
    REFS = 22  # ids of its prompt that it shares
    HIT = 23  # tokens found when it entered first
    AT = 24  # when the router has decided
    MISSING = 25  # parents without an answer
    KEY = 26  # key in a sorted queue
    THERE = 27  # 1: its keys and values come with it
    DECODER = 28  # replica that decodes it
    READY = 29  # when its keys and values have arrived
    BRANCH_AT = 30  # of its branches in `State.branch`
    BRANCH = 31  # branch that the next pass continues
    COMING = 32  # blocks that wait for it
    CODED = 33  # codec that it was sent with
    SENT = 34  # bytes
    REUSED = 35  # tokens from a store, at any position
    LESS = 36  # pairs of queries and keys saved, beyond those of a prefix of this length
    ADAPTER = 37  # or NOBODY
    IMAGES = 38  # images that a tower turns into tokens of its prompt
    WEIGHT = 39  # of its tenant in fair queueing, in thousandths
    ON_WIRE = 40  # ns that its keys and values were on the link
    TASK = 41  # kind of call
    STEPS = 42  # passes that give it tokens


class Count(IntEnum):
    """Columns of a replica. Queues are first and last request, and their length."""

    INBOX = 0
    WAITING = 3
    RUNNING = 6
    BATCH = 7  # requests that get a token from the current pass; NOBODY: no pass
    AHEAD = 8  # of the next pass
    END = 9  # of the current pass, ns
    USED = 10  # blocks
    PENDING = 11  # tokens that its requests still need
    PASSES = 12
    BUSY = 13  # ns
    PEAK = 14  # blocks
    PREEMPTED = 15
    READ = 16  # tokens of prompts
    MADE = 17  # tokens out
    MOST = 18  # requests at a time
    TAKEN = 19  # blocks, in all
    FOUND = 20  # tokens whose blocks were still there
    CACHED = 21  # blocks of unused ids
    EVICTED = 22  # ids
    ROOM = 23  # blocks
    KIND = 24  # of its machine
    ROLE = 25
    SHUT = 26  # 1: takes no more requests
    READY = 27  # when it may run passes, ns
    COMING = 28  # queue: prompts read elsewhere, whose keys and values wait there
    LANDING = 31  # queue: keys and values in transfer
    MOVED = 34  # tokens that move to or from the host with the next pass
    OWN = 35  # ns of its passes, without waiting at a barrier
    EXTRA = 36  # branches of the next pass, beyond one for each request
    EXTRA_NS = 37  # time that these add to it
    SLACK_NS = 38  # slack of its requests
    LOAD = 39  # tokens, during a router's lookahead
    SCORE = 40
    VIRTUAL = 41  # clock of fair queueing
    ENCODER = 42  # when it is free, ns; likewise the ports and the decoder of keys and values
    PORT_OUT = 43
    PORT_IN = 44
    DECODER = 45
    LOADING = 46  # ns that the next pass waits for a store
    STORED = 47  # tokens found in a store
    SKIPPED = 48  # queue: requests whose adapter has no slot, while a pass is built
    ADAPTERS = 51  # in use
    RESIDENT = 52  # adapters in slots
    LOADED = 53  # adapters, in all
    STOLEN = 54  # requests taken over from other replicas
    DUMMY = 55  # empty steps in which it took part for the others


class Clock(IntEnum):
    NOW = 0
    NEXT = 1  # request that arrives
    FINISHED = 2
    LOGGED = 3
    DEALT = 4
    RANDOM = 5
    CHOSEN = 6  # answer of the hook
    MISFIT = 7  # request that never gets room
    ASKING = 8  # what is asked
    ABOUT = 9  # ... of which request
    UNTIL = 10  # ns; nothing after it happens
    HALT = 11  # 1: no pass is started
    HAND = 12  # queue: prompts already read, to be decoded elsewhere
    HEAP = 15  # requests whose parents are done and that have not arrived
    BARRIERS = 16  # ns of all steps between barriers
    STOPS = 17  # 1: the loop stops whenever a request is answered


class Logged(IntEnum):
    """Columns of the log of passes."""

    REPLICA = 0
    START_NS = 1
    END_NS = 2
    PROMPT_TOKENS = 3
    DECODE = 4
    DECODE_KEYS = 5
    BLOCKS = 6
    WAITING = 7
    CACHED = 8
    ENERGY_NJ = 9  # above idle
    EXTRA_BRANCHES = 10
    EXTRA_NS = 11
    SLACK_NS = 12


class State(NamedTuple):
    request: I64
    """Column by column: (request, Column)."""
    replica: I64
    """(replica, Count)."""
    running: I64
    """Requests in the order in which they entered: (replica, position)."""
    batch: I64
    """Requests that get tokens from the current and the next pass, and how many each: (replica, 4, position)."""
    shape: F64
    """Shape of the next pass, as `steps.Shape`: (replica, 8)."""
    clock: I64
    energy_nj: F64
    """Energy of the passes of each replica, above idle."""
    tags: I64
    """Fair queueing: virtual finish time of a tenant's requests: (replica, tenant)."""
    branch: I64
    """Tokens of each branch of each request."""
    child_start: I64
    """Requests that wait for request r are child[child_start[r] : child_start[r + 1]]."""
    child: I64
    heap: I64
    """Requests that arrive later, in order of `AT`: a binary heap."""
    prefix: Any
    """Ids of blocks, and which are held: `prefix.Prefix`."""
    store: Any
    """What a cache keeps besides the blocks: `store.Store`."""
    adapter: I64
    """Users of each adapter, and when it was last used: (replica, adapter, 2), as `adapters` has it."""
    link_ns: F64
    """ns per byte, as observed for transfers to a replica; 0: none yet."""
    reuse: Any
    """Statistics of consecutive calls: `reuse.Reuse`."""


(
    ARRIVAL,
    PROMPT,
    OUTPUT,
    SESSION_OF,
    TENANT,
    TIER,
    DEADLINE,
    BRANCHES,
    PARENTS,
    COMPUTED,
    PLANNED,
    OUT,
    HELD,
    LEFT,
    LEFT_AT,
    FOLLOWING,
    REPLICA,
    QUEUED,
    SCHEDULED,
    FIRST,
    FINISH,
    PREEMPTED,
    REFS,
    HIT,
    AT,
    MISSING,
    KEY,
    THERE,
    DECODER,
    LANDS,
    BRANCH_AT,
    BRANCH,
    HOLDS,
    CODED,
    SENT,
    REUSED,
    LESS,
    ADAPTER,
    IMAGES,
    WEIGHT,
    ON_WIRE,
    TASK,
    STEPS,
) = (int(c) for c in RequestColumn)
(INBOX, WAITING, RUNNING, BATCH, AHEAD, END, USED, PENDING, PASSES, BUSY, PEAK, GAVE_WAY, READ, MADE, MOST, TAKEN,
 FOUND, CACHED, EVICTED, ROOM, KIND, ROLE, SHUT, READY, COMING, LANDING, MOVED, OWN, EXTRA, EXTRA_NS, SLACK_NS, LOAD,
 SCORE, VIRTUAL, ENCODER, PORT_OUT, PORT_IN, DECODES, LOADING, STORED, SKIPPED, ADAPTERS,
 RESIDENT, LOADED, STOLEN, DUMMY) = (int(c) for c in Count)  # fmt: skip
(NOW, NEXT, FINISHED, LOGGED, DEALT, RANDOM, CHOSEN, MISFIT, ASKING, ABOUT, UNTIL, HALT, HAND, HEAP,
 BARRIERS, STOPS) = (int(c) for c in Clock)  # fmt: skip


def start(
    requests: Requests, replicas: int, max_seqs: int, prefix: Any, store: Any, adapter: I64, reuse: Any, *,
    seed: int = 0, decide_ns: int = 0,
) -> State:  # fmt: skip
    """The initial state. All replicas are equal, with no room; a router takes `decide_ns` for each request."""
    count = len(requests)
    request = np.zeros((count, len(RequestColumn)), np.int64)
    asked = (requests.arrival_ns, requests.prompt, requests.output, requests.session, requests.tenant, requests.tier,
             requests.deadline_ns, requests.branches, np.diff(requests.parent_start))  # fmt: skip
    request[:, : len(asked)] = np.stack(asked, axis=1)
    request[:, [FOLLOWING, REPLICA, DECODER, CODED]] = NOBODY
    request[:, QUEUED : FINISH + 1] = NEVER
    request[:, LANDS] = NEVER
    request[:, MISSING] = request[:, PARENTS]
    request[:, AT] = _decided(request, decide_ns)
    request[:, BRANCH_AT] = np.concatenate([[0], np.cumsum(requests.branches)[:-1]])
    request[:, [ADAPTER, IMAGES]] = np.stack([requests.adapter, requests.images], axis=1)
    request[:, WEIGHT] = np.asarray(requests.weights, np.int64)[requests.tenant] if len(requests.weights) else 1000
    replica = np.zeros((replicas, DUMMY + 1), np.int64)
    for queue in (INBOX, WAITING, COMING, LANDING, SKIPPED):
        replica[:, [queue, queue + 1]] = NOBODY
    replica[:, [BATCH, AHEAD]] = NOBODY
    replica[:, END] = NEVER
    clock = np.zeros(STOPS + 1, np.int64)
    clock[RANDOM] = (seed * 2654435761 + 88172645) % (PRIME - 1) + 1
    clock[[CHOSEN, MISFIT, HAND, HAND + 1]] = NOBODY
    clock[UNTIL] = NEVER
    order = np.argsort(requests.parent, kind="stable")
    child = np.repeat(np.arange(count), request[:, PARENTS])[order]
    child_start = np.searchsorted(requests.parent[order], np.arange(count + 1))
    return State(
        request, replica, np.zeros((replicas, max_seqs), np.int64), np.zeros((replicas, 4, max_seqs), np.int64),
        np.zeros((replicas, 8)), clock, np.zeros(replicas),
        np.zeros((replicas, int(requests.tenant.max()) + 1), np.int64),
        np.zeros(int(requests.branches.sum()), np.int64), child_start.astype(np.int64), child.astype(np.int64),
        np.zeros(int((request[:, PARENTS] > 0).sum()), np.int64), prefix, store, adapter, np.zeros(replicas), reuse,
    )  # fmt: skip


def _decided(request: I64, decide_ns: int) -> I64:
    """Times of decisions, one after another: max(arrival, the one before) + decide_ns, for requests without parents."""
    alone = request[:, PARENTS] == 0
    arrival = request[alone, ARRIVAL]
    done = decide_ns * (np.arange(len(arrival)) + 1)
    found = request[:, ARRIVAL].copy()
    found[alone] = np.maximum.accumulate(arrival - done + decide_ns) + done
    return found
