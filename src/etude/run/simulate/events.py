"""Events that can be applied while the clock is stopped: ranks stop or become slow, links change.

    engine.advance(at_ns)
    engine.apply(StopRanks((3,)), at_ns)
    engine.advance(later_ns)

A rank that stops finishes nothing more. A collective or message in progress of which it is a member never ends: the
other participants wait and keep what they hold, and everything that does not depend on it continues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.kernels.heap import push
from etude.model.schema import UNKNOWN
from etude.run.simulate.costs import jitter_classes
from etude.run.simulate.lower import Lowered
from etude.run.simulate.network import RunningNetwork
from etude.run.simulate.networks.state import OVER
from etude.run.simulate.options import LinkChange
from etude.run.simulate.state import DONE, EngineState, with_room

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NEVER_READY: Final = 1 << 30
"""More nodes, or members, than any node waits for."""


class StopRanks(NamedTuple):
    """Fail-stop: these ranks do nothing from now on."""

    ranks: tuple[int, ...]


class SlowRank(NamedTuple):
    """Compute, host and memory nodes of a rank take `factor` times as long as originally, running ones for the rest of
    their work; 1 restores the original speed."""

    rank: int
    factor: float


Event = StopRanks | SlowRank | LinkChange


def apply(state: EngineState, network: RunningNetwork, lowered: Lowered, event: Event, at_ns: int) -> EngineState:
    """The state after the event; tables are changed in place."""
    if isinstance(event, LinkChange):
        if network.state.links is not None and network.state.links.packets is not None:
            raise UsageError("links that change during the run are not there for packets", hint='network="flow"')
        network.change(event._replace(time_ns=at_ns))
        return state
    if state.sharing is not None:
        problem = "faults of ranks during a run cannot be combined with overlap, contention or shares"
        raise UsageError(problem, hint="use a fault, or these options")
    if len(lowered.classes) < len(lowered.job.ranks):
        raise UsageError("a rank that stops or slows down differs from all others", hint="fold=False")
    if isinstance(event, StopRanks):
        _stop(state, network, np.array([lowered.job.index(rank) for rank in event.ranks], np.int64))
        return state
    if not 0 < event.factor < 1e6:
        raise UsageError(f"slow rank {event.rank}: {event.factor} is not a factor", hint="1.5 is 50% slower")
    return _slow_down(state, lowered, lowered.job.index(event.rank), event, at_ns)


def _stop(state: EngineState, network: RunningNetwork, dead: I64) -> None:
    nodes, operations = state.nodes, network.state.operations.table
    struck = np.isin(nodes["instance"], dead) & (nodes["waits"] != DONE)
    begun = nodes["start_ns"] != UNKNOWN
    broken = np.unique(nodes["op"][struck & (nodes["op"] >= 0)])
    _break(operations, network, broken, nodes["op"])
    nodes["end_ns"][struck & begun] = UNKNOWN
    nodes["waits"][struck & ~begun] = _NEVER_READY
    lanes = np.isin(state.lanes["instance"], dead)
    state.lanes["busy"][lanes] = state.instances["node0"][state.lanes["instance"][lanes]]


def _break(operations: NDArray[np.void], network: RunningNetwork, broken: I64, op: NDArray[np.int32]) -> None:
    """Marks operations that never end. Members that have not arrived yet will arrive, and wait."""
    alive = broken[operations["status"][broken] != OVER]
    operations["end_ns"][alive] = UNKNOWN
    operations["missing"][alive] = _NEVER_READY
    operations["sender"][alive] = -1
    links = network.state.links
    if links is None:
        return
    carried = np.zeros(len(operations), bool)
    carried[alive[operations["carried"][alive] >= 0]] = True
    members = np.flatnonzero((op >= 0) & carried[op])
    places = links.place_of[members]
    places = places[places >= 0]
    links.places["came"][places[links.places["done_ns"][places] < 0]] = 0
    operations["carried"][carried] = -1


def _slow_down(state: EngineState, lowered: Lowered, instance: int, event: SlowRank, at_ns: int) -> EngineState:
    if lowered.options.jitter:
        raise UsageError(
            "a rank that becomes slow during a run cannot have jitter: its times are drawn once", hint="either"
        )
    first, last = int(lowered.base[instance]), int(lowered.base[instance + 1])
    nodes = state.nodes[first:last]
    trace = lowered.job.traces[int(lowered.job.trace_of[instance])]
    own = (jitter_classes(trace) >= 0) & (nodes["op"] < 0) & (nodes["waits"] != DONE)
    rows = lowered.program_row(np.full(last - first, instance), np.arange(last - first))
    cost_ns = np.rint(np.where(own, lowered.programs.cost_ns[rows], 0) * event.factor).astype(np.int64)
    running = np.flatnonzero(own & (nodes["start_ns"] != UNKNOWN) & (nodes["end_ns"] > at_ns))
    ends = with_room(state.ends, len(running) + 1)
    for row in running.tolist():  # one per lane
        left = (int(nodes["end_ns"][row]) - at_ns) * int(cost_ns[row]) // max(int(nodes["cost_ns"][row]), 1)
        nodes["end_ns"][row] = at_ns + max(left, 1)
        push(ends, int(nodes["end_ns"][row]), first + row)
    nodes["cost_ns"][own] = cost_ns[own]
    return state._replace(ends=ends)
