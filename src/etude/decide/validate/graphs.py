"""What a graph predicts of a delay: the delay is put in at the recorded moment, and the graph is simulated again."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.capture.collect import Moment
from etude.decide.validate.places import Place, PlaceKind
from etude.kernels.arrays import I64
from etude.model.job import Job
from etude.model.schema import Kind, Why
from etude.model.trace import Trace
from etude.run.simulate import simulate

SYSTEM: Final = "dgx-h100"
"""All times are recorded, those of communication too: nothing of the system is read but that it has room."""


def marks_of(job: Job) -> dict[int, dict[Moment, I64]]:
    """Rank -> moment -> the nodes that mark it."""
    return {rank: _marks(job.trace(rank)) for rank in job.ranks.tolist()}


def _marks(trace: Trace) -> dict[Moment, I64]:
    codes, names = trace.coded("name")
    moments = {code: moment for code, name in enumerate(names) if (moment := Moment.of_mark(name)) is not None}
    return {moment: np.flatnonzero(codes == code) for code, moment in moments.items()}


def moments_of(job: Job, steps: int) -> dict[int, list[Moment]]:
    """Rank -> moments that come once in each of its steps, in order."""
    found: dict[int, list[Moment]] = {}
    for rank, marks in marks_of(job).items():
        step = job.trace(rank).step
        found[rank] = sorted(m for m, nodes in marks.items() if len(nodes) == len(np.unique(step[nodes])) == steps)
    return found


def launched_after(trace: Trace, nodes: I64) -> I64:
    """For each host node the first computation that its thread launches after it, on whichever stream; -1: none."""
    of_edge = np.repeat(np.arange(len(trace)), np.diff(trace.data_start))
    launches = (trace.data_why == int(Why.LAUNCH)) & (trace.kind[of_edge] == int(Kind.COMP)) & (trace.cpu[of_edge] != 1)
    calls, activities = trace.data[launches], of_edge[launches]
    found = []
    for node in nodes.tolist():
        later = np.flatnonzero((calls > node) & (trace.thread[calls] == trace.thread[node]))
        found.append(int(activities[later[np.argmin(calls[later])]]) if len(later) else -1)
    return np.array(found, np.int64)


class DelayedGraph:
    """A graph, simulated without a delay and with delays."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.marks = marks_of(job)
        self.length_ns = self._simulated(job)

    def _simulated(self, job: Job) -> int:
        return simulate(job, SYSTEM, collective_times="recorded").makespan_ns

    def change_ns(self, place: Place, injected_ns: int) -> int:
        """How much longer a step takes with so much more at a place in each step."""
        delayed, steps = self.with_delay(place, injected_ns)
        return round((self._simulated(delayed) - self.length_ns) / steps)

    def with_delay(self, place: Place, injected_ns: int) -> tuple[Job, int]:
        """The job with the delay in each step, and in how many steps that is."""
        steps, values = 0, dict(self.job.values)
        for rank, marks in self.marks.items():
            if place.rank not in (None, rank) or place.moment not in marks:
                continue
            trace = self.job.trace(rank)
            nodes = self._delayed_nodes(trace, marks[place.moment], place)
            duration_ns = trace.duration_ns.copy()
            np.add.at(duration_ns, nodes, injected_ns)
            own: Mapping[str, NDArray[Any]] = values.get(rank, {})
            values[rank] = {**own, "duration_ns": duration_ns}
            steps = max(steps, len(nodes))
        if not steps:
            raise UsageError(f"`{place.where}` is not in the graph")
        return self.job.replace(values=values), steps

    def _delayed_nodes(self, trace: Trace, marks: I64, place: Place) -> I64:
        """A spin is the mark, longer. Work on a device is what the module launches first, longer: its stream is
        busy until then. Without a device its work is the thread's."""
        if place.kind is not PlaceKind.DEVICE or not (trace.cpu == 0).any():
            return marks
        nodes = launched_after(trace, marks)
        if (nodes < 0).any():
            raise UsageError(f"`{place.where}`: nothing is launched on a device after it")
        return nodes
