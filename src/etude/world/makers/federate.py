"""Federated rounds: the parameters of `etude federate`, of `etude federate swarm` with `share`, and of `etude federate
split` with `lora`. Devices of a server are those of the machine: those that a split computes with, and as many as
`server_devices` says of another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
    wanted = 0
    if kind == "split":
        given["server_system"] = scenario.machine.system
    elif kind == "server":
        wanted = _devices(given.pop("server_devices", 0), spec, scenario)
    cls, inputs_of, _ = ROUNDS[kind]
    asked = request(cls, spec, given, scenario, f"federate {kind}".removesuffix(" server"))
    inputs = replace(inputs_of(asked), seed=scenario.seed)
    refuse_unread(asked)
    wanted = inputs.cut.devices if inputs.cut else wanted
    made = FederatedWorkload(spec.name, asked_rounds(inputs), devices, wanted=wanted)
    made.take(0)
    if made.short():
        raise refused(f"its server needs more than {len(made.seats)} devices", spec, scenario, "machine: nodes: more")
    notes = [f"assumed {inputs.model.assumed}"] if inputs.model.assumed else []
    if len(events) and not wanted:
        without = "a swarm has no server" if kind == "swarm" else "its server has no device of the machine"
        notes.append(f"{without}: faults are not felt" + (" (server_devices: 1)" if kind == "server" else ""))
    return made, tuple(notes)


def _devices(given: Any, spec: WorkloadSpec, scenario: Scenario) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise refused(f"server_devices: {given!r} is not a number of devices", spec, scenario, "server_devices: 1")
    return given
