"""What is asked of several jobs on one fabric."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.figures import argument, figure, text
from etude.base.talk import progress, say
from etude.base.units import format_time
from etude.steps.asked.jobs import GROUPS_HELP, JOB_HELP, JobSource
from etude.steps.asked.simulate import Fabric, SimulationRun, say_notes, write_times
from etude.steps.asked.times import TimesInput, times_wanted

if TYPE_CHECKING:
    from etude.run.simulate.together import Together

SEVERAL = "Several jobs on one fabric"
BUSIEST = 20
"""Shared links that a reader is shown."""


@dataclass(frozen=True, kw_only=True)
class SimulateJobs(TimesInput, SimulationRun):
    """Several jobs on one fabric: how much they slow each other down, and over which links

    etude simulate jobs a/ b/ --at 0,5ms --system dgx-h100 --network flow
    etude simulate jobs a/ b/ --place 0-3,8-11 --place 4-7,12-15 --system dgx-h100 --timing times.parquet
    etude simulate jobs a/ --at 5ms --groups groups.json --system dgx-h100
    """

    paths: tuple[str, ...] = argument("paths", f"{JOB_HELP} One for each job", metavar="JOB...", like=["c/"])
    at: str = text("when each job starts: `0,5ms`; by default all at 0", like=["0,7ms", "7ms"], panel=SEVERAL)
    place: tuple[str, ...] = figure(
        "several",
        "ranks of the system for a job, once for each in order: `0-3,8`; by default consecutive ranks, job after job",
        (),
        like="0-7",
        panel=SEVERAL,
    )
    groups: str | None = figure("path", f"{GROUPS_HELP}; for a single job", None)
    workers: int = figure("count", "number of ranks read in parallel", 0, names=("-j",))
    max_bytes: int | None = figure(
        "bytes", "largest size that a file may have, also when unpacked", None, key="max_bytes"
    )


@dataclass(frozen=True, slots=True)
class JobsInputs:
    sources: tuple[JobSource, ...]
    at_ns: tuple[int, ...]
    places: tuple[tuple[int, ...], ...] | None
    fabric: Fabric


def jobs_inputs(asked: SimulateJobs) -> JobsInputs:
    from etude.run.simulate.together import ranks_of, starts_of

    workers, limit, paths = asked.workers, asked.max_bytes, asked.paths
    groups = Path(asked.groups) if len(paths) == 1 and asked.groups is not None else None
    times = times_wanted(asked)
    sources = tuple(JobSource(Path(path), groups, workers, limit, times) for path in paths)
    at_ns, places = starts_of(asked.at, len(paths)), ranks_of(asked.place, len(paths))
    return JobsInputs(sources, at_ns, places, Fabric.of(asked, len(paths)))


def simulated_jobs(given: JobsInputs) -> "Together":
    from etude.run.simulate.together import simulate_jobs

    fabric, places = given.fabric, given.places
    jobs = [fabric.driven(source.open())[0] for source in given.sources]
    last = sum(job.world_size for job in jobs) if places is None else max((r + 1 for p in places for r in p), default=0)
    with progress("simulating"):
        found = simulate_jobs(jobs, fabric.for_ranks(last), fabric.options.whole(), at_ns=given.at_ns, places=places)
    for k, place in enumerate(fabric.timing):
        write_times(found.run_of(k), place)
    fabric.write_links(found.run)
    say_notes(found.run)
    return found


def jobs_record(found: "Together") -> dict[str, Any]:
    import pyarrow as pa

    from etude.analyse.rank_table import rank_table

    run = found.run
    say_jobs(found)
    return {
        "makespan_ns": run.makespan_ns,
        "jobs": found.job_table().to_pylist(),
        "ranks": rank_table(run).append_column("job", pa.array(found.owner())).to_pylist(),
        "links": found.link_table().to_pylist(),
        "partial": run.timing.partial,
        "notes": list(run.notes),
    }


def job_rows(found: "Together") -> list[dict[str, Any]]:
    """One row per job, for a reader."""
    return [
        {**row, "slowdown": _round(row["slowdown"]), "shared_bytes": _round(row["shared_bytes"])}
        for row in found.job_table().to_pylist()
    ]


def shared_link_rows(found: "Together") -> list[dict[str, Any]]:
    """The busiest links that jobs share, for a reader."""
    return [_link_row(row) for row in found.link_table(shared=True).slice(0, BUSIEST).to_pylist()]


def say_jobs(found: "Together", shared: int = 0) -> None:
    """How many ran, and until when; `shared`: the links that they share, of which the busiest were shown."""
    more = f", of {shared:,} shared links the {BUSIEST} busiest" if shared > BUSIEST else ""
    ranks, end = len(found.run.job.ranks), format_time(found.run.makespan_ns)
    say(f"{len(found.jobs):,} jobs, {ranks:,} ranks, done at {end}{more}")


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _link_row(row: dict[str, Any]) -> dict[str, Any]:
    total = max(sum(row["by_job"]), 1)
    shares = {f"job_{k}": round(part / total, 4) for k, part in enumerate(row["by_job"])}
    return {"shared_link": row["link"], "bytes": row["bytes"], "busy_ns": row["busy_ns"], **shares}
