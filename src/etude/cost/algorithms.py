"""Collective algorithms as plans: how many steps at which level, how many bytes through which port.

A plan is a list of phases, one after another; the legs of a phase run at once. With S the payload (docs/costs.md says
what that is for each collective), a phase costs

    sum over legs of hops * step latency  +  max over legs of volume * S / rate

Every leg is bounded by the rate of one device's port at its level, so nothing beats its injection port.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, log2, prod
from typing import Final

import numpy as np

from etude.cost import trees
from etude.cost.groups import GroupShape, GroupSpan
from etude.errors import UsageError
from etude.machine.ports import is_product
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
    """Part of `volume` that leaves and that enters the port: what two phases share if they overlap."""


@dataclass(frozen=True, slots=True)
class AlgorithmPhase:
    legs: tuple[Leg, ...]
    messages: int = 0
    """Messages that a device posts one by one."""
    apart: bool = False
    """The legs carry different bytes: through a port that levels share go those of all."""


@dataclass(frozen=True, slots=True)
class AlgorithmPlan:
    phases: tuple[AlgorithmPhase, ...]
    in_switch: bool = False
    """A switch reduces somewhere, which only the `simple` protocol can."""
    pipelined: bool = False
    """The payload may be cut into chunks, one phase working on one chunk while the next takes another."""


_SCATTERING: Final = (Collective.REDUCE_SCATTER, Collective.REDUCE_SCATTER_BLOCK)
_ONE_PASS: Final = (*_SCATTERING, Collective.ALL_GATHER)
_ROOTED: Final = (Collective.BROADCAST, Collective.REDUCE)
_PASSES: Final = {Collective.ALL_REDUCE: 2, Collective.BARRIER: 2}


def _rate(level: Level, span: GroupSpan, *, peers: str) -> float:
    """Rate of one device at a level. `peers`: it speaks to `all` others at once, to `two` neighbours, or to `one`."""
    rate = level.rate_bytes_per_ns / level.efficiency * level.efficiency_of(span.units)
    if level.kind == LevelKind.FULL and level.size > 1:
        links = {"one": 1, "two": rings_of_full(span.units), "all": span.units - 1}[peers]
        return rate * links / (level.size - 1)
    if level.kind == LevelKind.MESH or (level.kind == LevelKind.RING and level.size > 2):
        return rate / 2 if peers == "one" or not span.whole else rate
    return rate


def rings_of_full(n: int) -> int:
    """Rings of n that are all joined to one another, of which no two use a link in one direction: of an even number the
    links between n / 2 pairs are left over."""
    return n - 1 if n % 2 or n == 2 else n - 2


def in_line(level: Level, span: GroupSpan) -> bool:
    """The units are joined to their neighbours and no wrap closes the line: all of a mesh, or a part of a ring."""
    return level.kind in LINED and not span.whole


def _detour(level: Level, span: GroupSpan) -> float:
    """Links that a byte occupies on the way to a random other unit, over what a neighbour's byte does."""
    if level.kind not in LINED or span.units < 3:
        return 1.0
    return (span.units**2 // 4) / (span.units - 1)


def _farthest(level: Level, span: GroupSpan) -> float:
    """Steps to the farthest unit of a level."""
    if level.kind not in LINED:
        return 1.0
    return float(span.units // 2 if span.whole else span.units - 1)


def _bits(n: int) -> int:
    return ceil(log2(n)) if n > 1 else 0


# ---- flat: one pattern over the whole group


def ring(system: System, kind: Collective, shape: GroupShape, *, both: bool = False) -> AlgorithmPlan:
    """Neighbour to neighbour in rank order. `both` ways halves the steps, and fills both links of a ring level. Units
    in a line have no wrap: what goes both ways goes to both ends, and no link but the last carries more."""
    n = shape.size
    passes = _PASSES.get(kind, 1)
    volume = 1.0 if kind in _ROOTED else passes * (n - 1) / n
    if kind == Collective.ALL_TO_ALL:
        # Each block travels on until it is home: n(n-1)/2 block-hops a member, half of that both ways round.
        volume = (n * n // 4) / n if both else (n - 1) / 2
    share = 0.5 if both and kind not in _ROOTED else 1.0
    legs: list[Leg] = []
    for span in shape.spans:
        level = system.levels[span.level]
        exchange = kind == Collective.ALL_TO_ALL  # along one ring: blocks of many have no channels
        one = exchange if level.kind == LevelKind.FULL else level.kind in LINED and not both
        rate = _rate(level, span, peers="one" if one else "two")
        hops = passes * ceil(span.crossings * (1.0 if in_line(level, span) else share))
        if in_line(level, span) and len(shape.spans) == 1 and not (both or kind in _ROOTED):
            hops += passes * max(span.units - 2, 0)  # from the end back to the beginning, along the line
        hops += passes * ceil(share * span.crossings) * sum(_way_back(system, s) for s in shape.spans[: len(legs)])
        # A unit's members share the traffic that leaves it: each channel goes out through another port.
        shared = span.below_least if not exchange else 2 if both and legs else 1  # up and down leave through another
        legs.append(Leg(span.level, hops, volume / shared, rate))
    return AlgorithmPlan((AlgorithmPhase(tuple(legs)),))


def _way_back(system: System, span: GroupSpan) -> int:
    """Steps from the last unit of a level to the first, which a ring takes as it goes on to the next unit above."""
    level = system.levels[span.level]
    return 0 if level.kind not in LINED else 1 if span.whole else span.units - 1


def ring_both(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    return ring(system, kind, shape, both=True)


def tree(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """Double binary tree: each member is a leaf in one tree and inner in the other, with half of the payload in each.

    Over several levels the trees join the outer units, and the members inside the innermost form a chain, as in NCCL.
    """
    passes = _PASSES.get(kind, 1)
    legs = []
    for place, span in enumerate(shape.spans):
        chain = place == 0 and len(shape.spans) > 1
        level = system.levels[span.level]
        rate, volume = _rate(level, span, peers="one"), float(passes)
        if passes == 2 and not chain:
            volume = _tree_port(span.units)
        hops = span.units - 1 if chain else _bits(span.units)
        if level.kind in LINED and chain and passes == 2 and span.units > 2:
            volume = 1.0  # sums go one way and results the other: each has one of the two links
        elif level.kind in LINED and not chain:
            volume, hops = tree_load(span.units, whole=span.whole, passes=passes)
        legs.append(Leg(span.level, passes * hops, volume / span.below_least, rate))
    return AlgorithmPlan((AlgorithmPhase(tuple(legs), apart=True),))


@cache
def _tree_port(n: int) -> float:
    """Of two trees with half of the payload each, up and down: bytes that leave the busiest port, for each byte."""
    out = np.zeros(n)
    for parent in trees.double_tree(n):
        out += 0.5 * (parent >= 0) + 0.5 * np.bincount(parent[parent >= 0], minlength=n)
    return float(out.max())


@cache
def tree_load(n: int, *, whole: bool, passes: int) -> tuple[float, int]:
    """Of two trees with half of the payload each, laid along n units in a ring or a line: bytes over the busiest link
    in one direction, for each byte of payload, and links from the root to the farthest leaf."""
    load, farthest = np.zeros((2, n)), 0
    for parent in trees.double_tree(n) if passes == 2 else trees.below_root(n, 0):
        away = np.zeros(n, np.int64)
        for m in trees.by_depth(parent):
            if parent[m] < 0:
                continue
            step = (m - int(parent[m])) % n if whole else m - int(parent[m])
            step = step - n if whole and 2 * step > n else step
            away[m] = away[parent[m]] + abs(step)
            crossed = (int(parent[m]) + np.arange(min(step, 0), max(step, 0))) % n
            load[int(step < 0), crossed] += 0.5
            if passes == 2:
                load[int(step > 0), crossed] += 0.5
        farthest = max(farthest, int(away.max()))
    return float(load.max()), farthest


def direct(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """Every member to every other at once, a block each; an all-reduce is a scatter and a gather (two shots)."""
    phase = _to_all(system, shape, block=1 / shape.size)
    return AlgorithmPlan((phase, phase) if _PASSES.get(kind, 1) == 2 else (phase,))


def one_shot(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """Every member sends all it has to every other, and each reduces for itself."""
    return AlgorithmPlan((_to_all(system, shape, block=1.0),))


def _to_all(system: System, shape: GroupShape, *, block: float) -> AlgorithmPhase:
    legs = []
    for place, span in enumerate(shape.spans):
        level = system.levels[span.level]
        members = shape.spans[place + 1].below if place + 1 < len(shape.spans) else shape.size
        outside = max(members - span.below_least, 1) * block
        if is_product(system.levels) and shape.regular:  # on the way to units farther out it is crossed as well
            outside = shape.size * (span.units - 1) / span.units * block
        rate = _rate(level, span, peers="all")
        last = place + 1 == len(shape.spans)
        hops = _farthest(level, span) if level.kind in LINED else 1.0 if last else 0.0
        legs.append(Leg(span.level, hops, outside * _detour(level, span), rate))
    return AlgorithmPhase(tuple(legs), messages=shape.size - 1, apart=True)


def fan(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """One root and all others: what the root's port carries. A broadcast sends the whole to each, a scatter a block."""
    phase = _to_all(system, shape, block=1.0 if kind in _ROOTED else 1 / shape.size)
    legs = tuple(
        replace(leg, volume=leg.volume / _detour(system.levels[leg.level], span) / _rails(system, kind, span))
        for leg, span in zip(phase.legs, shape.spans, strict=True)
    )
    return AlgorithmPlan((replace(phase, legs=legs),))


def _rails(system: System, kind: Collective, span: GroupSpan) -> int:
    """Ports through which what the root sends leaves its unit: over rails, that of every member's rail."""
    outwards = kind in (Collective.BROADCAST, Collective.SCATTER)
    return span.below_least if outwards and system.levels[span.level].rails else 1


def in_switch(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """The switch reduces and multicasts (NVLS, SHARP): each port carries the payload about once."""
    legs = []
    for span in shape.spans:
        level = system.levels[span.level]
        _need_switch(level)
        rate = _rate(level, span, peers="all") / level.efficiency_of(span.units) * level.in_switch_efficiency
        # All-reduce: a port gives its whole buffer and its share of the result, and takes as much.
        volume = 1 + 1 / span.units if kind == Collective.ALL_REDUCE else 1.0
        below = 1 if kind in _ROOTED else span.below_least
        legs.append(Leg(span.level, _PASSES.get(kind, 1), volume / below, rate, in_switch=True))
    return AlgorithmPlan((AlgorithmPhase(tuple(legs)),), in_switch=True)


def _need_switch(level: Level) -> None:
    if not level.in_switch_efficiency:
        raise UsageError(
            f"level `{level.name}` cannot reduce in its switch", hint="`in_switch_efficiency` of the level says it can"
        )


# ---- level by level


LevelCost = Callable[[Level, GroupSpan], Leg]
"""A reduce-scatter or an all-gather at one level."""


def _ring_level(level: Level, span: GroupSpan) -> Leg:
    n = span.units
    if level.kind == LevelKind.FULL:
        return Leg(span.level, 1.0, (n - 1) / n / span.below, _rate(level, span, peers="all"))
    steps = ceil((n - 1) / 2) if level.kind == LevelKind.RING and span.whole else n - 1
    return Leg(span.level, steps, (n - 1) / n / span.below, _rate(level, span, peers="two"))


def _best_level(level: Level, span: GroupSpan) -> Leg:
    return _switch_level(level, span, 1.0) if reduces_in_switch(level, span) else _ring_level(level, span)


def reduces_in_switch(level: Level, span: GroupSpan) -> bool:
    """Of `hierarchical`: the level does its part in its switch."""
    return level.in_switch_efficiency > 0 and span.units > 2


def _switch_level(level: Level, span: GroupSpan, volume: float) -> Leg:
    rate = level.rate_bytes_per_ns / level.efficiency * level.in_switch_efficiency
    # A scatter gives everything and takes a share; a gather the other way round.
    return Leg(span.level, 1.0, volume / span.below, rate, in_switch=True, inward=1 / span.units)


def _halving_level(level: Level, span: GroupSpan) -> Leg:
    """Recursive halving; members beyond the last power of two hand their payload to a partner first."""
    n, rate = span.units, _rate(level, span, peers="one")
    core = 1 << (n.bit_length() - 1)
    odd = n > core
    volume = (core - 1) / core if level.kind not in LINED else _bits(core) / 2
    if level.kind == LevelKind.RING and span.whole and core == n > 2:
        volume -= 1 / 4  # the farthest partners are reached both ways round
    steps = _bits(core) if level.kind not in LINED else core - 1  # 1, 2, 4, ... away
    return Leg(span.level, steps + odd, (volume + odd) / span.below, rate)


def _by_level(system: System, kind: Collective, shape: GroupShape, cost: LevelCost) -> list[AlgorithmPhase]:
    """Scatter inwards-out, or gather outwards-in; an all-reduce does both. What enters a level is the level below's."""
    legs = [cost(system.levels[span.level], span) for span in shape.spans]
    scatter = [AlgorithmPhase((leg,)) for leg in legs]
    gather = [AlgorithmPhase((replace(leg, outward=leg.inward, inward=leg.outward),)) for leg in reversed(legs)]
    if kind == Collective.ALL_GATHER:
        return gather
    return scatter if kind in _SCATTERING else scatter + gather


def hierarchical(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """Level by level, chunk after chunk; in the switch where the level can, else by ring."""
    if kind == Collective.ALL_TO_ALL:
        return _all_to_all_by_level(system, shape, pipelined=False)
    phases = _by_level(system, kind, shape, _best_level)
    top = shape.spans[-1]
    level = system.levels[top.level]
    if kind == Collective.ALL_REDUCE and reduces_in_switch(level, top):
        # At the outermost level scatter and gather are one all-reduce in the switch.
        middle = len(phases) // 2
        whole = replace(_switch_level(level, top, 1 + 1 / top.units), hops=2.0, inward=1.0)
        phases = [*phases[: middle - 1], AlgorithmPhase((whole,)), *phases[middle + 1 :]]
    switched = any(leg.in_switch for phase in phases for leg in phase.legs)
    return AlgorithmPlan(tuple(phases), in_switch=switched, pipelined=len(shape.spans) > 1)


def torus(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """Rings of every dimension at once: the payload is cut into as many parts, and each starts at another one."""
    spans, parts = shape.spans, len(shape.spans)
    scatter = []
    for turn in range(parts):
        legs = []
        for first in range(parts):
            order = [spans[(first + k) % parts] for k in range(turn + 1)]
            entering = 1 / (parts * prod(s.units for s in order[:-1]))
            leg = _ring_level(system.levels[order[-1].level], replace(order[-1], below=1))
            legs.append(replace(leg, volume=leg.volume * entering))
        slowest = max(legs, key=lambda g: g.hops * system.levels[g.level].latency_ns)
        scatter.append(AlgorithmPhase(tuple(g if g is slowest else replace(g, hops=0.0) for g in legs), apart=True))
    gather = scatter[::-1]
    if kind == Collective.ALL_GATHER:
        return AlgorithmPlan(tuple(gather))
    return AlgorithmPlan(tuple(scatter if kind in _SCATTERING else scatter + gather))


def halving_doubling(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """Recursive halving and doubling, nearest partners first."""
    return AlgorithmPlan(tuple(_by_level(system, kind, shape, _halving_level)))


def rail(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """All-to-all over rails: bytes first move to the neighbour on the right rail, both levels at once."""
    return _all_to_all_by_level(system, shape, pipelined=True)


def _all_to_all_by_level(system: System, shape: GroupShape, *, pipelined: bool) -> AlgorithmPlan:
    """Along the innermost level, and along all others at once."""
    phases = []
    for spans in (shape.spans[:1], shape.spans[1:]):
        legs = []
        for place, span in enumerate(spans):
            level, n = system.levels[span.level], prod(s.units for s in spans)
            # Of the n units that are reached, those in other parts of this level but in the same part above.
            volume = (span.units - 1) * prod(s.units for s in spans[:place]) / n * _detour(level, span)
            legs.append(Leg(span.level, float(place == len(spans) - 1), volume, _rate(level, span, peers="all")))
        if legs:
            phases.append(AlgorithmPhase(tuple(legs), prod(s.units for s in spans) - 1, apart=True))
    return AlgorithmPlan(tuple(phases), pipelined=pipelined and len(phases) > 1)


def dissemination(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """A barrier in rounds: in the k-th each tells whoever is 2**k farther."""
    legs = []
    for span in shape.spans:
        level, n = system.levels[span.level], span.units
        hops = float(_bits(n))
        if level.kind in LINED:
            away = [1 << k for k in range(_bits(n))]
            hops = float(sum(min(a, n - a) if span.whole else max(a, n - a) for a in away))
        legs.append(Leg(span.level, hops, 0.0, _rate(level, span, peers="one")))
    return AlgorithmPlan((AlgorithmPhase(tuple(legs)),))


def binomial(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """Gather and scatter along a binomial tree: the root's port carries all parts but its own."""
    phase = fan(system, Collective.GATHER, shape).phases[0]  # parts of many: all along one tree
    legs = []
    for leg, span in zip(phase.legs, shape.spans, strict=True):
        level = system.levels[leg.level]
        lined = level.kind in LINED
        made = replace(leg, hops=leg.hops if lined else _bits(shape.size) * (leg.hops > 0))
        if level.kind == LevelKind.FULL:  # the farthest half goes over one link
            half = (1 << (_bits(span.units) - 1)) / span.units
            made = replace(made, volume=leg.volume * half, rate_bytes_per_ns=_rate(level, span, peers="one"))
        legs.append(made)
    return AlgorithmPlan((replace(phase, legs=tuple(legs), messages=_bits(shape.size)),))


# ---- which are there, and which are tried unasked

Algorithm = Callable[[System, Collective, GroupShape], AlgorithmPlan]

_ALL_REDUCE: Final[dict[str, Algorithm]] = {
    "ring": ring,
    "ring_both": ring_both,
    "tree": tree,
    "halving_doubling": halving_doubling,
    "direct": direct,
    "one_shot": one_shot,
    "in_switch": in_switch,
    "hierarchical": hierarchical,
    "torus": torus,
}
_ONE: Final = {k: v for k, v in _ALL_REDUCE.items() if k not in ("tree", "one_shot")}
_ROOT: Final[dict[str, Algorithm]] = {
    "ring": ring,
    "ring_both": ring_both,
    "tree": tree,
    "direct": fan,
    "in_switch": in_switch,
}
_FAN: Final[dict[str, Algorithm]] = {"direct": fan, "tree": binomial}
_EXCHANGE: Final[dict[str, Algorithm]] = {
    "ring": ring,
    "ring_both": ring_both,
    "direct": direct,
    "hierarchical": hierarchical,
    "rail": rail,
}

ALGORITHMS: Final[dict[Collective, dict[str, Algorithm]]] = {
    Collective.ALL_REDUCE: _ALL_REDUCE,
    Collective.BARRIER: {**_ALL_REDUCE, "dissemination": dissemination},
    Collective.REDUCE_SCATTER: _ONE,
    Collective.REDUCE_SCATTER_BLOCK: _ONE,
    Collective.ALL_GATHER: _ONE,
    Collective.BROADCAST: _ROOT,
    Collective.REDUCE: _ROOT,
    Collective.GATHER: _FAN,
    Collective.SCATTER: _FAN,
    Collective.ALL_TO_ALL: _EXCHANGE,
}
"""Algorithms by collective. A barrier is an all-reduce of nothing."""


def tried(system: System, kind: Collective, shape: GroupShape) -> list[str]:
    """What `auto` chooses from: what NCCL has on switches, rings both ways where links are rings."""
    levels = [system.levels[span.level] for span in shape.spans]
    rings = any(level.kind in LINED for level in levels)
    names = ["direct"] if kind in (Collective.GATHER, Collective.SCATTER) else ["ring_both" if rings else "ring"]
    if kind == Collective.ALL_TO_ALL:
        names = ["direct", *(["rail"] if any(level.rails for level in levels) else [])]
    elif kind in (Collective.ALL_REDUCE, Collective.BARRIER, *_ROOTED) and len(levels) > 1:
        names.append("tree")  # within one level NCCL's tree is a chain, which is no better than its ring
    if kind in (Collective.ALL_REDUCE, Collective.BARRIER, *_ONE_PASS) and shape.regular and len(levels) > 1:
        names += ["hierarchical"] if rings or kind not in _ONE_PASS else []
        names += ["torus"] if all(level.kind in LINED for level in levels) else []
    # Between two there is nothing that a switch could reduce for the others: NCCL has no NVLS there.
    if "in_switch" in ALGORITHMS[kind] and all(map(reduces_in_switch, levels, shape.spans)):
        names.append("in_switch")
    return names
