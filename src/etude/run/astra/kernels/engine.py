"""The event loop: takes events in order and passes each to its layer."""

import numpy as np

from etude.kernels.compile import kernel
from etude.run.astra.kernels.algorithms import packet_ready, packet_received
from etude.run.astra.kernels.custom_traces import custom_done
from etude.run.astra.kernels.events import call_after, find_batch, give, next_call, pop, push, stop
from etude.run.astra.kernels.messages import after_handshake, is_delivered, link_free, mark_arrived
from etude.run.astra.kernels.streams import close_stream, next_phase
from etude.run.astra.kernels.workload import finish, issue_ready, memory_free
from etude.run.astra.state import (
    AMBIGUOUS,
    CALL_BUNDLE,
    CALL_COLLECTIVE_DONE,
    CALL_MEMORY_FREE,
    DONE,
    EVENT_ARRIVAL,
    EVENT_BATCH,
    EVENT_LINK_FREE,
    EVENT_START,
    IN_CUSTOM,
    NONE,
    RUNNING,
    TELL_HANDSHAKE_RECEIVE,
    TELL_HANDSHAKE_SEND,
    TELL_NOBODY,
    TELL_NODE,
    TELL_STREAM,
)


@kernel(allocates=False)
def _check_tie(queue, program, row):
    """A message finishes a node while a collective is being worked out ahead: whether the rank's other calls of
    this instant come before it depends on packets that were never simulated."""
    clock, number = queue.clock[0], np.int64(program.nodes[row].rank)
    rank = program.ranks[number]
    if rank.done_at_ns == clock.now or (rank.in_collective != 0 and find_batch(queue, number, clock.now) != NONE):
        stop(clock, AMBIGUOUS)


@kernel(allocates=False)
def _run_call(sim, rank, number):
    """One thing a rank has to do now. Gives back the node it finishes and the stream it ends, or -1."""
    machine, queue, program = sim.machine, sim.machine.queue, sim.program
    kind, arg, then_ns = queue.calls[number].kind, queue.calls[number].arg, queue.calls[number].then_ns
    give(queue.calls, number)
    collective, ended = NONE, NONE
    if kind == CALL_BUNDLE:
        if then_ns >= 0:
            call_after(queue, rank, then_ns, CALL_BUNDLE, arg, NONE)
        elif packet_ready(machine, arg):
            stream = machine.streams.streams[arg]
            if stream.phase + 1 < stream.phases:
                next_phase(machine, arg)
            else:
                ended = arg
                record = sim.collectives.collectives[stream.node]
                record.open_chunks -= 1
                if record.open_chunks == 0:
                    collective = stream.node
    elif kind == CALL_COLLECTIVE_DONE:
        collective = arg
    elif kind == CALL_MEMORY_FREE:
        memory_free(queue, program, arg)
    else:
        return arg, ended
    if collective == NONE:
        return NONE, ended
    program.ranks[rank].in_collective, program.ranks[rank].done_at_ns = 0, queue.clock[0].now
    return sim.collectives.collectives[collective].node, ended


@kernel(allocates=False)
def _tell(sim, whom, arg):
    """Tell the sender or the receiver of a message. Gives back the node that this finishes, or -1."""
    if whom == TELL_STREAM:
        packet_received(sim.machine, arg)
    elif whom == TELL_NODE:
        if sim.machine.wires.settings[0].works_ahead == 1:
            _check_tie(sim.machine.queue, sim.program, arg)
        return arg
    elif whom == TELL_HANDSHAKE_SEND or whom == TELL_HANDSHAKE_RECEIVE:
        message, clock = sim.machine.wires.messages[arg], sim.machine.queue.clock[0]
        tell, sender = message.tell_sender, message.sender
        after_handshake(sim.machine.queue, sim.machine.wires, arg, whom == TELL_HANDSHAKE_SEND)
        if clock.status != RUNNING and clock.error_node == NONE and whom == TELL_HANDSHAKE_SEND:
            if tell == TELL_NODE:
                clock.error_node = sender
            else:
                clock.error_collective = sim.machine.streams.streams[sender].node
    return NONE


@kernel(allocates=False)
def _delivered(machine, number, is_arrival):
    """A message has arrived. Its sender is notified first; the receiver's turn is noted for the next step."""
    clock, message = machine.queue.clock[0], machine.wires.messages[number]
    receiver, receiver_arg = message.tell_receiver, message.receiver
    sender, sender_arg = message.tell_sender, message.sender
    if receiver == NONE:
        mark_arrived(machine.wires, number)
        return sender, sender_arg
    give(machine.wires.messages, number)
    if not is_arrival or sender == TELL_NOBODY:
        return receiver, receiver_arg
    clock.tell, clock.tell_arg = receiver, receiver_arg
    return sender, sender_arg


@kernel(allocates=False)
def start_ranks(queue):
    """Let every rank look for its first nodes, in the order of the ranks."""
    for rank in range(len(queue.first_batch)):
        push(queue, np.int64(0), EVENT_START | (rank << 3))


@kernel(allocates=False)
def _take_event(sim):
    """Process the next event. Gives back the node that this finishes and the rank that is to look for nodes, or -1."""
    machine, clock = sim.machine, sim.machine.queue.clock[0]
    payload = pop(machine.queue)
    if payload < 0:
        clock.status = DONE
        return NONE, NONE
    kind, arg = payload & 7, payload >> 3
    if kind == EVENT_BATCH:
        clock.open_batch = arg
    elif kind == EVENT_LINK_FREE:
        link_free(machine.queue, machine.wires, arg)
    elif kind == EVENT_START:
        return NONE, arg
    elif kind != EVENT_ARRIVAL or is_delivered(machine.queue, machine.wires, arg):
        whom, whom_arg = _delivered(machine, arg, kind == EVENT_ARRIVAL)
        return _tell(sim, whom, whom_arg), NONE
    return NONE, NONE


@kernel(allocates=False)
def step(sim, max_events):
    """Process up to max_events events. The machine's status says whether there is more to do."""
    machine, program, clock = sim.machine, sim.program, sim.machine.queue.clock[0]
    for _ in range(max_events):
        if clock.status != RUNNING:
            return
        clock.num_events += 1
        node, stream, rank = NONE, NONE, NONE
        batch = clock.open_batch
        if batch != NONE:
            call = next_call(machine.queue, batch)
            if call == NONE:
                clock.open_batch = NONE
                continue
            node, stream = _run_call(sim, machine.queue.batches[batch].rank, call)
        elif clock.tell != NONE:
            whom = clock.tell
            clock.tell = NONE
            node = _tell(sim, whom, clock.tell_arg)
        else:
            node, rank = _take_event(sim)
            if clock.status == DONE:
                return
        if node != NONE and program.nodes[node].resource == IN_CUSTOM:
            node = custom_done(machine, program, node)
        if node != NONE:
            rank = np.int64(program.nodes[node].rank)
            finish(clock, program, node, False)
        if rank != NONE:
            issue_ready(sim, rank)
        if stream != NONE:  # only after the workload has gone on
            close_stream(machine, stream)
