"""Moments of a world written out as jobs: a file for each kind of workload, with one function `window`.

    found = window_of(world, "pretrain", WindowRequest(at_ns=3 * 3600 * 10**9, steps=2))
    found.job, found.system              # what the simulator runs
    found.world_ns, found.node_level_ns() # the time of the stretch in the world, and node by node

The world stands at the moment when `window` is called, or LEAD_NS of the file before it, and is run on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from etude.base.errors import UsageError
from etude.kernels.arrays import F64
from etude.machine.system import System
from etude.model.job import Job
from etude.run.simulate import Simulated, simulate
from etude.world.build import RunningWorld, world_of
from etude.world.scenario import Scenario, WorkloadSpec

NO_NODES: Final = {
    "jobs": "jobs of a file are known by their durations alone",
    "federate": "its clients are known by their rates alone",
}
"""Kinds of workloads that have no node level, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRequest:
    """Which moment, and how much from there."""

    at_ns: int
    steps: int = 0
    """Steps of training; 0: one."""
    for_ns: int = 0
    """How long passes may start; 0: a second."""
    replica: int = -1
    """Replica whose passes are written; -1: all."""
    role: str = ""
    """Model of a workflow, by its role."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobWindow:
    """A stretch of a workload as a job, and how the simulator is to run it."""

    job: Job
    system: System
    world_ns: int
    """What the stretch takes in the world."""
    start_ns: int
    """When it begins there."""
    counts: Mapping[str, Any]
    """What is in it: `steps`, or `passes`, `replicas` and `requests`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the simulation."""
    notes: tuple[str, ...] = ()
    pass_ns: Callable[[Simulated], tuple[F64, F64]] | None = None
    """Times of each pass, or of each group of devices, in the world and in a run of the job; None: of training."""

    def simulated(self) -> Simulated:
        return simulate(self.job, self.system, **self.options)

    def given(self) -> dict[str, Any]:
        """The options by the names of the command line."""
        ranks, links = self.options.get("slow_ranks", {}), self.options.get("slow_links", {})
        found = {
            "slow-rank": [f"{rank}={factor!r}" for rank, factor in ranks.items()],
            "slow-link": [f"{a}-{b}={factor!r}" for (a, b), factor in links.items()],
        }
        if overlap := self.options.get("overlap"):
            found["overlap"] = [f"compute={overlap.compute!r}"]
        if remote := self.options.get("remote_memory"):
            found["remote-memory"] = [f"bandwidth={remote.bytes_per_s!r}B/s"]
        return {name: texts for name, texts in found.items() if texts} | self._times()

    def _times(self) -> dict[str, str]:
        return {"collective-times": "recorded"} if "collective_times" in self.options else {}


def window_of(scenario: Scenario, name: str, wanted: WindowRequest) -> JobWindow:
    """Runs a scenario up to a moment, and writes what a workload does there. Raises UsageError if it does nothing that
    has nodes."""
    spec = workload_spec(scenario, name)
    where = f"{scenario.where}: workloads: {name}"
    if not find_spec(f"etude.world.windows.{spec.kind}"):
        why = NO_NODES.get(spec.kind, f"`{spec.kind}` has no nodes")
        raise UsageError(f"cannot be written node by node: {why}", where=where, hint="train, serve, workflow, images")
    if scenario.horizon_ns and wanted.at_ns >= scenario.horizon_ns:
        raise UsageError("the moment is not before the horizon", where=where, hint="an earlier --at")
    module = import_module(f"etude.world.windows.{spec.kind}")
    world = world_of(scenario)
    until_ns = wanted.at_ns - getattr(module, "LEAD_NS", 0)
    if until_ns > 0:
        world.clock.run(until_ns)
    make: Callable[[RunningWorld, WorkloadSpec, WindowRequest, str], JobWindow] = module.window
    return make(world, spec, wanted, where)


def workload_spec(scenario: Scenario, name: str) -> WorkloadSpec:
    """A workload of a scenario by its name. Raises UsageError if there is none."""
    found = [one for one in scenario.workloads if one.name == name]
    if not found:
        known = ", ".join(one.name for one in scenario.workloads)
        raise UsageError(f"there is no workload `{name}`", where=scenario.where, hint=f"known: {known}")
    return found[0]
