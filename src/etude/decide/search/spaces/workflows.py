"""Patterns of several models: every pattern with every assignment of models to its roles.

search: workflows
patterns: [single, cascade, router]      # of the library, or files: patterns/*.yaml
models:                                  # what a million tokens cost, in and out
  llama3-8b: {input: 0.05, output: 0.08}
  llama3-70b: {tp: 4, input: 0.59, output: 0.79}
system: dgx-h100
score: [latency, cost]                   # or p99, label
limits: {slow: latency <= 4}             # expressions over scores
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import figure, read, text, usage_errors
from etude.base.shapes import names_in
from etude.decide.search.found import Found
from etude.decide.search.request import PARALLEL, SearchRequest, SpaceFile
from etude.decide.search.solver import ALL, Answer, CandidateSpace, Trials
from etude.decide.search.study_space import LimitsOfRows
from etude.decide.study import evaluate
from etude.decide.study.space import Space as Points
from etude.world.serve.workflow import Workflow, open_workflow

SCORES: Final = {"latency": 1, "cost": 1, "p99": 1, "label": -1}
"""1 where less is better. Means over sessions in s and in the unit of prices; labels are carried."""
PATTERNS: Final = names_in("""
    single cascade router ensemble retrieval tool decompose verify cache
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedModel:
    """A model that roles may have."""

    model: str = text("name of the catalogue, or a file; else the key")
    tp: int = figure("count", "ranks of a replica", 1)
    input: float = figure("number", "price per million input tokens", 0.0)
    output: float = figure("number", "price per million output tokens", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SessionsRun:
    """How sessions of all candidates run."""

    system: str = text("system of the models; else that of the pattern")
    sessions: int = figure("count", "sessions of each candidate; else those of the pattern", 0)
    rate: float = figure("number", "sessions per second; else that of the pattern", 0.0)
    replicas: int = figure("count", "replicas of each role", 1)
    stack: str = figure("text", "software of the engines", "vllm")


def space(given: SpaceFile, asked: SearchRequest) -> PatternSpace:
    return PatternSpace(given, asked)


def options(keys: Mapping[str, Any], method: str) -> frozenset[str]:
    return PARALLEL | {"seed"}


class PatternSpace(CandidateSpace[tuple[str, str]]):
    """Patterns, each with the models of its roles."""

    methods = ALL

    def __init__(self, given: SpaceFile, asked: SearchRequest) -> None:
        given.only("patterns", "models", "score", "limits", "system", "sessions", "rate", "replicas", "stack")
        self.asked, self.scores, self.limits = asked, _scores(given), LimitsOfRows(given)
        self.flows, self.models, self.run = _flows(given), _models(given), _run(given)
        self.sizes = {pattern: len(self.models) ** len(flow.models) for pattern, flow in self.flows.items()}
        self.listed = [
            (pattern, ",".join(names))
            for pattern, flow in self.flows.items()
            for names in product(self.models, repeat=len(flow.models))
        ]
        self.size = len(self.listed)

    def rows(self, some: Sequence[tuple[str, str]], limit: float) -> list[Answer]:
        points = Points(rows=[{"pattern": pattern, "models": models} for pattern, models in some])
        shared = {"flows": self.flows, "priced": self.models, "run": self.run, "seed": self.asked.seed}
        table = evaluate(points, scored, shared=shared, **self.asked.carrying())
        return [self.limits.answer(row) for row in table.to_pylist()]

    def found(self, trials: Trials[tuple[str, str]]) -> Found:
        if not trials.rows:
            raise self.limits.nothing()
        return trials.found(more={"patterns": self.sizes})


def scored(
    pattern: str,
    models: str,
    flows: Mapping[str, Workflow],
    priced: Mapping[str, PricedModel],
    run: _SessionsRun,
    seed: int,
) -> dict[str, float]:
    """What a pattern comes to with these models in its roles, in their order."""
    from etude.machine import open_system
    from etude.make.generate.model import open_model
    from etude.world.serve import Engine, deployed, replica_plan
    from etude.world.serve.workflow import placed_on, run_workflow, task_table, workflow_summary

    flow, names = flows[pattern], dict(zip(flows[pattern].models, models.split(","), strict=True))
    if not (named := run.system or flow.system):
        raise UsageError("no system is given", where=pattern, hint="system: dgx-h100")
    flow = replace(flow, sessions=run.sessions or flow.sessions, rate_per_s=run.rate or flow.rate_per_s)
    engine, on = Engine(), {}
    for role, name in names.items():
        network, tp = open_model(priced[name].model or name), priced[name].tp
        placed = deployed(network, replica_plan(network, tp), open_system(named), engine, stack=run.stack)
        on[role] = placed_on(placed, engine, ranks=tp, replicas=flow.models[role].replicas * run.replicas)
    ran = run_workflow(flow, on, seed=seed)
    said, cost = workflow_summary(ran), 0.0
    for call in task_table(ran).select(["on", "model", "prompt", "output", "cost"]).to_pylist():
        price = priced[names[call["on"]]] if call["model"] else PricedModel()
        cost += call["cost"] + (price.input * call["prompt"] + price.output * call["output"]) / 1e6
    return {
        "latency": said["latency_s"]["mean"],
        "p99": said["latency_s"]["p99"],
        "cost": cost / flow.sessions,
        "label": said["label"],
        "calls": said["calls"] / flow.sessions,
        "model_calls": said["model_calls"] / flow.sessions,
    }


def _scores(given: SpaceFile) -> dict[str, int]:
    asked = given.keys.get("score", ["latency", "cost"])
    names = [asked] if isinstance(asked, str) else asked
    if not isinstance(names, list) or not names or any(name not in SCORES for name in names):
        raise UsageError(f"score: {asked!r}", where=given.where, hint=f"score: [latency, cost]; {', '.join(SCORES)}")
    return {name: SCORES[name] for name in names}


def _flows(given: SpaceFile) -> dict[str, Workflow]:
    listed = given.keys.get("patterns", list(PATTERNS))
    names = [listed] if isinstance(listed, str) else listed
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UsageError(f"patterns: {listed!r}", where=given.where, hint="patterns: [single, cascade], or files")
    found: dict[str, Workflow] = {}
    for name in names:
        files = [str(path) for path in sorted(given.folder.glob(name))] if not Path(name).is_absolute() else [name]
        if not files and any(sign in name for sign in "*?["):
            raise UsageError(f"no file matches `{name}`", where=given.where)
        for path in files or [name]:
            stem = Path(path).stem
            if stem in found:
                raise UsageError(f"two patterns have the name `{stem}`", where=given.where)
            found[stem] = open_workflow(path)
            if not found[stem].models:
                raise UsageError("no `models`, so there is nothing to choose", where=path)
    return found


def _models(given: SpaceFile) -> dict[str, PricedModel]:
    said = given.keys.get("models")
    if not isinstance(said, Mapping) or not said:
        raise UsageError("no `models`", where=given.where, hint="models: {llama3-8b: {input: 0.05, output: 0.08}}")
    with usage_errors():
        return {str(name): read(PricedModel, of or {}, f"{given.where}: models: {name}") for name, of in said.items()}


def _run(given: SpaceFile) -> _SessionsRun:
    own = ("system", "sessions", "rate", "replicas", "stack")
    with usage_errors():
        return read(_SessionsRun, {key: given.keys[key] for key in own if key in given.keys}, given.where)
