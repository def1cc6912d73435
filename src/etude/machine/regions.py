"""Regions: price and emissions of electricity, PUE, distances; and hourly prices of devices.

open_region("sweden")                              # the catalogue
open_region("us-east-1", "my_regions.csv")         # a table with a column `region`
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final

from etude.base.errors import ClusterError, UsageError
from etude.base.figures import figure, parse, read, text
from etude.base.units import parse_time

if TYPE_CHECKING:
    from etude.machine.system import Device

_COLUMNS: Final = {
    "impact": "carbon_g_per_kwh",
    "carbon": "carbon_g_per_kwh",
    "price": "price_per_kwh",
    "round_trip": "round_trip",
}
"""Column names in tables -> key; columns with the key's own name are read too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A place with machines."""

    name: str = text("name")
    carbon_g_per_kwh: float = figure("number", "grams of CO2 per kWh; 0 unknown", 0.0)
    price_per_kwh: float = figure("number", "dollars per kWh; 0 unknown", 0.0)
    pue: float = figure("number", "energy of the site relative to that of its machines", 1.0)
    round_trip_ns: float = figure("time", "round trip to a point where all regions and users meet", 0.0)
    available: float = figure("fraction", "fraction of hours in which it is available", 1.0)
    source: Mapping[str, str] = figure("texts", "source of the values", {})

    def __post_init__(self) -> None:
        if self.pue < 1:
            raise ClusterError(f"pue: {self.pue:g} is below 1")

    def kwh(self, energy_j: float) -> float:
        """Energy of the site, for this much energy of its machines."""
        return energy_j / 3.6e6 * self.pue

    def carbon_g(self, energy_j: float) -> float | None:
        return self.kwh(energy_j) * self.carbon_g_per_kwh if self.carbon_g_per_kwh else None

    def cost(self, energy_j: float) -> float | None:
        return self.kwh(energy_j) * self.price_per_kwh if self.price_per_kwh else None


@cache
def _catalogue() -> dict[str, Region]:
    text = files("etude.machine").joinpath("catalogue", "regions", "regions.yaml").read_text("utf-8")
    given = parse(text, "regions.yaml")
    return {name: read(Region, {"name": name, **about}, f"regions.yaml: {name}") for name, about in given.items()}


def open_region(name: str, table: str | PathLike[str] | None = None) -> Region:
    """A region of the catalogue, or of a table with a row for each: `region`, and `impact` (g CO2 a kWh), `price` (a
    kWh), `pue`, `round_trip`, as far as they are known."""
    known = _catalogue() if table is None else _of_table(table)
    if name not in known:
        some = ", ".join(list(known)[:12]) + (", ..." if len(known) > 12 else "")
        raise ClusterError(f"unknown region `{name}`", where=fspath(table) if table else "", hint=f"known: {some}")
    return known[name]


def _of_table(path: str | PathLike[str]) -> dict[str, Region]:
    where = fspath(path)
    try:
        with open(where, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as problem:
        raise ClusterError(str(getattr(problem, "strerror", problem)).lower(), where=where) from None
    if rows and "region" not in rows[0]:
        raise ClusterError("has no column `region`", where=where, hint="region,impact,price,pue,round_trip")
    found: dict[str, Region] = {}
    for number, row in enumerate(rows, 2):
        keys = {"carbon_g_per_kwh", "price_per_kwh", "pue", "round_trip", "available"}
        about: dict[str, Any] = {}
        for column, written in row.items():
            key = _COLUMNS.get(column, column)
            if key in keys and written:
                about[key] = written
        if row["region"] and row["region"] not in found:
            found[row["region"]] = read(Region, {"name": row["region"], **about}, f"{where}: line {number}")
    return found


# -- regions of a system ----------------------------------------------------------------------------------------------


def with_round_trips(given: Any, where: str) -> Any:
    """A system's keys without its regions: a level with `regions: [east, west]`, one for each of its units, has the
    round trip between the two farthest of them added to its latency. Regions are those of the key `regions` of the
    system, or of the catalogue."""
    if not isinstance(given, Mapping) or not isinstance(given.get("levels"), list):
        return given
    own = given.get("regions", {})
    if not isinstance(own, Mapping):
        raise ClusterError("expected keys and values", where=f"{where}: regions", hint="east: {round_trip: 80ms}")
    known = {name: _own(name, about, where) for name, about in own.items()}
    levels = [_far_apart(level, known, f"{where}: levels[{i}]") for i, level in enumerate(given["levels"])]
    return {**{key: value for key, value in given.items() if key != "regions"}, "levels": levels}


def _own(name: str, about: Any, where: str) -> Region:
    if not isinstance(about, Mapping):
        raise ClusterError("expected keys and values", where=f"{where}: regions: {name}", hint="{round_trip: 80ms}")
    return read(Region, {"name": str(name), **about}, f"{where}: regions: {name}")


def _far_apart(level: Any, known: Mapping[str, Region], where: str) -> Any:
    if not isinstance(level, Mapping) or "regions" not in level:
        return level
    names, size = level["regions"], level.get("size")
    if not isinstance(names, list) or len(names) != size:
        count = len(names) if isinstance(names, list) else "no list of"
        raise ClusterError(f"{count} regions, but {size} units", where=f"{where}: regions", hint="give one per unit")
    found = [known.get(name) or _named(name, known, where) for name in names]
    silent = next((one.name for one in found if not one.round_trip_ns), "")
    if silent:
        hint = f"regions: {{{silent}: {{round_trip: 80ms}}}} of the system"
        raise ClusterError(f"the round trip to region `{silent}` is not given", where=f"{where}: regions", hint=hint)
    ways = sorted(found[i].round_trip_ns for i in range(len(found)) if names[i] not in names[:i])
    more = sum(ways[-2:]) / 2 if len(ways) > 1 else 0.0
    rest = {key: value for key, value in level.items() if key != "regions"}
    key = "latency_ns" if "latency_ns" in rest else "latency"
    rest[key] = _longer(rest.get(key, "500ns"), more)
    if isinstance(rest.get("step"), Mapping):
        rest["step"] = {name: _longer(time, more) for name, time in rest["step"].items()}
    return rest


def _longer(time: Any, more_ns: float) -> Any:
    """A longer time; anything else is unchanged, and is refused when levels are read."""
    try:
        return round(parse_time(time if isinstance(time, int) else str(time)) + more_ns)
    except UsageError:
        return time


def _named(name: Any, known: Mapping[str, Region], where: str) -> Region:
    if name not in _catalogue():
        some = ", ".join([*known, *list(_catalogue())[:6], "..."])
        raise ClusterError(f"unknown region `{name}`", where=f"{where}: regions", hint=f"known: {some}")
    return _catalogue()[name]


# -- what devices cost an hour, and whether they are to be had --------------------------------------------------------


def hourly_price(kinds: Sequence[tuple[Device, int]]) -> float | None:
    """Dollars per hour of this many devices of each kind; None if one has no price."""
    prices = [device.price for device, _ in kinds]
    return sum(device.price * count for device, count in kinds) if prices and all(prices) else None


def availability(kinds: Sequence[tuple[Device, int]], region: Region | None = None) -> float:
    """Fraction of hours in which all of these devices, and the region, are available at once, if independent."""
    whole = region.available if region is not None else 1.0
    for device, count in kinds:
        whole *= device.available**count
    return whole
