"""Federated rounds beside other workloads. Clients have devices of their own; where they are split, devices of the
server are those of the machine. Faults of its nodes are not felt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from etude.world.clock import NEVER, Event
from etude.world.devices import DevicePool
from etude.world.entities.machine import PlainWorkload
from etude.world.fleet.federated.rounds import FederatedRounds


@dataclass(slots=True)
class FederatedWorkload(PlainWorkload):
    name: str
    rounds: FederatedRounds
    devices: DevicePool

    def advance(self, until_ns: int) -> Iterable[Event]:
        return self.rounds.advance(until_ns)

    def done_ns(self) -> int:
        return self.rounds.now_ns if len(self.rounds.rows) == self.rounds.rounds else NEVER

    def tables(self) -> dict[str, pa.Table]:
        return self.rounds.found().tables() if self.rounds.rows else {}

    def figures(self, horizon_ns: int) -> dict[str, Any]:
        """Of rounds that have ended by the horizon."""
        found = self.rounds.found().summary() if self.rounds.rows else {"rounds": 0, "round_s": None}
        return found | {"rounds_asked": self.rounds.rounds, "model_bytes": self.rounds.rules.model_bytes}

    def parts_ns(self, horizon_ns: int) -> dict[str, int]:
        held = self.devices.device_ns(self.name, horizon_ns)
        busy = round(self.rounds.found().column("server_busy_s").sum() * 1e9) if self.rounds.rows else 0
        return {"busy": min(busy, held), "idle": held - min(busy, held)}

    def work_j(self, horizon_ns: int) -> float | None:
        return 0.0 if self.rounds.rules.split is None else None
