"""Post-training: `{rl: qwen3-8b, nodes: 2, rollout: {samples: 64, tokens: 256}, train: {time: 20s}, steps: 50}`. Keys
besides `nodes` are those of `rl` in a file of `etude fleet share`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from etude.machine import open_system
from etude.world.devices import DevicePool
from etude.world.entities.links import LinkedRollouts, link_changes
from etude.world.entities.rollouts import RolloutWorkload
from etude.world.fleet.events import FleetEvents
from etude.world.fleet.rl import read_rl
from etude.world.fleet.rl.costs import priced
from etude.world.fleet.rl.run import loop_of, makings
from etude.world.fleet.rl.spec import RlSpec
from etude.world.fleet.sharing.cluster import cluster_of
from etude.world.makers import Made, refused
from etude.world.scenario import Scenario, WorkloadSpec

OWN: Final = "own"


def make(spec: WorkloadSpec, scenario: Scenario, devices: DevicePool, events: FleetEvents) -> Made:
    given: dict[str, Any] = dict(spec.given)
    nodes = given.pop("nodes", None)
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1:
        raise refused(f"nodes: {nodes!r} is not a number of nodes", spec, scenario, "nodes: 2")
    for part in ("rollout", "train", "explore"):
        if isinstance(given.get(part), Mapping):
            if "nodes" in given[part]:
                raise refused(f"{part}: nodes: all stages share the nodes of the workload", spec, scenario)
            given[part] = {**given[part], "nodes": OWN}
    where = f"{scenario.where}: workloads: {spec.name}"
    asked = read_rl({"model": spec.subject, "system": scenario.machine.system, **given}, where)
    cluster = cluster_of({"nodes": [{"name": OWN, "count": nodes, "gpus": devices.per_node}]}, where)
    got = devices.take_nodes(spec.name, nodes, 0)
    if len(got) < nodes:
        raise refused(f"needs {nodes} nodes, and {len(got)} are free", spec, scenario, "machine: nodes: more")
    loop = loop_of(cluster, asked, where, seed=scenario.seed)
    made = RolloutWorkload(spec.name, loop, devices, nodes, got, spec.lend_to)
    if scenario.events.links:
        receivers, system = loop.priced.receivers, open_system(scenario.machine.system)
        made.changes += link_changes(
            spec.name,
            scenario.events.links,
            system,
            _ranks(asked),
            lambda one: LinkedRollouts(one, priced(asked, where, receivers=receivers, on=one)),
        )
    return made, loop.priced.notes


def _ranks(asked: RlSpec) -> int:
    """Most devices between which its predicted steps send something."""
    found = [making.tp for making in makings(asked) if making.step_ns is None]
    if not asked.train.time_ns:
        found.append(int(asked.train.plan["gpus"]))
    return max(found, default=1)
