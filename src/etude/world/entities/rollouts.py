"""Post-training on nodes of a machine: rollouts, updates and transfers of weights, as `etude fleet share` has them.

A node that fails takes its replicas along: their samples go to others, and the steps of their current turns are lost.
With `lend_to` nodes are given up in the same way, at once, and taken back as soon as they are free. Updates are not
slower on fewer nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from etude.world.clock import Event
from etude.world.devices import DevicePool
from etude.world.entities.links import LinkedRollouts
from etude.world.entities.machine import FAULT, GIVEN, LEND, LINKS, MACHINE, OFFER, PlainWorkload
from etude.world.fleet.rl.loop import SEND, RlLoop
from etude.world.policies import NodeLender


@dataclass(slots=True)
class RolloutWorkload(PlainWorkload):
    name: str
    loop: RlLoop
    devices: DevicePool
    wanted: int
    """Nodes that it has if nothing is lost or lent."""
    nodes: list[int] = field(default_factory=list)
    lend_to: str = ""
    lent: int = 0
    interruptions: int = 0
    changes: list[Event] = field(default_factory=list)
    """Of links that its steps feel."""
    linked: LinkedRollouts | None = None
    linked_ns: int = 0
    """What links leave it now, and since when; None: they never changed."""

    def advance(self, until_ns: int) -> Iterable[Event]:
        return self.loop.advance(until_ns)

    def on(self, event: Event) -> Iterable[Event]:
        now, gone = event.time_ns, list[int]()
        if event.kind == FAULT:
            gone = [node for node in self.nodes if not self.devices.up[node]]
            self.interruptions += bool(gone)
        elif event.kind == LEND:
            gone = self.nodes[len(self.nodes) - int(event.about) :]
            self.lent += len(gone)
        elif event.kind == LINKS:
            self.linked, self.linked_ns = event.about, now
            self.loop.relink(event.about.priced, now)
            return ()
        for node in gone:
            self.nodes.remove(node)
            self.devices.give_node(node, now)
        if event.kind == OFFER:
            self.lent = 0
        more = self.devices.take_nodes(self.name, self.wanted - self.lent - len(self.nodes), now)
        self.nodes += more
        if event.kind == OFFER and self.lend_to:
            self.lent = self.wanted - len(self.nodes)
        if gone or more:
            self.loop.run_on(self.loop.train_group, len(self.nodes) * self.devices.per_node, now)
        return [Event(now, GIVEN, MACHINE)] if gone else ()

    def link_events(self) -> list[Event]:
        return self.changes

    def short(self) -> int:
        return (self.wanted - len(self.nodes)) * self.devices.per_node

    def lender(self) -> NodeLender | None:
        return NodeLender(self.name, len(self.nodes), 0, self.lend_to) if self.lend_to and not self.loop.done else None

    # -- results -------------------------------------------------------------------------------------------------------

    def done_ns(self) -> int:
        return self.loop.end_ns

    def tables(self) -> dict[str, pa.Table]:
        rows = [one._asdict() for one in self.loop.stretches]
        return {"stages": pa.Table.from_pylist(rows)} if rows else {}

    def figures(self, horizon_ns: int) -> dict[str, Any]:
        loop, spec = self.loop, self.loop.priced.spec
        updates = sum(tenant.done[SEND] for tenant in loop.tenants)
        return {
            "updates": updates,
            "updates_asked": spec.steps * spec.tenants,
            "updates_per_h": updates / horizon_ns * 3.6e12,
            "samples": loop.samples_done,
            "tokens": loop.done_steps,
            "lost_tokens": loop.lost_steps,
            "interruptions": self.interruptions,
            "goodput_tokens_per_s": loop.done_steps / horizon_ns * 1e9,
        }

    def parts_ns(self, horizon_ns: int) -> dict[str, int]:
        loop = self.loop
        for replica in loop.replicas:
            replica.advance(max(horizon_ns, replica.at_ns))
        ns = loop.device_ns()
        useful = ns["make"] - ns["redone"] + ns["train"]
        used = {"useful": round(useful), "redo": round(ns["redone"]), "starting": round(ns["set_up"])}
        return used | {"idle": self.devices.device_ns(self.name, horizon_ns) - sum(used.values())}
