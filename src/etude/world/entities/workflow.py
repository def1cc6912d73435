"""Sessions of a workflow on replicas of its models, each on devices of a machine.

A fault of a node ends the replicas on it: their calls go to others of the same model, and a lost replica starts
elsewhere as soon as devices are free.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etude.world.clock import NEVER, Event
from etude.world.devices import DevicePool
from etude.world.entities.links import LinkedReplicas
from etude.world.entities.machine import FAULT, GIVEN, LINKS, MACHINE, OFFER, PlainWorkload
from etude.world.entities.seats import SeatedScale
from etude.world.serve import state as of
from etude.world.serve.results import spread
from etude.world.serve.workflow.results import workflow_summary
from etude.world.serve.workflow.run import WorkflowLoop


@dataclass(slots=True)
class WorkflowWorkload(PlainWorkload):
    name: str
    loop: WorkflowLoop
    scales: dict[str, SeatedScale]
    """Of each model: its replicas and their devices."""
    devices: DevicePool
    changes: list[Event] = field(default_factory=list)
    """Of links that its passes feel."""
    linked: LinkedReplicas | None = None
    linked_ns: int = 0
    """What links leave it now, and since when; None: they never changed."""
    made_of: Any = None
    """What its models run on; None if costs were given."""

    def __post_init__(self) -> None:
        for name, scale in self.scales.items():
            pool = self.loop.pools[name]
            scale.start(pool.state, pool.rules)

    # -- on the clock --------------------------------------------------------------------------------------------------

    def next_ns(self) -> int:
        return min(scale.next_ns for scale in self.scales.values())

    def advance(self, until_ns: int) -> Iterable[Event]:
        while (at := self.next_ns()) <= min(until_ns, NEVER - 1):
            self.loop.advance(at - 1)
            for name, scale in self.scales.items():
                if scale.next_ns == at:
                    scale.after(self.loop.pools[name].state, of.PAUSED)
        self.loop.advance(until_ns)
        return ()

    def on(self, event: Event) -> Iterable[Event]:
        now = event.time_ns
        if event.kind == FAULT:
            down = {node for node in self.devices.nodes_of(self.name) if not self.devices.up[node]}
            for name, scale in self.scales.items():
                scale.lose(self.loop.pools[name].state, down, now)
        elif event.kind == OFFER:
            for scale in self.scales.values():
                scale.retry(now)
        elif event.kind == LINKS:
            self.linked, self.linked_ns = event.about, now
            for name, machines in event.about.machines.items():
                self.loop.pools[name].machines = machines
        gave = any(scale.gave for scale in self.scales.values())
        for scale in self.scales.values():
            scale.gave = False
        return [Event(now, GIVEN, MACHINE)] if gave else ()

    def link_events(self) -> list[Event]:
        return self.changes

    def short(self) -> int:
        return sum(scale.missing * scale.tp for scale in self.scales.values())

    # -- results -------------------------------------------------------------------------------------------------------

    def loop_returns(self) -> int:
        return self.loop.returns

    def done_ns(self) -> int:
        return int(self.loop.ran.end_ns.max())

    def figures(self, horizon_ns: int) -> dict[str, Any]:
        """Of sessions that have ended by the horizon; all of `etude serve workflow` if every one has."""
        ran = self.loop.ran
        last = np.zeros(ran.flow.sessions, np.int64)
        np.maximum.at(last, [call.session for call in ran.calls], ran.end_ns)
        ended = last < of.NEVER
        failures = sum(scale.failures for scale in self.scales.values())
        counts = {"sessions": ran.flow.sessions, "sessions_done": int(ended.sum()), "failures": failures}
        if ended.all():
            return workflow_summary(ran) | counts
        took = (last[ended] - np.array(ran.begin_ns)[ended]) / 1e9
        return counts | {"calls": int((ran.end_ns < of.NEVER).sum()), "latency_s": spread(took)}

    def parts_ns(self, horizon_ns: int) -> dict[str, int]:
        found = {"busy": 0, "starting": 0, "idle": 0}
        for name, scale in self.scales.items():
            for part, ns in scale.parts_ns(self.loop.pools[name].state, horizon_ns).items():
                found[part] += ns
        return found

    def work_j(self, horizon_ns: int) -> float | None:
        pools = self.loop.pools.values()
        if not all(pool.on.energy.ranks for pool in pools):
            return None
        return sum(float(pool.state.energy_nj.sum()) for pool in pools) / 1e9
