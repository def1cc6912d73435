from typing import Annotated

import typer

from etude.surface.cli.app import ANALYSE, app
from etude.surface.cli.inputs import GroupFile, JobPath, Workers
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown
from etude.surface.cli.runs import OnSystem, TimesFile, open_run, show


@app.command(rich_help_panel=ANALYSE)
def collectives(
    path: JobPath,
    each: Annotated[bool, typer.Option("--each", help="Show one row per call instead of one per kind.")] = False,
    by_group: Annotated[bool, typer.Option("--by-group", help="One row per group.")] = False,
    system: OnSystem = "",
    timing: TimesFile = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """Collectives matched across ranks: transfer time, waiting time, algorithm and bus bandwidth

    etude collectives run/
    etude collectives run/ --each --csv > calls.csv
    """
    from etude.analyse.collectives import collectives as table
    from etude.analyse.collectives import summarised

    run = open_run(path, groups, workers, system, timing)
    found = table(run)
    show(found if each else summarised(found, by_group=by_group), json=json, csv=csv, md=md)
