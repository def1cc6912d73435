"""Days of a training job on a cluster: what `etude.fleet` and the command simulate alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import ClusterError, UsageError
from etude.base.figures import key_of, read
from etude.base.grammar import line
from etude.cost.stacks import open_stack
from etude.make.generate import Plan
from etude.surface.api.clusters import SharedFleet as SharedFleet
from etude.surface.api.clusters import kind_of as kind_of
from etude.surface.api.clusters import loads_of as loads_of
from etude.surface.api.clusters import shared_fleet as shared_fleet
from etude.surface.api.given import keywords, refuse_unknown
from etude.surface.api.making import model_named, plan_from, plan_keys, system_named
from etude.world.fleet import Recovery, parse_checkpoints, predicted_costs, simulate_fleet

if TYPE_CHECKING:
    from etude.cost.stacks import Stack
    from etude.machine import System
    from etude.make.generate.model import Model
    from etude.world.fleet import Costs

MOST_DAYS = 36_500
TRIES: tuple[dict[str, Any], ...] = (
    {}, {"zero": 1}, {"zero": 1, "recompute": "selective:norm,activation"}, {"zero": 1, "recompute": "full"},
)  # fmt: skip
"""What is tried where a plan says nothing of sharding and recomputation, and does not fit."""


@dataclass(frozen=True, slots=True)
class Days:
    """A job's days, and what was taken for them."""

    fleet: Any
    costs: Costs
    excluded: tuple[int, ...]
    notes: tuple[str, ...]


def days_of(
    model: str | PathLike[str] | Model, system: str | PathLike[str] | System, given: Mapping[str, Any] | Plan, *,
    days: float = 30.0, faults: str = "none", checkpoint: str = "none", recover: str = "restart",
    recovery: Recovery | None = None, exclude: str = "", sweep: str | PathLike[str] | None = None, retry: str = "",
    stack: str | Stack = "default", check: bool = True, seed: int = 0, where: str = "plan",
) -> Days:  # fmt: skip
    """`given` is a plan, or its keys; of keys that leave sharding open those are taken with which it fits."""
    if not 0 < days < MOST_DAYS:
        raise UsageError(f"--days: {days:g} days is not a valid length", hint="--days 54")
    network, machine = model_named(model), system_named(system)
    tiers = parse_checkpoints(checkpoint, machine.tiers)
    wanted, told = (given, "") if isinstance(given, Plan) else fitting(network, given, machine, where, check=check)
    software = open_stack(stack or "default") if isinstance(stack, str) else stack
    costs = predicted_costs(network, wanted, machine, stack=software, check=check)
    unused, slow = excluded_nodes(exclude, sweep)
    found = simulate_fleet(
        costs, days=days, faults=faults, tiers=tiers, recover=recover, recovery=recovery or Recovery(), seed=seed,
        excluded=unused, retry=retry,
    )  # fmt: skip
    assumed = f"assumed {network.assumed}" if network.assumed else ""
    return Days(found, costs, unused, tuple(filter(None, (assumed, told, *slow))))


def fleet(
    model: str | PathLike[str] | Model, system: str | PathLike[str] | System = "", plan: Plan | None = None, *,
    check: bool = True, **options: Any,
) -> Any:  # fmt: skip
    """Days of a training job on a cluster with faults, checkpoints and recovery; `.record()` has its figures. Options
    are those of `etude fleet`: axes of the plan, `days`, `faults`, `checkpoint`, `recover` and its figures, `exclude`.
    In the place of a model a file may say what shares a cluster (`etude.fleet("pool.yaml", policy="fair")`): options
    are then `jobs`, `policy`, `switch`, `migrate`, `load`, `first` and `seed`.

    etude.fleet("llama3-8b", "dgx-h100", gpus=64, zero=1, days=7, faults="llama3", checkpoint="remote:1h")
    """
    if not system and isinstance(model, str | PathLike) and (options.get("jobs") is not None or kind_of(fspath(model))):
        refuse_unknown("fleet", options, keywords(shared_fleet))
        return shared_fleet(model, **options)
    rules, axes = keywords(Recovery), keywords(Plan)
    own = [name for name in keywords(days_of) if name not in ("recovery", "check", "where")]
    refuse_unknown("fleet", options, [*own, *axes, *rules])
    if not system:
        raise UsageError("no system is given", hint="dgx-h100; `etude systems` lists them")
    said = {name: options[name] for name in rules if name in options}
    given: Any = {name: value for name, value in options.items() if name in axes and name not in own}
    given = plan_from(plan, given) if plan is not None else plan_keys(model, given)
    recovery = recovery_of(said) if said else None
    asked = {name: value for name, value in options.items() if name in own}
    return days_of(model, system, given, recovery=recovery, check=check, **asked).fleet


def recovery_of(given: Mapping[str, Any]) -> Recovery:
    """Figures of recovery, by the names of their fields."""
    by_name = {f.name: f for f in fields(Recovery)}
    texts = {name: by_name[name].metadata["kind"] == "text" for name in given}
    keys = {key_of(by_name[name]): str(value) if texts[name] else value for name, value in given.items()}
    try:
        return read(Recovery, keys, "recovery")
    except ClusterError as problem:
        raise UsageError(problem.problem, where=problem.where, hint=problem.hint) from None


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


def excluded_nodes(text: str, sweep: str | PathLike[str] | None) -> tuple[tuple[int, ...], list[str]]:
    """Nodes by number, those given and those that a sweep finds slow; and what was found of these."""
    found: set[int] = set()
    for part in line(text, "--exclude", "3,17-20").split(",") if text else ():
        low, high = part.cut("-")
        first = low.count(zero=True)
        last = first if high is None else high.count(zero=True)
        if not first <= last < first + 10**6:
            raise part.wrong(f"`{part.text}` is not a range of nodes")
        found |= set(range(first, last + 1))
    slow, notes = slow_nodes(Path(sweep)) if sweep is not None else (set[int](), [])
    return tuple(sorted(found | slow)), notes


def slow_nodes(folder: Path) -> tuple[set[int], list[str]]:
    """Nodes of which a part is slow against the others, by the number at the end of their names."""
    from etude.run.qualify import qualify, read_node

    nodes = [read_node(path) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []
    if len(nodes) < 3:
        raise UsageError(f"--sweep: {len(nodes)} files of nodes are too few", where=str(folder),
                         hint="one `etude qualify -o node3.json` for each of at least three")  # fmt: skip
    found, notes = set(), []
    for finding in qualify(nodes[0], nodes[1:]).findings:
        number = re.search(r"(\d+)$", str(finding["node"]))
        if number is None:
            raise UsageError(f"--sweep: node `{finding['node']}` has no number", hint="etude qualify --name node3")
        found.add(int(number[1]))
        notes.append(f"{finding['node']}: {finding['part']} is {finding['slow_down']:.1%} slower; it is not used")
    return found, notes
