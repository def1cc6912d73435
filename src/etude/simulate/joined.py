"""The engine and a network with links, in turns: nodes join operations, transfers go over links, members are done.

The engine runs up to the time at which the network has something to do, or to the end of an instant in which members
joined; the network runs until it is done with a member, or up to the engine's next round. So completions of both that
fall on one instant are applied in one round, as with the analytic network.

Carried out as schedules are the collectives of groups whose members are all there, and messages between two ranks.
What the job does not know enough of lasts as it would on the analytic network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from etude.machine.fabrics import topology_of_system
from etude.machine.faults import with_faults
from etude.simulate import kernels as k
from etude.simulate.carried import carried
from etude.simulate.network import kernels as nk
from etude.simulate.network.run import Model, NetworkOptions, Operation
from etude.simulate.network.state import NetworkState
from etude.simulate.operations import Operations, Run
from etude.simulate.options import Network
from etude.simulate.result import LINKS_SHOWN, LinkUse

if TYPE_CHECKING:
    from etude.simulate.run import State

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_SLICE = 1 << 14
"""Instants of the network between two looks at the keyboard."""


class Joined:
    """State of the engine and of the network together; as `State` has it, `step` runs a slice of both."""

    def __init__(self, run: Run, ops: Operations, state: State) -> None:
        self.state = state
        self.overlap = bool(state.s[k.OVERLAP])
        self.topology, said = with_faults(topology_of_system(run.system), run.options.slow_links)
        model: Model = "flow" if run.options.network == Network.FLOW else "links"
        busy = run.options.overlap.communication
        self.network = NetworkState(self.topology, NetworkOptions(model=model, busy_factor=busy))
        self.notes = [f"all ranks are simulated, none folded: they share the {len(self.topology.src):,} links", *said]
        made, number = carried(run, ops, self.topology, self.notes)
        self.network.load, self.network.seat_of = state.load, np.zeros(len(self.topology), np.int64)
        self.network.seat_of[run.job.ranks] = np.arange(len(run.job.ranks))  # all are simulated: one instance each
        self.network.register(made)
        self.arrays = self.network.arrays()
        self._seat(ops, made, number)
        self.limit, self.ended_at, self.ended_n, self.network_now = 0, 0, 0, 0

    def _seat(self, ops: Operations, made: Sequence[Operation], number: I64) -> None:
        """Where each node sits in its operation, and who sits there."""
        self.via = np.full(len(ops), -1, np.int32)
        self.via[number] = np.arange(len(number))
        count = np.array([o.schedule.members for o in made], np.int64)
        self.place0 = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
        total = int(count.sum())
        self.seat, self.arrived = np.full(total, -1, np.int32), np.zeros(total, np.int32)
        self.spot = np.full(self.state.nodes, -1, np.int64)
        on = self.via[ops.of] >= 0
        self.spot[ops.node[on]] = self.place0[self.via[ops.of[on]]] + ops.member[on]
        self.seat[self.spot[ops.node[on]]] = ops.node[on]
        self.ended, self.joins = np.zeros((total + 1, 2), np.int64), np.zeros((2 * total + 2, 2), np.int64)

    @property
    def done(self) -> int:
        return self.state.done

    @property
    def now(self) -> int:
        return self.state.now

    def step(self, max_events: int) -> bool:
        """True while there is more to do."""
        stop = self.done + max_events
        seats = (self.via, self.place0, self.spot, self.seat, self.arrived, self.ended, self.joins)
        s = self.state.s
        for _ in range(_SLICE):
            if self.overlap:
                self.state.make_room()
            k.step_joined(self.limit, self.ended_at, self.ended_n, max_events, *self.state.arrays(), *seats)
            self.ended_n = 0
            joined = int(s[k.JOINS])
            if joined:
                self._join(joined)
            ahead = int(s[k.NEXT_AT])
            self.network_now, event, self.ended_n = nk.proceed(self.arrays, self.network_now, ahead, self.ended, _SLICE)
            if self.ended_n:
                self.limit = self.ended_at = self.network_now
            elif event > ahead or event >= nk.NEVER:
                if ahead == k.NEVER:
                    return False
                self.limit = int(event) - 1
            else:
                self.limit = self.network_now - 1  # the network is not there yet
            if self.done >= stop:
                break
        return True

    def _join(self, count: int) -> None:
        self.network_now = self.now
        at = 0
        while (at := nk.join(self.arrays, self.now, self.joins, at, count)) < count:
            self.arrays = self.network.grown(self.arrays)

    def links(self) -> tuple[LinkUse, ...]:
        """Links that carried something, the busiest first."""
        moved, busy = self.arrays[-2][nk.BYTES], self.arrays[-2][nk.BUSY]
        used = np.flatnonzero((moved > 0) | (busy > 0))
        order = used[np.lexsort((used, -moved[used], -busy[used]))][:LINKS_SHOWN].tolist()
        return tuple(LinkUse(self.topology.link_name(i), int(moved[i]), int(busy[i])) for i in order)
