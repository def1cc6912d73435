"""What a stack does where a run says nothing: the rest of a plan, by its recipe and by what fits the memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from etude.base.errors import EtudeError, UsageError
from etude.base.shapes import names_in
from etude.cost.stacks import Stack
from etude.cost.stacks.stack import Rule
from etude.machine.system import System
from etude.make.generate import Plan
from etude.make.generate.model import Model
from etude.make.generate.train import plan_memory
from etude.steps.measured.gpus import words
from etude.steps.measured.row_words import NEAR, PAIRED
from etude.steps.plans import feasible, promise

AXES: Final = ("tp", "pp", "cp", "ep")
CHUNKS: Final = "chunks"
"""Of a recipe, besides the fields of a plan: `3` is the most chunks of a pipeline rank where none are said, `layer` one
chunk for a layer and none in the first and the last."""
WORDS: Final = ("selective", "full")
"""Key of a recipe: what its stack means by these words for recomputation."""
LEAST: Final = "least"
"""Key of a recipe: kinds of recomputation, the least first; the first that fits the memory is taken."""
KINDS: Final = ("none", "selective", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The known facts of a run: `given` has the fields of a plan."""

    model: Model
    given: Mapping[str, Any]
    system: System
    gpu: str = ""
    """Its name in a table; empty: that of the system's device."""
    year: int = 0
    release: str = ""
    """Of the stack, by year and month: 26.06; empty: not said, which is the newest if the year is not said either."""
    spare: float = 1.0
    """Estimated memory that a plan may need, relative to what there is."""
    open_axes: bool = False
    """Tensor and pipeline parallelism are not given, and may be other than 1."""

    @property
    def gpu_words(self) -> frozenset[str]:
        return words(self.gpu or self.system.device.name)


def completed(run: RunFacts, stack: Stack) -> tuple[Plan, list[str]]:
    """The plan of a run under a stack, and the assumptions made."""
    given, said = dict(run.given), list[str]()
    if run.open_axes and run.given.get("gpus", 1) > 1:
        given |= _axes(run, _recipe(run, stack, given), said)
    recipe = _recipe(run, stack, given)
    least, chunks = int(given.pop(CHUNKS, 1)), str(recipe.pop(CHUNKS, "1"))
    pairs = bool(recipe.pop(PAIRED, False)) | bool(given.pop(PAIRED, False))
    words = {word: str(recipe.pop(word)) for word in WORDS if word in recipe}
    kinds = tuple(recipe.pop(LEAST, KINDS))
    if given.get("recompute") in words:
        said.append(f"{stack.name}: {given['recompute']} recomputation is {words[given['recompute']]}")
        given["recompute"] = words[given["recompute"]]
    assumed = {k: v for k, v in recipe.items() if k not in given}
    if assumed:
        said.append(f"{stack.name}: " + ", ".join(f"{k} {v}" for k, v in assumed.items()))
    plan = {**assumed, **given}
    if plan.get("ep_node") == NEAR:
        plan["ep_node"] = _near(run.system, plan, said)
    if "micro_batch" not in plan:
        plan["micro_batch"] = _micro_batch(run, plan, said)
    if "schedule" not in plan and plan.get("pp", 1) > 1:
        plan |= _schedule(run.model, plan, chunks, least, said)
    if pairs:
        plan |= _paired(plan, said)
    if "recompute" not in plan:
        plan["recompute"] = _recompute(run, plan, [words.get(kind, kind) for kind in kinds], said)
    return Plan.from_dict(plan), said


def _paired(plan: Mapping[str, Any], said: list[str]) -> dict[str, Any]:
    """Exchanges of experts overlap another micro-batch: with several stages on a pipeline rank, or with no pipeline."""
    schedule = str(plan.get("schedule", ""))
    alone = schedule in ("", "1f1b") and plan.get("pp", 1) == 1 and plan.get("ep", 1) > 1
    if not alone and not schedule.startswith("interleaved:"):
        return {}
    said.append("exchanges of experts overlap another micro-batch")
    return {"schedule": "paired:1" if alone else schedule.replace("interleaved", "paired")}


def _near(system: System, plan: Mapping[str, Any], said: list[str]) -> int:
    """Expert-parallel ranks of an innermost level, to which a token is sent once."""
    ep, near = int(plan.get("ep", 1)), system.levels[0].size
    here = ep if plan.get("gpus", 0) <= near else math.gcd(ep, near)
    if here == 1:
        return 0
    said.append(f"a token is sent once to each {system.levels[0].name} domain, for {here} expert-parallel ranks")
    return here


def _recipe(run: RunFacts, stack: Stack, given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for rule in stack.recipe:
        if _holds(rule, run, given):
            found |= rule.plan
    return found


def _holds(rule: Rule, run: RunFacts, given: Mapping[str, Any]) -> bool:
    return all(_condition(key, wanted, run, given) for key, wanted in rule.when.items())


def _condition(key: str, wanted: str, run: RunFacts, given: Mapping[str, Any]) -> bool:
    if key == "gpu":
        return any(words(name) <= run.gpu_words for name in wanted.split(","))
    if key == "model":
        return any(fnmatchcase(run.model.name, pattern.strip()) for pattern in wanted.split(","))
    if key == "experts":
        return bool(run.model.experts) == (wanted == "yes")
    if key == "precision":
        return str(given.get("precision", "bf16")) == wanted
    if key == "year":
        first, _, last = wanted.partition("..")
        return bool(run.year) and int(first or 0) <= run.year <= int(last or 9999)
    if key == "release":
        first, _, last = wanted.partition("..")
        said = run.release or ("" if run.year else "99")
        return bool(said) and first <= said[:5] and (not last or said[:5] <= last)
    if key in AXES or key in ("zero", "dp"):
        value = _dp(given) if key == "dp" else int(given.get(key, 0 if key == "zero" else 1))
        return value >= int(wanted[:-1]) if wanted.endswith("+") else value == int(wanted)
    hint = "known: gpu, model, experts, precision, year, release, zero, dp, tp, pp, cp, ep"
    raise UsageError(f"recipe: unknown condition `{key}`", hint=hint)


def _dp(given: Mapping[str, Any]) -> int:
    inner = int(given.get("tp", 1)) * int(given.get("pp", 1)) * int(given.get("cp", 1))
    return max(int(given.get("gpus", 1)) // inner, 1)


HELD: Final = names_in("""
    seq global_batch precision ep cp zero grad_dtype state_dtype master attention
""")
"""Fields of a plan that affect its memory, besides the axes."""


def _axes(run: RunFacts, recipe: Mapping[str, Any], said: list[str]) -> dict[str, Any]:
    """Without given tensor and pipeline parallelism: the most promising plan among those that fit, with the data types
    and the sharding of the recipe."""
    base = {k: v for k, v in {**recipe, **run.given}.items() if k in HELD}
    base |= {"recompute": run.given.get("recompute", "none"), "micro_batch": 1, "zero": base.get("zero", 1)}
    for again in (base["recompute"], "full"):
        fitting = feasible(run.model, int(run.given["gpus"]), run.system, {**base, "recompute": again})
        if fitting:
            best = min((plan for _, plan in fitting), key=lambda p: promise(p))
            said.append(f"tensor parallel {best.tp}, pipeline parallel {best.pp}, expert parallel {best.ep}")
            found = {"tp": best.tp, "pp": best.pp, "ep": best.ep}
            return found if {"schedule", CHUNKS} & run.given.keys() else found | {"schedule": best.schedule}
    raise UsageError("tensor and pipeline parallel sizes are not given, and no plan fits the memory")


def _micro_batch(run: RunFacts, plan: Mapping[str, Any], said: list[str]) -> int:
    """If not given: 1 with a pipeline, else the most that fits the memory. Larger ones make products larger, and
    without a pipeline fewer gain nothing."""
    found = 1
    if plan.get("pp", 1) == 1 and plan.get("global_batch"):
        samples = int(plan["global_batch"]) // _dp(plan)
        sizes = sorted((s for s in range(1, samples + 1) if samples % s == 0), reverse=True)
        again = plan.get("recompute", "none")
        found = next((s for s in sizes if _fits(run, {**plan, "micro_batch": s, "recompute": again})), 1)
    said.append(f"micro-batch {found}")
    return found


def _schedule(m: Model, plan: Mapping[str, Any], chunks: str, least: int, said: list[str]) -> dict[str, Any]:
    """Chunks of a pipeline rank where their number is not said; `least` of them."""
    pp, batch = int(plan["pp"]), int(plan.get("global_batch", 0))
    if chunks == "layer" and (m.layers + 2) % pp == 0:
        said.append(f"{(m.layers + 2) // pp} chunks per rank, none of a layer at the ends")
        return {"schedule": f"interleaved:{(m.layers + 2) // pp}", "stages": [0, *[1] * m.layers, 0]}
    most = int(chunks) if chunks.isdecimal() else 1
    count = max(next((v for v in range(most, 0, -1) if m.layers % (pp * v) == 0), 1), least)
    if batch and batch // _dp(plan) // int(plan.get("micro_batch", 1)) % pp:
        count = 1
    said.append(f"{count} chunks per rank")
    return {"schedule": f"interleaved:{count}" if count > 1 else "1f1b"}


def _recompute(run: RunFacts, plan: Mapping[str, Any], kinds: Sequence[str], said: list[str]) -> str:
    """If not given: the least that fits the memory."""
    kind = next((k for k in kinds if _fits(run, {**plan, "recompute": k})), kinds[-1])
    said.append(f"recompute {kind} (the least that fits)")
    return kind


def _fits(run: RunFacts, plan: Mapping[str, Any]) -> bool:
    limit = run.system.device.memory_bytes
    try:
        return not limit or peak_bytes(run.model, Plan.from_dict(plan)) <= run.spare * limit
    except EtudeError:
        return False


def peak_bytes(m: Model, plan: Plan) -> int:
    """Peak of the fullest rank. With 8-bit products these stacks hold weights only in 8 bits, in both layouts, which
    takes as much as 16 bits."""
    own = plan_memory(m, plan)
    if str(plan.precision) != "fp8":
        return max(a.peak_bytes for a in own)
    plain = plan_memory(m, plan.replace(precision=type(plan.precision)("bf16")))
    return max(a.peak_bytes - a.weights + b.weights for a, b in zip(own, plain, strict=True))
