"""Operations on a topology, without a workload around them.

    times = run_operations(topology, [Operation(schedule(Collective.ALL_REDUCE, "ring", 8), range(8), 64 * 2**20)])
    times.finish_ns[0]          # when each member was done
    times.link_bytes            # what went over each link; times.link_busy_ns: how long it was in use

An operation is a collective with its schedule, or a message. Each member joins at its own time (`arrivals`); a
transfer starts when what it waits for has arrived and both its ends have joined. A member is done when all transfers
from and to it have arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from etude.base.errors import DeadlockError, UsageError
from etude.kernels.arrays import I64
from etude.machine.topology import Topology
from etude.run.simulate.networks.operation import NetworkOptions, Operation
from etude.run.simulate.networks.registry import Registry, grown
from etude.run.simulate.networks.state import NEVER, FlowState, LinkState
from etude.run.simulate.networks.transfers import run_alone
from etude.run.simulate.packets.deadlock import deadlock_of

_SLICE: Final = 1 << 16
"""Instants between two checks for interrupts: compiled code cannot be interrupted."""


@dataclass(frozen=True, slots=True, eq=False)
class OperationTimes:
    """Result: `finish_ns[i][m]` is when member m of operation i was done."""

    finish_ns: tuple[I64, ...]
    link_bytes: I64
    link_busy_ns: I64

    @property
    def end_ns(self) -> int:
        return max((int(f.max()) for f in self.finish_ns if len(f)), default=0)


def run_operations(
    topology: Topology, operations: Sequence[Operation], arrivals: Sequence[Any] | None = None, **options: Any
) -> OperationTimes:
    """Runs all operations; arrivals[i] is when operation i starts, one time for all members or one for each.

    `options` are those of `NetworkOptions`.
    """
    asked = NetworkOptions(**options)
    if asked.model == "external":
        raise UsageError("another program is the network of jobs only", hint="etude simulate --network external:CMD")
    registry = Registry(topology, asked)
    registry.register(operations)
    times = [0] * len(operations) if arrivals is None else arrivals
    if len(times) != len(operations):
        raise UsageError(f"{len(operations)} operations, {len(times)} arrivals")
    state = run_registered(*registry.state(), _arrivals(operations, times))
    finish_ns = np.ascontiguousarray(state.places["done_ns"])
    stuck = np.flatnonzero(finish_ns < 0)
    if len(stuck):
        if state.packets is not None and (problem := deadlock_of(state.packets, topology.link_name)) is not None:
            raise problem
        op = int(state.places["operation"][stuck[0]])
        raise DeadlockError(
            f"operation {op} ({operations[op].schedule.algorithm}) never completes: its transfers wait in a cycle"
        )
    return OperationTimes(
        tuple(np.split(finish_ns, state.carried["place0"][1:])) if operations else (),
        state.links["carried_bytes"].copy(),
        state.links["busy_ns"].copy(),
    )


def run_registered(state: LinkState, flows: FlowState | None, arrivals_ns: I64) -> LinkState:
    """All members join, each at its time (one for each place), and the operations run until nothing is left to do."""
    if len(arrivals_ns) and arrivals_ns.min() < 0:
        raise UsageError("an operation starts before time 0")
    order = np.argsort(arrivals_ns, kind="stable")
    state.posted[: len(order)] = order
    joins_ns, joined = arrivals_ns[order], 0
    while joined < len(joins_ns) or state.clock[0]["next_ns"] != NEVER:
        joined = run_alone(state, flows, joins_ns, joined, _SLICE)
        if state.clock[0]["crowded"]:
            state, flows = grown(state, flows)
    return state


def _arrivals(operations: Sequence[Operation], times: Sequence[Any]) -> I64:
    """When each member of each operation joins it."""
    count = np.array([o.schedule.members for o in operations], np.int64)
    if all(isinstance(time, int) for time in times):
        return np.repeat(np.array(times, np.int64), count)
    parts = [
        np.broadcast_to(np.asarray(time, np.int64), many) for time, many in zip(times, count.tolist(), strict=True)
    ]
    return np.concatenate(parts)
