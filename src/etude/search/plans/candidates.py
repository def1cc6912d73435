"""Every combination of the axes as a plan, or why it is none."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, NamedTuple

from etude.errors import EtudeError, UsageError
from etude.generate import Plan
from etude.generate.model import Model
from etude.search.plans.axes import SYSTEM, layers_of_stages

NOT_A_PLAN: Final = "not a plan"
SAME: Final = "same as another"
MOST: Final = 2_000_000


class Candidate(NamedTuple):
    """One combination that is a plan of its own."""

    number: int
    """In the order of the space."""
    system: str
    given: dict[str, Any]
    """Fields of the plan."""
    plan: Plan

    def text(self, *without: str) -> str:
        """Its fields as JSON, but for some: what a worker is sent, and what candidates have in common."""
        return json.dumps({k: v for k, v in self.given.items() if k not in without}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Candidates:
    found: list[Candidate]
    pruned: Counter[str]
    space: int
    first_refusal: str = ""
    """Why the first combination that is no plan is none."""


def candidates(model: Model, axes: Mapping[str, list[Any]], fixed: Mapping[str, Any], system: str) -> Candidates:
    space = math.prod(len(values) for values in axes.values())
    if space > MOST:
        raise UsageError(f"{space:,} combinations of plans", where="over", hint=f"at most {MOST:,}; leave values out")
    found: list[Candidate] = []
    seen: set[tuple[str, Plan]] = set()
    pruned: Counter[str] = Counter()
    refusal = ""
    for number, at in enumerate(_points(axes)):
        where = str(at.pop(SYSTEM, system))
        given = {**fixed, **at}
        if not _fills(given):
            pruned[NOT_A_PLAN] += 1
            continue
        try:
            given, plan = _plan(model, given, axes)
        except EtudeError as problem:
            pruned[NOT_A_PLAN] += 1
            refusal = refusal or str(problem).splitlines()[0]
            continue
        if (where, plan) in seen:
            pruned[SAME] += 1
            continue
        seen.add((where, plan))
        found.append(Candidate(number, where, given, plan))
    return Candidates(found, pruned, space, refusal)


def _points(axes: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _fills(given: Mapping[str, Any]) -> bool:
    """A quick look: do the axes fill the GPUs? What are no numbers is refused with its place later."""
    sizes = [given.get(name, 1) for name in ("tp", "cp", "pp")]
    gpus = given.get("gpus", 0)
    if not all(isinstance(n, int) and n > 0 for n in [*sizes, gpus]):
        return True
    return bool(gpus % math.prod(sizes) == 0)


def _plan(model: Model, given: dict[str, Any], axes: Mapping[str, Any]) -> tuple[dict[str, Any], Plan]:
    stages = given.pop("stages", "") if "stages" in axes else ""
    plan = Plan.from_dict(given)
    layers = layers_of_stages(stages, model, given)
    said = canonical({**given, **({"stages": layers} if layers else {})}, plan, axes)
    return said, plan if said == given else Plan.from_dict(said)


def canonical(given: Mapping[str, Any], plan: Plan, axes: Mapping[str, Any]) -> dict[str, Any]:
    """The same plan, said in one way: axes that change nothing beside the others are left out."""
    idle: list[str] = []
    if plan.pp == 1 and not plan.schedule.startswith(("roundrobin", "async")):
        idle += ["schedule", "stages"]
    idle += ["tp_chunks", "sp"] if plan.tp == 1 else []
    idle += ["cp_kind"] if plan.cp == 1 else []
    idle += ["prefetch", "reshard"] if plan.zero < 3 else []
    idle += ["dp_shard"] if plan.dp_shard == plan.replicas else []
    return {name: value for name, value in given.items() if name not in idle or name not in axes}
