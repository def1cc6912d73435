"""The recording of a rank: its operators with their arguments, ordered by time, and the operator of each node."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from etude.kernels.arrays import I64, Bool
from etude.model.job import Job
from etude.model.schema import UNKNOWN
from etude.model.trace import Trace
from etude.run.replay.arguments import Arguments, arguments, without_stream
from etude.run.replay.call_tree import owners
from etude.run.replay.levels import RecordedOp
from etude.run.replay.regions import Regions


class ReplayRecording:
    """One rank of a job with times. `schema`: for each node, the index of its operator's schema in `schemas`, or -1."""

    def __init__(
        self, job: Job, rank: int, schema: I64, schemas: list[str], sources: Mapping[str, Mapping[str, str]]
    ) -> None:
        self.job, self.rank, self.trace = job, rank, job.trace(rank)
        assert job.timing is not None
        self.start, self.end = job.timing.block(job.index(rank))
        self._schema, self._schemas = schema, schemas
        self.inside = _in_steps(self.trace, self.start, self.end)
        self.codes, self.names = self.trace.coded("name")
        self.regions = Regions(self.trace, self.inside, self.names, self.codes, sources)
        self.ops = self._ops()
        op_at = np.full(len(self.trace), -1, np.int64)
        op_at[[op.node for op in self.ops]] = np.arange(len(self.ops))
        self.owner = owners(self.trace.parent, op_at)
        """For each node, the index in `ops` of the operator that it belongs to, or -1."""
        self.on_device = bool((self.inside & (self.trace.cpu == 0)).any())
        self.begin = int(self.start[self.inside].min()) if self.inside.any() else 0
        self.in_program_time = "timing" in job.provenance
        """Times are those of the program, measured or estimated: nothing of a profiler is in them."""

    def _ops(self) -> list[RecordedOp]:
        """Host operators with their arguments, ordered by time, callers before what they call."""
        trace = self.trace
        kernels = self.regions.kernels
        within = self.inside & (trace.cpu == 1) & (self.regions.inside_whole < 0)
        rows = np.flatnonzero(within & ((self._schema >= 0) | kernels))
        rows = rows[np.lexsort((-self.end[rows], self.start[rows]))]
        position = np.full(len(trace), -1, np.int64)
        position[rows] = np.arange(len(rows))
        above = owners(trace.parent, position)
        ops: list[RecordedOp] = []
        for node in rows.tolist():
            parent = int(trace.parent[node])
            outer = int(above[parent]) if parent >= 0 else -1
            op = RecordedOp(
                node=node,
                name=self.regions.kernel_name(node) if kernels[node] else self.names[int(self.codes[node])],
                schema="" if kernels[node] else self._schemas[int(self._schema[node])],
                given=without_stream(self.arguments("in", node)) if kernels[node] else self.arguments("in", node),
                gave=self.arguments("out", node),
                start_ns=int(self.start[node]),
                end_ns=int(self.end[node]),
                calls=[],
                outer=outer,
            )
            if outer >= 0:
                ops[outer].calls.append(len(ops))
            ops.append(op)
        return ops

    def arguments(self, side: str, node: int) -> Arguments:
        """The arguments (`in`) or results (`out`) of a node."""
        return arguments(
            *(self.trace.text(f"{side}_{part}", node) for part in ("values", "types", "shapes", "strides"))
        )


def _in_steps(trace: Trace, start: I64, end: I64) -> Bool:
    """Nodes within the recorded steps; if no step was recorded, all nodes with times."""
    timed = (start != UNKNOWN) & (end != UNKNOWN)
    known = timed & (trace.step != UNKNOWN)
    if not known.any():
        return timed
    return timed & (start >= start[known].min()) & (start <= end[known].max())
