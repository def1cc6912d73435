"""Closed forms of collective algorithms as plans: how many steps at which level, how many bytes through which port.

A plan is a list of phases, one after another; the legs of a phase run at once. With S the payload (docs/costs.md says
what that is for each collective), a phase costs

    sum over legs of hops * step latency  +  max over legs of volume * S / rate

and a streamed one, in which many blocks travel at once, the longer of what one of them takes and what a port carries.
Every leg is bounded by the rate of one device's port at its level, so nothing beats its injection port.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Final

from etude.cost.collectives.pipeline import ChainPass
from etude.cost.groups import GroupShape, GroupSpan
from etude.machine.system import LINED, Level, LevelKind, System
from etude.model.schema import Collective


@dataclass(frozen=True, slots=True)
class Leg:
    level: int
    hops: float
    """Steps that wait for one another."""
    volume: float
    """Bytes through the busiest port in its busier direction, for each byte of payload."""
    rate_bytes_per_ns: float
    in_switch: bool = False
    outward: float = 1.0
    inward: float = 1.0
    """Fractions of `volume` that leave and enter the port (`outward`, `inward`): shared by phases that overlap."""
    fixed_bytes: float = 0.0
    """Bytes through the port independent of the payload: control messages."""
    way_ns_per_byte: float = 0.0
    """For a streamed phase: time of the bytes of one block over all hops of the leg, per byte of payload."""


@dataclass(frozen=True, slots=True)
class AlgorithmPhase:
    legs: tuple[Leg, ...]
    messages: int = 0
    """Messages that a device posts one by one."""
    apart: bool = False
    """The legs carry different bytes: a port shared by levels carries those of all."""
    streamed: int = 0
    """Passes in which many blocks are in progress, so that a busy port hides latencies except for the last step of each
    pass; 0: steps and bytes follow one another."""


@dataclass(frozen=True, slots=True)
class AlgorithmPlan:
    phases: tuple[AlgorithmPhase, ...]
    in_switch: bool = False
    """A switch reduces somewhere, which only the `simple` protocol can."""
    pipelined: bool = False
    """The payload may be cut into chunks, one phase working on one chunk while the next takes another."""
    passes: tuple[ChainPass, ...] = ()
    """Messages of a device from which the time comes, instead of from the phases: these then say how many chunks."""


SCATTERING: Final = (Collective.REDUCE_SCATTER, Collective.REDUCE_SCATTER_BLOCK)
ONE_PASS: Final = (*SCATTERING, Collective.ALL_GATHER)
ROOTED: Final = (Collective.BROADCAST, Collective.REDUCE)
PASSES: Final = {Collective.ALL_REDUCE: 2, Collective.BARRIER: 2}


def port_rate(level: Level, span: GroupSpan, *, peers: str) -> float:
    """Rate of one device at a level. `peers`: it communicates with `all` others at once, with `two` neighbours, or with
    `one`."""
    rate = level.rate_bytes_per_ns / level.efficiency * level.efficiency_of(span.units)
    if level.kind == LevelKind.FULL and level.size > 1:
        links = {"one": 1, "two": _rings_of_full(span.units), "all": span.units - 1}[peers]
        return rate * links / (level.size - 1)
    if level.kind == LevelKind.MESH or (level.kind == LevelKind.RING and level.size > 2):
        return rate / 2 if peers == "one" or not span.whole else rate
    return rate


def _rings_of_full(n: int) -> int:
    """Number of rings in a full mesh of n, no two of which use a link in one direction; for an even number the links
    between n / 2 pairs are unused."""
    return n - 1 if n % 2 or n == 2 else n - 2


def in_line(level: Level, span: GroupSpan) -> bool:
    """Whether the units are connected to their neighbours without a wrap: all of a mesh, or a part of a ring."""
    return level.kind in LINED and not span.whole


def volume_by_level(shape: GroupShape, volume: float) -> list[float]:
    """For traffic from member to member around or along a whole group: what crosses each level and none above, for each
    member; members of a unit share what leaves it."""
    out = [volume / span.below_least for span in shape.spans]
    if not shape.regular:
        return out
    return [a - b for a, b in zip(out, [*out[1:], 0.0], strict=True)]


def detour(level: Level, span: GroupSpan) -> float:
    """Links that a byte occupies on the way to a random other unit, relative to a neighbour."""
    if level.kind not in LINED or span.units < 3:
        return 1.0
    return (span.units**2 // 4) / (span.units - 1)


def farthest_hops(level: Level, span: GroupSpan) -> float:
    """Steps to the farthest unit of a level."""
    if level.kind not in LINED:
        return 1.0
    return float(span.units // 2 if span.whole else span.units - 1)


def bits_of(n: int) -> int:
    return ceil(log2(n)) if n > 1 else 0


LevelCost = Callable[[Level, GroupSpan], Leg]
"""A reduce-scatter or an all-gather at one level."""


def by_level(system: System, kind: Collective, shape: GroupShape, cost: LevelCost) -> list[AlgorithmPhase]:
    """Scatter from the inside out, or gather from the outside in; an all-reduce does both. The input of a level is the
    output of the level below."""
    legs = [cost(system.levels[span.level], span) for span in shape.spans]
    scatter = [AlgorithmPhase((leg,)) for leg in legs]
    gather = [AlgorithmPhase((replace(leg, outward=leg.inward, inward=leg.outward),)) for leg in reversed(legs)]
    if kind == Collective.ALL_GATHER:
        return gather
    return scatter if kind in SCATTERING else scatter + gather
