"""A serving group of experts on whole nodes, as `etude fleet experts` has it.

A node that fails takes its ranks along. The others go on without them, or all start again, as the group recovers; a
free node takes the place of a lost one, and the group waits for it where it cannot go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from etude.world.clock import NEVER, Event
from etude.world.devices import DevicePool, held_ns
from etude.world.entities.machine import FAULT, GIVEN, MACHINE, OFFER, PlainWorkload
from etude.world.fleet.experts.run import NODE, PARTS, GroupRun, group_tables
from etude.world.fleet.experts.spec import Failure


@dataclass(slots=True)
class ExpertsWorkload(PlainWorkload):
    counted_late: ClassVar[bool] = True
    name: str
    group: GroupRun
    devices: DevicePool
    nodes: dict[int, int] = field(default_factory=dict)
    """Node of the group -> node of the machine."""

    def advance(self, until_ns: int) -> Iterable[Event]:
        return self.group.advance(until_ns)

    def on(self, event: Event) -> Iterable[Event]:
        now, gone, group = event.time_ns, list[int](), self.group
        if event.kind == FAULT:
            gone = [k for k, node in self.nodes.items() if not self.devices.up[node]]
        for k in gone:
            self.devices.give_node(self.nodes.pop(k), now)
            ranks = tuple(range(k * group.node, min((k + 1) * group.node, len(group.alive))))
            group.on(Event(now, "fail", self.name, Failure(now, ranks, k)))
        if gone or event.kind == OFFER:
            for k in dict.fromkeys(one.node for one in group.missing):
                for node in self.devices.take_nodes(self.name, 1, now):
                    self.nodes[k] = node
                    group.on(Event(now, NODE, self.name, k))
        return [Event(now, GIVEN, MACHINE)] if gone else ()

    def short(self) -> int:
        return len({one.node for one in self.group.missing}) * self.devices.per_node

    # -- results -------------------------------------------------------------------------------------------------------

    def done_ns(self) -> int:
        return NEVER

    def tables(self) -> dict[str, pa.Table]:
        found = group_tables(self.group.record())
        return {name: table for name, table in found.items() if name != "jobs" and len(table)}

    def figures(self, horizon_ns: int) -> dict[str, Any]:
        found = self.group.record()
        return {key: value for key, value in found.items() if key not in ("jobs", "energy_j", "cost", "kind")}

    def parts_ns(self, horizon_ns: int) -> dict[str, int]:
        """Device time by the state of the group; devices whose ranks are not in it yet start."""
        history, found = self.devices.history[self.name], dict.fromkeys((*PARTS.values(), "idle"), 0)
        for row in self.group.rows:
            held = held_ns(history, row.start_ns, row.end_ns)
            used = held_ns(history, row.start_ns, row.end_ns, most=row.ranks)
            found[PARTS[row.state]] += used
            found["idle"] += held - used
        rest = self.devices.device_ns(self.name, horizon_ns) - sum(found.values())
        return found | {"idle": found["idle"] + rest}
