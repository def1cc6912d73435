from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etude.base.figures import argument, part
from etude.base.parameters import whole
from etude.base.talk import say
from etude.make.synth import MakeOptions
from etude.steps.asked.job_out import Files, JobOut, made_figures, made_record, write_job
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.model.job import Job


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
    files: Files


def inputs(asked: GenerateLearned) -> LearnedInputs:
    return LearnedInputs(Path(asked.model), whole(asked.options), Files.of(asked))


def run(given: LearnedInputs) -> "tuple[Job, dict[str, list[str]]]":
    from etude.make.synth import make, read

    learned = read(given.model)
    job = make(learned, given.options)
    if len(job) > max(t.ranks for t in learned.templates) and not any(t.grows for t in learned.templates):
        say(
            "the learned jobs have no communication between similar ranks: added ranks are copies that do not "
            "communicate"
        )
    return job, write_job(job, given.files)


VERBS = (
    Verb(name="generate learned", asks=GenerateLearned, inputs=inputs, run=run, record=made_record, reads=made_figures),
)
