"""A training job: the parameters of `etude fleet train`, on whole nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from etude.base.parameters import refuse_unread
from etude.world.devices import DevicePool
from etude.world.entities.training import training_workload
from etude.world.fleet.days.request import TrainRequest, costs_of, train_inputs
from etude.world.fleet.events import FleetEvents
from etude.world.fleet.loop import SLOWEST
from etude.world.fleet.networks import LinkedPace, read_networks
from etude.world.makers import Made, refused, request
from etude.world.scenario import Scenario, WorkloadSpec

LENT: Final = "lent:effect=preempt,at=36500d,duration=1h"
"""Faults of a job that loses nodes only as it lends them."""


def make(spec: WorkloadSpec, scenario: Scenario, devices: DevicePool, events: FleetEvents) -> Made:
    given = {"model": spec.subject, "system": scenario.machine.system, **_joined(spec.given, "checkpoint")}
    for name in ("days", "faults", "seed"):
        if name in spec.given:
            raise refused(f"`{name}` is one for all workloads", spec, scenario, "horizon, events: faults, seed")
    faults = scenario.events.faults or (LENT if spec.lend_to else "none")
    given |= {"days": scenario.horizon_ns / 86_400e9, "faults": faults}
    asked = request(TrainRequest, spec, given, scenario, "fleet train")
    inputs = train_inputs(asked)
    refuse_unread(asked)
    if any(not tier.every_ns and not tier.steps for tier in inputs.tiers):
        hint = "`etude fleet train --checkpoint remote:auto` finds it: remote:30min"
        raise refused("an interval that is searched for needs a run of its own", spec, scenario, hint)
    if inputs.retry or inputs.excluded or inputs.sweep:
        raise refused("`retry`, `exclude` and `sweep` are not read in a scenario", spec, scenario)
    costs, told = costs_of(inputs)
    made = training_workload(
        spec.name,
        costs,
        devices,
        events,
        tiers=inputs.tiers,
        recover=inputs.recover,
        recovery=inputs.recovery,
        lend_to=spec.lend_to,
    )
    made.inputs = inputs
    if scenario.events.links:
        healthy_ns = costs.healthy.step_ns
        for time_ns, system in read_networks(scenario.events.links, inputs.system):
            pace = LinkedPace(inputs, system, healthy_ns, costs_of(replace(inputs, system=system))[0].healthy.step_ns)
            if pace.whole < SLOWEST:
                hint = "a network without any bandwidth is a fault of its nodes"
                slow = f"links: from {time_ns / 1e9:g} s on a step takes {1 / pace.whole:,.0f} times as long"
                raise refused(f"{slow}; at most {1 / SLOWEST:.0f} times is modelled", spec, scenario, hint)
            made.networks.append((time_ns, pace))
    return made, (*inputs.notes, *filter(None, [told]))


def _joined(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Lists of these keys as one text."""
    return {
        key: ",".join(map(str, value)) if key in names and isinstance(value, list) else value
        for key, value in given.items()
    }
