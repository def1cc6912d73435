"""Runs as many ranks of a program as are needed to say what all of them do.

Rank 0 runs first, with ranks that it exchanges objects with, and the last rank of all; then those at which shards
change their size. If the last rank does what the one does that stands for it, so do the last ones along each dimension
of the mesh; if not, these are run, and where ranks differ, more of them (`alike`). One in the middle of all dimensions
is compared as well. Ranks that are only compared run for one step; those that stand for others, for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from etude.base.errors import UsageError
from etude.base.talk import progress
from etude.capture.dry.alike import places_to_run, standing_places
from etude.capture.dry.call_steps import StepWindow, step_window, without_preparation
from etude.capture.dry.launch import DryRanks, DrySettings
from etude.capture.dry.mesh import DryMesh, MeshDimension, asked_with, check_ended, mesh_dimensions, same
from etude.capture.dry.rank_checks import check_exchanges, check_rank
from etude.capture.dry.recorded_rank import DryRank, DryTrace, dry_trace, read_dry_rank

ROUNDS = 40
"""How often ranks are added."""
MOST_RANKS = 64
"""That stand for others, or are compared."""


@dataclass(frozen=True, slots=True)
class RanksRun:
    """The ranks that were run, and what they show."""

    read: dict[int, DryRank]
    """Those that were run for all steps."""
    compared: tuple[int, ...]
    """Those that were run for one step."""
    mesh: DryMesh
    traces: dict[int, DryTrace]
    steps: str
    """What was assumed of steps."""


@dataclass(slots=True)
class RanksSeen:
    """What ranks wrote so far."""

    told: DrySettings
    full: dict[int, DryRank] = field(default_factory=dict)
    brief: dict[int, DryRank] = field(default_factory=dict)
    traces: dict[int, DryTrace] = field(default_factory=dict)
    window: StepWindow = field(default_factory=lambda: StepWindow(0))
    first_steps: dict[int, DryTrace] = field(default_factory=dict)

    def add(self, rank: int, one: DryRank, *, is_brief: bool) -> None:
        """A rank that was to be brief and made no step of an optimizer has run to its end, if it was not stopped."""
        (self.brief if is_brief and (one.steps or one.problem) else self.full)[rank] = one

    def asked(self) -> dict[int, int]:
        """Ranks that need an object of another one."""
        found = {rank: one.problem for rank, one in (self.full | self.brief).items() if one.problem}
        return {rank: problem["rank"] for rank, problem in found.items() if problem["kind"] == "other"}

    def check(self) -> None:
        """Refuses what cannot be a program's ranks."""
        everyone = self.full | self.brief
        check_exchanges(everyone, set(self.brief))
        for rank, one in everyone.items():
            check_rank(rank, one, self.told)
        check_ended(self.full)
        stepped, self.window = step_window(self.full, self.told)
        for rank, one in stepped.items():
            if rank not in self.traces:
                self.traces[rank] = dry_trace(one, self.window.first, self.window.count)

    def alike(self, a: int, b: int) -> bool:
        """Whether two ranks do the same: in the steps that are wanted, or in the first where one has run for no
        more."""
        if a in self.traces and b in self.traces:
            return same(self.traces[a], self.traces[b])
        return same(self._first_step(a), self._first_step(b))

    def _first_step(self, rank: int) -> DryTrace:
        if rank not in self.first_steps:
            self.first_steps[rank] = dry_trace(without_preparation(self.full.get(rank) or self.brief[rank]), 0, 1)
        return self.first_steps[rank]

    def forget_unanswered(self) -> None:
        """Leaves out ranks that are only compared and need something of one that is not run."""
        for rank in [rank for rank in self.asked() if rank in self.brief]:
            del self.brief[rank]

    def mesh(self, world: int) -> tuple[DryMesh, set[int], set[int]]:
        """(The mesh as far as it is known; of the ranks along its dimensions that are still to be run, those at which
        shards change their size, and the others.)"""
        first = self.full[min(self.full)]
        known, found = {*self.full, *self.brief}, mesh_dimensions(first.group_members, world)
        lines = [dimension.members(0) for dimension in found]
        cuts = [self._cuts(dimension) for dimension in found]
        stands = (standing_places(*given, known, self.alike) for given in zip(lines, cuts, strict=True))
        mesh = DryMesh(world, tuple(found), tuple(stands))
        cut = {line[place] for line, places in zip(lines, cuts, strict=True) for place in places} - known
        if cut or (world - 1 in known and self.alike(world - 1, mesh.stands_for(world - 1))):
            return mesh, cut, set()
        wanted = {
            line[place]
            for line, places in zip(lines, cuts, strict=True)
            for place in places_to_run(line, places, known, self.alike)
        }
        return mesh, cut, wanted

    def _cuts(self, dimension: MeshDimension) -> set[int]:
        """Places along a dimension at which shards change their size, on whatever rank: stages of a pipeline have
        weights of their own."""
        found = [one for rank in self.full.values() for one in rank.shard_cuts]
        return {
            place for one in found if dimension.members(one.members[0]) == tuple(one.members) for place in one.places
        }


def enough_ranks(process: DryRanks, folder: Path, told: DrySettings, named: list[int]) -> RanksRun:
    """Runs these ranks, or those that are needed where none is named."""
    seen = RanksSeen(told)
    full, brief = set(named) or {0}, set[int]()
    if not named and told.world > 1 and _is_brief_enough(told):
        brief = {told.world - 1}
    mesh: DryMesh | None = None
    with progress("ranks") as advance:
        for _ in range(ROUNDS):
            stands = {rank: mesh.stands_for(rank) for rank in full | brief} if mesh else {}
            world = process.run(sorted(full | brief), brief, stands)
            if max(full | brief) >= world:
                where = f"rank {max(full | brief)} of a world of {world}"
                raise UsageError(where, where="--ranks", hint="ranks begin with 0")
            for rank in full | brief:
                seen.add(rank, read_dry_rank(folder / f"rank.{rank}.json.gz"), is_brief=rank in brief)
            advance(len(full | brief))
            if not mesh:
                seen.forget_unanswered()
            asked, everyone = seen.asked(), seen.full | seen.brief
            if asked:  # what they need is sent while both run
                full, before = (
                    {
                        x
                        for rank, of in asked.items()
                        for x in asked_with(everyone[rank].group_members, world, rank, of)
                    },
                    full,
                )
                if full <= before:
                    rank, of = next(iter(asked.items()))
                    raise UsageError(f"rank {rank} waits for an object of rank {of}, which does not come")
                brief = set()
                continue
            seen.check()
            mesh, cut, compared = seen.mesh(world)
            full, brief = (set(), set()) if named else _more(seen, mesh, cut, compared)
            if not full | brief:
                compared = set(seen.brief) - set(seen.full)
                read = dict(sorted(seen.full.items()))
                return RanksRun(read, tuple(sorted(compared)), mesh, seen.traces, seen.window.assumption)
    raise UsageError("ranks need one another in a chain that does not end", hint="name the ranks with --ranks")


def _more(seen: RanksSeen, mesh: DryMesh, cut: set[int], compared: set[int]) -> tuple[set[int], set[int]]:
    """(Ranks to run for all steps, ranks to run for one.)"""
    full = cut or {*mesh.needed()} - set(seen.full)
    if len(full | compared | set(seen.full)) > MOST_RANKS:
        raise UsageError(
            f"{len(full | compared | set(seen.full)):,} ranks do different things, and at most {MOST_RANKS} are run",
            hint="name the ranks that you want with --ranks",
        )
    unlike = full & set(seen.brief)
    if unlike:  # in their first step, which may be the first alone
        return unlike, set()
    brief = compared - full
    if not compared:
        brief = {mesh.middle(), mesh.world - 1} - set(seen.full) - set(seen.brief) - full
    if not full | brief:
        full = _unlike(seen, mesh)
    return (full, brief - full) if _is_brief_enough(seen.told) else (full | brief, set())


def _is_brief_enough(told: DrySettings) -> bool:
    """Whether one step is less than what is wanted."""
    return told.steps > 0 and told.warmup + told.steps > 1


def _unlike(seen: RanksSeen, mesh: DryMesh) -> set[int]:
    """Ranks whose first step is not that of the rank that stands for them, to be run for all steps; refuses those whose
    other steps are not, either."""
    found = set()
    for rank in {*seen.full, *seen.brief}:
        other = mesh.stands_for(rank)
        if seen.alike(rank, other):
            continue
        if rank in seen.full:
            raise UsageError(
                f"rank {rank} does something else than rank {other}, and no group of the program tells them apart",
                hint="name the ranks that you want with --ranks: they are not folded",
            )
        found.add(rank)
    return found
