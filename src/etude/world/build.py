"""run_scenario(scenario): the machine and its workloads on one clock, to the horizon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.grammar import line
from etude.base.parameters import YAML, ask, parameters_of, refuse_unread
from etude.machine import System, open_system
from etude.world.clock import Clock
from etude.world.devices import Devices
from etude.world.entities.machine import Machine, Workload
from etude.world.entities.power import PowerGovernor
from etude.world.entities.seats import SeatedScale
from etude.world.entities.serving import ServingWorkload, refuse_with_faults
from etude.world.entities.training import training_workload
from etude.world.fleet.events import FleetEvents, draw, is_events, read_events
from etude.world.fleet.faults import Faults, open_faults
from etude.world.policies import policy
from etude.world.scenario import Scenario, WorkloadSpec

LENT: Final = "lent:effect=preempt,at=36500d,duration=1h"
"""Faults of a job that loses nodes only as it lends them."""
RANGE: Final = "queue:2..16"
"""Requests per replica of the rule `queue` where a scenario says no more."""


@dataclass(frozen=True, slots=True)
class World:
    """A scenario on its clock."""

    scenario: Scenario
    system: System
    clock: Clock
    machine: Machine
    governor: PowerGovernor | None
    notes: tuple[str, ...] = ()


def run_scenario(scenario: Scenario) -> World:
    """Runs it to its horizon. Raises UsageError."""
    world = world_of(scenario)
    world.clock.run()
    for one in world.machine.workloads.values():
        one.close()
    return world


def world_of(scenario: Scenario) -> World:
    """The world before its first event."""
    system = open_system(scenario.machine.system)
    per_node = system.levels[0].size
    place = policy("place", scenario.policies.place)
    devices = Devices(scenario.machine.nodes, per_node, place)
    events = _faults(scenario, per_node)
    machine = Machine(devices, events, policy("share", scenario.policies.share), scenario.seed)
    clock, notes = Clock(scenario.horizon_ns), list[str]()
    for spec in scenario.workloads:
        made, told = MAKERS[spec.kind](spec, scenario, devices, events)
        machine.workloads[spec.name] = made
        notes += [f"{spec.name}: {one}" for one in told]
    clock.add(machine, *machine.workloads.values())
    clock.post(machine.faults(), outside=True)
    governor = None
    if scenario.machine.power_w:
        if not system.device.power_w:
            raise UsageError(f"the power of `{system.name}` is not known", where=scenario.where,
                             hint="leave out `power`, or give `power` of its device")  # fmt: skip
        rule = policy("power", scenario.policies.power)
        governor = PowerGovernor(clock, machine, scenario.machine.power_w, system.device.idle_power_w, rule)
        clock.add(governor)
    return World(scenario, system, clock, machine, governor, tuple(notes))


def _faults(scenario: Scenario, per_node: int) -> FleetEvents:
    text, nodes = scenario.events.faults, scenario.machine.nodes
    if is_events(text):
        return read_events(text, nodes=nodes)
    mix = open_faults(text) if text else Faults(name="none")
    return draw(mix, nodes=nodes, gpus_per_node=per_node, horizon_ns=scenario.horizon_ns, seed=scenario.seed)


def _asked(cls: type[Any], spec: WorkloadSpec, given: Mapping[str, Any], where: str, verb: str) -> Any:
    texts = {p.name for p in parameters_of(cls).values() if p.kind == "text"}
    own = {
        name: str(value) if name in texts and type(value) in (int, float) else value for name, value in given.items()
    }
    try:
        return ask(cls, own, YAML, verb=verb)
    except UsageError as problem:
        at = f"{where}: workloads: {spec.name}"
        at = f"{at}: {problem.where}" if problem.where else at
        raise UsageError(problem.problem, where=at, hint=problem.hint) from None


# -- training ----------------------------------------------------------------------------------------------------------


def _train(
    spec: WorkloadSpec, scenario: Scenario, devices: Devices, events: FleetEvents
) -> tuple[Workload, tuple[str, ...]]:
    from etude.world.fleet.days.request import TrainRequest, costs_of, train_inputs

    given = {"model": spec.subject, "system": scenario.machine.system, **_joined(spec.given, "checkpoint")}
    for name in ("days", "faults", "seed"):
        if name in spec.given:
            raise UsageError(f"`{name}` is one for all workloads", where=f"{scenario.where}: {spec.name}",
                             hint="horizon, events: faults, seed")  # fmt: skip
    faults = scenario.events.faults or (LENT if spec.lend_to else "none")
    given |= {"days": scenario.horizon_ns / 86_400e9, "faults": faults}
    asked = _asked(TrainRequest, spec, given, scenario.where, "fleet train")
    inputs = train_inputs(asked)
    refuse_unread(asked)
    if any(not tier.every_ns and not tier.steps for tier in inputs.tiers):
        raise UsageError("an interval that is searched for needs a run of its own", where=spec.name,
                         hint="`etude fleet train --checkpoint remote:auto` finds it: remote:30min")  # fmt: skip
    if inputs.retry or inputs.excluded or inputs.sweep:
        raise UsageError("`retry`, `exclude` and `sweep` are not read in a scenario", where=spec.name)
    costs, told = costs_of(inputs)
    made = training_workload(
        spec.name, costs, devices, events, tiers=inputs.tiers, recover=inputs.recover, recovery=inputs.recovery,
        lend_to=spec.lend_to,
    )  # fmt: skip
    return made, (*inputs.notes, *filter(None, [told]))


def _joined(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Lists of these keys as one text."""
    return {
        key: ",".join(map(str, value)) if key in names and isinstance(value, list) else value
        for key, value in given.items()
    }


# -- serving -----------------------------------------------------------------------------------------------------------


def _serve(
    spec: WorkloadSpec, scenario: Scenario, devices: Devices, events: FleetEvents
) -> tuple[Workload, tuple[str, ...]]:
    from etude.world.serve.asked.text import TextInput, text_serving
    from etude.world.serve.elastic.scale import EXAMPLE, ScaleRule, scale_rule
    from etude.world.serve.pools import function_of
    from etude.world.serve.serving import ServingOptions, ready_for

    given = {"model": spec.subject, "system": scenario.machine.system, **_scaled(spec, scenario)}
    asked = _asked(TextInput, spec, given, scenario.where, "serve")
    serving = text_serving(asked)
    refuse_unread(asked)
    if serving.stream.drawn or serving.replicas.draws:
        seed = int(spec.given.get("seed", scenario.seed))
        serving = replace(serving, stream=replace(serving.stream, seed=seed),
                          replicas=replace(serving.replicas, seed=seed))  # fmt: skip
    if len(serving.stream.rates) > 1:
        raise UsageError("`rate`: one rate is served in a scenario", where=spec.name, hint="rate: 4")
    if serving.replicas.between.reconfigure:
        raise UsageError("`reconfigure` is not read in a scenario", where=spec.name, hint="scale: queue")
    service = serving.replicas.open()
    stream = serving.stream.one()
    came = int((stream.arrival_ns < scenario.horizon_ns).sum())
    if not came:
        raise UsageError("no request arrives before the horizon", where=spec.name, hint="a longer horizon")
    requests, options = service.prepared(stream.first(came) if came < len(stream) else stream)
    groups, chosen, text = service.groups, ServingOptions(**options), service.between.scale
    if len(groups) > 1 and text:
        raise UsageError("one kind of replicas can be scaled in a scenario", where=spec.name)
    count, tp = sum(pool.count for pool in service.pools), service.pools[0].tp
    if len(events) and len(service.pools) == 1:
        refuse_with_faults(service.rules, chosen, groups, spec.name)
    rule = scale_rule(line(text, "scale", EXAMPLE), count, function_of) if text else ScaleRule(most=count, least=count)
    scale = SeatedScale(rule, count, _cold_ns(service), who=spec.name, tp=tp, devices=devices)
    for row in range(count):
        seat = devices.take_seat(spec.name, tp, 0)
        if seat is None:
            raise UsageError(f"{count} replicas of {tp} devices: {row} have room", where=spec.name,
                             hint="machine: nodes: more")  # fmt: skip
        scale.seats[row] = seat
    ready = ready_for(requests, service.rules, groups, chosen)
    made = ServingWorkload(spec.name, requests, groups, service.rules, chosen, ready, scale, service.limits, devices)
    return made, service.notes


def _cold_ns(service: Any) -> int:
    from etude.world.serve.elastic.moves import change_ns, moved_bytes

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
        rule = RANGE if scale in ("queue", "") else scale
        given |= {"replicas": low, "scale": f"{rule},least={low},most={high}"}
    elif scale == "queue":
        raise UsageError("`scale: queue` needs a range of replicas", where=f"{scenario.where}: {spec.name}",
                         hint="replicas: 4..32")  # fmt: skip
    return given


MAKERS: Final[dict[str, Callable[..., tuple[Workload, tuple[str, ...]]]]] = {"train": _train, "serve": _serve}
"""Kind of a workload -> what makes it."""
