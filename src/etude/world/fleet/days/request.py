"""Days of a training job as they are asked for: `etude fleet train`, and `etude.fleet` of a model and a system."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, read_mapping, text
from etude.base.grammar import line
from etude.base.parameters import given_in, is_given, only_with, parameters_of, request_of, spelled, whole
from etude.make.generate import Plan
from etude.world.fleet.checkpoint import EVERYTHING, SaveTier, parse_checkpoints
from etude.world.fleet.costs import REPLAN, RESTART, Costs, predicted_costs
from etude.world.fleet.events import is_events
from etude.world.fleet.faults import Effect, open_faults
from etude.world.fleet.recovery import POLICIES, SPARE, Recovery, policy_of
from etude.world.fleet.retries import parse_retries
from etude.world.fleet.training import Fleet, simulate_fleet

if TYPE_CHECKING:
    from etude.cost.stacks import Stack
    from etude.machine import System
    from etude.make.generate.model import Model

MODEL_HELP: Final = "a model of the catalogue, a Hugging Face id, a YAML file, or a `config.json`"
SYSTEM_HELP: Final = "simulate there: a name of `etude systems`, or a file"
JOB, RECOVERY, PLAN, OUTPUT = "Job", "Recovery", "The plan", "Output"
NOT_OF_DAYS: Final = ("checkpoint", "steps", "samples", "join")
"""Axes of a plan that the days decide."""
MOST_DAYS: Final = 36_500
TRIES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"zero": 1},
    {"zero": 1, "recompute": "selective:norm,activation"},
    {"zero": 1, "recompute": "full"},
)
"""What is tried where a plan says nothing of sharding and recomputation, and does not fit."""
UNREAD: Final = {
    RESTART: ("regroup", "reintegrate"),
    SPARE: ("restart", "reintegrate"),
    **dict.fromkeys([name for name in POLICIES if name not in (RESTART, SPARE)], ("restart",)),
}
"""Policy -> figures of recovery that it never comes to."""


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """Days of a training job on a cluster: faults, checkpoints in tiers, and recovery."""

    model: Any = argument("noun", MODEL_HELP, like="qwen1.5-moe.yaml")
    system: Any = figure("noun", SYSTEM_HELP, "", names=("-s",), like="dgx-a100", panel="Machine")
    stack: Any = figure(
        "noun",
        "software stack: a name that `etude stacks` lists, or a YAML file",
        "",
        like="megatron-core",
        panel="Machine",
    )
    memory_check: bool = figure("flag", "refuse plans that do not fit the memory of the device", True, panel="Machine")
    plan: Any = figure("noun", "YAML file with the plan; flags override it", None, like="days.yaml", panel="Input")
    days: float = figure("number", "how long the job runs", 30.0, zero=True, panel=JOB)
    faults: str = text(
        "`llama3`, `node:mtbf=2000h,repair=4h;slow:...`, a YAML of kinds, a CSV of events; default: none. A node that "
        "is down does not fail: `mtbf` counts while it is in the job",
        like=["llama3", "slow:mtbf=30d,factor=1.5,duration=1h"],
        panel=JOB,
    )
    seed: int = figure("count", "random seed of the faults", 0, needs="faults", panel=JOB)
    price: float = figure("number", "price of a device in dollars per hour; 0: as the system says", 0.0, panel=JOB)
    checkpoint: str = text(
        "`local:5min,remote:1h`; `remote:500:async:rate=2GB/s`; `remote:auto`; default: none",
        like="remote:1h",
        panel=RECOVERY,
    )
    recover: str = figure(
        "text",
        "restart, spare, shrink, redistribute, replan, or FILE.py:name",
        RESTART,
        like=[SPARE, "shrink", REPLAN],
        needs="faults|recover=replan",
        panel=RECOVERY,
    )
    retry: str = text(
        "attempts until a restart succeeds, stage by stage: `auto:p=0.055,every=11min,tries=6;manual:p=0.125,every=1h`."
        " p: success probability of an attempt; tries=0: no limit; first=0s: the first attempt is immediate. "
        "Default: the first restart succeeds",
        like="auto:p=0.5,every=10min",
        needs="faults",
        panel=RECOVERY,
    )
    exclude: str = text(
        "nodes that are not used: `3,17-20`; spares (`--spares`) replace them", like="1", panel=RECOVERY
    )
    sweep: str | None = figure(
        "path",
        "folder of `etude qualify -o node3.json`, one for each node: those with a slow part are not used",
        None,
        panel=RECOVERY,
    )
    recovery: Recovery = part(Recovery, RECOVERY)
    axes: Plan = part(Plan, PLAN, but=NOT_OF_DAYS, later=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainInputs:
    model: Model
    system: System
    stack: Stack
    plan: Plan
    keys: Mapping[str, Any] | None
    """What the plan was read from; None: it is taken as it is."""
    where: str
    days: float
    faults: str
    tiers: tuple[SaveTier, ...]
    recover: str
    recovery: Recovery
    retry: str
    excluded: tuple[int, ...]
    sweep: Path | None
    seed: int
    check: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Days:
    """A job's days, and what was taken for them."""

    fleet: Fleet
    costs: Costs
    excluded: tuple[int, ...]
    notes: tuple[str, ...]


def train_inputs(asked: TrainRequest) -> TrainInputs:
    from etude.cost.stacks import open_stack
    from etude.machine import open_system
    from etude.make.generate.model import open_model

    model, system, stack, days = asked.model, asked.system, asked.stack, asked.days
    if not system:
        raise UsageError("no system is given", hint="--system dgx-h100; `etude systems` lists them")
    if not 0 < days < MOST_DAYS:
        raise UsageError(f"{spelled(asked, 'days')}: {days:g} days is not a valid length", hint="--days 54")
    network = open_model(model) if isinstance(model, str) else model
    machine = open_system(system) if isinstance(system, str) else system
    plan, keys, told = plan_of(asked, network, model if isinstance(model, str) else "")
    faults, recover, recovery, retry = _recovery(asked)
    excluded, sweep = numbered(asked.exclude), asked.sweep
    if not (faults or excluded or sweep or machine.device.price or is_given(asked, "price")):
        only_with(asked, "faults", "spares")
    drawn = faults and (retry or not is_events(faults))
    return TrainInputs(
        model=network, system=machine, stack=open_stack(stack or "default") if isinstance(stack, str) else stack,
        plan=plan, keys=keys, where=str(request_of(asked).given.get("plan", "plan")), days=days, faults=faults,
        tiers=parse_checkpoints(asked.checkpoint, machine.tiers), recover=recover, recovery=recovery, retry=retry,
        excluded=excluded, sweep=None if sweep is None else Path(sweep), seed=asked.seed if drawn else 0,
        check=asked.memory_check,
        notes=tuple(filter(None, (told, f"assumed {network.assumed}" if network.assumed else ""))),
    )  # fmt: skip


def _recovery(asked: TrainRequest) -> tuple[str, str, Recovery, str]:
    """Faults, policy, its figures and retries, each of which is read only where the job can come to it."""
    faults = "" if asked.faults == "none" else asked.faults
    if not faults:
        recover = asked.recover if request_of(asked).values["recover"] == REPLAN else RESTART
        only_with(asked, "faults", "detect", "restart", "regroup", "reintegrate", "eject")
        return "", recover, whole(asked.recovery), ""
    recover, retry = asked.recover, asked.retry
    policy_of(recover)
    unread = list(UNREAD.get(recover, ()))
    for name in unread:
        if is_given(asked, name):
            readers = [one for one in POLICIES if name not in UNREAD[one]]
            hint = f"{spelled(asked, 'recover')} {', '.join(readers)}"
            raise UsageError(f"{spelled(asked, name)} is not read by a job that recovers by `{recover}`", hint=hint)
    if not is_events(faults) and all(kind.effect != Effect.SLOW for kind in open_faults(faults).kinds):
        unread.append("eject")
        if is_given(asked, "eject"):
            problem = f"{spelled(asked, 'eject')} is read only with {spelled(asked, 'faults')} that make nodes slow"
            raise UsageError(problem, hint="slow:mtbf=300d,factor=1.5,duration=30min")
    if parse_retries(retry) and recover != RESTART:
        problem = f"{spelled(asked, 'retry')} applies only to restarts, but the job recovers by `{recover}`"
        raise UsageError(problem, hint="--recover restart")
    return faults, recover, whole(asked.recovery, unread), retry


class Provenance:
    """What was given, as folders say it, but for how and where a result is shown. No run reads it: all look alike."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        shown = ("out", "force", "json")
        self.given = {name: str(value) for name, value in given.items() if name not in shown}

    def __repr__(self) -> str:
        return "Provenance()"


def said_of(asked: Any) -> Provenance:
    request = request_of(asked)
    return Provenance({name: request.given[name] for name in parameters_of(request.cls) if name in request.given})


def plan_of(asked: Any, model: Model, name: str) -> tuple[Plan, Mapping[str, Any] | None, str]:
    """The plan of a file or a value with axes over it, its keys, and what is to be said of it. Of keys that say no
    precision, the last word of a model's id may."""
    from etude.make.generate.model import stored_as

    plan, axes = asked.plan, given_in(asked.axes)
    if isinstance(plan, Plan):
        made = plan.replace(**_by_field(axes)) if axes else plan
        made.refuse_unread(axes, model, lambda one: spelled(asked, one))
        return made, None, ""
    keys = {**keys_of_file(asked, axes), **axes}
    stored = "" if "precision" in keys else stored_as(name)
    if stored:
        keys["precision"] = stored
    try:
        made = Plan.from_dict(keys, str(plan or "plan"))
    except UsageError as problem:
        said = " ".join(f"{spelled(asked, one)} {_shown(value)}" for one, value in axes.items())
        where = problem.where if problem.where not in ("", "plan") else ""
        raise UsageError(problem.problem, where=" ".join(filter(None, [where, said])), hint=problem.hint) from None
    made.refuse_unread(axes, model, lambda one: spelled(asked, one))
    told = f"precision {stored}, as the model id says; --precision overrides it" if stored else ""
    return made, keys, told


def keys_of_file(asked: Any, axes: Mapping[str, Any]) -> dict[str, Any]:
    """What the file of `plan` says. One of which axes that were given leave nothing is refused."""
    keys = {} if asked.plan is None else read_mapping(asked.plan)
    if keys and keys.keys() <= axes.keys():
        over = ", ".join(spelled(asked, name) for name in keys)
        raise UsageError(f"{spelled(asked, 'plan')}: all that the file says is given", where=asked.plan, hint=over)
    return keys


def _by_field(axes: Mapping[str, Any]) -> dict[str, Any]:
    from dataclasses import fields

    from etude.base.figures import key_of

    names = {key_of(f): f.name for f in fields(Plan)}
    return {names[key]: value for key, value in axes.items()}


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def train(given: TrainInputs) -> Days:
    """The days."""
    costs, told = costs_of(given)
    slow, found = slow_nodes(given.sweep) if given.sweep is not None else (set[int](), [])
    unused = tuple(sorted({*given.excluded, *slow}))
    fleet = simulate_fleet(
        costs, days=given.days, faults=given.faults, tiers=given.tiers, recover=given.recover, recovery=given.recovery,
        seed=given.seed, excluded=unused, retry=given.retry,
    )  # fmt: skip
    return Days(fleet, costs, unused, (*given.notes, *filter(None, (told, *found, _without_copy(fleet)))))


def _without_copy(fleet: Fleet) -> str:
    """What is to be said where the job began again from step 0, because no tier held a copy that outlived a fault."""
    ran, tiers = fleet.ran, fleet.tiers
    if not ran.without_copy:
        return ""
    redone = ran.account.lost_ns["redo"] / ran.horizon_ns
    held = ", ".join(f"`{tier.name}` survive a {tier.survives} at most" for tier in tiers if tier.outlives < EVERYTHING)
    saved = f"Copies on {held}" if held else "No save was complete before" if tiers else "Nothing is saved"
    return (
        f"{ran.without_copy:,} of {ran.interruptions:,} interruptions left no copy of the state, so training began "
        f"again from step 0: {redone:.0%} of the time is work that was done again. {saved}; "
        '--checkpoint "local:10min,remote:1h" keeps copies that survive every fault'
    )


def costs_of(given: TrainInputs) -> tuple[Costs, str]:
    """Costs of the job's states, and what is to be said of its plan. Of keys that leave sharding open, those are taken
    with which the plan fits."""
    plan, told = given.plan, ""
    if given.keys is not None:
        plan, told = fitting(given.model, given.keys, given.system, given.where, check=given.check)
    return predicted_costs(given.model, plan, given.system, stack=given.stack, check=given.check), told


def fitting(
    model: Model, given: Mapping[str, Any], system: System, where: str = "plan", *, check: bool = True
) -> tuple[Plan, str]:
    """The plan, and what was added to it. Where it says nothing of sharding and recomputation and does not fit, the
    first of `TRIES` that does."""
    from etude.make.generate.train import plan_memory

    first = Plan.from_dict(dict(given), where)
    if not check or given.keys() & {"zero", "recompute", "directives"} or not system.memory_bytes:
        return first, ""
    for more in TRIES:
        plan = Plan.from_dict({**given, **more}, where)
        if max(m.peak_bytes for m in plan_memory(model, plan)) <= system.memory_bytes:
            told = " ".join(f"--{name} {value}" for name, value in more.items())
            return plan, f"the plan as given does not fit the devices; used instead: {told}" if more else ""
    return first, ""


def numbered(text: str) -> tuple[int, ...]:
    """Nodes of `3,17-20`."""
    found: set[int] = set()
    for nodes in line(text, "--exclude", "3,17-20").split(",") if text else ():
        low, high = nodes.cut("-")
        first = low.count(zero=True)
        last = first if high is None else high.count(zero=True)
        if not first <= last < first + 10**6:
            raise nodes.wrong(f"`{nodes.text}` is not a range of nodes")
        found |= set(range(first, last + 1))
    return tuple(sorted(found))


def slow_nodes(folder: str | PathLike[str]) -> tuple[set[int], list[str]]:
    """Nodes of which a part is slow against the others, by the number at the end of their names; and what was found."""
    from etude.run.qualify import qualify, read_node

    place = Path(folder)
    nodes = [read_node(path) for path in sorted(place.glob("*.json"))] if place.is_dir() else []
    if len(nodes) < 3:
        hint = "one `etude qualify -o node3.json` for each of at least three"
        raise UsageError(f"--sweep: {len(nodes)} files of nodes are too few", where=str(folder), hint=hint)
    found, notes = set(), []
    for finding in qualify(nodes[0], nodes[1:]).findings:
        number = re.search(r"(\d+)$", str(finding["node"]))
        if number is None:
            raise UsageError(f"--sweep: node `{finding['node']}` has no number", hint="etude qualify --name node3")
        found.add(int(number[1]))
        notes.append(f"{finding['node']}: {finding['part']} is {finding['slow_down']:.1%} slower; it is not used")
    return found, notes
