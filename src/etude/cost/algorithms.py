"""Collective algorithms as plans: how many steps at which level, how many bytes through which port.

A plan is a list of phases, one after another; the legs of a phase run at once. With S the payload (docs/costs.md says
what that is for each collective), a phase costs

    sum over legs of hops * step latency  +  max over legs of volume * S / rate

Every leg is bounded by the rate of one device's port at its level, so nothing beats its injection port.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, log2, prod
from typing import Final

from etude.cost.groups import GroupShape, GroupSpan
from etude.errors import UsageError
from etude.machine.system import Level, LevelKind, System
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
        return rate * (1 if peers == "one" else span.units - 1) / (level.size - 1)
    if level.kind == LevelKind.RING and level.size > 2 and (peers == "one" or not span.whole):
        return rate / 2
    return rate


def _detour(level: Level, span: GroupSpan) -> float:
    """Links that a byte occupies on the way to a random other unit, over what a neighbour's byte does."""
    if level.kind != LevelKind.RING or span.units < 3:
        return 1.0
    return (span.units**2 // 4) / (span.units - 1)


def _bits(n: int) -> int:
    return ceil(log2(n)) if n > 1 else 0


# ---- flat: one pattern over the whole group


def ring(system: System, kind: Collective, shape: GroupShape, *, both: bool = False) -> AlgorithmPlan:
    """Neighbour to neighbour in rank order. `both` ways halves the steps, and fills both links of a ring level."""
    n = shape.size
    passes = _PASSES.get(kind, 1)
    volume = 1.0 if kind in _ROOTED else passes * (n - 1) / n
    if kind == Collective.ALL_TO_ALL:
        # Each block travels on until it is home: n(n-1)/2 block-hops a member, half of that both ways round.
        volume = (n * n // 4) / n if both else (n - 1) / 2
    share = 0.5 if both and kind not in _ROOTED else 1.0
    legs = []
    for span in shape.spans:
        level = system.levels[span.level]
        rate = _rate(level, span, peers="two" if both or level.kind != LevelKind.RING else "one")
        hops = passes * ceil(span.crossings * share)
        # A unit's members share the traffic that leaves it: each channel goes out through another port.
        legs.append(Leg(span.level, hops, volume / span.below_least, rate))
    return AlgorithmPlan((AlgorithmPhase(tuple(legs)),))


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
        rate = _rate(system.levels[span.level], span, peers="one")
        hops = span.units - 1 if chain else _bits(span.units)
        legs.append(Leg(span.level, passes * hops, float(passes) / span.below_least, rate))
    return AlgorithmPlan((AlgorithmPhase(tuple(legs)),))


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
        rate = _rate(level, span, peers="all")
        last = place + 1 == len(shape.spans)
        legs.append(Leg(span.level, 1.0 if last else 0.0, outside * _detour(level, span), rate))
    return AlgorithmPhase(tuple(legs), messages=shape.size - 1)


def fan(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """One root and all others: what the root's port carries. A broadcast sends the whole to each, a scatter a block."""
    phase = _to_all(system, shape, block=1.0 if kind in _ROOTED else 1 / shape.size)
    legs = tuple(
        Leg(g.level, g.hops, g.volume / _detour(system.levels[g.level], s), g.rate_bytes_per_ns)
        for g, s in zip(phase.legs, shape.spans, strict=True)
    )
    return AlgorithmPlan((AlgorithmPhase(legs, phase.messages),))


def in_switch(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """The switch reduces and multicasts (NVLS, SHARP): each port carries the payload about once."""
    legs = []
    for span in shape.spans:
        level = system.levels[span.level]
        _need_switch(level)
        rate = _rate(level, span, peers="all") / level.efficiency_of(span.units) * level.in_switch_efficiency
        # All-reduce: a port gives its whole buffer and its share of the result, and takes as much.
        volume = 1 + 1 / span.units if kind == Collective.ALL_REDUCE else 1.0
        legs.append(Leg(span.level, _PASSES.get(kind, 1), volume / span.below_least, rate, in_switch=True))
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
    steps = ceil((n - 1) / 2) if level.kind == LevelKind.RING else n - 1
    return Leg(span.level, steps, (n - 1) / n / span.below, _rate(level, span, peers="two"))


def _best_level(level: Level, span: GroupSpan) -> Leg:
    return _switch_level(level, span, 1.0) if _reduces(level, span) else _ring_level(level, span)


def _reduces(level: Level, span: GroupSpan) -> bool:
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
    volume = (core - 1) / core if level.kind != LevelKind.RING else _bits(core) / 2
    return Leg(span.level, _bits(core) + odd, (volume + odd) / span.below, rate)


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
    if kind == Collective.ALL_REDUCE and _reduces(level, top):
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
        scatter.append(AlgorithmPhase(tuple(g if g is slowest else replace(g, hops=0.0) for g in legs)))
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
    phases = []
    for span in shape.spans:
        level = system.levels[span.level]
        volume = (span.units - 1) / span.units * _detour(level, span)
        leg = Leg(span.level, 1.0, volume, _rate(level, span, peers="all"))
        phases.append(AlgorithmPhase((leg,), messages=span.units - 1))
    return AlgorithmPlan(tuple(phases), pipelined=pipelined and len(phases) > 1)


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
_FAN: Final[dict[str, Algorithm]] = {"direct": fan}
_EXCHANGE: Final[dict[str, Algorithm]] = {
    "ring": ring,
    "ring_both": ring_both,
    "direct": direct,
    "hierarchical": hierarchical,
    "rail": rail,
}

ALGORITHMS: Final[dict[Collective, dict[str, Algorithm]]] = {
    Collective.ALL_REDUCE: _ALL_REDUCE,
    Collective.BARRIER: _ALL_REDUCE,
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
    rings = any(level.kind == LevelKind.RING for level in levels)
    names = ["direct"] if kind in (Collective.GATHER, Collective.SCATTER) else ["ring_both" if rings else "ring"]
    if kind == Collective.ALL_TO_ALL:
        names = ["direct", *(["rail"] if any(level.rails for level in levels) else [])]
    elif kind in (Collective.ALL_REDUCE, Collective.BARRIER, *_ROOTED) and len(levels) > 1:
        names.append("tree")  # within one level NCCL's tree is a chain, which is no better than its ring
    if kind in (Collective.ALL_REDUCE, Collective.BARRIER, *_ONE_PASS) and shape.regular and len(levels) > 1:
        names += ["hierarchical"] if rings or kind not in _ONE_PASS else []
        names += ["torus"] if all(level.kind == LevelKind.RING for level in levels) else []
    # Between two there is nothing that a switch could reduce for the others: NCCL has no NVLS there.
    if "in_switch" in ALGORITHMS[kind] and all(map(_reduces, levels, shape.spans)):
        names.append("in_switch")
    return names
