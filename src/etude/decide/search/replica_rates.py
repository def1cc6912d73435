"""Requested models, kinds of devices, plans of a replica, and the rate that each sustains within its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import ceil, inf
from typing import Any, Final

from etude.base.errors import EtudeError, UsageError
from etude.base.figures import figure, read, read_mapping, text
from etude.decide.search.request import SearchRequest, SpaceFile

WITHIN: Final = 1.02
"""Precision of a rate, as a factor."""
FASTEST: Final = 1e6
FEWEST, MOST = 100, 20_000
"""Fewest and most requests of a stream."""
MEMORY, PLAN, SLO = "memory", "plan", "slo"
"""Why a model is not served by a plan on a kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOffer:
    """An available kind of device."""

    kind: str = figure("text", "its name")
    device: str = figure("text", "a device of the catalogue, or a file")
    price: float = figure("number", "price of a device in dollars per hour")
    node: int = figure("count", "devices that one replica can use", 1)
    link_bytes_per_s: int = figure("bandwidth", "bandwidth between two devices of a node", 25_000_000_000)
    latency_ns: int = figure("time", "latency of that link", 2000)
    available: float = figure("number", "number of devices; unset: no limit", inf, zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedModel:
    """A model, its requests and their limits."""

    model: str = figure("text", "a model of the catalogue, or a file")
    prompt: int = figure("count", "tokens in", 1024)
    output: int = figure("count", "tokens out", 128)
    ttft_ns: float = figure("time", "time until the first token; unset: no limit", inf)
    tpot_ns: float = figure("time", "time of each further token", inf)
    latency_ns: float = figure("time", "time of the whole response", inf)
    precision: str = figure("text", "precision of weights and products", "bf16")
    weight: float = figure("number", "weight of a request, where goodput is the score", 1.0)

    def limits(self) -> dict[str, dict[str, float]]:
        times = {"ttft_s": self.ttft_ns, "tpot_s": self.tpot_ns, "latency_s": self.latency_ns}
        return {"": {name: time / 1e9 for name, time in times.items() if time < inf}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A plan of one replica, and the rules of its engine."""

    tp: int = figure("count", "devices of a replica", 1)
    precision: str = text("instead of the model's")
    max_num_batched_tokens: int = figure("count", "largest number of tokens in a pass", 2048)
    max_num_seqs: int = figure("count", "largest number of running sequences", 256)

    @property
    def name(self) -> str:
        usual = Strategy()
        more = [str(v) for k, v in asdict(self).items() if k != "tp" and v != getattr(usual, k)]
        return " ".join([f"tp{self.tp}", *more])


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A replica of a model on devices of a kind, and the rate that it sustains within the limits."""

    model: str = figure("text", "a key of `models`")
    kind: str = figure("text", "a kind")
    plan: str = text("name of the plan")
    devices: int = figure("count", "devices that the replica uses", 1)
    rate: float = figure("number", "requests per second")


def wanted_of(given: SpaceFile) -> dict[str, WantedModel]:
    """`models`: a mapping, or the file that holds it."""
    found = given.keys.get("models")
    if isinstance(found, str):
        found = read_mapping(given.path(found))
    if not isinstance(found, Mapping) or not found:
        hint = "models: {chat: {model: llama3-8b, prompt: 1024, output: 128, ttft: 1s}}"
        raise UsageError("key `models` is missing", where=given.where, hint=hint)
    return {str(name): read(WantedModel, about, f"{given.where}: models: {name}") for name, about in found.items()}


def strategies_of(given: SpaceFile) -> list[Strategy]:
    """`plans`: numbers of devices of a replica, or mappings with more keys."""
    found = given.keys.get("plans", [1])
    if not isinstance(found, list) or not found:
        raise UsageError("`plans` is not a list", where=given.where, hint="plans: [1, 2, {tp: 4, precision: fp8}]")
    rows = [about if isinstance(about, Mapping) else {"tp": about} for about in found]
    return [read(Strategy, about, f"{given.where}: plans[{i}]") for i, about in enumerate(rows)]


def offers_of(
    given: SpaceFile, asked: SearchRequest, models: Mapping[str, WantedModel], kinds: Sequence[DeviceOffer]
) -> tuple[list[Offer], dict[str, int]]:
    """Every (model, kind, plan) that sustains some rate, and how many do not, by reason."""
    if "throughput" in given.keys:
        offers = given.table("throughput", Offer)
        known = {one.kind for one in kinds}
        for one in offers:
            if one.model not in models or one.kind not in known:
                problem = f"a rate of `{one.model}` on `{one.kind}`, which are not both in the search"
                raise UsageError(problem, where=str(given.keys["throughput"]))
        return offers, {}
    from etude.decide.study import evaluate
    from etude.decide.study.space import Space

    plans, seconds, part = strategies_of(given), given.number("seconds", 20), given.number("part", 0.99, 1.0)
    every = product(range(len(models)), range(len(kinds)), range(len(plans)))
    rows = [dict(zip(("model", "kind", "plan"), at, strict=True)) for at in every]
    told = {"models": list(models.values()), "kinds": list(kinds), "plans": plans, "seconds": seconds, "part": part}
    found = evaluate(Space(rows=rows), rate_at, shared={**told, "seed": asked.seed}, **asked.carrying()).to_pylist()
    names, offers, pruned = list(models), [], dict.fromkeys((MEMORY, PLAN, SLO), 0)
    for row in found:
        if row["error"]:
            raise UsageError(row["error"], where=given.where)
        plan = plans[row["plan"]]
        if row["why"]:
            pruned[row["why"]] += 1
        else:
            offers.append(Offer(model=names[row["model"]], kind=kinds[row["kind"]].kind, plan=plan.name,
                                devices=plan.tp, rate=row["rate"]))  # fmt: skip
    return offers, pruned


def rate_at(
    model: int, kind: int, plan: int, *, models: Sequence[WantedModel], kinds: Sequence[DeviceOffer],
    plans: Sequence[Strategy], **how: Any,
) -> dict[str, Any]:  # fmt: skip
    """The rate of one model on one kind by one plan, in requests per second, or why there is none."""
    return kept_rate(models[model], kinds[kind], plans[plan], **how)


_RATES: dict[str, dict[str, Any]] = {}
_WEIGHTS: dict[str, int] = {}
"""Per process: results for equal models, systems and plans."""


def kept_rate(
    wanted: WantedModel, kind: DeviceOffer, plan: Strategy, seconds: float, part: float, seed: int
) -> dict[str, Any]:
    """`rate` and `why`: the highest rate at which this fraction of the requests of this many seconds, drawn at random,
    is within the limits. A stream has at least FEWEST requests; a short one may hide a queue that a longer one would
    not."""
    from etude.machine.open import open_device, system_of
    from etude.make.generate.model import open_model

    model = open_model(wanted.model)
    device = open_device(kind.device)
    levels = [{"name": "node", "kind": "switch", "size": kind.node, "bandwidth": kind.link_bytes_per_s,
               "latency": kind.latency_ns}]  # fmt: skip
    system = system_of({"name": kind.kind, "device": kind.device, "levels": levels}, kind.kind)
    key = repr((model, device, levels, wanted, plan, seconds, part, seed))
    if key not in _RATES:
        _RATES[key] = _served(model, system, wanted, plan, (seconds, part, seed))
    return _RATES[key]


def _served(
    model: Any, system: Any, wanted: WantedModel, plan: Strategy, how: tuple[float, float, int]
) -> dict[str, Any]:
    from etude.make.generate.passes import held_by
    from etude.world.serve import Engine, deployed, replica_plan, request_stream, serve, summary

    seconds, part, seed = how
    try:
        if plan.tp > system.levels[0].size:
            return {"rate": 0.0, "why": PLAN}
        ranks = replica_plan(model, plan.tp, precision=plan.precision or wanted.precision)
        key = repr((model, ranks))
        if key not in _WEIGHTS:
            _WEIGHTS[key] = held_by(model, ranks, 1).weights_bytes
    except EtudeError:
        return {"rate": 0.0, "why": PLAN}
    if _WEIGHTS[key] > system.device.memory_bytes:
        return {"rate": 0.0, "why": MEMORY}
    engine = Engine(max_num_batched_tokens=plan.max_num_batched_tokens, max_num_seqs=plan.max_num_seqs)

    def holds(rate: float) -> bool:
        count = min(max(ceil(rate * seconds), FEWEST), MOST)
        stream = request_stream(rate_per_s=rate, count=count, prompt=wanted.prompt, output=wanted.output, seed=seed)
        served = serve(stream, engine, replica.cost, blocks=replica.blocks)
        return bool(summary(served, limits=wanted.limits())["within_limits"] >= part)

    try:
        replica = deployed(model, ranks, system, engine)
        rate = highest(holds)
    except UsageError:
        return {"rate": 0.0, "why": MEMORY}
    return {"rate": rate, "why": "" if rate else SLO}


def highest(holds: Any) -> float:
    """The highest rate that holds, to WITHIN; 0: none does."""
    low, high = 0.0, 1.0
    if holds(high):
        while holds(high) and high < FASTEST:
            low, high = high, high * 4
    else:
        while not low and high > 1e-3:
            if holds(high / 4):
                low = high / 4
            else:
                high /= 4
    while low and high / low > WITHIN:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
