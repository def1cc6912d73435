"""Tools whose commands are not declared as verbs: `predict` and `edit`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.figures import argument, figure, part, read_mapping
from etude.base.parameters import given_in
from etude.make.generate import Plan
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.steps import Prediction

SYSTEM = "a system of the catalogue, such as `dgx-h100`, or a file"


@dataclass(frozen=True, kw_only=True)
class Predict:
    """How long a training step of a model takes on a system: step time, tokens/s, utilisation, memory, expected error

    Axes of the plan are parameters (`gpus`, `tp`), or keys of `plan`.
    """

    model: str = argument("noun", "a model of the catalogue (llama3-8b) or a Hugging Face id", like="gpt2")
    system: str = figure("noun", SYSTEM, like="dgx-h100")
    plan: str | None = figure("path", "the plan as an object, or a YAML file below the root", None)
    axes: Plan = part(Plan)
    stack: str = figure("noun", "a software stack of the catalogue; `none`: without", "", like="none")
    edits: tuple[str, ...] = figure(
        "several", "what-if changes whose effect is given too: `compress group=dp ratio=2`", (), like=[["drop op=x"]]
    )


@dataclass(frozen=True, slots=True)
class PredictInputs:
    model: str
    system: str
    plan: dict[str, Any]
    stack: str
    edits: list[str]


def predict_inputs(asked: Predict) -> PredictInputs:
    plan = (read_mapping(asked.plan) if asked.plan else {}) | given_in(asked.axes)
    return PredictInputs(asked.model, asked.system, plan, asked.stack, list(asked.edits))


def predicted(given: PredictInputs) -> dict[str, Any]:
    from etude.steps.what_if import findings, what_if

    found, edits = _prediction(given), given.edits
    if not edits:
        return found.summary()
    pair = what_if(found, edits, check=True)
    return pair.summary() | {"findings": findings([pair])}


def _prediction(given: PredictInputs) -> Prediction:
    from etude.cost.stacks import open_stack
    from etude.machine import open_system
    from etude.make.generate.model import open_model
    from etude.steps import predict
    from etude.steps.measured import Said, completed

    network, machine, software = (
        open_model(given.model),
        open_system(given.system),
        open_stack(given.stack or "default"),
    )
    if given.stack in ("", "none"):
        return predict(network, Plan.from_dict(given.plan, "plan"), machine, stack=software)
    wanted, assumed = completed(Said(model=network, given=given.plan, system=machine), software)
    found = predict(network, wanted, machine, stack=software)
    return replace(found, assumed=(*assumed, *found.assumed))


@dataclass(frozen=True, kw_only=True)
class EditJob:
    """A what-if copy of a job: what each edit selects and changes; with `system`, the simulated time before and after

    `out` is the name under which the copy is written, which only a server with a writing folder does.
    """

    path: str = argument("path", "a job", like="job/")
    edits: tuple[str, ...] = figure(
        "several", 'such as "speed op=aten::mm by=1.3", "drop op=aten::copy_"', like=[["drop op=x"]]
    )
    system: str = figure("noun", SYSTEM, "", like="dgx-h100")
    out: str | None = figure("out", "name of the copy that is written", None)


def edited(given: tuple[Path, tuple[str, ...], str, Path | None]) -> dict[str, Any]:
    from etude.capture import opening
    from etude.machine import open_system
    from etude.make.transform.edits import apply_edits
    from etude.run.simulate import simulate

    path, edits, system, out = given
    job = opening.open(path)
    machine = open_system(system).for_ranks(job.world_size) if system else None
    found = apply_edits(job, list(edits), system=machine)
    made: dict[str, Any] = {"edits": [step.record() for step in found.steps], "notes": list(found.notes)}
    if machine is not None:
        spans = [simulate(one, machine.for_ranks(one.world_size)).timing.span() for one in (job, found.job)]
        made["before_ns"], made["after_ns"] = (None if span is None else span[1] - span[0] for span in spans)
    if out is not None:
        _write(found.job, out)
        made["written"] = out.name
    return made


def _write(job: Any, place: Path) -> None:
    from etude.base.files import writing
    from etude.model.fold import fold
    from etude.store import columns

    with writing(place) as folder:
        folder.mkdir()
        columns.write_job(fold(job), folder)


OWN: tuple[Verb[Any, Any, Any], ...] = (
    Verb(name="predict", asks=Predict, inputs=predict_inputs, run=predicted),
    Verb(
        name="edit", asks=EditJob, run=edited,
        inputs=lambda asked: (
            Path(asked.path), asked.edits, asked.system, None if asked.out is None else Path(asked.out)
        ),
    ),
)  # fmt: skip
