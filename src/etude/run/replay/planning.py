"""Plans the program of a rank from its job: what is called, sent and waited for, in the order of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from etude.base.errors import UsageError
from etude.model.job import Job, ranges
from etude.run.replay.compiled import compiled_sources, may_run
from etude.run.replay.light import light_events
from etude.run.replay.program import Program
from etude.run.replay.recorded import plan_recorded
from etude.run.replay.regions import attribute
from etude.run.replay.sized import plan_sized


def plan(
    job: Job, ranks: Sequence[int] | None = None, *, recording: Path | None = None, trust_code: bool = False
) -> list[Program]:
    """A program for each of these ranks, or for all. A rank whose operators were recorded with their arguments calls
    them again; for other ranks (generated, anonymised, learned) synthetic work of the same FLOPs and bytes is played.
    `recording`: the files from which the job was read; its light steps and the code of its compiled graphs are looked
    for there. Code becomes part of a program only if this user recorded it on this machine, or if it is trusted. Raises
    UsageError for a rank that is not in the job."""
    wanted = job.ranks.tolist() if ranks is None else list(ranks)
    missing = [rank for rank in wanted if rank not in set(job.ranks.tolist())]
    if missing:
        raise UsageError(f"rank {missing[0]} is not in the job", hint=f"present: {ranges(job.ranks)}")
    sources = compiled_sources(recording) if recording is not None else {}
    light = light_events(recording) if recording is not None else {}
    left_out = not may_run(sources, trusted=trust_code)
    found: dict[int, Program] = {}
    for rank in wanted:
        trace = job.trace(rank)
        schema, words = attribute(trace, "op_schema")
        with_arguments = (schema >= 0) & (trace.in_types >= 0)
        if with_arguments.any() and job.timing is not None:
            found[rank] = plan_recorded(job, rank, schema, words, {} if left_out else sources, light.get(rank))
        else:
            found[rank] = plan_sized(job, rank)
    for program in found.values():
        program.about.update({"code_left_out": True} if left_out else {})
    return [found[rank] for rank in wanted]
