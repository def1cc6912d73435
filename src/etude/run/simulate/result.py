"""The result of a simulation: a Run with what the links carried and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from etude.cost.choice import Taken
from etude.kernels.arrays import distinct_values
from etude.machine.system import System
from etude.model.job import Job
from etude.model.memory import memory_peaks
from etude.model.run import Run
from etude.model.schema import UNKNOWN
from etude.model.timing import Timing
from etude.run.simulate.link_stats import LinkStats

LINKS_SHOWN = 1000
"""Most links in a result."""


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Traffic in one direction of a link, and how long it was in use."""

    link: str
    bytes: int
    busy_ns: int


@dataclass(frozen=True, slots=True)
class QueueUse:
    """What happened at one end of a link, if there were packets: in its queue, and to the link."""

    link: str
    longest_bytes: int
    mean_bytes: float
    """Over all time."""
    marks: int
    cut: int
    dropped: int
    pauses: int
    paused_ns: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class Simulated(Run):
    """A simulated run. A node that holds a lane starts when the lane takes it, so a collective's time includes its wait
    for the others, as in a measured run; one that holds none starts when its operation does."""

    makespan_ns: int
    """When the last node of any rank ends."""
    simulated_ranks: int
    """Ranks that were simulated; the others are in the class of one of them."""
    links: tuple[LinkUse, ...] = field(default=())
    """Links that carried something, longest in use first, at most `LINKS_SHOWN`; none if analytic."""
    queues: tuple[QueueUse, ...] = field(default=())
    """Queues of packets, the longest first, at most `LINKS_SHOWN`."""
    notes: tuple[str, ...] = field(default=())
    """Assumptions made where the job says nothing."""
    link_stats: LinkStats | None = None
    """Statistics of links over time, if requested; of packets always."""
    kernels: Mapping[str, Taken] = field(default_factory=dict)
    """Compute nodes and their work by the kernel and units chosen for them, if requested."""
    unit_flops: Mapping[str, int] = field(default_factory=dict)
    """Operations by the unit that runs them, if units were requested."""

    def step_ends(self) -> dict[int, int]:
        """When the last node of each step ends, over all ranks; steps without a known end are left out."""
        ends: dict[int, int] = {}
        for part in self.parts():
            known = part.end_ns != UNKNOWN
            step, end = part.trace.step[known], part.end_ns[known]
            for one in distinct_values(step[step != UNKNOWN]).tolist():
                ends[one] = max(ends.get(one, 0), int(end[step == one].max()))
        return dict(sorted(ends.items()))

    def choices(self) -> dict[str, Any]:
        """The chosen kernels and units, and the fraction of the operations that each unit runs."""
        total = sum(self.unit_flops.values())
        found: dict[str, Any] = {"kernels": {k: v._asdict() for k, v in self.kernels.items()}} if self.kernels else {}
        return found | ({"unit_shares": {u: f / total for u, f in self.unit_flops.items()}} if total else {})


def simulated(
    job: Job, timing: Timing, system: System, *, simulated_ranks: int, links: tuple[LinkUse, ...] = (),
    notes: tuple[str, ...] = (), remote_capacity_bytes: int = 0, kernels: Mapping[str, Taken] | None = None,
    unit_flops: Mapping[str, int] | None = None, link_stats: LinkStats | None = None,
    queues: tuple[QueueUse, ...] = (),
) -> Simulated:  # fmt: skip
    """The result of these times, with notes on memory that is too small."""
    return Simulated(
        job,
        timing,
        system,
        makespan_ns=max(int(timing.last_ends().max(initial=0)), 0),
        simulated_ranks=simulated_ranks,
        links=links,
        link_stats=link_stats,
        queues=queues,
        kernels=kernels or {},
        unit_flops=unit_flops or {},
        notes=(*notes, *_memory_notes(Run(job, timing, system), remote_capacity_bytes)),
    )


def _memory_notes(run: Run, remote_capacity_bytes: int) -> list[str]:
    room = run.system.memory_bytes if run.system is not None else 0
    if not room and not remote_capacity_bytes:
        return []
    peaks, notes = memory_peaks(run), []
    for peak, limit, what in (
        (peaks.held_bytes, room, "need more memory than the {} B of their device"),
        (peaks.stored_bytes, remote_capacity_bytes, "store more than the {} B of remote memory"),
    ):
        over = run.job.ranks[peak > limit] if limit else run.job.ranks[:0]
        if len(over):
            notes.append(f"{len(over):,} ranks {what.format(f'{limit:,}')}; the first is rank {over[0]}")
    return notes
