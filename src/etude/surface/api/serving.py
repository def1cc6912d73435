"""Streams of requests on replicas of a model: what `etude.serve` and the command deploy alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import key_of
from etude.machine import open_system
from etude.surface.api.given import keywords, refuse_unknown
from etude.surface.api.making import model_named
from etude.world.serve import Engine, request_stream
from etude.world.serve import serve as served
from etude.world.serve.beside import tower_cost, weighed, with_images
from etude.world.serve.elastic import elastic_pools
from etude.world.serve.limits import least, parse_limits
from etude.world.serve.pools import Between, between_options, deployed_pools, function_of, pools_of, read_pools

if TYPE_CHECKING:
    from etude.make.generate.model import Model
    from etude.world.serve import Served
    from etude.world.serve.pools import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A model on its replicas, ready for streams of requests."""

    network: Model
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

    @property
    def token_bytes(self) -> float:
        """Keys and values of a token, on all ranks of a replica."""
        return float(self.options["token_bytes"])

    def serve(self, stream: Any, *, keep_passes: bool = False, again: bool = False) -> Served:
        """All requests of a stream, until the last has its answer. `again`: the requests of one that was served, which
        have the tokens of their images and their weights already."""
        options = dict(self.options)
        if stream.images.any():
            first = self.pools[0]
            tower = tower_cost(self.network, first.tp, open_system(first.system or self.system))
            stream, options["image_ns"] = stream if again else with_images(stream, tower), tower.image_ns
        if self.between.tenant_weights and not again:
            stream = weighed(stream, self.between.tenant_weights)
        control = self.control(stream, self.limits, options)
        return served(stream, self.rules, self.groups, keep_passes=keep_passes, control=control, **options)


def read_as(cls: Any, given: Mapping[str, Any]) -> Any:
    """A value of a class that is read from a mapping, by the names of its fields."""
    keys = {f.name: key_of(f) for f in fields(cls)}
    return cls.from_dict({keys[name]: value for name, value in given.items()})


def service(
    model: str | PathLike[str] | Model, system: str = "", *, replicas: int = 1, tp: int = 1, ep: int = 1,
    router: Any = "least", precision: str = "bf16", kv_dtype: str = "", stack: str = "vllm", ops: Any = None,
    engine: Engine | None = None, between: Between | None = None, slo: str = "", seed: int = 0, **how: Any,
) -> Service:  # fmt: skip
    """Replicas of a model on a system, or the pools of a file."""
    rules, given, named = engine or Engine(), between or Between(), isinstance(model, str | PathLike)
    pooled = read_pools(str(model)) if named else None
    if not system and pooled is None:
        raise UsageError("no system is given", hint="dgx-h100; `etude systems` lists them")
    network = model_named(pooled[0] if pooled else model)
    pools = pooled[1] if pooled else pools_of(given, replicas=replicas, tp=tp, ep=ep)
    if any(pool.ep > pool.tp for pool in pools):
        rules = replace(rules, barrier=True)
    how = {"system": system, "precision": precision, "stack": stack, "ops": ops, "kv_dtype": kv_dtype, **how}
    groups, placed, control = elastic_pools(network, pools, rules, given, file=pooled is not None, **how)
    limits, token_bytes = parse_limits(slo), placed.token_bytes * pools[0].tp
    options = between_options(given, token_bytes) | {
        "tpot_ns": least(limits, "tpot_s") * 1e9, "router": _router(router), "caching": placed.caching,
        "token_bytes": token_bytes, "seed": seed, "lora": placed.lora,
    }  # fmt: skip
    models = [network]
    if given.draft_model:
        models.append(model_named(given.draft_model))
        options["draft"] = deployed_pools(models[1], pools[:1], rules, **how)[0][0].cost
    return Service(
        network=network, system=system, pools=pools, rules=rules, between=given, groups=groups, placed=placed,
        control=control, options=options, limits=limits,
        notes=tuple(f"assumed {one.assumed}" for one in models if one.assumed),
    )  # fmt: skip


def _router(given: Any) -> Any:
    """A built-in's name, a function, or the one that FILE.py:name says."""
    return function_of(given) if isinstance(given, str) and ":" in given and not given.startswith("br:") else given


def serve(
    model: str | PathLike[str] | Model, system: str = "", requests: str | PathLike[str] | None = None, *,
    rate_per_s: float = 0.0, engine: Engine | None = None, seed: int = 0, keep_passes: bool = False, **options: Any,
) -> Served:  # fmt: skip
    """A stream of requests, of a file or drawn at a rate, on replicas of a model: every request and its times. Options
    are those of `etude serve`: of the stream, the replicas, the engine and what is between replicas.

    etude.serve("llama3-8b", "dgx-h100", rate_per_s=4, count=100, prompt=512, output=64, replicas=2)
    """
    streams, rules, pools = keywords(request_stream), keywords(Engine), keywords(Between)
    replicas = [name for name in keywords(service) if name not in ("engine", "between", "seed")]
    refuse_unknown("serve", options, [*streams, *replicas, *rules, *pools])
    if requests is None and not rate_per_s:
        raise UsageError("no requests are given", hint="a file of requests, or rate_per_s=4")
    kinds = {"stream": streams, "service": replicas, "rules": rules, "between": pools}
    given = {kind: {name: options[name] for name in names if name in options} for kind, names in kinds.items()}
    if given["rules"]:
        engine = replace(engine, **given["rules"]) if engine is not None else read_as(Engine, given["rules"])
    between = read_as(Between, given["between"])
    made = service(model, system, engine=engine, between=between, seed=seed, **given["service"])
    stream = request_stream(requests, rate_per_s=rate_per_s, seed=seed, **given["stream"])
    return made.serve(stream, keep_passes=keep_passes)
