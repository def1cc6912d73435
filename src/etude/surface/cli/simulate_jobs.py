"""`etude simulate a/ b/ --at 0,5ms`: several jobs on one fabric."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.surface.cli.output import emit, progress, say
from etude.surface.cli.running import INTERRUPTED
from etude.surface.cli.runs import rank_table

if TYPE_CHECKING:
    from etude.machine.system import System
    from etude.model.job import Job
    from etude.run.simulate import Options
    from etude.run.simulate.together import Together

SEVERAL = "Several jobs on one fabric"

At = Annotated[
    str, typer.Option("--at", help="When each job starts: `0,5ms`; by default all at 0.", rich_help_panel=SEVERAL)
]
Place = Annotated[
    list[str] | None,
    typer.Option(
        "--place",
        help="Ranks of the system for a job, once for each in order: `0-3,8`; by default consecutive ranks, job "
        "after job.",
        rich_help_panel=SEVERAL,
    ),
]


def starts_of(text: str, jobs: int) -> list[int]:
    """When each job starts, in ns; all at 0 where nothing is said."""
    from etude.base.units import parse_time

    if not text:
        return [0] * jobs
    times = [parse_time(part.strip()) for part in text.split(",")]
    if len(times) != jobs:
        raise UsageError(f"--at: {len(times)} times for {jobs} jobs", hint="give one per job: --at 0,5ms")
    early = [time for time in times if time < 0]
    if early:
        raise UsageError(f"--at: a job starts at {early[0]} ns, before the run", hint="use 0 or later")
    return times


def places_of(given: list[str] | None) -> list[list[int]] | None:
    """`0-3,8` for each job; None where nothing is said."""
    return [_ranks(text) for text in given] if given else None


def _ranks(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UsageError(f"--place: `{part}` is not a rank or a range of ranks", hint="--place 0-3,8")
        if dash and int(last) - int(first) >= 1 << 20:
            raise UsageError(f"--place: `{part}` has more ranks than any system")
        found += range(int(first), int(last) + 1) if dash else [int(first)]
    return found


def last_place(jobs: "list[Job]", places: list[list[int]] | None) -> int:
    """Ranks that the system must have."""
    if places is None:
        return sum(job.world_size for job in jobs)
    return max((rank + 1 for ranks in places for rank in ranks), default=0)


def run_jobs(
    jobs: "list[Job]", on: "System", options: "Options", at_ns: list[int], places: list[list[int]] | None
) -> "Together":
    from etude.run.simulate.together import simulate_jobs

    with progress("simulating"):
        return simulate_jobs(jobs, on, options, at_ns=at_ns, places=places)


def show_jobs(found: "Together", json: bool) -> int:
    """One row per job, and below it the links that jobs share."""
    import pyarrow as pa

    from etude.base.units import format_time

    run, jobs, shared = found.run, found.job_table(), found.link_table(shared=True)
    if json:
        ranks = rank_table(run).append_column("job", pa.array(found.owner()))
        record: dict[str, Any] = {"makespan_ns": run.makespan_ns, "jobs": jobs.to_pylist()}
        record |= {"ranks": ranks.to_pylist(), "links": found.link_table().to_pylist(), "partial": run.timing.partial}
        emit(record | {"notes": list(run.notes)}, json=True)
    else:
        rounded = [{**row, "slowdown": _round(row["slowdown"]), "shared_bytes": _round(row["shared_bytes"])}
                   for row in jobs.to_pylist()]  # fmt: skip
        emit(rounded)
        if len(shared):
            emit([_link_row(row) for row in shared.slice(0, 20).to_pylist()])
    for note in run.notes:
        say(f"note: {note}")
    if run.timing.partial:
        say("interrupted: the result covers completed nodes only")
    more = f", of {len(shared):,} shared links the 20 busiest" if len(shared) > 20 and not json else ""
    say(f"{len(jobs):,} jobs, {len(run.job.ranks):,} ranks, done at {format_time(run.makespan_ns)}{more}")
    return INTERRUPTED if run.timing.partial else 0


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _link_row(row: dict[str, Any]) -> dict[str, Any]:
    total = max(sum(row["by_job"]), 1)
    shares = {f"job_{k}": round(part / total, 4) for k, part in enumerate(row["by_job"])}
    return {"shared_link": row["link"], "bytes": row["bytes"], "busy_ns": row["busy_ns"], **shares}


def write_timings(found: "Together", path: Path, force: bool) -> None:
    """The times of each job in a file of its own, by its own ranks: `times.0.parquet`, `times.1.parquet`."""
    from etude.base.files import writing
    from etude.store.times import write_timing

    for k in range(len(found.jobs)):
        own = path.with_name(f"{path.stem}.{k}{path.suffix}")
        with writing(own, force=force) as place:
            write_timing(found.run_of(k), place)
        say(f"wrote {own}")
