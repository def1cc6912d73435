"""Images and videos on whole nodes of a machine, as `etude serve images` has them.

A fault of a node ends what its devices do: requests of groups with one of them begin again, on others or as soon as
devices are there. A free node takes its place, once it has loaded the weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.world.clock import Event
from etude.world.devices import DevicePool
from etude.world.entities.links import LinkedImages
from etude.world.entities.machine import FAULT, GIVEN, LINKS, MACHINE, OFFER, PlainWorkload
from etude.world.serve.images.groups import CUT
from etude.world.serve.images.serving import ImageLoop
from etude.world.serve.requests import NO_DEADLINE
from etude.world.serve.results import spread

MISSING: Final = -1


@dataclass(slots=True)
class NodeLoad:
    """A node that loads weights."""

    place: int
    start_ns: int
    end_ns: int
    note: int


@dataclass(slots=True)
class ImagesWorkload(PlainWorkload):
    name: str
    loop: ImageLoop
    devices: DevicePool
    limit_s: float = 0.0
    """Limit of goodput where a request has no deadline; 0: none."""
    nodes: list[int] = field(default_factory=list)
    """Node of each place; places have the devices of the loop in turn."""
    cold_ns: int = 0
    """Time in which a node loads the weights."""
    made_of: Any = None
    """What its costs were worked out from; None if they were given."""
    changes: list[Event] = field(default_factory=list)
    """Of links that its steps feel."""
    linked: LinkedImages | None = None
    linked_ns: int = 0
    """What links leave it now, and since when; None: they never changed."""
    failures: int = 0
    loads: list[NodeLoad] = field(default_factory=list)

    def advance(self, until_ns: int) -> Iterable[Event]:
        return self.loop.advance(until_ns)

    def on(self, event: Event) -> Iterable[Event]:
        now, lost = event.time_ns, list[int]()
        if event.kind == LINKS:
            self.linked, self.linked_ns = event.about, now
            self.loop.relink(event.about.costs, now)
        if event.kind == FAULT:
            lost = [k for k, node in enumerate(self.nodes) if node != MISSING and not self.devices.up[node]]
        for place in lost:
            self._lose(place, now)
        if lost or event.kind == OFFER:
            self._take(now)
        return [Event(now, GIVEN, MACHINE)] if lost else ()

    def link_events(self) -> list[Event]:
        return self.changes

    def short(self) -> int:
        return self.nodes.count(MISSING) * self.devices.per_node

    def _lose(self, place: int, now: int) -> None:
        self.devices.give_node(self.nodes[place], now)
        self.nodes[place], self.failures = MISSING, self.failures + 1
        loading = [one for one in self.loads if one.place == place and one.end_ns > now]
        for one in loading:
            one.end_ns = now
            self.loop.later.drop(one.note)
        if not loading:
            self.loop.lose(self._of(place), now)

    def _take(self, now: int) -> None:
        for place in [k for k, node in enumerate(self.nodes) if node == MISSING]:
            for node in self.devices.take_nodes(self.name, 1, now):
                self.nodes[place], ends = node, now + max(self.cold_ns, 1)
                self.loads.append(NodeLoad(place, now, ends, self.loop.expect(self._of(place), ends)))

    def _of(self, place: int) -> set[int]:
        """Devices of a place."""
        each = self.devices.per_node
        return set(range(place * each, (place + 1) * each))

    def done_ns(self) -> int:
        return int(self.loop.finish_ns.max())

    def tables(self) -> dict[str, pa.Table]:
        return {"tasks": self.loop.served().tasks} if self.loop.tasks.rows else {}

    def figures(self, horizon_ns: int) -> dict[str, Any]:
        loop = self.loop
        ended = loop.finish_ns >= 0
        took = (loop.finish_ns - loop.requests.arrival_ns)[ended] / 1e9
        due = loop.requests.deadline_ns[ended]
        kept = took <= np.where(due < NO_DEADLINE, due / 1e9, self.limit_s or np.inf)
        return {
            "requests": int((loop.requests.arrival_ns < horizon_ns).sum()),
            "finished": int(ended.sum()),
            "latency_s": spread(took),
            "within_limits": float(kept.mean()) if ended.any() else None,
            "failures": self.failures,
            "begun_again": len(loop.tasks.again),
        }

    def parts_ns(self, horizon_ns: int) -> dict[str, int]:
        """Groups that work, what of that is done again, and set-ups of groups and nodes; a task in progress counts up
        to the horizon."""
        again, found = self.loop.tasks.again, dict.fromkeys(("busy", "redo", "starting"), 0)
        rows = [
            (m, task, begin, end, set_up, degree) for m, task, begin, end, set_up, _, degree, _ in self.loop.tasks.rows
        ]
        rows += [(g.members, "", g.begin, horizon_ns, g.set_up, len(g.devices)) for g in self._working(horizon_ns)]
        for members, task, begin, end, set_up, degree in rows:
            starting = min(set_up, end - begin) * degree
            work = (end - begin) * degree - starting
            lost = len(members) if task == CUT else sum(again.get(r, -1) >= end for r in members)
            redo = work * lost // len(members)
            found["starting"] += starting
            found["redo"] += redo
            found["busy"] += work - redo
        loaded = sum(min(one.end_ns, horizon_ns) - one.start_ns for one in self.loads)
        found["starting"] += loaded * self.devices.per_node
        return found | {"idle": self.devices.device_ns(self.name, horizon_ns) - sum(found.values())}

    def _working(self, horizon_ns: int) -> list[Any]:
        """Groups whose task has not ended."""
        return [group for group in self.loop.tasks.groups if group.note and group.begin < horizon_ns]
