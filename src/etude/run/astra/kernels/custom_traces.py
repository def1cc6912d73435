"""Collectives that are given as a trace of sends, receives and local work."""

import numpy as np

from etude.kernels.compile import kernel
from etude.run.astra.kernels.events import call_after
from etude.run.astra.kernels.messages import receive, send
from etude.run.astra.state import ACT_RECEIVE, ACT_SEND, ACT_TIMED, CALL_NODE_DONE, NONE, RUNNING, TELL_NODE


@kernel(allocates=False)
def _start(machine, node, row):
    """Start one node of the trace; nodes of other kinds never end, as in the original."""
    queue, wires = machine.queue, machine.wires
    rank, peer, tag = np.int64(node.rank), np.int64(node.peer), np.int64(node.tag)
    node.start_ns = queue.clock[0].now
    if node.action == ACT_SEND:
        send(queue, wires, rank, peer, node.bytes, tag, TELL_NODE, row)
    elif node.action == ACT_RECEIVE:
        receive(queue, wires, peer, rank, node.bytes, tag, TELL_NODE, row)
    elif node.action == ACT_TIMED:
        call_after(queue, rank, node.duration_ns, CALL_NODE_DONE, row, NONE)
    if queue.clock[0].status != RUNNING and queue.clock[0].error_node == NONE:
        queue.clock[0].error_node = row


@kernel(allocates=False)
def open_custom(machine, program, row):
    """Start the nodes that wait for nothing. The collective counts as one stream."""
    node = program.nodes[row]
    program.ranks[node.rank].streams += 1
    program.ranks[node.rank].in_collective = 1
    for i in range(np.int64(node.peer), np.int64(node.peer) + node.collective):
        if program.nodes[i].waits == 0:
            _start(machine, program.nodes[i], i)


@kernel(allocates=False)
def custom_done(machine, program, row):
    """A node of the trace is through: start those it frees. Gives back the collective if it was the last, or -1."""
    nodes = program.nodes
    node = nodes[row]
    node.end_ns = machine.queue.clock[0].now
    for at in range(node.child_start, nodes[row + 1].child_start):
        child = np.int64(program.child[at])
        nodes[child].waits -= 1
        if nodes[child].waits == 0:
            _start(machine, nodes[child], child)
    collective = np.int64(node.collective)
    nodes[collective].tag -= 1
    if nodes[collective].tag != 0:
        return NONE
    program.ranks[node.rank].in_collective = 0
    return collective
