"""Prepares a job for simulation: checked, matched, priced and, if ranks must behave alike, folded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import EtudeError, MismatchError, TraceError, UsageError
from etude.cost.choice import Taken
from etude.kernels.arrays import I32, I64
from etude.machine.system import System
from etude.model.check.findings import FindingList
from etude.model.check.findings import ProgramClasses as SamePrograms
from etude.model.check.groups import check_collectives, check_groups
from etude.model.job import Job
from etude.model.match import Matching, match
from etude.model.values import with_values
from etude.run.simulate.classes import RankClasses, alone, stable_classes
from etude.run.simulate.costs import by_kind_of_device, node_costs
from etude.run.simulate.groups import UsedGroups, link_distance, link_factors, used_groups
from etude.run.simulate.options import Options, Policy
from etude.run.simulate.programs import BuiltPrograms, build_programs, merged


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """What is simulated: instance i is a rank of class i and has the nodes base[i]:base[i+1]."""

    source: Job
    """The job as given, with its values applied: it has the ids and names of every rank."""
    job: Job
    """The same ranks with as few traces as there are programs that a simulation can distinguish."""
    system: System
    options: Options
    matching: Matching
    groups: UsedGroups
    classes: RankClasses
    programs: BuiltPrograms
    base: I64
    kernels: dict[str, Taken]
    """Compute nodes and their work by the kernel and units chosen for them, if requested."""
    unit_flops: dict[str, int]
    """Operations by the unit that runs them."""

    def program_row(self, at: NDArray[Any], row: NDArray[Any]) -> I64:
        """Rows of the program tables for rows of the ranks at these positions."""
        return self.programs.start[self.programs.of[at]] + row

    def node(self, at: NDArray[Any], row: NDArray[Any]) -> I64:
        """Simulated nodes that represent rows of the ranks at these positions."""
        return self.base[self.classes.of[at]] + row

    def source_id(self, at: int, row: int) -> int:
        """Id of a row in the file of the at-th rank present."""
        source = self.source
        return (int(source.traces[int(source.trace_of[at])].source_id[row]) + int(source.id_base[at])) % 2**64

    @property
    def is_simulated(self) -> NDArray[np.bool_]:
        """Which of the present ranks represent their class."""
        mask = np.zeros(len(self.job.ranks), bool)
        mask[self.classes.first] = True
        return mask


def lower(job: Job, system: System, options: Options) -> tuple[Lowered, list[str]]:
    """Returns the job checked, matched, priced and, if possible, folded."""
    _check_places(job, system, options)
    source = with_values(job)
    plain = by_kind_of_device(source, system)
    costs = node_costs(plain, system, options)
    by_trace = costs.by_trace
    if options.fold is not False:
        plain, by_trace = merged(plain, by_trace, options)
    matching = match(plain)
    if _contradiction(plain, matching):
        raise _contradiction(source, match(source)) or MismatchError("collectives contradict each other")
    programs = build_programs(plain, by_trace, options)
    groups = used_groups(plain, matching, system, options)
    classes = _classes(plain, matching, groups, programs.of, system, options)
    length = np.diff(programs.start)[programs.of[classes.first]]
    base = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    if base[-1] >= 1 << 31:
        raise UsageError(
            f"{base[-1]:,} nodes are too many for one simulation", hint="fold the job, or simulate fewer ranks"
        )
    notes = costs.notes()
    if programs.missing:
        notes.append(f"{programs.missing:,} dependencies are on nodes that are not in the files, and are ignored")
    done = dict(costs.unit_flops)
    return Lowered(source, plain, system, options, matching, groups, classes, programs, base, costs.taken, done), notes


def _check_places(job: Job, system: System, options: Options) -> None:
    if not len(job.ranks):
        raise TraceError("the job has no ranks")
    system.device_of(job.ranks)  # refuses a rank without a device
    for rank in (*options.slow_ranks, *options.starts):
        job.index(rank)
    for pair in options.slow_links:
        for end in pair:
            if isinstance(end, int) and not 0 <= end < job.world_size:
                raise UsageError(f"slow link {pair[0]}-{pair[1]}: rank {end} is outside the world of {job.world_size}")
    if options.policy in (Policy.RECORDED, Policy.HINT) and job.timing is not None:
        lengths = {len(b) for b in job.timing.start_ns}
        if not lengths:
            raise TraceError("the recorded times are empty")


_REFUSED = ("member_outside", "member_twice", "not_a_member", "collective_order", "collective_type", "collective_bytes")


def _contradiction(job: Job, matching: Matching) -> EtudeError | None:
    """An error for collectives that contradict each other; missing ones end in a deadlock, which reports them."""
    report = FindingList(job)
    check_groups(report, SamePrograms(job.trace_of, ()), matching)
    check_collectives(report, matching)
    for finding in report.sorted():
        if finding.kind in _REFUSED:
            kind = TraceError if finding.kind.startswith("member") else MismatchError
            return kind(finding.what, where=finding.where, hint=finding.hint)
    return None


def _classes(
    job: Job, matching: Matching, groups: UsedGroups, program_of: I32, system: System, options: Options
) -> RankClasses:
    why = options.why_not_folded
    if options.fold and why:
        raise UsageError(f"the ranks cannot be folded: {why}", hint="leave out --fold, or the option")
    if options.fold is False or why:
        return alone(len(job.ranks), len(groups.group))
    start = np.stack([program_of.astype(np.int64), np.zeros(len(job.ranks), np.int64)], 1)
    if options.slow_ranks or options.starts:
        own = [(options.slow_ranks.get(r, 1.0), float(options.starts.get(r, 0))) for r in job.ranks.tolist()]
        start[:, 1] = np.unique(np.array(own), axis=0, return_inverse=True)[1].reshape(-1)
    links = matching.links
    inside = (links.src >= 0) & (links.src < job.world_size) & (links.dst >= 0) & (links.dst < job.world_size)
    distance = np.full(len(links.src), -1, np.int32)
    if inside.any():
        near = link_distance(system, links.src[inside], links.dst[inside])
        factor = np.unique(link_factors(links.src[inside], links.dst[inside], options), return_inverse=True)[1]
        distance[inside] = near * (factor.max() + 1) + factor.reshape(-1)
    classes = stable_classes(start, matching, groups, distance)
    if options.fold and len(classes) == len(job.ranks) > 1:
        raise UsageError(
            "the ranks cannot be folded: no two of them run the same program at the same speed with equivalent "
            "partners",
            hint="leave out --fold: all ranks are simulated",
        )
    return classes
