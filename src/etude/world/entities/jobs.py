"""Jobs that share nodes of a machine: a job that loses a node goes back to the queue, with the work since its last save
lost. A node that fails goes back to the machine; a free one takes its place as soon as there is one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from etude.base.errors import UsageError
from etude.world.clock import Event
from etude.world.devices import DevicePool
from etude.world.entities.machine import FAULT, GIVEN, MACHINE, OFFER, PlainWorkload
from etude.world.fleet.sharing.gangs import Gangs, Shared
from etude.world.fleet.sharing.results import shared_record, shared_tables
from etude.world.fleet.sharing.supply import NODE


@dataclass(slots=True)
class JobsWorkload(PlainWorkload):
    counted_late: ClassVar[bool] = True
    name: str
    gangs: Gangs
    devices: DevicePool
    node_of: dict[int, int]
    """Number of a node among those of the jobs -> node of the machine."""
    policy: str
    lost: list[int] = field(default_factory=list)
    """Numbers of nodes that have no node of the machine now."""
    shared: Shared | None = None

    def advance(self, until_ns: int) -> Iterable[Event]:
        return self.gangs.advance(until_ns)

    def on(self, event: Event) -> Iterable[Event]:
        now = event.time_ns
        if event.kind == FAULT:
            gone = [k for k, node in self.node_of.items() if not self.devices.up[node]]
            for k in gone:
                self.gangs.on(Event(now, NODE, self.name, (k, False)))
                self.devices.give_node(self.node_of.pop(k), now)
                self.lost.append(k)
            return [*self._take(now), Event(now, GIVEN, MACHINE)] if gone else ()
        if event.kind == OFFER:
            return self._take(now)
        return ()

    def _take(self, now: int) -> Iterable[Event]:
        for node in self.devices.take_nodes(self.name, len(self.lost), now):
            k = self.lost.pop(0)
            self.node_of[k] = node
            self.gangs.on(Event(now, NODE, self.name, (k, True)))
        return ()

    def short(self) -> int:
        return len(self.lost) * self.devices.per_node

    def _shared(self, horizon_ns: int) -> Shared:
        if self.shared is None:
            self.shared = self.gangs.finish(horizon_ns)
        return self.shared

    def done_ns(self) -> int:
        return int(self.gangs.out.end_ns.max())

    def tables(self) -> dict[str, pa.Table]:
        return shared_tables(self.shared) if self.shared is not None and self.shared.series else {}

    def figures(self, horizon_ns: int) -> dict[str, Any]:
        found = self._shared(horizon_ns)
        try:
            record = shared_record(found, policy=self.policy)
        except UsageError:
            return {"jobs_done": 0, "jobs_stuck": found.stuck, "interruptions": int(found.preemptions.sum())}
        but = ("device_s", "useful_s", "lost_s", "useful_fraction", "cost", "energy_j", "nodes", "devices")
        return {key: value for key, value in record.items() if key not in but}

    def parts_ns(self, horizon_ns: int) -> dict[str, int]:
        found = self._shared(horizon_ns)
        parts = {"useful": found.service_ns, "redo": found.redo_ns, "starting": found.switch_ns}
        used = {name: round(float(ns.sum())) for name, ns in parts.items()}
        return used | {"idle": self.devices.device_ns(self.name, horizon_ns) - sum(used.values())}
