"""State of the loop over requests and passes: requests, replicas, and the clock."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from etude.kernels.arrays import F64, I64
from etude.kernels.rows import Table, TableRows, record
from etude.world.serve.requests import Requests
from etude.world.serve.steps import PassContent

NEVER: Final = np.int64(2**62)
NOBODY: Final = -1
DONE, FULL, ASKED, STUCK, PAUSED, HALTED = 0, 1, 2, 3, 4, 5
"""Why the loop stopped: all is done; the log of passes is full; a hook is to be asked; a request can never run; the
clock came to `until_ns`, or with `stops` a request was answered; no pass runs, as requested by `halt`."""
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
GAP_GRAIN: Final = 200.0
GAP_BINS: Final = int(GAP_GRAIN * np.log(float(NEVER))) + 1
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
    cut_prompts: int
    """Prompts that share passes with decoding are cut to what is left of the budget; else they wait for a pass that has
    room for all of one, or is empty."""
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
    stages: int
    """Stages that a pass goes through, each with a part of the layers; as many replicas in a row share them."""


QUEUE: Final = record("first", "last", "count")
"""A list of requests through their `next`, or NOBODY."""
NO_REQUESTS: Final = (NOBODY, NOBODY, 0)
"""An empty QUEUE."""
REQUEST: Final = record(
    "arrival_ns",  # from here on: what it asks for
    "prompt",
    "output",
    "session",
    "tenant",
    "tier",
    "deadline_ns",
    "branches",
    "parents",
    "computed",  # tokens whose keys and values are held
    "planned",  # output tokens, including passes in progress
    "out",
    "held",  # blocks
    "left",  # blocks that it held when it was preempted
    "left_at",  # blocks taken by then, and those to be taken before the first of its own
    "next",  # in its queue
    "replica",
    "queued_ns",  # when the engine accepted it, between two passes
    "scheduled_ns",
    "first_ns",
    "token_ns",  # when its last token came
    "finish_ns",
    "preempted",
    "refs",  # ids of its prompt that it shares
    "hit",  # tokens found when it entered first
    "at_ns",  # when the router has decided
    "missing",  # parents without an answer
    "key",  # in a sorted queue
    "there",  # 1: its keys and values come with it
    "decoder",  # replica that decodes it
    "ready_ns",  # when its keys and values have arrived
    "branch_at",  # of its branches in `State.branch`
    "branch",  # that the next pass continues
    "coming",  # blocks that wait for it
    "coded",  # codec that it was sent with
    "sent",  # bytes
    "reused",  # tokens from a store, at any position
    "less",  # pairs of queries and keys saved, beyond those of a prefix of this length
    "adapter",  # or NOBODY
    "images",  # that a tower turns into tokens of its prompt
    "weight",  # of its tenant in fair queueing, in thousandths
    "on_wire_ns",  # that its keys and values were on the link
    "task",  # kind of call
    "steps",  # passes that give it tokens
)
REPLICA: Final = record(
    ("inbox", QUEUE),
    ("waiting", QUEUE),
    "running",  # requests
    "batch",  # requests that get a token from the current pass; NOBODY: no pass
    "ahead",  # of the next pass
    "end_ns",  # of the current pass
    "used",  # blocks
    "pending",  # tokens that its requests still need
    "passes",
    "busy_ns",
    "peak",  # blocks
    "preempted",
    "read",  # tokens of prompts
    "made",  # tokens out
    "most",  # requests at a time
    "taken",  # blocks, in all
    "found",  # tokens whose blocks were still there
    "cached",  # blocks of unused ids
    "evicted",  # ids
    "room",  # blocks
    "kind",  # of its machine
    "role",
    "shut",  # 1: takes no more requests
    "ready_ns",  # when it may run passes
    ("coming", QUEUE),  # prompts read elsewhere, whose keys and values wait there
    ("landing", QUEUE),  # keys and values in transfer
    "moved",  # tokens that move to or from the host with the next pass
    "own_ns",  # of its passes, without waiting at a barrier
    "extra",  # branches of the next pass, beyond one for each request
    "extra_ns",  # that these add to it
    "slack_ns",  # of its requests
    "load",  # tokens, during a router's lookahead
    "score",
    "virtual",  # clock of fair queueing
    "encoder_ns",  # when it is free; likewise the ports and the decoder of keys and values
    "port_out_ns",
    "port_in_ns",
    "decoder_ns",
    "loading_ns",  # that the next pass waits for a store
    "stored",  # tokens found in a store
    ("skipped", QUEUE),  # requests whose adapter has no slot, while a pass is built
    "adapters",  # in use
    "resident",  # adapters in slots
    "loaded",  # adapters, in all
    "stolen",  # requests taken over from other replicas
    "dummy",  # empty steps in which it took part for the others
)
CLOCK: Final = record(
    "now_ns",
    "next",  # request that arrives
    "finished",
    "logged",
    "dealt",
    "random",
    "chosen",  # answer of the hook
    "misfit",  # request that never gets room
    "asking",  # what is asked
    "about",  # ... of which request
    "until_ns",  # nothing after it happens
    "halt",  # 1: no pass is started
    ("hand", QUEUE),  # prompts already read, to be decoded elsewhere
    "heap",  # requests whose parents are done and that have not arrived
    "barriers_ns",  # of all steps between barriers
    "stops",  # 1: the loop stops whenever a request is answered
    ("ended", QUEUE),  # those answered then, until they are taken out
)
SHAPE: Final = record(*((name, np.float64) if name in ("pairs", "depth") else name for name in PassContent._fields))
"""`steps.PassContent`, while a pass is built."""
PASS: Final = record(
    "replica",
    "start_ns",
    "end_ns",
    "prompt_tokens",
    "decode",
    "decode_keys",
    "blocks",
    "waiting",
    "cached",
    "energy_nj",  # above idle
    "extra_branches",
    "extra_ns",
    "slack_ns",
)
"""A row of the log of passes."""


class State(NamedTuple):
    request: Table
    """A REQUEST each."""
    replica: Table
    """A REPLICA each."""
    running: I64
    """Requests in the order in which they entered: (replica, position)."""
    batch: I64
    """Requests that get tokens from the current and the next pass, and how many each: (replica, 4, position)."""
    shape: Table
    """Shape of the next pass of each replica: a SHAPE."""
    clock: Table
    """One CLOCK."""
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
    """Requests that arrive later, in order of `at_ns`: a binary heap."""
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
    stage_share: F64
    """Part of a pass on each stage."""
    stage_ns: I64
    """When each stage is free: (replicas that share stages, stage)."""
    gaps: I64
    """Times between two tokens of a request, counted by their logarithm: `GAP_GRAIN` bins for a factor of e."""


def in_rows(state: State) -> State:
    """The same state, in the same memory, as kernels take it that run as plain Python."""
    tables: dict[str, Any] = {
        name: TableRows(getattr(state, name)) for name in ("request", "replica", "shape", "clock")
    }
    return state._replace(**tables)


def start(
    requests: Requests, replicas: int, max_seqs: int, prefix: Any, store: Any, adapter: I64, reuse: Any, *,
    seed: int = 0, decide_ns: int = 0, stages: tuple[float, ...] = (1.0,),
) -> State:  # fmt: skip
    """The initial state. All replicas are equal, with no room; a router takes `decide_ns` for each request."""
    request = _requests(requests, decide_ns)
    replica = np.zeros(replicas, REPLICA)
    for queue in ("inbox", "waiting", "coming", "landing", "skipped"):
        replica[queue] = NO_REQUESTS
    replica["batch"] = replica["ahead"] = NOBODY
    replica["end_ns"] = NEVER
    clock = np.zeros(1, CLOCK)
    clock["random"] = (seed * 2654435761 + 88172645) % (PRIME - 1) + 1
    clock["chosen"] = clock["misfit"] = NOBODY
    clock["hand"] = clock["ended"] = NO_REQUESTS
    clock["until_ns"] = NEVER
    count, order = len(requests), np.argsort(requests.parent, kind="stable")
    child = np.repeat(np.arange(count), request["parents"])[order]
    child_start = np.searchsorted(requests.parent[order], np.arange(count + 1))
    return State(
        request, replica, np.zeros((replicas, max_seqs), np.int64), np.zeros((replicas, 4, max_seqs), np.int64),
        np.zeros(replicas, SHAPE), clock, np.zeros(replicas),
        np.zeros((replicas, int(requests.tenant.max()) + 1), np.int64),
        np.zeros(int(requests.branches.sum()), np.int64), child_start.astype(np.int64), child.astype(np.int64),
        np.zeros(int((request["parents"] > 0).sum()), np.int64), prefix, store, adapter, np.zeros(replicas), reuse,
        np.array(stages), np.zeros((-(-replicas // len(stages)), len(stages)), np.int64), np.zeros(GAP_BINS, np.int64),
    )  # fmt: skip


def _requests(requests: Requests, decide_ns: int) -> Table:
    """All of them before they arrive."""
    found = np.zeros(len(requests), REQUEST)
    for name in ("arrival_ns", "prompt", "output", "session", "tenant", "tier", "deadline_ns", "branches", "adapter"):
        found[name] = getattr(requests, name)
    found["images"] = requests.images
    found["parents"] = found["missing"] = np.diff(requests.parent_start)
    for name in ("next", "replica", "decoder", "coded"):
        found[name] = NOBODY
    for name in ("queued_ns", "scheduled_ns", "first_ns", "finish_ns", "ready_ns"):
        found[name] = NEVER
    found["at_ns"] = _decided(found, decide_ns)
    found["branch_at"] = np.concatenate([[0], np.cumsum(requests.branches)[:-1]])
    found["weight"] = np.asarray(requests.weights, np.int64)[requests.tenant] if len(requests.weights) else 1000
    return found


def _decided(request: Table, decide_ns: int) -> I64:
    """Times of decisions, one after another: max(arrival, the one before) + decide_ns, for requests without parents."""
    alone = request["parents"] == 0
    arrival = request["arrival_ns"][alone]
    done = decide_ns * (np.arange(len(arrival)) + 1)
    found = request["arrival_ns"].copy()
    found[alone] = np.maximum.accumulate(arrival - done + decide_ns) + done
    return found
