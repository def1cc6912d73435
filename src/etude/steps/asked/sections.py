"""A job of several models, `generate sections` and `predict sections`: its parameters, and what they say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, text
from etude.base.outputs import Printed
from etude.base.parameters import spelled
from etude.base.talk import say
from etude.base.units import format_bytes, format_count, format_time
from etude.steps.asked.edits import EditInput, edits_of, side_by_side
from etude.steps.asked.job_out import JobFiles, JobMade, LimitInput, MemoryLimit, write_job
from etude.steps.asked.simulation import Checked, OnSystem

if TYPE_CHECKING:
    from etude.cost.stacks import Stack
    from etude.machine.system import System
    from etude.make.generate.sections import Sectioned, Sections
    from etude.make.transform.edits import Edit


@dataclass(frozen=True, kw_only=True)
class SectionsInput:
    sections: str = argument(
        "path",
        "YAML with several models as one job, each with its own plan: encoder and LLM, teacher and student",
        like="joint.yaml",
    )
    gpus: int = figure("count", "number of ranks, instead of the value in the file", 0, panel="Input")
    mix: str = text(
        "fraction of the samples for which a section is active, `image:0.3,audio:0.1`", like="image:0.3", panel="Input"
    )


def sections_asked(asked: SectionsInput) -> Sections:
    from etude.make.generate.sections import mix_of, open_sections

    found = open_sections(asked.sections)
    return found.with_mix(mix_of(asked.mix, found.sections, spelled(asked, "mix")))


def section_rows(numbers: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each section."""
    rows = []
    for name, one in numbers["sections"].items():
        row = {
            "section": name,
            "model": one["model"],
            "mode": one["mode"],
            "ranks": f"{one['first_rank']}-{one['first_rank'] + one['ranks'] - 1}",
            "samples": one["samples"],
            "operations": format_count(one["model_flops"]),
            "memory": format_bytes(one["memory_peak_bytes"]),
        }
        rows.append(row | ({"utilisation": f"{one['mfu']:.1%}"} if "mfu" in one else {}))
    return rows


@dataclass(frozen=True, kw_only=True)
class GenerateSections(SectionsInput, JobMade, LimitInput):
    """The job of several models: encoder and LLM, teacher and student, rollouts and training

    etude generate sections distill.yaml --gpus 64 -o job/
    etude generate sections vision.yaml --mix image:0.25 --to et --memory 80GB --no-write

    Each section of the file has its own plan."""


@dataclass(frozen=True, slots=True)
class GenerateSectionsInputs:
    sections: Sections
    gpus: int
    name: str
    limit: MemoryLimit
    files: JobFiles


def generate_inputs(asked: GenerateSections) -> GenerateSectionsInputs:
    return GenerateSectionsInputs(
        sections_asked(asked), asked.gpus, asked.name, MemoryLimit.of(asked), JobFiles.of(asked)
    )


def run_generate(given: GenerateSectionsInputs) -> tuple[Sectioned, dict[str, Any]]:
    from etude.make.generate.sections import generate_sections
    from etude.steps.sections import check_sections

    found = generate_sections(given.sections, gpus=given.gpus, name=given.name)
    check_sections(found, given.limit.bytes, given.sections.name)
    return found, write_job(found.job, given.files)


def readable_job(result: tuple[Sectioned, dict[str, Any]]) -> tuple[Any, ...]:
    """Figures of the job, and a row for each section."""
    found = result[0]
    numbers = found.summary()
    borders = {
        name: [format_bytes(size[way]) for way in ("forward_bytes", "backward_bytes")]
        for name, size in numbers["borders"].items()
    }
    figures = {
        "ranks": f"{numbers['ranks']:,}, {numbers['distinct_traces']} distinct programs",
        "nodes": f"{numbers['nodes']:,}",
        "operations": format_count(numbers["flops"]),
        **{f"border {name}": f"{there} forward, {back} backward" for name, (there, back) in borders.items()},
        "peak memory": format_bytes(found.memory_peak_bytes),
    }
    return figures, section_rows(numbers)


@dataclass(frozen=True, kw_only=True)
class PredictSections(SectionsInput, OnSystem, Checked, EditInput):
    """The time of a step of several models: encoder and LLM, teacher and student

    etude predict sections distill.yaml --gpus 64 --system dgx-h100
    etude predict sections vision.yaml --mix image:0.25 --system dgx-h100 --stack none
    """

    stack: str = text("software stack: a name that `etude stacks` lists, or a YAML file", like="none", panel="Machine")
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class PredictSectionsInputs:
    sections: Sections
    gpus: int
    system: System
    stack: Stack
    assumed: tuple[str, ...]
    edits: tuple[Edit, ...]
    check: bool


def predict_inputs(asked: PredictSections) -> PredictSectionsInputs:
    from etude.cost.stacks import open_stack
    from etude.machine import open_system
    from etude.steps.sections import completed_sections

    given, gpus, name = sections_asked(asked), asked.gpus, asked.stack
    made = [one for one, section in given.sections.items() if section.makes_tokens]
    if made and name not in ("", "none"):
        hint = f"{spelled(asked, 'stack')} none"
        raise UsageError(f"a stack applies only to training steps, and `{made[0]}` generates tokens", hint=hint)
    system, stack = open_system(asked.system), open_stack("none" if made else name or "default")
    assumed: tuple[str, ...] = ()
    if name not in ("", "none"):
        given, assumed = completed_sections(given, system, stack, gpus=gpus)
    return PredictSectionsInputs(given, gpus, system, stack, assumed, tuple(edits_of(asked.edit)), asked.memory_check)


def run_predict(given: PredictSectionsInputs) -> Any:
    """The prediction of a step, or of it with and without edits."""
    from etude.steps.sections import predict_sections, sections_what_if
    from etude.steps.what_if import findings

    found = predict_sections(given.sections, given.system, gpus=given.gpus, stack=given.stack, check=given.check)
    found = replace(found, assumed=given.assumed)
    told = [*found.assumed, *found.simulated.notes]
    pair = sections_what_if(found, list(given.edits)) if given.edits else None
    if pair is not None:
        told += [*pair.edits.notes, *findings([pair])]
    for note in dict.fromkeys(told):
        say(f"note: {note}")
    return pair or found


def readable_step(found: Any) -> tuple[Any, ...]:
    """Figures of the step and a row for each section; or the step with and without edits."""
    if hasattr(found, "baseline"):
        return (side_by_side([found], edits=True),)
    figures = {
        "step": format_time(found.step_time_ns),
        "samples/s": round(found.samples_per_s, 1),
        "tokens/s per GPU": round(found.tokens_per_s_per_gpu, 1),
        "model FLOP/s utilisation": f"{found.mfu:.1%}",
        "peak memory": format_bytes(found.generated.memory_peak_bytes),
        "stack": found.stack.name,
    }
    return figures, section_rows(found.summary())
