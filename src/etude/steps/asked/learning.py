"""Models of jobs: `learn` writes one, `generate learned` makes jobs from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.figures import argument, figure, part, switch
from etude.base.outputs import OutputPlace, Printed
from etude.base.parameters import whole
from etude.base.talk import say
from etude.make.synth import MakeOptions
from etude.steps.asked.job_out import JobFiles, JobOut, write_job
from etude.steps.asked.jobs import JobInput, JobSource
from etude.steps.asked.times_on import TimesOnInput, times_system, with_times

if TYPE_CHECKING:
    from etude.machine.system import System
    from etude.model.job import Job


SIMULATED_ON = "dgx-h100"
"""Where jobs and their copies are simulated, unless `--times-on` says where."""


@dataclass(frozen=True, kw_only=True)
class Learn(TimesOnInput):
    """A small model of jobs, without names, shapes or exact sizes, for generating others

    etude learn run/ -o model.json

    Afterwards `etude generate learned model.json --ranks 512 -o job/` generates a job, and `etude similarity run/ job/`
    compares the two. A copy of each job is simulated as the job is (on dgx-h100, or on the system of --times-on): what
    step and communication differ by is printed and kept in the model. Of several jobs, each is also withheld once.
    """

    jobs: tuple[str, ...] = argument("paths", "jobs to learn from, with all their ranks", like="job/")
    out: str = figure("out", "the model to write: `.json`", "model.json", names=("-o",))
    at_least: int = figure(
        "count",
        "least number of nodes behind every size and time in the model; rarer values are merged, then rounded",
        1,
        least=1,
        panel="What is kept",
    )
    reading: JobInput = part(JobInput, "Input", but=("path",))
    force: bool = switch("replace what is there", names=("-f",))
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class LearnInputs:
    jobs: tuple[JobSource, ...]
    at_least: int
    times_on: System | None
    place: OutputPlace


def learn_inputs(asked: Learn) -> LearnInputs:
    place, jobs = OutputPlace.of(asked), tuple(JobSource.of(asked.reading, path) for path in asked.jobs)
    assert place is not None
    return LearnInputs(jobs, asked.at_least, times_system(asked), place)


def run_learn(given: LearnInputs) -> dict[str, Any]:
    from etude.base.files import writing
    from etude.machine import open_system
    from etude.make.synth import KEPT, about, hidden, learn, write
    from etude.steps.copies import with_differences

    opened = [with_times(job.open(), given.times_on) for job in given.jobs]
    system = given.times_on or open_system(SIMULATED_ON)
    learned = with_differences(learn(opened, given.at_least), opened, system, given.at_least)
    out = given.place.path
    with writing(out, force=given.place.force) as path:
        write(learned, path)
    say(f"wrote {out}")
    if not any("duration_ns" in c.sketches for c in learned.classes):
        say(
            "the model has no times, as the jobs had none: `--times-on SYSTEM` computes them from names and shapes "
            "before these are removed, and copies take as long there"
        )
    return about(learned) | {"bytes": out.stat().st_size, "hidden": hidden(opened), "kept": list(KEPT)}


def readable(found: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figures of the model, and what became of what the jobs have."""
    became = [("left out", what, count) for what, count in found["hidden"].items()]
    became += [("kept", what, None) for what in found["kept"]]
    figures = {name: value for name, value in found.items() if name not in ("hidden", "kept", "copies")}
    return figures, [{"what": what, "became": how, "count": count} for how, what, count in became]


def copies(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What copies differ by, as people read it."""
    return [
        {
            "copy_of": f"{one['ranks']} ranks",
            "learned_from": ", ".join(map(str, one["learned_from"])) + " ranks",
            "step": f"{one['step']:+.1%}",
            "communication": "" if one["communication"] is None else f"{one['communication']:+.1%}",
            "simulated_on": one["system"],
        }
        for one in found["copies"]
    ]


@dataclass(frozen=True, kw_only=True)
class GenerateLearned(JobOut):
    """A job of any size that behaves like those a model was learned from

    etude generate learned model.json --ranks 512 --steps 2 --to et -o job/
    etude generate learned model.json --spread 0 --no-write --json
    etude similarity run/ job/ --system dgx-h100
    """

    model: str = argument("path", "the model that `etude learn` wrote", like="other.json")
    options: MakeOptions = part(MakeOptions, "Job")


@dataclass(frozen=True, slots=True)
class LearnedInputs:
    model: Path
    options: MakeOptions
    files: JobFiles


def learned_inputs(asked: GenerateLearned) -> LearnedInputs:
    return LearnedInputs(Path(asked.model), whole(asked.options), JobFiles.of(asked))


def run_learned(given: LearnedInputs) -> tuple[Job, dict[str, Any]]:
    from etude.make.synth import make, read

    learned = read(given.model)
    job = make(learned, given.options)
    if len(job) > max(t.ranks for t in learned.templates) and not any(t.grows for t in learned.templates):
        say(
            "the learned jobs have no communication between similar ranks: added ranks are copies that do not "
            "communicate"
        )
    known = learned.difference_at(len(job))
    if given.options.depth != 1 or given.options.compute != 1 or given.options.traffic != 1:
        known = f"without --depth, --compute and --traffic: {known}"
    say(known)
    job = job.replace(provenance={**job.provenance, "difference": known})
    return job, {"difference": known} | write_job(job, given.files)
