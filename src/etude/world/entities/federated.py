"""Federated rounds beside other workloads.

Clients have devices of their own. Devices of the server are those of the machine: where clients are split it computes
with them, else it only runs there. A fault of one of them ends the round in progress, which begins again on the devices
that are left, or on free ones, or as soon as there are some. A swarm has no server.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from etude.world.clock import NEVER, Event
from etude.world.devices import DevicePool, DeviceSeat
from etude.world.entities.machine import FAULT, GIVEN, MACHINE, OFFER, PlainWorkload
from etude.world.fleet.federated.rounds import FederatedRounds


@dataclass(slots=True)
class FederatedWorkload(PlainWorkload):
    name: str
    rounds: FederatedRounds
    devices: DevicePool
    seats: list[DeviceSeat] = field(default_factory=list)
    """Devices of its server."""
    wanted: int = 0
    """How many it has if nothing is lost."""

    def advance(self, until_ns: int) -> Iterable[Event]:
        return self.rounds.advance(until_ns)

    def on(self, event: Event) -> Iterable[Event]:
        now, lost = event.time_ns, list[DeviceSeat]()
        if event.kind == FAULT:
            lost = [seat for seat in self.seats if not self.devices.up[seat.node]]
        for seat in lost:
            self.seats.remove(seat)
            self.devices.give(seat, now)
        if lost:
            self.rounds.lose(now)
        if lost or event.kind == OFFER:
            self.take(now)
            self.rounds.serve_with(len(self.seats), now)
        return [Event(now, GIVEN, MACHINE)] if lost else ()

    def take(self, now: int) -> None:
        """Free devices for its server, as far as it wants them."""
        while self.short():
            seat = self.devices.take_seat(self.name, 1, now)
            if seat is None:
                break
            self.seats.append(seat)

    def short(self) -> int:
        return 0 if self.rounds.done else self.wanted - len(self.seats)

    # -- results -------------------------------------------------------------------------------------------------------

    def done_ns(self) -> int:
        return self.rounds.now_ns if self.rounds.done else NEVER

    def tables(self) -> dict[str, pa.Table]:
        return self.rounds.found().tables() if self.rounds.rows else {}

    def figures(self, horizon_ns: int) -> dict[str, Any]:
        """Of rounds that have ended by the horizon."""
        rounds = self.rounds
        found = rounds.found().summary() if rounds.rows else {"rounds": 0, "round_s": None}
        asked = {"rounds_asked": rounds.rounds, "model_bytes": rounds.rules.model_bytes}
        return found | asked | {"lost_rounds": rounds.lost}

    def parts_ns(self, horizon_ns: int) -> dict[str, int]:
        held = self.devices.device_ns(self.name, horizon_ns)
        busy = min(round(self.rounds.busy_s(horizon_ns) * 1e9), held)
        redo = min(round(self.rounds.lost_busy_s * 1e9), held - busy)
        return {"busy": busy, "redo": redo, "idle": held - busy - redo}

    def work_j(self, horizon_ns: int) -> float | None:
        return 0.0 if self.rounds.split is None else None
