"""`--sections FILE`: a job of several models, for `generate` and `predict`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.surface.cli.edits_given import side_by_side
from etude.surface.cli.job_out import Files, write_job
from etude.surface.cli.output import emit, say

if TYPE_CHECKING:
    from etude.make.generate.sections import Sectioned, Sections
    from etude.make.transform.edits import Edit

SectionsFile = Annotated[
    Path | None, typer.Option("--sections", help="YAML with several models as one job: encoder and LLM, teacher and "
                              "student. `--gpus` overrides the value in the file; each section has its own plan.")
]  # fmt: skip
Mix = Annotated[
    str,
    typer.Option(help="With --sections: fraction of the samples for which a section is active, `image:0.3,audio:0.1`."),
]


def opened(path: Path, mix: str, flags: dict[str, Any], others: list[object]) -> tuple["Sections", int]:
    """The sections of a file, and `--gpus`. What belongs to a single model is refused."""
    from etude.make.generate.sections import open_sections

    given = [name for name in flags if name != "gpus"]
    if given or any(others):
        what = f"--{given[0].replace('_', '-')}" if given else "a model, --plan, --hf or --serve"
        raise UsageError(f"{what} cannot be combined with --sections", hint="each section of the file has its own plan")
    return open_sections(path).with_mix(_mix(mix)), int(flags.get("gpus", 0))


def _mix(text: str) -> dict[str, float]:
    found = {}
    for part in filter(None, text.split(",")):
        name, colon, share = part.rpartition(":")
        try:
            found[name] = float(share)
        except ValueError:
            colon = ""
        if not colon or not 0 <= found[name] <= 1:
            raise UsageError(f"--mix: `{part}`", hint="give a section and a fraction between 0 and 1: image:0.3")
    return found


def refuse_mix(mix: str) -> None:
    if mix:
        raise UsageError("--mix needs --sections")


def generated(given: "Sections", gpus: int, name: str, files: Files, limit_bytes: int, *, json: bool) -> None:
    from etude.make.generate.sections import generate_sections
    from etude.steps.sections import check_sections

    found = generate_sections(given, gpus=gpus, name=name)
    check_sections(found, limit_bytes, given.name)
    limits = write_job(found.job, files)
    emit(found.summary() | limits if json else _sums(found), json=json)
    if not json:
        emit(_rows(found.summary()))


def predicted(
    given: "Sections", gpus: int, system: str, stack: str, edits: "list[Edit]", *, check: bool, json: bool
) -> None:
    from etude.base.units import format_bytes, format_time
    from etude.cost.stacks import open_stack
    from etude.machine import open_system
    from etude.steps.sections import completed_sections, predict_sections, sections_what_if
    from etude.steps.what_if import findings

    made = [name for name, section in given.sections.items() if section.makes_tokens]
    if made and stack not in ("", "none"):
        raise UsageError(
            f"a stack applies only to training steps, and `{made[0]}` generates tokens", hint="--stack none"
        )
    machine, software = open_system(system), open_stack("none" if made else stack or "default")
    assumed: tuple[str, ...] = ()
    if stack not in ("", "none"):
        given, assumed = completed_sections(given, machine, software, gpus=gpus)
    found = replace(predict_sections(given, machine, gpus=gpus, stack=software, check=check), assumed=assumed)
    told = [*found.assumed, *found.simulated.notes]
    if edits:
        pair = sections_what_if(found, edits)
        emit(pair.summary() if json else side_by_side([pair], edits=True), json=json)
        told += [*pair.edits.notes, *findings([pair])]
    elif json:
        emit(found.summary(), json=True)
    else:
        emit(
            {
                "step": format_time(found.step_time_ns),
                "samples/s": round(found.samples_per_s, 1),
                "tokens/s per GPU": round(found.tokens_per_s_per_gpu, 1),
                "model FLOP/s utilisation": f"{found.mfu:.1%}",
                "peak memory": format_bytes(found.generated.memory_peak_bytes),
                "stack": software.name,
            }
        )
        emit(_rows(found.summary()))
    for note in dict.fromkeys(told):
        say(f"note: {note}")


def _sums(found: "Sectioned") -> dict[str, Any]:
    from etude.base.units import format_bytes, format_count

    numbers = found.summary()
    borders = {
        name: [format_bytes(size[way]) for way in ("forward_bytes", "backward_bytes")]
        for name, size in numbers["borders"].items()
    }
    return {
        "ranks": f"{numbers['ranks']:,}, {numbers['distinct_traces']} distinct programs",
        "nodes": f"{numbers['nodes']:,}",
        "operations": format_count(numbers["flops"]),
        **{f"border {name}": f"{there} forward, {back} backward" for name, (there, back) in borders.items()},
        "peak memory": format_bytes(found.memory_peak_bytes),
    }


def _rows(numbers: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each section."""
    from etude.base.units import format_bytes, format_count

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
