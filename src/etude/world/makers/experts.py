"""A serving group of experts: the parameters of `etude fleet experts`, on whole nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from etude.base.parameters import refuse_unread
from etude.world.devices import DevicePool
from etude.world.entities.experts import ExpertsWorkload
from etude.world.fleet.events import FleetEvents
from etude.world.fleet.experts.prices import ExpertPrices
from etude.world.fleet.experts.request import ExpertsRequest, experts_inputs
from etude.world.fleet.experts.run import GroupRun
from etude.world.makers import Made, refused, request
from etude.world.scenario import Scenario, WorkloadSpec

FAILS: Final = "node0@0s"
"""Says that there are failures, so that what follows them is read; when they come is said by the machine."""


def make(spec: WorkloadSpec, scenario: Scenario, devices: DevicePool, events: FleetEvents) -> Made:
    for name in ("fail", "horizon"):
        if name in spec.given:
            raise refused(f"`{name}` is one for all workloads", spec, scenario, "horizon, events: faults")
    given = {"model": spec.subject, "system": scenario.machine.system, **spec.given}
    if scenario.events.faults:
        given["fail"] = FAILS
    asked = request(ExpertsRequest, spec, given, scenario, "fleet experts")
    inputs = experts_inputs(asked)
    refuse_unread(asked)
    group = replace(inputs.group, fail="", horizon_ns=float(scenario.horizon_ns))
    prices = ExpertPrices(inputs.model, inputs.system, group.sequences, group.context, inputs.precision, inputs.check)
    run = GroupRun(prices, group, inputs.recovery, inputs.recover, inputs.ranks)
    run.replaces = False
    nodes = -(-inputs.ranks // run.node)
    got = devices.take_nodes(spec.name, nodes, 0)
    if len(got) < nodes:
        raise refused(f"needs {nodes} nodes, and {len(got)} are free", spec, scenario, "machine: nodes: more")
    run.price(run.place, run.alive)
    notes = (f"assumed {inputs.model.assumed}",) if inputs.model.assumed else ()
    return ExpertsWorkload(spec.name, run, devices, dict(enumerate(got))), notes
