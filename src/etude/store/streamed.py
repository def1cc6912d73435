"""Summary and check of a job of many ranks, with a few of them in memory at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from etude.model.check.findings import Finding
from etude.model.check.whole import RankByRank
from etude.model.job import Job, Part
from etude.model.schema import UNKNOWN
from etude.model.summary import Sums, described
from etude.model.timing import Timing
from etude.model.trace import Trace, only
from etude.store import chakra

ReadThin = Callable[..., Job]
"""`read_thin` of a store: (path, what to keep of each rank, options of `read_job`)."""
NOTHING = np.zeros(0, np.int64)


def check_ranks(read: ReadThin, path: Path, *, complete: bool = False, **options: Any) -> list[Finding]:
    """The findings of `check` about the job at `path`."""
    checking = RankByRank()
    return checking.finish(read(path, checking.look, **options), complete=complete)


def summarise_ranks(read: ReadThin, path: Path, **options: Any) -> dict[str, Any]:
    """The `summary` of the job at `path`, and the tool that wrote it."""
    sums = Sums()
    starts: list[int] = []
    ends: list[int] = []

    def look(part: Part, timing: Timing | None) -> Trace:
        sums.add(part.trace)
        if timing is not None:
            start, end = timing.block(0)
            offset = int(timing.clock_offset_ns[0])
            starts.extend([int(known.min()) + offset] if len(known := start[start != UNKNOWN]) else [])
            ends.extend([int(known.max()) + offset] if len(known := end[end != UNKNOWN]) else [])
        return only(part.trace, NOTHING, ())

    job = read(path, look, **options)
    span = (min(starts), max(ends)) if starts and ends else None
    return described(job, sums, span) | {"written_by": chakra.written_by(job)}
