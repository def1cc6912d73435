"""A cap of the machine's power: a policy says every minute how fast training may run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from etude.world.clock import NEVER, Clock, Event
from etude.world.devices import DOWN
from etude.world.entities.machine import SharedMachine, WorldWorkload
from etude.world.entities.training import TrainingWorkload
from etude.world.policies import PowerPolicy, PowerView, speed_of

EVERY_NS: Final = 60 * 10**9


WORKING: Final = ("useful", "busy", "redo")
"""Uses of device time in which a device whose energy is not predicted draws all of its power."""


def drawn_j(workload: WorldWorkload, now_ns: int, work_w: float) -> float:
    """Its energy above that of idle devices up to a moment: predicted, or as much per device that works."""
    known = workload.work_j(now_ns)
    if known is not None:
        return known
    parts = workload.parts_ns(now_ns)
    return sum(parts.get(use, 0) for use in WORKING) / 1e9 * work_w


class PowerReading(NamedTuple):
    """Mean power of an interval."""

    time_ns: int
    """End of the interval."""
    base_w: float
    serving_w: float
    training_w: float
    speed: float
    """Of training, from now on."""

    @property
    def total_w(self) -> float:
        return self.base_w + self.serving_w + self.training_w


@dataclass(slots=True)
class PowerGovernor:
    clock: Clock
    machine: SharedMachine
    cap_w: float
    idle_w: float
    """Power of an idle device."""
    work_w: float
    """Power above that of one that works."""
    policy: PowerPolicy
    name: str = "power"
    at_ns: int = 0
    readings: list[PowerReading] = field(default_factory=list)
    used_j: dict[str, float] = field(default_factory=dict)
    """Energy above idle of each workload, up to the last reading."""

    def next_ns(self) -> int:
        return self.at_ns if self.at_ns <= self.clock.horizon_ns else NEVER

    def on(self, event: Event) -> Iterable[Event]:
        return ()

    def advance(self, until_ns: int) -> Iterable[Event]:
        if until_ns == self.at_ns:
            self._read(until_ns)
            self.at_ns += EVERY_NS
        return ()

    def _read(self, now: int) -> None:
        """What was drawn since the last reading, and how fast training runs from now on."""
        drawn = {True: 0.0, False: 0.0}
        training = [one for one in self.machine.workloads.values() if isinstance(one, TrainingWorkload)]
        for one in self.machine.workloads.values():
            self.clock.reach(one)
            joules = drawn_j(one, now, self.work_w)
            drawn[one in training] += joules - self.used_j.get(one.name, 0.0)
            self.used_j[one.name] = joules
        devices = self.machine.devices
        base_w = self.idle_w * (devices.count - devices.held(DOWN))
        over_s = EVERY_NS / 1e9 if now else 1.0
        full_w = sum(one.full_w() for one in training)
        speed = speed_of(self.policy, PowerView(self.cap_w, base_w, drawn[False] / over_s, full_w))
        for one in training:
            one.slow_down(speed)
        self.readings.append(PowerReading(now, base_w, drawn[False] / over_s, drawn[True] / over_s, speed))
