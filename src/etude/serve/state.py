"""What the loop over requests and passes knows: of the requests, of the replicas, and of the clock."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
NEVER: Final = np.int64(2**62)
NOBODY: Final = -1
DONE, FULL, ASKED, STUCK, PAUSED = 0, 1, 2, 3, 4
"""Why the loop stopped: all is done; the log of passes is full; a router is to be asked; a request can never run; the
clock came to UNTIL, or with STOPS a request was answered."""
TURN, LEAST, TOKENS, TWO, SESSION, ASK, BY_PREFIX, AFFINITY = 0, 1, 2, 3, 4, 5, 6, 7
"""Routers."""


class Rules(NamedTuple):
    """How an engine puts passes together. Counts; flags are 0 or 1."""

    chunked: int
    token_budget: int
    max_seqs: int
    block: int
    blocks: int
    """Of keys and values, on a replica."""
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


class Column(IntEnum):
    """Of a request: first what is asked, then how far it is, then what happened. One row a request lies in two lines of
    cache, and one array compiles in a tenth of the time of twenty."""

    ARRIVAL = 0
    PROMPT = 1
    OUTPUT = 2
    SESSION = 3
    COMPUTED = 4  # tokens whose keys and values are held
    PLANNED = 5  # tokens out, those of passes under way included
    OUT = 6
    HELD = 7  # blocks
    LEFT = 8  # blocks that it held when it gave way
    LEFT_AT = 9  # blocks taken by then, and those to be taken before the first of its own
    NEXT = 10  # in the queue it waits in
    REPLICA = 11
    QUEUED = 12  # when the engine took it in, between two passes
    SCHEDULED = 13
    FIRST = 14
    FINISH = 15
    PREEMPTED = 16
    REFS = 17  # ids of its prompt that it shares
    HIT = 18  # tokens that were there when it entered first
    REUSED = 19  # tokens of a store, at any place
    LESS = 20  # pairs of queries and keys that these save, beyond those of as many tokens at the front


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
    LOADING = 23  # ns that the next pass waits for a store
    STORED = 24  # tokens found in a store


class Clock(IntEnum):
    NOW = 0
    NEXT = 1  # request that arrives
    FINISHED = 2
    LOGGED = 3
    DEALT = 4
    RANDOM = 5
    CHOSEN = 6  # replica, by a router outside
    MISFIT = 7  # request that never gets room
    UNTIL = 8  # ns; nothing after it happens
    STOPS = 9  # 1: the loop stops whenever a request is answered


class Logged(IntEnum):
    """Columns of the log: a row for each pass, in the order in which they start."""

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


class State(NamedTuple):
    request: I64
    """Column by column: (request, Column)."""
    replica: I64
    """(replica, Count)."""
    running: I64
    """Requests in the order in which they entered: (replica, place)."""
    batch: I64
    """Requests that get a token from the pass under way and the next: (replica, 2, place)."""
    shape: NDArray[np.float64]
    """Of the pass that is put together: prompt tokens, pairs, decode, keys, outputs, most keys: (replica, 6)."""
    clock: I64
    energy_nj: NDArray[np.float64]
    """Of the passes of each replica, beyond idle."""
    prefix: Any
    """Ids of blocks, and which are there: `prefix.Prefix`."""
    store: Any
    """What a cache keeps beside the blocks: `store.Store`."""


(ARRIVAL, PROMPT, OUTPUT, SESSION_OF, COMPUTED, PLANNED, OUT, HELD, LEFT, LEFT_AT, FOLLOWING, REPLICA, QUEUED,
 SCHEDULED, FIRST, FINISH, PREEMPTED, REFS, HIT, REUSED, LESS) = (int(c) for c in Column)  # fmt: skip
(INBOX, WAITING, RUNNING, BATCH, AHEAD, END, USED, PENDING, PASSES, BUSY, PEAK, GAVE_WAY, READ, MADE, MOST, TAKEN,
 FOUND, CACHED, EVICTED, LOADING, STORED) = (int(c) for c in Count)  # fmt: skip
NOW, NEXT, FINISHED, LOGGED, DEALT, RANDOM, CHOSEN, MISFIT, UNTIL, STOPS = (int(c) for c in Clock)


def start(columns: I64, replicas: int, max_seqs: int, prefix: Any, store: Any, seed: int = 0) -> State:
    """`columns`: arrival, prompt, output and session of each request, in order of arrival."""
    request = np.zeros((len(columns), len(Column)), np.int64)
    request[:, :4] = columns
    request[:, [FOLLOWING, REPLICA]] = NOBODY
    request[:, QUEUED : FINISH + 1] = NEVER
    replica = np.zeros((replicas, STORED + 1), np.int64)
    replica[:, [INBOX, INBOX + 1, WAITING, WAITING + 1, BATCH, AHEAD]] = NOBODY
    replica[:, END] = NEVER
    clock = np.zeros(len(Clock), np.int64)
    clock[RANDOM], clock[CHOSEN], clock[MISFIT] = 2 * seed + 1, NOBODY, NOBODY
    clock[UNTIL] = NEVER
    running, batch = np.zeros((replicas, max_seqs), np.int64), np.zeros((replicas, 2, max_seqs), np.int64)
    return State(request, replica, running, batch, np.zeros((replicas, 6)), clock, np.zeros(replicas), prefix, store)
