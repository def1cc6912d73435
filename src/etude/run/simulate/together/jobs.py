"""Several jobs on one fabric: placed on ranks of their own, started at their times, simulated as one job.

Each job is also simulated alone, at the same place and time: the difference is what the others cost it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.machine.system import System
from etude.model.job import Job, ranges
from etude.model.join import Places, join, places_of
from etude.model.run import Run
from etude.model.schema import UNKNOWN
from etude.run.simulate.options import Options, Routing
from etude.run.simulate.result import LINKS_SHOWN, Simulated
from etude.run.simulate.run import simulate_with_links


@dataclass(frozen=True, slots=True, eq=False)
class Together:
    """Several jobs that ran at the same time."""

    run: Simulated
    """All of them as one job; its ranks are those of the system."""
    jobs: tuple[Job, ...]
    places: tuple[I64, ...]
    """places[k][r]: rank of the system on which rank r of job k ran."""
    start_ns: I64
    end_ns: I64
    """When each job's last node ended; UNKNOWN: none did."""
    alone_ns: I64
    """How long each takes alone, at the same place and time."""
    link_names: tuple[str, ...]
    link_busy_ns: I64
    link_bytes: I64
    """Bytes over each link, of all jobs together."""
    link_bytes_of: I64
    """Bytes that each job alone sends over each link, one row per job. With fixed routes it sends the same together
    with the others."""

    @property
    def time_ns(self) -> I64:
        return np.where(self.end_ns == UNKNOWN, UNKNOWN, self.end_ns - self.start_ns)

    def job_table(self) -> pa.Table:
        """One row per job: name, ranks, start_ns, end_ns, time_ns, alone_ns, slowdown, links (that it uses),
        shared_links (that another uses too), shared_bytes (fraction of its bytes that went over those)."""
        used = self.link_bytes_of > 0
        shared = used & (used.sum(0) > 1)
        part = (self.link_bytes_of * shared).sum(1) / np.maximum(self.link_bytes_of.sum(1), 1)
        time_ns, missing = self.time_ns, (self.end_ns == UNKNOWN) | (self.alone_ns == UNKNOWN)
        slow = np.where(missing, 0.0, time_ns / np.maximum(np.where(missing, 1, self.alone_ns), 1))
        slow = np.where((time_ns == 0) & (self.alone_ns == 0), 1.0, slow)  # a job without work is not slower
        return pa.table(
            {
                "job": np.arange(len(self.jobs)),
                "name": [job.name for job in self.jobs],
                "ranks": [ranges(place) for place in self.places],
                "start_ns": self.start_ns,
                "end_ns": pa.array(self.end_ns, mask=self.end_ns == UNKNOWN),
                "time_ns": pa.array(time_ns, mask=self.end_ns == UNKNOWN),
                "alone_ns": pa.array(self.alone_ns, mask=self.alone_ns == UNKNOWN),
                "slowdown": pa.array(slow, mask=missing),
                "links": used.sum(1),
                "shared_links": shared.sum(1),
                "shared_bytes": part,
            }
        )

    def link_table(self, *, shared: bool = False) -> pa.Table:
        """One row per link that carried something, those in use longest first: link, bytes, busy_ns, by_job (bytes of
        each job). `shared`: only those that several jobs use."""
        wanted = (self.link_bytes_of > 0).sum(0) > 1 if shared else self.link_bytes > 0
        rows = np.flatnonzero(wanted)
        rows = rows[np.lexsort((rows, -self.link_bytes[rows], -self.link_busy_ns[rows]))][:LINKS_SHOWN]
        return pa.table(
            {
                "link": pa.array([self.link_names[i] for i in rows.tolist()], pa.string()),
                "bytes": self.link_bytes[rows],
                "busy_ns": self.link_busy_ns[rows],
                "by_job": pa.array(self.link_bytes_of[:, rows].T.tolist(), pa.list_(pa.int64())),
            }
        )

    def owner(self) -> I64:
        """The job of each rank of `run`."""
        found = np.zeros(len(self.run.job.ranks), np.int64)
        for k in range(len(self.jobs)):
            found[self._at(k)] = k
        return found

    def run_of(self, k: int) -> Run:
        """The k-th job's own run: its own ranks, times on the common clock."""
        at, timing = self._at(k), self.run.timing
        own = replace(timing, block_of=timing.block_of[at], clock_offset_ns=timing.clock_offset_ns[at])
        return Run(self.jobs[k], own)

    def _at(self, k: int) -> I64:
        """Positions of a job's ranks among those of `run`."""
        return np.searchsorted(self.run.job.ranks, self.places[k][self.jobs[k].ranks])


def simulate_jobs(
    jobs: Sequence[Job],
    system: System,
    options: Options | None = None,
    *,
    at_ns: Sequence[int] | None = None,
    places: Places | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Together:
    """Simulates jobs that share a system. `at_ns`: when each starts, by default at 0; `places`: the system's rank of
    each of its ranks, by default one job after the other. Ranks in `options` are the system's."""
    options = options or Options()
    starts = [0] * len(jobs) if at_ns is None else [int(t) for t in at_ns]
    if len(starts) != len(jobs):
        raise UsageError(f"{len(jobs)} jobs, {len(starts)} start times", hint="--at 0,5ms: one for each job")
    if options.starts:
        raise UsageError("starts of ranks: with several jobs, give one start per job", hint="at_ns")
    put = places_of(jobs, places)

    def begun(which: Sequence[int]) -> Options:
        found = {int(r): starts[k] for k in which for r in put[k][jobs[k].ranks].tolist() if starts[k]}
        present = {int(r) for k in which for r in put[k][jobs[k].ranks].tolist()}
        slow = {
            rank: factor for rank, factor in options.slow_ranks.items() if len(which) == len(jobs) or rank in present
        }
        return replace(options, starts=found, slow_ranks=slow)

    everything = range(len(jobs))
    run, links = simulate_with_links(join(jobs, put), system, begun(everything), progress=progress)
    if len(jobs) > 1 and not run.timing.partial:
        alone = [simulate_with_links(join([jobs[k]], [put[k]]), system, begun([k])) for k in everything]
        alone_ns = np.array([one.makespan_ns - starts[k] for k, (one, _) in enumerate(alone)], np.int64)
        by_job = [found.bytes for _, found in alone]
    else:
        alone_ns = np.full(len(jobs), UNKNOWN if run.timing.partial else run.makespan_ns - starts[0], np.int64)
        by_job = [links.bytes] * len(jobs)
    ends = run.timing.last_ends()
    at = [np.searchsorted(run.job.ranks, put[k][jobs[k].ranks]) for k in everything]
    notes = _notes(run, options)
    return Together(
        replace(run, notes=(*run.notes, *notes)),
        tuple(jobs),
        tuple(put),
        np.array(starts, np.int64),
        np.array([ends[rows].max(initial=UNKNOWN) for rows in at], np.int64),
        alone_ns,
        links.names,
        links.busy_ns,
        links.bytes,
        np.array(by_job, np.int64).reshape(len(jobs), -1),
    )


def _notes(run: Simulated, options: Options) -> list[str]:
    if not run.links:
        return ["closed forms do not model links, so jobs do not slow each other down; use --network flow or links"]
    if options.routing == Routing.ADAPTIVE:
        return [
            "bytes of a job over a link are those that it sends alone; next to other jobs, adaptive routes may differ"
        ]
    return []
