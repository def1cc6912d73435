from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etude.base.figures import argument, figure, part
from etude.base.outputs import Place, Printed
from etude.base.talk import say
from etude.steps.asked.jobs import JobInput, JobSource
from etude.steps.asked.times_on import TimesOnInput, times_system, with_times
from etude.surface.cli.output import emit
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.machine.system import System


@dataclass(frozen=True, kw_only=True)
class Learn(TimesOnInput):
    """A small model of jobs, without names, shapes or exact sizes, for generating others

    etude learn run/ -o model.json

    Afterwards `etude generate learned model.json --ranks 512 -o job/` generates a job, and `etude similarity run/ job/`
    compares the two.
    """

    jobs: tuple[str, ...] = argument("paths", "jobs to learn from, with all their ranks", like="job/")
    out: str = figure("out", "the model to write: `.json`", "model.json", names=("-o",))
    at_least: int = figure(
        "count", "least number of nodes behind every size and time in the model; rarer values are merged, then rounded",
        1, least=1, panel="What is kept",
    )  # fmt: skip
    reading: JobInput = part(JobInput, "Input", but=("path",))
    force: bool = figure("switch", "replace what is there", False, names=("-f",))
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class LearnInputs:
    jobs: tuple[JobSource, ...]
    at_least: int
    times_on: "System | None"
    place: Place


def inputs(asked: Learn) -> LearnInputs:
    place, jobs = Place.of(asked), tuple(JobSource.of(asked.reading, path) for path in asked.jobs)
    assert place is not None
    return LearnInputs(jobs, asked.at_least, times_system(asked), place)


def run(given: LearnInputs) -> dict[str, Any]:
    from etude.base.files import writing
    from etude.make.synth import KEPT, about, hidden, learn, write

    opened = [with_times(job.open(), given.times_on) for job in given.jobs]
    learned, out = learn(opened, given.at_least), given.place.path
    with writing(out, force=given.place.force) as path:
        write(learned, path)
    say(f"wrote {out}")
    if not any("duration_ns" in c.sketches for c in learned.classes):
        say(
            "the model has no times, as the jobs had none: `--times-on SYSTEM` computes them from names and shapes "
            "before these are removed"
        )
    return about(learned) | {"bytes": out.stat().st_size, "hidden": hidden(opened), "kept": list(KEPT)}


def show(found: dict[str, Any]) -> None:
    emit({name: value for name, value in found.items() if name not in ("hidden", "kept")})
    print()
    emit([{"what": what, "became": "left out", "count": count} for what, count in found["hidden"].items()]
         + [{"what": what, "became": "kept", "count": None} for what in found["kept"]])  # fmt: skip


VERBS = (Verb(name="learn", asks=Learn, inputs=inputs, run=run, show=show),)
