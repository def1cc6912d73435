"""Regions: what electricity costs and emits there, how much of it reaches the machines, how far it is.

open_region("sweden")                              # the catalogue
open_region("us-east-1", "my_regions.csv")         # a table with a column `region`
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from os import PathLike, fspath
from typing import Any, Final

from etude.config import figure, parse, read
from etude.errors import ClusterError

_COLUMNS: Final = {
    "impact": "carbon_g_per_kwh",
    "carbon": "carbon_g_per_kwh",
    "price": "price_per_kwh",
    "round_trip": "round_trip",
}
"""What tables call a figure -> its key; those with the key's own name are read too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A place where machines can stand."""

    name: str = figure("text", "what it is called", "")
    carbon_g_per_kwh: float = figure("number", "grams of CO2 for a kWh; 0 unknown", 0.0, zero=True)
    price_per_kwh: float = figure("number", "dollars for a kWh; 0 unknown", 0.0, zero=True)
    pue: float = figure("number", "energy of the site over that of its machines", 1.0)
    round_trip_ns: float = figure("time", "from its users and back", 0.0, zero=True)
    available: float = figure("fraction", "part of the time in which it can be had", 1.0)
    source: Mapping[str, str] = figure("texts", "where the figures come from", {})

    def __post_init__(self) -> None:
        if self.pue < 1:
            raise ClusterError(f"pue: {self.pue:g} is below 1: a site needs what its machines need")

    def kwh(self, energy_j: float) -> float:
        """Of the site, for so much energy of its machines."""
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


def region_names() -> tuple[str, ...]:
    """Regions of the catalogue."""
    return tuple(_catalogue())


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
        for column, text in row.items():
            key = _COLUMNS.get(column, column)
            if key in keys and text:
                about[key] = text
        if row["region"] and row["region"] not in found:
            found[row["region"]] = read(Region, {"name": row["region"], **about}, f"{where}: line {number}")
    return found
