"""Runs written down by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.model.build import TraceBuilder, job_of
from etude.model.run import Run
from etude.model.schema import UNKNOWN
from etude.model.timing import Origin, Timing


def timing_of(
    starts: list[list[int]], ends: list[list[int]], offset: list[int] | None = None, origin: Origin = Origin.MEASURED
) -> Timing:
    return Timing(
        origin=origin,
        start_ns=tuple(np.array(s, np.int64) for s in starts),
        end_ns=tuple(np.array(e, np.int64) for e in ends),
        block_of=np.arange(len(starts), dtype=np.int32),
        clock_offset_ns=np.array(offset or [0] * len(starts), np.int64),
        aligned=offset is not None,
    )


def timed(
    *ranks: list[tuple[dict[str, Any], int | None, int | None]],
    groups: dict[str, list[int]] | None = None,
    origin: Origin = Origin.MEASURED,
) -> Run:
    """Each rank is a list of (what TraceBuilder.add takes, start, end); a start of None is not known."""
    builders, starts, ends = [], [], []
    for nodes in ranks:
        b = TraceBuilder()
        for node, _, _ in nodes:
            row = dict(node)
            b.add(row.pop("kind"), row.pop("name", ""), **row)
        builders.append(b)
        starts.append([UNKNOWN if s is None else s for _, s, _ in nodes])
        ends.append([UNKNOWN if e is None else e for _, _, e in nodes])
    timing = timing_of(starts, ends, origin=origin)
    return Run(job_of("timed", builders, groups or {}).replace(timing=timing), timing)
