"""The double binary tree: what a stream does on its way up and down."""

import numpy as np

from etude.kernels.compile import kernel
from etude.run.astra.kernels.events import call_after, stop
from etude.run.astra.kernels.messages import receive, send
from etude.run.astra.kernels.places import member, reduction_ns
from etude.run.astra.state import CALL_BUNDLE, NONE, TELL_NOBODY, TELL_STREAM, TREE_BROKEN

ROLE_LEAF, ROLE_INNER, ROLE_ROOT = (np.int64(i) for i in range(3))
STATE_BEGIN, STATE_TWO_CHILDREN, STATE_ONE_CHILD, STATE_TO_PARENT, STATE_FROM_PARENT, STATE_TO_CHILDREN, STATE_END = (
    np.int64(i) for i in range(7)
)


@kernel(allocates=False)
def _place_in_tree(stream, mirror):
    """Parent and children by place: an in-order tree over n-1 places and a root at the last (or first) one."""
    n, index = stream.size, stream.index
    shift = 1 if mirror else 0  # mirrored: the root is place 0, the tree fills 1..n-1
    stream.parent, stream.child1, stream.child2 = NONE, NONE, NONE
    root = 0 if mirror else n - 1
    top = n // 2 - 1 + shift
    if index == root:
        stream.role, stream.child1 = ROLE_ROOT, top
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
    stream.parent = parent
    if low == high:
        stream.role = ROLE_LEAF
        return
    stream.role, stream.child1, stream.child2 = ROLE_INNER, (low + at - 1) // 2, (at + 1 + high) // 2


@kernel(allocates=False)
def begin_tree(machine, number, size):
    """Start: leaves send, the others expect their children."""
    stream = machine.streams.streams[number]
    n = stream.size
    if n & (n - 1) != 0 or stream.group >= 0 or stream.index < 0 or stream.index >= n:
        stop(machine.queue.clock[0], TREE_BROKEN)
        return
    stream.delay_ns = machine.wires.settings[0].endpoint_ns
    stream.bytes, stream.reductions, stream.state = size, 0, STATE_BEGIN
    _place_in_tree(stream, stream.toggle)
    if stream.role == ROLE_LEAF:
        stream.state = STATE_TO_PARENT
        _packet(machine, number, False)
    elif stream.role == ROLE_INNER:
        stream.state = STATE_TWO_CHILDREN
        _receive(machine, number, stream.child1)
        _receive(machine, number, stream.child2)
    else:
        stream.state = STATE_ONE_CHILD
        _receive(machine, number, stream.child1)


@kernel(allocates=False)
def _packet(machine, number, reduced):
    stream = machine.streams.streams[number]
    then_ns = reduction_ns(machine.wires.settings[0], stream.bytes) if reduced else NONE
    call_after(machine.queue, stream.rank, stream.delay_ns, CALL_BUNDLE, number, then_ns)


@kernel(allocates=False)
def _send(machine, number, place):
    stream = machine.streams.streams[number]
    dst = member(machine.streams.members, stream, place)
    send(machine.queue, machine.wires, stream.rank, dst, stream.bytes, stream.tag, TELL_NOBODY, number)


@kernel(allocates=False)
def _receive(machine, number, place):
    stream = machine.streams.streams[number]
    src = member(machine.streams.members, stream, place)
    receive(machine.queue, machine.wires, src, stream.rank, stream.bytes, stream.tag, TELL_STREAM, number)


@kernel(allocates=False)
def tree_ready(machine, number):
    """A packet has passed the endpoint. True when the phase is over."""
    stream = machine.streams.streams[number]
    if stream.role == ROLE_INNER and stream.reductions < 1:
        stream.reductions += 1
        return False
    if stream.state == STATE_TO_PARENT:
        stream.state = STATE_FROM_PARENT
        _send(machine, number, stream.parent)
        _receive(machine, number, stream.parent)
        return False
    if stream.state == STATE_TO_CHILDREN:
        _send(machine, number, stream.child1)
        if stream.role == ROLE_INNER:
            _send(machine, number, stream.child2)
        return True
    return stream.state == STATE_END


@kernel(allocates=False)
def tree_received(machine, number):
    """A message came in from a child or the parent."""
    stream = machine.streams.streams[number]
    if stream.state == STATE_TWO_CHILDREN:
        stream.state = STATE_ONE_CHILD
    elif stream.state == STATE_ONE_CHILD:
        stream.state = STATE_TO_CHILDREN if stream.role == ROLE_ROOT else STATE_TO_PARENT
    elif stream.role == ROLE_LEAF:
        stream.state = STATE_END
        _packet(machine, number, False)
        return
    else:
        stream.state = STATE_TO_CHILDREN
    _packet(machine, number, True)
