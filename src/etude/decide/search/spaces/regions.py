"""Where requests are computed: shares of each class by region, at the least cost or carbon within a latency budget.

search: regions
regions: regions.csv       # region,zone,law,round_trip,price,carbon,pue,capacity,egress
classes: classes.csv       # name,home,rate,energy,budget,turns,size,friction,friction_g,laws
budget: [0ms, 50ms, 200ms, 1s, 5s]
score: cost                # or carbon
hours: 24                  # that a placement stays: friction is paid once in them

Methods: `ilp` splits a class over regions and pays friction in whole for each; `lp` pays the part of it that moves, so
that it is a lower bound; `all` tries every placement of whole classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.units import format_time, parse_time
from etude.decide.search.found import Found, Row
from etude.decide.search.programs import IntegerProgram, every_sum
from etude.decide.search.request import SearchRequest, SpaceFile
from etude.decide.search.sites import SCORES, Places, read_places
from etude.decide.search.solver import Answer, CandidateSpace, Trials, every
from etude.kernels.arrays import F64

METHODS: Final = ("ilp", "lp", "all")
MOST: Final = 4_000_000
"""Placements that `all` tries at most."""
LAYERS: Final = ("local", "regional", "seeking")
UNIT: Final = {"cost": "dollars", "carbon": "g"}


def space(given: SpaceFile, asked: SearchRequest) -> RegionSpace:
    return RegionSpace(given, asked.one_of(*METHODS))


class RegionSpace(CandidateSpace[float]):
    """Latency budgets in ns, each with the best regions of all classes."""

    rest = "capacity"

    def __init__(self, given: SpaceFile, method: str) -> None:
        given.only("regions", "classes", "ways", "carbon", "budget", "score", "hours", "network_kwh_per_gb")
        score = given.one_of("score", SCORES, "cost")
        self.where, self.method, self.score, self.hours = given.where, method, score, given.number("hours", 24.0)
        self.places, self.listed = read_places(given), _budgets(given)
        self.methods, self.size = dict.fromkeys(METHODS, every), len(self.listed)
        self.column = f"{UNIT[score]}_per_h"
        self.scores = {"budget_ms": 1, self.column: 1}

    def rank(self, row: Row) -> tuple[float, ...]:
        return (row[self.column],)

    def order(self, one: float, row: Row) -> float:
        return one

    def rows(self, some: Sequence[float], limit: float) -> list[Answer]:
        found: list[Answer] = []
        before: Row | None = None
        for budget_ns in some:
            may = allowed(self.places, budget_ns)
            shares = shares_of(self.places, may, self.score, self.hours, self.method)
            if shares is None:
                found.append(self.rest)
                continue
            before = _row(self.places, shares, budget_ns, self.score, (self.hours, self.method, before))
            found.append(before)
        return found

    def found(self, trials: Trials[float]) -> Found:
        rows = list(trials.rows.values())
        if not rows:
            problem = "regions that may compute all requests within the budget have too little capacity"
            raise UsageError(problem, where=self.where, hint="more `capacity`, or a longer `budget`")
        even = break_even(self.places, self.score, self.hours)
        return trials.found(rows=rows, more={"score": self.score, "method": self.method, "break_even": even})


def _budgets(given: SpaceFile) -> list[float]:
    texts = given.keys.get("budget", "5s")
    found = []
    for text in texts if isinstance(texts, list) else [texts]:
        if not isinstance(text, (str, int)) or isinstance(text, bool):
            raise UsageError(f"`{text}` is not a time", where=f"{given.where}: budget", hint="budget: [50ms, 1s]")
        found.append(float(parse_time(text)))
    return sorted(set(found))


def allowed(places: Places, budget_ns: float) -> NDArray[np.bool_]:
    """Which class (row) may be computed in which region (column): by law, and by the time on the way."""
    own = np.array([one.budget_ns for one in places.classes])
    return places.lawful & (places.way_ns <= np.minimum(own, budget_ns)[:, None])


def shares_of(places: Places, may: NDArray[np.bool_], score: str, hours: float, method: str) -> F64 | None:
    """Part of each class (row) in each region (column), at the least score; None where capacities do not allow any."""
    if method == "all":
        return _whole(places, may, score, hours)
    program = IntegerProgram()
    per_h = 3600.0 * places.rate_per_s[:, None] * places.cost[score]
    power_w = places.rate_per_s * places.energy_j
    loads: list[dict[int, float]] = [{} for _ in places.sites]
    at: dict[int, tuple[int, int]] = {}
    for c in range(len(places.classes)):
        mine = {}
        for r in np.flatnonzero(may[c]).tolist():
            once = places.once[score][c] / hours if r != places.home[c] else 0.0
            x = program.variable(per_h[c, r] + (once if method == "lp" else 0.0), 1.0)
            at[x], mine[x] = (c, r), 1.0
            loads[r][x] = power_w[c]
            if once and method == "ilp":
                program.row({x: 1.0, program.variable(once, 1.0, whole=True): -1.0}, most=0.0)
        program.row(mine, least=1.0, most=1.0)
    for load, capacity in zip(loads, places.capacity_w, strict=True):
        if load and capacity < inf:
            program.row(load, most=capacity)
    solved = program.solve()
    if solved is None:
        return None
    shares = np.zeros(may.shape)
    for x, (c, r) in at.items():
        shares[c, r] = solved.values[x] if solved.values[x] > 1e-9 else 0.0
    return shares / shares.sum(axis=1, keepdims=True)


def _whole(places: Places, may: NDArray[np.bool_], score: str, hours: float) -> F64 | None:
    """Every placement of whole classes, one class after another; those over a capacity are left out."""
    parts, regions = [], [np.flatnonzero(row) for row in may]
    for c, mine in enumerate(regions):
        costs = 3600.0 * places.rate_per_s[c] * places.cost[score][c, mine]
        loads = np.zeros((len(mine), len(places.sites)))
        loads[np.arange(len(mine)), mine] = places.rate_per_s[c] * places.energy_j[c]
        parts.append((costs + np.where(mine != places.home[c], places.once[score][c] / hours, 0.0), loads))
    totals, _, chosen = every_sum(parts, places.capacity_w, MOST, "placements")
    if not len(totals):
        return None
    shares = np.zeros(may.shape)
    for c, row in enumerate(chosen[int(totals.argmin())].tolist()):
        shares[c, regions[c][row]] = 1.0
    return shares


def totals(places: Places, shares: F64, score: str, hours: float, *, part: bool = False) -> float:
    """Dollars or grams an hour. `part`: friction of the part that moves, as `lp` has it."""
    moved = np.where(np.arange(shares.shape[1]) == places.home[:, None], 0.0, shares if part else shares > 0)
    once = float((places.once[score] * moved.sum(axis=1)).sum()) / hours
    return float((3600.0 * places.rate_per_s[:, None] * places.cost[score] * shares).sum()) + once


def _row(places: Places, shares: F64, budget_ns: float, score: str, how: tuple[float, str, Row | None]) -> Row:
    hours, method, before = how
    at_home = np.zeros_like(shares)
    at_home[np.arange(len(shares)), places.home] = 1.0
    found = {s: totals(places, shares, s, hours, part=method == "lp") for s in SCORES}
    local = totals(places, at_home, score, hours)
    requests = places.rate_per_s / places.rate_per_s.sum()
    way_ms = float((requests[:, None] * shares * places.way_ns).sum()) / 1e6
    zones = np.array([site.zone for site in places.sites])
    near = (zones == zones[places.home][:, None]) & (zones != "")[None, :]
    part = requests[:, None] * shares
    layers = {"local": part[at_home > 0].sum(), "regional": part[(at_home == 0) & near].sum()}
    layers["seeking"] = part[(at_home == 0) & ~near].sum()
    saved = local - found[score]
    row: Row = {"budget": format_time(round(budget_ns)), "budget_ms": budget_ns / 1e6}
    row |= {f"{UNIT[s]}_per_h": found[s] for s in SCORES}
    row |= {"saving": saved / local if local else 0.0, "relocated": float(layers["regional"] + layers["seeking"])}
    row |= {name: float(layers[name]) for name in LAYERS} | {"way_ms": way_ms}
    row["return_per_ms"] = saved / way_ms if way_ms else 0.0
    row["marginal_per_ms"] = 0.0
    if before is not None and row["budget_ms"] > before["budget_ms"]:
        gained = before[f"{UNIT[score]}_per_h"] - found[score]
        row["marginal_per_ms"] = gained / (row["budget_ms"] - before["budget_ms"])
    row["where"] = {
        one.name: {places.sites[r].region: float(shares[c, r]) for r in np.flatnonzero(shares[c]).tolist()}
        for c, one in enumerate(places.classes)
    }
    return row


def break_even(places: Places, score: str, hours: float) -> list[dict[str, Any]]:
    """For each class, the region that saves most on a request, whatever the way, and how many requests pay for the
    friction of moving there: friction over saving."""
    found = []
    for c, one in enumerate(places.classes):
        saving = places.cost[score][c, places.home[c]] - places.cost[score][c]
        saving = np.where(allowed(places, inf)[c], saving, -inf)
        r = int(saving.argmax())
        if saving[r] > 0:
            found.append({
                "class": one.name, "region": places.sites[r].region, "saving_per_request": float(saving[r]),
                "break_even_requests": float(places.once[score][c] / saving[r]),
                "requests": float(places.rate_per_s[c] * 3600.0 * hours), "way_ms": float(places.way_ns[c, r]) / 1e6,
            })  # fmt: skip
    return found
