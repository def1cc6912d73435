"""Time of collectives in closed form: instant at any scale, bounded by every port's rate.

    collective_time_ns(system, Collective.ALL_REDUCE, [1 << 20, 1 << 30], range(8))

Sizes are input bytes per rank, as `in_bytes` of a trace has them. The formulas are in docs/costs.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.cost.collectives.in_switch import reduces_in_switch
from etude.cost.collectives.pipeline import MessageChain, pipelined_ns
from etude.cost.collectives.plan import ONE_PASS, ROOTED, AlgorithmPhase, AlgorithmPlan, Leg
from etude.cost.collectives.table import BY_COLLECTIVE
from etude.cost.groups import GroupShape, group_shape
from etude.cost.schedule import IN_FLIGHT
from etude.kernels.arrays import F64, I64
from etude.machine.ports import ports_of
from etude.machine.system import LINED, Protocol, System
from etude.model.job import Groups
from etude.model.schema import UNKNOWN, Collective

Line = tuple[float, float]
"""(fixed ns, ns for each byte)."""

AUTO: Final = "auto"
_GATHERING: Final = (Collective.ALL_GATHER, Collective.GATHER)


@dataclass(frozen=True, slots=True, eq=False)
class AlgorithmChoice:
    """Time of each collective, and what was chosen for it."""

    time_ns: I64
    algorithm: NDArray[np.str_]
    protocol: NDArray[np.str_]


def collective_time_ns(system: System, kind: Collective, size_bytes: Any, group: Any, algorithm: str = AUTO) -> I64:
    """Time of collectives of one group, in ns, one for each size.

    `group` is its ranks, or the `GroupShape` made of them once. A group of one costs nothing.
    """
    return choose(system, kind, size_bytes, group, algorithm).time_ns


def collectives_time_ns(system: System, kind: Any, size_bytes: Any, group_of: Any, groups: Groups) -> I64:
    """Time of many collectives of many groups, in ns: of kind[i] with size_bytes[i] on group group_of[i].

    Groups of one shape are worked out together. UNKNOWN stays where the kind, the size or the members are not known.
    """
    kinds, sizes = np.asarray(kind, np.int64), np.asarray(size_bytes, np.int64)
    group = np.asarray(group_of, np.int64)
    shapes: dict[GroupShape, int] = {}
    number = np.full(len(groups), -1, np.int64)
    for g in np.unique(group[group >= 0]).tolist():
        members = groups.ranks(g)
        if members is not None and len(members):
            number[g] = shapes.setdefault(group_shape(system, members), len(shapes))
    shape_of = np.where(group >= 0, number[np.maximum(group, 0)], -1) if len(groups) else np.full(len(group), -1)
    time_ns = np.full(len(sizes), UNKNOWN, np.int64)
    sized = (sizes >= 0) | (kinds == int(Collective.BARRIER))
    for shape, which in shapes.items():
        for k in np.unique(kinds[shape_of == which]).tolist():
            if Collective(k) in BY_COLLECTIVE:
                rows = np.flatnonzero((shape_of == which) & (kinds == k) & sized)
                time_ns[rows] = collective_time_ns(system, Collective(k), np.maximum(sizes[rows], 0), shape)
    return time_ns


def choose(system: System, kind: Collective, size_bytes: Any, group: Any, algorithm: str = AUTO) -> AlgorithmChoice:
    """Like `collective_time_ns`, with the chosen algorithm and protocol: the fastest of those allowed."""
    sizes = np.asarray(size_bytes, np.float64)
    if sizes.size and not sizes.min() >= 0:
        raise UsageError("a collective of a negative or unknown number of bytes has no cost")
    shape = group if isinstance(group, GroupShape) else group_shape(system, group)
    if shape.size == 1:
        nothing = np.full(sizes.shape, "", dtype="<U16")
        return AlgorithmChoice(np.zeros(sizes.shape, np.int64), nothing, nothing)
    payload = _payload(kind, sizes, shape.size)
    best, time_ns = np.full(sizes.shape, np.inf), np.zeros(sizes.shape)
    names, protocols = np.full(sizes.shape, "", dtype="<U16"), np.full(sizes.shape, "", dtype="<U16")
    for name in algorithms_for(system, kind, shape, algorithm):
        plan = BY_COLLECTIVE[kind][name].closed_form(system, kind, shape)
        for protocol_name, protocol in system.collectives.of_plan(in_switch=plan.in_switch).items():
            # NCCL chooses by what steps and bytes take; the shortest time that is measured is not in its tables.
            known = plan_time_ns(system, plan, payload, protocol_name, replace(protocol, least_ns=0.0))
            if protocol.most_bytes:
                known = np.where(payload > protocol.most_bytes, np.inf, known)
            better = known < best
            best = np.where(better, known, best)
            time_ns = np.where(better, np.maximum(known, protocol.least_ns), time_ns)
            names, protocols = np.where(better, name, names), np.where(better, protocol_name, protocols)
    return AlgorithmChoice(np.ceil(time_ns - 1e-6).astype(np.int64), names, protocols)


def algorithms_for(system: System, kind: Collective, shape: GroupShape, algorithm: str = AUTO) -> list[str]:
    """The algorithms to compare: the requested one, else the one in the system file, else those that NCCL would try."""
    if kind not in BY_COLLECTIVE:
        raise UsageError(f"a collective of kind {kind.name.lower()} has no cost", hint="its kind is not known")
    if algorithm == AUTO:
        algorithm = system.collectives.algorithm.get(kind.name.lower(), AUTO)
    if algorithm == AUTO:
        return tried(system, kind, shape)
    if algorithm not in BY_COLLECTIVE[kind]:
        known = ", ".join((AUTO, *BY_COLLECTIVE[kind]))
        raise UsageError(f"{kind.name.lower()} has no algorithm `{algorithm}`", hint=f"known: {known}")
    return [algorithm]


def tried(system: System, kind: Collective, shape: GroupShape) -> list[str]:
    """Candidates of `auto`: NCCL's on switches, rings both ways if links are rings."""
    levels = [system.levels[span.level] for span in shape.spans]
    rings = any(level.kind in LINED for level in levels)
    names = ["direct"] if kind in (Collective.GATHER, Collective.SCATTER) else ["ring_both" if rings else "ring"]
    if kind == Collective.ALL_TO_ALL:
        names = ["direct", *(["rail"] if any(level.rails for level in levels) else [])]
    elif kind in (Collective.ALL_REDUCE, Collective.BARRIER, *ROOTED) and len(levels) > 1:
        names.append("tree")  # within one level NCCL's tree is a chain, which is no better than its ring
    if kind in (Collective.ALL_REDUCE, Collective.BARRIER, *ONE_PASS) and shape.regular and len(levels) > 1:
        names += ["hierarchical"] if rings or kind not in ONE_PASS else []
        names += ["torus"] if all(level.kind in LINED for level in levels) else []
    # Between two members a switch has nothing to reduce for others: NCCL has no NVLS there.
    if "in_switch" in BY_COLLECTIVE[kind] and all(map(reduces_in_switch, levels, shape.spans)):
        names.append("in_switch")
    return names


def plan_time_ns(
    system: System, plan: AlgorithmPlan, payload_bytes: F64, protocol_name: str, protocol: Protocol
) -> F64:
    """Time of one plan under one protocol, with the best number of chunks if it is pipelined."""
    moving, _ = _moving_ns(system, plan, payload_bytes, protocol_name, protocol)
    return np.maximum(moving + _ramps(plan, payload_bytes, protocol) + protocol.launch_ns, protocol.least_ns)


def start_ns(
    system: System, kind: Collective, size_bytes: int, shape: GroupShape, algorithm: str
) -> tuple[str, int, int]:
    """(protocol, launch and ramp in ns, chunks) of one collective: what its closed form has besides steps and bytes."""
    protocols = system.collectives.of_plan(in_switch=False)
    soonest = min(protocols, key=lambda name: protocols[name].launch_ns)
    if shape.size == 1:
        return soonest, 0, 1
    if algorithm not in BY_COLLECTIVE[kind]:
        return soonest, round(protocols[soonest].launch_ns), 1
    name = str(choose(system, kind, [size_bytes], shape, algorithm).protocol[0])
    if not name:  # reduction in the switch, on a system that has no protocol for it
        return soonest, round(protocols[soonest].launch_ns), 1
    plan, protocol = BY_COLLECTIVE[kind][algorithm].closed_form(system, kind, shape), system.collectives.used()[name]
    payload = _payload(kind, np.array([size_bytes], np.float64), shape.size)
    moving, chunks = _moving_ns(system, plan, payload, name, protocol)
    start = plan_time_ns(system, plan, payload, name, protocol) - moving
    return name, round(float(start[0])), int(chunks[0])


def _payload(kind: Collective, size_bytes: F64, members: int) -> F64:
    return size_bytes * members if kind in _GATHERING else size_bytes * (kind != Collective.BARRIER)


def _ramps(plan: AlgorithmPlan, payload_bytes: F64, protocol: Protocol) -> F64:
    return sum((_ramp(p, payload_bytes, protocol) for p in plan.phases), np.zeros(payload_bytes.shape))


def _moving_ns(
    system: System, plan: AlgorithmPlan, payload_bytes: F64, protocol_name: str, protocol: Protocol
) -> tuple[F64, I64]:
    """Time of the phases alone, and the best number of chunks."""
    ports = ports_of(system.levels)
    costs = [_phase(system, p, protocol_name, protocol, ports) for p in plan.phases]
    best, best_chunks = np.full(payload_bytes.shape, np.inf), np.ones(payload_bytes.shape, np.int64)
    chunks, turns = 1, _turns(plan, costs, ports)
    between = max(_step(system, leg, protocol_name) for p in plan.phases for leg in p.legs) / IN_FLIGHT
    whole = sum((_longest(cost.ports, payload_bytes) for cost in costs), np.zeros(payload_bytes.shape))
    while chunks == 1 or (plan.pipelined and chunks <= system.collectives.max_chunks):
        piece = payload_bytes / chunks
        first = sum(cost.way[0] for cost in costs) + sum(cost.way[1] for cost in costs) * piece
        time = first + (chunks - 1) * np.maximum(turns * piece, between)
        best_chunks = np.where(time < best, chunks, best_chunks)
        best = np.minimum(best, time)
        chunks *= 2
    if plan.passes:
        chains = [chain for chains in plan.passes for chain in chains]
        steps = tuple(_step(system, chain, protocol_name) for chain in chains)
        return pipelined_ns(plan.passes, steps, payload_bytes, best_chunks, protocol.bandwidth_fraction), best_chunks
    return np.maximum(best, whole), best_chunks


def _longest(lines: Sequence[Line], payload_bytes: F64) -> F64:
    times = [fixed_ns + ns_per_byte * payload_bytes for fixed_ns, ns_per_byte in lines]
    return np.max(times, axis=0) if times else np.zeros(payload_bytes.shape)


def _turns(plan: AlgorithmPlan, costs: Sequence[_PhaseCost], ports: Sequence[int]) -> float:
    """ns per byte of the phases that share a port in one direction, and so take turns: of the busiest."""
    shared: dict[tuple[int, str], float] = {}
    for phase, cost in zip(plan.phases, costs, strict=True):
        leg = phase.legs[-1]
        ns_per_byte = cost.ports[-1][1] if phase.streamed else cost.way[1]
        for direction, part in (("out", leg.outward), ("in", leg.inward)):
            key = (ports[leg.level], direction)
            shared[key] = shared.get(key, 0.0) + ns_per_byte * part
    return max(shared.values())


def _step(system: System, leg: Leg | MessageChain, protocol_name: str) -> float:
    return system.levels[leg.level].step("in_switch" if leg.in_switch else protocol_name)


class _PhaseCost(NamedTuple):
    way: Line
    """From the first step to the last."""
    ports: list[Line]
    """For a streamed phase: what each of its ports carries."""


def _phase(
    system: System, phase: AlgorithmPhase, protocol_name: str, protocol: Protocol, ports: Sequence[int]
) -> _PhaseCost:
    steps = [_step(system, leg, protocol_name) for leg in phase.legs]
    fixed = sum(leg.hops * step for leg, step in zip(phase.legs, steps, strict=True))
    fixed += max(phase.messages - 1, 0) * system.collectives.message_ns
    fixed += max(leg.fixed_bytes / leg.rate_bytes_per_ns for leg in phase.legs) / protocol.bandwidth_fraction
    carried = [leg.volume / leg.rate_bytes_per_ns for leg in phase.legs]
    if phase.apart:
        through: dict[int, float] = {}
        for leg in phase.legs:
            level = system.levels[leg.level]
            own = leg.volume / (leg.rate_bytes_per_ns * level.oversubscription)  # the device's share of it
            through[ports[leg.level]] = through.get(ports[leg.level], 0.0) + own
        carried = [max(own, through[ports[leg.level]]) for own, leg in zip(carried, phase.legs, strict=True)]
    part = protocol.bandwidth_fraction
    if not phase.streamed:
        return _PhaseCost((fixed, max(carried) / part), [])
    along = sum(leg.way_ns_per_byte for leg in phase.legs)
    busy = [(phase.streamed * step, own / part) for step, own in zip(steps, carried, strict=True)]
    return _PhaseCost((fixed, along / part), busy)


def _ramp(phase: AlgorithmPhase, payload_bytes: F64, protocol: Protocol) -> F64:
    """What the bytes cost beyond their rate, since chunks in flight are few at first.

    With chunks of the best size the cost of starting chunks and of filling the pipe is 2 sqrt(ramp * time at full
    rate); from `ramp_bytes` through the port on, chunks grow no more, and the cost of starting them grows linearly.
    """
    if not protocol.chunk_ns:
        return np.zeros(payload_bytes.shape)
    leg = max(phase.legs, key=lambda g: g.volume / g.rate_bytes_per_ns)
    through = payload_bytes * leg.volume
    knee = 2 * np.sqrt(protocol.chunk_ns * protocol.ramp_bytes / leg.rate_bytes_per_ns)
    part = through / protocol.ramp_bytes
    return knee * np.where(part <= 1, np.sqrt(part), (1 + part) / 2)
