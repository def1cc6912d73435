"""The machine: nodes that fail and are repaired, and devices that go from one workload to another.

A fault takes its nodes down, and is an event of every workload that holds devices of them. A fault of processes alone
hits the holder of a device that is drawn. A node that is down does not fail again; when it is repaired its devices are
free, and workloads that are short of devices get an offer, in the order of the scenario.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from etude.world.clock import NEVER, Entity, Event
from etude.world.devices import DevicePool
from etude.world.fleet.events import EFFECTS, FleetEvents
from etude.world.fleet.faults import Effect
from etude.world.policies import NodeLender, SharePolicy, WantedDevices, lent

MACHINE: Final = "machine"
FAULT, FAIL, REPAIR, WANTED, GIVEN = "fault", "fail", "repair", "wanted", "given"
"""Events of a machine. `wanted` is about (workload, devices), `given` about nothing: devices are free again."""
OFFER, LEND = "offer", "lend"
"""Events of a workload: devices are free; give up this many nodes."""
LINKS: Final = "links"
"""Event of a workload: from now on the network is another."""


class WorldWorkload(Entity, Protocol):
    """An entity that holds devices of a machine."""

    def short(self) -> int:
        """Devices that it wants and has not got."""
        ...

    def lender(self) -> NodeLender | None:
        """What it can give up, if it lends."""
        ...

    def link_events(self) -> list[Event]:
        """When it feels links that change."""
        ...

    def close(self) -> None:
        """The horizon is reached."""
        ...

    def done_ns(self) -> int:
        """When it was done; NEVER if it was not."""
        ...

    def tables(self) -> dict[str, pa.Table]:
        """Tables of an outcome's folder, by name."""
        ...

    def figures(self, horizon_ns: int) -> dict[str, Any]:
        """What `etude world run --json` says of it."""
        ...

    def parts_ns(self, horizon_ns: int) -> dict[str, int]:
        """Its device time by what it was used for."""
        ...

    def work_j(self, horizon_ns: int) -> float | None:
        """Its energy above that of idle devices; None if it is not known."""
        ...

    def loop_returns(self) -> int:
        """How often its compiled loop came back, if it has one."""
        ...


class PlainWorkload:
    """What most workloads have in common: they have nothing to say by themselves, want nothing and lend nothing."""

    __slots__ = ()

    def next_ns(self) -> int:
        return NEVER

    def advance(self, until_ns: int) -> Iterable[Event]:
        return ()

    def on(self, event: Event) -> Iterable[Event]:
        return ()

    def short(self) -> int:
        return 0

    def lender(self) -> NodeLender | None:
        return None

    def link_events(self) -> list[Event]:
        return []

    def close(self) -> None:
        pass

    def loop_returns(self) -> int:
        return 0

    def tables(self) -> dict[str, pa.Table]:
        return {}

    def work_j(self, horizon_ns: int) -> float | None:
        return None


@dataclass(slots=True)
class SharedMachine:
    devices: DevicePool
    events: FleetEvents
    """Faults of all nodes."""
    share: SharePolicy
    seed: int = 0
    workloads: dict[str, WorldWorkload] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    """What happened, for a reader."""
    name: str = MACHINE

    def next_ns(self) -> int:
        return NEVER

    def advance(self, until_ns: int) -> Iterable[Event]:
        return ()

    def faults(self) -> list[Event]:
        """All faults, as events from outside."""
        return [Event(at, FAULT, MACHINE, row) for row, at in enumerate(self.events.time_ns.tolist())]

    def on(self, event: Event) -> Iterable[Event]:
        now = event.time_ns
        if event.kind == FAULT:
            return self._fault(now, int(event.about))
        if event.kind == FAIL:
            return self._fail(now, *event.about)
        if event.kind == REPAIR:
            self.devices.repair(int(event.about), now)
            return self._offers(now)
        if event.kind == WANTED:
            return self._wanted(now, *event.about)
        return self._offers(now)

    def _fault(self, now: int, row: int) -> Iterable[Event]:
        effect, count = EFFECTS[self.events.effect[row]], int(self.events.nodes[row])
        struck = np.arange(int(self.events.node[row]), int(self.events.node[row]) + count)
        if effect == Effect.STORAGE:
            told = [one.name for one in self.workloads.values()]
        elif count:
            told = self.devices.holders_on(struck)
        else:
            told = self._drawn(row)
        self.log.append(
            {
                "time_s": now / 1e9,
                "kind": self.events.names[int(self.events.kind[row])],
                "effect": str(effect),
                "nodes": struck.tolist(),
                "workloads": told,
            }
        )
        found = [Event(now, FAULT, name, row) for name in told]
        if effect in (Effect.STOP, Effect.PREEMPT) and count:
            notice_ns = int(self.events.notice_ns[row]) if effect == Effect.PREEMPT else 0
            self.devices.leaving[struck] = self.devices.up[struck]
            about = struck.tolist(), int(self.events.duration_ns[row]), row if notice_ns else -1
            found.insert(0, Event(now + notice_ns, FAIL, MACHINE, about))
        return found

    def _drawn(self, row: int) -> list[str]:
        """The holder of one device, each as likely as another."""
        at = int(np.random.default_rng((self.seed, 104_729, row)).integers(self.devices.count))
        holder = int(self.devices.holder.reshape(-1)[at])
        return [] if holder < 0 else [self.devices.names[holder]]

    def _fail(self, now: int, nodes: list[int], lasting_ns: int, row: int) -> Iterable[Event]:
        """Nodes go down. After a notice, who still has devices there loses them now."""
        found = [Event(now, FAULT, name, row) for name in self.devices.holders_on(nodes)] if row >= 0 else []
        for node in nodes:
            if self.devices.up[node]:
                self.devices.fail(node, now)
                found.append(Event(now + lasting_ns, REPAIR, MACHINE, node))
        return found

    def _wanted(self, now: int, name: str, devices: int) -> Iterable[Event]:
        lenders = [one.lender() for one in self.workloads.values() if self.devices.meet(name, one.name)]
        wanted = WantedDevices(name, devices, now / 1e9)
        given = lent(self.share, wanted, [one for one in lenders if one is not None], self.devices.per_node)
        for lender, nodes in given.items():
            self.log.append({"time_s": now / 1e9, "kind": "lend", "from": lender, "to": name, "nodes": nodes})
        return [Event(now, LEND, lender, nodes) for lender, nodes in given.items()]

    def _offers(self, now: int) -> Iterable[Event]:
        """To those that are short of devices; to lenders only once the others of their region are not."""
        short = [one for one in self.workloads.values() if one.short()]
        others = [one for one in short if one.lender() is None]
        lenders = [one for one in short if one.lender() is not None]
        lenders = [one for one in lenders if not any(self.devices.meet(one.name, other.name) for other in others)]
        return [Event(now, OFFER, one.name) for one in (*others, *lenders)]
