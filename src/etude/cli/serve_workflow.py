"""`etude serve --workflow`: sessions of model calls and tools."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.cli.output import emit, say
from etude.cli.plan_flags import model_of
from etude.errors import ClusterError, UsageError
from etude.serve import Engine

PLACES = ("roundrobin", "heft", "reuse", "future:H")

if TYPE_CHECKING:
    from etude.serve.workflow import Workflow


def sessions(
    path: str,
    models: str,
    engine: Engine,
    how: dict[str, Any],
    *,
    hooks: tuple[str, str],
    slo: str,
    out: Path | None,
    force: bool,
    json: bool,
) -> int:
    """`how`: system, replicas, router, order, stack and seed; `hooks`: the texts of `--choose` and `--place`."""
    from etude.serve.workflow import open_workflow, run_workflow, workflow_summary

    flow = _with_slo(_with_models(open_workflow(path), models), slo)
    named = how["system"] or flow.system
    if flow.models and not named:
        raise UsageError("no system is given", hint="--system dgx-h100, or `system` in the file")
    on = _deployed(flow, named, engine, how)
    choose, place = _hook(hooks[0]), _hook(hooks[1]) if hooks[1] else None
    if isinstance(place, str):
        raise UsageError(f"--place {place}", hint="FILE.py:name, or --devices FILE.yaml with " + ", ".join(PLACES))
    ran = run_workflow(flow, on, order=how["order"], router=how["router"], choose=choose, place=place, seed=how["seed"])
    found = workflow_summary(ran)
    if out is not None:
        from etude.serve.stored import write_workflow

        asked = {"workflow": path, "models": models} | how | {"system": named}
        write_workflow(ran, found | {"asked": asked}, out, force=force)
        say(f"wrote {out}")
    emit(found, json=True) if json else _show(flow, found)
    return 0


def _deployed(flow: "Workflow", system: str, engine: Engine, how: dict[str, Any]) -> dict[str, Any]:
    """What each role of the workflow runs on."""
    from etude.machine import open_system
    from etude.serve import deployed, replica_plan
    from etude.serve.workflow import placed_on

    on = {}
    for name, role in flow.models.items():
        network = model_of(role.model)
        plan = replica_plan(network, role.tp)
        placed = deployed(network, plan, open_system(system), engine, stack=how["stack"])
        on[name] = placed_on(placed, engine, ranks=role.tp, replicas=role.replicas * how["replicas"])
    return on


def _hook(text: str) -> str | Callable[..., Any]:
    """The function that FILE.py:name says; anything else as it is."""
    from etude.serve.pools import function_of

    return function_of(text) if text.partition(":")[0].endswith(".py") else text


def _show(flow: "Workflow", found: dict[str, Any]) -> None:
    shown = {"sessions": f"{found['sessions']:,} of {found['calls']:,} calls in {found['duration_s']:,.1f} s"}
    times = {"latency_s": "a session", "sum_s": "sum of its calls", "critical_path_s": "its longest chain"}
    for key, what in times.items():
        shown[what] = ", ".join(f"{name} {value:.4g} s" for name, value in found[key].items())
    shown["largest speed-up from parallel calls"] = f"{found['bound']:.2f} times"
    for name, one in found["models"].items():
        part = one["cache_hit_tokens"] / max(one["prompt_tokens"], 1)
        shown[name] = f"{one['calls']:,} calls, {one['prompt_tokens']:,} tokens in, {part:.1%} of them cached"
    if flow.budget:
        shown["over the budget"] = f"{found['violations']} of {found['sessions']}"
        worst = ", ".join(f"{name.removesuffix('_s')} {ratio:.3g}" for name, ratio in found["worst"].items())
        shown["worst ratio to its limit"] = worst
        shown["cost, label"] = f"{found['cost']:.4g}, {found['label']:.4g}"
    emit(shown)


def _with_slo(flow: "Workflow", text: str) -> "Workflow":
    """With other limits of a session: `latency=2s,cost=0.01,label=0.8`."""
    if not text:
        return flow
    from etude.serve.workflow import budget_of

    pairs = [part.strip().partition("=") for part in text.split(",")]
    try:
        return replace(flow, budget=budget_of({name: value for name, _, value in pairs}, "--slo"))
    except ClusterError as problem:
        hint = problem.hint or "--slo latency=2s,cost=0.01,label=0.8"
        raise UsageError(problem.problem, where=problem.where, hint=hint) from None


def _with_models(flow: "Workflow", models: str) -> "Workflow":
    """Its roles with other models, in the order of the file."""
    given = [one for one in models.split(",") if one]
    if not given:
        return flow
    if len(given) != len(flow.models):
        raise UsageError(
            f"--models names {len(given)} models, but the workflow has {len(flow.models)} roles",
            hint=f"give one for each of {', '.join(flow.models)}",
        )
    roles = zip(flow.models.items(), given, strict=True)
    return replace(flow, models={name: replace(role, model=model) for (name, role), model in roles})
