"""Jobs, steps, streams and fleets from the name of a model, a system and a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from os import PathLike
from typing import TYPE_CHECKING, Any

from etude.base.figures import key_of
from etude.machine import System, open_system
from etude.make.generate import Plan
from etude.surface.api.given import built, keywords, refuse_unknown, unlike

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.cost.stacks import Stack
    from etude.make.generate import Generated
    from etude.make.generate.model import Model
    from etude.model.job import Job
    from etude.steps import Prediction
    from etude.world.fleet.federated import Clients


def model_named(model: str | PathLike[str] | Model) -> Model:
    """A model that is given, or that of a name, a Hugging Face id or a file."""
    from etude.make.generate.model import open_model

    return open_model(model) if isinstance(model, str | PathLike) else model


def system_named(system: str | PathLike[str] | System) -> System:
    """A system that is given, or that of a name or a file."""
    return system if isinstance(system, System) else open_system(system)


def plan_keys(model: Any, axes: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a plan, with the precision that a model's id says."""
    from etude.make.generate.model import stored_as

    stored = stored_as(model) if isinstance(model, str) and "precision" not in axes else ""
    return {**axes, **({"precision": stored} if stored else {})}


def plan_from(plan: Plan | None, axes: Mapping[str, Any], model: Any = "", network: Model | None = None) -> Plan:
    """The plan with axes over it; a plan's keys, as `etude predict --plan` reads them. Where they say no precision, the
    last word of a model's id may. Axes that nothing reads in this plan of the model are refused."""
    refuse_unknown("Plan", axes, [*keywords(Plan), *map(key_of, fields(Plan))])
    found = Plan.from_dict(plan_keys(model, axes), "plan") if plan is None else plan.replace(**axes)
    if network is not None:
        found.refuse_unread(axes, network)
    return found


def generate(
    model: str | PathLike[str] | Model, plan: Plan | None = None, *, name: str = "", memory: str | int = "", **axes: Any
) -> Generated:
    """The job of a model's training step, `.job`, with its memory; axes are those of a plan. With `memory` (`80GB`, or
    a system's name) a plan that does not fit is refused.

    made = etude.generate("llama3-8b", gpus=16, tp=2, zero=1)
    """
    from etude.make.generate import generate as made
    from etude.steps import check_memory
    from etude.steps.asked.plans import memory_limit

    network = model_named(model)
    found = made(network, plan_from(plan, axes, model, network), name=name)
    if limit := memory_limit(memory):
        check_memory(found, limit, found.model.name)
    return found


def micro(pattern: str, ranks: int, sizes: Sequence[int] = (64_000_000,), **options: Any) -> Job:
    """The job of one collective (`all_reduce`) or pattern of messages (`ring`, `shift:4`, `incast`), by input bytes.

    etude.extend.micro("all_reduce", ranks=8, sizes=[1_000_000, 64_000_000])
    """
    from etude.make.generate import MicroOptions
    from etude.make.generate import micro as made

    refuse_unknown("micro", options, keywords(MicroOptions))
    return made(pattern, MicroOptions(ranks=ranks, sizes=tuple(sizes), **options))


def predict(
    model: str | PathLike[str] | Model, system: str | PathLike[str] | System, plan: Plan | None = None, *,
    stack: str | Stack = "default", check: bool = True, **options: Any,
) -> Prediction:  # fmt: skip
    """How long a training step takes on a system: generated and simulated; axes of the plan, or simulation options.

    etude.predict("llama3-8b", "dgx-h100", gpus=16, tp=2, zero=1).step_time_ns
    """
    from etude.cost.stacks import open_stack
    from etude.run.simulate import Options
    from etude.run.simulate.settings import options_by_name
    from etude.steps import predict as predicted

    known, network = [*keywords(Plan), *map(key_of, fields(Plan))], model_named(model)
    refuse_unknown("predict", options, [*known, *keywords(Options)])
    axes = {key: value for key, value in options.items() if key in known}
    rest = options_by_name({key: value for key, value in options.items() if key not in known}, "predict")
    software = open_stack(stack) if isinstance(stack, str) else stack
    return predicted(
        network, plan_from(plan, axes, model, network), system_named(system), stack=software, check=check, **rest
    )


def plan(
    model: str | PathLike[str], system: str | PathLike[str], *, tries: int = 24, stack: str = "default", **fixed: Any
) -> pa.Table:
    """The plans of a model that fit a system, the fastest first: a row for each plan that was simulated.

    etude.plan("llama3-8b", "dgx-h100", gpus=16, global_batch=64, tries=4)
    """
    import pyarrow as pa

    from etude.decide.search import SearchRequest
    from etude.decide.search.plans import NARROW, search_plans, space_of

    Plan.refuse_experts(fixed, model_named(model))
    over = {name: values for name, values in NARROW.items() if name not in fixed}
    space = space_of(
        model=str(model), system=str(system), fixed=fixed, over=over, stack=stack, tries=tries, recipe=False
    )
    return pa.Table.from_pylist([dict(row) for row in search_plans(space, SearchRequest()).rows])


def federate(
    model: str | PathLike[str] | Model, clients: str | PathLike[str] | Clients, *, rounds: int = 100, count: int = 0,
    steps: int = 1, precision: str = "bf16", micro_batch: int = 1, **rules: Any,
) -> Any:  # fmt: skip
    """Federated rounds of a model over clients (a CSV, or `Clients`); `count` of them a round, 0: all.

    etude.extend.federate("gpt2", "clients.csv", rounds=20, count=10).summary()
    """
    from dataclasses import replace

    from etude.world.fleet.federated import ROUNDS, RoundRules, rounds_of

    refuse_unknown("federate", rules, [*keywords(RoundRules), *keywords(rounds_of)])
    said = {"rounds": rounds, "count": count, "steps": steps, "precision": precision, "micro_batch": micro_batch}
    own = {name: rules.pop(name) for name in ("swarm", "split", "together") if name in rules}
    if "deadline_s" in rules:
        rules["deadline"] = float(rules.pop("deadline_s")) * 1e9
    kind = "swarm" if own.get("swarm") is not None else "server"
    cls, build, run = ROUNDS[kind]
    inputs, _ = built(cls, build, {"model": model, "clients": clients, **unlike(cls, said), **rules}, "federate")
    inputs = inputs if kind == "server" else replace(inputs, rules=replace(inputs.rules, swarm=own["swarm"]))
    return run(inputs, together=own.get("together"), split=own.get("split")).found
