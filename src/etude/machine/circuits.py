"""Fabrics whose circuits change: links between devices that an optical switch joins in phases.

circuits:
  ranks: 4                # or `levels` of the system, which stay as they are beside the circuits
  bandwidth: 50GB/s       # of a circuit, one direction
  latency: 500ns
  delay: 20us             # from the begin of a phase until its new circuits carry anything
  phases:
  - {name: near, at: 0s, join: [0-1, 2-3]}
  - {name: far, at: 5ms, join: [0-2, 1-3]}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from etude.base.errors import ClusterError
from etude.base.figures import figure, read
from etude.machine.faults import links_between, without
from etude.machine.system import System
from etude.machine.topology import Blocks, LinkList, Topology, VertexKind, Wire, topology_of

TimedChange = tuple[int, tuple[int, int], float]
"""(ns, ends, factor on the time of a byte)."""


MOST_DEVICES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitPhase:
    name: str = figure("text", "its name")
    at_ns: float = figure("time", "when the switch begins to turn to it", zero=True)
    join: tuple[str, ...] = figure("list", "devices with a circuit between them: `0-1`", (), of=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitSwitch:
    """An optical switch between devices. Circuits that two phases share stay; the others end when a phase begins."""

    ranks: int = figure("count", "devices, where the system has no levels", 0)
    ports: int = figure("count", "most circuits of a device at once", 1)
    bandwidth_bytes_per_s: float = figure("bandwidth", "of a circuit, one direction")
    latency_ns: float = figure("time", "of a circuit", 500.0)
    delay_ns: float = figure("time", "from the begin of a phase until its new circuits carry anything", 0.0)
    phases: tuple[CircuitPhase, ...] = figure("list", "in order of time, the first at 0", of=CircuitPhase)


@dataclass(frozen=True, slots=True)
class SwitchedFabric:
    topology: Topology
    """With the circuits of all phases."""
    changes: tuple[TimedChange, ...]
    """When each of them fails and returns."""
    phases: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
    """(name, circuits) of each phase."""


def read_circuits(given: Any, where: str, beside: Topology | None) -> SwitchedFabric:
    """The fabric of a `circuits` section; `beside` is the graph of the levels, which stays as it is."""
    if not isinstance(given, Mapping):
        raise ClusterError("expected keys and values", where=where, hint="bandwidth, phases, ranks or levels")
    made = read(CircuitSwitch, given, where)
    count = made.ranks if beside is None else len(beside)
    if (beside is not None) == bool(made.ranks):
        raise ClusterError("either `ranks` or `levels` of the system", where=where)
    if count > MOST_DEVICES:
        raise ClusterError(f"{count:,} devices: at most {MOST_DEVICES:,} are read", where=f"{where}: ranks")
    begins = [phase.at_ns for phase in made.phases]
    names = [phase.name for phase in made.phases]
    if not begins or begins[0] != 0 or sorted(set(begins)) != begins:
        raise ClusterError("phases are in order of time, and the first begins at 0", where=f"{where}: phases")
    for name in names:
        if not name.replace("-", "").isalnum():
            raise ClusterError(f"`{name}` is not a name of a phase: letters, digits and -", where=f"{where}: phases")
    if len(set(names)) < len(names):
        raise ClusterError(f"two phases have one name: {', '.join(names)}", where=f"{where}: phases")
    if any(b - a < made.delay_ns for a, b in pairwise(begins)):
        raise ClusterError("a phase ends before its circuits carry anything", where=where, hint="a shorter `delay`")
    circuits = tuple(_pairs(phase, made.ports, count, f"{where}: phases: {phase.name}") for phase in made.phases)
    every = sorted({pair for phase in circuits for pair in phase})
    wire = Wire(bytes_per_s=made.bandwidth_bytes_per_s, latency_ns=round(made.latency_ns))
    topology = _joined(beside, count, every, wire, where)
    changes = _changes(begins, circuits, every, made.delay_ns)
    return SwitchedFabric(topology, changes, tuple(zip(names, circuits, strict=True)))


def _pairs(phase: CircuitPhase, ports: int, count: int, where: str) -> tuple[tuple[int, int], ...]:
    found = set()
    for text in phase.join:
        ends = [int(end) if end.strip().isdecimal() and len(end) < 10 else -1 for end in text.split("-")]
        if len(ends) != 2 or ends[0] == ends[1] or not all(0 <= end < count for end in ends):
            raise ClusterError(f"`{text}` is not two of {count:,} devices", where=where, hint="0-1")
        found.add((min(ends), max(ends)))
    used = np.bincount(np.array(sorted(found), np.int64).ravel(), minlength=1)
    if used.max() > ports:
        device = int(used.argmax())
        problem = f"device {device} has {used[device]} circuits and {ports} port{'s' * (ports > 1)}"
        raise ClusterError(problem, where=where, hint="ports: 2")
    return tuple(sorted(found))


def _joined(beside: Topology | None, count: int, every: list[tuple[int, int]], wire: Wire, where: str) -> Topology:
    links = LinkList()
    ends = np.array(every, np.int64).reshape(-1, 2)
    if beside is None:
        links.add_both(ends[:, 0], ends[:, 1], wire, "circuit")
        kind = np.full(count, VertexKind.DEVICE, np.uint8)
        device, names = np.arange(count, dtype=np.int32), Blocks((0,), ("device",))
        passes = np.ones(count, np.bool_)  # with nothing else to go over, devices pass on what is for others
        made = links.columns()
        return topology_of("circuits", kind=kind, device=device, vertex_name=names, forwards=passes, **made)
    if (
        beside.windows
        or ((beside.kind[beside.src] == VertexKind.DEVICE) & (beside.kind[beside.dst] == VertexKind.DEVICE)).any()
    ):
        raise ClusterError("levels join devices to one another, as circuits do", where=where, hint="levels of switches")
    links.add_both(beside.device[ends[:, 0]], beside.device[ends[:, 1]], wire, "circuit")
    more = links.columns()
    more["link_type"] = more["link_type"] + len(beside.link_names)
    both = ("src", "dst", "bytes_per_s", "latency_ns", "link_type")
    columns: dict[str, Any] = {name: np.concatenate([getattr(beside, name), more[name]]) for name in both}
    columns |= {"kind": beside.kind, "forwards": beside.forwards, "device": beside.device}
    columns |= {"vertex_name": beside.vertex_name, "link_names": (*beside.link_names, "circuit")}
    return topology_of(beside.name, **columns)


def in_phase(system: System, topology: Topology, circuits: tuple[tuple[int, int], ...]) -> Topology:
    """The graph with the circuits of one phase alone."""
    others = {pair for _, joined in system.phases for pair in joined} - set(circuits)
    failed = np.zeros(len(topology.src), np.bool_)
    for pair in others:
        failed[links_between(topology, pair)] = True
    return without(topology, failed, topology.bytes_per_s)[0]


def _changes(
    begins: list[float], circuits: tuple[tuple[tuple[int, int], ...], ...], every: list[tuple[int, int]], delay: float
) -> tuple[TimedChange, ...]:
    """Those of the first phase are there at 0."""
    found: list[TimedChange] = [(0, pair, math.inf) for pair in every if pair not in circuits[0]]
    for number in range(1, len(circuits)):
        ended, made = set(circuits[number - 1]), set(circuits[number])
        found += [(round(begins[number]), pair, math.inf) for pair in ended - made]
        found += [(round(begins[number] + delay), pair, 1.0) for pair in made - ended]
    return tuple(sorted(found))
