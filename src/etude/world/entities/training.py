"""A training job that holds nodes of a machine.

It starts on as many nodes as its plan needs, with its spares beside them. A node that fails goes back to the machine,
and a free one takes its place if there is one; else the job goes on as its way to recover says, or waits. With
`lend_to` it gives nodes up, after a save at the end of a step, and takes them back as soon as they are free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.world.clock import NEVER, Event
from etude.world.devices import DevicePool, held_ns
from etude.world.entities.machine import FAULT, GIVEN, LEND, LINKS, MACHINE, OFFER
from etude.world.fleet.account import LOST, TRAIN, Account, stretches
from etude.world.fleet.checkpoint import SaveTier
from etude.world.fleet.copies import Copies
from etude.world.fleet.costs import SHAPES, Config, Costs
from etude.world.fleet.events import FleetEvents
from etude.world.fleet.loop import TrainingJob, TrainingRun
from etude.world.fleet.recovery import Recovery, policy_of
from etude.world.fleet.results import summary
from etude.world.policies import NodeLender

if TYPE_CHECKING:
    from etude.world.fleet.days.request import TrainInputs

USEFUL: Final = "useful"
SPARE: Final = "spare"
"""Devices that it holds beside those of its plan."""


@dataclass(slots=True)
class TrainingWorkload:
    name: str
    job: TrainingJob
    devices: DevicePool
    needed: int
    """Fewest nodes that it can run on."""
    lend_to: str = ""
    spares: int = 0
    lent: int = 0
    """Nodes that it does without while another has them."""
    networks: list[tuple[int, Callable[[Config], float]]] = field(default_factory=list)
    """Times from which links leave another part of its speed, by its state."""
    inputs: TrainInputs | None = None
    """What its costs were predicted from; None if times were given."""

    # -- on the clock --------------------------------------------------------------------------------------------------

    def link_events(self) -> list[Event]:
        return [Event(time_ns, LINKS, self.name, pace) for time_ns, pace in self.networks]

    def next_ns(self) -> int:
        return self.job.next_ns()

    def advance(self, until_ns: int) -> Iterable[Event]:
        self.job.advance(until_ns)
        return self._settled(until_ns)

    def on(self, event: Event) -> Iterable[Event]:
        if event.kind == FAULT:
            self.job.on(event)
        elif event.kind == LEND:
            self.lent += int(event.about)
            self.job.give_up(int(event.about))
        elif event.kind == LINKS:
            self.job.relink(event.about)
        elif event.kind == OFFER:
            self.lent = 0
            self._take(event.time_ns)
            self.lent = self.short() // self.devices.per_node if self.lend_to else 0
        return self._settled(event.time_ns)

    def short(self) -> int:
        return max(self._wanted() - int(self.job.up.sum()), 0) * self.devices.per_node

    def lender(self) -> NodeLender | None:
        if not self.lend_to:
            return None
        return NodeLender(self.name, min(int(self.job.up.sum()), self._wanted() - self.lent), self.needed, self.lend_to)

    def slow_down(self, speed: float) -> None:
        """Runs at a part of its speed, for want of power."""
        self.job.throttle(speed)

    def _wanted(self) -> int:
        """Nodes that it wants to have."""
        return self.job.costs.nodes + self.spares

    def _settled(self, now: int) -> Iterable[Event]:
        """Nodes that failed, or that it gave up, go back to the machine; free ones take their place."""
        lost = [node for node in self.devices.nodes_of(self.name) if not self.job.up[node]]
        for node in lost:
            self.devices.give_node(node, now)
        if lost:
            self._take(now)
        return [Event(now, GIVEN, MACHINE)] if lost else ()

    def _take(self, now: int) -> None:
        more = self.devices.take_nodes(self.name, max(self._wanted() - self.lent - int(self.job.up.sum()), 0), now)
        if more:
            self.job.join(np.array(more))

    # -- results -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self.job.close()

    def loop_returns(self) -> int:
        return 0

    def ran(self, horizon_ns: int) -> TrainingRun:
        job = self.job
        return TrainingRun(
            job.account,
            job.copies,
            job.hit,
            job.interruptions,
            job.transitions,
            job.node_up_ns,
            len(job.up),
            horizon_ns,
            job.without_copy,
        )

    def figures(self, horizon_ns: int) -> dict[str, Any]:
        found = summary(self.ran(horizon_ns), self.job.costs, name=self.name)
        return {key: value for key, value in found.items() if key not in ("jobs", "node_availability", "device_s")}

    def done_ns(self) -> int:
        return NEVER

    def tables(self) -> dict[str, pa.Table]:
        return {"states": self.job.account.table()}

    def parts_ns(self, horizon_ns: int) -> dict[str, int]:
        """Device time that was held, by the state of the job at that time."""
        history, found = self.devices.history[self.name], dict.fromkeys((USEFUL, *LOST, SPARE), 0)
        for row in self.job.account.rows:
            for one in stretches(row):
                held = held_ns(history, one.start_ns, one.end_ns)
                used = held_ns(history, one.start_ns, one.end_ns, most=one.gpus)
                found[SPARE] += held - used
                if one.state == TRAIN:
                    useful = used * one.useful_ns // max(one.end_ns - one.start_ns, 1)
                    found[USEFUL] += useful
                    found["degraded"] += used - useful
                else:
                    found[one.state] += used
        return found

    def work_j(self, horizon_ns: int) -> float | None:
        account = self.job.account
        if not self.job.costs.healthy.energy_j:
            return None
        idle_ns = sum((row.end_ns - row.start_ns) * row.gpus for row in account.rows)
        return account.energy_j - self.job.costs.idle_w * idle_ns / 1e9

    def full_w(self) -> float:
        """Power above idle of its steps, as fast as links let them."""
        config = self.job.config
        return self.job.linked_pace * (config.energy_j / (config.step_ns / 1e9) - self.job.costs.idle_w * config.gpus)


def training_workload(
    name: str,
    costs: Costs,
    devices: DevicePool,
    events: FleetEvents,
    *,
    tiers: tuple[SaveTier, ...],
    recover: str,
    recovery: Recovery,
    lend_to: str = "",
) -> TrainingWorkload:
    """A job before its first step, on nodes that it takes from the machine. Raises UsageError."""
    if costs.gpus_per_node != devices.per_node:
        raise UsageError(
            f"its plan fills nodes of {costs.gpus_per_node} devices, and those of the machine have {devices.per_node}",
            where=name,
            hint="use whole nodes",
        )
    spares = recovery.spare_nodes or 0
    wanted = costs.nodes + spares
    got = devices.take_nodes(name, wanted, 0)
    if len(got) < wanted:
        raise UsageError(f"needs {wanted} nodes, and {len(got)} are free", where=name, hint="machine: nodes: more")
    up, used = np.zeros(devices.nodes, bool), np.zeros(devices.nodes, bool)
    up[got], used[got[: costs.nodes]] = True, True
    job = TrainingJob(
        name,
        costs,
        events,
        policy_of(recover),
        recovery,
        spares,
        Account(costs.healthy, costs.idle_w),
        Copies(tiers, costs.healthy.step_ns),
        costs.healthy,
        repairs=False,
        up=up,
        used=used,
        down_until=np.zeros(devices.nodes, np.int64),
        hit=np.zeros(len(events), bool),
    )
    least = _least(costs) if recover in SHAPES else costs.nodes
    if lend_to and least == costs.nodes and not spares:
        problem = f"`lend_to` needs a job that can run on fewer nodes, and it recovers by `{recover}`"
        raise UsageError(problem, where=name, hint="recover: shrink, redistribute or replan")
    return TrainingWorkload(name, job, devices, least, lend_to, spares)


def _least(costs: Costs) -> int:
    """Fewest nodes on which some replicas run."""
    return max(-(-costs.replica_gpus // costs.gpus_per_node), 1)
