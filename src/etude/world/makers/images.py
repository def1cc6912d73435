"""Images and videos: the parameters of `etude serve images`, on whole nodes."""

from __future__ import annotations

from etude.base.parameters import refuse_unread
from etude.world.devices import DevicePool
from etude.world.entities.images import ImagesWorkload
from etude.world.fleet.events import FleetEvents
from etude.world.makers import Made, refused, request
from etude.world.scenario import Scenario, WorkloadSpec
from etude.world.serve.asked.images import ServeImages, image_serving


def make(spec: WorkloadSpec, scenario: Scenario, devices: DevicePool, events: FleetEvents) -> Made:
    given = {"model": spec.subject, "system": scenario.machine.system, **spec.given}
    asked = request(ServeImages, spec, given, scenario, "serve images")
    serving = image_serving(asked)
    refuse_unread(asked)
    if len(serving.rates) > 1:
        raise refused("`rate`: one rate is served in a scenario", spec, scenario, "rate: 4")
    nodes, left = divmod(serving.gpus, devices.per_node)
    if left:
        hint = f"gpus: {(nodes + 1) * devices.per_node}"
        raise refused(f"{serving.gpus} devices are not whole nodes of {devices.per_node}", spec, scenario, hint)
    got = devices.take_nodes(spec.name, nodes, 0)
    if len(got) < nodes:
        raise refused(f"needs {nodes} nodes, and {len(got)} are free", spec, scenario, "machine: nodes: more")
    notes = ("faults of its nodes are not felt",) if len(events) else ()
    return ImagesWorkload(spec.name, serving.ready(), devices, serving.limit_s, serving), notes
