"""Replicas that make samples: all samples of a replica advance together, a step at a time.

A step with k samples takes `step_ns[k]`, and longer if only a part of the devices is available. So all samples of a
replica advance at one rate, and a clock per replica counts the steps that each has made.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from etude.kernels.arrays import F64

USES: Final = ("make", "train", "set_up", "idle")


class Sample(NamedTuple):
    tenant: int
    step: int
    stage: str
    number: int
    turn: int


@dataclass(slots=True)
class RolloutReplica:
    group: str
    devices: int
    step_ns: dict[str, F64]
    """Step times by stage."""
    at_once: int
    speed: float = 1.0
    """Fraction of its devices that it has; 0: none."""
    trains: bool = False
    """Whether an update uses its devices."""
    ready_ns: int = 0
    """Time until which it pauses."""
    at_ns: int = 0
    clock: float = 0.0
    """Steps made since the replica was last empty."""
    heap: list[tuple[float, Sample]] = field(default_factory=list)
    version: int = 0
    steps_made: float = 0.0
    """Steps summed over all samples."""
    used_ns: dict[str, float] = field(default_factory=lambda: dict.fromkeys(USES, 0.0))
    """Device time by use."""

    @property
    def free(self) -> int:
        """Number of samples that it could take."""
        return self.at_once - len(self.heap) if self.speed > 0 and not self.trains else 0

    def next_step_ns(self, stage: str) -> float:
        """Time of a step with one more sample."""
        return float(self.step_ns[stage][len(self.heap) + 1]) / self.speed

    def rate(self) -> float:
        """Steps per nanosecond, from `ready_ns` on."""
        if not self.heap or self.speed <= 0 or self.trains:
            return 0.0
        return self.speed / float(self.step_ns[self.heap[0][1].stage][len(self.heap)])

    def advance(self, now: int) -> None:
        begins = min(max(self.ready_ns, self.at_ns), now)
        moved = (now - begins) * self.rate()
        self.clock += moved
        self.steps_made += moved * len(self.heap)
        if self.trains:
            self.used_ns["train"] += (now - self.at_ns) * self.devices * (self.speed > 0)
        else:
            self.used_ns["set_up"] += (begins - self.at_ns) * self.devices * self.speed
            self.used_ns["make" if self.heap else "idle"] += (now - begins) * self.devices * self.speed
        self.at_ns = now

    def add(self, sample: Sample, steps: float) -> None:
        if not self.heap:
            self.clock = 0.0  # rounding errors do not accumulate
        heapq.heappush(self.heap, (self.clock + steps, sample))

    def due(self) -> list[Sample]:
        """Removes and returns the samples whose turn is over."""
        found = []
        while self.heap and self.heap[0][0] <= self.clock + 1e-6:
            found.append(heapq.heappop(self.heap)[1])
        return found

    def next_ns(self) -> int | None:
        rate = self.rate()
        if rate <= 0:
            return None
        return max(self.at_ns, self.ready_ns) + max(int(np.ceil((self.heap[0][0] - self.clock) / rate)), 0)

    def emptied(self) -> list[tuple[float, Sample]]:
        """Removes and returns its samples, with the steps that each still needed."""
        gone = [(at - self.clock, sample) for at, sample in sorted(self.heap, key=lambda one: one[1])]
        self.heap = []
        return gone
