"""run_scenario(scenario): the machine and its workloads on one clock, to the horizon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from etude.base.errors import UsageError
from etude.machine import System, open_system
from etude.machine.regions import open_region
from etude.world.clock import NEVER, Clock
from etude.world.devices import DevicePool
from etude.world.entities.machine import SharedMachine
from etude.world.entities.power import PowerGovernor
from etude.world.fleet.events import EFFECTS, FleetEvents, draw, is_events, read_events
from etude.world.fleet.faults import Effect, Faults, open_faults
from etude.world.makers import Made, maker
from etude.world.policies import policy
from etude.world.prices import read_prices
from etude.world.scenario import Scenario, WorkloadSpec, regions_of

ENDLESS: Final = {"train": "training", "experts": "a group of experts"}
"""Kinds of workloads that need a horizon."""


@dataclass(frozen=True, slots=True)
class RunningWorld:
    """A scenario on its clock."""

    scenario: Scenario
    system: System
    clock: Clock
    machine: SharedMachine
    governor: PowerGovernor | None
    notes: tuple[str, ...] = ()


def run_scenario(scenario: Scenario) -> RunningWorld:
    """Runs it to its horizon, or until all workloads are done. Raises UsageError."""
    world = world_of(scenario)
    world.clock.run()
    for one in world.machine.workloads.values():
        one.close()
    if scenario.horizon_ns:
        return world
    ends = max(one.done_ns() for one in world.machine.workloads.values())
    return replace(world, scenario=replace(scenario, horizon_ns=ends))


def world_of(scenario: Scenario) -> RunningWorld:
    """The world before its first event."""
    _check_end(scenario)
    regions = regions_of(scenario.machine, scenario.where)
    if scenario.events.prices:
        read_prices(scenario.events.prices, list(regions))
    for region in [scenario.events.carbon] if scenario.events.carbon else regions:
        open_region(region)
    system = open_system(scenario.machine.system)
    per_node = system.levels[0].size
    place = policy("place", scenario.policies.place or "pack")
    of = np.repeat(np.arange(len(regions)), list(regions.values())) if len(regions) > 1 else None
    devices = DevicePool(scenario.machine.nodes, per_node, place, region=of)
    events = _faults(scenario, per_node)
    machine = SharedMachine(devices, events, policy("share", scenario.policies.share or "lend"), scenario.seed)
    clock, notes = Clock(scenario.horizon_ns or NEVER), list[str]()
    for spec in scenario.workloads:
        made, told = _made(spec, scenario, devices, events)
        machine.workloads[spec.name] = made
        notes += [f"{spec.name}: {one}" for one in (*told, *_placement(spec, scenario, list(regions), devices))]
    clock.add(machine, *machine.workloads.values())
    clock.post(machine.faults(), outside=True)
    feel = [one.name for one in machine.workloads.values() if one.link_events()]
    if scenario.events.links and not feel:
        hint = "training feels them, and replicas of devices between which they are"
        raise UsageError("links: no workload feels links that change", where=scenario.where, hint=hint)
    for one in machine.workloads.values():
        events_of = one.link_events()
        for event in [event for event in events_of if not event.time_ns]:  # before any work begins
            clock.post(one.on(event))
        clock.post([event for event in events_of if event.time_ns], outside=True)
    governor = _governor(scenario, system, clock, machine) if scenario.machine.power_w else None
    return RunningWorld(scenario, system, clock, machine, governor, (*notes, *_unfelt(scenario, events, feel)))


def _check_end(scenario: Scenario) -> None:
    """Without a horizon all must come to an end by itself."""
    if scenario.horizon_ns:
        return
    hint = "horizon: 7d"
    for spec in scenario.workloads:
        if spec.kind in ENDLESS:
            where = f"{scenario.where}: workloads: {spec.name}"
            raise UsageError(f"{ENDLESS[spec.kind]} never ends by itself", where=where, hint=hint)
    for there, what in ((scenario.events.faults, "faults"), (scenario.machine.power_w, "a cap of the power")):
        if there:
            raise UsageError(f"{what} without a horizon", where=scenario.where, hint=hint)


def _made(spec: WorkloadSpec, scenario: Scenario, devices: DevicePool, events: FleetEvents) -> Made:
    """A workload; what is wrong with it says whose fault it is."""
    if spec.region:
        devices.region_of[spec.name] = list(regions_of(scenario.machine, scenario.where)).index(spec.region)
    try:
        return maker(spec.kind)(spec, scenario, devices, events)
    except UsageError as problem:
        if problem.where.startswith(scenario.where):
            raise
        where = f"{scenario.where}: workloads: {spec.name}" + (f": {problem.where}" if problem.where else "")
        raise UsageError(problem.problem, where=where, hint=problem.hint) from None


def _placement(spec: WorkloadSpec, scenario: Scenario, regions: Sequence[str], devices: DevicePool) -> list[str]:
    """What is assumed of where a workload is. Raises UsageError where it may not be in several places."""
    where, hint = f"{scenario.where}: workloads: {spec.name}", f"region: {regions[0]}" if regions else ""
    if spec.region:
        if not devices.held(spec.name):
            raise UsageError("region: it has no devices of the machine", where=where, hint="leave it out")
        return []
    if devices.region is None or not devices.held(spec.name):
        return []
    if spec.name in devices.region_of:
        return [f"assumed: in {regions[devices.region_of[spec.name]]}, the first region with enough free nodes"]
    for there, what in (
        (spec.kind == "federate", "a server"),
        ("disaggregate" in spec.given, "prompts and answers apart"),
        ("shared" in str(spec.given.get("cache", "")), "a store that replicas share"),
        ("round_trip" in spec.given, "a round trip"),
    ):
        if there:
            raise UsageError(f"{what} in several regions is not modelled", where=where, hint=hint)
    return ["assumed: its requests come from the region of the replica that answers them"]


def _governor(scenario: Scenario, system: System, clock: Clock, machine: SharedMachine) -> PowerGovernor:
    hint = "leave out `power` of the machine"
    if not system.device.power_w:
        raise UsageError(f"the power of `{system.name}` is not known", where=scenario.where, hint=hint)
    for one in machine.workloads.values():
        if one.work_j(0) is None:
            raise UsageError(f"the power of `{one.name}` is not known", where=scenario.where, hint=hint)
    rule = policy("power", scenario.policies.power or "cap-training-first")
    governor = PowerGovernor(clock, machine, scenario.machine.power_w, system.device.idle_power_w, rule)
    clock.add(governor)
    return governor


def _unfelt(scenario: Scenario, events: FleetEvents, feel: list[str]) -> list[str]:
    """Faults that some workloads do not feel, and those that feel links that change."""
    slow = (events.effect == EFFECTS.index(Effect.SLOW)).any()
    others = [spec.name for spec in scenario.workloads if spec.kind != "train"]
    alone = (events.nodes == 0) & (events.effect != EFFECTS.index(Effect.STORAGE))
    kinds = ((slow, "slow nodes"), (alone.any(), "faults of processes"))
    found = [what for there, what in kinds if there and others]
    notes = [f"{what} are felt by training alone, not by {', '.join(others)}" for what in found]
    unlinked = [spec.name for spec in scenario.workloads if spec.name not in feel] if scenario.events.links else []
    return [*notes, *([f"links that change are not felt by {', '.join(unlinked)}"] if unlinked else [])]


def _faults(scenario: Scenario, per_node: int) -> FleetEvents:
    text, nodes = scenario.events.faults, scenario.machine.nodes
    if is_events(text):
        return read_events(text, nodes=nodes)
    mix = open_faults(text) if text else Faults(name="none")
    return draw(mix, nodes=nodes, gpus_per_node=per_node, horizon_ns=scenario.horizon_ns, seed=scenario.seed)
