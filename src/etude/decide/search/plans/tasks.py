"""One plan in a worker: its lower bound, its memory, its simulated time."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from etude.base.errors import EtudeError
from etude.cost.stacks import Stack, open_stack
from etude.decide.search.placements.best import best_placement, seated
from etude.decide.search.plans.space import PlanSpace
from etude.machine import open_system
from etude.machine.system import System
from etude.make.generate import Plan
from etude.make.generate.model import Model, open_model
from etude.make.generate.train import plan_memory
from etude.steps import least_step_time_ns, predict
from etude.steps.measured import RunFacts, completed

if TYPE_CHECKING:
    from etude.steps import Prediction

TRIES: Final = 40
"""Placements of a plan that are simulated at most."""
REFUSED: Final = "refused"
ALONE, LOOK, CLOSER, MEMORY, SCORE = "alone", "look", "closer", "memory", "score"
PLACE: Final = "place"
STATIC: Final = {"recompute": "none", "micro_batch": 1}
"""What plans are made that hold the same weights and optimizer."""
OF_SHARDS: Final = ("gpus", "tp", "cp", "ep", "etp", "seq", "micro_batch", "tp_chunks", "sp", "cp_kind", "precision")
"""Fields that ops depend on."""
AS_GIVEN: Final = ("", "none")
"""Stacks whose recipe does not complete a plan, as in `etude predict`."""


@lru_cache(maxsize=8)
def _opened(model: str, system: str, stack: str) -> tuple[Model, System, Stack | None]:
    return open_model(model), open_system(system), open_stack(stack or "default")


def planned(model: str, system: str, stack: str, given: Mapping[str, Any], *, recipe: bool) -> Plan:
    """The plan of these fields, as `etude predict` takes it."""
    network, machine, software = _opened(model, system, stack)
    if stack in AS_GIVEN or software is None or not recipe:
        return Plan.from_dict(given)
    return completed(RunFacts(model=network, given=given, system=machine), software)[0]


def predicted(
    model: str, system: str, stack: str, network: str, given: Mapping[str, Any], *, recipe: bool
) -> Prediction:
    """What `etude predict` says of this plan, whether it fits or not."""
    found, machine, software = _opened(model, system, stack)
    plan = planned(model, system, stack, given, recipe=recipe)
    options = {} if network == "analytic" else {"network": network}
    return predict(found, plan, machine, stack=software, check=False, **options)


def family(at: Mapping[str, Any]) -> Hashable:
    """What plans share that are made of the same ops. A simulation is long, and belongs to none."""
    if at["what"] in (SCORE, PLACE):
        return None
    given = json.loads(at["plan"])
    return at["system"], *(repr(given.get(name)) for name in OF_SHARDS)


def task(
    *, what: str, system: str, plan: str, model: str, stack: str, recipe: bool, network: str, energy: bool, seal: str,
    most: float = 0, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """What is known of a plan, whose fields are JSON. `alone`: ns of a step at least, without what copies exchange.
    `look`: bytes that a GPU holds all the time, and ns at least where these are not above `most` (0: no limit).
    `memory`: bytes at most; `closer`: and ns at least where these fit. `score`: the simulated step;
    `place`: that of the best placement of its ranks."""
    del seal  # what was opened by name is part of the key
    given = json.loads(plan)
    try:
        if what in (SCORE, PLACE):
            scored = predicted(model, system, stack, network, given, recipe=recipe)
            return _scored(scored, energy=energy) if what == SCORE else placed(scored, network, seed, energy=energy)
        found: dict[str, Any] = {}
        if what == LOOK and most:
            found["bytes"] = _static_bytes(model, system, stack, plan, recipe=recipe)
        opened, machine, software = _opened(model, system, stack)
        wanted = planned(model, system, stack, given, recipe=recipe)
        if what in (CLOSER, MEMORY):
            found["bytes"] = max(m.peak_bytes for m in plan_memory(opened, wanted))
        if what != MEMORY and not (most and found.get("bytes", 0) > most):
            alone = what == ALONE
            found["ns"] = least_step_time_ns(opened, wanted, machine, stack=software, network=network, alone=alone)
    except EtudeError as problem:
        return {REFUSED: str(problem).splitlines()[0]}
    return found


def _static_bytes(model: str, system: str, stack: str, plan: str, *, recipe: bool) -> int:
    """Static bytes of the fullest GPU, with one sample per micro-batch; 0 if the plan is invalid."""
    given = json.loads(plan)
    text = json.dumps({k: STATIC.get(k, v) for k, v in given.items()}, sort_keys=True)
    return _kept_static(model, system, stack, text, recipe)


@lru_cache(maxsize=4096)
def _kept_static(model: str, system: str, stack: str, plan: str, recipe: bool) -> int:
    try:
        wanted = planned(model, system, stack, json.loads(plan), recipe=recipe)
        return max(m.static_bytes for m in plan_memory(_opened(model, system, stack)[0], wanted, moving=False))
    except EtudeError:
        return 0


def placed(found: Prediction, network: str, seed: int, *, energy: bool) -> dict[str, Any]:
    """What a simulated plan scores with its ranks on the best places that are found, and how these were found."""
    options = {"network": network}
    best = best_placement(
        found.generated,
        found.system,
        network=network,
        tries=TRIES,
        seed=seed,
        time_of=lambda machine: found.elsewhere(machine, **options).step_time_ns,
    )
    seats = tuple(best.best["placement"])
    there = _scored(found.elsewhere(seated(found.system, seats), **options), energy=energy)
    about = {"placement": list(seats), "placement_from": best.best["from"], "unplaced_ns": found.step_time_ns}
    return {**there, **about, "simulated": best.tried, "placements": best.space}


def _scored(found: Prediction, *, energy: bool) -> dict[str, Any]:
    record = {
        "step_time_ns": found.step_time_ns,
        "tokens_per_s_per_gpu": found.tokens_per_s_per_gpu,
        "mfu": found.mfu,
        "memory_peak_bytes": found.generated.memory_peak_bytes,
        **_step_range(found),
    }
    if energy:
        from etude.analyse.energy import energy as power

        curve = power(found.simulated, device=found.system.device, end_ns=found.time_ns).curve
        record["energy_j"] = curve.energy_j / found.generated.plan.steps
    return record


def _step_range(found: Prediction) -> dict[str, Any]:
    """The range that holds nine of ten such steps, and what it rests on; None where nothing is known."""
    step = found.estimates()["step_time_ns"]
    low, high = (None if end is None else round(end) for end in (step.low, step.high))
    return {"step_time_low_ns": low, "step_time_high_ns": high, "step_basis": step.basis["text"]}


def shared_of(space: PlanSpace) -> dict[str, object]:
    """What all calls of workers share."""
    return {
        "model": space.model,
        "stack": space.stack,
        "recipe": space.recipe,
        "network": space.network,
        "energy": "energy" in [*space.scores, *space.limits],
        "seal": space.seal,
    }
