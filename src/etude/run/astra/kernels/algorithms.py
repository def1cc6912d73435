"""Collective algorithms, one stream (chunk on a rank) at a time.

`begin` starts a phase, `packet_ready` is called when a packet has passed the endpoint (and, if it was reduced, the
memory), `packet_received` when a message came in. A packet is a ticket: the first `width` come for free, every received
message brings another, and each ticket that has passed the endpoint lets one message out.
"""

import numpy as np

from etude.kernels.compile import kernel
from etude.run.astra.kernels.binary_tree import begin_tree, tree_ready, tree_received
from etude.run.astra.kernels.events import call_after
from etude.run.astra.kernels.messages import receive, send
from etude.run.astra.kernels.places import LOCAL_ENDPOINT_NS, member, reduction_ns
from etude.run.astra.state import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BINARY_TREE,
    CALL_BUNDLE,
    DIRECT,
    HALVING_DOUBLING,
    NONE,
    REDUCE_SCATTER,
    RING,
    RUNNING,
    TELL_NOBODY,
    TELL_STREAM,
)


@kernel(allocates=False)
def final_bytes(template, size):
    """Bytes a phase hands to the next one."""
    if template.algorithm == BINARY_TREE:
        return size
    if template.collective == ALL_GATHER:
        return size * template.size
    if template.collective == REDUCE_SCATTER:
        return size // template.size
    return size


@kernel(allocates=False)
def begin(machine, number, size, window):
    """Start a phase; the ring of the stream is already set."""
    stream = machine.streams.streams[number]
    stream.delay_ns = LOCAL_ENDPOINT_NS if stream.group >= 0 else machine.wires.settings[0].endpoint_ns
    if stream.algorithm == BINARY_TREE:
        begin_tree(machine, number, size)
        return
    n, collective = stream.size, stream.collective
    stream.width, stream.free, stream.received, stream.zero, stream.nonzero = 1, 0, 0, 0, 0
    stream.toggle, stream.packets, stream.sent = 0, 0, 0
    if stream.algorithm == HALVING_DOUBLING:
        _begin_halving(stream, size)
    else:
        stream.left = 2 * (n - 1) if collective == ALL_REDUCE else n - 1
        if stream.algorithm == RING and collective == ALL_TO_ALL:
            stream.left = n * (n - 1) // 2
        stream.bytes = size if collective == ALL_GATHER else size // n
        if stream.algorithm == DIRECT:
            stream.width = n - 1 if window < 0 else min(window, n - 1)
    for _ in range(stream.width):
        _insert(machine, number)


@kernel(allocates=False)
def _begin_halving(stream, size):
    steps, gathers = np.log2(np.float64(stream.size)), stream.collective == ALL_GATHER
    stream.left = np.int64(2 * steps) if stream.collective == ALL_REDUCE else np.int64(steps)
    stream.is_doubling = 1 if gathers else 0
    stream.offset = stream.size // 2 if gathers else 1
    stream.bytes = size if gathers else size // 2
    stream.send_bytes, stream.send_offset, stream.send_doubling = stream.bytes, stream.offset, stream.is_doubling


@kernel(allocates=False)
def _cycle(stream):
    """Tickets that may need a reduction after `width` that do not."""
    if stream.algorithm == RING:
        return stream.size - 1
    if stream.algorithm == HALVING_DOUBLING:
        return np.int64(np.log2(np.float64(stream.size)) - 1)
    return (stream.size - 1) * stream.width if stream.group >= 0 else stream.width


@kernel(allocates=False)
def _insert(machine, number):
    """A ticket goes to the endpoint; every second round of an all-reduce is a gather and reduces nothing."""
    stream = machine.streams.streams[number]
    if stream.zero == 0 and stream.nonzero == 0:
        stream.zero, stream.nonzero, stream.toggle = stream.width, _cycle(stream), 1 - stream.toggle
    reduced = False
    if stream.zero > 0:
        stream.zero -= 1
    else:
        reduced = stream.collective == REDUCE_SCATTER or (stream.collective == ALL_REDUCE and stream.toggle == 1)
        stream.nonzero -= 1
    then_ns = reduction_ns(machine.wires.settings[0], stream.bytes) if reduced else NONE
    stream.packets += 1
    call_after(machine.queue, stream.rank, stream.delay_ns, CALL_BUNDLE, number, then_ns)
    if stream.algorithm == HALVING_DOUBLING:
        stream.bytes, stream.offset, stream.is_doubling = _next_partner(
            stream, stream.bytes, stream.offset, stream.is_doubling
        )


@kernel(allocates=False)
def _next_partner(stream, size, offset, is_doubling):
    """Distance doubles and bytes halve; an all-reduce turns round at the farthest partner."""
    if is_doubling == 1:
        return size * 2, offset // 2, is_doubling
    size, offset = size // 2, offset * 2
    if offset == stream.size and stream.collective == ALL_REDUCE:
        return size * 2, offset // 2, np.int64(1)
    return size, offset, is_doubling


@kernel(allocates=False)
def _send_next(machine, number):
    """Let one message out and expect one, if a ticket allows it."""
    stream, members = machine.streams.streams[number], machine.streams.members
    if stream.packets == 0 or stream.left == 0 or stream.free == 0:
        return
    index, size = stream.index, stream.bytes
    if stream.algorithm == HALVING_DOUBLING:
        size, offset = stream.send_bytes, stream.send_offset
        if offset > 0 and (index // offset) % 2 == 1:
            offset = -offset
        dst = src = member(members, stream, index + offset)
        stream.send_bytes, stream.send_offset, stream.send_doubling = _next_partner(
            stream, stream.send_bytes, stream.send_offset, stream.send_doubling
        )
    else:
        step = stream.direction
        if stream.algorithm == DIRECT:
            step = step * (1 + stream.sent % (stream.size - 1))
        dst, src = member(members, stream, index + step), member(members, stream, index - step)
    stream.left -= 1
    stream.packets -= 1
    stream.free -= 1
    stream.sent += 1
    send(machine.queue, machine.wires, stream.rank, dst, size, stream.tag, TELL_NOBODY, number)
    _note_error(machine.queue.clock[0], stream)
    receive(machine.queue, machine.wires, src, stream.rank, size, stream.tag, TELL_STREAM, number)


@kernel(allocates=False)
def _note_error(clock, stream):
    """Of which collective the message was that could not be sent."""
    if clock.status != RUNNING and clock.error_collective == NONE:
        clock.error_collective = stream.node


@kernel(allocates=False)
def packet_ready(machine, number):
    """A ticket has passed the endpoint. True when the phase is over."""
    stream = machine.streams.streams[number]
    if stream.algorithm == BINARY_TREE:
        return tree_ready(machine, number)
    stream.free += 1
    half, sends = stream.size - 1, np.int64(1)
    if stream.algorithm == DIRECT and stream.collective == ALL_REDUCE and stream.left <= half:
        if stream.received < half:
            return False
        sends = stream.width
    for _ in range(sends):
        _send_next(machine, number)
    return stream.left == 0 and stream.free == stream.width


@kernel(allocates=False)
def packet_received(machine, number):
    """A message came in: it brings a ticket."""
    stream = machine.streams.streams[number]
    if stream.algorithm == BINARY_TREE:
        tree_received(machine, number)
        return
    stream.received += 1
    _insert(machine, number)
