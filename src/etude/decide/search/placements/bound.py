"""A time that no simulation of a placement can beat: bytes that must cross a cut over what its links carry.

Whatever algorithm a collective takes, some bytes must come in to a set of devices from outside: all that those outside
contribute to an all-gather, a whole vector of an all-reduce, the parts of a reduce-scatter or an all-to-all that
members inside own. Messages cross as they are. What is cut off: each device, the units of each level, and the lower
part of each ring or mesh.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from etude.kernels.arrays import F64, Bool
from etude.machine.fabrics import topology_of_system
from etude.machine.system import LINED, LevelKind, System
from etude.machine.topology import Topology, VertexKind
from etude.model.job import Job
from etude.model.match import WORLD, Matching, match
from etude.model.schema import UNKNOWN, Collective

COUNTED = (Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)


class ExchangedBytes(NamedTuple):
    """What ranks must exchange, in bytes over the whole job."""

    sent: F64
    """From rank (row) to rank (column), in messages."""
    member: F64
    """1 if a group (row) contains a rank (column)."""
    size: F64
    """For each group (row) and collective of COUNTED (column): input bytes of a member."""


def needs_of(job: Job) -> ExchangedBytes:
    found, world = match(job), job.world_size
    sent = np.zeros((world, world))
    links = found.links
    for link in np.flatnonzero(links.pairing >= 0).tolist():
        sent[links.src[link], links.dst[link]] += _known(found, int(links.send_side[link])).sum()
    member, size = [], []
    for group in np.unique(found.uses.group).tolist():
        ranks = np.arange(world, dtype=np.int32) if group == WORLD else job.groups.ranks(group)
        uses = np.flatnonzero(found.uses.group == group)
        if ranks is None or len(uses) < len(ranks):  # with absent members it lasts a fixed time
            continue
        row = np.zeros(world)
        row[ranks] = 1
        member.append(row)
        size.append(np.min([_by_kind(found, int(side)) for side in found.uses.side[uses]], axis=0))
    shape = (len(member), len(COUNTED))
    return ExchangedBytes(sent, np.array(member).reshape(len(member), world), np.array(size).reshape(shape))


def _known(found: Matching, side: int) -> F64:
    size = found.sides.size_bytes[found.sides.span(side)]
    return np.where(size == UNKNOWN, 0, size).astype(np.float64)


def _by_kind(found: Matching, side: int) -> F64:
    what = found.sides.collective[found.sides.span(side)]
    return np.array([float(_known(found, side)[what == kind].sum()) for kind in COUNTED])


class TimeBound:
    """`least_ns(placement)`: a lower bound of the job's time on these devices."""

    def __init__(self, job: Job, system: System) -> None:
        self.needs = needs_of(job)
        bare = system.replace(placement=())
        topology = topology_of_system(bare)
        cuts = np.unique(np.stack(_sets(bare)), axis=0)
        capacity = np.array([_capacity(topology, inside) for inside in cuts])
        used = capacity > 0
        self.inside = cuts[used].astype(np.float64)
        self.bytes_per_ns = capacity[used] / 1e9 * _boost(system)

    def least_ns(self, placement: tuple[int, ...]) -> int:
        crossing = _crossing(self.needs, self.inside[:, list(placement)])
        return int((crossing / self.bytes_per_ns).max(initial=0.0))


def _crossing(needs: ExchangedBytes, inside: F64) -> F64:
    """Bytes that must enter each set (row) of ranks (columns)."""
    messages = np.einsum("ca,ab,cb->c", 1 - inside, needs.sent, inside)
    if not len(needs.member):
        return messages
    within, members = inside @ needs.member.T, needs.member.sum(axis=1)
    outside = members - within
    apart = (within > 0) & (outside > 0)
    gather, reduce, scatter, exchange = needs.size.T
    found = gather * outside + reduce + scatter * within / members + exchange * within * outside / members
    return messages + np.where(apart, found, 0.0).sum(axis=1)


def _boost(system: System) -> float:
    """Collectives may reach more of the bandwidth than single messages, to which the links' rates refer."""
    found = [1.0]
    for level in system.levels:
        most = max([level.in_switch_efficiency, *level.efficiency_by_units.values()])
        found.append(most / level.efficiency)
    return max(found)


def _sets(system: System) -> list[Bool]:
    device = np.arange(len(system))
    found = [device == one for one in device]
    sizes = [level.size for level in system.levels]
    for number, level in enumerate(system.levels):
        below = prod(sizes[:number])
        unit, whole = device // below % level.size, device // (below * level.size)
        if level.kind in LINED:
            starts = range(level.size if level.kind == LevelKind.RING else 1)
            for start in starts:
                found += [(unit - start) % level.size < length for length in range(1, level.size)]
        found += [whole == one for one in range(int(whole.max()) + 1)]
    return [one for one in found if 0 < one.sum() < len(device)] or [device == 0]


def _capacity(topology: Topology, inside: Bool) -> float:
    """Bytes per second into the set; switches are assigned one by one to the side with the narrower cut."""
    within = np.zeros(len(topology.kind), np.bool_)
    within[topology.device[inside]] = True

    def width() -> float:
        return float(topology.bytes_per_s[~within[topology.src] & within[topology.dst]].sum())

    best = width()
    for vertex in np.flatnonzero(topology.kind == VertexKind.SWITCH).tolist():
        within[vertex] = True
        if (now := width()) < best:
            best = now
        else:
            within[vertex] = False
    return best
