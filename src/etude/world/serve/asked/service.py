"""A service: a model on its replicas, from what is asked for to what serves streams of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, text
from etude.base.parameters import is_given, only_with, replaces, spelled, whole
from etude.machine import open_system
from etude.make.generate.model import Model, open_model
from etude.world.serve.beside import tower_cost, weighed, with_images
from etude.world.serve.elastic import elastic_pools
from etude.world.serve.engine import Engine
from etude.world.serve.limits import least, parse_limits
from etude.world.serve.offload import ExpertRules, expert_rules
from etude.world.serve.pools import Between, Pool, between_options, deployed_pools, function_of, pools_of, read_pools
from etude.world.serve.pools.groups import ReplicaRole
from etude.world.serve.program_tables import ServedProgram
from etude.world.serve.serving import Served
from etude.world.serve.serving import serve as served

PANEL: Final = "Model and replicas"
HINT: Final = "etude serve llama3-8b --system dgx-h100 --rate 4"
CODECS: Final = ("kv_codec", "kv_choose", "kv_quality")
LINK: Final = ("link", "link_latency", "link_later")


@dataclass(frozen=True, kw_only=True)
class CostInput:
    """Parameters of the costs of passes: a model, the ranks of a replica, and what they run on."""

    model: Any = argument(
        "noun", "a model of the catalogue, a Hugging Face id, a YAML file, or a `config.json`", "", like="gpt2"
    )
    system: str = figure(
        "noun",
        "simulate there: a name of `etude systems`, or a file",
        "",
        of=str,
        names=("-s",),
        like="dgx-h200",
        panel=PANEL,
    )
    tp: int = figure("count", "tensor-parallel ranks of a replica", 1, panel=PANEL)
    ep: int = figure("count", "ranks of a replica over which experts are spread", 1, panel=PANEL)
    precision: str = figure("text", "data type of weights and products: bf16, fp8", "bf16", like="fp8", panel=PANEL)
    kv_dtype: str = text(
        "data type of keys and values: bf16, fp8; default: that of the computation", like="fp8", panel=PANEL
    )
    stack: str = figure(
        "text", "software stack of the engine: vllm, torch-flash2, none", "vllm", like="none", panel=PANEL
    )
    ops: str | None = figure("path", "database of `etude ops`, or profile folder of the engine", None, panel=PANEL)


@dataclass(frozen=True, kw_only=True)
class ReplicasInput(CostInput):
    """... and of the replicas."""

    replicas: int = figure("count", "copies of the model, each with its own engine", 1, panel=PANEL)
    pp: int = figure("count", "stages of layers of a replica, each on --tp ranks", 1, panel=PANEL)
    cp: int = figure(
        "count", "parts of each sequence, of prompts and of keys, each on --tp ranks", 1, panel=PANEL, rare=True
    )
    router: Any = figure(
        "noun",
        "turn, least, tokens, two, session, prefix, affinity, br0, br:STEPS, NAME+steal, FILE.py:name",
        "least",
        like="two",
        panel=PANEL,
    )
    offload: str = text(
        "experts in the memory of a host: `experts path=host|stream|auto host=xeon-8480`",
        like="experts path=auto host=xeon-8480",
        panel=PANEL,
        rare=True,
    )


@dataclass(frozen=True, kw_only=True)
class ProgramInput:
    """... or of a program in place of a model."""

    program: str = text(
        "a causal language model as a program, dry-run: a `config.json` of transformers, or FILE.py:NAME",
        like="model.py:build",
        panel=PANEL,
        local=True,
    )
    answer: tuple[str, ...] = figure(
        "several",
        "value that the program decides by, by its name or the line that asks: moe.py:88=128",
        (),
        needs="program",
        like=("moe.py:88=128",),
        metavar="NAME=VALUE",
        plain=True,
        panel=PANEL,
        rare=True,
        local=True,
    )


@dataclass(frozen=True, kw_only=True)
class RulesInput:
    """... and of how they work, and what is between them."""

    engine: Engine = part(Engine, "The engine")
    between: Between = part(Between, "Between replicas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """What a service is made of."""

    model: str | Model | ServedProgram
    system: str = ""
    pools: tuple[Pool, ...]
    file: bool = False
    """Whether the pools are of a file."""
    router: Any = "least"
    costs: Mapping[str, Any]
    """Of `deployed`: precision, kv_dtype, stack, ops, and experts that are offloaded."""
    engine: Engine = field(default_factory=Engine)
    between: Between = field(default_factory=Between)
    limits: Mapping[str, Mapping[str, float]]
    seed: int = 0

    @property
    def draws(self) -> bool:
        """Whether the loop draws anything: a router that picks two, proposals that are accepted or not."""
        picks = isinstance(self.router, str) and self.router.startswith("two")
        return picks or bool(self.engine.num_speculative_tokens)

    def open(self) -> ModelService:
        """Opens the models and the systems, and works out the costs of passes."""
        served = self.model if isinstance(self.model, ServedProgram) else model_named(self.model)
        network = None if isinstance(served, ServedProgram) else served
        how = {"system": self.system, **self.costs}
        pools, rules, given = list(self.pools), self.engine, self.between
        rules = replace(rules, max_num_seqs=-(-rules.max_num_seqs // pools[0].pp))
        if any(pool.ep > pool.tp for pool in pools):
            rules = replace(rules, barrier=True)
        groups, placed, control = elastic_pools(served, pools, rules, given, file=self.file, **how)
        limits, token_bytes = {k: dict(v) for k, v in self.limits.items()}, placed.token_bytes * pools[0].tp
        options = between_options(given, token_bytes) | {
            "tpot_ns": least(limits, "tpot_s") * 1e9,
            "router": _router(self.router),
            "caching": placed.caching,
            "token_bytes": token_bytes,
            "seed": self.seed,
            "lora": placed.lora,
            "stages": placed.stages,
        }
        models = [network] if network else []
        if given.draft_model:
            models.append(model_named(given.draft_model))
            options["draft"] = deployed_pools(models[-1], pools[:1], rules, **how)[0][0].cost
        return ModelService(
            model=network, system=self.system, pools=pools, rules=rules, between=given, groups=groups, placed=placed,
            control=control, options=options, limits=limits, costs=self.costs,
            notes=(*(f"assumed {one.assumed}" for one in models if one.assumed),
                   *(f"assumed: {note}" for note in placed.notes)),
        )  # fmt: skip


def model_named(model: Any) -> Model:
    """A model that is given, or that of a name, a Hugging Face id or a file."""
    return model if isinstance(model, Model) else open_model(model)


def _router(given: Any) -> Any:
    """A built-in's name, a function, or the one that FILE.py:name says."""
    return function_of(given) if isinstance(given, str) and ":" in given and not given.startswith("br:") else given


# -- from what is asked for --------------------------------------------------------------------------------------------


def costs_of(asked: CostInput) -> dict[str, Any]:
    """Options of `deployed` that every service has."""
    ops = asked.ops
    return {
        "precision": asked.precision,
        "stack": asked.stack,
        "ops": None if ops is None else Path(ops),
        "kv_dtype": asked.kv_dtype,
    }


def asked_model(asked: CostInput) -> Any:
    if not (model := asked.model):
        raise UsageError("no model is given", hint=HINT)
    return model


def asked_system(asked: CostInput) -> str:
    if not (system := asked.system):
        raise UsageError("no system is given", hint="--system dgx-h100; `etude systems` lists them")
    return system


def plain_replicas(asked: CostInput, *, count: int = 1, limits: Mapping[str, Any] | None = None) -> Replicas:
    """Equal replicas without an engine: for what has a loop of its own and needs the costs of passes."""
    model, system = asked_model(asked), asked_system(asked)
    pools = (Pool(count=count, tp=asked.tp, ep=asked.ep),)
    return Replicas(model=model, system=system, pools=pools, costs=costs_of(asked), limits=limits or {"": {}})


def program_replicas(asked: Any, slo: str = "") -> Replicas:
    """Replicas of a program (`ProgramInput`): its weights, types and sharding are its own."""
    from etude.capture.dry import stated_answers

    for other in ("model", "ep", "pp", "cp", "precision", "kv_dtype", "ops", "offload"):
        replaces(asked, "program", other)
    engine, pools = whole(asked.engine), _pools(asked)
    between = _between(asked, pools, engine, file=False)
    for name, given in (("reconfigure", between.reconfigure), ("max_loras", engine.max_loras)):
        if given:
            replaces(asked, "program", name)
    program = ServedProgram(asked.program, tuple(sorted(stated_answers(asked.answer).items())))
    return Replicas(
        model=program, system=asked_system(asked), pools=pools, costs={"stack": asked.stack}, engine=engine,
        router="least" if "route" in between.hooked else asked.router, between=between, limits=parse_limits(slo),
    )  # fmt: skip


def replicas_of(asked: Any, slo: str = "") -> Replicas:
    """Reads what replicas (`ReplicasInput` and `RulesInput`) have, but for the seed: a stream may need it too."""
    model = asked_model(asked)
    pooled = None if isinstance(model, Model) else read_pools(model)
    pools = tuple(pooled[1]) if pooled else _pools(asked)
    system = asked.system if not all(pool.system for pool in pools) else ""
    if not system and not pooled:
        system = asked_system(asked)
    engine, experts = whole(asked.engine), _experts(asked)
    if engine.reserve:
        replaces(asked, "reserve", "whole_prompt")
    if not engine.chunked and is_given(asked, "cut_prompts"):
        problem = f"{spelled(asked, 'cut_prompts')} is read only where prompts share passes with tokens out"
        raise UsageError(problem, hint="leave it out, or leave out --no-chunked")
    between = _between(asked, pools, engine, file=pooled is not None)
    check_stages(pools, engine, between, offload=bool(experts), ops=bool(asked.ops))
    return Replicas(
        model=pooled[0] if pooled else model,
        system=system,
        pools=pools,
        file=pooled is not None,
        router="least" if "route" in between.hooked else asked.router,
        costs=costs_of(asked) | experts,
        engine=engine,
        between=between,
        limits=parse_limits(slo),
    )


def _pools(asked: Any) -> tuple[Pool, ...]:
    split = asked.between.disaggregate
    if split:
        replaces(asked, "disaggregate", "replicas")
    count = 1 if split else asked.replicas
    return tuple(
        pools_of(Between(disaggregate=split), replicas=count, tp=asked.tp, ep=asked.ep, pp=asked.pp, cp=asked.cp)
    )


def check_stages(
    pools: tuple[Pool, ...], engine: Engine, between: Between, *, offload: bool, ops: bool = False
) -> None:
    """Refuses what replicas of several stages, or whose ranks have parts of sequences, do not have."""
    stages, parts = max(pool.pp for pool in pools), max(pool.cp for pool in pools)
    if stages == parts == 1:
        return
    said = f"--pp {stages}" if stages > 1 else f"--cp {parts}"
    without = {
        "--cp": stages > 1 and parts > 1,
        "--ops": parts > 1 and ops,
        "--ep": parts > 1 and any(pool.ep > 1 for pool in pools),
        "--cache": engine.caching.mode != "none",
        "--max-loras": bool(engine.max_loras),
        "--barrier": engine.barrier,
        "--disaggregate": any(pool.role is not ReplicaRole.BOTH for pool in pools),
        "--ep over several replicas": any(pool.ep > pool.tp for pool in pools),
        "--reconfigure": bool(between.reconfigure),
        "--scale": bool(between.scale),
        "--draft-model": bool(between.draft_model),
        "--offload": offload,
        "--preemption-mode swap": engine.preemption_mode == "swap",
        "pools of another number of stages": len({pool.pp for pool in pools}) > 1,
        "pools of another number of parts": len({pool.cp for pool in pools}) > 1,
    }
    for name, given in without.items():
        if given:
            raise UsageError(f"{said} cannot be combined with {name}", hint="leave one of them out")


def _experts(asked: Any) -> dict[str, ExpertRules]:
    words = asked.offload
    if not words:
        return {}
    if asked.between.draft_model:
        raise UsageError("--offload experts cannot be combined with --draft-model", hint="give one of them")
    return {"experts": expert_rules(words)}


def _between(asked: Any, pools: tuple[Pool, ...], engine: Engine, *, file: bool) -> Between:
    """What is between these replicas: the link and the codecs only where keys and values are sent."""
    changes = asked.between.reconfigure
    timed = changes.startswith("at=")
    plans = changes if timed or not changes else asked.between.plans
    apart = any(pool.role is not ReplicaRole.BOTH for pool in pools) or "split=" in plans
    but = {"disaggregate"} if file else set[str]()
    if timed:
        but.add("plans")
    if not apart and not engine.caching.coded:
        but.update(CODECS)
        only_with(asked, "disaggregate", *CODECS)
    if not apart and "how=live" not in changes:
        but.update(LINK)
        only_with(asked, "disaggregate", *LINK)
    found = whole(asked.between, but)
    for name, other in (("choose", "kv_choose"), ("route", "router")):
        if name in found.hooked:
            replaces(asked, "hook", other)
    return found


# -- a service ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelService:
    """A model on its replicas, ready for streams of requests."""

    model: Model | None
    """None: a program."""
    system: str
    pools: list[Pool]
    rules: Engine
    between: Between
    groups: list[Any]
    placed: Any
    control: Any
    """Makes what brings and takes replicas during a stream."""
    options: dict[str, Any]
    limits: dict[str, dict[str, float]]
    notes: tuple[str, ...] = ()
    """What had to be assumed of the models."""
    costs: Mapping[str, Any] = field(default_factory=dict)
    """Of `deployed`: precision, stack, ops."""

    @property
    def network(self) -> Model:
        """The model; raises UsageError for a program, whose shape is not known."""
        if self.model is None:
            raise UsageError("this needs a model of the catalogue, and a program is served", hint="leave out --program")
        return self.model

    @property
    def token_bytes(self) -> float:
        """Keys and values of a token, on all ranks of a replica."""
        return float(self.options["token_bytes"])

    @property
    def interpolation_error(self) -> dict[str, float] | None:
        """Interpolation error of the step costs at shapes between their points: the largest over all groups; None if
        one is unknown."""
        known = [group.error for group in self.groups if group.error is not None]
        if len(known) < len(self.groups):
            return None
        return {"median": max(median for median, _ in known), "max": max(most for _, most in known)}

    def prepared(self, stream: Any, *, again: bool = False) -> tuple[Any, dict[str, Any]]:
        """A stream as it is served here, and its options. `again`: the requests of one that was served, which have the
        tokens of their images and their weights already."""
        options = dict(self.options)
        if stream.images.any():
            first = self.pools[0]
            tower = tower_cost(self.network, first.tp, open_system(first.system or self.system))
            stream, options["image_ns"] = stream if again else with_images(stream, tower), tower.image_ns
        if self.between.tenant_weights and not again:
            stream = weighed(stream, self.between.tenant_weights)
        return stream, options

    def serve(self, stream: Any, *, keep_passes: bool = False, again: bool = False) -> Served:
        """All requests of a stream, until the last has its answer."""
        stream, options = self.prepared(stream, again=again)
        control = self.control(stream, self.limits, options)
        return served(stream, self.rules, self.groups, keep_passes=keep_passes, control=control, **options)
