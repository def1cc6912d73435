from typing import Annotated

import typer

from etude.cli.app import ANALYSE, app
from etude.cli.inputs import GroupFile, JobPath, Workers
from etude.cli.output import AsCsv, AsJson, AsMarkdown
from etude.cli.timed import OnSystem, TimesFile, open_timed, show


@app.command(rich_help_panel=ANALYSE)
def breakdown(
    path: JobPath,
    overlap: Annotated[
        list[str] | None,
        typer.Option(
            "--overlap",
            help="Overlap of two groups instead; give it twice. compute, communication, memory, all_reduce, ..., "
            "`name:REGEX`, `module:REGEX`, `phase:REGEX`, `stream:7`, or several with `|` between them.",
        ),
    ] = None,
    system: OnSystem = "",
    timing: TimesFile = None,
    groups: GroupFile = None,
    workers: Workers = 1,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """Where each device's time goes: compute, exposed communication, exposed memory, idle

    etude breakdown run/
    etude breakdown trace.json.gz --json
    etude breakdown run/ --overlap compute --overlap all_to_all
    """
    from etude.analyse import breakdown as analyse
    from etude.errors import UsageError

    if overlap is not None and len(overlap) != 2:
        raise UsageError(
            f"an overlap is of two groups, not of {len(overlap)}", hint="--overlap compute --overlap memory"
        )
    job, times = open_timed(path, groups, workers, system, timing)
    found = analyse.overlap(job, times, *overlap) if overlap else analyse.breakdown(job, times)
    show(found, json=json, csv=csv, md=md)
