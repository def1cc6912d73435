"""A what-if copy of a job: what `etude edit` asks for."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, switch
from etude.base.parameters import spelled
from etude.base.talk import say
from etude.steps.asked.edits import edits_of, run_times
from etude.steps.asked.job_out import JobFiles, JobOut, write_job
from etude.steps.asked.jobs import JobInput, JobSource
from etude.steps.asked.times_on import TimesOnInput, times_system, with_times

if TYPE_CHECKING:
    from etude.machine.system import System
    from etude.make.transform.edits import Edit, Edited
    from etude.model.job import Job


@dataclass(frozen=True, kw_only=True)
class EditJob(JobOut, TimesOnInput, JobInput):
    """A what-if copy of a job: faster operators, compressed or merged communication, another order, more ranks

    etude edit job/ -o zipped/ "compress group=dp,ep ratio=1.35 encode=400GB/s decode=600GB/s when=pays"
    etude edit run/ -o faster/ "speed op=aten::mm by=1.3" "drop op=aten::copy_"
    etude edit run/ -o bigger/ "scale axis=dp to=64"
    etude edit run/ --no-write --to et "scale axis=dp to=64"
    etude edit job/ --no-write --system dgx-h100 --simulate "compress group=dp ratio=2"

    docs/edits.md lists every edit, its parameters, and what it cannot show.
    """

    edits: tuple[str, ...] = argument(
        "several", "`VERB key=value ...`, or `@FILE`; in order", metavar="EDIT...", like=["relax", "compress ratio=2"]
    )
    system: str = figure(
        "noun",
        "simulate there the times that `when=pays` and `dtype` compare, or take its tiers and data plane: a name, or a "
        "YAML file",
        "",
        of=str,
        names=("-s",),
        like="dgx-h100",
    )
    simulate: bool = switch("also simulate the job there, before and after", needs="system", panel="Machine")


@dataclass(frozen=True, slots=True)
class EditInputs:
    source: JobSource
    edits: "tuple[Edit, ...]"
    machine: "System | None"
    times_on: "System | None"
    simulate: bool
    files: JobFiles


@dataclass(frozen=True, slots=True)
class EditResult:
    edited: "Edited"
    more: dict[str, Any]
    """What ASTRA-sim cannot run of it; its time before and after, where it is simulated."""
    out: Path | None


def inputs(asked: EditJob) -> EditInputs:
    from etude.machine import open_system
    from etude.steps.asked.converting import check_place

    source, edits, times_on = JobSource.of(asked), tuple(edits_of(list(asked.edits))), times_system(asked)
    machine = open_system(asked.system) if asked.system else times_on
    simulate = asked.simulate
    if asked.system and not simulate and not any(one.reads_system for one in edits):
        raise UsageError(
            f"{spelled(asked, 'system')} is read only by edits that compare times on a system, and none of these does",
            hint=f"{spelled(asked, 'simulate')} simulates the job there, before and after; --times-on gives times to "
            "compute without any",
        )
    files = JobFiles.of(asked)
    if files.out is not None:
        check_place(files.out, files.force, source=source.path)
    return EditInputs(source, edits, machine, times_on, simulate, files)


def run(given: EditInputs) -> EditResult:
    from etude.make.transform.edits import apply_edits

    job = with_times(given.source.open(), given.times_on)
    machine = None if given.machine is None else given.machine.for_ranks(job.world_size)
    found = apply_edits(job, given.edits, system=machine, times=run_times(machine))
    found = replace(found, job=with_times(found.job, given.times_on))  # of what is another work now
    times = _times(job, found.job, given.machine) if given.simulate and given.machine is not None else {}
    more = write_job(found.job, given.files) | times
    for note in found.notes:
        say(f"note: {note}")
    return EditResult(found, more, given.files.out)


def _times(job: "Job", edited: "Job", system: "System") -> dict[str, Any]:
    from etude.run.simulate import simulate

    jobs = {"before_ns": job, "after_ns": edited}
    return {name: simulate(one, system.for_ranks(one.world_size)).makespan_ns for name, one in jobs.items()}


def record(result: EditResult) -> dict[str, Any]:
    found = result.edited
    return {"edits": [step.record() for step in found.steps], "notes": list(found.notes)} | result.more


def answer(result: EditResult) -> dict[str, Any]:
    """The record, and the name of the copy that was written."""
    return record(result) | ({} if result.out is None else {"written": result.out.name})


def reads(result: EditResult) -> Iterator[list[dict[str, Any]]]:
    from etude.base.units import format_bytes, format_time

    yield [
        {
            "edit": str(step.edit),
            "nodes selected": f"{step.nodes:,}",
            "bytes communicated before": format_bytes(step.bytes_before),
            "after": format_bytes(step.bytes_after),
        }
        for step in result.edited.steps
    ]
    if "before_ns" in result.more:
        before, after = (format_time(result.more[name]) for name in ("before_ns", "after_ns"))
        say(f"simulated: {before} before, {after} after")
