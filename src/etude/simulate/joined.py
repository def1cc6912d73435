"""The engine and a network with links, in turns: nodes join operations, transfers go over links, members are done.

The engine runs up to the time at which the network has something to do, or to the end of an instant in which members
joined; the network runs until it is done with a member, or up to the engine's next round. So completions of both that
fall on one instant are applied in one round, as with the analytic network.

Carried out as schedules are the collectives of groups whose members are all there, and messages between two ranks.
What the job does not know enough of lasts as it would on the analytic network.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.cost.algorithms import ALGORITHMS
from etude.cost.collectives import AUTO, choose
from etude.cost.schedules import Schedule, known, schedule
from etude.errors import ClusterError, UsageError
from etude.model.fabrics import topology_of_system
from etude.model.match import WORLD
from etude.model.routes import common_switch
from etude.model.schema import Collective
from etude.model.topology import Topology
from etude.simulate import kernels as k
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
_PLAIN: Final = ("ring", "direct", "dissemination")
"""Taken, the first that there is, where the algorithm has no schedule."""
_LIKE: Final = {"torus": "hierarchical", "ring_both": "ring"}
_NESTED: Final = ("hierarchical", "rail")


class Joined:
    """State of the engine and of the network together; as `State` has it, `step` runs a slice of both."""

    def __init__(self, run: Run, ops: Operations, state: State) -> None:
        self.state = state
        self.topology = topology_of_system(run.system)
        model: Model = "flow" if run.options.network == Network.FLOW else "links"
        self.network = NetworkState(self.topology, NetworkOptions(model=model))
        self.notes = [f"all ranks are simulated, none folded: they share the {len(self.topology.src):,} links"]
        made, number = _Schedules(run, ops, self.topology, self.notes).operations()
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
        arrays = self.state.arrays()
        seats = (self.via, self.place0, self.spot, self.seat, self.arrived, self.ended, self.joins)
        s = self.state.s
        for _ in range(_SLICE):
            k.step_joined(self.limit, self.ended_at, self.ended_n, max_events, *arrays, *seats)
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


# -- what the network carries out --------------------------------------------------------------------------------------


class _Schedules:
    """Operations of the engine as operations of the network."""

    def __init__(self, run: Run, ops: Operations, topology: Topology, notes: list[str]) -> None:
        self.run, self.ops, self.topology, self.notes = run, ops, topology, notes
        self.made: dict[tuple[Any, ...], Schedule] = {}
        self.replaced: dict[str, str] = {}

    def operations(self) -> tuple[list[Operation], I64]:
        """Those that are carried out, and their numbers in the engine."""
        ops, run = self.ops, self.run
        made, number = [], []
        placed = np.ones(len(ops), bool)
        placed[ops.of[ops.member < 0]] = False
        members = [self._members(group) for group in range(len(run.groups.group))]
        chosen: dict[tuple[int, int, int], Schedule] = {}
        for o in np.flatnonzero(placed[: ops.messages_from]).tolist():
            group, what, size = int(ops.place[o]), Collective(int(ops.collective[o])), int(ops.size_bytes[o])
            if run.groups.partial[group] or not _known(what):
                continue
            key = (group, int(what), size)
            if key not in chosen:
                chosen[key] = self._schedule(what, size, group, members[group])
            made.append(Operation(chosen[key], members[group], size))
            number.append(o)
        links = run.matching.links
        for o in range(ops.messages_from, len(ops)):
            src, dst = int(links.src[ops.place[o]]), int(links.dst[ops.place[o]])
            if src != dst:
                made.append(Operation.message(src, dst, int(ops.size_bytes[o])))
                number.append(o)
        if len(made) < len(ops):
            which = "whose members are not all known and present, or that stay on their rank"
            self.notes.append(f"{len(ops) - len(made):,} operations {which}, use no links and last a fixed time")
        for asked, taken in self.replaced.items():
            self.notes.append(f"{asked} has no schedule on some groups, where {taken} is carried out")
        return made, np.array(number, np.int64)

    def _members(self, group: int) -> I64:
        job, number = self.run.job, int(self.run.groups.group[group])
        ranks = np.arange(job.world_size) if number == WORLD else job.groups.ranks(number)
        return np.zeros(0, np.int64) if ranks is None else np.asarray(ranks, np.int64)

    def _schedule(self, what: Collective, size: int, group: int, members: I64) -> Schedule:
        name, there = what.name.lower(), _known(what)
        algorithm = self.run.options.collective.get(name, AUTO)
        asked = algorithm != AUTO
        if not asked:
            shape = self.run.groups.shapes[self.run.groups.shape[group]]
            algorithm = str(choose(self.run.system, what, [size], shape).algorithm[0])
        dims = self._dims(group, members)
        for take in (algorithm, _LIKE.get(algorithm, ""), *_PLAIN):
            if take not in there or (take in _NESTED and len(dims) < 2):
                continue
            if take == "in_switch" and not self._switch(members):
                continue
            break
        else:
            raise UsageError(f"{name} has no algorithm that can be carried out", hint=f"known: {', '.join(there)}")
        if asked and algorithm not in there and algorithm not in ALGORITHMS[what]:
            raise UsageError(f"{name} has no algorithm `{algorithm}`", hint=f"known: {', '.join(there)}")
        if take != algorithm and len(members) > 1:
            self.replaced[f"`{algorithm}` of {name}"] = f"`{take}`"
        key = (what, take, len(members), dims if take in _NESTED else ())
        if key not in self.made:
            self.made[key] = schedule(what, take, len(members), dims=dims if take in _NESTED else None)
        return self.made[key]

    def _dims(self, group: int, members: I64) -> tuple[int, ...]:
        """Members under each unit, level by level, where they are a product of levels in the order of devices."""
        shape = self.run.groups.shapes[self.run.groups.shape[group]]
        ordered = bool((np.diff(self.run.system.device_of(members)) > 0).all())
        dims = tuple(span.units for span in shape.spans)
        return dims if shape.regular and ordered and np.prod(dims) == len(members) else ()

    def _switch(self, members: I64) -> bool:
        try:
            common_switch(self.topology, members)
        except ClusterError:
            return False
        return True


@cache
def _known(what: Collective) -> list[str]:
    table = known()
    if what == Collective.REDUCE_SCATTER_BLOCK:
        what = Collective.REDUCE_SCATTER
    there = table.get(what.name.lower(), [])
    return [*there, *table["all_reduce"]] if what == Collective.BARRIER else there
