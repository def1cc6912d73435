"""A scenario: a machine, workloads, events and policies, in one file.

    machine: {system: dgx-h100, nodes: 64, power: 600kW, regions: [sweden]}
    horizon: 7d
    workloads:
      pretrain: {train: llama3-70b, gpus: 256, tp: 8, pp: 4, checkpoint: ["remote:2h"], recover: spare}
      chat:     {serve: llama3-8b, replicas: 4..32, requests: azure.csv, slo: {ttft: 1s, tpot: 50ms}, scale: queue}
    events: {faults: llama3, prices: spot.csv, carbon: sweden}
    policies: {place: pack, share: lend, power: cap-training-first}

What a workload says besides its kind are the parameters of its verb: `etude fleet train`, `etude serve`, `etude serve
workflow`, `etude serve images`, `etude federate`; `jobs` of a file have nodes and a policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple

from etude.base.errors import UsageError
from etude.base.figures import figure, read, read_mapping, switch, text, usage_errors
from etude.base.grammar import line
from etude.base.parameters import is_given, request_of, spelled

LONGEST_NS: Final = 36_500 * 86_400 * 10**9
MOST_NODES: Final = 131_072
USED: Final = ("free", "down", "machine", "power", "time", "energy", "cost", "emissions", "events", "holdings")
"""Names that are used in accounts and pages."""
LENDERS: Final = ("train", "rl")
"""Kinds of workloads that may give nodes up."""
SEATED: Final = ("serve", "workflow", "federate")
"""... that may have devices of a node beside others."""
ALIKE: Final = {"federate": ("train",), "devices": ("workflow",)}
"""Parameters of a kind that are called like another kind."""
PATHS: Final = ("requests", "plan", "ops", "sweep", "clients")
"""Keys of a workload that name files, next to the scenario."""


class WorkloadKinds(NamedTuple):
    """Kinds of workloads: whether a word is one, and those that are known."""

    is_one: Callable[[str], bool]
    known: Callable[[], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    system: str = figure("text", "a name of `etude systems`, or a file")
    nodes: int = figure("count", "nodes of the machine", most=MOST_NODES)
    power_w: float = figure("power", "cap of the power of all devices; 0: none", 0.0)
    regions: tuple[str, ...] = figure(
        "several", "where it is: sweden; several have equal parts of the nodes, or as `sweden:40` says", ()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsSpec:
    faults: str = text("a mix, kinds in one line, a YAML of kinds, or a CSV of events")
    links: str = text("CSV with time_s and levels of the network: the part of their bandwidth that is left")
    prices: str = text("CSV with time_s and price: dollars for an hour of a device")
    carbon: str = text("region whose emissions count; default: that of the machine")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoliciesSpec:
    place: str = text("pack, spread, or FILE.py:name; default: pack")
    share: str = text("never, lend, or FILE.py:name; default: lend")
    power: str = text("cap-training-first, or FILE.py:name; default: cap-training-first")


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """One workload: its kind, what it is about, and its parameters."""

    name: str
    kind: str
    subject: str
    given: Mapping[str, Any]
    lend_to: str = ""
    region: str = ""
    """Where its devices are; empty: anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    machine: MachineSpec
    horizon_ns: int
    """0: until all workloads are done."""
    workloads: tuple[WorkloadSpec, ...]
    events: EventsSpec = field(default_factory=EventsSpec)
    policies: PoliciesSpec = field(default_factory=PoliciesSpec)
    seed: int = 0
    where: str = "scenario"
    said: Mapping[str, Any] = field(default_factory=dict)
    """What the file says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    machine: MachineSpec = figure("one", "the machine", of=MachineSpec)
    horizon_ns: float = figure("time", "how long; 0: until all workloads are done", 0.0)
    workloads: Any = figure("one", "what runs there, by name")
    events: EventsSpec = figure("one", "what happens to it", EventsSpec(), of=EventsSpec)
    policies: PoliciesSpec = figure("one", "who decides", PoliciesSpec(), of=PoliciesSpec)
    seed: int = figure("count", "random seed of faults and requests", 0)


def read_scenario(path: str | PathLike[str], kinds: WorkloadKinds) -> Scenario:
    """Reads a file of workloads of these kinds. Raises UsageError that says where."""
    with usage_errors():
        return scenario_of(read_mapping(path), str(path), kinds)


def scenario_of(given: Mapping[str, Any], where: str, kinds: WorkloadKinds) -> Scenario:
    whole = read(_Whole, given, where)
    workloads = whole.workloads
    if not isinstance(workloads, Mapping) or not workloads:
        raise UsageError("workloads: give at least one", where=where, hint="chat: {serve: llama3-8b, rate: 4}")
    found = tuple(_workload(str(name), one, where, kinds) for name, one in workloads.items())
    names = {one.name for one in found}
    if len(names) < len(found):
        raise UsageError("two workloads have the same name", where=where)
    if whole.horizon_ns > LONGEST_NS:
        raise UsageError("horizon: more than 36,500 days are too long", where=where, hint="horizon: 30d")
    for one in found:
        if one.lend_to and one.lend_to not in names - {one.name}:
            hint = f"known: {', '.join(sorted(names - {one.name}))}"
            raise UsageError(f"lend_to: there is no workload `{one.lend_to}`", where=f"{where}: {one.name}", hint=hint)
    _refuse_unread(whole, found, where)
    folder = Path(where).parent
    events = whole.events
    for name in ("faults", "links", "prices"):
        text = getattr(events, name)
        if text.endswith((".csv", ".parquet", ".yaml", ".yml")) and not Path(text).is_absolute():
            object.__setattr__(events, name, str(folder / text))
    return Scenario(
        machine=whole.machine,
        horizon_ns=round(whole.horizon_ns),
        workloads=found,
        events=events,
        policies=whole.policies,
        seed=whole.seed,
        where=where,
        said=dict(given),
    )


def regions_of(machine: MachineSpec, where: str) -> dict[str, int]:
    """Regions of a machine, and how many of its nodes are there; in this order. Raises UsageError."""
    names, counts = [], []
    for said in machine.regions:
        name, _, count = said.partition(":")
        names.append(name.strip())
        counts.append(line(count, f"regions: {said}", "sweden:40").count() if count else 0)
    if len(set(names)) < len(names):
        raise UsageError("regions: a region is named twice", where=where)
    if not any(counts):
        each, more = divmod(machine.nodes, max(len(names), 1))
        counts = [each + (k < more) for k in range(len(names))]
    if not all(counts) or (names and sum(counts) != machine.nodes):
        every = ", ".join(machine.regions)
        hint = "regions: [sweden, france], or [sweden:40, france:24] of 64 nodes"
        raise UsageError(f"regions: {every} are not parts of {machine.nodes} nodes", where=where, hint=hint)
    return dict(zip(names, counts, strict=True))


def _refuse_unread(whole: _Whole, workloads: Sequence[WorkloadSpec], where: str) -> None:
    """What is said and would change nothing."""
    said = whole.policies
    if said.power and not whole.machine.power_w:
        raise UsageError("policies: power: there is no cap of the power", where=where, hint="machine: {power: 600kW}")
    if said.power and not any(one.kind == "train" for one in workloads):
        raise UsageError("policies: power: there is no training that it could slow", where=where, hint="leave it out")
    if said.place and not any(one.kind in SEATED for one in workloads):
        hint = "leave it out: the workloads have whole nodes, or none"
        raise UsageError("policies: place: no workload has a part of a node", where=where, hint=hint)
    if said.share and not any(one.lend_to for one in workloads):
        raise UsageError("policies: share: no workload gives nodes up", where=where, hint="lend_to: chat")
    regions = regions_of(whole.machine, where)
    if whole.events.carbon and list(regions) not in ([], [whole.events.carbon]):
        raise UsageError("`carbon` is of another region than the machine", where=where, hint="leave one of them out")
    for one in workloads:
        if one.region and (len(regions) < 2 or one.region not in regions):
            problem, hint = f"region: the machine has no `{one.region}`", f"known: {', '.join(regions)}"
            if len(regions) < 2:
                problem, hint = "region: the machine is in one place", "machine: {regions: [sweden, france]}"
            raise UsageError(problem, where=f"{where}: workloads: {one.name}", hint=hint)


def _workload(name: str, given: Any, where: str, kinds: WorkloadKinds) -> WorkloadSpec:
    at = f"{where}: workloads: {name}"
    if not isinstance(given, Mapping):
        raise UsageError("is not a mapping", where=at, hint="chat: {serve: llama3-8b, rate: 4}")
    found = {str(key) for key, value in given.items() if isinstance(value, str | int) and kinds.is_one(str(key))}
    said = sorted(found.difference(*(ALIKE.get(kind, ()) for kind in found)))
    if len(said) != 1:
        hint = f"one of: {', '.join(kinds.known())}"
        raise UsageError(f"says {' and '.join(said) if said else 'no kind'}", where=at, hint=hint)
    kind = said[0]
    if name in USED or not re.fullmatch(r"[A-Za-z][\w-]*", name):
        hint = "letters, digits, _ and -: jobs-2"
        raise UsageError("is not a name of a workload, or one that the account uses itself", where=at, hint=hint)
    for key in ("model", "system"):
        if key in given:
            whose = "machine" if key == "system" else "workload"
            raise UsageError(f"`{key}` is that of the {whose}", where=at, hint="leave it out")
    own = {key: value for key, value in given.items() if key not in (kind, "lend_to", "region")}
    folder = Path(where).parent
    for key in PATHS:
        text = own.get(key)
        if isinstance(text, str) and text and ":" not in text and not Path(text).is_absolute():
            own[key] = str(folder / text)
    lend_to = given.get("lend_to", "")
    if lend_to and kind not in LENDERS:
        raise UsageError(f"lend_to: only {' and '.join(LENDERS)} give nodes up", where=at, hint="leave it out")
    return WorkloadSpec(name, kind, str(given[kind]), own, str(lend_to), str(given.get("region", "")))


# -- a run of one command as a scenario --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PrintedScenario:
    """Parameters of what prints itself as a scenario."""

    scenario: bool = switch("print this run as a file for `etude world run`, and stop", panel="Output")


@dataclass(frozen=True, slots=True)
class ScenarioText:
    """A scenario that is to be printed."""

    said: Mapping[str, Any]

    def record(self) -> Mapping[str, Any]:
        return self.said

    def text(self) -> str:
        import yaml

        return yaml.safe_dump(dict(self.said), sort_keys=False, width=120, default_flow_style=None).rstrip("\n")


def workload_of(
    asked: Any, kind: str, *, of: str = "model", but: Sequence[str] = (), apart: Sequence[str] = ()
) -> dict[str, Any]:
    """What a command was asked for as a workload, which is about the parameter `of`. Parameters of `but` are said
    elsewhere, those of `apart` refused."""
    for one in ("out", "force", *apart):
        if is_given(asked, one):
            raise UsageError(f"{spelled(asked, one)} cannot be combined with {spelled(asked, 'scenario')}")
    given, but = request_of(asked).given, (of, "system", "scenario", "json", *but)
    own = {key: str(one) if isinstance(one, Enum) else one for key, one in given.items() if key not in but}
    own = {key: int(one) if isinstance(one, str) and one.isdecimal() else one for key, one in own.items()}
    return {kind: str(given[of]), **own}


def only_workload(name: str, workload: Mapping[str, Any], *, system: str, nodes: int, **more: Any) -> ScenarioText:
    """A scenario of one workload, on as many nodes as it needs."""
    return ScenarioText({"machine": {"system": system, "nodes": nodes}, **more, "workloads": {name: dict(workload)}})
