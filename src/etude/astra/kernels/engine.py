"""The event loop: takes events in order and tells the layer they belong to."""

import numpy as np

from etude.astra.kernels.algorithms import packet_ready, packet_received
from etude.astra.kernels.compiling import kernel
from etude.astra.kernels.custom import custom_done
from etude.astra.kernels.events import call_after, find_batch, give, next_call, pop, push, stop
from etude.astra.kernels.issue import finish, issue_ready, memory_free
from etude.astra.kernels.network import after_handshake, is_delivered, link_free, mark_arrived
from etude.astra.kernels.streams import close_stream, next_phase
from etude.astra.layout import (
    AMBIGUOUS,
    AT_CALLS,
    AT_MESSAGES,
    AT_RANKS,
    BACK_HANDSHAKE_RECEIVE,
    BACK_HANDSHAKE_SEND,
    BACK_NODE,
    BACK_NONE,
    BACK_STREAM,
    BATCH_RANK,
    CALL_ARG,
    CALL_BUNDLE,
    CALL_COLLECTIVE_DONE,
    CALL_DELAY,
    CALL_KIND,
    CALL_MEMORY_FREE,
    COLL_NODE,
    DONE,
    EVENT_ARRIVAL,
    EVENT_BATCH,
    EVENT_LINK_FREE,
    EVENT_START,
    FREE_CALL,
    FREE_MESSAGE,
    IN_CUSTOM,
    IS_AHEAD,
    MSG_RECV_ARG,
    MSG_RECV_BACK,
    MSG_SEND_ARG,
    MSG_SEND_BACK,
    NODE_RANK,
    NODE_RESOURCE,
    NONE,
    NOW,
    NUM_COLL,
    NUM_EVENTS,
    OPEN_BATCH,
    RANK_COLLECTIVE,
    RANK_DONE_AT,
    RANK_WIDTH,
    RUNNING,
    ST_NODE,
    ST_PHASE,
    ST_PHASES,
    STATUS,
    TAB_CHUNKS_OPEN,
    TAB_COLLECTIVES,
    TELL_ARG,
    TELL_BACK,
)


@kernel
def _check_tie(mem, small, node):
    """A message finishes a node while a collective is being worked out ahead: whether the rank's other calls of
    this instant come before it depends on packets that were never simulated."""
    rank = np.int64(small[node, NODE_RANK])
    row = mem[AT_RANKS] + rank * mem[RANK_WIDTH]
    if mem[row + RANK_DONE_AT] == mem[NOW] or (
        mem[row + RANK_COLLECTIVE] != 0 and find_batch(mem, rank, mem[NOW]) != NONE
    ):
        stop(mem, AMBIGUOUS)


@kernel
def _run_call(mem, tab, rate, small, large, rank, call):
    """One thing a rank has to do now. Gives back the node it finishes and the stream it ends, or -1."""
    kind, arg, then_ns = mem[call + CALL_KIND], mem[call + CALL_ARG], mem[call + CALL_DELAY]
    give(mem, AT_CALLS, FREE_CALL, call)
    collective, stream = NONE, NONE
    if kind == CALL_BUNDLE:
        if then_ns >= 0:
            call_after(mem, rank, then_ns, CALL_BUNDLE, arg, NONE)
        elif packet_ready(mem, tab, rate, arg):
            if mem[arg + ST_PHASE] + 1 < mem[arg + ST_PHASES]:
                next_phase(mem, tab, rate, arg)
            else:
                stream = arg
                open_chunks = tab[TAB_CHUNKS_OPEN] + mem[arg + ST_NODE]
                tab[open_chunks] -= 1
                if tab[open_chunks] == 0:
                    collective = mem[arg + ST_NODE]
    elif kind == CALL_COLLECTIVE_DONE:
        collective = arg
    elif kind == CALL_MEMORY_FREE:
        memory_free(mem, small, large, arg)
    else:
        return arg, stream
    if collective == NONE:
        return NONE, stream
    row = mem[AT_RANKS] + rank * mem[RANK_WIDTH]
    mem[row + RANK_COLLECTIVE] = 0
    mem[row + RANK_DONE_AT] = mem[NOW]
    return tab[tab[TAB_COLLECTIVES] + collective * NUM_COLL + COLL_NODE], stream


@kernel
def _tell(mem, tab, rate, small, back, arg):
    """Tell the sender or the receiver of a message. Gives back the node that this finishes, or -1."""
    if back == BACK_STREAM:
        packet_received(mem, tab, rate, arg)
    elif back == BACK_NODE:
        if tab[IS_AHEAD] == 1:
            _check_tie(mem, small, arg)
        return arg
    elif back == BACK_HANDSHAKE_SEND or back == BACK_HANDSHAKE_RECEIVE:
        after_handshake(mem, tab, rate, arg, back == BACK_HANDSHAKE_SEND)
    return NONE


@kernel
def _delivered(mem, msg, is_arrival):
    """A message is there. Its sender is told first; the receiver's turn is noted for the next step."""
    back, arg = mem[msg + MSG_RECV_BACK], mem[msg + MSG_RECV_ARG]
    first, first_arg = mem[msg + MSG_SEND_BACK], mem[msg + MSG_SEND_ARG]
    if back == NONE:
        mark_arrived(mem, msg)
        return first, first_arg
    give(mem, AT_MESSAGES, FREE_MESSAGE, msg)
    if not is_arrival or first == BACK_NONE:
        return back, arg
    mem[TELL_BACK], mem[TELL_ARG] = back, arg
    return first, first_arg


@kernel
def start_ranks(mem, num_ranks):
    """Let every rank look for its first nodes, in the order of the ranks."""
    for rank in range(num_ranks):
        push(mem, np.int64(0), EVENT_START | (rank << 3))


@kernel
def step(mem, side, tab, rate, small, large, child, ready, rank_start, max_events):
    """Process up to max_events events. The machine's status says whether there is more to do."""
    for _ in range(max_events):
        if mem[STATUS] != RUNNING:
            return
        mem[NUM_EVENTS] += 1
        node, stream, rank = NONE, NONE, NONE
        batch = mem[OPEN_BATCH]
        if batch != NONE:
            call = next_call(mem, batch)
            if call == NONE:
                mem[OPEN_BATCH] = NONE
                continue
            node, stream = _run_call(mem, tab, rate, small, large, mem[batch + BATCH_RANK], call)
        elif mem[TELL_BACK] != NONE:
            back = mem[TELL_BACK]
            mem[TELL_BACK] = NONE
            node = _tell(mem, tab, rate, small, back, mem[TELL_ARG])
        else:
            payload = pop(mem)
            if payload < 0:
                mem[STATUS] = DONE
                return
            kind, arg = payload & 7, payload >> 3
            if kind == EVENT_BATCH:
                mem[OPEN_BATCH] = arg
            elif kind == EVENT_LINK_FREE:
                link_free(mem, rate, arg)
            elif kind == EVENT_START:
                rank = arg
            elif kind != EVENT_ARRIVAL or is_delivered(mem, tab, rate, arg):
                back, backed = _delivered(mem, arg, kind == EVENT_ARRIVAL)
                node = _tell(mem, tab, rate, small, back, backed)
        if node != NONE and small[node, NODE_RESOURCE] == IN_CUSTOM:
            node = custom_done(mem, tab, rate, small, large, child, node)
        if node != NONE:
            rank = np.int64(small[node, NODE_RANK])
            finish(mem, small, large, child, ready, node, False)
        if rank != NONE:
            issue_ready(mem, side, tab, rate, small, large, child, ready, rank, rank_start[rank])
        if stream != NONE:  # only after the workload has gone on
            close_stream(mem, tab, rate, stream)
