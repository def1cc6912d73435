"""Sessions of a workflow: the parameters of `etude serve workflow`. `models` may be a mapping of roles to models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etude.base.parameters import refuse_unread
from etude.machine import System, open_system
from etude.world.devices import DevicePool
from etude.world.entities.links import LinkedReplicas, link_changes
from etude.world.entities.seats import SeatedScale
from etude.world.entities.workflow import WorkflowWorkload
from etude.world.fleet.events import FleetEvents
from etude.world.makers import Made, refused, request
from etude.world.scenario import Scenario, WorkloadSpec
from etude.world.serve.asked.workflow import FlowServing, WorkflowInput, flow_serving
from etude.world.serve.elastic.moves import change_ns, moved_bytes
from etude.world.serve.elastic.scale import ScaleRule
from etude.world.serve.pools import Between
from etude.world.serve.serving import group_machines
from etude.world.serve.workflow.spec import open_workflow


def make(spec: WorkloadSpec, scenario: Scenario, devices: DevicePool, events: FleetEvents) -> Made:
    given = {"workflow": spec.subject, "system": scenario.machine.system, "seed": scenario.seed, **spec.given}
    if isinstance(given.get("models"), Mapping):
        given["models"] = _by_role(spec, given["models"], scenario)
    asked = request(WorkflowInput, spec, given, scenario, "serve workflow")
    serving = flow_serving(asked)
    refuse_unread(asked)
    if not serving.flow.models:
        raise refused("calls no model, so it needs no devices", spec, scenario)
    loop, on, notes = serving.ready()
    scales, between = {}, Between()
    for name, one in on.items():
        tp = serving.flow.models[name].tp
        cold = change_ns(between.set_up_ns, moved_bytes(tp, 0, tp, one.weights_bytes), between.load_bytes_per_s)
        rule = ScaleRule(most=one.replicas, least=one.replicas)
        scales[name] = SeatedScale(rule, one.replicas, cold, who=spec.name, tp=tp, devices=devices)
        for row in range(one.replicas):
            seat = devices.take_seat(spec.name, tp, 0)
            if seat is None:
                raise refused(f"{name}: {one.replicas} replicas of {tp} devices: {row} have room", spec, scenario)
            scales[name].seats[row] = seat
    made = WorkflowWorkload(spec.name, loop, scales, devices, made_of=serving)
    if scenario.events.links:
        ranks = max(role.tp for role in serving.flow.models.values())
        system = open_system(scenario.machine.system)
        made.changes += link_changes(spec.name, scenario.events.links, system, ranks, lambda one: _linked(serving, one))
    return made, notes


def _linked(serving: FlowServing, system: System) -> LinkedReplicas:
    """Its replicas while the links of their system are others."""
    on = serving.on_network(system)
    costs = {name: one.cost for name, one in on.items()}
    return LinkedReplicas(system, costs, {name: group_machines(one.groups()) for name, one in on.items()})


def _by_role(spec: WorkloadSpec, models: Mapping[str, Any], scenario: Scenario) -> str:
    """Models in the order of the workflow's roles."""
    flow = open_workflow(spec.subject)
    if set(models) != set(flow.models):
        hint = f"roles: {', '.join(flow.models)}"
        raise refused(f"models: {', '.join(models)}", spec, scenario, hint)
    return ",".join(str(models[role]) for role in flow.models)
