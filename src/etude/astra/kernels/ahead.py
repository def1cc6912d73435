"""Collectives worked out in one go when their last member joins.

Without congestion a collective touches nothing but its members, and no member can finish before the last one
has joined. So its message traffic may run on a machine of its own, or, for a ring, as a recurrence.
"""

import numpy as np

from etude.astra.kernels.algorithms import LOCAL_ENDPOINT_NS, packet_ready, packet_received, reduction_ns
from etude.astra.kernels.compiling import kernel
from etude.astra.kernels.events import call_after, give, next_call, pop, push, stop
from etude.astra.kernels.network import delay_ns, mark_arrived
from etude.astra.kernels.streams import close_stream, next_phase, open_chunks
from etude.astra.layout import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    AMBIGUOUS,
    AT_CALLS,
    AT_MESSAGES,
    AT_ONCE,
    BATCH_RANK,
    CALL_ARG,
    CALL_BUNDLE,
    CALL_DELAY,
    CALL_REG,
    COMM_BYTES,
    COMM_CHUNKS,
    COMM_PLAN,
    COMM_SHAPE,
    COMM_SIZE,
    COMM_START,
    CURRENT_REG,
    ENDPOINT_NS,
    EVENT_ARRIVAL,
    EVENT_BATCH,
    EVENT_RECEIVE,
    EVENT_START,
    FREE_CALL,
    FREE_MESSAGE,
    MEMO_BYTES,
    MEMO_CHUNKS,
    MEMO_FINISH,
    MEMO_PLAN,
    MEMO_REG,
    MEMO_SHAPE,
    MSG_RECV_ARG,
    MSG_RECV_BACK,
    NESTED_DONE,
    NONE,
    NOW,
    NUM_COLL,
    NUM_MEMO,
    NUM_MEMOS,
    NUM_PLAN,
    PLAN_COM,
    PLAN_GROUP,
    PLAN_IMPL,
    PLAN_SIZE,
    QUEUES,
    REDUCE_SCATTER,
    RING,
    RUNNING,
    ST_NODE,
    ST_PHASE,
    ST_PHASES,
    STATUS,
    TAB_COLLECTIVES,
    TAB_FINISH_NS,
    TAB_JOINED,
    TAB_JOINED_NS,
    TAB_MEMBERS,
    TAB_MEMO,
    TAB_PLAN_KEY,
    TAB_PLAN_START,
    TAB_PLANS,
    TAB_REG_NS,
    TAB_SCRATCH,
)


@kernel
def _is_reduced(com, n, packet):
    if packet % n == 0:
        return False
    return com == REDUCE_SCATTER or (com == ALL_REDUCE and (packet // n) % 2 == 0)


@kernel
def _all_equal(values):
    for i in range(1, len(values)):
        if values[i] != values[0]:
            return False
    return True


@kernel
def ring_finish(tab, rate, p, size, chunks, ranks, finish, registered, hop_ns):
    """Finish of a ring collective; `finish` comes in holding when each member joined.

    Packet k leaves a member when packet k-1 has come from its left neighbour, no earlier than its own packet
    k-1 left, and has passed the endpoint and, if it is reduced, the memory.
    """
    n, com = tab[p + PLAN_SIZE], tab[p + PLAN_COM]
    endpoint_ns = np.int64(LOCAL_ENDPOINT_NS) if tab[p + PLAN_GROUP] >= 0 else tab[ENDPOINT_NS]
    message = size if com == ALL_GATHER else size // n
    reduce_ns = reduction_ns(rate, message)
    for i in range(n):
        hop_ns[i] = delay_ns(tab, rate, ranks[i - 1 if i > 0 else n - 1], ranks[i], message)
    steps = n - 1
    if com == ALL_REDUCE:
        steps = 2 * (n - 1)
    elif com == ALL_TO_ALL:
        steps = n * (n - 1) // 2
    width = 1 if _all_equal(finish) and _all_equal(hop_ns) else n
    for _ in range(chunks):
        for i in range(width):
            finish[i] += endpoint_ns
        for packet in range(1, steps + 1):
            add = endpoint_ns + (reduce_ns if _is_reduced(com, n, packet) else 0)
            last = finish[width - 1]
            for i in range(width - 1, 0, -1):
                finish[i] = max(finish[i - 1] + hop_ns[i], finish[i]) + add
            finish[0] = max(last + hop_ns[0], finish[0]) + add
    wait_ns = reduce_ns if _is_reduced(com, n, steps) else endpoint_ns
    for i in range(n):
        if width == 1:
            finish[i] = finish[0]
        registered[i] = finish[i] - wait_ns


@kernel
def _run_batch(mem, tab, rate, batch):
    """Calls of one rank. A stream's node is the slot of its member, where chunks count up to 0."""
    while mem[STATUS] == RUNNING:
        call = next_call(mem, batch)
        if call == NONE:
            return
        stream, then_ns = mem[call + CALL_ARG], mem[call + CALL_DELAY]
        mem[CURRENT_REG] = mem[call + CALL_REG]
        give(mem, AT_CALLS, FREE_CALL, call)
        if then_ns >= 0:
            call_after(mem, mem[batch + BATCH_RANK], then_ns, CALL_BUNDLE, stream, NONE)
        elif packet_ready(mem, tab, rate, stream):
            if mem[stream + ST_PHASE] + 1 < mem[stream + ST_PHASES]:
                next_phase(mem, tab, rate, stream)
                continue
            slot = mem[stream + ST_NODE]
            tab[tab[TAB_JOINED] + slot] += 1
            if tab[tab[TAB_JOINED] + slot] == 0:
                tab[tab[TAB_FINISH_NS] + slot] = mem[NOW]
                tab[tab[TAB_REG_NS] + slot] = mem[CURRENT_REG]
                mem[NESTED_DONE] += 1
            close_stream(mem, tab, rate, stream)


@kernel
def run_traffic(mem, tab, rate, comm):
    """Run one collective's messages on a machine of its own; fills the members' finish and registration."""
    start, size = tab[comm + COMM_START], tab[comm + COMM_SIZE]
    low = tab[TAB_JOINED] + start
    rows = tab[TAB_SCRATCH] + start
    mem[NESTED_DONE] = 0
    for i in range(size):
        tab[rows + i] = tab[low + i]
        tab[low + i] = -tab[comm + COMM_CHUNKS]
        push(mem, tab[tab[TAB_JOINED_NS] + start + i], EVENT_START | ((start + i) << 3))
    while mem[STATUS] == RUNNING:
        payload = pop(mem)
        if payload < 0:
            break
        kind, arg = payload & 7, payload >> 3
        if kind == EVENT_BATCH:
            _run_batch(mem, tab, rate, arg)
        elif kind == EVENT_START:
            collective = tab[TAB_COLLECTIVES] + tab[rows + arg - start] * NUM_COLL
            open_chunks(mem, tab, rate, collective, tab[tab[TAB_MEMBERS] + arg], arg, np.int64(0))
        elif kind == EVENT_RECEIVE or (kind == EVENT_ARRIVAL and mem[arg + MSG_RECV_BACK] != NONE):
            stream = mem[arg + MSG_RECV_ARG]
            give(mem, AT_MESSAGES, FREE_MESSAGE, arg)
            packet_received(mem, tab, rate, stream)
        else:
            mark_arrived(mem, arg)
    for i in range(size):
        tab[low + i] = tab[rows + i]
    if mem[NESTED_DONE] < size:
        stop(mem, AMBIGUOUS)


@kernel
def work_out(mem, tab, rate, comm):
    """Finish times of a collective that all members have joined."""
    start, size, plan = tab[comm + COMM_START], tab[comm + COMM_SIZE], tab[comm + COMM_PLAN]
    chunk_bytes, chunks = tab[comm + COMM_BYTES], tab[comm + COMM_CHUNKS]
    template = tab[tab[TAB_PLAN_START] + plan]
    p = tab[TAB_PLANS] + template * NUM_PLAN
    at = tab[TAB_FINISH_NS] + start
    finish, joined = tab[at : at + size], tab[tab[TAB_JOINED_NS] + start : tab[TAB_JOINED_NS] + start + size]
    registered = tab[tab[TAB_REG_NS] + start : tab[TAB_REG_NS] + start + size]
    is_single_file = tab[QUEUES] == 1 and (tab[AT_ONCE] == 1 or chunks == 1)
    has_one_phase = tab[tab[TAB_PLAN_START] + plan + 1] - template == 1
    if has_one_phase and is_single_file and tab[p + PLAN_IMPL] == RING and chunk_bytes >= size:
        for i in range(size):
            finish[i] = joined[i]
        ranks = tab[tab[TAB_MEMBERS] + start : tab[TAB_MEMBERS] + start + size]
        scratch = tab[tab[TAB_SCRATCH] + start : tab[TAB_SCRATCH] + start + size]
        ring_finish(tab, rate, p, chunk_bytes, chunks, ranks, finish, registered, scratch)
        return
    key, shape = tab[tab[TAB_PLAN_KEY] + plan], tab[comm + COMM_SHAPE]
    is_shared = key >= 0 and _all_equal(joined)
    slot = (chunk_bytes * 31 + chunks * 7 + shape * 13 + key) % NUM_MEMOS
    memo = tab[TAB_MEMO] + slot * NUM_MEMO
    if (
        is_shared
        and tab[memo + MEMO_SHAPE] == shape
        and tab[memo + MEMO_PLAN] == key
        and tab[memo + MEMO_BYTES] == chunk_bytes
        and tab[memo + MEMO_CHUNKS] == chunks
    ):
        for i in range(size):
            finish[i] = joined[0] + tab[memo + MEMO_FINISH]
            registered[i] = joined[0] + tab[memo + MEMO_REG]
        return
    run_traffic(mem, tab, rate, comm)
    if is_shared and _all_equal(finish) and _all_equal(registered):
        tab[memo + MEMO_SHAPE], tab[memo + MEMO_PLAN] = shape, key
        tab[memo + MEMO_BYTES], tab[memo + MEMO_CHUNKS] = chunk_bytes, chunks
        tab[memo + MEMO_FINISH], tab[memo + MEMO_REG] = finish[0] - joined[0], registered[0] - joined[0]
