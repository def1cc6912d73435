"""Stretches of a run: its steps, or equal parts of it where no steps are known."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.model.job import Job
from etude.model.schema import UNKNOWN
from etude.model.trace import Trace

I64 = NDArray[np.int64]

PARTS: Final = 8
"""Stretches of a run that says nothing of steps."""
MOST: Final = 32


class Segments:
    """Steps of a run as numbers 0, 1, ...; where no steps are known, eighths of each rank's nodes."""

    def __init__(self, job: Job) -> None:
        known = [np.unique(t.step[t.step != UNKNOWN]) for t in job.traces]
        self.steps = np.unique(np.concatenate(known)) if known else np.zeros(0, np.int64)
        self.by_step = len(self.steps) > 1
        self.width = max(1, -(-len(self.steps) // MOST)) if self.by_step else 1
        self.count = -(-len(self.steps) // self.width) if self.by_step else PARTS

    def of(self, trace: Trace, rows: NDArray[np.signedinteger]) -> I64:
        """Segment of each row; -1 where it belongs to none."""
        if not self.by_step:
            return (np.asarray(rows, np.int64) * PARTS) // max(len(trace), 1)
        at = np.searchsorted(self.steps, trace.step[rows])
        return np.where(trace.step[rows] == UNKNOWN, -1, at // self.width)

    def of_ranks(self, job: Job, at: NDArray[np.signedinteger], row: NDArray[np.signedinteger]) -> I64:
        """Segment of rows of the ranks at these positions."""
        found = np.empty(len(at), np.int64)
        trace_of = job.trace_of[at]
        for t in np.unique(trace_of).tolist():
            mine = np.flatnonzero(trace_of == t)
            found[mine] = self.of(job.traces[t], row[mine])
        return found

    def name(self, segment: int) -> str:
        return f"step {self.first_step(segment)}" if self.by_step else f"{segment} eighths of the run"

    def first_step(self, segment: int) -> int:
        return int(self.steps[segment * self.width]) if self.by_step else segment
