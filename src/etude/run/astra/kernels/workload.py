"""The workload layer: which nodes of a rank are ready, which may run, and what running one starts."""

import numpy as np

from etude.kernels.compile import kernel
from etude.run.astra.kernels.custom_traces import open_custom
from etude.run.astra.kernels.events import call_after, call_at, stop
from etude.run.astra.kernels.heaps import pop_key, push_key
from etude.run.astra.kernels.messages import receive, send
from etude.run.astra.kernels.streams import open_chunks
from etude.run.astra.kernels.whole_collectives import work_out
from etude.run.astra.state import (
    ACT_COLLECTIVE,
    ACT_CUSTOM,
    ACT_MEMORY,
    ACT_RECEIVE,
    ACT_SEND,
    ACT_SKIP,
    ACT_TIMED,
    AMBIGUOUS,
    BAD_NODE,
    CALL_COLLECTIVE_DONE,
    CALL_MEMORY_FREE,
    CALL_NODE_DONE,
    ENDLESS_CHUNKS,
    EVENT_AT_ZERO,
    NONE,
    NUM_RESOURCES,
    ON_NOTHING,
    RUNNING,
    TAG_RANGE,
    TELL_NODE,
)


@kernel(allocates=False)
def _push_ready(program, node):
    line = program.lines[node.rank, node.resource]
    push_key(program.ready, line.start, line.count, node.key)
    line.count += 1


@kernel(allocates=False)
def _next_issuable(program, rank):
    """The ready node with the smallest id whose resource is free, taken off its heap; -1 if none."""
    best, best_key = NONE, np.int64(0)
    for resource in range(NUM_RESOURCES):
        line = program.lines[rank, resource]
        if line.count == 0 or (resource != ON_NOTHING and program.busy[rank, resource] != 0):
            continue
        key = np.int64(program.ready[line.start])
        if best == NONE or key < best_key:
            best, best_key = resource, key
    if best == NONE:
        return NONE
    line = program.lines[rank, best]
    pop_key(program.ready, line.start, line.count)
    line.count -= 1
    return np.int64(program.nodes[program.rank_start[rank] + best_key].at_key)


@kernel(allocates=False)
def finish(clock, program, row, is_pass_open):
    """Give back the node's resource and count down its children. Ready ones join their heap, or wait for the next pass
    if one is in progress."""
    nodes = program.nodes
    node = nodes[row]
    node.end_ns = clock.now
    program.ranks[node.rank].ongoing -= 1
    if node.resource != ON_NOTHING:
        program.busy[node.rank, node.resource] -= 1
    for at in range(node.child_start, nodes[row + 1].child_start):
        child = np.int64(program.child[at])
        nodes[child].waits -= 1
        if nodes[child].waits == 0:
            if is_pass_open:
                program.fresh[clock.num_fresh] = child
                clock.num_fresh += 1
            else:
                _push_ready(program, nodes[child])


@kernel(allocates=False)
def _issue_memory(queue, program, row):
    """Ask a remote memory; those that several ranks share serve one request at a time. A node that waits keeps who
    is behind it as its tag."""
    node = program.nodes[row]
    rank = np.int64(node.rank)
    if node.peer >= 0:
        server = program.servers[node.peer]
        if server.is_busy != 0:
            node.tag = NONE
            if server.head == NONE:
                server.head = row
            else:
                program.nodes[server.tail].tag = row
            server.tail = row
            return
    call_after(queue, rank, node.duration_ns, CALL_NODE_DONE, row, NONE)
    if node.peer >= 0:
        call_after(queue, rank, node.duration_ns, CALL_MEMORY_FREE, row, NONE)
        program.servers[node.peer].is_busy = 1


@kernel(allocates=False)
def memory_free(queue, program, row):
    """A remote memory has served a node: the next one in its line is served."""
    server = program.servers[program.nodes[row].peer]
    waiting = server.head
    server.is_busy = 0
    if waiting != NONE:
        server.head = program.nodes[waiting].tag
        _issue_memory(queue, program, waiting)


# --- collectives ------------------------------------------------------------------------------------------------------


@kernel(allocates=False)
def _is_other(communicator, collective, stream):
    """Whether a rank joins with something else than the collective that is being joined."""
    return (
        communicator.stream != stream
        or communicator.plan != collective.plan
        or communicator.chunk_bytes != collective.chunk_bytes
        or communicator.chunks != collective.chunks
    )


@kernel(allocates=False)
def _join(machine, collectives, number, stream):
    """Join a collective. True for the last member to join."""
    clock, collective = machine.queue.clock[0], collectives.collectives[number]
    communicator = collectives.communicators[collective.communicator]
    if communicator.joined == 0:
        communicator.stream, communicator.plan = stream, collective.plan
        communicator.chunk_bytes, communicator.chunks = collective.chunk_bytes, collective.chunks
    elif _is_other(communicator, collective, stream):
        stop(clock, AMBIGUOUS)
        return False
    template = machine.streams.templates[machine.streams.plan_start[collective.plan]]
    if clock.now == 0 and machine.wires.settings[0].endpoint_ns == 0 and template.group < 0:
        stop(clock, EVENT_AT_ZERO)
    join = collectives.joins[communicator.start + collective.member]
    join.joined_ns, join.collective = clock.now, number
    communicator.joined += 1
    if communicator.joined < communicator.size:
        return False
    communicator.joined = 0
    return True


@kernel(allocates=False)
def _announce(sim, communicator):
    """Put the finish of every member of a collective that has been worked out on its rank's list."""
    status = sim.side.queue.clock[0].status
    if status != RUNNING:
        stop(sim.machine.queue.clock[0], status)
        return
    for i in range(communicator.start, communicator.start + communicator.size):
        join, rank = sim.collectives.joins[i], sim.machine.streams.members[i]
        call_at(
            sim.machine.queue, rank, join.finish_ns, CALL_COLLECTIVE_DONE, join.collective, NONE, join.registered_ns
        )


@kernel(allocates=False)
def _next_stream(sim, collective, rank):
    """The number of a collective's first stream on its rank; -1 if the original never starts one.

    Streams of a group are numbered by the group, but count on the rank's own counter too.
    """
    plan_start = sim.machine.streams.plan_start
    rank.in_collective = 1
    if plan_start[collective.plan] == plan_start[collective.plan + 1]:
        return NONE  # no dimension takes part
    if collective.chunk_bytes == 0:
        if collective.chunks > 0:
            stop(sim.machine.queue.clock[0], ENDLESS_CHUNKS)
        return NONE
    stream = rank.streams
    rank.streams += collective.chunks
    if collective.communicator > 0:
        communicator = sim.collectives.communicators[collective.communicator]
        join = sim.collectives.joins[communicator.start + collective.member]
        stream = communicator.tag_base + join.streams
        join.streams += collective.chunks
    return stream


@kernel(allocates=False)
def _issue_collective(sim, number, rank):
    """Join a collective and work it out if this is its last member, or start its chunks on this rank."""
    collective = sim.collectives.collectives[number]
    stream = _next_stream(sim, collective, sim.program.ranks[rank])
    if stream == NONE:
        return
    if sim.machine.wires.settings[0].works_ahead == 0:
        open_chunks(sim.machine, collective, rank, number, stream % TAG_RANGE + TAG_RANGE)
    elif _join(sim.machine, sim.collectives, number, stream):
        communicator = sim.collectives.communicators[collective.communicator]
        work_out(sim.side, sim.collectives, communicator)
        _announce(sim, communicator)


# --- issuing ----------------------------------------------------------------------------------------------------------


@kernel(allocates=False)
def _issue(sim, row, rank):
    """Start what a node does."""
    queue, wires, program = sim.machine.queue, sim.machine.wires, sim.program
    node = program.nodes[row]
    action, peer, tag = node.action, np.int64(node.peer), np.int64(node.tag)
    if action == ACT_TIMED:
        call_after(queue, rank, node.duration_ns, CALL_NODE_DONE, row, NONE)
    elif action == ACT_COLLECTIVE:
        _issue_collective(sim, np.int64(node.collective), rank)
    elif action == ACT_SEND:
        send(queue, wires, rank, peer, node.bytes, tag, TELL_NODE, row)
    elif action == ACT_RECEIVE:
        receive(queue, wires, peer, rank, node.bytes, tag, TELL_NODE, row)
    elif action == ACT_CUSTOM:
        open_custom(sim.machine, program, row)
    elif action == ACT_MEMORY:
        _issue_memory(queue, program, row)
    elif action == ACT_SKIP:
        finish(queue.clock[0], program, row, True)
    else:
        stop(queue.clock[0], BAD_NODE)


@kernel(allocates=False)
def issue_ready(sim, number):
    """One pass over the ready nodes of a rank in ascending id; what becomes ready meanwhile waits for the next pass."""
    clock, program = sim.machine.queue.clock[0], sim.program
    rank = program.ranks[number]
    clock.num_fresh = 0
    while clock.status == RUNNING:
        row = _next_issuable(program, number)
        if row == NONE:
            break
        node = program.nodes[row]
        node.start_ns = clock.now
        rank.ongoing += 1
        if node.resource != ON_NOTHING:
            program.busy[number, node.resource] += 1
        _issue(sim, row, number)
        if clock.status != RUNNING and clock.error_node == NONE:
            clock.error_node = row
    for i in range(clock.num_fresh):
        _push_ready(program, program.nodes[program.fresh[i]])
    if clock.status != RUNNING or rank.ongoing != 0:
        return
    for resource in range(NUM_RESOURCES):
        if program.lines[number, resource].count != 0:
            return
    rank.finish_ns = clock.now
    clock.finished_ranks += 1
