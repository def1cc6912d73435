"""Measures the links between the processes of a node, with one collective at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from etude.run.replay.builder import ProgramBuilder
from etude.run.replay.communication.processes import PlayOptions, play
from etude.run.replay.program import CommKind, Program


def probe_links(processes: int, sizes_bytes: Sequence[int], options: PlayOptions) -> list[list[float]]:
    """Seconds that an all-reduce of each size takes among this many processes, in each iteration: from the arrival of
    the last member until the last member has the sum."""
    results = play(probe_programs(processes, sizes_bytes), options)
    start = np.max([r.start_ns for r in results], axis=0)
    end = np.max([r.end_ns for r in results], axis=0)
    seconds: list[list[float]] = (np.maximum(end - start, 1) / 1e9).T.tolist()
    return seconds


def probe_programs(processes: int, sizes_bytes: Sequence[int]) -> list[Program]:
    """Programs with all-reduces of these sizes among all processes, one after the other."""
    found = []
    for rank in range(processes):
        b = ProgramBuilder(rank=rank, world_size=processes, job="probe", only="communication")
        group = b.group(range(processes), "all")
        for size in sizes_bytes:
            b.comm(CommKind.ALL_REDUCE, in_bytes=size, out_bytes=size, dtype="float32", group=group, label="all_reduce")
        found.append(b.build())
    return found
