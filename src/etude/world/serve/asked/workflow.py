"""What is asked of a workflow: its parameters, and its sessions on replicas of their models."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from etude.base.errors import ClusterError, UsageError
from etude.base.figures import argument, figure, part, text
from etude.base.grammar import line, pairs
from etude.base.outputs import Printed
from etude.base.parameters import replaces, request_of, spelled, whole
from etude.machine import System, open_system
from etude.make.generate.model import open_model
from etude.world.scenario import PrintedScenario, ScenarioText, only_workload, workload_of
from etude.world.serve.asked.kept import KeptStream, ServedPlace, ServingKept, told
from etude.world.serve.deployment import deployed, replica_plan
from etude.world.serve.engine import Engine, QueuePolicy
from etude.world.serve.pools import function_of
from etude.world.serve.pools.groups import split_of
from etude.world.serve.stored.folder import write_workflow
from etude.world.serve.workflow.choose import CHOOSERS
from etude.world.serve.workflow.pools import Deployed, placed_on, split_replicas
from etude.world.serve.workflow.results import workflow_summary
from etude.world.serve.workflow.run import WorkflowLoop, run_workflow, workflow_loop
from etude.world.serve.workflow.spec import Workflow, budget_of, open_workflow

PANEL: Final = "Workflow"
UNUSED: Final = ("max_loras", "max_lora_rank", "preemption_mode", "swap_bandwidth_bytes_per_s")
"""Calls have no adapters, and a preempted one is recomputed."""
SAID: Final = ("workflow", "models", "system", "replicas", "disaggregate", "router", "order", "stack", "seed")


class TaskOrder(StrEnum):
    """What a task waits for."""

    DATA = "data"
    PROGRAM = "program"


@dataclass(frozen=True, kw_only=True)
class WorkflowInput:
    """Parameters of the sessions of a workflow."""

    workflow: str = argument("path", "YAML file of tasks, or `swe_agent`", like="flow.yaml")
    models: str = text("models of the roles of the workflow, in order", like="qwen3-0.6b,gpt2", panel=PANEL)
    system: str = text(
        "simulate there: a name of `etude systems`, or a file; default: that of the workflow",
        names=("-s",),
        like="dgx-h200",
        panel=PANEL,
    )
    replicas: int = figure("count", "copies of each model, times those of its role", 1, panel=PANEL)
    disaggregate: str = text(
        "prefill and decode replicas of each model, times those of its role: `1:2`", like="1:2", panel=PANEL
    )
    link_bytes_per_s: int = figure(
        "bandwidth",
        "bandwidth of a replica in each direction, for keys and values",
        50_000_000_000,
        needs="disaggregate",
        panel=PANEL,
        rare=True,
    )
    link_latency_ns: int = figure(
        "time",
        "latency of a transfer of keys and values",
        5_000,
        zero=True,
        needs="disaggregate",
        panel=PANEL,
        rare=True,
    )
    router: Any = figure(
        "noun",
        "turn, least, tokens, two, session, prefix, affinity, br0, br:STEPS, NAME+steal",
        "least",
        like="turn",
        panel=PANEL,
    )
    place: Any = figure(
        "noun", "FILE.py:name, which places each call instead of a router", "", like="mine.py:place", panel=PANEL
    )
    order: TaskOrder = figure(
        "choice", "order of tasks: by data, or as the program has it", TaskOrder.DATA, of=TaskOrder, panel=PANEL
    )
    choose: Any = figure(
        "noun",
        "choice among alternatives: first, fixed:best, fixed:cheap, within, pixie, FILE.py:name",
        "first",
        like="pixie",
        panel=PANEL,
    )
    slo: str = text("limits of a session: `latency=2s,cost=0.01,label=0.8`", like="latency=2s,cost=0.01", panel=PANEL)
    stack: str = figure(
        "text", "software stack of the engine: vllm, torch-flash2, none", "vllm", like="none", panel=PANEL
    )
    seed: int = figure("count", "random seed", 0, panel=PANEL)
    engine: Engine = part(Engine, "The engine", but=UNUSED)


@dataclass(frozen=True, kw_only=True)
class ServeWorkflow(PrintedScenario, WorkflowInput, KeptStream):
    """Sessions of agents and other compound programs: model calls, tools and environments

    etude serve workflow swe_agent --models llama3-70b,llama3-8b --system dgx-h100
    etude serve workflow swe_agent --cache belady --router affinity
    etude serve workflow flow.yaml --choose pixie --slo latency=2s,cost=0.01,label=0.85
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowServing:
    """A workflow, and what its models run on."""

    flow: Workflow
    system: str = ""
    replicas: int = 1
    split: tuple[int, int] | None = None
    """Prefill and decode replicas, and below the link between them."""
    link_bytes_per_s: int = 0
    link_latency_ns: int = 0
    router: Any = "least"
    place: Any = None
    order: str = "data"
    choose: Any = "first"
    engine: Engine = field(default_factory=Engine)
    stack: str = "vllm"
    seed: int = 0

    def run(self) -> FlowServed:
        """Every session and its calls."""
        on, notes = self._deployed()
        ran = run_workflow(
            self.flow, on, order=self.order, router=self.router, choose=hook(self.choose),
            place=hook(self.place) if self.place else None, seed=self.seed,
        )  # fmt: skip
        return FlowServed(self.flow, ran, workflow_summary(ran), notes)

    def ready(self) -> tuple[WorkflowLoop, dict[str, Deployed], tuple[str, ...]]:
        """The sessions before their first call, what each role runs on, and what had to be assumed."""
        on, notes = self._deployed()
        loop = workflow_loop(
            self.flow,
            on,
            order=self.order,
            router=self.router,
            choose=hook(self.choose),
            place=hook(self.place) if self.place else None,
            seed=self.seed,
        )
        return loop, on, notes

    def on_network(self, system: System) -> dict[str, Deployed]:
        """The same while the links of its system are others."""
        return self._deployed(system)[0]

    def _deployed(self, changed: System | None = None) -> tuple[dict[str, Deployed], tuple[str, ...]]:
        """What each role of the workflow runs on, and what had to be assumed of its model."""
        on, notes = {}, []
        for name, role in self.flow.models.items():
            network = open_model(role.model)
            if network.assumed:
                notes.append(f"assumed {network.assumed}")
            plan = replica_plan(network, role.tp)
            system = changed or open_system(self.system)
            placed = deployed(network, plan, system, self.engine, stack=self.stack)
            on[name] = placed_on(placed, self.engine, ranks=role.tp, replicas=role.replicas * self.replicas)
            if self.split:
                on[name] = split_replicas(on[name], *self.split, self.link_bytes_per_s, self.link_latency_ns)
        return on, tuple(notes)


@dataclass(frozen=True, slots=True, eq=False)
class FlowServed:
    flow: Workflow
    ran: Any
    figures: dict[str, Any]
    notes: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """What `etude serve workflow --json` prints."""
        return self.figures


def readable(served: FlowServed) -> dict[str, str]:
    """The figures of all sessions."""
    found = served.figures
    shown = {"sessions": f"{found['sessions']:,} of {found['calls']:,} calls in {found['duration_s']:,.1f} s"}
    times = {"latency_s": "a session", "sum_s": "sum of its calls", "critical_path_s": "its longest chain"}
    for key, what in times.items():
        shown[what] = ", ".join(f"{name} {value:.4g} s" for name, value in found[key].items())
    shown["largest speed-up from parallel calls"] = f"{found['bound']:.2f} times"
    for name, one in found["models"].items():
        part = one["cache_hit_tokens"] / max(one["prompt_tokens"], 1)
        shown[name] = f"{one['calls']:,} calls, {one['prompt_tokens']:,} tokens in, {part:.1%} of them cached"
    if served.flow.budget:
        shown["over the budget"] = f"{found['violations']} of {found['sessions']}"
        worst = ", ".join(f"{name.removesuffix('_s')} {ratio:.3g}" for name, ratio in found["worst"].items())
        shown["worst ratio to its limit"] = worst
        shown["cost, label"] = f"{found['cost']:.4g}, {found['label']:.4g}"
    return shown


def workflow_inputs(asked: ServeWorkflow) -> ServingKept:
    serving = flow_serving(asked)
    return ServingKept(serving=serving, folder=ServedPlace.of(asked, lambda: said_of(asked, serving)))


def workflow_scenario(asked: ServeWorkflow, given: ServingKept) -> ScenarioText:
    """These sessions alone, on as many nodes as their replicas fill."""
    serving: FlowServing = given.serving
    if not serving.flow.models:
        raise UsageError("a workflow that calls no model needs no machine", where=asked.workflow)
    each, count = open_system(serving.system).levels[0].size, sum(serving.split or (serving.replicas,))
    nodes = sum(-(-role.replicas * count // max(each // role.tp, 1)) for role in serving.flow.models.values())
    workload = workload_of(asked, "workflow", of="workflow")
    return only_workload("agents", workload, system=serving.system, nodes=nodes)


def run_flow(given: ServingKept) -> FlowServed:
    found: FlowServed = told(given.serving)
    if given.folder is not None:
        given.folder.keep(found.ran, found.figures, write_workflow)
    return found


def flow_serving(asked: WorkflowInput) -> FlowServing:
    """Reads what this workflow has: one that calls no model runs on no system."""
    flow = _with_slo(_with_models(open_workflow(asked.workflow), asked.models), asked.slo)
    place, choose = asked.place, asked.choose
    if isinstance(place, str) and place and not _is_file(place):
        hint = "FILE.py:name; `etude serve devices` places calls by heft, reuse, future:H"
        raise UsageError(f"--place {place}", hint=hint)
    if isinstance(choose, str) and choose not in CHOOSERS and not _is_file(choose):
        raise UsageError(f"--choose: unknown choice `{choose}`", hint=f"known: {', '.join(CHOOSERS)}, or FILE.py:name")
    made = FlowServing(flow=flow, order=str(asked.order), choose=choose, seed=asked.seed)
    if not flow.models:
        return made
    system = asked.system or flow.system
    if not system:
        raise UsageError("no system is given", hint="--system dgx-h100, or `system` in the file")
    engine = _engine(asked, flow)
    on = replace(made, system=system, replicas=asked.replicas, engine=engine, stack=asked.stack)
    if asked.disaggregate:
        on = _split(asked, on)
    if not place:
        return replace(on, router=asked.router)
    replaces(asked, "place", "router")
    return replace(on, place=place)


def _split(asked: WorkflowInput, made: FlowServing) -> FlowServing:
    """With prompts and answers apart."""
    replaces(asked, "disaggregate", "replicas", "place")
    return replace(
        made,
        replicas=1,
        split=split_of(asked.disaggregate),
        link_bytes_per_s=asked.link_bytes_per_s,
        link_latency_ns=asked.link_latency_ns,
    )


def _engine(asked: WorkflowInput, flow: Workflow) -> Engine:
    """Refuses orders of what calls do not have: tiers, deadlines, and tenants where the file names none."""
    engine, name = whole(asked.engine), spelled(asked, "scheduling_policy")
    if engine.scheduling_policy in (QueuePolicy.PRIORITY, QueuePolicy.EDF):
        raise UsageError(f"{name}: calls of a workflow have no tiers and no deadlines", hint="fcfs, fair, shortest")
    if engine.scheduling_policy is QueuePolicy.FAIR and not flow.tenants:
        raise UsageError(f"{name} fair: the workflow has no tenants", hint="tenants: {chat: 3, batch: 1}")
    return engine


def said_of(asked: Any, made: FlowServing) -> dict[str, Any]:
    """What a folder says of the request."""
    known = request_of(asked).values
    return {name: known[name] for name in SAID} | {"system": made.system, "order": made.order}


def _is_file(text: str) -> bool:
    return text.partition(":")[0].endswith(".py")


def hook(given: Any) -> Any:
    """The function that FILE.py:name says; anything else as it is."""
    return function_of(given) if isinstance(given, str) and _is_file(given) else given


def _with_slo(flow: Workflow, text: str) -> Workflow:
    """With other limits of a session: `latency=2s,cost=0.01,label=0.8`."""
    if not text:
        return flow
    whole = line(text, "--slo", "latency=2s,cost=0.01,label=0.8")
    budget: dict[str, float] = {}
    for name, value in pairs(whole.split(","), ("latency", "cost", "label"), also=("latency_ns",)).items():
        try:
            limit = budget_of({name: value.text}, "")
        except ClusterError as problem:
            raise value.said(problem) from None
        if not limit:
            raise value.wrong(f"`{value.text}` is not positive", f"leave `{name}` out for no limit")
        budget |= limit
    return replace(flow, budget=budget)


def _with_models(flow: Workflow, models: str) -> Workflow:
    """Its roles with other models, in the order of the file."""
    given = [one for one in models.split(",") if one]
    if not given:
        return flow
    if len(given) != len(flow.models):
        problem = f"--models names {len(given)} models, but the workflow has {len(flow.models)} roles"
        raise UsageError(problem, hint=f"give one for each of {', '.join(flow.models)}")
    roles = zip(flow.models.items(), given, strict=True)
    return replace(flow, models={name: replace(role, model=model) for (name, role), model in roles})
