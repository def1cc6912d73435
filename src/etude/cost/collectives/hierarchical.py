"""Hierarchical: level by level, chunk after chunk; in the switch if the level supports it, else by ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import ClusterError
from etude.cost.collectives import direct, halving_doubling, in_switch, ring, ring_both
from etude.cost.collectives.algorithm import Algorithm, Layout
from etude.cost.collectives.in_switch import reduces_in_switch, switch_level
from etude.cost.collectives.pipeline import ChainPass, MessageChain, PortUse
from etude.cost.collectives.plan import (
    SCATTERING,
    AlgorithmPhase,
    AlgorithmPlan,
    Leg,
    by_level,
    detour,
    in_line,
    port_rate,
)
from etude.cost.collectives.steps import A2A, AG, AR, RS, Groups, Passes, alone, owned
from etude.cost.groups import GroupShape, GroupSpan
from etude.cost.schedule import Schedule, ScheduleBuilder
from etude.kernels.arrays import I64
from etude.machine.ports import ports_of
from etude.machine.system import LINED, Level, LevelKind, System
from etude.model.schema import Collective

ALONG: Final[dict[str, Passes]] = {
    "ring": ring.STEPS,
    "ring_both": ring_both.STEPS,
    "line": ring_both.IN_LINE,
    "in_switch": in_switch.STEPS,
    "direct": direct.STEPS,
    "halving_doubling": halving_doubling.STEPS,
}
"""Algorithms that can run along one dimension."""


def closed_form(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    if kind == Collective.ALL_TO_ALL:
        return all_to_all_by_level(system, shape, pipelined=False)
    phases = by_level(system, kind, shape, _best_level)
    top = shape.spans[-1]
    level = system.levels[top.level]
    if kind == Collective.ALL_REDUCE and reduces_in_switch(level, top):
        # At the outermost level scatter and gather are one all-reduce in the switch.
        middle = len(phases) // 2
        whole = replace(switch_level(level, top, 1 + 1 / top.units), hops=2.0, inward=1.0)
        phases = [*phases[: middle - 1], AlgorithmPhase((whole,)), *phases[middle + 1 :]]
    switched = any(leg.in_switch for phase in phases for leg in phase.legs)
    if len(shape.spans) < 2:
        return AlgorithmPlan(tuple(phases), in_switch=switched)
    return AlgorithmPlan(tuple(phases), in_switch=switched, pipelined=True, passes=_passes(system, kind, shape))


def _passes(system: System, kind: Collective, shape: GroupShape) -> tuple[ChainPass, ...]:
    """The messages of a device in `by_dimension`, along every level of the layout."""
    inner = [_along(system.levels[span.level], span) for span in shape.spans]
    parts = 2 if "ring_both" in inner else 1
    ports = ports_of(system.levels)
    scatter: list[ChainPass] = []
    gather: list[ChainPass] = []
    for name, span in zip(inner, shape.spans, strict=True):
        for passes, gathers in ((scatter, False), (gather, True)):
            made = _chains(system.levels[span.level], span, name, parts, gathers=gathers)
            through = _through(system.levels, ports, span.level, 2 if name == "ring_both" else 1)
            made = [tuple(replace(c, uses=(*through, *c.uses)) for c in chains) for chains in made]
            passes[:] = [*passes, *made] if not gathers else [*made, *passes]
    if kind == Collective.ALL_GATHER:
        return tuple(gather)
    return tuple(scatter if kind in SCATTERING else scatter + gather)


def _through(levels: Sequence[Level], ports: Sequence[int], at: int, ways: int) -> tuple[PortUse, ...]:
    """The port of a level below through which one without a port of its own is reached, by messages of both ways."""
    if ports[at] == at:
        return ()
    level = levels[ports[at]]
    return (PortUse(f"{ports[at]} out", level.rate_bytes_per_ns * level.oversubscription / ways),)


def _chains(level: Level, span: GroupSpan, name: str, parts: int, *, gathers: bool) -> list[ChainPass]:
    n, at = span.units, span.level
    block = 1 / (span.below * n * parts)
    out, enter = f"{at} out", f"{at} in"

    def chain(steps: int, volume: float, port: str, rate: float, **more: Any) -> MessageChain:
        return MessageChain(steps, volume, (PortUse(port, rate),), at, **more)

    if name == "in_switch":
        rate = level.rate_bytes_per_ns / level.efficiency * level.in_switch_efficiency
        volumes = [(block, out), (n * block, enter)] if gathers else [(n * block, out), (block, enter)]
        return [(chain(1, v, port, rate, in_switch=True, latency=0.5),) * parts for v, port in volumes]
    if name == "direct":
        return [(chain(1, block, out, port_rate(level, span, peers="all") / (n - 1)),) * parts]
    rate = port_rate(level, span, peers="two")
    if name == "ring":
        return [(chain(n - 1, block, out, rate),) * parts]
    if name == "ring_both":
        steps = [n // 2, (n - 1) // 2] if n > 2 else [1] * parts
        rate = rate / 2 if level.size > 2 else rate
        return [tuple(chain(many, block, out, rate) for many in steps)]
    if n == 2:
        return [(chain(1, block, out, rate),) * parts]
    first, last = f"{at} first", f"{at} last"
    if gathers:
        return [(chain(1, block, first, rate), chain(n - 1, block, last, rate)) * parts]
    return [(chain(1, (n - 1) * block, first, rate), chain(n - 1, block, last, rate, last_only=True)) * parts]


def _best_level(level: Level, span: GroupSpan) -> Leg:
    return switch_level(level, span, 1.0) if reduces_in_switch(level, span) else ring_level(level, span)


def ring_level(level: Level, span: GroupSpan) -> Leg:
    n = span.units
    if level.kind == LevelKind.FULL:
        return Leg(span.level, 1.0, (n - 1) / n / span.below, port_rate(level, span, peers="all"))
    steps = ceil((n - 1) / 2) if level.kind == LevelKind.RING and span.whole else n - 1
    return Leg(span.level, steps, (n - 1) / n / span.below, port_rate(level, span, peers="two"))


def all_to_all_by_level(system: System, shape: GroupShape, *, pipelined: bool) -> AlgorithmPlan:
    """Along the innermost level, and along all others at once."""
    phases = []
    for spans in (shape.spans[:1], shape.spans[1:]):
        legs = []
        for place, span in enumerate(spans):
            level, n = system.levels[span.level], prod(s.units for s in spans)
            # Of the n units that are reached, those in other parts of this level but in the same part above.
            volume = (span.units - 1) * prod(s.units for s in spans[:place]) / n * detour(level, span)
            legs.append(Leg(span.level, float(place == len(spans) - 1), volume, port_rate(level, span, peers="all")))
        if legs:
            phases.append(AlgorithmPhase(tuple(legs), prod(s.units for s in spans) - 1, apart=True))
    return AlgorithmPlan(tuple(phases), pipelined=pipelined and len(phases) > 1)


def dimensions(layout: Layout, algorithm: str, n: int, usual: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The sizes of the dimensions, and the algorithm along each."""
    sizes = tuple(int(d) for d in (layout.dims or (n,)))
    if prod(sizes) != n or min(sizes) < 1:
        raise ClusterError(f"{algorithm}: dimensions {sizes} do not match {n} members")
    inner = tuple(layout.inner or [usual] * len(sizes))
    if len(inner) != len(sizes):
        raise ClusterError(f"{algorithm}: {len(sizes)} dimensions, {len(inner)} algorithms")
    return sizes, inner


def schedule(collective: Collective, n: int, layout: Layout) -> Schedule:
    dims, inner = dimensions(layout, "hierarchical", n, "ring")
    if collective == A2A:
        return in_two("hierarchical", n, dims)
    return by_dimension(collective, "hierarchical", dims, inner, range(1))


def by_dimension(
    collective: Collective, algorithm: str, dims: tuple[int, ...], inner: tuple[str, ...], turns: range
) -> Schedule:
    """Reduce-scatter along dimension 1, 2, ..., then all-gather back; the data shrinks with every dimension.

    This is done once for each of `turns`, with a part of the data, beginning with that dimension. If a dimension goes
    both ways round, there are two of each part: for an even number, one goes a step farther up, the other down.
    """
    n = prod(dims)
    for name in inner:
        if name not in ALONG:
            raise ClusterError(f"{algorithm}: `{name}`", hint=f"known: {', '.join(ALONG)}")
    ways = (False, True) if "ring_both" in inner else (False,)
    parts = [(turn, mirrored) for turn in turns for mirrored in ways]
    build, owner, switches = ScheduleBuilder(), [], _switches(dims, inner)
    for part, (turn, mirrored) in enumerate(parts):
        order = [(turn + k) % len(dims) for k in range(len(dims))]
        block = np.full(n, part * n, np.int64)
        passes: list[tuple[str, tuple[I64, I64, I64], dict[str, Any]]] = []
        for at, d in enumerate(order):
            group, place = _lines(dims, d)
            # Block (p1, p2, ...) is at (p1 * n2 + p2) * n3 + ..., so that related blocks are adjacent.
            below = prod(dims[e] for e in order[at + 1 :])
            slot = np.argsort(ALONG[inner[d]].order(dims[d]))
            more: dict[str, dict[str, Any]] = {
                "ring_both": {"mirrored": mirrored},
                "in_switch": {"switch": n + switches.get(d, 0)},
            }
            where = group, block[group] + slot * below, np.full(group.shape, below)
            passes.append((inner[d], where, more.get(inner[d], {})))
            block += slot[place[d]] * below
        ready = alone(n)
        for name, where, extra in passes if collective != AG else []:
            ready = ALONG[name].reduce_scatter(build, *where, ready, **extra)
        for name, where, extra in reversed(passes) if collective != RS else []:
            ready = ALONG[name].all_gather(build, *where, ready, **extra)
        owner.append(np.argsort(block))
    more_of = owned(collective, n, len(parts)) | {"block_owner": np.concatenate(owner).astype(np.int32)}
    helpers = sum(len(switch) for switch in switches.values())
    return build.schedule(collective, algorithm, n, helpers=helpers, **more_of)


def _switches(dims: tuple[int, ...], inner: tuple[str, ...]) -> dict[int, I64]:
    """Numbers of the switches of every dimension that reduces in one: one for each line of members."""
    found: dict[int, I64] = {}
    count = 0
    for d, name in enumerate(inner):
        if name == "in_switch":
            found[d] = count + np.arange(prod(dims) // dims[d])
            count += len(found[d])
    return found


def _lines(sizes: tuple[int, ...], dimension: int) -> tuple[Groups, NDArray[Any]]:
    """(members of every line along the dimension, coordinates of each member): the first dimension varies fastest."""
    total = int(np.prod(sizes))
    member = np.arange(total)
    step = int(np.prod(sizes[:dimension]))
    coordinates = np.stack([member // int(np.prod(sizes[:d])) % sizes[d] for d in range(len(sizes))])
    begin = member[coordinates[dimension] == 0]
    return begin[:, None] + np.arange(sizes[dimension]) * step, coordinates


def in_two(algorithm: str, n: int, dims: tuple[int, ...]) -> Schedule:
    """All-to-all in two phases over dims (local, nodes). `rail`: first inside the node to the member on the receiver's
    rail, then along the rail. `hierarchical`: first across to the own rail's member in the receiver's node, then
    inside."""
    if len(dims) != 2:
        raise ClusterError(f"{algorithm} all-to-all needs two dimensions (in the node, nodes), not {len(dims)}")
    local, nodes = dims
    build, member = ScheduleBuilder(), np.arange(n)
    rail, node = member % local, member // local
    came: list[I64] = []
    inside = algorithm == "rail"
    many, step = (nodes, local) if inside else (local, 1)
    for away in range(1, local if inside else nodes):
        to = node * local + (rail + away) % local if inside else (node + away) % nodes * local + rail
        begin = member * n + (to % local if inside else to // local * local)
        sent = build.add(member, to, begin, many, stride=step)
        back = node * local + (rail - away) % local if inside else (node - away) % nodes * local + rail
        came.append(sent[back])
    ready = build.join(member, np.stack(came, axis=-1)) if came else alone(n)
    for away in range(1, nodes if inside else local):
        to = (node + away) % nodes * local + rail if inside else node * local + (rail + away) % local
        # What goes to `to` now came from all members that share the first phase with the sender.
        begin = (node * local * n if inside else rail * n) + to
        build.add(
            member,
            to,
            begin,
            local if inside else nodes,
            stride=n if inside else local * n,
            after=np.stack((ready, ready[to]), axis=-1),
        )
    return build.schedule(A2A, algorithm, n, owners=n, blocks=n * n)


def layout(system: System, kind: Collective, shape: GroupShape, dims: tuple[int, ...]) -> Layout:
    """Along the levels; along each, the algorithm of the closed form."""
    if kind == A2A:
        return two_levels(shape, dims)
    return Layout(dims=dims, inner=[_along(system.levels[span.level], span) for span in shape.spans])


def _along(level: Level, span: GroupSpan) -> str:
    plain = plainly(level, span)
    return "in_switch" if plain == "ring" and reduces_in_switch(level, span) else plain


def two_levels(shape: GroupShape, dims: tuple[int, ...]) -> Layout:
    """The innermost level, and all others as one."""
    return Layout(dims=(dims[0], shape.size // dims[0]))


def plainly(level: Level, span: GroupSpan) -> str:
    """The algorithm of a reduce-scatter or an all-gather along one level without the help of its switch."""
    if level.kind in LINED:
        return "line" if in_line(level, span) else "ring_both"
    return "direct" if level.kind == LevelKind.FULL else "ring"


ALGORITHM: Final = Algorithm(closed_form, schedule, (AR, RS, AG, A2A), layout, nested=True)
