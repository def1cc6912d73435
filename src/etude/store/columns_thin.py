"""A job in Parquet, a few ranks at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from etude.model.fold import expand
from etude.model.job import Job, Part, assemble
from etude.model.timing import Timing
from etude.model.trace import Trace
from etude.store.columns import read_job, read_manifest
from etude.store.columns_files import File

HELD_NODES = 1 << 18
"""Nodes that `read_thin` holds at a time."""


def is_unfolded(folder: str | Path) -> bool:
    """Whether every rank has a trace of its own, and there are many."""
    manifest = read_manifest(folder)
    return manifest.traces == manifest.ranks and manifest.nodes > 2 * HELD_NODES


def read_thin(
    folder: str | Path,
    keep: Callable[[Part, Timing | None], Trace],
    *,
    advance: Callable[[int], None] = lambda amount: None,
) -> Job:
    """The job with what `keep` returns for each rank and its times, called in ascending order, instead of the rank's
    trace: only a few ranks are in memory at a time."""
    manifest = read_manifest(folder)
    file = File(Path(folder), "ranks")
    ranks = file.numbers(file.read(["rank"])["rank"], "rank").tolist()
    together = max(1, HELD_NODES * len(ranks) // max(manifest.nodes, 1))
    parts: list[Part] = []
    groups: list[tuple[str, tuple[int, ...] | None]] = []
    for first in range(0, len(ranks), together):
        job = expand(read_job(folder, ranks=ranks[first : first + together]))
        groups = groups or [
            (name, tuple(members.tolist()) if (members := job.groups.ranks(number)) is not None else None)
            for number, name in enumerate(job.groups.names)
        ]
        for i, rank in enumerate(job.ranks.tolist()):
            bound = [groups[g] for g in job.group_slots(rank).tolist()]
            notes = tuple(note for note in job.notes if note.rank == rank)
            part = Part(rank, job.traces[i], bound, job.peer_slots(rank), job.metadata[int(job.metadata_of[i])], notes)
            timing = None if job.timing is None else job.timing.of_rank(i)
            parts.append(replace(part, trace=keep(part, timing)))
        advance(len(job.ranks))
    job = assemble(manifest.name, parts, more_groups=groups, provenance=manifest.provenance)
    return job.replace(world_size=manifest.world_size)
