"""Jobs whose steps are predicted: their duration, and their speed on fewer devices."""

from __future__ import annotations

from typing import Any, Final

from etude.base.errors import UsageError
from etude.machine import open_system
from etude.make.generate import Plan
from etude.world.fleet.costs import REDISTRIBUTE, predicted_costs

KEYS: Final = ("model", "system", "plan", "steps")


def predicted_job(given: dict[str, Any], where: str) -> dict[str, Any]:
    """The row of a job with `model`, `system`, `plan` and `steps`: its `gpus`, `duration_s` and, if `min_gpus` lets it
    shrink, `speed`: the same batch on as many replicas as fit, each step predicted. Raises UsageError."""
    from etude.make.generate.model import open_model

    if missing := [key for key in ("model", "system", "steps") if key not in given]:
        raise UsageError(f"key `{missing[0]}` is missing", where=where, hint="model, system, steps, plan: {gpus: 8}")
    if also := [key for key in ("gpus", "max_gpus", "duration_s", "speed") if key in given]:
        raise UsageError(f"`{also[0]}` is predicted", where=where, hint="plan: {gpus: 8}, min_gpus: 2")
    plan = Plan.from_dict(dict(given.get("plan") or {}), f"{where}: plan")
    if not isinstance(given["steps"], int) or given["steps"] < 1:
        raise UsageError(f"steps: {given['steps']}", where=where, hint="steps: 1000")
    costs = predicted_costs(open_model(str(given["model"])), plan, open_system(str(given["system"])), energy=False)
    row = {key: value for key, value in given.items() if key not in KEYS}
    row |= {"gpus": plan.gpus, "duration_s": given["steps"] * costs.healthy.step_ns / 1e9}
    least = int(given.get("min_gpus", plan.gpus))
    if least < plan.gpus:
        speed, gpus = {plan.gpus: 1.0}, plan.gpus - costs.replica_gpus
        while gpus >= max(least, 1):
            found = costs.predicted(REDISTRIBUTE, gpus) if costs.predicted else None
            if found is not None:
                speed[gpus] = costs.healthy.step_ns / found.step_ns
            gpus -= costs.replica_gpus
        row["speed"] = ";".join(f"{gpus}:{speed[gpus]:.9f}" for gpus in sorted(speed))
        row["min_gpus"] = min(speed)
    return row
