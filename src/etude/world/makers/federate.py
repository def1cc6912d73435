"""Federated rounds: the parameters of `etude federate`, of `etude federate swarm` with `share`, and of `etude federate
split` with `lora`. Devices of a split's server are those of the machine."""

from __future__ import annotations

from dataclasses import replace

from etude.base.parameters import refuse_unread
from etude.world.devices import DevicePool
from etude.world.entities.federated import FederatedWorkload
from etude.world.fleet.events import FleetEvents
from etude.world.fleet.federated.request import ROUNDS, asked_rounds
from etude.world.makers import Made, refused, request
from etude.world.scenario import Scenario, WorkloadSpec


def make(spec: WorkloadSpec, scenario: Scenario, devices: DevicePool, events: FleetEvents) -> Made:
    kind = "split" if "lora" in spec.given else "swarm" if "share" in spec.given else "server"
    given = {"model": spec.subject, **spec.given}
    if "clients" in given:
        given["clients"] = str(given["clients"])
    if "server_system" in given or "seed" in given:
        name = "seed" if "seed" in given else "server_system"
        raise refused(f"`{name}` is one for all workloads", spec, scenario, "machine: system, seed")
    if kind == "split":
        given["server_system"] = scenario.machine.system
    cls, inputs_of, _ = ROUNDS[kind]
    asked = request(cls, spec, given, scenario, f"federate {kind}".removesuffix(" server"))
    inputs = replace(inputs_of(asked), seed=scenario.seed)
    refuse_unread(asked)
    for have in range(inputs.cut.devices if inputs.cut else 0):
        if devices.take_seat(spec.name, 1, 0) is None:
            raise refused(f"its server needs more than {have} devices", spec, scenario, "machine: nodes: more")
    notes = [f"assumed {inputs.model.assumed}"] if inputs.model.assumed else []
    notes += ["faults of its nodes are not felt"] if len(events) and inputs.cut else []
    return FederatedWorkload(spec.name, asked_rounds(inputs), devices), tuple(notes)
