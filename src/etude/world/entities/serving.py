"""A stream of requests on replicas, as `etude serve` has it, on devices of a machine.

Replicas come and go by their rule as far as devices are free. A fault of a node ends the replicas on it: their requests
go to others, and lost replicas start elsewhere, or when devices are free again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.kernels.arrays import I64
from etude.world.clock import NEVER, Event
from etude.world.devices import DevicePool
from etude.world.entities.links import LinkedReplicas
from etude.world.entities.machine import FAULT, GIVEN, LINKS, MACHINE, OFFER, WANTED, PlainWorkload
from etude.world.entities.seats import SeatedScale
from etude.world.serve import state as of
from etude.world.serve.hooks import loop_with
from etude.world.serve.requests import Requests
from etude.world.serve.results import Limits, request_table, summary
from etude.world.serve.serving import NO_LOG, Group, Ready, Served, ServingOptions, stuck

ALL: Final = ""
"""Name of the one model of a stream."""


@dataclass(slots=True)
class ServingWorkload(PlainWorkload):
    name: str
    requests: Requests
    groups: list[Group]
    engine: Any
    options: ServingOptions
    ready: Ready
    scale: SeatedScale
    limits: Limits
    devices: DevicePool
    stays: bool = False
    """Whether its replicas stay as they are once all is answered, as in a world without a horizon."""
    round_trip_ns: int = 0
    """Between its users and its replicas: answers come by so much later."""
    loop: Any = None
    returns: int = 0
    """Of the loop."""
    done: bool = False
    decided: bool = False
    """Whether the rule decided since the last moment."""
    changes: list[Event] = field(default_factory=list)
    """Of links that its passes feel."""
    linked: LinkedReplicas | None = None
    linked_ns: int = 0
    """What links leave it now, and since when; None: they never changed."""
    made_of: Any = None
    """Models and pools of its replicas, and what their costs were worked out from; None if costs were given."""

    ranges: Callable[[dict[str, Any], Served], dict[str, Any]] | None = None
    """Adds the ranges of its figures; None if costs were given."""

    def __post_init__(self) -> None:
        self.loop = loop_with(self.options.hooks)
        self.scale.start(self.ready.state, self.ready.rules)

    # -- on the clock --------------------------------------------------------------------------------------------------

    def next_ns(self) -> int:
        scale = self.scale
        least = not scale.starting and len(scale.seats) <= scale.rule.least
        over = self.done and (self.stays or least)
        return NEVER if over else scale.next_ns

    def advance(self, until_ns: int) -> Iterable[Event]:
        scale = self.scale
        self.decided = False
        while scale.next_ns <= until_ns and self.next_ns() != NEVER:
            self._run(scale.next_ns - 1)
            if self.done and self.stays:
                break
            self.decided = self.decided or scale.next_ns == scale.decide_ns
            scale.after(self.ready.state, of.PAUSED)
        self._run(until_ns)
        return [*self._told(until_ns), *self._wants(until_ns)]

    def on(self, event: Event) -> Iterable[Event]:
        state, now = self.ready.state, event.time_ns
        if event.kind == FAULT:
            down = {node for node in self.devices.nodes_of(self.name) if not self.devices.up[node]}
            self.scale.lose(state, down, now)
        elif event.kind == OFFER:
            self.scale.retry(now)
        elif event.kind == LINKS:
            self.linked, self.linked_ns = event.about, now
            self.ready = self.ready._replace(machines=event.about.machines[ALL])
        return self._told(now)

    def link_events(self) -> list[Event]:
        return self.changes

    def short(self) -> int:
        return self.scale.missing * self.scale.tp

    def _told(self, now: int) -> Iterable[Event]:
        found, scale = list[Event](), self.scale
        if scale.gave:
            found.append(Event(now, GIVEN, MACHINE))
            scale.gave = False
        return found

    def _wants(self, now: int) -> Iterable[Event]:
        """Asked once for each decision of the rule."""
        scale = self.scale
        return [Event(now, WANTED, MACHINE, (self.name, self.short()))] if self.decided and scale.missing else ()

    def _run(self, until_ns: int) -> None:
        state, rules, machines, asked = self.ready
        if self.done:
            return
        state.clock["until_ns"] = until_ns
        self.returns += 1
        while (why := self.loop(state, rules, machines, NO_LOG)) == of.ASKED:
            self.returns += 1
            asked.answer(state)
        if why == of.STUCK and not self.scale.parked:
            stuck(state)
        self.done = why == of.DONE

    # -- results -------------------------------------------------------------------------------------------------------

    def loop_returns(self) -> int:
        return self.returns

    def done_ns(self) -> int:
        return int(self.ready.state.request["finish_ns"].max())

    def tables(self) -> dict[str, pa.Table]:
        served = self.served(int(self.ready.state.clock["now_ns"][0]))
        return {} if served is None else {"requests": request_table(served)}

    def served(self, horizon_ns: int) -> Served | None:
        """What was answered by the horizon; None: nothing was."""
        state, energies = self.ready.state, tuple(g.energy for g in self.groups for _ in range(g.count))
        ended = np.flatnonzero(state.request["finish_ns"] != of.NEVER)
        if not len(ended):
            return None
        requests = self.requests if len(ended) == len(self.requests) else part_of(self.requests, ended)
        own = state._replace(request=state.request[ended])
        for name in ("first_ns", "finish_ns"):
            own.request[name] += self.round_trip_ns
        held = self.scale.held_ns(horizon_ns)
        room = int(state.replica["room"].min())
        return Served(requests, own, self.engine, room, None, energies[0], energies, held, self.scale.changes)

    def figures(self, horizon_ns: int) -> dict[str, Any]:
        served, came = self.served(horizon_ns), int((self.requests.arrival_ns < horizon_ns).sum())
        more = {
            "failures": self.scale.failures,
            "moved_requests": self.scale.moved,
            "replicas_held": len(self.scale.seats),
        }
        if served is None:
            return {"requests": came, "finished": 0} | more
        found = summary(served, limits=self.limits)
        found = found if self.ranges is None else self.ranges(found, served)
        return found | {"requests": came, "unfinished": came - found["finished"]} | more

    def parts_ns(self, horizon_ns: int) -> dict[str, int]:
        return self.scale.parts_ns(self.ready.state, horizon_ns)

    def work_j(self, horizon_ns: int) -> float | None:
        if not all(group.energy.ranks for group in self.groups):
            return None
        return float(self.ready.state.energy_nj.sum()) / 1e9


def part_of(requests: Requests, rows: I64) -> Requests:
    """Some of the requests, without what they share or wait for."""
    count = len(requests)
    own = {
        f.name: getattr(requests, f.name)[rows]
        for f in fields(requests)
        if isinstance(getattr(requests, f.name), np.ndarray)
        and len(getattr(requests, f.name)) == count
        and f.name not in ("block", "parent", "block_tokens", "block_home")
    }
    empty = np.zeros(0, np.int64)
    starts = np.zeros(len(rows) + 1, np.int64)
    return replace(
        requests,
        **own,
        block_start=starts,
        block=empty,
        parent_start=starts,
        parent=empty,
        block_tokens=empty,
        block_home=empty,
    )
