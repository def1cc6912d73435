"""Collectives worked out in one go when their last member joins.

Without congestion a collective touches nothing but its members, and no member can finish before the last one
has joined. So its message traffic may run on a machine of its own, or, for a ring, as a recurrence.
"""

import numpy as np

from etude.kernels.compile import kernel
from etude.run.astra.kernels.algorithms import packet_ready, packet_received
from etude.run.astra.kernels.events import call_after, give, next_call, pop, push, stop
from etude.run.astra.kernels.messages import delay_ns, mark_arrived
from etude.run.astra.kernels.places import LOCAL_ENDPOINT_NS, reduction_ns
from etude.run.astra.kernels.streams import close_stream, next_phase, open_chunks
from etude.run.astra.state import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    AMBIGUOUS,
    CALL_BUNDLE,
    EVENT_ARRIVAL,
    EVENT_BATCH,
    EVENT_RECEIVE,
    EVENT_START,
    NONE,
    REDUCE_SCATTER,
    RING,
    RUNNING,
)


@kernel(allocates=False)
def _is_reduced(collective, n, packet):
    if packet % n == 0:
        return False
    return collective == REDUCE_SCATTER or (collective == ALL_REDUCE and (packet // n) % 2 == 0)


@kernel(allocates=False)
def _steps(collective, n):
    """Messages that each member of a ring sends."""
    if collective == ALL_REDUCE:
        return 2 * (n - 1)
    return n * (n - 1) // 2 if collective == ALL_TO_ALL else n - 1


@kernel(allocates=False)
def _pass_round(joins, width, steps, add_ns, reduce_ns, template):
    """One chunk round a ring, of which the first `width` members represent all; `scratch` is the delay to each."""
    n, collective = template.size, template.collective
    for i in range(width):
        joins[i].finish_ns += add_ns
    for packet in range(1, steps + 1):
        add = add_ns + (reduce_ns if _is_reduced(collective, n, packet) else 0)
        last = joins[width - 1].finish_ns
        for i in range(width - 1, 0, -1):
            joins[i].finish_ns = max(joins[i - 1].finish_ns + joins[i].scratch, joins[i].finish_ns) + add
        joins[0].finish_ns = max(last + joins[0].scratch, joins[0].finish_ns) + add


@kernel(allocates=False)
def ring_finish(wires, members, joins, template, size, chunks):
    """Finish of a ring collective, from when each member joined.

    Packet k leaves a member when packet k-1 has come from its left neighbour, no earlier than its own packet
    k-1 left, and has passed the endpoint and, if it is reduced, the memory.
    """
    n, collective, settings = template.size, template.collective, wires.settings[0]
    endpoint_ns = LOCAL_ENDPOINT_NS if template.group >= 0 else settings.endpoint_ns
    message = size if collective == ALL_GATHER else size // n
    reduce_ns = reduction_ns(settings, message)
    is_even = True
    for i in range(n):
        joins[i].finish_ns = joins[i].joined_ns
        joins[i].scratch = delay_ns(wires.dims, members[i - 1 if i > 0 else n - 1], members[i], message)
        is_even &= joins[i].joined_ns == joins[0].joined_ns and joins[i].scratch == joins[0].scratch
    steps = _steps(collective, n)
    for _ in range(chunks):
        _pass_round(joins, np.int64(1) if is_even else n, steps, endpoint_ns, reduce_ns, template)
    wait_ns = reduce_ns if _is_reduced(collective, n, steps) else endpoint_ns
    for i in range(n):
        if is_even:
            joins[i].finish_ns = joins[0].finish_ns
        joins[i].registered_ns = joins[i].finish_ns - wait_ns


@kernel(allocates=False)
def _run_batch(machine, joins, number):
    """Calls of one rank. A stream's node is the slot of its member, where chunks count up to 0."""
    queue, streams, clock = machine.queue, machine.streams.streams, machine.queue.clock[0]
    while clock.status == RUNNING:
        call = next_call(queue, number)
        if call == NONE:
            return
        stream, then_ns, registered_ns = (
            queue.calls[call].arg,
            queue.calls[call].then_ns,
            queue.calls[call].registered_ns,
        )
        give(queue.calls, call)
        if then_ns >= 0:
            call_after(queue, queue.batches[number].rank, then_ns, CALL_BUNDLE, stream, NONE)
        elif packet_ready(machine, stream):
            if streams[stream].phase + 1 < streams[stream].phases:
                next_phase(machine, stream)
                continue
            join = joins[streams[stream].node]
            join.collective += 1
            if join.collective == 0:
                join.finish_ns, join.registered_ns = clock.now, registered_ns
                clock.finished_members += 1
            close_stream(machine, stream)


@kernel(allocates=False)
def run_traffic(machine, collectives, communicator):
    """Run one collective's messages on a machine of its own; fills the members' finish and registration."""
    queue, wires, clock = machine.queue, machine.wires, machine.queue.clock[0]
    start, end, joins = communicator.start, communicator.start + communicator.size, collectives.joins
    clock.finished_members = 0
    for i in range(start, end):
        joins[i].scratch, joins[i].collective = joins[i].collective, -communicator.chunks
        push(queue, joins[i].joined_ns, EVENT_START | (i << 3))
    while clock.status == RUNNING:
        payload = pop(queue)
        if payload < 0:
            break
        kind, arg = payload & 7, payload >> 3
        if kind == EVENT_BATCH:
            _run_batch(machine, joins, arg)
        elif kind == EVENT_START:
            collective = collectives.collectives[joins[arg].scratch]
            open_chunks(machine, collective, machine.streams.members[arg], arg, np.int64(0))
        elif kind == EVENT_RECEIVE or (kind == EVENT_ARRIVAL and wires.messages[arg].tell_receiver != NONE):
            stream = wires.messages[arg].receiver
            give(wires.messages, arg)
            packet_received(machine, stream)
        else:
            mark_arrived(wires, arg)
    for i in range(start, end):
        joins[i].collective = joins[i].scratch
    if clock.finished_members < communicator.size:
        stop(clock, AMBIGUOUS)


@kernel(allocates=False)
def _memo_of(collectives, communicator):
    """The memo where the times of such a collective belong, if all members join at once."""
    key = collectives.plan_key[communicator.plan]
    mixed = communicator.chunk_bytes * 31 + communicator.chunks * 7 + communicator.shape * 13 + key
    return collectives.memos[mixed % len(collectives.memos)]


@kernel(allocates=False)
def _is_memo_of(memo, communicator, key):
    return (
        memo.shape == communicator.shape
        and memo.plan == key
        and memo.chunk_bytes == communicator.chunk_bytes
        and memo.chunks == communicator.chunks
    )


@kernel(allocates=False)
def _write_memo(memo, communicator, key, joins):
    """Keep the times of a collective if they are the same for all members."""
    for i in range(1, len(joins)):
        if joins[i].finish_ns != joins[0].finish_ns or joins[i].registered_ns != joins[0].registered_ns:
            return
    memo.shape, memo.plan = communicator.shape, key
    memo.chunk_bytes, memo.chunks = communicator.chunk_bytes, communicator.chunks
    memo.finish_ns = joins[0].finish_ns - joins[0].joined_ns
    memo.registered_ns = joins[0].registered_ns - joins[0].joined_ns


@kernel(allocates=False)
def work_out(machine, collectives, communicator):
    """Finish times of a collective that all members have joined."""
    settings, plan = machine.wires.settings[0], communicator.plan
    start, size = communicator.start, communicator.size
    joins = collectives.joins[start : start + size]
    first = machine.streams.plan_start[plan]
    template = machine.streams.templates[first]
    is_single_file = settings.queues == 1 and (settings.at_once == 1 or communicator.chunks == 1)
    has_one_phase = machine.streams.plan_start[plan + 1] - first == 1
    if has_one_phase and is_single_file and template.algorithm == RING and communicator.chunk_bytes >= size:
        members = machine.streams.members[start : start + size]
        ring_finish(machine.wires, members, joins, template, communicator.chunk_bytes, communicator.chunks)
        return
    key = collectives.plan_key[plan]
    is_shared = key >= 0
    for i in range(1, size):
        is_shared &= joins[i].joined_ns == joins[0].joined_ns
    memo = _memo_of(collectives, communicator)
    if is_shared and _is_memo_of(memo, communicator, key):
        for i in range(size):
            joins[i].finish_ns = joins[0].joined_ns + memo.finish_ns
            joins[i].registered_ns = joins[0].joined_ns + memo.registered_ns
        return
    run_traffic(machine, collectives, communicator)
    if is_shared:
        _write_memo(memo, communicator, key, joins)
