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
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from etude.cost.schedules import Schedule, message
from etude.errors import ClusterError, DeadlockError, UsageError
from etude.machine.topology import Topology
from etude.simulate.network.state import NetworkState

I64 = NDArray[np.int64]
Model = Literal["flow", "links"]
_MESSAGE = message()


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """A schedule on ranks: member m of the schedule is rank members[m]."""

    schedule: Schedule
    members: Sequence[int] | NDArray[Any]
    size_bytes: int
    flow: int = 0
    """Which of several equal ways: as in `etude.machine.routes`; chunks count on from it."""
    launch_ns: int = 0
    """Before its first transfers."""
    wire_ppm: int = 1_000_000
    """What its bytes are to the links, in millionths: more than they are where a protocol adds flags."""
    lags: I64 | None = None
    """Of each transfer: ns more (or less) than the latency of its way."""

    @classmethod
    def message(cls, src: int, dst: int, size_bytes: int, flow: int = 0, **costs: Any) -> Operation:
        return cls(_MESSAGE, (src, dst), size_bytes, flow, **costs)


@dataclass(frozen=True, slots=True, eq=False)
class OperationTimes:
    """What happened; `finish_ns[i][m]` is when member m of operation i was done."""

    finish_ns: tuple[I64, ...]
    link_bytes: I64
    link_busy_ns: I64

    @property
    def end_ns(self) -> int:
        return max((int(f.max()) for f in self.finish_ns if len(f)), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    model: Model = "flow"
    cut_through: bool = True
    """Of `links`; False: store-and-forward."""
    endpoint_ns: int = 0
    """Before the first transfers of a member, and after every arrival."""
    reduce_bytes_per_s: float = 0.0
    """Memory rate of a reduction, which moves three times its bytes; 0: takes no time."""
    tolerance: float = 0.0
    """Of `flow`: a rate stays as it is while it is off its fair share by less than this part. 0 is exact; 0.01 spares
    large runs most of the work. Links are never overbooked."""

    busy_factor: float = 1.0
    """On the time of a transfer's bytes, where its sender or receiver computes when it starts; in thousandths."""

    def __post_init__(self) -> None:
        if self.model not in ("flow", "links"):
            raise UsageError(f"unknown network model `{self.model}`", hint="known: flow, links")
        if self.endpoint_ns < 0 or self.reduce_bytes_per_s < 0:
            raise ClusterError("the endpoint delay or the rate of reductions is negative")
        if not 0 <= self.tolerance < 1:
            raise UsageError(f"a tolerance of {self.tolerance}", hint="0 is exact, 0.01 is one part in a hundred")


def run_operations(
    topology: Topology,
    operations: Sequence[Operation],
    arrivals: Sequence[Any] | None = None,
    **options: Any,
) -> OperationTimes:
    """Runs them all; arrivals[i] is when operation i starts, for all of its members or one time for each.

    `options` are those of `NetworkOptions`.
    """
    state = NetworkState(topology, NetworkOptions(**options))
    state.register(operations)
    times = [0] * len(operations) if arrivals is None else arrivals
    if len(times) != len(operations):
        raise UsageError(f"{len(operations)} operations, {len(times)} arrivals")
    rows = _joins(operations, times)
    if len(rows) and rows[:, 0].min() < 0:
        raise UsageError("an operation starts before time 0")
    finish0 = np.cumsum([0] + [o.schedule.members for o in operations])
    finish = state.run(rows[np.argsort(rows[:, 0], kind="stable")], finish0)
    stuck = np.flatnonzero(finish < 0)
    if len(stuck):
        op = int(np.searchsorted(finish0, stuck[0], side="right")) - 1
        raise DeadlockError(
            f"operation {op} ({operations[op].schedule.algorithm}) never ends: its transfers wait in a circle"
        )
    parts = tuple(finish[finish0[i] : finish0[i + 1]] for i in range(len(operations)))
    return OperationTimes(parts, state.link_bytes, state.link_busy_ns)


def _joins(operations: Sequence[Operation], times: Sequence[Any]) -> I64:
    """Rows of (time, operation, member)."""
    count = np.array([o.schedule.members for o in operations], np.int64)
    rows = np.empty((int(count.sum()), 3), np.int64)
    first = np.cumsum(count) - count
    rows[:, 1] = np.repeat(np.arange(len(count)), count)
    rows[:, 2] = np.arange(len(rows)) - np.repeat(first, count)
    if all(isinstance(time, int) for time in times):
        rows[:, 0] = np.repeat(np.array(times, np.int64), count)
        return rows
    for begin, many, time in zip(first.tolist(), count.tolist(), times, strict=True):
        rows[begin : begin + many, 0] = time
    return rows


__all__ = ["NetworkOptions", "Operation", "OperationTimes", "run_operations"]
