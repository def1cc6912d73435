"""The measures of a device's time, each defined once: compute, communication, memory, their exposed parts, idle.

If several run at once, the first of compute, communication, memory counts, so that

    compute + exposed communication + exposed memory + idle = span

to the nanosecond. A span goes from the first start to the last end of the work that is measured.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.kernels.arrays import I64, U8
from etude.kernels.intervals import time_by_mask
from etude.model.run import RunPart
from etude.model.use import Use

__all__ = ["MEASURES"]


CLASSES: Final = (Use.COMPUTE, Use.COMMUNICATION, Use.MEMORY)
"""What a device does; class i is bit i of a mask."""
_BIT = np.zeros(len(Use), np.uint8)
_BIT[list(CLASSES)] = 1 << np.arange(len(CLASSES))
MEASURES: Final = ("span_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "memory_ns", "exposed_memory_ns", "idle_ns")
COLUMNS: Final = {**dict.fromkeys(MEASURES, pa.int64()), "overlap_pct": pa.float64()}
"""Measures and their types, as in tables."""


def time_by_class(part: RunPart, rows: I64, use: U8) -> I64:
    """Time in which exactly the classes of a mask run, for each mask, over these rows; mask 0 is idle time."""
    return time_by_bits(part, rows, _BIT[use[rows]], len(CLASSES))


def time_by_bits(part: RunPart, rows: I64, bits: U8, width: int) -> I64:
    """The same for any classes; `bits` are the classes of each row."""
    start, end = part.start_ns[rows], part.end_ns[rows]
    wrong = np.flatnonzero(end < start)
    if len(wrong):
        node = int(rows[wrong[0]])
        raise TraceError(f"it ends before it starts, at {end[wrong[0]]} and {start[wrong[0]]} ns", where=f"node {node}")
    return np.asarray(time_by_mask(start, end, bits, width))


def measures(part: RunPart, rows: I64, use: U8) -> dict[str, Any]:
    """All measures of these rows of a part, by name. `comm_ns` and `memory_ns` count whether hidden or not;
    `overlap_pct` is the percentage of communication that compute hides, None where there is none."""
    total = time_by_class(part, rows, use)
    compute, comm, memory = ((np.arange(len(total)) >> bit & 1) > 0 for bit in range(len(CLASSES)))

    def ns(masks: NDArray[np.bool_]) -> int:
        return int(total[masks].sum())

    found: dict[str, Any] = {
        "span_ns": int(total.sum()),
        "compute_ns": ns(compute),
        "comm_ns": ns(comm),
        "exposed_comm_ns": ns(comm & ~compute),
        "memory_ns": ns(memory),
        "exposed_memory_ns": ns(memory & ~comm & ~compute),
        "idle_ns": int(total[0]),
    }
    return found | {"overlap_pct": 100 * ns(comm & compute) / found["comm_ns"] if found["comm_ns"] else None}
