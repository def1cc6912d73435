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

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from etude.base.errors import EtudeError, UsageError
from etude.capture.opening import open as open_job
from etude.decide.search.crew import crew
from etude.decide.search.found import Found
from etude.decide.search.given import Given, SearchRequest
from etude.decide.search.placements.best import TRIES, best_placement
from etude.decide.search.placements.bound import ExchangedBytes, needs_of
from etude.decide.search.short_models import count, model_file, shortened, system_file
from etude.machine import System, open_system
from etude.make.generate import Generated, Plan, generate
from etude.make.generate.model import Model, open_model
from etude.make.generate.train import plan_memory

NO_PLAN = "invalid plan"
MEMORY = "does not fit the memory"
BYTES = "sends more than those kept"


def solve(given: Given, asked: SearchRequest) -> Found:
    given.only("job", "model", "layers", "plan", "shardings", "keep", "system", "network", "tries")
    keys = given.keys
    if ("job" in keys) == ("model" in keys):
        raise UsageError("`job` or `model` is needed, not both", where=given.where,
                         hint="job: folder/; or model: gpt2 and plan: {gpus: 8, tp: 4}")  # fmt: skip
    system = open_system(system_file(given))
    how: dict[str, Any] = {"network": str(keys.get("network", "flow")), "tries": count(given, "tries", TRIES, 1)}
    if "job" in keys:
        for key in ("layers", "plan", "shardings", "keep"):
            if key in keys:
                raise UsageError(f"`{key}` needs `model`", where=given.where)
        job = open_job(given.path(str(keys["job"])))
        return best_placement(job, system.for_ranks(job.world_size), asked=asked, **how)
    return best_of_shardings(given, asked, system, how)


def best_of_shardings(given: Given, asked: SearchRequest, system: System, how: Mapping[str, Any]) -> Found:
    """Plans of one model: those whose ranks send least are placed, and those that do not fit the memory are left
    out."""
    keys, where = given.keys, given.where
    plan = keys.get("plan", {})
    shardings = keys.get("shardings", {})
    if not isinstance(plan, Mapping) or not isinstance(shardings, Mapping):
        raise UsageError("`plan` and `shardings` are keys and values", where=where, hint="plan: {gpus: 8, tp: 4}")
    model = open_model(model_file(given))
    made, pruned = _generated(model, plan, shardings, system, given)
    sent = [max_sent_bytes(needs_of(one.job)) for one in made]
    order = sorted(range(len(made)), key=lambda i: (sent[i], i))
    kept = order[: count(given, "keep") or len(order)]
    if len(order) > len(kept):
        pruned[BYTES] = len(order) - len(kept)
    found = []
    for i, one in zip(kept, _each([made[i] for i in kept], system, asked, how), strict=True):
        about = {"sharding": _name(made[i].plan), "sent_bytes": sent[i]}
        rows = [{**about, **row} for row in one.rows]
        found.append(replace(one, best=rows[0], rows=rows))
    return _joined(found, pruned)


def _each(made: list[Generated], system: System, asked: SearchRequest, how: Mapping[str, Any]) -> list[Found]:
    """The best placement of each plan: in parallel if there are several and workers are requested."""
    if len(made) == 1 or asked.alone:
        return [best_placement(one, system.for_ranks(one.plan.gpus), asked=asked, **how) for one in made]
    shared = {"made": made, "system": system, "how": {**how, "method": asked.method, "seed": asked.seed}}
    with crew(placed_plan, shared, asked) as workers:
        answers = workers.ask([{"number": number} for number in range(len(made))])
    return [Found(best=a["rows"][0], frontier=a["rows"][:1], **a) for a in answers]


def placed_plan(number: int, *, made: list[Generated], system: System, how: Mapping[str, Any]) -> dict[str, Any]:
    found = best_placement(made[number], system.for_ranks(made[number].plan.gpus), **how)
    return {name: getattr(found, name) for name in ("tried", "pruned", "space", "rows", "more")}


def _joined(found: list[Found], pruned: dict[str, int]) -> Found:
    """`space` counts placements of the plans that were kept, and each plan that was not as one."""
    rows = sorted((row for one in found for row in one.rows), key=lambda row: row["time_ns"])
    why = dict(pruned)
    for one in found:
        for name, left_out in one.pruned.items():
            why[name] = why.get(name, 0) + left_out
    best = min(found, key=lambda one: one.best["time_ns"])
    by_sharding = []
    for one in found:
        told = {key: one.best[key] for key in ("sharding", "sent_bytes", "time_ns", "placement", "gain")}
        by_sharding.append({**told, "default_ns": one.more["default"]["time_ns"], "worst_ns": one.more["worst_ns"]})
    return Found(
        best=best.best, frontier=[best.best], tried=len(rows), pruned=why, rows=rows,
        space=sum(one.space for one in found) + sum(pruned.values()),
        more={**best.more, "shardings": by_sharding},
    )  # fmt: skip


def _generated(
    model: Model, plan: Mapping[str, Any], axes: Mapping[str, Any], system: System, given: Given
) -> tuple[list[Generated], dict[str, int]]:
    """The possible plans that fit; memory is for the whole model, the job has as many layers as requested."""
    where, short = given.where, shortened(model, count(given, "layers"))
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
