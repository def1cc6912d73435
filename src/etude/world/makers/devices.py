"""Calls of workflows on devices of several kinds: the parameters of `etude serve devices`, with one way to place them.
The devices are those of its file, beside the machine."""

from __future__ import annotations

from pathlib import Path

from etude.base.parameters import refuse_unread
from etude.world.devices import DevicePool
from etude.world.entities.own_devices import PlacedWorkload
from etude.world.fleet.events import FleetEvents
from etude.world.makers import Made, refused, request
from etude.world.scenario import Scenario, WorkloadSpec
from etude.world.serve.asked.devices import DevicesInput, placing


def make(spec: WorkloadSpec, scenario: Scenario, devices: DevicePool, events: FleetEvents) -> Made:
    file = str(Path(scenario.where).parent / spec.subject)
    given = {"seed": scenario.seed, **spec.given, "devices": file}
    if not given.get("workflow"):
        raise refused("places calls of no workflow", spec, scenario, "workflow: flow.yaml")
    if not isinstance(given.get("place"), str) or "," in given["place"]:
        raise refused("`place`: one way to place calls", spec, scenario, "place: heft")
    asked = request(DevicesInput, spec, given, scenario, "serve devices")
    serving = placing(asked)
    refuse_unread(asked)
    notes = ("its devices are its own: faults are not felt",) if len(events) else ()
    return PlacedWorkload(spec.name, serving.ready(), serving.shown), notes
