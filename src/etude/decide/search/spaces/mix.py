"""How many devices of which kinds, for which models and by which plans, at the least price or with the most goodput.

search: mix
models: {chat: {model: llama3-8b, prompt: 1024, output: 128, ttft: 1s, tpot: 50ms}}
kinds: kinds.csv             # kind,device,price,node,link,latency,available
plans: [1, 2, 4]             # devices of a replica, or {tp: 2, precision: fp8}
demand: demand.csv           # hour,model,rate
available: available.csv     # kind,hour,count; nothing: as `kinds` says
score: cost                  # or goodput, within `budget` dollars per hour
mixed: true                  # false: the best kind alone

Methods: `ilp` leaves out plans that another of the same kind beats, which loses nothing, and solves for counts; `joint`
solves for all plans; `all` tries all counts. Each hour is solved by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.figures import figure
from etude.decide.search.found import Found, Row
from etude.decide.search.programs import IntegerProgram, every_sum
from etude.decide.search.replica_rates import DeviceOffer, Offer, WantedModel, offers_of, wanted_of
from etude.decide.search.request import PARALLEL, SearchRequest, SpaceFile
from etude.decide.search.solver import Answer, CandidateSpace, Trials, every

METHODS: Final = ("ilp", "joint", "all")
SCORES: Final = ("cost", "goodput")
INPUT: Final = ("models", "kinds", "plans", "demand", "available", "throughput")
KEYS: Final = (*INPUT, "score", "budget", "seconds", "part", "mixed")
MOST: Final = 2_000_000
MOST_USES: Final = 200_000
"""Most counts that `all` tries, in total and of one kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    hour: int = figure("count", "counted from 0", 0)
    model: str = figure("text", "a key of `models`")
    rate: float = figure("number", "requests per second", zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlySupply:
    kind: str = figure("text", "a kind")
    hour: int = figure("count", "from this hour on", 0)
    count: float = figure("number", "available devices", zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """Demand of an hour, and available devices."""

    models: tuple[str, ...]
    demand: tuple[float, ...]
    weight: tuple[float, ...]
    prices: Mapping[str, float]
    available: Mapping[str, float]
    goodput: bool
    budget: float = inf


@dataclass(frozen=True, slots=True)
class DeviceMix:
    counts: tuple[int, ...]
    """Number of each offer."""
    cost: float
    """Dollars per hour."""
    goodput: float
    """Served requests per second, by weight."""


def space(given: SpaceFile, asked: SearchRequest) -> MixSpace:
    return MixSpace(given, asked)


def options(keys: Mapping[str, Any], method: str) -> frozenset[str]:
    return frozenset() if "throughput" in keys else PARALLEL | {"seed"}


class MixSpace(CandidateSpace[int]):
    """Hours, each with the best counts of devices."""

    def __init__(self, given: SpaceFile, asked: SearchRequest) -> None:
        given.only(*KEYS)
        self.method, self.mixed, self.where = asked.one_of(*METHODS), given.keys.get("mixed", True), given.where
        if not isinstance(self.mixed, bool):
            raise UsageError(f"`mixed` is {self.mixed}", where=given.where, hint="true, or false: the best kind alone")
        models, kinds = wanted_of(given), given.table("kinds", DeviceOffer, "kind")
        self.hours = _hours(given, models, kinds)
        self.every_offer, self.no_offer = offers_of(given, asked, models, kinds)
        self.offers = self.every_offer if self.method != "ilp" else undominated(self.every_offer)
        self.methods, self.scores, self.took_s = dict.fromkeys(METHODS, every), {"cost": 1}, 0.0
        self.listed, self.size = list(self.hours), len(self.hours)
        self.score = given.keys.get("score", "cost")

    def rows(self, some: Sequence[int], limit: float) -> list[Answer]:
        return [self._row(number, self.hours[number]) for number in some]

    def _row(self, number: int, hour: Hour) -> Answer:
        single = alone(self.offers, hour)
        pool = self.offers if self.mixed else [one for one in self.offers if single and one.kind == single[0]]
        choice, took_s = choose(pool, hour, self.method) if self.mixed else (single[1] if single else None, 0.0)
        self.took_s += took_s
        return _row(number, hour, pool, choice, single) if choice else "unserved"

    def found(self, trials: Trials[int]) -> Found:
        """`space` counts offers: replicas of a model on a kind by a plan."""
        rows = list(trials.rows.values())
        if not rows:
            hint = "more `available`, other `plans`, or score: goodput"
            raise UsageError("the available devices never serve all requests", where=self.where, hint=hint)
        static = choose(self.offers, _peak(list(self.hours.values())))[0] if self.mixed else None
        told: dict[str, Any] = {name: _sum(rows, name) for name in ("cost", "goodput", "single_cost", "single_goodput")}
        told |= {"hours": len(rows), "unserved_hours": [hour for hour in self.hours if hour not in trials.rows]}
        told |= {"static_cost": static.cost * len(rows) if static else None}
        pruned = self.no_offer | {"dominated": len(self.every_offer) - len(self.offers)}
        about = {"method": self.method, "score": self.score, "offers": [asdict(one) for one in self.offers]}
        return Found(
            best=max(rows, key=lambda row: (row["demand"], -row["hour"])),
            frontier=rows,
            tried=len(self.offers),
            pruned={why: count for why, count in pruned.items() if count},
            space=len(self.every_offer) + sum(self.no_offer.values()),
            rows=rows,
            more=told | about,
            notes=_notes(told),
            told=(f"{len(self.hours)} hours solved in {self.took_s:.2f} s",),
        )


def _notes(told: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes for all hours together."""
    found = [f"{told['hours']} hours: {told['cost']:,.2f} dollars, {told['goodput']:,.1f} requests per second served"]
    if told["single_cost"] is not None:
        found.append(f"best single kind: {told['single_cost']:,.2f} dollars, {told['single_goodput']:,.1f}")
    if told["static_cost"] is not None:
        found.append(f"one allocation for all hours: {told['static_cost']:,.2f} dollars")
    if told["unserved_hours"]:
        found.append(f"hours that cannot be served: {', '.join(map(str, told['unserved_hours']))}")
    return tuple(found)


def undominated(offers: Sequence[Offer]) -> list[Offer]:
    """Offers without those that another of the same model and kind beats: at least as fast with no more devices."""
    kept: list[Offer] = []
    for one in sorted(offers, key=lambda o: (o.devices, -o.rate)):
        same = [o for o in kept if (o.model, o.kind) == (one.model, one.kind)]
        if not any(o.rate >= one.rate for o in same):
            kept.append(one)
    return [one for one in offers if any(one is o for o in kept)]


def _hours(given: SpaceFile, models: Mapping[str, WantedModel], kinds: Sequence[DeviceOffer]) -> dict[int, Hour]:
    score, budget = given.one_of("score", SCORES, "cost"), given.number("budget", inf, hint="dollars per hour: 100")
    if "budget" in given.keys and score == "cost":
        raise UsageError("`budget` applies only to the score goodput", where=given.where)
    asks: dict[int, dict[str, float]] = {}
    for row in given.table("demand", Demand):
        if row.model not in models:
            raise UsageError(
                f"no model `{row.model}`", where=str(given.keys["demand"]), hint=f"known: {', '.join(models)}"
            )
        if row.model in asks.setdefault(row.hour, {}):
            raise UsageError(f"hour {row.hour}: `{row.model}` appears twice", where=str(given.keys["demand"]))
        asks[row.hour][row.model] = row.rate
    supply = given.table("available", HourlySupply) if "available" in given.keys else []
    known = {one.kind for one in kinds}
    if wrong := [row.kind for row in supply if row.kind not in known]:
        raise UsageError(f"no kind `{wrong[0]}`", where=str(given.keys["available"]))
    return {
        hour: Hour(
            models=tuple(models),
            demand=tuple(asks[hour].get(name, 0.0) for name in models),
            weight=tuple(one.weight for one in models.values()),
            prices={one.kind: one.price for one in kinds},
            available={one.kind: _supplied(one, supply, hour) for one in kinds},
            goodput=score == "goodput",
            budget=budget,
        )
        for hour in sorted(asks)
    }


def _supplied(kind: DeviceOffer, supply: Sequence[HourlySupply], hour: int) -> float:
    """The latest row of the kind up to this hour, or the kind's own figure."""
    known = [(row.hour, i) for i, row in enumerate(supply) if row.kind == kind.kind and row.hour <= hour]
    return supply[max(known)[1]].count if known else kind.available


def _peak(hours: Sequence[Hour]) -> Hour:
    """One allocation for all hours: the maximum of every demand, the minimum of every supply."""
    first = hours[0]
    return Hour(
        models=first.models,
        demand=tuple(max(h.demand[i] for h in hours) for i in range(len(first.models))),
        weight=first.weight,
        prices=first.prices,
        goodput=first.goodput,
        budget=first.budget,
        available={kind: min(h.available[kind] for h in hours) for kind in first.available},
    )


def choose(offers: Sequence[Offer], hour: Hour, method: str = "ilp") -> tuple[DeviceMix | None, float]:
    """Counts of offers, and seconds of the solver; None if the available devices do not serve all."""
    if method == "all":
        return _every(offers, hour), 0.0
    first, took = _program(offers, hour)
    if first is None or not hour.goodput:
        return first, took
    cheap, more = _program(offers, hour, first.goodput)
    return cheap or first, took + more


def _program(offers: Sequence[Offer], hour: Hour, least: float | None = None) -> tuple[DeviceMix | None, float]:
    """By the score; with `least`, the cheapest of those with this goodput."""
    program, most = IntegerProgram(), hour.goodput and least is None
    at = {name: i for i, name in enumerate(hour.models)}
    spent = [one.devices * hour.prices[one.kind] for one in offers]
    counts = [program.variable(0.0 if most else cost, whole=True) for cost in spent]
    for i, name in enumerate(hour.models):
        terms = {c: one.rate for c, one in zip(counts, offers, strict=True) if one.model == name}
        if hour.goodput:
            served = program.variable(-hour.weight[i] if most else 0.0, hour.demand[i])
            program.row({**terms, served: -1.0}, least=0.0)
            at[name] = served
        elif hour.demand[i]:
            program.row(terms, least=hour.demand[i])
    for kind, count in hour.available.items():
        if count < inf:
            used = {c: float(one.devices) for c, one in zip(counts, offers, strict=True) if one.kind == kind}
            program.row(used, most=count)
    if hour.goodput and hour.budget < inf:
        program.row(dict(zip(counts, spent, strict=True)), most=hour.budget)
    if least is not None:
        program.row({at[name]: hour.weight[i] for i, name in enumerate(hour.models)}, least=least * (1 - 1e-7))
    solved = program.solve()
    if solved is None:
        return None, 0.0
    return chosen(offers, hour, [int(solved.values[c]) for c in counts]), solved.took_s


def chosen(offers: Sequence[Offer], hour: Hour, counts: Sequence[int]) -> DeviceMix:
    """Cost and goodput of this many of each offer."""
    rates = dict.fromkeys(hour.models, 0.0)
    cost = 0.0
    for one, count in zip(offers, counts, strict=True):
        rates[one.model] += one.rate * count
        cost += hour.prices[one.kind] * one.devices * count
    served = sum(w * min(d, rates[m]) for m, d, w in zip(hour.models, hour.demand, hour.weight, strict=True))
    return DeviceMix(tuple(counts), cost, served)


def _every(offers: Sequence[Offer], hour: Hour) -> DeviceMix | None:
    """All counts, kind by kind: first every use of a kind's devices, then all of these together."""
    at = {name: i for i, name in enumerate(hour.models)}
    order: list[int] = []
    kinds: list[NDArray[np.int32]] = []
    parts = []
    for kind in hour.prices:
        mine = [i for i, one in enumerate(offers) if one.kind == kind]
        uses = _uses([offers[i] for i in mine], hour, at)
        speed = np.zeros((len(mine), len(at)))
        speed[np.arange(len(mine)), [at[offers[i].model] for i in mine]] = [offers[i].rate for i in mine]
        parts.append((uses @ np.array([offers[i].devices * hour.prices[kind] for i in mine]), uses @ speed))
        order, kinds = order + mine, [*kinds, uses]
    costs, rates, chosen_rows = every_sum(parts, np.full(len(at), inf), MOST, "counts of devices")
    demand = np.array(hour.demand)
    if hour.goodput:
        score = -(np.minimum(rates, demand) * np.array(hour.weight)).sum(axis=1)
        score = np.where(costs <= hour.budget * (1 + 1e-9), score, inf)
    else:
        score = np.where((rates >= demand * (1 - 1e-9)).all(axis=1), costs, inf)
    best = np.flatnonzero(score <= score.min() + 1e-9 * abs(score.min()))
    if not np.isfinite(score[best[0]]):
        return None
    row = chosen_rows[best[costs[best].argmin()]].tolist()
    counts = [int(n) for uses, use in zip(kinds, row, strict=True) for n in uses[use]]
    return chosen(offers, hour, [counts[order.index(i)] for i in range(len(offers))])


def _uses(offers: Sequence[Offer], hour: Hour, at: Mapping[str, int]) -> NDArray[np.int32]:
    """Every row of counts of these offers of one kind: no more than there are devices, or than demand needs."""
    found: list[list[int]] = [[]]
    for one in offers:
        need, room = ceil(hour.demand[at[one.model]] / one.rate), hour.available[one.kind]
        if len(found) * (need + 1) > MOST_USES:
            raise UsageError(f"more than {MOST_USES:,} counts of devices", hint="--method ilp")
        found = [[*row, n] for row in found for n in range(need + 1) if _used(offers, [*row, n]) <= room]
    return np.array(found, np.int32).reshape(len(found), len(offers))


def _used(offers: Sequence[Offer], counts: Sequence[int]) -> int:
    return sum(one.devices * count for one, count in zip(offers, counts, strict=False))


def alone(offers: Sequence[Offer], hour: Hour) -> tuple[str, DeviceMix] | None:
    """The best that a single kind can do, and which."""
    found: dict[str, DeviceMix] = {}
    for kind in hour.prices:
        mine = [one for one in offers if one.kind == kind]
        choice = choose(mine, hour)[0] if mine else None
        if choice is not None:
            found[kind] = choice
    if not found:
        return None
    best = min(found, key=lambda k: (-found[k].goodput if hour.goodput else 0.0, found[k].cost))
    return best, found[best]


def _row(
    number: int, hour: Hour, offers: Sequence[Offer], choice: DeviceMix, single: tuple[str, DeviceMix] | None
) -> Row:
    """An hour: what is held, and the best that one kind alone could do."""
    counted = list(zip(offers, choice.counts, strict=True))
    return {
        "hour": number, "demand": sum(hour.demand), "cost": choice.cost, "goodput": choice.goodput,
        "devices": sum(one.devices * n for one, n in counted), "kinds": len({one.kind for one, n in counted if n}),
        "single": single[0] if single else None, "single_cost": single[1].cost if single else None,
        "single_goodput": single[1].goodput if single else None,
        "held": {" ".join(filter(None, (one.model, one.kind, one.plan))): n for one, n in counted if n},
    }  # fmt: skip


def _sum(rows: Sequence[Row], name: str) -> float | None:
    """Sum over the hours, if all have it."""
    return sum(row[name] for row in rows) if all(row[name] is not None for row in rows) else None
