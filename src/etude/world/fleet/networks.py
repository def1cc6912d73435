"""Links of a machine that change: from a time on, a level of its network has a part of its bandwidth.

time_s,infiniband
0,1
3600,0.25
7200,1
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from etude.base.errors import UsageError
from etude.machine import System
from etude.world.fleet.costs import AS_PLANNED, Config
from etude.world.fleet.sharing.supply import read_steps

if TYPE_CHECKING:
    from etude.make.generate import Plan
    from etude.world.fleet.days.request import TrainInputs

LEAST: Final = 0.001
"""Least part of a bandwidth: a network without any is a fault of its nodes."""


class LinkedPace:
    """Part of its speed that another network leaves a job: a plan on fewer nodes is predicted with it when the job is
    first in that state. Where stages or micro-batches follow a slow node, it is that of the whole plan."""

    def __init__(self, inputs: TrainInputs, system: System, usual_ns: int, healthy_ns: int) -> None:
        self.inputs, self.system, self.whole = inputs, system, usual_ns / healthy_ns
        self._known: dict[tuple[str, int], float] = {}

    def __call__(self, config: Config) -> float:
        if config.plan is None or config.absorbs > 1.0 or config.name == AS_PLANNED:
            return self.whole
        key = config.name, config.gpus
        if key not in self._known:
            self._known[key] = config.step_ns / self._step_ns(config.plan)
        return self._known[key]

    def _step_ns(self, plan: Plan) -> int:
        from etude.steps import predict

        given = self.inputs
        return predict(given.model, plan, self.system, stack=given.stack, check=False).step_time_ns


class ChangedNetwork(NamedTuple):
    """The network of a system from a time on."""

    time_ns: int
    system: System


def read_networks(path: str, system: System) -> list[ChangedNetwork]:
    """What a file says of the levels of a system. Raises UsageError."""
    if system.topology is not None:
        raise UsageError("links: a system that is a graph has no levels that change", where=path)
    names = tuple(level.name for level in system.levels)
    times, parts = read_steps(path, (), names)
    for name, values in parts.items():
        if not LEAST <= values.min() <= values.max() <= 1:
            hint = "1: all of its bandwidth; 0.25: a quarter"
            raise UsageError(f"{name}: a part of its bandwidth is {LEAST} to 1", where=path, hint=hint)
    found = []
    for row, time_ns in enumerate(times.tolist()):
        levels = tuple(
            replace(level, bandwidth_bytes_per_s=max(round(level.bandwidth_bytes_per_s * parts[level.name][row]), 1))
            if level.name in parts
            else level
            for level in system.levels
        )
        found.append(ChangedNetwork(time_ns, system.replace(levels=levels)))
    return found
