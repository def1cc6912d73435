"""A file of radio functions and AI services that share nodes.

nodes: [{name: a, gpu: 1, cpu: 1}, {name: b, gpu: 0.5, cpu: 1}]   # devices, relative to the one that times are of
radio: [{name: cell0, node: a, slot: 0.5ms, gpu: 100us, cpu: 50us, swing: 0.3, period: 2min, phase: 0.25}]
ai: [{name: chat, node: a, rate: 20, gpu: 20ms, cpu: 2ms, deadline: 200ms, swing: 0.5, period: 4min}]
load: 1.0          # factor on all rates of AI requests
duration: 10min
epoch: 1s          # fast: interval at which shares are set
every: 30s         # slow: interval at which places are revised
migrate: 2s        # a function or service that moves is down for this long
policy: haf        # static, greedy, strict, haf
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.figures import figure, read, read_mapping, usage_errors
from etude.base.units import parse_time
from etude.world.fleet.radio.shares import Members

POLICIES: Final = ("static", "greedy", "strict", "haf")
ENDLESS: Final = "endless"


@dataclass(frozen=True, slots=True, kw_only=True)
class RadioNode:
    name: str = figure("text", "name of the node")
    gpu: float = figure("number", "speed of its GPU relative to the reference", 1.0)
    cpu: float = figure("number", "speed of its CPU relative to the reference", 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    name: str = figure("text", "name of the radio function")
    node: str = figure("text", "node where it starts")
    slot_ns: int = figure("time", "its period", 500_000)
    deadline_ns: int = figure("time", "time from the start of a slot to its end; 0: the slot", 0)
    gpu_ns: int = figure("time", "time of a slot on a whole GPU at mean load", 100_000, zero=True)
    cpu_ns: int = figure("time", "time of a slot on a whole CPU, after the GPU", 50_000, zero=True)
    vary: float = figure("number", "work of a slot is even between 1 - vary and 1 + vary of that", 0.2, zero=True)
    swing: float = figure("number", "relative swing of its load around the mean", 0.0)
    period_ns: int = figure("time", "period of the swing", 600_000_000_000)
    phase: float = figure("number", "phase of the swing, in periods", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RadioService:
    name: str = figure("text", "name of the AI service")
    node: str = figure("text", "node where it starts")
    rate: float = figure("number", "requests per second, Poisson")
    gpu_ns: int = figure("time", "mean time of a request on a whole GPU (exponential)", 20_000_000, zero=True)
    cpu_ns: int = figure("time", "mean time of a request on a whole CPU, after the GPU", 2_000_000, zero=True)
    deadline_ns: int = figure("time", "time from arrival to completion", 200_000_000)
    swing: float = figure("number", "relative swing of its rate around the mean", 0.0)
    period_ns: int = figure("time", "period of the swing", 600_000_000_000)
    phase: float = figure("number", "phase of the swing, in periods", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Radio:
    nodes: Any = figure("one", "list of nodes", None)
    radio: Any = figure("one", "list of radio functions", None)
    ai: Any = figure("one", "list of AI services", None)
    load: float = figure("number", "factor on all rates of AI requests", 1.0)
    duration_ns: int = figure("time", "time in which requests arrive", 600_000_000_000)
    epoch_ns: int = figure("time", "time between two settings of the shares", 1_000_000_000)
    every_ns: int = figure("time", "time between two decisions on placement", 30_000_000_000)
    migrate: str = figure("text", "interruption by a move: a time, or endless", "2s")
    policy: str = figure("text", "static, greedy, strict, haf", "haf")

    @property
    def migrate_s(self) -> float:
        return float("inf") if self.migrate == ENDLESS else parse_time(self.migrate) / 1e9


@dataclass(frozen=True, slots=True, eq=False)
class RadioFile:
    """Contents of a file, with its members as columns; radio functions first."""

    spec: Radio
    nodes: tuple[RadioNode, ...]
    cells: tuple[Cell, ...]
    services: tuple[RadioService, ...]
    members: Members
    place: np.ndarray[Any, np.dtype[np.int64]]
    """Node of each member at the start."""

    @property
    def every(self) -> list[Cell | RadioService]:
        return [*self.cells, *self.services]

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.every]


def read_radio(path: str | PathLike[str], *, policy: str = "", migrate: str = "", load: float = 0.0) -> RadioFile:
    """Reads a file; `policy`, `migrate` and `load` override its values."""
    where = str(path)
    with usage_errors():
        spec = read(Radio, read_mapping(path), where)
        spec = replace(spec, policy=policy or spec.policy, migrate=migrate or str(spec.migrate), load=load or spec.load)
        nodes = tuple(
            read(RadioNode, one, f"{where}: nodes[{k}]") for k, one in enumerate(_list(spec.nodes, "nodes", where))
        )
        cells = tuple(
            read(Cell, one, f"{where}: radio[{k}]") for k, one in enumerate(_list(spec.radio, "radio", where))
        )
        asked = tuple(read(RadioService, one, f"{where}: ai[{k}]") for k, one in enumerate(_list(spec.ai, "ai", where)))
    _check(spec, cells, asked, where)
    return _pool(spec, nodes, cells, asked, where)


def _list(given: Any, key: str, where: str) -> list[Any]:
    if not isinstance(given, list) or not given:
        raise UsageError(f"{key}: a list", where=where, hint=f"{key}: [{{name: a, ...}}]")
    return given


def _check(spec: Radio, cells: tuple[Cell, ...], services: tuple[RadioService, ...], where: str) -> None:
    if spec.policy not in POLICIES:
        raise UsageError(f"unknown policy `{spec.policy}`", where=where, hint=f"known: {', '.join(POLICIES)}")
    if spec.migrate != ENDLESS and parse_time(spec.migrate) < 0:
        raise UsageError(f"migrate: {spec.migrate} is negative", where=where, hint="migrate: 2s")
    every: list[Cell | RadioService] = [*cells, *services]
    for one in every:
        if not 0 <= one.swing <= 1:
            raise UsageError(f"{one.name}: a swing of {one.swing:g}", where=where, hint="from 0 to 1")
        if not one.gpu_ns + one.cpu_ns:
            raise UsageError(f"{one.name}: no work is given", where=where, hint="gpu: 100us")
    for cell in cells:
        if cell.vary >= 1:
            raise UsageError(f"{cell.name}: vary {cell.vary:g} gives slots without work", where=where, hint="vary: 0.2")
        if cell.deadline_ns > cell.slot_ns:
            raise UsageError(f"{cell.name}: the deadline is after the next slot", where=where, hint="deadline: 0.5ms")


def _pool(
    spec: Radio, nodes: tuple[RadioNode, ...], cells: tuple[Cell, ...], services: tuple[RadioService, ...], where: str
) -> RadioFile:
    numbers = {node.name: k for k, node in enumerate(nodes)}
    every: list[Cell | RadioService] = [*cells, *services]
    names = [one.name for one in every]
    if len(numbers) < len(nodes) or len(set(names)) < len(names):
        raise UsageError("a name appears twice", where=where, hint="name: second")
    for one in every:
        if one.node not in numbers:
            raise UsageError(f"{one.name}: no node `{one.node}`", where=where, hint=f"nodes: {', '.join(numbers)}")
    limits = [c.deadline_ns or c.slot_ns for c in cells] + [s.deadline_ns for s in services]
    members = Members(
        radio=np.array([True] * len(cells) + [False] * len(services)),
        gpu_s=np.array([one.gpu_ns for one in every]) / 1e9,
        cpu_s=np.array([one.cpu_ns for one in every]) / 1e9,
        deadline_s=np.array(limits) / 1e9,
        vary=np.array([c.vary for c in cells] + [0.0] * len(services)),
        rate=np.array([1e9 / c.slot_ns for c in cells] + [s.rate * spec.load for s in services]),
        node_gpu=np.array([node.gpu for node in nodes]),
        node_cpu=np.array([node.cpu for node in nodes]),
    )
    place = np.array([numbers[one.node] for one in every], np.int64)
    return RadioFile(spec, nodes, cells, services, members, place)
