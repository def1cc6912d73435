"""Images and videos: the parameters of `etude serve images`, on whole nodes."""

from __future__ import annotations

from etude.base.parameters import refuse_unread
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.make.generate.train import plan_memory
from etude.world.devices import DevicePool
from etude.world.entities.images import ImagesWorkload
from etude.world.entities.links import LinkedImages, link_changes
from etude.world.fleet.events import FleetEvents
from etude.world.makers import Made, refused, request
from etude.world.scenario import Scenario, WorkloadSpec
from etude.world.serve.asked.images import ServeImages, image_serving
from etude.world.serve.elastic.moves import change_ns, moved_bytes
from etude.world.serve.images.requests import MIX
from etude.world.serve.pools import Between


def make(spec: WorkloadSpec, scenario: Scenario, devices: DevicePool, events: FleetEvents) -> Made:
    seeded = {"seed": scenario.seed} if str(spec.given.get("requests", "")).startswith(MIX) else {}
    given = {"model": spec.subject, "system": scenario.machine.system, **seeded, **spec.given}
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
    cold_ns = _cold_ns(serving.model) if len(events) else 0
    loop = serving.ready()
    made = ImagesWorkload(spec.name, loop, devices, serving.limit_s, got, cold_ns, serving)
    if scenario.events.links:
        sizes, rule = loop.requests.sizes, loop.rule
        made.changes += link_changes(
            spec.name,
            scenario.events.links,
            open_system(serving.system),
            max(rule.degrees),
            lambda system: LinkedImages(system, serving.costs_on(system, sizes, rule)),
        )
    return made, ()


def _cold_ns(model: str) -> int:
    """Time in which a device is set up and loads the weights, of which each has all."""
    between, plan = Between(), Plan.from_dict({"gpus": 1, "train": "forward"}, model)
    weights = float(plan_memory(open_model(model), plan)[0].weights)
    return change_ns(between.set_up_ns, moved_bytes(1, 0, 1, weights), between.load_bytes_per_s)
