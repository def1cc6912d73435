"""simulate_until: runs a job up to a time, with events on ranks and links, and reports what is done by then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.machine.system import System
from etude.model.job import Job
from etude.model.run import Run
from etude.model.schema import UNKNOWN, Kind
from etude.model.timing import Origin, Timing
from etude.run.simulate.events import Event
from etude.run.simulate.lower import lower
from etude.run.simulate.networks.state import NEVER
from etude.run.simulate.operations import operations
from etude.run.simulate.options import Options
from etude.run.simulate.run import start
from etude.run.simulate.state import DONE


@dataclass(frozen=True, slots=True, eq=False)
class Interrupted:
    """A run up to a time; ends of unfinished nodes are unknown."""

    run: Run
    at_ns: int
    """The time of the stop, or the end of the last node."""
    nodes: I64
    """Nodes of each rank present."""
    done: I64
    """Nodes of each rank that have ended."""
    finish_ns: I64
    """When the last of these ended; UNKNOWN: none did."""

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Ranks whose nodes have all ended."""
        return self.done == self.nodes

    def micro_batches(self, step: int = 0) -> I64:
        """For each rank present, the micro-batches of a step whose compute is all done."""
        found = np.zeros(len(self.nodes), np.int64)
        for part in self.run.parts():
            mine = (part.trace.micro_batch >= 0) & (part.trace.kind == Kind.COMP) & (part.trace.step == step)
            number, left = part.trace.micro_batch[mine], part.end_ns[mine] == UNKNOWN
            found[part.at] = len(np.unique(number)) - len(np.unique(number[left]))
        return found

    def done_ns(self) -> I64:
        """For each rank present, the total time of its finished nodes, including waits of communication."""
        found = np.zeros(len(self.nodes), np.int64)
        for part in self.run.parts():
            known = part.timed
            found[part.at] = int((part.end_ns[known] - part.start_ns[known]).sum())
        return found


def simulate_until(
    job: Job,
    system: System,
    events: Sequence[tuple[int, Event]] = (),
    options: Options | None = None,
    *,
    until_ns: int | None = None,
) -> Interrupted:
    """Runs the job, applies each event at its time, and stops at `until_ns` or when nothing more can happen. A hang is
    not an error here, since faults cause them. All ranks are simulated."""
    if until_ns is not None and until_ns < 0:
        raise UsageError(f"until {until_ns} ns: that is before the run")
    if any(at_ns < 0 for at_ns, _ in events):
        raise UsageError("an event before the run", hint="times from 0 on")
    options = replace((options or Options()), fold=False).on(system)
    lowered, _ = lower(job, system, options)
    engine, _ = start(lowered, operations(lowered))
    last = NEVER if until_ns is None else until_ns
    for at_ns, event in sorted(events, key=lambda pair: pair[0]):
        if at_ns <= last:
            engine.apply(event, at_ns)
    engine.advance(last)
    nodes = engine.state.nodes
    is_done = nodes["waits"] == DONE
    end = np.where(is_done, nodes["end_ns"], UNKNOWN)
    bounds = lowered.base[1:-1]
    timing = Timing(
        origin=Origin.SIMULATED,
        start_ns=tuple(np.split(np.ascontiguousarray(nodes["start_ns"]), bounds)),
        end_ns=tuple(np.split(end, bounds)),
        block_of=lowered.classes.of,
        clock_offset_ns=np.zeros(len(job.ranks), np.int64),
        aligned=True,
        partial=not is_done.all(),
    )
    return Interrupted(
        Run(job, timing, system),
        max(int(timing.last_ends().max(initial=0)), 0) if until_ns is None else until_ns,
        np.diff(lowered.base),
        np.add.reduceat(is_done.astype(np.int64), lowered.base[:-1])
        if len(nodes)
        else np.zeros(len(job.ranks), np.int64),
        timing.last_ends(),
    )
