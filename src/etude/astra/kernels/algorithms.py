"""Collective algorithms, one stream (chunk on a rank) at a time.

`begin` starts a phase, `packet_ready` is told when a packet has passed the endpoint (and, if it was reduced,
the memory), `packet_received` when a message came in. A packet is a ticket: the first `ST_WIDTH` come for
free, every received message brings another, and each ticket that has passed the endpoint lets one message out.
"""

import numpy as np

from etude.astra.kernels.compiling import kernel
from etude.astra.kernels.events import call_after, stop
from etude.astra.kernels.network import receive, send
from etude.astra.layout import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BACK_NONE,
    BACK_STREAM,
    BINARY_TREE,
    CALL_BUNDLE,
    DIRECT,
    ENDPOINT_NS,
    HALVING_DOUBLING,
    NONE,
    RATE_MEMORY,
    REDUCE_SCATTER,
    RING,
    ST_BASE,
    ST_BYTES,
    ST_CHILD1,
    ST_CHILD2,
    ST_COM,
    ST_DELAY,
    ST_DIRECTION,
    ST_FREE,
    ST_GROUP,
    ST_HALVING,
    ST_IMPL,
    ST_INDEX,
    ST_LEFT,
    ST_N,
    ST_NONZERO,
    ST_OFFSET,
    ST_PACKETS,
    ST_PARENT,
    ST_RANK,
    ST_RECEIVED,
    ST_REDUCTIONS,
    ST_ROLE,
    ST_SEND_BYTES,
    ST_SEND_HALVING,
    ST_SEND_OFFSET,
    ST_SENT,
    ST_STATE,
    ST_STRIDE,
    ST_TAG,
    ST_TOGGLE,
    ST_WIDTH,
    ST_ZERO,
    TAB_MEMBERS,
    TREE_BROKEN,
    _numbers,
)

LOCAL_ENDPOINT_NS = np.int64(10)  # inside a group smaller than the cluster
ROLE_LEAF, ROLE_INNER, ROLE_ROOT = _numbers(3)
(STATE_BEGIN, STATE_TWO_CHILDREN, STATE_ONE_CHILD, STATE_TO_PARENT, STATE_FROM_PARENT, STATE_TO_CHILDREN, STATE_END) = (
    _numbers(7)
)


@kernel
def reduction_ns(rate, size):
    """One write and two reads of the local memory."""
    if rate[RATE_MEMORY] <= 0.0:
        return np.int64(0)
    return 3 * np.int64(np.float64(size) / rate[RATE_MEMORY] * 1e9)


@kernel
def member(mem, tab, stream, index):
    """The rank at a place of the stream's ring."""
    index = index % mem[stream + ST_N]
    if mem[stream + ST_GROUP] >= 0:
        return tab[tab[TAB_MEMBERS] + mem[stream + ST_GROUP] + index]
    return mem[stream + ST_BASE] + index * mem[stream + ST_STRIDE]


@kernel
def final_bytes(impl, com, n, size):
    """Bytes a phase hands to the next one."""
    if impl == BINARY_TREE:
        return size
    if com == ALL_GATHER:
        return size * n
    if com == REDUCE_SCATTER:
        return size // n
    return size


@kernel
def begin(mem, tab, rate, stream, size, window):
    """Start a phase; the ring of the stream is already set."""
    mem[stream + ST_DELAY] = LOCAL_ENDPOINT_NS if mem[stream + ST_GROUP] >= 0 else tab[ENDPOINT_NS]
    if mem[stream + ST_IMPL] == BINARY_TREE:
        _begin_tree(mem, tab, rate, stream, size)
        return
    n, com = mem[stream + ST_N], mem[stream + ST_COM]
    (
        mem[stream + ST_WIDTH],
        mem[stream + ST_FREE],
        mem[stream + ST_RECEIVED],
        mem[stream + ST_ZERO],
        mem[stream + ST_NONZERO],
    ) = 1, 0, 0, 0, 0
    mem[stream + ST_TOGGLE], mem[stream + ST_PACKETS], mem[stream + ST_SENT] = 0, 0, 0
    if mem[stream + ST_IMPL] == HALVING_DOUBLING:
        steps = np.log2(np.float64(n))
        mem[stream + ST_LEFT] = np.int64(2 * steps) if com == ALL_REDUCE else np.int64(steps)
        mem[stream + ST_HALVING] = 1 if com == ALL_GATHER else 0
        mem[stream + ST_OFFSET] = n // 2 if com == ALL_GATHER else 1
        mem[stream + ST_BYTES] = size if com == ALL_GATHER else size // 2
        mem[stream + ST_SEND_BYTES], mem[stream + ST_SEND_OFFSET], mem[stream + ST_SEND_HALVING] = (
            mem[stream + ST_BYTES],
            mem[stream + ST_OFFSET],
            mem[stream + ST_HALVING],
        )
    else:
        mem[stream + ST_LEFT] = 2 * (n - 1) if com == ALL_REDUCE else n - 1
        if mem[stream + ST_IMPL] == RING and com == ALL_TO_ALL:
            mem[stream + ST_LEFT] = n * (n - 1) // 2
        mem[stream + ST_BYTES] = size if com == ALL_GATHER else size // n
        if mem[stream + ST_IMPL] == DIRECT:
            mem[stream + ST_WIDTH] = n - 1 if window < 0 else min(window, n - 1)
    for _ in range(mem[stream + ST_WIDTH]):
        _insert(mem, tab, rate, stream)


@kernel
def _cycle(mem, stream):
    """Tickets that may need a reduction after `ST_WIDTH` that do not."""
    if mem[stream + ST_IMPL] == RING:
        return mem[stream + ST_N] - 1
    if mem[stream + ST_IMPL] == HALVING_DOUBLING:
        return np.int64(np.log2(np.float64(mem[stream + ST_N])) - 1)
    return (mem[stream + ST_N] - 1) * mem[stream + ST_WIDTH] if mem[stream + ST_GROUP] >= 0 else mem[stream + ST_WIDTH]


@kernel
def _insert(mem, tab, rate, stream):
    """A ticket goes to the endpoint; every second round of an all-reduce is a gather and reduces nothing."""
    if mem[stream + ST_ZERO] == 0 and mem[stream + ST_NONZERO] == 0:
        mem[stream + ST_ZERO], mem[stream + ST_NONZERO], mem[stream + ST_TOGGLE] = (
            mem[stream + ST_WIDTH],
            _cycle(mem, stream),
            1 - mem[stream + ST_TOGGLE],
        )
    reduced = False
    if mem[stream + ST_ZERO] > 0:
        mem[stream + ST_ZERO] -= 1
    else:
        reduced = mem[stream + ST_COM] == REDUCE_SCATTER or (
            mem[stream + ST_COM] == ALL_REDUCE and mem[stream + ST_TOGGLE] == 1
        )
        mem[stream + ST_NONZERO] -= 1
    then_ns = reduction_ns(rate, mem[stream + ST_BYTES]) if reduced else NONE
    mem[stream + ST_PACKETS] += 1
    call_after(mem, mem[stream + ST_RANK], mem[stream + ST_DELAY], CALL_BUNDLE, stream, then_ns)
    if mem[stream + ST_IMPL] == HALVING_DOUBLING:
        mem[stream + ST_BYTES], mem[stream + ST_OFFSET], mem[stream + ST_HALVING] = _next_partner(
            mem, stream, mem[stream + ST_BYTES], mem[stream + ST_OFFSET], mem[stream + ST_HALVING]
        )


@kernel
def _next_partner(mem, stream, size, offset, halving):
    """Distance doubles and bytes halve; an all-reduce turns round at the farthest partner."""
    if halving == 1:
        return size * 2, offset // 2, halving
    size, offset = size // 2, offset * 2
    if offset == mem[stream + ST_N] and mem[stream + ST_COM] == ALL_REDUCE:
        return size * 2, offset // 2, np.int64(1)
    return size, offset, halving


@kernel
def _send_next(mem, tab, rate, stream):
    """Let one message out and expect one, if a ticket allows it."""
    if mem[stream + ST_PACKETS] == 0 or mem[stream + ST_LEFT] == 0 or mem[stream + ST_FREE] == 0:
        return
    index, direction = mem[stream + ST_INDEX], mem[stream + ST_DIRECTION]
    size = mem[stream + ST_BYTES]
    if mem[stream + ST_IMPL] == HALVING_DOUBLING:
        size, offset = mem[stream + ST_SEND_BYTES], mem[stream + ST_SEND_OFFSET]
        if offset > 0 and (index // offset) % 2 == 1:
            offset = -offset
        dst = src = member(mem, tab, stream, index + offset)
        mem[stream + ST_SEND_BYTES], mem[stream + ST_SEND_OFFSET], mem[stream + ST_SEND_HALVING] = _next_partner(
            mem, stream, mem[stream + ST_SEND_BYTES], mem[stream + ST_SEND_OFFSET], mem[stream + ST_SEND_HALVING]
        )
    else:
        step = direction
        if mem[stream + ST_IMPL] == DIRECT:
            step = direction * (1 + mem[stream + ST_SENT] % (mem[stream + ST_N] - 1))
        dst, src = member(mem, tab, stream, index + step), member(mem, tab, stream, index - step)
    rank, tag = mem[stream + ST_RANK], mem[stream + ST_TAG]
    mem[stream + ST_LEFT] -= 1
    mem[stream + ST_PACKETS] -= 1
    mem[stream + ST_FREE] -= 1
    mem[stream + ST_SENT] += 1
    send(mem, tab, rate, rank, dst, size, tag, BACK_NONE, np.int64(0))
    receive(mem, tab, rate, src, rank, size, tag, BACK_STREAM, stream)


@kernel
def packet_ready(mem, tab, rate, stream):
    """A ticket has passed the endpoint. True when the phase is over."""
    if mem[stream + ST_IMPL] == BINARY_TREE:
        return _tree_ready(mem, tab, rate, stream)
    mem[stream + ST_FREE] += 1
    half = mem[stream + ST_N] - 1
    if mem[stream + ST_IMPL] == DIRECT and mem[stream + ST_COM] == ALL_REDUCE and mem[stream + ST_LEFT] <= half:
        if mem[stream + ST_RECEIVED] < half:
            return False
        for _ in range(mem[stream + ST_WIDTH]):
            _send_next(mem, tab, rate, stream)
    else:
        _send_next(mem, tab, rate, stream)
    return mem[stream + ST_LEFT] == 0 and mem[stream + ST_FREE] == mem[stream + ST_WIDTH]


@kernel
def packet_received(mem, tab, rate, stream):
    if mem[stream + ST_IMPL] == BINARY_TREE:
        _tree_received(mem, tab, rate, stream)
        return
    mem[stream + ST_RECEIVED] += 1
    _insert(mem, tab, rate, stream)


# --- double binary tree --------------------------------------------------------------------------------------------


@kernel
def _place_in_tree(mem, stream, mirror):
    """Parent and children by place: an in-order tree over n-1 places and a root at the last (or first) one."""
    n, index = mem[stream + ST_N], mem[stream + ST_INDEX]
    shift = 1 if mirror else 0  # mirrored: the root is place 0, the tree fills 1..n-1
    mem[stream + ST_PARENT], mem[stream + ST_CHILD1], mem[stream + ST_CHILD2] = NONE, NONE, NONE
    root = 0 if mirror else n - 1
    top = n // 2 - 1 + shift
    if index == root:
        mem[stream + ST_ROLE] = ROLE_ROOT
        mem[stream + ST_CHILD1] = top
        return
    low, high, parent = shift, n - 2 + shift, root
    at = top
    while at != index:
        parent = at
        if index < at:
            high = at - 1
        else:
            low = at + 1
        at = (low + high) // 2
    mem[stream + ST_PARENT] = parent
    if low == high:
        mem[stream + ST_ROLE] = ROLE_LEAF
        return
    mem[stream + ST_ROLE] = ROLE_INNER
    mem[stream + ST_CHILD1], mem[stream + ST_CHILD2] = (low + at - 1) // 2, (at + 1 + high) // 2


@kernel
def _begin_tree(mem, tab, rate, stream, size):
    n = mem[stream + ST_N]
    if n & (n - 1) != 0 or mem[stream + ST_GROUP] >= 0 or mem[stream + ST_INDEX] < 0 or mem[stream + ST_INDEX] >= n:
        stop(mem, TREE_BROKEN)
        return
    mem[stream + ST_DELAY] = tab[ENDPOINT_NS]
    mem[stream + ST_BYTES], mem[stream + ST_REDUCTIONS], mem[stream + ST_STATE] = size, 0, STATE_BEGIN
    _place_in_tree(mem, stream, mem[stream + ST_TOGGLE])
    if mem[stream + ST_ROLE] == ROLE_LEAF:
        mem[stream + ST_STATE] = STATE_TO_PARENT
        _tree_packet(mem, tab, rate, stream, False)
    elif mem[stream + ST_ROLE] == ROLE_INNER:
        mem[stream + ST_STATE] = STATE_TWO_CHILDREN
        _tree_receive(mem, tab, rate, stream, mem[stream + ST_CHILD1])
        _tree_receive(mem, tab, rate, stream, mem[stream + ST_CHILD2])
    else:
        mem[stream + ST_STATE] = STATE_ONE_CHILD
        _tree_receive(mem, tab, rate, stream, mem[stream + ST_CHILD1])


@kernel
def _tree_packet(mem, tab, rate, stream, reduced):
    then_ns = reduction_ns(rate, mem[stream + ST_BYTES]) if reduced else NONE
    call_after(mem, mem[stream + ST_RANK], mem[stream + ST_DELAY], CALL_BUNDLE, stream, then_ns)


@kernel
def _tree_send(mem, tab, rate, stream, place):
    send(
        mem,
        tab,
        rate,
        mem[stream + ST_RANK],
        member(mem, tab, stream, place),
        mem[stream + ST_BYTES],
        mem[stream + ST_TAG],
        BACK_NONE,
        np.int64(0),
    )


@kernel
def _tree_receive(mem, tab, rate, stream, place):
    receive(
        mem,
        tab,
        rate,
        member(mem, tab, stream, place),
        mem[stream + ST_RANK],
        mem[stream + ST_BYTES],
        mem[stream + ST_TAG],
        BACK_STREAM,
        stream,
    )


@kernel
def _tree_ready(mem, tab, rate, stream):
    if mem[stream + ST_ROLE] == ROLE_INNER and mem[stream + ST_REDUCTIONS] < 1:
        mem[stream + ST_REDUCTIONS] += 1
        return False
    if mem[stream + ST_STATE] == STATE_TO_PARENT:
        mem[stream + ST_STATE] = STATE_FROM_PARENT
        _tree_send(mem, tab, rate, stream, mem[stream + ST_PARENT])
        _tree_receive(mem, tab, rate, stream, mem[stream + ST_PARENT])
        return False
    if mem[stream + ST_STATE] == STATE_TO_CHILDREN:
        _tree_send(mem, tab, rate, stream, mem[stream + ST_CHILD1])
        if mem[stream + ST_ROLE] == ROLE_INNER:
            _tree_send(mem, tab, rate, stream, mem[stream + ST_CHILD2])
        return True
    return mem[stream + ST_STATE] == STATE_END


@kernel
def _tree_received(mem, tab, rate, stream):
    if mem[stream + ST_STATE] == STATE_TWO_CHILDREN:
        mem[stream + ST_STATE] = STATE_ONE_CHILD
    elif mem[stream + ST_STATE] == STATE_ONE_CHILD:
        mem[stream + ST_STATE] = STATE_TO_CHILDREN if mem[stream + ST_ROLE] == ROLE_ROOT else STATE_TO_PARENT
    elif mem[stream + ST_ROLE] == ROLE_LEAF:
        mem[stream + ST_STATE] = STATE_END
        _tree_packet(mem, tab, rate, stream, False)
        return
    else:
        mem[stream + ST_STATE] = STATE_TO_CHILDREN
    _tree_packet(mem, tab, rate, stream, True)
