"""A job of all ranks of a dry run from the few that were run: the others do what one of these does, with their own
groups.

Groups that a program makes are dimensions of its mesh: a family of groups of one size in which every rank is once.
Along a dimension ranks do the same (data, tensor and context parallel) or not (stages of a pipeline, shards of
different sizes). Ranks that were run tell which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from etude.base.errors import TraceError
from etude.capture.dry.recorded_rank import DryRank, DryTrace
from etude.model.job import DEFAULT_METADATA, Groups, Job
from etude.model.schema import NO_TEXT
from etude.model.trace import Trace, first_difference

Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MeshDimension:
    """A family of groups in which every rank is once."""

    groups: tuple[Members, ...]
    group_of: dict[int, int]

    def members(self, rank: int) -> Members:
        return self.groups[self.group_of[rank]]

    def place(self, rank: int) -> int:
        return self.members(rank).index(rank)

    def __len__(self) -> int:
        return len(self.groups[0])


def dimensions(made: Sequence[Sequence[int]], world: int) -> list[MeshDimension]:
    """The dimensions that groups of a program are, in the order in which they were made; without those of one rank and
    that of all."""
    found: list[MeshDimension] = []
    family: list[Members] = []
    seen: set[int] = set()
    for members in dict.fromkeys(tuple(group) for group in made):
        if len(members) < 2 or len(members) == world:
            continue
        if seen & set(members) or (family and len(family[0]) != len(members)):
            family, seen = [], set()
        family.append(members)
        seen |= set(members)
        if len(seen) == world:
            groups = tuple(family)
            found.append(MeshDimension(groups, {rank: i for i, group in enumerate(groups) for rank in group}))
            family, seen = [], set()
    return found


def asked_with(made: Sequence[Sequence[int]], world: int, rank: int, asked: int) -> set[int]:
    """The ranks that must run at the same time where one needs something of another: these two, and the rest of the
    dimension that both are in, since a stage that asks its neighbour is asked by it as well."""
    found = [dimension.members(rank) for dimension in dimensions(made, world)]
    return {rank, asked, *next((members for members in found if asked in members), ())}


@dataclass(frozen=True)
class DryMesh:
    """Who stands for whom."""

    world: int
    dimensions: tuple[MeshDimension, ...]
    stands: tuple[tuple[int, ...], ...]
    """Of each place along a dimension, the place whose rank does the same."""

    def stands_for(self, rank: int) -> int:
        """The rank whose program this rank's is."""
        at = self._beside_first[rank]
        for dimension, stands in zip(self.dimensions, self.stands, strict=True):
            at = dimension.members(at)[stands[dimension.place(at)]]
        return at

    def middle(self) -> int:
        """A rank that is in the middle of all dimensions, at odd places."""
        at = self.world // 2
        for dimension in self.dimensions:
            at = dimension.members(at)[len(dimension) // 2 | 1 if len(dimension) > 1 else 0]
        return at

    @cached_property
    def _beside_first(self) -> list[int]:
        """Of each rank the one at the same place among those that rank 0 reaches through groups: there may be several
        such parts of a world, which only the group of all joins."""
        first, beside = self._reached(0), [-1] * self.world
        for rank in range(self.world):
            if beside[rank] < 0:
                for member, other in zip(self._reached(rank), first, strict=True):
                    beside[member] = other
        return beside

    def _reached(self, rank: int) -> list[int]:
        found = {rank}
        for dimension in self.dimensions:
            found |= {other for one in found for other in dimension.members(one)}
        return sorted(found)

    def needed(self) -> list[int]:
        """The ranks that stand for all: every combination of places that differ."""
        found = {0}
        for dimension, stands in zip(self.dimensions, self.stands, strict=True):
            found |= {dimension.members(rank)[place] for rank in found for place in set(stands)}
        return sorted(found)


def mesh_dimensions(made: Sequence[Sequence[int]], world: int) -> list[MeshDimension]:
    """The dimensions, or all ranks as the only one."""
    everyone = tuple(range(world))
    return dimensions(made, world) or [MeshDimension((everyone,), dict.fromkeys(everyone, 0))]


def uniform_mesh(made: Sequence[Sequence[int]], world: int) -> DryMesh:
    """The mesh in which all ranks do what the first does."""
    found = mesh_dimensions(made, world)
    return DryMesh(world, tuple(found), tuple((0,) * len(dimension) for dimension in found))


def same(a: DryTrace, b: DryTrace) -> bool:
    """Whether two ranks do the same, each with its own groups and its own numbers (its place, its device)."""
    sizes = [len(members) for members in a.groups] == [len(members) for members in b.groups]
    return sizes and len(a.trace) == len(b.trace) and first_difference(_structure(a.trace), _structure(b.trace)) is None


def _structure(trace: Trace) -> Trace:
    return trace.replace(in_values=np.full(len(trace), NO_TEXT))


def dry_job(name: str, mesh: DryMesh, traces: dict[int, DryTrace], ranks: Sequence[int] | None = None) -> Job:
    """The job of all ranks, or of those that are named alone."""
    wanted = list(range(mesh.world)) if ranks is None else sorted(ranks)
    stands = {rank: rank if rank in traces else mesh.stands_for(rank) for rank in wanted}
    distinct: dict[int, int] = {}
    kept: list[DryTrace] = []
    for rank in dict.fromkeys(stands.values()):
        if rank not in traces:
            raise TraceError(f"rank {rank} stands for others and was not run", hint=f"--ranks 0,{rank}")
        twin = next((i for i, other in enumerate(kept) if same(other, traces[rank])), len(kept))
        if twin == len(kept):
            kept.append(traces[rank])
        distinct[rank] = twin
    number: dict[Members, int] = {}
    group_of: list[int] = []
    peer_of: list[int] = []
    for rank in wanted:
        told = traces[stands[rank]]
        bound = [_group(mesh, members, stands[rank], rank) for members in told.groups]
        group_of += [number.setdefault(members, len(number)) for members in bound]
        peer_of += [_peer(mesh, told.groups, slot, peer, stands[rank], rank) for slot, peer in told.peers]
    counts = [len(kept[distinct[stands[rank]]].groups) for rank in wanted]
    peers = [len(kept[distinct[stands[rank]]].peers) for rank in wanted]
    return Job(
        name=name,
        traces=tuple(found.trace for found in kept),
        ranks=np.array(wanted, np.int32),
        trace_of=np.array([distinct[stands[rank]] for rank in wanted], np.int32),
        groups=Groups.of([("", members) for members in number]),
        group_start=np.cumsum([0, *counts]).astype(np.int64),
        group_of=np.array(group_of, np.int32),
        peer_start=np.cumsum([0, *peers]).astype(np.int64),
        peer_of=np.array(peer_of, np.int64),
        id_base=np.zeros(len(wanted), np.uint64),
        tag_base=np.zeros(len(wanted), np.int64),
        world_size=mesh.world,
        metadata=(DEFAULT_METADATA,),
        metadata_of=np.zeros(len(wanted), np.int32),
    )


def _group(mesh: DryMesh, members: Members, stands: int, rank: int) -> Members:
    """The group that stands for `members` on another rank: of the same dimension."""
    if rank == stands or len(members) == mesh.world or rank in members:
        return members
    for dimension in mesh.dimensions:
        if dimension.members(stands) == members:
            return dimension.members(rank)
    raise TraceError(
        f"rank {rank}: no group is to it what {_shown(members)} is to rank {stands}",
        hint="name the ranks that differ with --ranks",
    )


def _peer(mesh: DryMesh, groups: tuple[Members, ...], slot: int, peer: int, stands: int, rank: int) -> int:
    """The rank at the other end: as far away in the group. Where ranks differ along it both are at one place."""
    members = groups[slot]
    other = _group(mesh, members, stands, rank)
    if rank == stands or peer not in members:
        return peer
    away = members.index(peer) - members.index(stands)
    return other[(other.index(rank) + away) % len(other)]


def _shown(members: Members) -> str:
    return f"{', '.join(map(str, members[:4]))}{', ...' if len(members) > 4 else ''}"


def check_ended(ranks: dict[int, DryRank]) -> None:
    """Refuses ranks that did not come to the same step."""
    steps = {rank: found.steps for rank, found in ranks.items()}
    if len(set(steps.values())) > 1:
        shown = ", ".join(f"rank {rank} {count}" for rank, count in steps.items())
        raise TraceError(f"ranks ended after different numbers of steps: {shown}")
