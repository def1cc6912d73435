"""The event loop: takes events in order and tells the layer they belong to."""

import numpy as np
from numba import njit

from etude.simulate.astra.algorithms import packet_ready, packet_received
from etude.simulate.astra.events import call_after, find_batch, give, next_call, pop, stop
from etude.simulate.astra.issue import issue_ready, memory_free, node_done
from etude.simulate.astra.layout import (
    AMBIGUOUS, AT_CALLS, AT_MESSAGES, AT_RANKS, BACK_HANDSHAKE_RECEIVE, BACK_HANDSHAKE_SEND, BACK_NODE, BACK_STREAM,
    BATCH_RANK, CALL_ARG, CALL_BUNDLE, CALL_COLLECTIVE_DONE, CALL_DELAY, CALL_KIND, CALL_MEMORY_FREE, COLL_NODE, DONE,
    EVENT_ARRIVAL, EVENT_BATCH, EVENT_LINK_FREE, EVENT_START, FREE_CALL, FREE_MESSAGE, IS_AHEAD, MSG_RECV_ARG,
    MSG_RECV_BACK, MSG_SEND_ARG, MSG_SEND_BACK, NODE_RANK, NONE, NOW, NUM_COLL, NUM_EVENTS, RANK_COLLECTIVE,
    RANK_DONE_AT, RANK_WIDTH, RUNNING, ST_NODE, ST_PHASE, ST_PHASES, STATUS, TAB_CHUNKS_OPEN, TAB_COLLECTIVES,
)
from etude.simulate.astra.network import after_handshake, is_delivered, link_free, mark_arrived
from etude.simulate.astra.streams import close_stream, next_phase


@njit(cache=True)
def _check_tie(mem, small, node):
    """A message finishes a node while a collective is being worked out ahead: whether the rank's other calls of
    this instant come before it depends on packets that were never simulated."""
    rank = np.int64(small[node, NODE_RANK])
    row = mem[AT_RANKS] + rank * mem[RANK_WIDTH]
    if mem[row + RANK_DONE_AT] == mem[NOW]:
        stop(mem, AMBIGUOUS)
    elif mem[row + RANK_COLLECTIVE] != 0 and find_batch(mem, rank, mem[NOW]) != NONE:
        stop(mem, AMBIGUOUS)


@njit(cache=True)
def _run_batch(mem, side, tab, rate, small, large, child, ready, rank_start, batch):
    """Everything one rank has to do at this instant, in the order in which it was registered."""
    rank = mem[batch + BATCH_RANK]
    row = mem[AT_RANKS] + rank * mem[RANK_WIDTH]
    while mem[STATUS] == RUNNING:
        call = next_call(mem, batch)
        if call == NONE:
            return
        kind, arg, then_ns = mem[call + CALL_KIND], mem[call + CALL_ARG], mem[call + CALL_DELAY]
        give(mem, AT_CALLS, FREE_CALL, call)
        mem[NUM_EVENTS] += 1
        stream, node, collective = np.int64(NONE), arg, np.int64(NONE)
        if kind == CALL_BUNDLE:
            node = np.int64(NONE)
            if then_ns >= 0:
                call_after(mem, rank, then_ns, CALL_BUNDLE, arg, np.int64(NONE))
            elif packet_ready(mem, tab, rate, arg):
                if mem[arg + ST_PHASE] + 1 < mem[arg + ST_PHASES]:
                    next_phase(mem, tab, rate, arg)
                else:
                    stream = arg
                    row_of_open = tab[TAB_CHUNKS_OPEN] + mem[arg + ST_NODE]
                    tab[row_of_open] -= 1
                    if tab[row_of_open] == 0:
                        collective = mem[arg + ST_NODE]
        elif kind == CALL_COLLECTIVE_DONE:
            collective = arg
        elif kind == CALL_MEMORY_FREE:
            node = np.int64(NONE)
            memory_free(mem, small, large, arg)
        if collective != NONE:
            node = tab[tab[TAB_COLLECTIVES] + collective * NUM_COLL + COLL_NODE]
            mem[row + RANK_COLLECTIVE] = 0
            mem[row + RANK_DONE_AT] = mem[NOW]
        if node != NONE:
            node_done(mem, side, tab, rate, small, large, child, ready, rank_start, node)
        if stream != NONE:                       # only after the workload has gone on
            close_stream(mem, tab, rate, stream)


@njit(cache=True)
def _tell(mem, side, tab, rate, small, large, child, ready, rank_start, msg, is_arrival):
    """Tell the sender of a message that has arrived, and the receiver if there is one."""
    back, arg = mem[msg + MSG_RECV_BACK], mem[msg + MSG_RECV_ARG]
    first_back, first_arg = mem[msg + MSG_SEND_BACK], mem[msg + MSG_SEND_ARG]
    if back == NONE:
        mark_arrived(mem, msg)
    else:
        give(mem, AT_MESSAGES, FREE_MESSAGE, msg)
    for turn in range(0 if is_arrival else 1, 2):
        to, whom = (first_back, first_arg) if turn == 0 else (back, arg)
        if to == BACK_STREAM:
            packet_received(mem, tab, rate, whom)
        elif to == BACK_NODE:
            if tab[IS_AHEAD] == 1:
                _check_tie(mem, small, whom)
            node_done(mem, side, tab, rate, small, large, child, ready, rank_start, whom)
        elif to == BACK_HANDSHAKE_SEND or to == BACK_HANDSHAKE_RECEIVE:
            after_handshake(mem, tab, rate, whom, to == BACK_HANDSHAKE_SEND)


@njit(cache=True)
def step(mem, side, tab, rate, small, large, child, ready, rank_start, max_events):
    """Process up to max_events events. The machine's status says whether there is more to do."""
    for _ in range(max_events):
        if mem[STATUS] != RUNNING:
            return
        payload = pop(mem)
        if payload < 0:
            mem[STATUS] = DONE
            return
        mem[NUM_EVENTS] += 1
        kind, arg = payload & 7, payload >> 3
        if kind == EVENT_BATCH:
            _run_batch(mem, side, tab, rate, small, large, child, ready, rank_start, arg)
        elif kind == EVENT_LINK_FREE:
            link_free(mem, rate, arg)
        elif kind == EVENT_START:
            issue_ready(mem, side, tab, rate, small, large, child, ready, arg, rank_start[arg])
        elif kind != EVENT_ARRIVAL or is_delivered(mem, tab, rate, arg):
            _tell(mem, side, tab, rate, small, large, child, ready, rank_start, arg, kind == EVENT_ARRIVAL)
