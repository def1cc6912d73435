"""Run: a job with the times of its nodes and, if known, its system and its card.

Measured, simulated and replayed runs are all Runs; every analysis, view, comparison and report takes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from etude.base.errors import MismatchError, UsageError
from etude.base.files import let_go
from etude.base.units import counted
from etude.kernels.arrays import I64, Bool
from etude.kernels.distinct import sorted_rows
from etude.machine.system import System
from etude.model.card import Card
from etude.model.job import Job
from etude.model.schema import UNKNOWN
from etude.model.timing import Timing
from etude.model.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class RunPart:
    """The ranks of a run that share one trace and one set of times."""

    at: I64
    """Positions of these ranks among those present."""
    trace: Trace
    start_ns: I64
    end_ns: I64

    @property
    def timed(self) -> Bool:
        """Nodes whose start and end are known."""
        return (self.start_ns != UNKNOWN) & (self.end_ns != UNKNOWN)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A job that ran: when each node did, on which system, and what the run was of.

    run = etude.Run(job, job.timing)
    """

    job: Job
    timing: Timing
    system: System | None = None
    card: Card | None = None

    def __post_init__(self) -> None:
        job, timing = self.job, self.timing
        if len(timing.block_of) != len(job.ranks):
            raise MismatchError(f"the timing has {len(timing.block_of)} ranks, the job {len(job.ranks)}")
        nodes = np.array([len(trace) for trace in job.traces] or [0], np.int64)[job.trace_of]
        times = np.array([len(block) for block in timing.start_ns] or [0], np.int64)[timing.block_of]
        wrong = np.flatnonzero(nodes != times)
        if len(wrong):
            first = int(wrong[0])
            raise MismatchError(
                f"times of {times[first]} nodes for a trace of {nodes[first]}", where=f"rank {job.ranks[first]}"
            )

    def __repr__(self) -> str:
        on = f", on {self.system.name}" if self.system is not None else ""
        return f"{type(self).__name__}(`{self.job.name}`: {counted(len(self.job), 'rank')}, {self.timing.told()}{on})"

    def _repr_html_(self) -> str:
        from etude.model.shown import run_html

        return run_html(self)

    def part(self, index: int) -> RunPart:
        """The trace and the times of the index-th rank that is present."""
        start, end = self.timing.block(index)
        return RunPart(np.array([index]), self.job.trace(int(self.job.ranks[index])), start, end)

    def parts(self) -> Iterator[RunPart]:
        """Each trace with each set of times once, however many ranks share both, and with a rank's own values. For
        files, one part at a time is in memory."""
        job, timing = self.job, self.timing
        own = np.full(len(job.ranks), -1, np.int64)
        for rank in job.values:
            own[job.index(rank)] = rank
        keys = np.stack([job.trace_of.astype(np.int64), timing.block_of.astype(np.int64), own], 1)
        unique, inverse = sorted_rows(keys)
        order = np.argsort(inverse, kind="stable")
        bounds = np.concatenate([[0], np.cumsum(np.bincount(inverse, minlength=len(unique)))])
        for number, (t, block, rank) in enumerate(unique.tolist()):
            trace = job.traces[t] if rank < 0 else job.trace(rank)
            at = order[bounds[number] : bounds[number + 1]]
            yield RunPart(at, trace, timing.start_ns[block], timing.end_ns[block])
            let_go()


def recorded(job: Job, *, card: Card | None = None) -> Run:
    """The run whose recorded times a job holds."""
    if job.timing is None:
        raise UsageError("no times were recorded in this job", hint="etude.simulate(job, system) gives it times")
    return Run(job, job.timing, card=card)
