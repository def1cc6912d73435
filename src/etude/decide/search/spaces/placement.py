"""Ranks of a job on places of a system: which device each rank takes, by simulation on links.

search: placement
model: wan2.1-14b                      # or `job: folder/` of traces
layers: 2                              # that are simulated, of those of the model, which are alike; 0: all
plan: {gpus: 16, tp: 4, cp: 4, train: forward}
shardings: {tp: [2, 4, 8], cp: [2, 4, 8]}    # optional: plans that are tried, those that send least first
keep: 2                                # of them
system: tpu-v5e-4x4.yaml
network: flow                          # or links; closed forms do not see who shares a link
tries: 300                             # simulations at most, of each plan
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from etude.base.errors import EtudeError, UsageError
from etude.capture.opening import open as open_job
from etude.decide.search.crew import crew
from etude.decide.search.found import Found, Row
from etude.decide.search.placements.best import TRIES, PlacementSpace, best_placement, placement_space
from etude.decide.search.placements.bound import ExchangedBytes, needs_of
from etude.decide.search.request import PARALLEL, SearchRequest, SpaceFile
from etude.decide.search.short_models import shortened
from etude.decide.search.solver import CandidateSpace, Trials, every
from etude.machine import System, open_system
from etude.make.generate import Generated, Plan, generate
from etude.make.generate.model import Model, open_model
from etude.make.generate.train import plan_memory

NO_PLAN = "invalid plan"
MEMORY = "does not fit the memory"
BYTES = "sends more than those kept"


def space(given: SpaceFile, asked: SearchRequest) -> PlacementSpace | ShardingSpace:
    given.only("job", "model", "layers", "plan", "shardings", "keep", "system", "network", "tries")
    keys = given.keys
    if ("job" in keys) == ("model" in keys):
        hint = "job: folder/; or model: gpt2 and plan: {gpus: 8, tp: 4}"
        raise UsageError("`job` or `model` is needed, not both", where=given.where, hint=hint)
    system = open_system(given.noun("system", "system: dgx-h100, or a file"))
    how: dict[str, Any] = {"network": str(keys.get("network", "flow")), "tries": given.count("tries", TRIES, 1)}
    if "model" in keys:
        return ShardingSpace(given, asked, system, how)
    for key in ("layers", "plan", "shardings", "keep"):
        if key in keys:
            raise UsageError(f"`{key}` needs `model`", where=given.where)
    job = open_job(given.path(str(keys["job"])))
    return placement_space(job, system.for_ranks(job.world_size), **how)


def options(keys: Mapping[str, Any], method: str) -> frozenset[str]:
    return PARALLEL | {"seed"} if method == "anneal" else PARALLEL


class ShardingSpace(CandidateSpace[int]):
    """Plans of one model, each with its best placement: those whose ranks send least. What does not fit the memory is
    left out."""

    def __init__(self, given: SpaceFile, asked: SearchRequest, system: System, how: Mapping[str, Any]) -> None:
        plan, shardings = given.keys.get("plan", {}), given.keys.get("shardings", {})
        if not isinstance(plan, Mapping) or not isinstance(shardings, Mapping):
            hint = "plan: {gpus: 8, tp: 4}"
            raise UsageError("`plan` and `shardings` are keys and values", where=given.where, hint=hint)
        self.asked, self.system, self.how = asked, system, how
        model = open_model(given.noun("model", "model: llama3-8b"))
        self.made, pruned = _generated(model, plan, shardings, system, given)
        self.sent = [max_sent_bytes(needs_of(one.job)) for one in self.made]
        order = sorted(range(len(self.made)), key=lambda i: (self.sent[i], i))
        self.listed = order[: given.count("keep") or len(order)]
        left = len(order) - len(self.listed)
        self.left_out = {**pruned, BYTES: left} if left else pruned
        self.size, self.scores = len(self.listed) + sum(self.left_out.values()), {"time_ns": 1}
        self.methods = dict.fromkeys(("greedy", "all", "anneal"), every)

    def rows(self, some: Sequence[int], limit: float) -> list[Row]:
        self.placed = [self._about(i, found) for i, found in zip(some, self._each(some), strict=True)]
        return [found.best for found in self.placed]

    def _about(self, number: int, found: Found) -> Found:
        about = {"sharding": _name(self.made[number].plan), "sent_bytes": self.sent[number]}
        rows = [{**about, **row} for row in found.rows]
        return replace(found, best=rows[0], rows=rows)

    def _each(self, some: Sequence[int]) -> list[Found]:
        """The best placement of each plan: in parallel if there are several and workers are requested."""
        asked, system, made = self.asked, self.system, [self.made[i] for i in some]
        if len(made) == 1 or asked.alone:
            return [best_placement(one, system.for_ranks(one.plan.gpus), asked=asked, **self.how) for one in made]
        shared = {"made": made, "system": system, "how": {**self.how, "method": asked.method, "seed": asked.seed}}
        with crew(placed_plan, shared, asked) as workers:
            answers = workers.ask([{"number": number} for number in range(len(made))])
        return [Found(best=a["rows"][0], frontier=a["rows"][:1], **a) for a in answers]

    def found(self, trials: Trials[int]) -> Found:
        """`space` counts placements of the plans that were kept, and each plan that was not as one."""
        rows = sorted((row for one in self.placed for row in one.rows), key=lambda row: row["time_ns"])
        why = Counter(self.left_out)
        for one in self.placed:
            why.update(one.pruned)
        best = min(self.placed, key=lambda one: one.best["time_ns"])
        by_sharding = []
        for one in self.placed:
            told = {key: one.best[key] for key in ("sharding", "sent_bytes", "time_ns", "placement", "gain")}
            by_sharding.append({**told, "default_ns": one.more["default"]["time_ns"], "worst_ns": one.more["worst_ns"]})
        whole = sum(one.space for one in self.placed) + sum(self.left_out.values())
        more = {**best.more, "shardings": by_sharding}
        return trials.found(tried=len(rows), pruned=dict(why), rows=rows, space=whole, more=more)


def placed_plan(number: int, *, made: list[Generated], system: System, how: Mapping[str, Any]) -> dict[str, Any]:
    found = best_placement(made[number], system.for_ranks(made[number].plan.gpus), **how)
    return {name: getattr(found, name) for name in ("tried", "pruned", "space", "rows", "more")}


def _generated(
    model: Model, plan: Mapping[str, Any], axes: Mapping[str, Any], system: System, given: SpaceFile
) -> tuple[list[Generated], dict[str, int]]:
    """The possible plans that fit; memory is for the whole model, the job has as many layers as requested."""
    where, short = given.where, shortened(model, given.count("layers"))
    made: list[Generated] = []
    pruned: dict[str, int] = {}
    first: EtudeError | None = None
    values = [list(v) if isinstance(v, list) else [v] for v in axes.values()]
    for point in product(*values):
        try:
            this = Plan.from_dict({**plan, **dict(zip(axes, point, strict=True))}, f"{where}: plan")
            peak = max(memory.peak_bytes for memory in plan_memory(model, this))
            one = generate(short, this)
        except EtudeError as problem:
            first, pruned[NO_PLAN] = first or problem, pruned.get(NO_PLAN, 0) + 1
            continue
        if system.memory_bytes and peak > system.memory_bytes:
            pruned[MEMORY] = pruned.get(MEMORY, 0) + 1
            continue
        made.append(one)
    if not made and first is not None:
        raise first
    if not made:
        raise UsageError("no plan fits the memory", where=where)
    return made, pruned


def max_sent_bytes(needs: ExchangedBytes) -> int:
    """Bytes that the busiest rank sends, by rings: 2 (n - 1) / n of an all-reduce, n - 1 times what it adds to an
    all-gather, (n - 1) / n of a reduce-scatter or an all-to-all."""
    members = needs.member.sum(axis=1, keepdims=True)
    gather, reduce, scatter, exchange = np.split(needs.size, 4, axis=1)
    each = (members - 1) * gather + (members - 1) / np.maximum(members, 1) * (2 * reduce + scatter + exchange)
    return int((needs.sent.sum(axis=1) + (each * needs.member).sum(axis=0)).max(initial=0))


def _name(plan: Plan) -> str:
    found = [f"{axis}{getattr(plan, axis)}" for axis in ("tp", "cp", "dp", "pp") if getattr(plan, axis) > 1]
    return " ".join([*found, *([str(plan.cp_kind)] if plan.cp > 1 else [])]) or "one rank"
