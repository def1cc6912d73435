"""Regions and classes of requests as files say them, and what a request costs where."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import ClusterError, UsageError
from etude.base.figures import figure, text
from etude.decide.search.request import SpaceFile
from etude.kernels.arrays import F64
from etude.machine.regions import open_region

SCORES: Final = ("cost", "carbon")
J_PER_KWH: Final = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A region where requests can be computed."""

    region: str = figure("text", "its name")
    zone: str = text("its zone: regions of one zone are near one another")
    law: str = text("legislation of the region")
    round_trip_ns: float = figure("time", "round trip to a point where all regions meet", 0.0)
    price: float = figure("number", "dollars per kWh", zero=True)
    carbon: float = figure("number", "grams of CO2 per kWh", -1.0, zero=True)
    pue: float = figure("number", "energy of the site relative to that of its machines", 1.0)
    capacity: float = figure("number", "capacity in kW; empty: no limit", inf, zero=True)
    egress: float = figure("number", "dollars per GB of outgoing traffic", 0.0)

    def __post_init__(self) -> None:
        if self.pue < 1:
            raise ClusterError(f"pue: {self.pue:g} is below 1: a site needs what its machines need")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestClass:
    """Requests that are alike."""

    name: str = figure("text", "name of the class")
    home: str = figure("text", "region where they arrive, and where they are computed unless moved")
    rate: float = figure("number", "requests per second")
    energy: str = figure("text", "joules per request, or `from:run.json`, as `etude serve --json` prints it")
    budget_ns: float = figure("time", "largest network time; empty: the budget of the search", inf, zero=True)
    turns: float = figure("number", "round trips per request", 1.0)
    size_bytes: float = figure("bytes", "bytes of a request and its answer", 0.0)
    friction: float = figure("number", "one-time dollars per region it is moved to", 0.0)
    friction_g: float = figure("number", "one-time grams of CO2 per region it is moved to", 0.0)
    laws: str = text("allowed legislations: `eu;uk`; empty: any")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPair:
    """A round trip between two regions, both ways alike."""

    a: str = figure("text", "one region")
    b: str = figure("text", "the other")
    round_trip_ns: float = figure("time", "round-trip time", zero=True)


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Classes (rows) and regions (columns)."""

    sites: tuple[Site, ...]
    classes: tuple[RequestClass, ...]
    home: NDArray[np.int64]
    """Column of each class's home."""
    rate_per_s: F64
    energy_j: F64
    way_ns: F64
    """All round trips per request."""
    lawful: NDArray[np.bool_]
    cost: dict[str, F64]
    """Per request, by score: dollars, or grams."""
    once: dict[str, F64]
    """Per class, for each region it is moved to."""

    @property
    def capacity_w(self) -> F64:
        return np.array([1e3 * site.capacity for site in self.sites])


def read_places(given: SpaceFile) -> Places:
    sites = _with_carbon(given, given.table("regions", Site, "region"))
    classes = given.table("classes", RequestClass, "name")
    at = {site.region: number for number, site in enumerate(sites)}
    for one in classes:
        if one.home not in at:
            raise UsageError(f"class `{one.name}`: no region `{one.home}`", where=given.where)
    home = np.array([at[one.home] for one in classes])
    lawful = np.array([[not one.laws or site.law in one.laws.split(";") for site in sites] for one in classes])
    if wrong := [one.name for one, h, row in zip(classes, home, lawful, strict=True) if not row[h]]:
        raise UsageError(
            f"class `{wrong[0]}`: the legislation of its home is not one of those allowed", where=given.where
        )
    energy_j = np.array([_energy_j(given, one) for one in classes])
    size_gb = np.array([one.size_bytes for one in classes])[:, None] / 1e9
    moved = np.arange(len(sites))[None, :] != home[:, None]
    kwh = energy_j[:, None] / J_PER_KWH * np.array([site.pue for site in sites])
    wire_kwh = size_gb * moved * _number(given, "network_kwh_per_gb", 0.0)
    price, egress = (np.array([getattr(site, name) for site in sites]) for name in ("price", "egress"))
    carbon = np.array([site.carbon for site in sites])
    return Places(
        sites=tuple(sites), classes=tuple(classes), home=home, lawful=lawful, energy_j=energy_j,
        rate_per_s=np.array([one.rate for one in classes]),
        way_ns=np.array([one.turns for one in classes])[:, None] * _ways(given, sites)[home],
        cost={"cost": kwh * price + size_gb * moved * egress, "carbon": (kwh + wire_kwh) * carbon},
        once={"cost": np.array([one.friction for one in classes]),
              "carbon": np.array([one.friction_g for one in classes])},
    )  # fmt: skip


def _with_carbon(given: SpaceFile, sites: list[Site]) -> list[Site]:
    """Carbon that the regions' file does not say is that of the table under `carbon`, by name."""
    other = given.keys.get("carbon")
    found = []
    for site in sites:
        if site.carbon < 0 and not isinstance(other, str):
            problem = f"the carbon intensity of region `{site.region}` is not known"
            hint = "a column `carbon`, or `carbon: TABLE.csv` with `region` and `impact`"
            raise UsageError(problem, where=given.where, hint=hint)
        own = site.carbon
        if own < 0:
            own = open_region(site.region, given.path(str(other))).carbon_g_per_kwh
        found.append(replace(site, carbon=own))
    return found


def _energy_j(given: SpaceFile, one: RequestClass) -> float:
    file = one.energy.removeprefix("from:")
    if file == one.energy:
        try:
            found = float(file)
        except ValueError:
            found = -1.0
        if not 0 < found < inf:
            hint = "joules of a request, or from:run.json"
            raise UsageError(f"class `{one.name}`: energy `{one.energy}`", where=given.where, hint=hint)
        return found
    try:
        record = json.loads(given.path(file).read_text("utf-8"))
        return float(record["energy_j"]) / float(record["requests"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OSError):
        raise UsageError(
            f"class `{one.name}`: `{file}` has no `energy_j` and `requests`",
            where=given.where,
            hint="use the output of `etude serve --json` for a device with known power",
        ) from None


def _ways(given: SpaceFile, sites: Sequence[Site]) -> F64:
    """Round trips in ns between regions: half of each one's own, or as the table under `ways` has them."""
    own = np.array([site.round_trip_ns for site in sites])
    found = (own[:, None] + own) / 2
    at = {site.region: number for number, site in enumerate(sites)}
    if "ways" in given.keys:
        for way in given.table("ways", RegionPair):
            if way.a not in at or way.b not in at:
                raise UsageError(f"a link from `{way.a}` to `{way.b}`, which are not both regions", where=given.where)
            found[at[way.a], at[way.b]] = found[at[way.b], at[way.a]] = way.round_trip_ns
    np.fill_diagonal(found, 0.0)
    return found


def _number(given: SpaceFile, key: str, usual: float) -> float:
    value = given.keys.get(key, usual)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < inf:
        raise UsageError(f"`{key}` is not a number of 0 or more", where=given.where)
    return float(value)
