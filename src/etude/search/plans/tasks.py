"""One plan in a worker: what it takes at least, what memory it needs, what it takes when simulated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from etude.cost.stacks import Stack, open_stack
from etude.errors import EtudeError
from etude.generate import Plan
from etude.generate.model import Model, open_model
from etude.generate.train import plan_memory
from etude.machine import open_system
from etude.machine.system import System
from etude.predict import least_step_time_ns, predict
from etude.predict.measured import Said, completed

if TYPE_CHECKING:
    from etude.predict import Prediction

REFUSED: Final = "refused"
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
    return completed(Said(model=network, given=given, system=machine), software)[0]


def predicted(
    model: str, system: str, stack: str, network: str, given: Mapping[str, Any], *, recipe: bool
) -> Prediction:
    """What `etude predict` says of this plan, whether it fits or not."""
    found, machine, software = _opened(model, system, stack)
    plan = planned(model, system, stack, given, recipe=recipe)
    options = {} if network == "analytic" else {"network": network}
    return predict(found, plan, machine, stack=software, check=False, **options)


def task(
    *, what: str, system: str, plan: str, model: str, stack: str, recipe: bool, network: str, energy: bool, seal: str
) -> dict[str, Any]:
    """`bound`: ns of a step at least, `alone` without what copies exchange; `static`: bytes that a GPU holds all the
    time, `memory` at most; `score`: the simulated step. `plan`: fields as JSON."""
    del seal  # what was opened by name is part of the key
    given = json.loads(plan)
    try:
        if what == "score":
            return _scored(predicted(model, system, stack, network, given, recipe=recipe), energy=energy)
        opened, machine, software = _opened(model, system, stack)
        wanted = planned(model, system, stack, given, recipe=recipe)
        if what in ("bound", "alone"):
            alone = what == "alone"
            return {"ns": least_step_time_ns(opened, wanted, machine, stack=software, network=network, alone=alone)}
        memory = plan_memory(opened, wanted)
        bytes_of = max(m.static_bytes if what == "static" else m.peak_bytes for m in memory)
    except EtudeError as problem:
        return {REFUSED: str(problem).splitlines()[0]}
    return {"bytes": bytes_of}


def _scored(found: Prediction, *, energy: bool) -> dict[str, Any]:
    record = {
        "step_time_ns": found.step_time_ns,
        "tokens_per_s_per_gpu": found.tokens_per_s_per_gpu,
        "mfu": found.mfu,
        "memory_peak_bytes": found.generated.memory_peak_bytes,
    }
    if energy:
        from etude.analyse.energy import energy as power

        curve = power(found.simulated, device=found.system.device, end_ns=found.time_ns).curve
        record["energy_j"] = curve.energy_j / found.generated.plan.steps
    return record
