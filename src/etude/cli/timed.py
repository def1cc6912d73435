"""What commands that analyse a run have in common: a job with times, measured, read from a file, or simulated."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from etude.cli.inputs import open_job
from etude.cli.output import emit, progress, say
from etude.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.machine.system import System
    from etude.model.job import Job
    from etude.model.timing import Timing

OnSystem = Annotated[
    str, typer.Option("--system", help="Analyse the job as it would run here: a name of `etude systems`, or a file.")
]
TimesFile = Annotated[
    Path | None, typer.Option("--timing", help="Times of the nodes, as `etude simulate --timing` writes them.")
]
CountedAs = Annotated[
    str, typer.Option("--as", help="Count what `hta` (HolisticTraceAnalysis) or `tracelens` count; by default `etude`.")
]


NOTES = 8
"""Notes about a job that are said."""
LONGEST = 80
"""Letters of a name that a reader is shown: those of kernels can have a thousand."""


def show(table: "pa.Table", *, json: bool = False, csv: bool = False, md: bool = False) -> None:
    """A table on stdout; for people and in Markdown with long names shortened."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not json and not csv:
        for number, field in enumerate(table.schema):
            if pa.types.is_string(field.type):
                text = table.column(number).combine_chunks()
                short = pc.binary_join_element_wise(pc.utf8_slice_codeunits(text, 0, LONGEST - 1), "…", "")
                text = pc.if_else(pc.greater(pc.utf8_length(text), LONGEST), short, text)
                table = table.set_column(number, field.name, text)
    emit(table, json=json, csv=csv, md=md)


def open_timed(
    path: Path, groups: Path | None, workers: int, system: str = "", times: Path | None = None
) -> "tuple[Job, Timing]":
    """The job at `path` and its times: of a file, of a simulation, or as recorded."""
    job, found = open_maybe_timed(path, groups, workers, system, times)
    if found is None:
        raise UsageError(
            "no times were recorded in this job",
            where=str(path),
            hint="--system dgx-h100 analyses it as simulated there, --timing FILE takes times from a file",
        )
    return job, found


def open_maybe_timed(
    path: Path, groups: Path | None, workers: int, system: str = "", times: Path | None = None
) -> "tuple[Job, Timing | None]":
    """As `open_timed`, for what can also be told of a job that has no times."""
    if system and times is not None:
        raise UsageError("times are wanted from a file and from a simulation", hint="one of --timing and --system")
    job = open_job(path, groups, workers)
    if times is not None:
        return job, _read(job, times)
    if system:
        return job, _simulated(job, system)
    if job.timing is None:
        job = _recorded_beside(path, workers) or job
    for note in job.notes[:NOTES]:
        say(f"note: rank {note.rank}: {note.what}")
    if len(job.notes) > NOTES:
        say(f"note: {len(job.notes) - NOTES:,} more such notes; `etude info` has all")
    return job, job.timing


def _recorded_beside(path: Path, workers: int) -> "Job | None":
    """What the profiler recorded, where it lies in one folder with a job that has lost the times."""
    from etude.opening import is_run, recorded

    try:
        job = recorded(path, workers=workers) if path.is_dir() and is_run(path) else None
    except UsageError:  # several runs: which one is meant is not ours to say
        return None
    if job is not None:
        say(f"note: the job in {path} has no times; analysed is what the profiler recorded, beside it")
    return job


def _read(job: "Job", path: Path) -> "Timing":
    from etude.store.times import read_timing

    return read_timing(job, path)


def _simulated(job: "Job", name: str) -> "Timing":
    from etude.machine import open_system
    from etude.simulate.run import simulate

    on = grown(open_system(name), name, job.world_size)
    with progress("simulating"):
        found = simulate(job, on)
    for note in found.notes:
        say(f"note: {note}")
    return found


def grown(found: "System", name: str, ranks: int) -> "System":
    """The system of that name, with room for so many ranks if it is one of the catalogue; a file is taken as it is."""
    from etude.machine import system_names

    if name not in system_names() or found.num_ranks >= ranks:
        return found
    node = len(found) // found.levels[-1].size
    devices = -(-ranks // node) * node
    say(f"note: `{found.name}` is taken with {devices:,} devices instead of {len(found):,}")
    return found.resized(devices)
