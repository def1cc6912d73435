"""Segments of a run: its steps, or equal parts of it where no steps are known."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.model.job import Job
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN

PARTS: Final = 8
"""Segments of a run without steps."""
MOST: Final = 128
"""Most segments of a run with many steps: each then covers several steps."""


class Segments:
    """Steps of a run as numbers 0, 1, ...; where no steps are known, eight equal parts of each rank's time."""

    def __init__(self, job: Job) -> None:
        known = [np.unique(t.step[t.step != UNKNOWN]) for t in job.traces]
        self.steps = np.unique(np.concatenate(known)) if known else np.zeros(0, np.int64)
        self.by_step = len(self.steps) > 1
        self.width = max(1, -(-len(self.steps) // MOST)) if self.by_step else 1
        self.count = -(-len(self.steps) // self.width) if self.by_step else PARTS

    def of(self, part: RunPart, rows: NDArray[np.signedinteger]) -> I64:
        """Segment of each row, whose time is known; -1 where it belongs to none."""
        if not self.by_step:
            timed = part.timed
            first = int(part.start_ns[timed].min()) if timed.any() else 0
            length = int(part.start_ns[timed].max()) - first + 1 if timed.any() else 1
            share = (part.start_ns[rows] - first).astype(np.float64) / length
            return np.minimum((share * PARTS).astype(np.int64), PARTS - 1)
        step = part.trace.step[rows]
        return np.where(step == UNKNOWN, -1, np.searchsorted(self.steps, step) // self.width)

    def of_ranks(self, run: Run, at: NDArray[np.signedinteger], row: NDArray[np.signedinteger]) -> I64:
        """Segment of rows of the ranks at these positions."""
        found = np.full(len(at), -1, np.int64)
        for part in run.parts():
            mine = np.flatnonzero(np.isin(at, part.at))
            found[mine] = self.of(part, row[mine])
        return found

    def name(self, segment: int) -> str:
        return f"step {self.first_step(segment)}" if self.by_step else f"{segment / PARTS:.0%} of the run"

    def first_step(self, segment: int) -> int:
        return int(self.steps[segment * self.width]) if self.by_step else segment
