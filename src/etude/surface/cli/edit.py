from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.surface.cli.app import MAKE, app
from etude.surface.cli.edits_given import edits_of, run_times
from etude.surface.cli.inputs import GroupFile, JobPath, MaxBytes, Workers, open_job
from etude.surface.cli.job_out import Dialect, Files, Force, Format, In, NoWrite, Out, To, write_job
from etude.surface.cli.output import AsJson, emit, say
from etude.surface.cli.times_on import TimesOn, with_times

if TYPE_CHECKING:
    from etude.make.transform.edits import Edited

Edits = Annotated[
    list[str],
    typer.Argument(help="`VERB key=value ...`, or `@FILE`; in order.", show_default=False, metavar="EDIT..."),
]


@app.command(rich_help_panel=MAKE)
def edit(
    path: JobPath,
    edits: Edits,
    out: Out = None,
    to: Format = To.PARQUET,
    dialect: In = Dialect.PLAIN,
    system: Annotated[
        str,
        typer.Option(
            "--system",
            "-s",
            help="Simulate there the times that `when=pays` and `dtype` compare: a name, or a YAML file.",
        ),
    ] = "",
    times_on: TimesOn = "",
    groups: GroupFile = None,
    workers: Workers = 0,
    max_bytes: MaxBytes = None,
    no_write: NoWrite = False,
    force: Force = False,
    json: AsJson = False,
) -> None:
    """A what-if copy of a job: faster operators, compressed or merged communication, another order, more ranks

    etude edit job/ -o zipped/ "compress group=dp,ep ratio=1.35 encode=400GB/s decode=600GB/s when=pays"

    etude edit run/ -o faster/ "speed op=aten::mm by=1.3" "drop op=aten::copy_"

    etude edit run/ -o bigger/ "scale axis=dp to=64"

    docs/edits.md lists every edit, its parameters, and what it cannot show.
    """
    from etude.machine import open_system
    from etude.make.transform.edits import apply_edits

    asked = edits_of(edits)
    if out is not None:
        from etude.surface.api.converting import check_place

        check_place(out, force, source=path)
    job = with_times(open_job(path, groups, workers, max_bytes), times_on)
    asked_of = system or times_on
    machine = open_system(asked_of).for_ranks(job.world_size) if asked_of else None
    found = apply_edits(job, asked, system=machine, times=run_times(machine))
    found = replace(found, job=with_times(found.job, times_on))  # of what is another work now
    files = Files(out=out, to=to, dialect=dialect, force=force, no_write=no_write)
    problems = write_job(found.job, files)
    emit(record(found) | problems if json else shown(found), json=json)
    for note in found.notes:
        say(f"note: {note}")


def record(found: "Edited") -> dict[str, Any]:
    """What the edits did, as `--json` has it."""
    return {"edits": [step.record() for step in found.steps], "notes": list(found.notes)}


def shown(found: "Edited") -> list[dict[str, Any]]:
    from etude.base.units import format_bytes

    return [
        {
            "edit": str(step.edit),
            "nodes selected": f"{step.nodes:,}",
            "bytes communicated before": format_bytes(step.bytes_before),
            "after": format_bytes(step.bytes_after),
        }
        for step in found.steps
    ]
