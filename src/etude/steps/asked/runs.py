"""What commands that analyse a run have in common: a run, measured, with times from a file, or simulated."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part
from etude.base.outputs import Tabled
from etude.base.parameters import spelled
from etude.base.talk import progress, say
from etude.steps.asked.jobs import GROUPS_HELP, JOB_HELP, open_job
from etude.steps.asked.times import TimesInput, times_wanted

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.capture.ingest import runs
    from etude.machine.system import System
    from etude.model.card import Card
    from etude.model.job import Job
    from etude.model.run import Run


SYSTEM_HELP = "simulate the job there and analyse that: a name of `etude systems`, or a file"
RAN_ON_HELP = "the hardware of the run: a device (`h100`) or a system (`dgx-h100`); by default as recorded in the run"
TIMING_HELP = "times of the nodes, as `etude simulate --timing` writes them"
WORKERS_HELP = "number of ranks read in parallel; 0: one per core for large recordings"
NOTES = 8
"""Notes about a job that are said."""


@dataclass(frozen=True, kw_only=True)
class RunInput(TimesInput):
    """Parameters of what analyses a run."""

    path: str = argument("path", JOB_HELP, like="job/")
    system: str = figure("noun", SYSTEM_HELP, "", names=("-s",), like="dgx-h100")
    timing: str | None = figure("path", TIMING_HELP, None)
    groups: str | None = figure("path", GROUPS_HELP, None)
    workers: int = figure("count", WORKERS_HELP, 0, names=("-j",))


@dataclass(frozen=True, kw_only=True)
class Analysis(RunInput):
    """Parameters of what makes a table of a run."""

    output: Tabled = part(Tabled)


@dataclass(frozen=True, kw_only=True)
class Topped:
    """The parameter of how much of a table is shown."""

    top: int | None = figure("count", "number of rows to show; 0: all", None, zero=True)


def ran_on(**more: Any) -> Any:
    """The parameter of what a run was measured on."""
    return figure("noun", RAN_ON_HELP, "", names=("--device",), like="h200", **more)


@dataclass(frozen=True, kw_only=True)
class RanOnInput:
    ran_on: str = ran_on()


def counted_as(**more: Any) -> Any:
    """The parameter of how time is counted."""
    text = "count as `hta` (HolisticTraceAnalysis) or `tracelens` does"
    return figure("text", text, "etude", key="as", like="hta", plain=True, **more)


@dataclass(frozen=True, kw_only=True)
class Counted:
    counted: str = counted_as()


def times_of(asked: Any, system: str = "system", timing: str = "timing") -> tuple[str, Path | None]:
    """Where times come from, if not from the recording: a system that simulates, or a file; not both."""
    on, file = getattr(asked, system), getattr(asked, timing)
    if on and file is not None:
        raise two_sources_of_times(spelled(asked, timing), spelled(asked, system), spelled(asked, "ran_on"))
    return on, None if file is None else Path(file)


def two_sources_of_times(timing: str, system: str, ran_on: str) -> UsageError:
    return UsageError(
        "times cannot come both from a file and from a simulation",
        hint=f"give one of {timing} and {system}; {ran_on} names the hardware of the run",
    )


@dataclass(frozen=True, slots=True)
class RunSource:
    """Where a run comes from: a recording, a file of times, or a simulation."""

    path: Path
    system: str = ""
    timing: Path | None = None
    groups: Path | None = None
    workers: int = 0
    ray: str = ""
    times: "runs.WantedTimes | None" = None

    @classmethod
    def of(cls, asked: RunInput, ray: str = "", *, recorded: bool = False) -> "RunSource":
        """The source that was asked for; `recorded`: of what only a recording has, whatever the times."""
        groups = None if asked.groups is None else Path(asked.groups)
        if recorded:
            return cls(Path(asked.path), groups=groups, workers=asked.workers, times=times_wanted(asked))
        system, timing = times_of(asked)
        return cls(Path(asked.path), system, timing, groups, asked.workers, ray, times_wanted(asked))

    def open(self) -> "Run":
        """The run with times of a file, of a simulation, or as recorded."""
        run = self.find()[1]
        if run is None:
            raise no_times(self.path)
        return run

    def job(self) -> "Job":
        """The job alone."""
        return open_job(self.path, self.groups, self.workers, times=self.times)

    def find(self) -> "tuple[Job, Run | None]":
        """As `open`, for what is also known of a job that has no times."""
        from etude.model.run import Run
        from etude.store import cards
        from etude.store.times import read_timing

        if self.system and self.timing is not None:
            raise two_sources_of_times("--timing", "--system", "--ran-on")
        own = self.timing is None
        job = open_job(self.path, self.groups, self.workers, ray=self.ray, times=self.times, tells=own)
        card = cards.find(self.path)
        if self.timing is not None:
            return job, Run(job, read_timing(job, self.timing), card=card)
        if self.system:
            return job, simulated(job, self.system, card)
        if job.timing is None:
            job = _recorded_beside(self.path, self.workers) or job
        tell_absent(job)
        tell_notes(job)
        return job, None if job.timing is None else Run(job, job.timing, card=card)


@dataclass(frozen=True, slots=True)
class Analysed:
    """Inputs of an analysis: a run, and what is computed of it."""

    source: RunSource
    compute: "Callable[[Run], Any]"
    top: int = 0
    """Rows of the table that are kept; 0: all."""
    nothing: str = ""
    """What is said of a table without rows."""
    about: bool = False
    """The record has the figures of the program as well: what a step takes, and how busy its devices are."""

    def run(self) -> Any:
        return self._computed(self.source.open())

    def with_figures(self) -> "tuple[pa.Table, dict[str, Any]]":
        """(the table, figures of the program, where they are shown with it)."""
        from etude.analyse.program_figures import program_figures

        run = self.source.open()
        found = program_figures(run) if self.about else {}
        for line in told_of(run.job, found):
            say(f"note: {line}")
        return self._computed(run), found

    def _computed(self, run: "Run") -> Any:
        found = self.compute(run)
        if self.nothing and not len(found):
            say(f"note: {self.nothing}")
        return found.slice(0, self.top) if self.top else found


def told_of(job: "Job", found: "dict[str, Any]") -> list[str]:
    """What is to be said of the times of a run; whose they are is said where it is opened."""
    from etude.analyse.program_figures import is_under_profiler

    if not found:
        return []
    if is_under_profiler(job) and found["step_ns"]:
        return ["times are those under the profiler; the program itself may be several times as fast"]
    if found["timing"] == "recorded" and found["step_ns"]:
        return ["the file does not say whose times it has: under a profiler, the program itself may be faster"]
    if "low" in found:
        most, least = (1 - found[end]["busy_share"] for end in ("low", "high"))
        return [f"estimated: the device is idle {least:.0%} to {most:.0%} of a step"]
    return []


def table_of(result: "tuple[pa.Table, dict[str, Any]]") -> Any:
    """The table of an analysis."""
    return result[0]


def record_of(result: "tuple[pa.Table, dict[str, Any]]") -> Any:
    """The table; with the figures of the program, where it has a row for each rank together with these."""
    table, about = result
    if not about:
        return table
    ranks = {one["rank"]: one for one in about["ranks"]}
    names = table.schema.names
    if "rank" in names and "span_ns" in names:
        return about | {"ranks": [row | ranks.get(row["rank"], {}) for row in table.to_pylist()]}
    return about | {"rows": table}


def no_times(path: Path) -> UsageError:
    return UsageError(
        "no times were recorded in this job",
        where=str(path),
        hint="--system dgx-h100 simulates it there, --timing FILE reads times from a file",
    )


def tell_absent(job: "Job") -> None:
    """Says which ranks of the run are not in the job."""
    import numpy as np

    from etude.model.job import ranges

    absent = np.setdiff1d(np.arange(job.world_size), job.ranks)
    if len(absent):
        say(f"note: {len(job):,} of the {job.world_size:,} ranks of this run are present; missing: {ranges(absent)}")


def tell_notes(job: "Job") -> None:
    for note in job.notes[:NOTES]:
        say(f"note: rank {note.rank}: {note.what}")
    if len(job.notes) > NOTES:
        say(f"note: {len(job.notes) - NOTES:,} more such notes; `etude info` lists all")


def _recorded_beside(path: Path, workers: int) -> "Job | None":
    """The profiler's recording in the same folder, for a job without times; None if there is none, or several."""
    from etude.capture.opening import is_run, recorded

    try:
        job = recorded(path, workers=workers) if path.is_dir() and is_run(path) else None
    except UsageError:  # several runs: which one is meant is not ours to say
        return None
    if job is not None:
        say(f"note: the job in {path} has no times; the profiler's recording next to it is analysed instead")
    return job


def simulated(job: "Job", name: str, card: "Card | None" = None) -> "Run":
    """The job as it runs on a system."""
    from dataclasses import replace

    from etude.machine import open_system
    from etude.run.simulate import simulate

    on = grown(open_system(name), name, job.world_size)
    with progress("simulating"):
        found = simulate(job, on)
    for note in found.notes:
        say(f"note: {note}")
    return replace(found, card=card)


def grown(found: "System", name: str, ranks: int) -> "System":
    """The system of that name, with room for this many ranks if it is from the catalogue, and only their slice if it is
    a torus; a file is used unchanged."""
    from etude.machine import system_names

    taken = found.for_ranks(ranks) if name in system_names() else found
    if taken is not found:
        shape = "x".join(str(level.size) for level in taken.levels)
        say(f"note: `{found.name}` is used with {len(taken):,} devices ({shape}) instead of {len(found):,}")
    return taken
