"""What is asked of a job that is simulated: on what, with which options, and what is written of it."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import AnswerNo, DeadlockError, UsageError
from etude.base.figures import figure, part, switch
from etude.base.outputs import OutputPlace, Printed
from etude.base.parameters import naming
from etude.base.talk import progress, say
from etude.base.units import counted, format_time
from etude.steps.asked.device_times import DeviceTimesInput, DeviceTimesSource
from etude.steps.asked.jobs import JobInput, JobSource
from etude.steps.asked.runs import grown
from etude.steps.asked.simulation import SimulationInput, SimulationOptions, options_of

MOST_SERIES = 16
"""Queues of which `--json` has the course."""

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.cost.estimates import Estimate
    from etude.cost.stacks import Stack
    from etude.machine.system import System
    from etude.make.transform.edits import Edit
    from etude.model.job import Job
    from etude.model.run import Run
    from etude.run.simulate import Options, Simulated
    from etude.run.simulate.flows import FlowTimes


@dataclass(frozen=True, kw_only=True)
class SimulationRun(SimulationInput):
    """Parameters of one job and of several."""

    progress: tuple[str, ...] = figure(
        "several",
        "what drives messages: `on=host`, `core` or `dpu`, `cost=1us` each, `traffic=4`, `memory=100GB/s`",
        (),
        like=[("on=host", "cost=1us")],
        panel="Simulation",
        rare=True,
    )
    timing: str | None = figure(
        "out", "write the times of all nodes: `.csv` or `.parquet`", None, like="new.parquet", panel="Output"
    )
    link_stats: str | None = figure(
        "out",
        "folder of tables for `etude query`: links over time, what shared them, completions; on a network with links",
        None,
        panel="Output",
    )
    force: bool = switch("replace what is there", needs="timing|link_stats", names=("-f",))
    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class Simulate(JobInput, DeviceTimesInput, SimulationRun):
    """Run a job on a simulated system: when each rank ends and how it spends its time

    etude simulate job/ --system dgx-h100
    etude simulate run/ --system dgx-h100 --compute roofline
    etude simulate job/ --system dgx-h100 --network flow --link-stats stats/
    etude simulate job/ --system dgx-h100 --slow-rank 3=1.2 --timing times.parquet
    etude simulate job/ --system dgx-h100 --collective all_reduce=tree
    etude simulate job/ --system dgx-h100 --flow-times times.csv

    A generated job has the range of `etude predict` where `--stack` says how efficient kernels are: `--stack default`
    is what `predict` takes. `etude simulate jobs` runs several jobs on one fabric; `etude simulate astra` takes
    ASTRA-sim's own files."""

    stack: str = figure(
        "noun",
        "software stack whose kernels and network are as efficient as it was fitted: a name that `etude stacks` lists, "
        "or a YAML file; by default the device as it is in the catalogue",
        "",
        of=str,
        like="nemo",
        panel="Machine",
    )

    flow_times: str | None = figure(
        "path",
        "times of the flows of `convert --to flows`, from another simulator: columns `flow`, `start_ns`, `end_ns`",
        None,
        like="times.csv",
        panel="Simulation",
        rare=True,
    )


@dataclass(frozen=True, slots=True)
class Fabric:
    """What jobs run on, how, and what is written of it."""

    name: str
    system: "System"
    options: SimulationOptions
    drivers: "tuple[Edit, ...]"
    timing: tuple[OutputPlace, ...]
    """A file for each job."""
    links: OutputPlace | None

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
            asked.system,
            system,
            options_of(asked, system, **statistics),
            drivers,
            places_of(asked.timing, force, jobs),
            OutputPlace.at(asked.link_stats, force),
        )

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


def places_of(timing: str | None, force: bool, jobs: int = 0) -> tuple[OutputPlace, ...]:
    """Where the times of one job, or of each of several, are written."""
    if timing is None:
        return ()
    path = Path(timing)
    if path.suffix not in (".csv", ".parquet"):
        raise UsageError(f"--timing: times cannot be written as `{path.suffix}`", where=timing, hint=".csv or .parquet")
    names = [f"{path.stem}.{k}{path.suffix}" for k in range(jobs)] or [path.name]
    return tuple(place for name in names if (place := OutputPlace.at(str(path.with_name(name)), force)))


def write_times(found: "Run", place: OutputPlace) -> None:
    from etude.base.files import writing
    from etude.store.times import write_timing

    with writing(place.path, force=place.force) as path:
        write_timing(found, path)
    say(f"wrote {place.path}")


@dataclass(frozen=True, slots=True)
class SimulateInputs:
    source: JobSource
    times: DeviceTimesSource | None
    fabric: Fabric
    stack: "Stack | None"
    flow_times: Path | None


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedJob:
    """A run, the jitter that it has, and the range of its time."""

    run: "Simulated"
    jitter: dict[str, float]
    estimate: "Estimate"


def simulate_inputs(asked: Simulate) -> SimulateInputs:
    from etude.cost.stacks import open_stack

    source, stack = JobSource.of(asked), open_stack(asked.stack) if asked.stack else None
    given = None if asked.flow_times is None else Path(asked.flow_times)
    return SimulateInputs(source, DeviceTimesSource.of(asked, source), Fabric.of(asked), stack, given)


def simulated_job(given: SimulateInputs) -> SimulatedJob:
    from etude.run.simulate import Options
    from etude.run.simulate.settings import unused_by
    from etude.steps.estimates import job_estimate
    from etude.steps.step import on_stack

    job, fabric = given.source.open(), given.fabric
    flows = _flow_times(given.flow_times, job, fabric) if given.flow_times else None
    job, said = given.times.put_into(job) if given.times else (job, [])
    job, assumed = fabric.driven(job)
    machine, named = on_stack(job, fabric.for_ranks(job.world_size), given.stack, fabric.options.by_name())
    options = Options(**named, flow_times=flows)
    for note in unused_by(job, options):
        say(f"note: {note}")
    found = _simulated(job, machine, options)
    found = replace(found, notes=(*said, *assumed, *found.notes))
    for place in fabric.timing:
        write_times(found, place)
    fabric.write_links(found)
    say_notes(found)
    estimate = job_estimate(found, machine, given.stack, by_database=fabric.options.ops is not None)
    return SimulatedJob(found, dict(fabric.options.named.get("jitter", {})), estimate)


def _flow_times(path: Path, job: "Job", fabric: Fabric) -> "FlowTimes":
    """The times in a file, of the flows of the job as it is."""
    from etude.run.simulate.flows import flow_times
    from etude.store.tables import read_table

    found, system = read_table(path), fabric.for_ranks(job.world_size)
    return flow_times(found, job, system, collective=fabric.options.named.get("collective"), where=str(path))


def _simulated(job: "Job", machine: "System", options: "Options") -> "Simulated":
    from etude.run.simulate import simulate

    with progress("simulating") as advance:
        done = 0

        def tell(nodes: int, now_ns: int) -> None:
            nonlocal done
            advance(nodes - done, f"at {format_time(now_ns)}")
            done = nodes

        return simulate(job, machine, options, progress=tell)


def deadlock_record(problem: AnswerNo) -> dict[str, Any] | None:
    """What `--json` prints of a job that does not complete."""
    if not isinstance(problem, DeadlockError):
        return None
    told = {"what": problem.problem, "waiting": list(problem.waiting), "causes": list(problem.causes)}
    return {"deadlock": told}


def say_notes(found: "Simulated") -> None:
    for note in found.notes:
        say(f"note: {note}")
    if found.timing.partial:
        say("interrupted: the result covers completed nodes only")


def simulate_record(result: SimulatedJob) -> dict[str, Any]:
    from etude.analyse.program_figures import program_figures
    from etude.analyse.rank_table import rank_rows
    from etude.cost.estimates import columns

    found, jitter = result.run, result.jitter
    say_end(found)
    about = program_figures(found)
    ranges = columns({"makespan_ns": result.estimate})
    about |= {name: {**about.get(name, {}), **of} for name, of in ranges.items()}
    of_rank = {one["rank"]: one for one in about.pop("ranks")}
    return {
        "makespan_ns": found.makespan_ns,
        **about,
        "ranks": [row | of_rank.get(row["rank"], {}) for row in rank_rows(found).to_pylist()],
        "steps": [{"step": step, "end_ns": end_ns} for step, end_ns in found.step_ends().items()],
        "links": [asdict(link) for link in found.links],
        **_queues(found),
        "partial": found.timing.partial,
        "simulated_ranks": found.simulated_ranks,
        **({"jitter": jitter} if jitter else {}),
        "notes": list(found.notes),
    }


def _queues(found: "Simulated") -> dict[str, Any]:
    """What packets did: in queues, over time in those that were the longest, and how long operations took."""
    from etude.analyse.completions import completions

    stats = found.link_stats
    if not found.queues or stats is None:
        return {}
    longest = {queue.link for queue in found.queues[:MOST_SERIES]}
    over_time = [row for row in stats.links.to_pylist() if row["link"] in longest]
    return {
        "queues": [asdict(queue) for queue in found.queues],
        "queues_over_time": over_time,
        "completions": completions(stats.tables()).to_pylist(),
    }


def link_statistics(folder: Path) -> "dict[str, pa.Table]":
    """What `--link-stats` wrote."""
    from etude.store.tables import read_link_statistics

    return read_link_statistics(folder)


def say_end(found: "Simulated", estimate: "Estimate | None" = None) -> None:
    """`estimate`: that of its time; a reader sees its range, and what it rests on."""
    ranks = len(found.job.ranks)
    alike = "" if found.simulated_ranks == ranks else f", {found.simulated_ranks:,} simulated"
    known = estimate is not None and estimate.most is not None
    end = estimate.text(lambda ns: format_time(round(ns))) if estimate and known else format_time(found.makespan_ns)
    say(f"{counted(ranks, 'rank')}{alike}, done at {end}")
    if estimate is not None:
        say(f"range: {estimate.about}")
