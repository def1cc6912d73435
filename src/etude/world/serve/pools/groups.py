"""Pools: groups of replicas that differ in role or in hardware, the network between them, and the routing.

model: llama3-70b
pools:
  - {role: prefill, count: 2, tp: 4, system: dgx-h100}
  - {role: decode, count: 6, tp: 2, system: dgx-h200}
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import figure, read, read_mapping, text, usage_errors
from etude.base.grammar import line, pairs
from etude.base.trust import check_code
from etude.machine import System, open_system
from etude.make.generate.model import Model
from etude.world.serve import state as of
from etude.world.serve.deployment import Deployment, deployed, deployed_program, replica_plan
from etude.world.serve.engine import Engine, admit_code
from etude.world.serve.hooks import Hooks
from etude.world.serve.kept_program import kept_tables
from etude.world.serve.program_tables import ServedProgram
from etude.world.serve.serving import Group
from etude.world.serve.wire import open_codecs, read_later, wire_of


class ReplicaRole(StrEnum):
    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


ROLES: Final = {ReplicaRole.BOTH: of.BOTH, ReplicaRole.PREFILL: of.PREFILL, ReplicaRole.DECODE: of.DECODE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Equal replicas."""

    role: ReplicaRole = figure("choice", "role of the replicas", ReplicaRole.BOTH, of=ReplicaRole)
    count: int = figure("count", "replicas", 1)
    system: str = text("name in the catalogue, or a file")
    tp: int = figure("count", "tensor-parallel ranks of each", 1)
    ep: int = figure("count", "ranks over which experts are spread: those of a replica, or tp times count for all", 1)
    pp: int = figure("count", "stages of layers of each, on tp ranks each", 1)
    cp: int = figure("count", "parts of each sequence, on tp ranks each", 1)

    @property
    def gpus(self) -> int:
        return self.count * self.tp * self.pp * self.cp


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """The network between replicas, and the routing."""

    disaggregate: str = text("prefill and decode replicas: `2:6`", like="1:2")
    link_bytes_per_s: int = figure(
        "bandwidth", "bandwidth of a replica in each direction, for keys and values", 50_000_000_000
    )
    kv_codec: str = text("codec of transferred keys and values: none, fp8, int4, several, or FILE.csv", like="int4")
    kv_choose: str = figure(
        "text",
        "choice of codec: best, learn (the link from transfers so far), or fixed:NAME",
        "best",
        needs="kv_codec",
        like="learn",
        rare=True,
    )
    kv_quality: float = figure("number", "codecs of lower quality are left out", 0.0, needs="kv_codec", rare=True)
    link_latency_ns: int = figure("time", "latency of a transfer of keys and values", 5_000, zero=True, rare=True)
    link_later: str = text(
        "changes of this bandwidth over time: `30s:10Gb/s;60s:100Gb/s`", like="30s:10Gb/s", rare=True
    )
    reconfigure: str = text(
        "changes of the plan: `at=60s,tp=4,how=live`; `goodput` or FILE.py:name,every=10s with --plans",
        like=["goodput,every=10s,how=live", "at=60s,tp=1"],
    )
    plans: str = text("plans to choose from: `tp=1;tp=4,split=1:3`", needs="reconfigure", like="tp=1;tp=2", rare=True)
    scale: str = text(
        "scaling of the number of replicas: `queue:2..16,most=8`, or FILE.py:name,most=8", like="queue:2..16,most=8"
    )
    set_up_ns: int = figure(
        "time",
        "time to set up groups, when a plan changes or a replica starts",
        1_000_000_000,
        zero=True,
        needs="reconfigure|scale",
        rare=True,
    )
    load_bytes_per_s: int = figure(
        "bandwidth", "loading rate of weights into a rank", 50_000_000_000, needs="reconfigure|scale", rare=True
    )
    draft_model: str = text(
        "draft model that proposes --num-speculative-tokens, on the devices of a replica",
        needs="num_speculative_tokens",
        like="gpt2",
    )
    tenant_weights: str = text(
        "shares of tenants with --scheduling-policy fair: `chat=3,batch=1`",
        needs="scheduling_policy=fair",
        like="chat=3,batch=1",
        rare=True,
    )
    admit: str = figure(
        "text", "parallel branches of a response: off, eager, cap:4, slack, slack:0.5", "off", like="eager", rare=True
    )
    decide_ns: int = figure("time", "time of the router per request", 0, rare=True)
    hook: str = text(
        "your own functions: `evict=mine.py:longest,batch=mine.py:order`", like="batch=mine.py:order", rare=True
    )

    def __post_init__(self) -> None:
        admit_code(self.admit)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any], where: str = "pools") -> Between:
        with usage_errors(where):
            return read(cls, given, where)

    @property
    def hooked(self) -> set[str]:
        """Names of the rules that functions replace; the functions are not loaded."""
        return {part.partition("=")[0] for part in self.hook.split(",") if part}

    def hooks(self) -> Hooks:
        known = [f.name for f in fields(Hooks)]
        parts = line(self.hook, "--hook", "evict=mine.py:longest,batch=mine.py:order").split(",") if self.hook else ()
        return Hooks(**{name: function_of(place.text) for name, place in pairs(parts, known).items()})


def function_of(text: str) -> Callable[..., Any]:
    """The function named by FILE.py:name."""
    path, colon, name = text.rpartition(":")
    if not colon:
        raise UsageError(f"`{text}` does not name a function", hint="FILE.py:name")
    if not Path(path).is_file():
        raise UsageError("there is no such file", where=path)
    check_code(text)
    try:
        found = runpy.run_path(path).get(name)
    except Exception as problem:
        raise UsageError(f"cannot be loaded: {type(problem).__name__}: {problem}", where=path) from problem
    if not callable(found):
        raise UsageError(f"has no function `{name}`", where=path)
    return found


def read_pools(path: str) -> tuple[str, list[Pool]] | None:
    """Model and pools of a file; None if it is not one of pools."""
    if not path.endswith((".yaml", ".yml")) or not Path(path).is_file():
        return None
    given = read_mapping(Path(path))
    if "pools" not in given:
        return None
    if unknown := sorted(set(given) - {"model", "pools"}):
        raise UsageError(f"unknown key `{unknown[0]}`", where=path, hint="known: model, pools")
    if not isinstance(given.get("model"), str) or not isinstance(given["pools"], list) or not given["pools"]:
        raise UsageError(
            "does not name a model, or has no pools", where=path, hint="model: llama3-8b, pools: [{role: prefill}]"
        )
    with usage_errors():
        return given["model"], [read(Pool, one, f"{path}: pools[{i}]") for i, one in enumerate(given["pools"])]


def split_of(text: str) -> tuple[int, int]:
    """Replicas for prefill and for decode, of `2:6`."""
    prefill, decode = line(text, "--disaggregate", "2:6, replicas for prefill and decode").cut(":")
    if decode is None:
        raise prefill.wrong(f"`{prefill.text}` is not two numbers")
    return prefill.count(), decode.count()


def pools_of(between: Between, *, replicas: int, tp: int, ep: int, pp: int = 1, cp: int = 1) -> list[Pool]:
    """Pools from flags: equal replicas, or separate ones for prefill and decode."""
    if not between.disaggregate:
        return [Pool(count=replicas, tp=tp, ep=ep, pp=pp, cp=cp)]
    parts = split_of(between.disaggregate)
    if replicas not in (1, sum(parts)):
        problem = f"--replicas {replicas} cannot be combined with --disaggregate {between.disaggregate}"
        raise UsageError(problem, hint="leave one of them out")
    roles = (ReplicaRole.PREFILL, ReplicaRole.DECODE)
    return [Pool(role=role, count=count, tp=tp, ep=ep, pp=pp, cp=cp) for role, count in zip(roles, parts, strict=True)]


def deployed_pools(
    model: Model | ServedProgram,
    pools: list[Pool],
    engine: Engine,
    *,
    system: str,
    precision: str = "bf16",
    network: System | None = None,
    **options: Any,
) -> tuple[list[Group], Deployment]:
    """Each pool as a group of the loop; and the deployment of the first. `network`: what the system is like while its
    links are others."""
    made: dict[tuple[str, int, int, int, int, int, int], Deployment] = {}
    groups = []
    if options.get("experts") is not None and any(pool.count > 1 for pool in pools):
        raise UsageError(
            "offloaded experts are in the memory of one host, which replicas cannot share", hint="use one replica"
        )
    for pool in pools:
        named = pool.system or system
        if not named:
            raise UsageError("no system is given", hint="--system dgx-h100; `etude systems` lists them")
        if isinstance(model, ServedProgram):
            key = (named, pool.tp, 1, 1, 0, 1, 1)
            if key not in made:
                on = network or open_system(named)
                tables = kept_tables(model, on, ranks=pool.tp)
                made[key] = deployed_program(model.spec, tables, on, engine, **options)
            groups.append(_group(made[key], pool))
            continue
        shared = bool(model.experts) and pool.ep > pool.tp and pool.ep == pool.tp * pool.count
        streams = 0
        if options.get("experts") is not None and pool.role is ReplicaRole.DECODE:
            streams = sum(other.tp for other in pools if other.role is ReplicaRole.PREFILL)
        key = (named, pool.tp, pool.ep, pool.count if shared else 1, streams, pool.pp, pool.cp)
        if key not in made:
            plan = replica_plan(model, pool.tp, ep=pool.tp if shared else pool.ep, precision=precision)
            on = network or open_system(named)
            made[key] = deployed(
                model, plan, on, engine, groups=key[3], streams=streams, pp=pool.pp, cp=pool.cp, **options
            )
        groups.append(_group(made[key], pool))
    return groups, next(iter(made.values()))


def _group(one: Deployment, pool: Pool) -> Group:
    return Group(one.cost, pool.count * pool.pp, ROLES[pool.role], one.blocks, one.energy, one.token_bytes, one.error)


def between_options(between: Between, token_bytes: float) -> dict[str, Any]:
    """As `serving.Options`, with `token_bytes` bytes of keys and values per token."""
    codecs = open_codecs(between.kv_codec, between.kv_quality)
    wire = wire_of(
        token_bytes,
        between.link_bytes_per_s,
        between.link_latency_ns,
        codecs,
        between.kv_choose,
        read_later(between.link_later),
    )
    return {"wire": wire, "admit": between.admit, "decide_ns": between.decide_ns, "hooks": between.hooks()}
