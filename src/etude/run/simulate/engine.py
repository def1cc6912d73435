"""The engine: one loop over the instants of a simulation, whatever the network.

The rule of one instant, which all networks share:

    1. apply all completions of the instant: nodes end, lanes come free, successors become ready;
    2. then issue: each free lane takes the first of its ready nodes by (priority, row), or as its policy says.

What is issued and takes no time completes in the next round of the same instant. No outcome depends on the order in
which lanes or completions of one round are visited, so runs that simulate equal ranks once and runs that simulate all
of them agree. Kernels here make no arrays, and every index was checked before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.compile import kernel
from etude.kernels.heap import KEY, Heap, pop, push
from etude.run.simulate import events
from etude.run.simulate.events import Event
from etude.run.simulate.lanes import choose, complete, row_of, starts_with_operation, wake
from etude.run.simulate.lower import Lowered
from etude.run.simulate.network import RunningNetwork
from etude.run.simulate.networks.analytic import retime_operations
from etude.run.simulate.networks.seam import NO_ROOM, advance, next_time, post
from etude.run.simulate.networks.sharing import (
    Sharing,
    begin,
    end,
    note_neighbours,
    rate_members,
    retime_members,
    retime_nodes,
    retime_work,
)
from etude.run.simulate.networks.state import NEVER, NetworkState, OperationState
from etude.run.simulate.state import DONE, EngineState, with_room

OVER, REACHED, PAUSED, CROWDED, ASKING = 0, 1, 2, 3, 4
"""Why `_run` returned: nothing more can happen; nothing more up to the given time; the slice is used up; no room; two
kinds of kernels overlap whose mutual cost is not known yet."""
SLICE: Final = 500_000
"""Nodes between two checks of the clock and the keyboard: about a tenth of a second."""
TURNS: Final = 1 << 16
"""Rounds between two checks."""


class JobEngine:
    """A job under simulation, with a clock that can be stopped: any number of calls of `advance(until_ns)` gives the
    same times as one run to the end."""

    def __init__(
        self,
        lowered: Lowered,
        state: EngineState,
        network: RunningNetwork,
        price: Callable[[int, int], float] | None = None,
    ) -> None:
        """`price(a, b)`: how much longer, as a fraction, a kernel of kind a takes next to one of kind b."""
        self.lowered, self.state, self.network, self.price = lowered, state, network, price
        self._grow()

    @property
    def nodes(self) -> int:
        return len(self.state.nodes)

    @property
    def done_nodes(self) -> int:
        return int(self.state.clock[0]["done_nodes"])

    @property
    def now_ns(self) -> int:
        """The last instant at which something happened on the ranks."""
        return int(self.state.clock[0]["now_ns"])

    def advance(self, until_ns: int = NEVER) -> bool:
        """Runs all instants up to and including this one; True while there is more to do afterwards."""
        while (why := self._slice(until_ns)) == PAUSED:
            pass
        return why == REACHED

    def apply(self, event: Event, at_ns: int) -> None:
        """Applies an event to ranks or links, after everything that ends at this time."""
        if at_ns < self.now_ns:
            raise UsageError(f"an event at {at_ns:,} ns, but the clock is at {self.now_ns:,} ns")
        self.advance(at_ns)
        self.state = events.apply(self.state, self.network, self.lowered, event, at_ns)

    def step(self, until_ns: int = NEVER) -> bool:
        """Runs for about a tenth of a second; True while there is more to do up to this time."""
        return self._slice(until_ns) == PAUSED

    def _slice(self, until_ns: int) -> int:
        while (why := _run(self.state, self.network.state, until_ns, SLICE, TURNS)) in (CROWDED, ASKING):
            if why == CROWDED:
                self._grow()
            else:
                self._answer()
        return int(why)

    def _answer(self) -> None:
        if self.state.sharing is not None and self.price is not None:
            kinds = self.state.sharing.kinds
            a, b = kinds.asked.tolist()
            kinds.excess[a, b] = self.price(a, b)

    def _grow(self) -> None:
        """Makes room for what a round may add: with sharing, the end of each node and operation may move twice."""
        room = 0 if self.state.sharing is None else 3 * self.nodes + 8
        self.state = self.state._replace(ends=with_room(self.state.ends, room))
        self.network.grow(room)


@kernel(allocates=False)
def _run(state: EngineState, network: NetworkState, until_ns: int, max_nodes: int, max_turns: int) -> int:
    """Runs the rounds of all instants up to a time; returns early after about this many nodes or rounds."""
    clock = state.clock[0]
    stop = clock.done_nodes + max_nodes
    if not _share(state.sharing, state, network.operations):
        return ASKING
    for _ in range(max_turns):
        if clock.done_nodes >= stop:
            break
        if clock.wake_ns > clock.now_ns:  # else it is the very first round
            ahead_ns = min(_next_end(state.ends), clock.wake_ns)
            at_ns = next_time(network, clock.now_ns, ahead_ns, until_ns)
            if at_ns == NEVER:
                return OVER
            if at_ns > until_ns:
                return REACHED
            if at_ns == NO_ROOM or _is_crowded(state.sharing, state, network.operations.ends):
                return CROWDED
            if advance(network, state.sharing, state.nodes, at_ns) == 0 and at_ns < ahead_ns:
                continue  # the network advanced, and no node is done
            if at_ns != clock.now_ns:
                clock.now_ns = at_ns
                clock.instant += 1
            _end_nodes(state.sharing, state)
            _end_members(state, network.operations)
        if clock.wake_ns == clock.now_ns:
            wake(state)
        _start_nodes(state.sharing, state, network)
        if not _share(state.sharing, state, network.operations):
            return ASKING
    return PAUSED


@kernel(allocates=False)
def _next_end(ends: Heap) -> int:
    return ends.entry[0, KEY] if ends.size[0] > 0 else NEVER


@kernel(allocates=False)
def _is_crowded(sharing: Sharing | None, state: EngineState, op_ends: Heap) -> bool:
    """Whether a round could add more ends than there is room for."""
    if sharing is None:
        return False
    free = min(len(state.ends.entry) - state.ends.size[0], len(op_ends.entry) - op_ends.size[0])
    return free < 2 * len(state.nodes)


@kernel(allocates=False)
def _end_nodes(sharing: Sharing | None, state: EngineState) -> None:
    """Ends the nodes that are due now, except members of operations."""
    ends, now_ns = state.ends, state.clock[0].now_ns
    while ends.size[0] > 0 and ends.entry[0, KEY] == now_ns:
        node = pop(ends)
        if state.nodes[node].waits == DONE or state.nodes[node].end_ns != now_ns:
            continue  # its end has moved since
        if sharing is not None and not end(sharing, state.nodes, ends, node, now_ns):
            continue
        complete(state, node)


@kernel(allocates=False)
def _end_members(state: EngineState, operations: OperationState) -> None:
    """Ends the nodes that the network is done with; those that take longer than the operation end later."""
    for k in range(operations.done_count[0]):
        node = np.int64(operations.done[k])  # same type as other nodes, so that its callees are compiled once
        it = state.nodes[node]
        starts_with_operation(state, node, operations.table[it.op].begin_ns)
        if it.cost_ns > 0:
            it.end_ns = state.clock[0].now_ns + it.cost_ns
            push(state.ends, it.end_ns, node)
        else:
            complete(state, node)


@kernel(allocates=False)
def _start_nodes(sharing: Sharing | None, state: EngineState, network: NetworkState) -> None:
    now_ns = state.clock[0].now_ns
    for k in range(choose(state)):
        node = np.int64(state.starting[k])
        it = state.nodes[node]
        cost_ns = it.cost_ns
        if it.op >= 0:
            if not post(network, sharing, state.nodes, node, now_ns):
                continue
        elif sharing is not None and cost_ns > 0:
            row = row_of(state, node)
            klass = sharing.resources.class_of[state.programs.rows[row].use]
            if klass >= 0:
                cost_ns = begin(sharing, state.nodes, node, row, klass, now_ns)
        it.end_ns = now_ns + cost_ns
        push(state.ends, it.end_ns, node)


@kernel(allocates=False)
def _share(sharing: Sharing | None, state: EngineState, operations: OperationState) -> bool:
    """Updates rates on ranks where something began or ended in this round. False: the requested pair has to be priced
    first."""
    if sharing is None:
        return True
    if sharing.changed_count[0] == 0:
        return True
    now_ns = state.clock[0].now_ns
    if sharing.by_rate:
        if not _retime(sharing, state, operations, now_ns):
            return False
    else:
        for k in range(sharing.changed_count[0]):
            retime_operations(operations, sharing, state.nodes, sharing.changed[k], now_ns)
            retime_nodes(sharing, state.nodes, state.ends, sharing.changed[k], now_ns)
    for k in range(sharing.changed_count[0]):
        sharing.instances[sharing.changed[k]].is_changed = 0
    sharing.changed_count[0] = 0
    return True


@kernel(allocates=False)
def _retime(sharing: Sharing, state: EngineState, operations: OperationState, now_ns: int) -> bool:
    note_neighbours(sharing)
    for k in range(sharing.changed_count[0]):
        if not rate_members(sharing, sharing.changed[k]):
            return False
    for k in range(sharing.changed_count[0]):
        if not retime_work(sharing, state.nodes, state.ends, sharing.changed[k], now_ns):
            return False
        retime_members(sharing, operations, state.nodes, sharing.changed[k], now_ns)
    return True
