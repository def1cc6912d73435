"""Collectives that are given as a trace of sends, receives and local work."""

import numpy as np

from etude.astra.kernels.compiling import kernel
from etude.astra.kernels.events import call_after
from etude.astra.kernels.network import receive, send
from etude.astra.layout import (
    ACT_RECEIVE,
    ACT_SEND,
    ACT_TIMED,
    AT_RANKS,
    BACK_NODE,
    CALL_NODE_DONE,
    NODE_ACTION,
    NODE_BYTES,
    NODE_CHILD,
    NODE_COLLECTIVE,
    NODE_DURATION,
    NODE_END,
    NODE_PEER,
    NODE_RANK,
    NODE_START,
    NODE_TAG,
    NODE_WAITS,
    NONE,
    NOW,
    RANK_COLLECTIVE,
    RANK_STREAMS,
    RANK_WIDTH,
)


@kernel
def _start(mem, tab, rate, small, large, node):
    """Start one node of the trace; nodes of other kinds never end, as in the original."""
    rank, peer = np.int64(small[node, NODE_RANK]), np.int64(small[node, NODE_PEER])
    size, tag = large[node, NODE_BYTES], np.int64(small[node, NODE_TAG])
    large[node, NODE_START] = mem[NOW]
    if small[node, NODE_ACTION] == ACT_SEND:
        send(mem, tab, rate, rank, peer, size, tag, BACK_NODE, node)
    elif small[node, NODE_ACTION] == ACT_RECEIVE:
        receive(mem, tab, rate, peer, rank, size, tag, BACK_NODE, node)
    elif small[node, NODE_ACTION] == ACT_TIMED:
        call_after(mem, rank, large[node, NODE_DURATION], CALL_NODE_DONE, node, NONE)


@kernel
def open_custom(mem, tab, rate, small, large, node):
    """Start the nodes that wait for nothing. The collective counts as one stream."""
    row = mem[AT_RANKS] + small[node, NODE_RANK] * mem[RANK_WIDTH]
    mem[row + RANK_STREAMS] += 1
    mem[row + RANK_COLLECTIVE] = 1
    first = np.int64(small[node, NODE_PEER])
    for i in range(first, first + small[node, NODE_COLLECTIVE]):
        if small[i, NODE_WAITS] == 0:
            _start(mem, tab, rate, small, large, i)


@kernel
def custom_done(mem, tab, rate, small, large, child, node):
    """A node of the trace is through: start those it frees. Gives back the collective if it was the last, or -1."""
    large[node, NODE_END] = mem[NOW]
    for at in range(large[node, NODE_CHILD], large[node + 1, NODE_CHILD]):
        c = np.int64(child[at])
        small[c, NODE_WAITS] -= 1
        if small[c, NODE_WAITS] == 0:
            _start(mem, tab, rate, small, large, c)
    collective = np.int64(small[node, NODE_COLLECTIVE])
    small[collective, NODE_TAG] -= 1
    if small[collective, NODE_TAG] != 0:
        return NONE
    mem[mem[AT_RANKS] + small[node, NODE_RANK] * mem[RANK_WIDTH] + RANK_COLLECTIVE] = 0
    return collective
