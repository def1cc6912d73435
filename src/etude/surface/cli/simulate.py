from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.analyse.rank_table import rank_table
from etude.base.errors import DeadlockError, UsageError
from etude.base.figures import argument, figure, part
from etude.base.outputs import Place, Printed
from etude.base.parameters import naming
from etude.base.talk import progress, say
from etude.base.units import counted
from etude.steps.asked.jobs import GROUPS_HELP, JOB_HELP, JobInput, JobSource
from etude.steps.asked.runs import grown
from etude.steps.asked.simulation import SimulationInput, SimulationOptions, options_of
from etude.surface.cli.build import command_of
from etude.surface.cli.device_times import DeviceTimes, DeviceTimesInput
from etude.surface.cli.output import emit
from etude.surface.cli.running import INTERRUPTED
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.machine.system import System
    from etude.make.transform.edits import Edit
    from etude.model.job import Job
    from etude.model.run import Run
    from etude.run.simulate import Options, Simulated
    from etude.run.simulate.together import Together

SEVERAL = "Several jobs on one fabric"
BUSIEST = 20
"""Shared links that a reader is shown."""


@dataclass(frozen=True, kw_only=True)
class SimulationRun(SimulationInput):
    """Parameters of one job and of several."""

    progress: tuple[str, ...] = figure(
        "several", "what drives messages: `on=host`, `core` or `dpu`, `cost=1us` each, `traffic=4`, `memory=100GB/s`",
        (), like=[("on=host", "cost=1us")], panel="Simulation", rare=True,
    )  # fmt: skip
    timing: str | None = figure(
        "out", "write the times of all nodes: `.csv` or `.parquet`", None, like="new.parquet", panel="Output"
    )
    link_stats: str | None = figure(
        "out", "folder of tables for `etude query`: links over time, what shared them, completions; on a network with "
        "links", None, panel="Output",
    )  # fmt: skip
    force: bool = figure("switch", "replace what is there", False, needs="timing|link_stats", names=("-f",))
    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class Simulate(JobInput, DeviceTimesInput, SimulationRun):
    """Run a job on a simulated system: when each rank ends and how it spends its time

    etude simulate job/ --system dgx-h100
    etude simulate run/ --system dgx-h100 --compute roofline
    etude simulate job/ --system dgx-h100 --network flow --link-stats stats/
    etude simulate job/ --system dgx-h100 --slow-rank 3=1.2 --timing times.parquet
    etude simulate job/ --system dgx-h100 --collective all_reduce=tree

    `etude simulate jobs` runs several jobs on one fabric; `etude simulate astra` takes ASTRA-sim's own files."""


@dataclass(frozen=True, kw_only=True)
class SimulateJobs(SimulationRun):
    """Several jobs on one fabric: how much they slow each other down, and over which links

    etude simulate jobs a/ b/ --at 0,5ms --system dgx-h100 --network flow
    etude simulate jobs a/ b/ --place 0-3,8-11 --place 4-7,12-15 --system dgx-h100 --timing times.parquet
    etude simulate jobs a/ --at 5ms --groups groups.json --system dgx-h100
    """

    paths: tuple[str, ...] = argument("paths", f"{JOB_HELP} One for each job", metavar="JOB...", like=["c/"])
    at: str = figure(
        "text", "when each job starts: `0,5ms`; by default all at 0", "", like=["0,7ms", "7ms"], panel=SEVERAL
    )
    place: tuple[str, ...] = figure(
        "several", "ranks of the system for a job, once for each in order: `0-3,8`; by default consecutive ranks, job "
        "after job", (), like="0-7", panel=SEVERAL,
    )  # fmt: skip
    groups: str | None = figure("path", f"{GROUPS_HELP}; for a single job", None)
    workers: int = figure("count", "number of ranks read in parallel", 0, zero=True, names=("-j",))
    max_bytes: int | None = figure(
        "bytes", "largest size that a file may have, also when unpacked", None, key="max_bytes"
    )


@dataclass(frozen=True, slots=True)
class Fabric:
    """What jobs run on, how, and what is written of it."""

    name: str
    system: "System"
    options: SimulationOptions
    drivers: "tuple[Edit, ...]"
    timing: tuple[Place, ...]
    """A file for each job."""
    links: Place | None
    as_json: bool

    @classmethod
    def of(cls, asked: SimulationRun, jobs: int = 0) -> "Fabric":
        """`jobs`: each of that many has a file of times of its own, `times.0.parquet`."""
        from etude.machine import open_system
        from etude.make.transform.edits import Edit
        from etude.run.simulate.settings import pairs

        system = open_system(asked.system)
        with naming(asked, "progress"):
            driver = " ".join(["progress", *(f"{k}={v}" for k, v in pairs("progress", asked.progress))])
            drivers = (Edit.parse(driver),) if asked.progress else ()
        statistics, force = {} if asked.link_stats is None else {"link_stats": True}, asked.force
        return cls(
            asked.system, system, options_of(asked, system, **statistics),
            drivers, places_of(asked.timing, force, jobs),
            Place.at(asked.link_stats, force), asked.output.json,
        )  # fmt: skip

    def driven(self, job: "Job") -> tuple["Job", tuple[str, ...]]:
        """The job with the work of those who drive its messages, and what was assumed."""
        from etude.make.transform.edits import apply_edits

        if not self.drivers:
            return job, ()
        found = apply_edits(job, self.drivers)
        return found.job, tuple(found.notes)

    def for_ranks(self, ranks: int) -> "System":
        return grown(self.system, self.name, ranks)

    def write_links(self, found: "Simulated") -> None:
        from etude.base.files import writing

        if self.links is not None and found.link_stats is not None:
            with writing(self.links.path, force=self.links.force) as place:
                found.link_stats.write(place)
            say(f"wrote {self.links.path}")


def places_of(timing: str | None, force: bool, jobs: int = 0) -> tuple[Place, ...]:
    """Where the times of one job, or of each of several, are written."""
    if timing is None:
        return ()
    path = Path(timing)
    if path.suffix not in (".csv", ".parquet"):
        raise UsageError(f"--timing: times cannot be written as `{path.suffix}`", where=timing,
                         hint=".csv or .parquet")  # fmt: skip
    names = [f"{path.stem}.{k}{path.suffix}" for k in range(jobs)] or [path.name]
    return tuple(place for name in names if (place := Place.at(str(path.with_name(name)), force)))


def write_times(found: "Run", place: Place) -> None:
    from etude.base.files import writing
    from etude.store.times import write_timing

    with writing(place.path, force=place.force) as path:
        write_timing(found, path)
    say(f"wrote {place.path}")


@dataclass(frozen=True, slots=True)
class SimulateInputs:
    source: JobSource
    times: DeviceTimes | None
    fabric: Fabric


def inputs(asked: Simulate) -> SimulateInputs:
    source = JobSource.of(asked)
    return SimulateInputs(source, DeviceTimes.of(asked, source), Fabric.of(asked))


def run(given: SimulateInputs) -> "tuple[Simulated, dict[str, float]]":
    """The run, and the jitter that it has."""
    from etude.run.simulate.settings import unused_by

    job, fabric = given.source.open(), given.fabric
    job, said = given.times.put_into(job) if given.times else (job, [])
    job, assumed = fabric.driven(job)
    options = fabric.options.whole()
    for note in unused_by(job, options):
        say(f"note: {note}")
    found = _simulated(job, fabric, options)
    found = replace(found, notes=(*said, *assumed, *found.notes))
    for place in fabric.timing:
        write_times(found, place)
    fabric.write_links(found)
    say_notes(found)
    return found, dict(fabric.options.named.get("jitter", {}))


def _simulated(job: "Job", fabric: Fabric, options: "Options") -> "Simulated":
    from etude.base.units import format_time
    from etude.run.simulate import simulate

    with progress("simulating") as advance:
        done = 0

        def tell(nodes: int, now_ns: int) -> None:
            nonlocal done
            advance(nodes - done, f"at {format_time(now_ns)}")
            done = nodes

        try:
            return simulate(job, fabric.for_ranks(job.world_size), options, progress=tell)
        except DeadlockError as problem:
            if fabric.as_json:
                told = {"what": problem.problem, "waiting": list(problem.waiting), "causes": list(problem.causes)}
                emit({"deadlock": told}, json=True)
            raise


def say_notes(found: "Simulated") -> None:
    for note in found.notes:
        say(f"note: {note}")
    if found.timing.partial:
        say("interrupted: the result covers completed nodes only")


def record(result: "tuple[Simulated, dict[str, float]]") -> dict[str, Any]:
    found, jitter = result
    _say_end(found)
    return {
        "makespan_ns": found.makespan_ns,
        "ranks": rank_table(found).to_pylist(),
        "steps": [{"step": step, "end_ns": end_ns} for step, end_ns in found.step_ends().items()],
        "links": [asdict(link) for link in found.links],
        "partial": found.timing.partial,
        "simulated_ranks": found.simulated_ranks,
        **({"jitter": jitter} if jitter else {}),
        "notes": list(found.notes),
    }


def show(result: "tuple[Simulated, dict[str, float]]") -> None:
    emit(rank_table(result[0]))
    _say_end(result[0])


def _say_end(found: "Simulated") -> None:
    from etude.base.units import format_time

    ranks = len(found.job.ranks)
    alike = "" if found.simulated_ranks == ranks else f", {found.simulated_ranks:,} simulated"
    say(f"{counted(ranks, 'rank')}{alike}, done at {format_time(found.makespan_ns)}")


# -- several jobs ------------------------------------------------------------------------------------------------------


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
    sources = tuple(JobSource(Path(path), groups, workers, limit) for path in paths)
    at_ns, places = starts_of(asked.at, len(paths)), ranks_of(asked.place, len(paths))
    return JobsInputs(sources, at_ns, places, Fabric.of(asked, len(paths)))


def run_jobs(given: JobsInputs) -> "Together":
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

    run = found.run
    _say_jobs(found, 0)
    return {
        "makespan_ns": run.makespan_ns,
        "jobs": found.job_table().to_pylist(),
        "ranks": rank_table(run).append_column("job", pa.array(found.owner())).to_pylist(),
        "links": found.link_table().to_pylist(),
        "partial": run.timing.partial,
        "notes": list(run.notes),
    }


def show_jobs(found: "Together") -> None:
    """One row per job, and below it the links that jobs share."""
    shared = found.link_table(shared=True)
    emit([{**row, "slowdown": _round(row["slowdown"]), "shared_bytes": _round(row["shared_bytes"])}
          for row in found.job_table().to_pylist()])  # fmt: skip
    if len(shared):
        emit([_link_row(row) for row in shared.slice(0, BUSIEST).to_pylist()])
    _say_jobs(found, len(shared))


def _say_jobs(found: "Together", shared: int) -> None:
    from etude.base.units import format_time

    more = f", of {shared:,} shared links the {BUSIEST} busiest" if shared > BUSIEST else ""
    ranks, end = len(found.run.job.ranks), format_time(found.run.makespan_ns)
    say(f"{len(found.jobs):,} jobs, {ranks:,} ranks, done at {end}{more}")


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _link_row(row: dict[str, Any]) -> dict[str, Any]:
    total = max(sum(row["by_job"]), 1)
    shares = {f"job_{k}": round(part / total, 4) for k, part in enumerate(row["by_job"])}
    return {"shared_link": row["link"], "bytes": row["bytes"], "busy_ns": row["busy_ns"], **shares}


def meant(args: list[str]) -> str:
    """`simulate a/ b/` and `--at` are of several jobs, `--astra-network` is of `simulate astra`."""
    from etude.surface.cli.arguments import values

    said = {arg.partition("=")[0] for arg in args[: args.index("--") if "--" in args else None]}
    if any(name.startswith("--astra-") for name in said):
        if said & {"--system", "-s"}:
            raise UsageError("--system and --astra-system are two systems for one run", hint="give one of them")
        return "simulate astra"
    several = said & {"--at", "--place"} or sum(not name for _, name in values(command_of(VERBS[0]).params, args)) > 1
    return "simulate jobs" if several else ""


VERBS: tuple[Verb[Any, Any, Any], ...] = (
    Verb(
        name="simulate", asks=Simulate, inputs=inputs, run=run, record=record, show=show, tool=True,
        code=lambda result: INTERRUPTED if result[0].timing.partial else 0,
    ),
    Verb(
        name="simulate jobs", asks=SimulateJobs, inputs=jobs_inputs, run=run_jobs, record=jobs_record, show=show_jobs,
        code=lambda found: INTERRUPTED if found.run.timing.partial else 0,
    ),
)  # fmt: skip
