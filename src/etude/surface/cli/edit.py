from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure
from etude.base.parameters import spelled
from etude.surface.cli.edits_given import edits_of, run_times
from etude.surface.cli.inputs import JobInput, JobSource
from etude.surface.cli.job_out import Files, JobOut, write_job
from etude.surface.cli.output import emit, say
from etude.surface.cli.times_on import TimesOnInput, times_system, with_times
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.machine.system import System
    from etude.make.transform.edits import Edit as OneEdit
    from etude.make.transform.edits import Edited


@dataclass(frozen=True, kw_only=True)
class Edit(JobOut, TimesOnInput, JobInput):
    """A what-if copy of a job: faster operators, compressed or merged communication, another order, more ranks

    etude edit job/ -o zipped/ "compress group=dp,ep ratio=1.35 encode=400GB/s decode=600GB/s when=pays"
    etude edit run/ -o faster/ "speed op=aten::mm by=1.3" "drop op=aten::copy_"
    etude edit run/ -o bigger/ "scale axis=dp to=64"
    etude edit run/ --no-write --to et "scale axis=dp to=64"

    docs/edits.md lists every edit, its parameters, and what it cannot show.
    """

    edits: tuple[str, ...] = argument(
        "paths", "`VERB key=value ...`, or `@FILE`; in order", metavar="EDIT...", like=["relax", "compress ratio=2"]
    )
    system: str = figure(
        "text",
        "simulate there the times that `when=pays` and `dtype` compare, or take its tiers and data plane: a name, or a "
        "YAML file",
        "", names=("-s",), metavar="NAME", like="dgx-h100",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EditInputs:
    source: JobSource
    edits: "tuple[OneEdit, ...]"
    machine: "System | None"
    times_on: "System | None"
    files: Files


def inputs(asked: Edit) -> EditInputs:
    from etude.machine import open_system
    from etude.surface.api.converting import check_place

    source, edits, times_on = JobSource.of(asked), tuple(edits_of(list(asked.edits))), times_system(asked)
    machine = open_system(asked.system) if asked.system else times_on
    if asked.system and not any(one.reads_system for one in edits):
        raise UsageError(
            f"{spelled(asked, 'system')} is read only by edits that compare times on a system, and none of these does",
            hint="`compress ... when=pays`, `dtype`, `offload`, `data`; --times-on gives times to compute without any",
        )
    files = Files.of(asked)
    if files.out is not None:
        check_place(files.out, files.force, source=source.path)
    return EditInputs(source, edits, machine, times_on, files)


def run(given: EditInputs) -> "tuple[Edited, dict[str, Any]]":
    from etude.make.transform.edits import apply_edits

    job = with_times(given.source.open(), given.times_on)
    machine = None if given.machine is None else given.machine.for_ranks(job.world_size)
    found = apply_edits(job, given.edits, system=machine, times=run_times(machine))
    found = replace(found, job=with_times(found.job, given.times_on))  # of what is another work now
    problems = write_job(found.job, given.files)
    for note in found.notes:
        say(f"note: {note}")
    return found, problems


def record(result: "tuple[Edited, dict[str, Any]]") -> dict[str, Any]:
    found, problems = result
    return {"edits": [step.record() for step in found.steps], "notes": list(found.notes)} | problems


def show(result: "tuple[Edited, dict[str, Any]]") -> None:
    from etude.base.units import format_bytes

    emit([
        {
            "edit": str(step.edit),
            "nodes selected": f"{step.nodes:,}",
            "bytes communicated before": format_bytes(step.bytes_before),
            "after": format_bytes(step.bytes_after),
        }
        for step in result[0].steps
    ])  # fmt: skip


VERBS = (Verb(name="edit", asks=Edit, inputs=inputs, run=run, record=record, show=show),)
