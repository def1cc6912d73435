"""What the loop over requests and passes knows: of the requests, of the replicas, and of the clock."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.serve.requests import Requests

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
NEVER: Final = np.int64(2**62)
NOBODY: Final = -1
DONE, FULL, ASKED, STUCK, PAUSED, HALTED = 0, 1, 2, 3, 4, 5
"""Why the loop stopped: all is done; the log of passes is full; a hook is to be asked; a request can never run; the
clock came to UNTIL, or with STOPS a request was answered; no pass runs, as HALT wanted."""
TURN, LEAST, TOKENS, TWO, SESSION, ASK, BY_PREFIX, AFFINITY, BALANCE = 0, 1, 2, 3, 4, 5, 6, 7, 8
"""Routers."""
ROUTE, PLACE, CODEC = 0, 1, 2
"""What is asked."""
BOTH, PREFILL, DECODE, OFF = 0, 1, 2, 3
"""What a replica does."""
FCFS, DEADLINE_FIRST, FAIR, TIER_FIRST, SHORTEST = 0, 1, 2, 3, 4
"""Which of those that wait goes first."""
SERIAL, EAGER, CAP, SLACK = 0, 1, 2, 3
"""How many branches of an answer run side by side."""
BEST, LEARNT, ASK_CODEC = -1, -2, -3
"""Of the codecs: whichever is there first, at the rate that the link has; or at the rate that it was seen to have; or a
hook says."""
PROMPTS, ANSWERS = 0, 1
"""What is to be placed: requests as they arrive, or answers whose prompt was read elsewhere."""
MEANT, SENT_NOW = 0, 1
"""Keys and values would be sent, or are."""
DRAWS: Final = 1 << 30
PRIME: Final = (1 << 31) - 1
NONE, NOTED = np.int64(0), np.int64(1)
"""A literal would compile what it is given to a second time."""


class Wire(NamedTuple):
    """How keys and values get from one replica to another: each has a port out and a port in."""

    token_bytes: float
    ns_per_byte: float
    """Of a port, at first."""
    later: F64
    """From when on, ns, and ns of a byte then: (changes, 2)."""
    latency_ns: int
    codec: F64
    """Bytes sent for a raw one, ns of encoding and of decoding a raw byte, ns of each call: (codec, 4)."""
    choice: int
    """Row of `codec`, BEST, LEARNT, or ASK_CODEC."""
    weight: float
    """Of the newest transfer in what is known of a link."""


class Rules(NamedTuple):
    """How an engine puts passes together. Counts; flags are 0 or 1."""

    chunked: int
    token_budget: int
    max_seqs: int
    block: int
    reserve: int
    """A request holds room for its whole answer from the start."""
    whole_prompt: int
    """A request enters only if its whole prompt fits, though it is read in pieces."""
    caching: int
    """Blocks that a request gave up hold what was in them until others need them, the last of its tokens first."""
    ahead: int
    barrier: int
    """Replicas start their passes together, and wait for the longest."""
    router: int
    prefix: int
    """Prompts that begin alike share blocks, by the ids of these."""
    order: int
    swap_ns: float
    """To move keys and values of a token to the host or back; 0: who gives way reads again."""
    admit: int
    admit_value: float
    tpot_ns: float
    """Limit that slack counts from."""
    speculate: int
    """Tokens that a draft proposes for each sequence."""
    accept: float
    draft: int
    """Machine that makes them; NOBODY: they cost nothing."""
    depth: float
    """Part of the layers that tokens out go through."""
    horizon: int
    """Steps that the router `balance` looks ahead."""
    apart: int
    """Prompts have replicas of their own."""
    place: int
    """Router that says where an answer goes on, once its prompt is read."""
    wire: Wire
    steal: int
    """A replica without work takes over the first request that another could not take into its last pass."""
    lora_slots: int
    """Adapters that may be in use at a time."""
    lora_load_ns: int
    lora_pass_ns: float
    """Added to passes with adapters: for itself, for each adapter, for each token."""
    lora_adapter_ns: float
    lora_token_ns: float
    image_ns: int
    """Of the tower, for each image of a request that enters."""


class Column(IntEnum):
    """Of a request: first what is asked, then how far it is, then what happened. One array compiles in a tenth of the
    time of thirty."""

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
    PLANNED = 10  # tokens out, those of passes under way included
    OUT = 11
    HELD = 12  # blocks
    LEFT = 13  # blocks that it held when it gave way
    LEFT_AT = 14  # blocks taken by then, and those to be taken before the first of its own
    NEXT = 15  # in the queue it waits in
    REPLICA = 16
    QUEUED = 17  # when the engine took it in, between two passes
    SCHEDULED = 18
    FIRST = 19
    FINISH = 20
    PREEMPTED = 21
    REFS = 22  # ids of its prompt that it shares
    HIT = 23  # tokens that were there when it entered first
    AT = 24  # when the router has decided
    MISSING = 25  # parents without an answer
    KEY = 26  # place in a queue that is sorted
    THERE = 27  # 1: the keys and values of what it computed come with it
    DECODER = 28  # replica that decodes it
    READY = 29  # when its keys and values are there
    BRANCH_AT = 30  # of its branches in `State.branch`
    BRANCH = 31  # that the pass put together goes on with
    COMING = 32  # blocks that wait for it
    CODED = 33  # codec that it was sent with
    SENT = 34  # bytes
    REUSED = 35  # tokens of a store, at any place
    LESS = 36  # pairs of queries and keys that these save, beyond those of as many tokens at the front
    ADAPTER = 37  # or NOBODY
    IMAGES = 38  # that a tower turns into tokens of its prompt
    WEIGHT = 39  # of its tenant in fair queueing, in thousandths
    ON_WIRE = 40  # ns that its keys and values were on the link
    TASK = 41  # kind of call: what is known of one tells of others
    STEPS = 42  # passes that give it tokens


class Count(IntEnum):
    """Of a replica. Queues are first and last request, and how many."""

    INBOX = 0
    WAITING = 3
    RUNNING = 6
    BATCH = 7  # requests that the pass under way gives a token; NOBODY: there is no pass
    AHEAD = 8  # of the pass that is next
    END = 9  # of the pass under way, ns
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
    CACHED = 21  # blocks of ids that nobody uses
    EVICTED = 22  # ids
    ROOM = 23  # blocks
    KIND = 24  # of its machine
    ROLE = 25
    SHUT = 26  # 1: takes no more requests
    READY = 27  # when it may run passes, ns
    COMING = 28  # queue: prompts were read elsewhere, keys and values wait there
    LANDING = 31  # queue: keys and values are on their way
    MOVED = 34  # tokens that go to the host or come back with the next pass
    OWN = 35  # ns of its passes, without waiting at a barrier
    EXTRA = 36  # branches of the pass that is put together, beyond one for each request
    EXTRA_NS = 37  # that these add to it
    SLACK_NS = 38  # that its requests could spare
    LOAD = 39  # tokens, while a router looks ahead
    SCORE = 40
    VIRTUAL = 41  # clock of fair queueing
    ENCODER = 42  # when it is free, ns; and so the ports and the decoder of keys and values
    PORT_OUT = 43
    PORT_IN = 44
    DECODER = 45
    LOADING = 46  # ns that the next pass waits for a store
    STORED = 47  # tokens found in a store
    SKIPPED = 48  # queue: those whose adapter has no slot, while a pass is put together
    ADAPTERS = 51  # in use
    RESIDENT = 52  # adapters in slots
    LOADED = 53  # adapters, in all
    STOLEN = 54  # requests taken over from other replicas
    DUMMY = 55  # steps in which it only took part, for the others


class Clock(IntEnum):
    NOW = 0
    NEXT = 1  # request that arrives
    FINISHED = 2
    LOGGED = 3
    DEALT = 4
    RANDOM = 5
    CHOSEN = 6  # what the hook said
    MISFIT = 7  # request that never gets room
    ASKING = 8  # what is asked
    ABOUT = 9  # ... of which request
    UNTIL = 10  # ns; nothing after it happens
    HALT = 11  # 1: no pass is put together
    HAND = 12  # queue: prompts that were read, to be decoded elsewhere
    HEAP = 15  # requests whose parents are done, and that have not arrived
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
    ENERGY_NJ = 9  # beyond idle
    EXTRA_BRANCHES = 10
    EXTRA_NS = 11
    SLACK_NS = 12


class State(NamedTuple):
    request: I64
    """Column by column: (request, Column)."""
    replica: I64
    """(replica, Count)."""
    running: I64
    """Requests in the order in which they entered: (replica, place)."""
    batch: I64
    """Requests that get tokens from the pass under way and the next, and how many each: (replica, 4, place)."""
    shape: F64
    """Of the pass that is put together, as `steps.Shape`: (replica, 8)."""
    clock: I64
    energy_nj: F64
    """Of the passes of each replica, beyond idle."""
    tags: I64
    """Of fair queueing, the end of what a tenant has asked for: (replica, tenant)."""
    branch: I64
    """Tokens of each branch of each request."""
    child_start: I64
    """Requests that wait for request r are child[child_start[r] : child_start[r + 1]]."""
    child: I64
    heap: I64
    """Requests that arrive later, in order of `AT`: a binary heap."""
    prefix: Any
    """Ids of blocks, and which are there: `prefix.Prefix`."""
    store: Any
    """What a cache keeps beside the blocks: `store.Store`."""
    adapter: I64
    """Users of each adapter, and when it was left: (replica, adapter, 2), as `adapters` has it."""
    link_ns: F64
    """Of a byte, as transfers to a replica were seen to take; 0: none was seen."""
    reuse: Any
    """What is known of calls that follow one another: `reuse.Reuse`."""


(ARRIVAL, PROMPT, OUTPUT, SESSION_OF, TENANT, TIER, DEADLINE, BRANCHES, PARENTS, COMPUTED, PLANNED, OUT, HELD, LEFT,
 LEFT_AT, FOLLOWING, REPLICA, QUEUED, SCHEDULED, FIRST, FINISH, PREEMPTED, REFS, HIT, AT, MISSING, KEY, THERE, DECODER,
 LANDS, BRANCH_AT, BRANCH, HOLDS, CODED, SENT, REUSED, LESS, ADAPTER, IMAGES,
 WEIGHT, ON_WIRE, TASK, STEPS) = (int(c) for c in Column)  # fmt: skip
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
    """Nothing has happened yet. All replicas are alike, with no room; a router takes `decide_ns` for each request."""
    count = len(requests)
    request = np.zeros((count, len(Column)), np.int64)
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
    """One decision after another: max(arrival, the one before) + decide_ns, of requests without parents."""
    alone = request[:, PARENTS] == 0
    arrival = request[alone, ARRIVAL]
    done = decide_ns * (np.arange(len(arrival)) + 1)
    found = request[:, ARRIVAL].copy()
    found[alone] = np.maximum.accumulate(arrival - done + decide_ns) + done
    return found
