"""The interface between the engine and any network: three verbs.

    post(network, ...)        a node arrives at its operation; True: it is done at once
    next_time(network, ...)   when something happens next
    advance(network, ...)     all that happens up to an instant; network.done[:n] are the nodes that are done

A network of another kind is a file in this folder and, if its state differs from these, a field of NetworkState that is
None for the others: branches on it are resolved when the engine is compiled for the network.
"""

from __future__ import annotations

from typing import Final

from etude.kernels.compile import kernel
from etude.run.simulate.networks import analytic, transfers
from etude.run.simulate.networks.external import asks_outside, next_outside
from etude.run.simulate.networks.queues import is_crowded
from etude.run.simulate.networks.sharing import Sharing, attend, leave
from etude.run.simulate.networks.state import NEVER, FlowState, LinkState, NetworkState, OperationState, Table
from etude.run.simulate.packets.state import PacketState

SLICE_NS: Final = 100_000
"""How far packets move at once."""
NO_ROOM: Final = -1
"""Instead of a time: the state of the network has to grow first."""


@kernel(allocates=False)
def post(network: NetworkState, sharing: Sharing | None, nodes: Table, node: int, now_ns: int) -> bool:
    return _post(network.links, network.operations, sharing, nodes, node, now_ns)


@kernel(allocates=False)
def _post(
    links: LinkState | None, operations: OperationState, sharing: Sharing | None, nodes: Table, node: int, now_ns: int
) -> bool:
    if links is not None and operations.table[nodes[node].op].carried >= 0:
        if _come(links, operations.table, nodes[node].op, node, now_ns):
            return True
        if sharing is not None:
            attend(sharing, nodes, node, sharing.by_rate)
        return False
    return analytic.post(operations, sharing, nodes, node, now_ns)


@kernel(allocates=False)
def _come(links: LinkState, operations: Table, op: int, node: int, now_ns: int) -> bool:
    """The node arrives at a carried operation: posted[:clock.posted] are the places that join it at the end of the
    instant. An eager message starts with its sender, so both its ends join at once."""
    clock, it, place = links.clock[0], operations[op], links.place_of[node]
    if links.places[place].done_ns >= 0:
        return True
    links.places[place].came = 1
    it.missing -= 1
    carried = links.carried[it.carried]
    if it.sender == node or (it.missing == 0 and it.sender < 0 and carried.members == 2):
        it.begin_ns = now_ns
    if it.sender < 0:
        links.posted[clock.posted] = place
        clock.posted += 1
    elif it.sender == node:
        links.posted[clock.posted] = carried.place0
        links.posted[clock.posted + 1] = carried.place0 + 1
        clock.posted += 2
    return False


@kernel(allocates=False)
def next_time(network: NetworkState, now_ns: int, ahead_ns: int, until_ns: int) -> int:
    """When something happens next, on the network or, at `ahead_ns`, on the ranks. NO_ROOM: not known yet. The network
    may be ahead of the ranks, but not of `until_ns`."""
    soon_ns = min(ahead_ns, analytic.next_time(network.operations.ends))
    return _next_time(network.links, network.flows, now_ns, soon_ns, until_ns)


@kernel(allocates=False)
def _next_time(links: LinkState | None, flows: FlowState | None, now_ns: int, soon_ns: int, until_ns: int) -> int:
    if links is None:
        return soon_ns
    if soon_ns == now_ns:  # links take what was posted at the end of the instant
        return soon_ns
    if not _join_posted(links, now_ns):
        return NO_ROOM
    clock = links.clock[0]
    clock.next_ns = transfers.next_time(links, flows) if clock.done == 0 else NEVER
    if clock.done == 0 and asks_outside(links.outside, min(soon_ns, clock.next_ns, until_ns)):
        return NO_ROOM
    _run_ahead(links, flows, links.packets, min(soon_ns - 1, until_ns))
    if is_crowded(links.packets):
        return NO_ROOM
    return min(soon_ns, clock.now_ns if clock.done > 0 else min(clock.next_ns, next_outside(links.outside)))


@kernel(allocates=False)
def _run_ahead(links: LinkState, flows: FlowState | None, packets: PacketState | None, last_ns: int) -> None:
    """Packets have many instants at which no node is done: a slice of them at once."""
    if packets is not None:
        clock = links.clock[0]
        if clock.done == 0 and clock.next_ns <= last_ns:
            transfers.advance(links, flows, min(last_ns, clock.next_ns + SLICE_NS))


@kernel(allocates=False)
def _join_posted(links: LinkState, now_ns: int) -> bool:
    """Lets all posted places join; False if there is no room for some, which are tried again later."""
    clock = links.clock[0]
    if clock.posted == 0:
        return True
    clock.now_ns = now_ns
    for k in range(clock.joined, clock.posted):
        if not transfers.join(links, links.posted[k]):
            clock.joined = k
            clock.crowded = 1
            return False
    clock.joined = 0
    clock.posted = 0
    return True


@kernel(allocates=False)
def advance(network: NetworkState, sharing: Sharing | None, nodes: Table, until_ns: int) -> int:
    """Applies what the network does up to the time that `next_time` gave. Returns how many nodes are done."""
    operations = network.operations
    operations.done_count[0] = 0
    analytic.advance(operations, sharing, nodes, until_ns)
    _advance(network.links, network.flows, until_ns)
    _collect_done(network.links, operations, sharing, nodes)
    return operations.done_count[0]


@kernel(allocates=False)
def _advance(links: LinkState | None, flows: FlowState | None, until_ns: int) -> None:
    if links is not None:
        transfers.advance(links, flows, until_ns)


@kernel(allocates=False)
def _collect_done(links: LinkState | None, operations: OperationState, sharing: Sharing | None, nodes: Table) -> None:
    """Collects members of carried operations that the network is done with, and that have arrived."""
    if links is not None:
        clock = links.clock[0]
        for k in range(clock.done):
            place = links.places[links.done[k]]
            if place.came == 1:
                operations.done[operations.done_count[0]] = place.node
                operations.done_count[0] += 1
                if sharing is not None:
                    leave(sharing, nodes, place.node, sharing.by_rate)
        clock.done = 0
