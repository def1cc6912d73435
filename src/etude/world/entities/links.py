"""Links of a machine that change, as workloads of several devices feel them: from a moment on passes and steps have
other costs. What is in progress goes on as it began."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from etude.machine import System
from etude.world.clock import Event
from etude.world.entities.machine import LINKS
from etude.world.fleet.networks import read_networks
from etude.world.fleet.rl.spec import Priced
from etude.world.serve.images.costs import ImageCosts
from etude.world.serve.machines import Machines
from etude.world.serve.steps import StepCost


class LinkedReplicas(NamedTuple):
    """What replicas run on while links have some bandwidths."""

    system: System
    costs: dict[str, StepCost]
    """Of each model, by its role."""
    machines: dict[str, Machines]


class LinkedImages(NamedTuple):
    """What images take while links have some bandwidths."""

    system: System
    costs: ImageCosts


class LinkedRollouts(NamedTuple):
    """What rollouts and updates take while links have some bandwidths."""

    system: System
    priced: Priced


def link_changes(name: str, path: str, system: System, ranks: int, made: Callable[[System], Any]) -> list[Event]:
    """Events of a workload whose passes or steps are on this many neighbouring ranks: at each time at which the levels
    between them change. None, if they never do."""
    depth, size = 0, 1
    while size < ranks and depth < len(system.levels):
        size *= system.levels[depth].size
        depth += 1

    def felt(one: System) -> tuple[float, ...]:
        return tuple(float(level.bandwidth_bytes_per_s) for level in one.levels[:depth])

    known: dict[tuple[float, ...], Any] = {}
    found, last = list[Event](), felt(system)
    for time_ns, changed in read_networks(path, system) if path and depth else ():
        if felt(changed) != last:
            last = felt(changed)
            if last not in known:
                known[last] = made(changed)
            found.append(Event(time_ns, LINKS, name, known[last]))
    return found
