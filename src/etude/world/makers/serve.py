"""A stream of requests: the parameters of `etude serve`, on seats of some devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from etude.base.grammar import line
from etude.base.parameters import refuse_unread
from etude.machine import System, open_system
from etude.world.clock import NEVER
from etude.world.devices import DevicePool
from etude.world.entities.links import LinkedReplicas, link_changes
from etude.world.entities.seats import SeatedScale
from etude.world.entities.serving import ALL, ServingWorkload
from etude.world.fleet.events import FleetEvents
from etude.world.makers import Made, refused, request
from etude.world.scenario import Scenario, WorkloadSpec, may_route
from etude.world.serve.asked.ranges import with_ranges
from etude.world.serve.asked.service import Replicas
from etude.world.serve.asked.text import TextInput, text_serving
from etude.world.serve.elastic.moves import change_ns, moved_bytes
from etude.world.serve.elastic.scale import EXAMPLE, ScaleRule, scale_rule
from etude.world.serve.pools import function_of
from etude.world.serve.serving import ServingOptions, group_machines, ready_for

RANGE: Final = "queue:2..16"
"""Requests per replica of the rule `queue` where a scenario says no more."""
MOST_LOOKS: Final = 1_000_000
"""Largest number of decisions of a rule."""


def make(spec: WorkloadSpec, scenario: Scenario, devices: DevicePool, events: FleetEvents) -> Made:
    given = {"model": spec.subject, "system": scenario.machine.system, **_scaled(spec, scenario)}
    far = line(str(given.pop("round_trip", "0s")), f"workloads: {spec.name}: round_trip", "80ms").time_ns(zero=True)
    if scenario.policies.route and may_route(spec):
        given["router"] = scenario.policies.route
    asked = request(TextInput, spec, given, scenario, "serve")
    serving = text_serving(asked)
    refuse_unread(asked)
    if serving.stream.drawn or serving.replicas.draws:
        seed = int(spec.given.get("seed", scenario.seed))
        serving = replace(
            serving, stream=replace(serving.stream, seed=seed), replicas=replace(serving.replicas, seed=seed)
        )
    if serving.replicas.pools[0].pp > 1:
        raise refused("`pp`: replicas of a scenario have one stage", spec, scenario, "pp: 1")
    if len(serving.stream.rates) > 1:
        raise refused("`rate`: one rate is served in a scenario", spec, scenario, "rate: 4")
    if serving.replicas.between.reconfigure:
        raise refused("`reconfigure` is not read in a scenario", spec, scenario, "scale: queue")
    service = serving.replicas.open()
    stream = serving.stream.one()
    came = int((stream.arrival_ns < (scenario.horizon_ns or NEVER)).sum())
    if not came:
        raise refused("no request arrives before the horizon", spec, scenario, "a longer horizon")
    requests, options = service.prepared(stream.first(came) if came < len(stream) else stream)
    groups, chosen, text = service.groups, ServingOptions(**options), service.between.scale
    if len(groups) > 1 and text:
        raise refused("one kind of replicas can be scaled in a scenario", spec, scenario)
    count, tp = sum(pool.count for pool in service.pools), service.pools[0].tp
    if len({pool.tp for pool in service.pools}) > 1:
        raise refused("replicas of different sizes", spec, scenario, "one `tp` for all")
    if len(events) and any(pool.ep > pool.tp for pool in service.pools):
        hint = "experts: MODEL, a group of which nodes may fail"
        raise refused("faults of experts that are spread over several replicas", spec, scenario, hint)
    rule = scale_rule(line(text, "scale", EXAMPLE), count, function_of) if text else ScaleRule(most=count, least=count)
    looks = int(max(scenario.horizon_ns, int(requests.arrival_ns.max()))) // rule.every_ns if text else 0
    if looks > MOST_LOOKS:
        problem = f"`scale`: the rule looks {looks:,} times, and {MOST_LOOKS:,} are too many"
        raise refused(problem, spec, scenario, "scale: 'queue:2..16,every=10s'")
    if text and rule.most * tp > devices.nodes * devices.per_node:
        there = f"the machine has {devices.nodes * devices.per_node:,}"
        raise refused(f"{rule.most:,} replicas of {tp} devices: {there}", spec, scenario, "machine: nodes: more")
    scale = SeatedScale(rule, count, _cold_ns(service), who=spec.name, tp=tp, devices=devices)
    for row in range(count):
        seat = devices.take_seat(spec.name, tp, 0)
        if seat is None:
            hint = "machine: nodes: more"
            raise refused(f"{count} replicas of {tp} devices: {row} have room", spec, scenario, hint)
        scale.seats[row] = seat
    ready = ready_for(requests, service.rules, groups, chosen)
    made = ServingWorkload(
        spec.name,
        requests,
        groups,
        service.rules,
        chosen,
        ready,
        scale,
        service.limits,
        devices,
        stays=not scenario.horizon_ns,
        round_trip_ns=far,
        made_of=(service, serving.replicas.costs),
        ranges=partial(with_ranges, service),
    )
    if scenario.events.links:
        made.changes += link_changes(
            spec.name,
            scenario.events.links,
            open_system(scenario.machine.system),
            max(tp, *(pool.ep for pool in service.pools)),
            lambda system: _linked(serving.replicas, system),
        )
    usual = text and spec.given.get("scale", "") in ("", "queue")
    assumed = (f"assumed: a rule of {RANGE}, requests per replica",) if usual else ()
    return made, (*service.notes, *serving.lengths(stream), *assumed)


def _linked(replicas: Replicas, system: System) -> LinkedReplicas:
    """The replicas while the links of their system are others."""
    service = replace(replicas, costs={**replicas.costs, "network": system}).open()
    machines = group_machines(service.groups, service.options.get("draft"))
    return LinkedReplicas(system, {ALL: service.groups[0].cost}, {ALL: machines})


def _cold_ns(service: Any) -> int:
    tp, between = service.pools[0].tp, service.between
    return change_ns(between.set_up_ns, moved_bytes(tp, 0, tp, service.placed.weights_bytes), between.load_bytes_per_s)


def _scaled(spec: WorkloadSpec, scenario: Scenario) -> dict[str, Any]:
    """Parameters of `etude serve`: `replicas: 4..32` with `scale: queue` is `queue:2..16,least=4,most=32`, and limits
    may be a mapping."""
    given = dict(spec.given)
    slo = given.get("slo")
    if isinstance(slo, Mapping):
        given["slo"] = ",".join(f"{name}={value}" for name, value in slo.items())
    text, scale = str(given.get("replicas", "")), str(given.get("scale", ""))
    if ".." in text:
        low, high = (end.count() for end in line(text, "replicas", "4..32").split(".."))
        if high < low:
            raise refused(f"`replicas: {text}` is not a range", spec, scenario, f"replicas: {high}..{low}")
        rule = RANGE if scale in ("queue", "") else scale
        given |= {"replicas": low, "scale": f"{rule},least={low},most={high}"}
    elif scale == "queue":
        raise refused("`scale: queue` needs a range of replicas", spec, scenario, "replicas: 4..32")
    return given
