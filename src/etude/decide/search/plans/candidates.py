"""Every combination of the axes as a plan, or why it is invalid."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, Final, NamedTuple

from etude.base.errors import EtudeError, UsageError
from etude.base.figures import key_of, value_of
from etude.decide.search.axes import Point
from etude.decide.search.plans.axes import FIELDS, STAGES, SYSTEM, layers_of_stages
from etude.make.generate import Plan
from etude.make.generate.model import Model

NOT_A_PLAN: Final = "not a plan"
SAME: Final = "same as another"
MOST: Final = 2_000_000
USUAL: Final = {key_of(f): f.default for f in fields(Plan)}
"""Field of a plan -> its default."""


class Candidate(NamedTuple):
    """One combination that is a distinct plan."""

    at: Point
    """Where it is on the axes."""
    system: str
    given: dict[str, Any]
    """Fields of the plan."""
    plan: Plan

    def text(self, changed: Mapping[str, Any] | None = None) -> str:
        """Its fields as JSON, with some changed: the input of a worker, shared by equal candidates."""
        found = {k: (changed or {}).get(k, v) for k, v in self.given.items()}
        return json.dumps({k: v for k, v in found.items() if (k, v) != ("dp_shard", 0)}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Candidates:
    found: dict[Point, Candidate]
    pruned: Counter[str]
    space: int
    same: dict[Point, Point]
    """A combination that is the same as another -> that one."""
    first_refusal: str = ""
    """Why the first invalid combination is refused."""


def candidates(model: Model, axes: Mapping[str, list[Any]], fixed: Mapping[str, Any], system: str) -> Candidates:
    space = math.prod(len(values) for values in axes.values())
    if space > MOST:
        raise UsageError(f"{space:,} combinations of plans", where="over", hint=f"at most {MOST:,}; leave values out")
    found: dict[Point, Candidate] = {}
    seen: dict[tuple[str, str], Point] = {}
    same: dict[Point, Point] = {}
    pruned: Counter[str] = Counter()
    refusal = ""
    values = Values(fixed, axes)
    for point in product(*(range(len(some)) for some in axes.values())):
        at = {name: some[i] for (name, some), i in zip(axes.items(), point, strict=True)}
        where = str(at.pop(SYSTEM, system))
        given = {**fixed, **at}
        if not _fills(given):
            pruned[NOT_A_PLAN] += 1
            continue
        try:
            said = _said(model, given, axes, values)
            key = where, repr(said)
            if key in seen:
                pruned[SAME] += 1
                same[point] = seen[key]
                continue
            plan = values.plan(said)
        except EtudeError as problem:
            pruned[NOT_A_PLAN] += 1
            refusal = refusal or str(problem).splitlines()[0]
            continue
        seen[key] = point
        found[point] = Candidate(point, where, said, plan)
    return Candidates(found, pruned, space, same, refusal)


class Values:
    """Fields of a plan as it has them; each value of an axis is read once."""

    def __init__(self, fixed: Mapping[str, Any], axes: Mapping[str, list[Any]]) -> None:
        self._known: dict[tuple[str, str], Any] = {}
        for name, values in {**{name: [value] for name, value in fixed.items()}, **axes}.items():
            if name not in FIELDS and name != SYSTEM:
                raise UsageError(f"unknown key `{name}`", where="plan", hint=f"known: {', '.join(FIELDS)}")
            for value in values if name not in (SYSTEM, STAGES) else ():
                self._read(name, value)

    def plan(self, given: Mapping[str, Any]) -> Plan:
        return Plan(**{FIELDS[name].name: self._read(name, value) for name, value in given.items()})

    def of(self, given: Mapping[str, Any], name: str) -> Any:
        """A field as the plan would have it."""
        return self._read(name, given[name]) if name in given else USUAL[name]

    def _read(self, name: str, value: Any) -> Any:
        key = name, repr(value)
        if key not in self._known:
            try:
                self._known[key] = value_of(FIELDS[name], value, f"plan: {name}")
            except EtudeError as problem:
                raise UsageError(problem.problem, where=problem.where, hint=problem.hint) from None
        return self._known[key]


def _fills(given: Mapping[str, Any]) -> bool:
    """A quick check that most combinations fail: do the axes divide the GPUs, and the batch? A plan checks it too, but
    takes much longer to make."""
    tp, cp, pp, ep, etp, micro = (given.get(name, 1) for name in ("tp", "cp", "pp", "ep", "etp", "micro_batch"))
    gpus, batch, shard = given.get("gpus", 0), given.get("global_batch", 0), given.get("dp_shard", 0)
    if not all(type(n) is int and n > 0 for n in (tp, cp, pp, ep, etp, micro, gpus)):
        return True
    if gpus % (tp * cp * pp) or gpus // pp % (ep * etp):
        return False
    if type(shard) is int and shard > 0 and given.get("zero", 0) == 0 and not given.get("directives"):
        return False
    return not (type(batch) is int and batch > 0 and batch % (gpus // (tp * cp * pp) * micro))


def _said(model: Model, given: dict[str, Any], axes: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """The fields of a combination, said in one way: axes that change nothing given the others are left out, and
    stages are numbers of layers."""
    stages = given.pop(STAGES, "") if STAGES in axes else ""
    said = canonical(given, axes, values)
    layers = layers_of_stages(stages, model, values.of(said, "pp"), values.of(said, "schedule"))
    return {**said, STAGES: layers} if layers else said


def canonical(given: Mapping[str, Any], axes: Mapping[str, Any], values: Values) -> dict[str, Any]:
    tp, pp, cp, zero, gpus, shard = (values.of(given, name) for name in ("tp", "pp", "cp", "zero", "gpus", "dp_shard"))
    idle: list[str] = []
    if pp == 1 and not values.of(given, "schedule").startswith(("roundrobin", "async")):
        idle += ["schedule"]
    idle += ["tp_chunks", "sp"] if tp == 1 else []
    idle += ["cp_kind"] if cp == 1 else []
    idle += ["prefetch", "reshard"] if zero < 3 else []
    idle += ["dp_shard"] if shard in (0, gpus // max(tp * pp, 1)) else []
    return {name: value for name, value in given.items() if name not in idle or name not in axes}
