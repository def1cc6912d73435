"""Collectives and messages as operations of a network with links: algorithm, number of chunks, costs.

What closed forms add to the bytes is added here in the same way: the launch and the ramp of the protocol before the
first transfers, the protocol's fraction of the bandwidth on all bytes, its step latency in place of the level's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import ClusterError, UsageError
from etude.cost.collectives import AUTO, choose, p2p_start_ns, p2p_time_ns, start_ns
from etude.cost.collectives.in_switch import reduces_in_switch
from etude.cost.collectives.plan import ROOTED, in_line
from etude.cost.collectives.ring import rings_that_fit
from etude.cost.collectives.schedules import laid_out
from etude.cost.collectives.steps import MOST_TRANSFERS
from etude.cost.collectives.table import ALGORITHMS, BY_COLLECTIVE
from etude.cost.groups import GroupShape, GroupSpan
from etude.cost.schedule import IN_FLIGHT, Schedule, chunked, message
from etude.kernels.arrays import I64
from etude.machine.fabrics import topology_of_system
from etude.machine.routes import Routes, common_switch
from etude.machine.system import LINED, System
from etude.machine.topology import Topology
from etude.model.schema import Collective
from etude.run.simulate.networks.messages import Messages
from etude.run.simulate.networks.operation import Operation
from etude.run.simulate.networks.standalone import run_operations
from etude.run.simulate.networks.state import WHOLE

_PLAIN: Final = ("ring", "direct", "dissemination")
"""Fallbacks, the first that exists, if the algorithm does not fit the group."""
_LIKE: Final = {"torus": "ring_both"}
_RINGS: Final = ("ring", "ring_both")
_SHORTER: Final = ("tree", "hierarchical")
_FROM_ONE: Final = (*ROOTED, Collective.GATHER, Collective.SCATTER)
_MOST_CHUNKS: Final = 64
_CHUNKS_A_HOP: Final = 8
"""Long chains get more, to keep their fill time small."""
_MOST_WAYS: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class Carriage:
    """How a collective is carried out on a group."""

    schedule: Schedule
    launch_ns: int
    wire_ppm: int
    lags: I64 | None
    factors: I64 | None = None

    def operation(self, members: I64, size_bytes: int) -> Operation:
        costs = {"launch_ns": self.launch_ns, "wire_ppm": self.wire_ppm}
        if self.schedule.collective == Collective.BARRIER:
            size_bytes = 0
        return Operation(self.schedule, members, size_bytes, lags=self.lags, factors=self.factors, **costs)


class Carrier:
    """Makes operations of the network; what they share is made once.

    `window` chunks of one transfer may be in progress. `links` takes them one by one; where flows share a link, more
    than two only delay each other.
    """

    def __init__(self, system: System, topology: Topology, *, window: int = IN_FLIGHT) -> None:
        self.system, self.topology, self.window = system, topology, window
        self.routes = Routes(topology)
        self.made: dict[tuple[Any, ...], Schedule] = {}
        self.lags: dict[tuple[Any, ...], I64] = {}
        self.ways_of: dict[tuple[int, int], int] = {}
        self.replaced: dict[str, str] = {}

    # -- collectives

    def collective(self, what: Collective, size: int, members: I64, shape: GroupShape, algorithm: str) -> Carriage:
        """Uses the requested algorithm, or the one with the fastest closed form."""
        name, there = what.name.lower(), schedulable(what)
        size = 0 if what == Collective.BARRIER else size
        asked = algorithm != AUTO
        if asked and algorithm not in there:
            raise UsageError(f"{name} has no algorithm `{algorithm}`", hint=f"known: {', '.join(there)}")
        dims, order = self._dims(shape, members, what)
        if not asked:
            algorithm = self._fastest(what, size, shape, dims)
        plain = ("direct",) if what == Collective.ALL_TO_ALL else _PLAIN
        one_switch = algorithm == "hierarchical" and len(dims) == 1 and "in_switch" in there
        if one_switch and reduces_in_switch(self.system.levels[shape.spans[0].level], shape.spans[0]):
            algorithm = "in_switch"  # the same on one level
        tiers = algorithm == "in_switch" and len(dims) > 1 and "hierarchical" in there
        take = "hierarchical" if tiers else self._pick(algorithm, there, dims, members, plain)
        if not take:
            raise UsageError(f"{name} has no algorithm with a schedule", hint=f"known: {', '.join(there)}")
        if take != algorithm and len(members) > 1 and not tiers:
            self.replaced[f"`{algorithm}` of {name}"] = f"`{take}`"
        protocol, start, chunks = start_ns(self.system, what, size, shape, take)
        chunks = self._chunks(what, take, size, shape, protocol, chunks)
        ways = max(self._ways(members), self._tied(what, take))
        layout = ALGORITHMS[take].layout(self.system, what, shape, dims)
        if tiers:
            layout = replace(layout, inner=["in_switch"] * len(dims))
        chunks = max(chunks, ways)
        order = order if ALGORITHMS[take].nested else None
        key = (what, take, len(members), repr(layout), chunks, None if order is None else order.tobytes())
        if key not in self.made:
            one = laid_out(what, take, len(members), layout)
            self.made[key] = self._in_chunks(one if order is None else one.renumbered(order), chunks, ways)
        plan = self.made[key]
        lags = self._lags(key, plan, members, protocol, self._messages(plan, take, what))
        wire = self._wire(what, take, shape, protocol)
        return Carriage(plan, start, wire, lags, self._factors(plan, members, take))

    def _fastest(self, what: Collective, size: int, shape: GroupShape, dims: tuple[int, ...]) -> str:
        """The fastest by closed form; over levels, rings of very many members are too many transfers, so the next best
        is taken. An algorithm named in the system file is used as it is."""
        best = str(choose(self.system, what, [size], shape).algorithm[0])
        named = what.name.lower() in self.system.collectives.algorithm
        if named or best not in _RINGS or what in ROOTED or len(dims) < 2:
            return best
        if rings_that_fit(what, shape.size) >= dims[0]:
            return best
        others = [name for name in _SHORTER if name in schedulable(what)]
        times = [int(choose(self.system, what, [size], shape, name).time_ns[0]) for name in others]
        return others[int(np.argmin(times))] if others else best

    def _in_chunks(self, one: Schedule, chunks: int, ways: int) -> Schedule:
        """In `chunks` chunks, or as many as a schedule has room for."""
        if one.collective == Collective.BARRIER:
            return one
        most = max(MOST_TRANSFERS // max(len(one), 1), ways, 1)
        return chunked(one, min(chunks, most), max(self.window, ways))

    def _in_line(self, span: GroupSpan) -> bool:
        return in_line(self.system.levels[span.level], span)

    def own(self, plan: Schedule, members: I64) -> Carriage:
        """A user's algorithm: its transfers, with the launch and the steps of a protocol."""
        protocols = self.system.collectives.of_plan(in_switch=False)
        protocol = plan.protocol if plan.protocol in protocols else list(protocols)[-1]
        costs = protocols[protocol]
        wire = round(WHOLE / costs.bandwidth_fraction)
        lags = self._lags((id(plan),), plan, members, protocol, None)
        return Carriage(plan, round(costs.launch_ns), wire, lags)

    def _pick(
        self, algorithm: str, there: Sequence[str], dims: tuple[int, ...], members: I64, plain: Sequence[str]
    ) -> str:
        rings = any(level.kind in LINED for level in self.system.levels)
        plain = ("ring_both", *plain) if rings and "ring" in plain else plain
        for take in (algorithm, _LIKE.get(algorithm, ""), *plain):
            if take not in there:
                continue
            alone = len(dims) == 1 and "halving_doubling" in there
            fits = not ALGORITHMS[take].nested or len(dims) > 1 or alone
            if fits and (take != "in_switch" or self._switch(members)):
                return take
        return ""

    def _dims(self, shape: GroupShape, members: I64, what: Collective) -> tuple[tuple[int, ...], I64 | None]:
        """(Members under each unit, level by level, if their devices are a product of levels; the members in device
        order, if different from theirs). If one of them is the root, their order must be the device order."""
        device = self.system.device_of(members)
        ordered = bool((np.diff(device) > 0).all())
        dims = tuple(span.units for span in shape.spans)
        fits = shape.regular and np.prod(dims) == len(members) and (ordered or what not in _FROM_ONE)
        return (dims if fits else ()), (None if ordered or not fits else np.argsort(device, kind="stable"))

    def _switch(self, members: I64) -> bool:
        try:
            common_switch(self.topology, members)
        except ClusterError:
            return False
        return True

    def _chunks(self, what: Collective, take: str, size: int, shape: GroupShape, protocol: str, chunks: int) -> int:
        """Number of chunks. Algorithms that forward the same bytes repeatedly are cut so that the chunks in progress
        fill the wire for about two steps; smaller ones would leave it idle. Others as in closed form."""
        if take == "ring_both" and what == Collective.ALL_TO_ALL and any(map(self._in_line, shape.spans)):
            return _MOST_CHUNKS if len(shape.spans) == 1 and shape.size <= _MOST_CHUNKS else chunks
        passed_on = take in ("tree", "in_switch") or (take in _RINGS and what in ROOTED)
        if (
            not passed_on
            or not shape.spans
            or BY_COLLECTIVE[what][take].closed_form(self.system, what, shape).pipelined
        ):
            return chunks
        level = self.system.levels[shape.spans[0].level]
        step = max(level.step("in_switch" if take == "in_switch" else protocol), 1.0)
        fraction = self.system.collectives.used()[protocol].bandwidth_fraction
        most = size / (level.rate_bytes_per_ns * fraction * step * 2 / self.window)
        hops = shape.size if take in _RINGS else 1
        at_most = min(max(_MOST_CHUNKS, _CHUNKS_A_HOP * hops), max(MOST_TRANSFERS // (4 * shape.size), _MOST_CHUNKS))
        return 1 << int(np.log2(np.clip(most, 1, at_most)))

    def _messages(self, plan: Schedule, take: str, what: Collective) -> I64 | None:
        """If a member posts messages to many one by one: the time of the posts before each."""
        each = self.system.collectives.message_ns
        made = ALGORITHMS[take]
        if not each or not (made.straight or (made.nested and what == Collective.ALL_TO_ALL)):
            return None
        one = len(plan) // plan.chunks
        phase = (np.diff(plan.dep_start)[:one] > 0).astype(np.int64)
        moves = plan.src[:one] != plan.dst[:one]
        key = np.where(moves, plan.src[:one].astype(np.int64) * 2 + phase, -1)
        order = np.argsort(key, kind="stable")
        first = np.searchsorted(key[order], key[order])
        before = np.empty(one, np.int64)
        before[order] = np.arange(one) - first
        return np.tile(np.where(moves, np.rint(before * each), 0), plan.chunks).astype(np.int64)

    def _ways(self, members: I64) -> int:
        """Number of equal routes between neighbours, which chunks take in turn as channels do."""
        if self.topology.dimensions or len(members) < 2:
            return 1
        pair = (int(self.topology.device[members[0]]), int(self.topology.device[members[1]]))
        if pair not in self.ways_of:
            ends = [np.full(_MOST_WAYS, v, np.int64) for v in pair]
            start, links = self.routes.paths(ends[0], ends[1], np.arange(_MOST_WAYS))
            self.ways_of[pair] = len(np.unique(links[start[:-1]]))
        return self.ways_of[pair]

    def _tied(self, what: Collective, take: str) -> int:
        """2: traffic to the opposite device of a ring is halved, if pairs alone cannot alternate."""
        every = 2 if what in _FROM_ONE else 4  # all pairs of a ring of 4, 8, ... balance in both directions
        rings = [d for d in self.topology.dimensions if d.split_ties and d.shape == "ring" and d.size > 2]
        odd = any(d.size % 2 == 0 and (every == 2 or d.size % every) for d in rings)
        return 2 if odd and ALGORITHMS[take].straight else 1

    def _wire(self, what: Collective, take: str, shape: GroupShape, protocol: str) -> int:
        factor = 1 / self.system.collectives.used()[protocol].bandwidth_fraction
        if len(shape.spans) == 1 and take != "in_switch":
            level = self.system.levels[shape.spans[0].level]
            factor *= level.efficiency / level.efficiency_of(shape.spans[0].units)
        if take == "in_switch" and shape.spans:
            level = self.system.levels[shape.spans[-1].level]
            if level.in_switch_efficiency:
                factor *= level.efficiency / level.in_switch_efficiency
            if what in (Collective.ALL_REDUCE, Collective.BARRIER):
                factor *= 1 + 1 / shape.size
        return round(factor * WHOLE)

    def _lags(self, key: tuple[Any, ...], plan: Schedule, members: I64, protocol: str, more: I64 | None) -> I64 | None:
        """The protocol's step instead of the latency of the outermost level that a transfer crosses, plus `more`."""
        levels = self.system.levels
        latency = np.array([level.latency_ns for level in levels])
        step = np.array([level.step(protocol) for level in levels])
        in_switch = np.array([level.step("in_switch") for level in levels])
        if (step == latency).all() and more is None and (not plan.helpers or (in_switch == latency).all()):
            return None
        crossed = self._crossed(plan, members)
        full = (*key, protocol, crossed.tobytes())
        if full not in self.lags:
            # Up and down is one step, or two where the switch reduces for all.
            twice = plan.algorithm == "in_switch" and plan.collective in (Collective.ALL_REDUCE, Collective.BARRIER)
            half = in_switch / (1 if twice else 2) - latency / 2
            lags = np.where(_at_helper(plan), half[crossed], (step - latency)[crossed])
            lags = np.rint(np.where(crossed >= 0, lags, 0)).astype(np.int64)
            self.lags[full] = lags if more is None else lags + more
        return self.lags[full]

    def _crossed(self, plan: Schedule, members: I64) -> I64:
        """The outermost level that separates the ends of each transfer; -1: none. A helping switch is as far from a
        member as its members are from one another."""
        unit, count = self.system.device_of(members), plan.members + plan.helpers
        low, high = np.empty(count, np.int64), np.empty(count, np.int64)
        crossed = np.full(len(plan), -1, np.int64)
        helped = _at_helper(plan)
        member = np.where(plan.src < plan.members, plan.src, plan.dst)[helped]
        helper = np.maximum(plan.src, plan.dst)[helped]
        for number, level in enumerate(self.system.levels):
            low[: plan.members] = high[: plan.members] = unit
            low[plan.members :], high[plan.members :] = np.iinfo(np.int64).max, -1
            np.minimum.at(low, helper, unit[np.minimum(member, plan.members - 1)])
            np.maximum.at(high, helper, unit[np.minimum(member, plan.members - 1)])
            apart = (np.minimum(low[plan.src], low[plan.dst]) != np.maximum(high[plan.src], high[plan.dst])) & (
                plan.src != plan.dst
            )
            crossed[apart] = number
            unit = unit // level.size
        return crossed

    def _factors(self, plan: Schedule, members: I64, take: str) -> I64 | None:
        """Byte factors of a level that reduces in its switch, at another fraction of the bandwidth."""
        if not plan.helpers or take == "in_switch":
            return None
        levels = self.system.levels
        more = [level.efficiency / (level.in_switch_efficiency or level.efficiency) for level in levels]
        key = ("factors", id(plan), members.tobytes())
        if key not in self.lags:
            there = np.array(more)[self._crossed(plan, members)]
            self.lags[key] = np.rint(WHOLE * np.where(_at_helper(plan), there, 1.0)).astype(np.int64)
        return self.lags[key]

    # -- messages

    def message(self, src: int, dst: int, size: int) -> Operation:
        launch, ways = p2p_start_ns(self.system, src, dst, size), self._ways(np.array([src, dst]))
        if ways == 1:
            return Operation.message(src, dst, size, launch_ns=launch)
        key = ("message", ways)
        if key not in self.made:
            self.made[key] = replace(chunked(message(), ways, ways), algorithm="message over several paths")
        return Operation(self.made[key], (src, dst), size, launch_ns=launch)

    def messages(self, src: I64, dst: I64, size: I64) -> Messages:
        """The same for many at once, in columns."""
        vertex = self.topology.device.astype(np.int64)
        parts = np.clip(self.routes.first_links(vertex[src], vertex[dst]), 1, _MOST_WAYS)
        flow, wire = np.zeros(len(src), np.int64), np.full(len(src), WHOLE, np.int64)
        return Messages(src, dst, size, flow, self._starts_ns(src, dst, size), wire, parts)

    def _starts_ns(self, src: I64, dst: I64, size: I64) -> I64:
        """`p2p_start_ns` of each message."""
        settings = self.system.collectives
        start = np.full(len(src), float(settings.p2p_launch_ns))
        if settings.p2p_least_ns:
            bare = self.system.replace(collectives=replace(settings, p2p_least_ns=0.0))
            start += np.maximum(settings.p2p_least_ns - p2p_time_ns(bare, src, dst, size), 0.0)
        return np.rint(start).astype(np.int64)


def _at_helper(plan: Schedule) -> NDArray[np.bool_]:
    """Transfers between a member and a switch."""
    return (np.maximum(plan.src, plan.dst) >= plan.members) & (plan.src != plan.dst)


def alone_ns(system: System, plan: Schedule, members: I64, sizes: I64) -> I64:
    """Time of a user's algorithm on the links of an idle system, for each size."""
    topology = topology_of_system(system)
    carriage = Carrier(system, topology).own(plan, members)
    times = np.zeros(len(sizes), np.int64)
    for i, size in enumerate(sizes.tolist()):
        if i and plan.fixed_bytes is not None:
            times[i] = times[0]
            continue
        times[i] = run_operations(topology, [carriage.operation(members, size)], model="links").end_ns
    return times


def schedulable(what: Collective) -> list[str]:
    """Algorithms that implement the collective."""
    return list(BY_COLLECTIVE.get(what, ()))
