"""Sessions of model calls and tools: on replicas of their models, or each call placed on devices of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import ClusterError, UsageError
from etude.base.grammar import line, pairs
from etude.machine import open_system
from etude.surface.api.making import model_named
from etude.world.serve import Engine, deployed, replica_plan
from etude.world.serve.pools import function_of
from etude.world.serve.stored import write_workflow
from etude.world.serve.workflow import budget_of, open_workflow, placed_on, run_workflow, workflow_summary

if TYPE_CHECKING:
    from etude.world.serve.workflow import Workflow

PLACES = ("roundrobin", "heft", "reuse", "future:H")
REFERENCE = "roundrobin"


@dataclass(frozen=True, slots=True, eq=False)
class Sessions:
    """Sessions of a workflow that ran; `.summary()` has their figures."""

    flow: Workflow
    ran: Any
    figures: dict[str, Any]
    asked: dict[str, Any]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Sessions({self.figures['sessions']:,} of {self.figures['calls']:,} calls)"

    def summary(self) -> dict[str, Any]:
        """All figures, as `etude serve --workflow --json` prints them."""
        return dict(self.figures)

    def write(self, folder: str | PathLike[str], *, force: bool = False) -> None:
        """A folder for `etude query`: sessions and tasks."""
        write_workflow(self.ran, self.figures | {"asked": self.asked}, folder, force=force)


def serve_workflow(
    path: str | PathLike[str], system: str = "", *, models: str = "", slo: str = "", replicas: int = 1,
    router: str = "least", order: str = "data", choose: str | Callable[..., Any] = "first",
    place: str | Callable[..., Any] = "", engine: Engine | None = None, stack: str = "vllm", seed: int = 0,
) -> Sessions:  # fmt: skip
    """Sessions of a workflow (a file, or `swe_agent`) on replicas of its models: every session and its calls.

    etude.extend.serve_workflow("swe_agent", "dgx-h100", models="llama3-8b,gpt2").summary()
    """
    file, rules = fspath(path), engine or Engine()
    flow = _with_slo(_with_models(open_workflow(file), models), slo)
    named = system or flow.system
    if flow.models and not named:
        raise UsageError("no system is given", hint="--system dgx-h100, or `system` in the file")
    on, notes = _deployed(flow, named, rules, replicas, stack)
    choosing, placing = hook(choose), hook(place) if place else None
    if isinstance(placing, str):
        raise UsageError(f"--place {placing}", hint="FILE.py:name, or --devices FILE.yaml with " + ", ".join(PLACES))
    ran = run_workflow(flow, on, order=order, router=router, choose=choosing, place=placing, seed=seed)
    asked = {
        "workflow": file, "models": models, "system": named, "replicas": replicas, "router": router, "order": order,
        "stack": stack, "seed": seed,
    }  # fmt: skip
    return Sessions(flow, ran, workflow_summary(ran), asked, notes)


def place_workflows(
    workflows: str | Sequence[str], devices: str | PathLike[str], places: Sequence[str | Callable[..., Any]] = (), *,
    seed: int = 0, stack: str = "vllm",
) -> list[dict[str, Any]]:  # fmt: skip
    """Calls of workflows, one at a time on each device of a file of several kinds: figures of each placement, round
    robin first. Workflows are names, files or patterns (`dags/*.yaml`).

    etude.extend.place_workflows("dags/*.yaml", "devices.yaml", ["heft", "future:4"])
    """
    from etude.world.serve.devices import beside, costs_on, open_devices, placed_summary, run_placed, sessions_of

    text = workflows if isinstance(workflows, str) else ",".join(workflows)
    flows = [open_workflow(path) for path in _files(text)]
    on = open_devices(devices)
    models = sorted({role.model for flow in flows for role in flow.models.values()})
    if not models:
        raise UsageError("no model is called, so there is nothing to place", where=text)
    sessions = sessions_of(flows, on, costs_on(on, models, stack=stack), seed=seed)
    every = dict.fromkeys([REFERENCE, *(places or ("heft", "reuse", "future:2"))])
    named = {one if isinstance(one, str) else one.__name__: one for one in every}
    return list(beside([placed_summary(run_placed(sessions, flows, hook(one)), name) for name, one in named.items()]))


def hook(given: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """The function that FILE.py:name says; anything else as it is."""
    by_file = isinstance(given, str) and given.partition(":")[0].endswith(".py")
    return function_of(given) if by_file else given  # type: ignore[arg-type]


def _deployed(
    flow: Workflow, system: str, engine: Engine, replicas: int, stack: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What each role of the workflow runs on, and what had to be assumed of its model."""
    on, notes = {}, []
    for name, role in flow.models.items():
        network = model_named(role.model)
        if network.assumed:
            notes.append(f"assumed {network.assumed}")
        placed = deployed(network, replica_plan(network, role.tp), open_system(system), engine, stack=stack)
        on[name] = placed_on(placed, engine, ranks=role.tp, replicas=role.replicas * replicas)
    return on, tuple(notes)


def _with_slo(flow: Workflow, text: str) -> Workflow:
    """With other limits of a session: `latency=2s,cost=0.01,label=0.8`."""
    if not text:
        return flow
    whole = line(text, "--slo", "latency=2s,cost=0.01,label=0.8")
    budget: dict[str, float] = {}
    for name, value in pairs(whole.split(","), ("latency", "cost", "label"), also=("latency_ns",)).items():
        try:
            budget |= budget_of({name: value.text}, "")
        except ClusterError as problem:
            raise value.said(problem) from None
    return replace(flow, budget=budget)


def _with_models(flow: Workflow, models: str) -> Workflow:
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


def _files(text: str) -> list[str]:
    """Workflows by name, and files that are like a pattern; several with commas."""
    if not text:
        raise UsageError("--devices places calls of workflows", hint='--workflow "dags/*.yaml"')
    found: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if any(sign in part for sign in "*?["):
            base = Path(part)
            like = sorted(str(path) for path in Path(base.anchor or ".").glob(str(base.relative_to(base.anchor))))
            if not like:
                raise UsageError(f"no file matches `{part}`", where="--workflow")
            found += like
        else:
            found.append(part)
    return found
