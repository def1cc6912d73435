"""The analytic network: an operation lasts a known time from the moment its members have arrived.

The other networks use it too, for operations without links.
"""

from __future__ import annotations

from etude.kernels.compile import kernel
from etude.kernels.heap import KEY, Heap, pop, push
from etude.run.simulate.networks.resources import FULL
from etude.run.simulate.networks.sharing import Sharing, attend, leave, rest_ns
from etude.run.simulate.networks.state import MILLI, NEVER, OVER, RUNNING, OperationState, Table


@kernel(allocates=False)
def post(operations: OperationState, sharing: Sharing | None, nodes: Table, node: int, now_ns: int) -> bool:
    """The node arrives at its operation. A collective or a rendezvous begins with its last member, an eager message
    with its sender. True: the operation is over already, so the node is done at once."""
    op = nodes[node].op
    it = operations.table[op]
    if it.status == OVER:
        return True
    nodes[node].comer_before = it.last_comer
    it.last_comer = node
    it.missing -= 1
    if it.status == RUNNING:
        _come_late(operations, sharing, nodes, node, now_ns)
    elif it.missing == 0 or it.sender == node:
        it.status = RUNNING
        it.begin_ns = now_ns
        it.end_ns = now_ns + it.duration_ns
        _share_devices(operations, sharing, nodes, op, now_ns)
        push(operations.ends, it.end_ns, op)
    return False


@kernel(allocates=False)
def _share_devices(operations: OperationState, sharing: Sharing | None, nodes: Table, op: int, now_ns: int) -> None:
    """With sharing, delays the end of an operation that begins by its members' compute."""
    if sharing is not None:
        it = operations.table[op]
        if it.duration_ns > 0:
            node = it.last_comer
            while node >= 0:
                it.slow += _attend(sharing, nodes, node)
                node = nodes[node].comer_before
            it.since_ns = now_ns
            if sharing.by_rate:  # at the full rate until capacities are computed at the end of the round
                it.slow = FULL
                it.left = it.duration_ns * FULL
            else:
                it.left = it.duration_ns * sharing.communication_milli
                it.end_ns = now_ns + rest_ns(it.left, MILLI if it.slow > 0 else sharing.communication_milli)


@kernel(allocates=False)
def _attend(sharing: Sharing, nodes: Table, node: int) -> int:
    """A member of a running operation starts to communicate. Returns 1 if its compute slows the operation down."""
    attend(sharing, nodes, node, True)
    return sharing.instances[nodes[node].instance].slows_communication


@kernel(allocates=False)
def _come_late(operations: OperationState, sharing: Sharing | None, nodes: Table, node: int, now_ns: int) -> None:
    """The receiver of a message in flight arrives: with sharing, its compute may slow the message down."""
    if sharing is not None:
        op = nodes[node].op
        it = operations.table[op]
        if it.duration_ns > 0:
            _slow_down(operations, sharing, op, _attend(sharing, nodes, node), now_ns)


@kernel(allocates=False)
def _slow_down(operations: OperationState, sharing: Sharing, op: int, amount: int, now_ns: int) -> None:
    """More or fewer members of a running operation compute: the rate changes between none and some."""
    it = operations.table[op]
    was_slow = it.slow > 0
    it.slow += amount
    slow = it.slow > 0
    if was_slow != slow:
        it.left -= (now_ns - it.since_ns) * (MILLI if was_slow else sharing.communication_milli)
        it.since_ns = now_ns
        it.end_ns = now_ns + rest_ns(it.left, MILLI if slow else sharing.communication_milli)
        push(operations.ends, it.end_ns, op)


@kernel(allocates=False)
def retime_operations(operations: OperationState, sharing: Sharing, nodes: Table, instance: int, now_ns: int) -> None:
    """Changes the rate of an instance's operations, if it started or stopped computing."""
    here = sharing.instances[instance]
    slows = 1 if here.computing > 0 else 0
    if slows == here.slows_communication:
        return
    here.slows_communication = slows
    node = here.first_communicating
    while node >= 0:
        _slow_down(operations, sharing, nodes[node].op, 1 if slows else -1, now_ns)
        node = sharing.nodes[node].after


@kernel(allocates=False)
def next_time(ends: Heap) -> int:
    """When the next operation ends; NEVER if none is in progress."""
    return ends.entry[0, KEY] if ends.size[0] > 0 else NEVER


@kernel(allocates=False)
def advance(operations: OperationState, sharing: Sharing | None, nodes: Table, now_ns: int) -> None:
    """Ends the operations that are due now: their members are done."""
    ends = operations.ends
    while ends.size[0] > 0 and ends.entry[0, KEY] == now_ns:
        it = operations.table[pop(ends)]
        if it.status == OVER or it.end_ns != now_ns:
            continue  # its end has moved since
        it.status = OVER
        node = it.last_comer
        while node >= 0:
            operations.done[operations.done_count[0]] = node
            operations.done_count[0] += 1
            if sharing is not None and it.duration_ns > 0:
                leave(sharing, nodes, node, True)
            node = nodes[node].comer_before
