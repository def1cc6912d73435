"""Double binary tree; for gather and scatter, a binomial tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import Final

import numpy as np

from etude.base.errors import ClusterError
from etude.cost.collectives import trees
from etude.cost.collectives.algorithm import Algorithm, Layout
from etude.cost.collectives.direct import fan
from etude.cost.collectives.plan import PASSES, AlgorithmPhase, AlgorithmPlan, Leg, bits_of, port_rate
from etude.cost.collectives.steps import AR, BROADCAST, GATHER, REDUCE, SCATTER
from etude.cost.groups import GroupShape, GroupSpan
from etude.cost.schedule import Schedule, ScheduleBuilder
from etude.kernels.arrays import I64
from etude.machine.system import LINED, Level, LevelKind, System
from etude.model.schema import Collective


def closed_form(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    return _binomial(system, shape) if kind in (GATHER, SCATTER) else _double(system, kind, shape)


def _double(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """Double binary tree: each member is a leaf in one tree and inner in the other, with half of the payload in each.

    Over several levels the trees join the outer units, and the members inside the innermost form a chain, as in NCCL.
    There are as many pairs of trees as the innermost unit has members, so that its chains keep all ports busy from the
    beginning; the trees above wait for their first chunk.
    """
    passes = PASSES.get(kind, 1)
    streamed = passes == 2 and len(shape.spans) > 1
    legs = []
    for place, span in enumerate(shape.spans):
        chain = place == 0 and len(shape.spans) > 1
        level = system.levels[span.level]
        rate, volume = port_rate(level, span, peers="one"), float(passes)
        if passes == 2 and not chain:
            volume = _tree_port(span.units)
        hops = span.units - 1 if chain else bits_of(span.units)
        if chain and passes == 2:
            volume = _chains(level, span, regular=shape.regular)
        elif level.kind in LINED and not chain:
            volume, hops = tree_load(span.units, whole=span.whole, passes=passes)
        part = 1 / (2 * shape.spans[-1].below_least) if streamed else 0.0  # of the payload, in each tree
        way = passes * hops * part / rate
        legs.append(Leg(span.level, passes * hops, volume / span.below_least, rate, way_ns_per_byte=way))
    phase = AlgorithmPhase(tuple(legs), apart=True, streamed=passes if streamed else 0)
    return AlgorithmPlan((phase,), pipelined=streamed)


def _chains(level: Level, span: GroupSpan, *, regular: bool) -> float:
    """Up and down the chains in a unit, one for each of its members: bytes over the busiest link, per byte."""
    n = span.units
    if level.kind in LINED and n > 2:
        return 1.0  # sums go one way and results the other: each has one of the two links
    if not regular:
        return 2.0
    if level.kind == LevelKind.FULL:
        return 2 / n if n % 2 == 0 else (n - 1) / n
    return 2 * (n - 1) / n


@cache
def _tree_port(n: int) -> float:
    """For two trees with half of the payload each, up and down: bytes that leave the busiest port, per byte."""
    out = np.zeros(n)
    for parent in trees.double_tree(n):
        out += 0.5 * (parent >= 0) + 0.5 * np.bincount(parent[parent >= 0], minlength=n)
    return float(out.max())


@cache
def tree_load(n: int, *, whole: bool, passes: int) -> tuple[float, int]:
    """For two trees with half of the payload each, along n units in a ring or a line: bytes over the busiest link in
    one direction, per byte of payload, and links from the root to the farthest leaf."""
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


def _binomial(system: System, shape: GroupShape) -> AlgorithmPlan:
    """Gather and scatter along a binomial tree: the root's port carries all parts except its own."""
    phase = fan(system, Collective.GATHER, shape).phases[0]  # parts of many: all along one tree
    legs = []
    for leg, span in zip(phase.legs, shape.spans, strict=True):
        level = system.levels[leg.level]
        lined = level.kind in LINED
        made = replace(leg, hops=leg.hops if lined else bits_of(shape.size) * (leg.hops > 0))
        if level.kind == LevelKind.FULL:  # the farthest half goes over one link
            half = (1 << (bits_of(span.units) - 1)) / span.units
            made = replace(made, volume=leg.volume * half, rate_bytes_per_ns=port_rate(level, span, peers="one"))
        legs.append(made)
    return AlgorithmPlan((replace(phase, legs=tuple(legs), messages=bits_of(shape.size)),))


def _up_and_down(n: int, chains: Sequence[Sequence[int]]) -> Schedule:
    """Each half of the data up and down its own tree; over nodes, a pair of trees for each chain inside a node."""
    build = ScheduleBuilder()
    parents = [p for chain in chains for p in trees.nested(chain, n // len(chain))]
    for part, parent in enumerate(parents):
        ready: dict[int, list[int]] = {}
        root = int(np.flatnonzero(parent < 0)[0])
        trees.up(build, parent, part, 1, ready)
        trees.down(build, parent, part, 1, {root: ready.get(root, [-1])})
    return build.schedule(AR, "tree", n, owners=1, blocks=len(parents))


def _below(n: int) -> I64:
    """Members in the binomial tree below the k-th after the root, itself included: it forwards the parts of all."""
    at = np.arange(n)
    return np.minimum(at & -at, n - at)


def schedule(collective: Collective, n: int, layout: Layout) -> Schedule:
    local, root = 1, layout.root
    if layout.dims is not None and len(layout.dims) > 1:
        if prod(layout.dims) != n or min(layout.dims) < 1:
            raise ClusterError(f"tree: dimensions {tuple(layout.dims)} do not match {n} members")
        local = int(layout.dims[0])
    if collective in (GATHER, SCATTER):
        return trees.parts(collective, "tree", n, root, trees.binomial(n, root), _below(n))
    chains = layout.orders or [np.roll(np.arange(local), -leader).tolist() for leader in range(local)]
    if collective == AR:
        return _up_and_down(n, chains)
    parents = [p for chain in chains for p in trees.nested(chain, n // local, root)]
    return trees.rooted(collective, "tree", n, root, parents)


def layout(system: System, kind: Collective, shape: GroupShape, dims: tuple[int, ...]) -> Layout:
    """Over several levels a pair of trees for each member of a unit, so that every port carries its part."""
    if len(dims) > 1 and kind not in (GATHER, SCATTER):
        full = system.levels[shape.spans[0].level].kind == LevelKind.FULL and dims[0] % 2 == 0
        return Layout(dims=(dims[0], shape.size // dims[0]), orders=trees.paths_of_full(dims[0]) if full else None)
    return Layout()


ALGORITHM: Final = Algorithm(closed_form, schedule, (AR, BROADCAST, REDUCE, GATHER, SCATTER), layout)
