"""Anchors: the rows of a section's programs that a border is attached to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etude.kernels.arrays import I64


@dataclass(frozen=True, slots=True, eq=False)
class Anchors:
    """The row of each micro-batch on each pipeline rank that a border is attached to; -1 if it is on another."""

    rows: I64
    own: I64 | None = None
    """If ranks of a stage have different programs: the row of each micro-batch on each rank of the section."""
    first_rank: int = 0
    """First rank of the section in the job."""

    @property
    def home(self) -> I64:
        """Pipeline rank of each micro-batch."""
        return np.asarray((self.rows >= 0).argmax(axis=0), np.int64)

    @property
    def micro_batches(self) -> int:
        return int(self.rows.shape[1])

    def row(self, rank: I64, micro_batch: I64) -> I64:
        """For ranks of the job."""
        if self.own is not None:
            return np.asarray(self.own[rank - self.first_rank, micro_batch], np.int64)
        return np.asarray(self.rows[self.home[micro_batch], micro_batch], np.int64)
