"""One row per rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.model.run import Run

__all__ = ["rank_table"]


def rank_table(found: Run) -> pa.Table:
    """One row per rank: when it ends, its breakdown and, if known, its memory."""
    import pyarrow as pa

    from etude.analyse.breakdown import breakdown
    from etude.model.memory import memory_peaks
    from etude.model.schema import UNKNOWN

    finish, peaks = found.timing.last_ends(), memory_peaks(found)
    rows = breakdown(found).add_column(1, "finish_ns", pa.array(finish, mask=finish == UNKNOWN))
    for name, values in (("peak_memory_bytes", peaks.held_bytes), ("peak_stored_bytes", peaks.stored_bytes)):
        if (values != UNKNOWN).any():
            rows = rows.append_column(name, pa.array(values, mask=values == UNKNOWN))
    return rows
