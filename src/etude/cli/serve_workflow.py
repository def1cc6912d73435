"""`etude serve --workflow`: sessions of model calls and tools."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.cli.output import emit, say
from etude.cli.plan_flags import model_of
from etude.errors import UsageError
from etude.serve import Engine

if TYPE_CHECKING:
    from etude.serve.workflow import Workflow


def sessions(
    path: str,
    models: str,
    engine: Engine,
    *,
    system: str,
    replicas: int,
    router: str,
    hooks: tuple[str | Callable[..., Any], Callable[..., Any] | None],
    order: str,
    stack: str,
    seed: int,
    out: Path | None,
    force: bool,
    json: bool,
) -> int:
    from etude.machine import open_system
    from etude.serve import deployed, replica_plan
    from etude.serve.workflow import open_workflow, placed_on, run_workflow, workflow_summary

    flow = _with_models(open_workflow(path), models)
    named = system or flow.system
    if flow.models and not named:
        raise UsageError("no system is given", hint="--system dgx-h100, or `system` in the file")
    on = {}
    for name, role in flow.models.items():
        network = model_of(role.model)
        plan = replica_plan(network, role.tp)
        placed = deployed(network, plan, open_system(named), engine, stack=stack)
        on[name] = placed_on(placed, engine, ranks=role.tp, replicas=role.replicas * replicas)
    choose, place = hooks
    ran = run_workflow(flow, on, order=order, router=router, choose=choose, place=place, seed=seed)
    found = workflow_summary(ran)
    if out is not None:
        from etude.serve.stored import write_workflow

        asked = {
            "workflow": path, "models": models, "system": named, "replicas": replicas, "router": router, "order": order,
            "stack": stack, "seed": seed,
        }  # fmt: skip
        write_workflow(ran, found | {"asked": asked}, out, force=force)
        say(f"wrote {out}")
    if json:
        emit(found, json=True)
        return 0
    shown = {"sessions": f"{found['sessions']:,} of {found['calls']:,} calls in {found['duration_s']:,.1f} s"}
    times = {"latency_s": "a session", "sum_s": "its calls, added up", "critical_path_s": "its longest chain"}
    for key, what in times.items():
        shown[what] = ", ".join(f"{name} {value:.4g} s" for name, value in found[key].items())
    shown["most from running calls side by side"] = f"{found['bound']:.2f} times"
    for name, one in found["models"].items():
        part = one["cache_hit_tokens"] / max(one["prompt_tokens"], 1)
        shown[name] = f"{one['calls']:,} calls, {one['prompt_tokens']:,} tokens in, {part:.1%} of them found"
    if flow.budget:
        shown["over the budget"] = f"{found['violations']} of {found['sessions']}"
        shown["cost, label"] = f"{found['cost']:.4g}, {found['label']:.4g}"
    emit(shown)
    return 0


def _with_models(flow: "Workflow", models: str) -> "Workflow":
    """Its roles with other models, in the order of the file."""
    given = [one for one in models.split(",") if one]
    if not given:
        return flow
    if len(given) != len(flow.models):
        raise UsageError(
            f"--models names {len(given)}, and the workflow has {len(flow.models)} roles",
            hint=f"one for each of {', '.join(flow.models)}",
        )
    roles = zip(flow.models.items(), given, strict=True)
    return replace(flow, models={name: replace(role, model=model) for (name, role), model in roles})
