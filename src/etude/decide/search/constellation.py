"""Satellites and the links between them, which change over time: a generated constellation, or a table.

topology: {planes: 6, satellites: 11, altitude_km: 780, inclination: 86.4, polar: 60, rate: 100Mb/s, every: 60s}
topology: leo_66.csv              # time_s,from,to,latency,rate: the graph of each time, until the next one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.base.figures import figure, read, usage_errors
from etude.base.units import parse_bandwidth
from etude.decide.search.links import NEVER
from etude.decide.search.request import read_table
from etude.kernels.arrays import F64, I64

EARTH_KM: Final = 6371.0
MU_KM3: Final = 398600.4418
"""Gravitational parameter of the earth, km^3/s^2."""
LIGHT_KM: Final = 299792.458


class Sky(NamedTuple):
    """Graphs one after another. Graph s holds from `start_ns[s]` on; the links out of node n are the rows
    `first[s, n]` to `first[s, n + 1]`, in one direction each."""

    start_ns: I64
    first: I64
    to: I64
    link: I64
    """Number of a link, the same in all graphs."""
    latency_ns: I64
    rate: I64
    """Bytes per second; NEVER: takes no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constellation:
    planes: int = figure("count", "number of orbital planes, spread over half of the equator", 6)
    satellites: int = figure("count", "satellites per plane", 11)
    altitude_km: float = figure("number", "altitude above the ground", 780.0)
    inclination: float = figure("number", "degrees", 86.4)
    polar: float = figure("number", "latitude in degrees above which satellites have no link to other planes", 60.0)
    rate: Any = figure("one", "bandwidth of a link in each direction; inf: no limit", "100Mb/s")
    latency_ns: int | None = figure("time", "latency of a link; unset: at the speed of light", None, zero=True)
    every_ns: int = figure("time", "time between changes of the graph; 0: no changes", 60_000_000_000, zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """A link of a table."""

    time_s: float = figure("number", "when its graph begins", zero=True)
    source: str = figure("text", "one satellite", key="from")
    to: str = figure("text", "the other")
    latency_ns: int = figure("time", "latency of the link", zero=True)
    rate: str = figure("text", "bandwidth in each direction; inf: no limit; 0: no link")


def read_sky(given: Any, folder: Path, where: str, duration_ns: int) -> tuple[Sky, list[str]]:
    """The graphs, and the names of satellites."""
    if isinstance(given, str):
        path = folder / given
        if not path.is_file():
            raise UsageError(f"file `{given}` does not exist", where=where)
        return _from_table(path)
    if not isinstance(given, Mapping):
        raise UsageError(
            "expected a table, or keys of a constellation", where=where, hint="{planes: 6, satellites: 11}"
        )
    with usage_errors():
        spec = read(Constellation, given, where)
    return generated(spec, duration_ns, where), _names(spec)


def _names(spec: Constellation) -> list[str]:
    return [f"{p}.{k}" for p in range(spec.planes) for k in range(spec.satellites)]


def generated(spec: Constellation, duration_ns: int, where: str = "") -> Sky:
    """Neighbours in a plane are always linked, those of neighbouring planes only between the polar latitudes. The first
    and the last plane move in opposite directions and have no link."""
    rate = rate_of(spec.rate, where)
    count = max(-(-duration_ns // spec.every_ns), 1) if spec.every_ns else 1
    graphs = []
    for s in range(count):
        places = positions(spec, s * spec.every_ns / 1e9)
        graphs.append(
            (s * spec.every_ns, [(a, b, _latency_ns(spec, places, a, b), rate) for a, b in _pairs(spec, places)])
        )
    return sky_of(graphs, spec.planes * spec.satellites)


def positions(spec: Constellation, at_s: float) -> F64:
    """(satellite, 3) in km; every other plane is shifted by half a position."""
    radius = EARTH_KM + spec.altitude_km
    turned = np.sqrt(MU_KM3 / radius**3) * at_s
    plane, place = np.divmod(np.arange(spec.planes * spec.satellites), spec.satellites)
    node = np.pi * plane / spec.planes
    u = 2 * np.pi * (place + plane % 2 / 2) / spec.satellites + turned
    tilt = np.radians(spec.inclination)
    x = np.cos(node) * np.cos(u) - np.sin(node) * np.sin(u) * np.cos(tilt)
    y = np.sin(node) * np.cos(u) + np.cos(node) * np.sin(u) * np.cos(tilt)
    return radius * np.stack((x, y, np.sin(u) * np.sin(tilt)), axis=1)


def _pairs(spec: Constellation, places: F64) -> list[tuple[int, int]]:
    size = spec.satellites
    around = size if size > 2 else size - 1
    found = [(p * size + k, p * size + (k + 1) % size) for p in range(spec.planes) for k in range(around)]
    away = np.abs(places[:, 2]) < np.sin(np.radians(spec.polar)) * (EARTH_KM + spec.altitude_km)
    across = [(n, n + size) for n in range((spec.planes - 1) * size)]
    return found + [(a, b) for a, b in across if away[a] and away[b]]


def _latency_ns(spec: Constellation, places: F64, a: int, b: int) -> int:
    if spec.latency_ns is not None:
        return spec.latency_ns
    return round(float(np.linalg.norm(places[a] - places[b])) / LIGHT_KM * 1e9)


def rate_of(given: Any, where: str) -> int:
    """Bytes per second; `inf` takes no time."""
    if str(given) in ("inf", ".inf"):
        return NEVER
    try:
        return parse_bandwidth(given)
    except UsageError as problem:
        raise UsageError(problem.problem, where=where, hint=problem.hint) from None


Edge = tuple[int, int, int, int]
"""Two satellites, latency in ns and rate, the same in both directions."""


def sky_of(graphs: list[tuple[int, list[Edge]]], nodes: int) -> Sky:
    """From the edges of each time; a rate of 0 means no link."""
    numbers: dict[tuple[int, int], int] = {}
    most = max((2 * sum(edge[3] > 0 for edge in edges) for _, edges in graphs), default=0)
    first = np.zeros((len(graphs), nodes + 1), np.int64)
    columns = np.zeros((4, len(graphs), most), np.int64)
    for s, (_, edges) in enumerate(graphs):
        both = sorted({way for a, b, *rest in edges if rest[1] for way in ((a, b, *rest), (b, a, *rest))})
        for row, (a, b, latency, rate) in enumerate(both):
            columns[:, s, row] = (b, numbers.setdefault((a, b), len(numbers)), latency, rate)
            first[s, a + 1] += 1
    return Sky(np.array([at for at, _ in graphs], np.int64), np.cumsum(first, axis=1), *columns)


def _from_table(path: Path) -> tuple[Sky, list[str]]:
    names: dict[str, int] = {}
    graphs: dict[int, list[Edge]] = {}
    for number, row in enumerate(read_table(path, LinkRow, path.name), 2):
        a, b = (names.setdefault(name, len(names)) for name in (row.source, row.to))
        if a == b:
            raise UsageError("a link must join two satellites", where=f"{path.name}: line {number}")
        edge = a, b, row.latency_ns, rate_of(row.rate, f"{path.name}: line {number}")
        graphs.setdefault(round(row.time_s * 1e9), []).append(edge)
    times = list(graphs)
    if times[0] != 0 or times != sorted(times):
        raise UsageError("times must start at 0 and increase", where=str(path))
    return sky_of(list(graphs.items()), len(names)), list(names)
