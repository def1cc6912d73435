"""Experts as functions: a file of `etude fleet functions`. Instances have devices of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etude.base.figures import figure
from etude.base.parameters import refuse_unread
from etude.world.devices import DevicePool
from etude.world.entities.own_devices import FunctionsWorkload
from etude.world.fleet.events import FleetEvents
from etude.world.fleet.functions.loop import function_requests
from etude.world.fleet.functions.spec import read_functions
from etude.world.makers import Made, request
from etude.world.scenario import Scenario, WorkloadSpec


@dataclass(frozen=True, kw_only=True)
class FunctionsInput:
    seed: int = figure("count", "random seed; default: that of the scenario", 0, zero=True)


def make(spec: WorkloadSpec, scenario: Scenario, devices: DevicePool, events: FleetEvents) -> Made:
    asked = request(FunctionsInput, spec, {"seed": scenario.seed, **spec.given}, scenario, "fleet functions")
    functions, seed = read_functions(Path(scenario.where).parent / spec.subject), asked.seed
    refuse_unread(asked)
    notes = ("its instances have devices of their own: faults are not felt",) if len(events) else ()
    return FunctionsWorkload(spec.name, function_requests(functions, seed=seed)), notes
