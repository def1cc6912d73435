from typing import Annotated

import typer

from etude.cli.app import LOOK, app
from etude.cli.inputs import JobPath, open_job
from etude.cli.output import AsCsv, AsJson, AsMarkdown, emit


@app.command(rich_help_panel=LOOK)
def likeness(
    a: JobPath,
    b: JobPath,
    system: Annotated[str, typer.Option("--system", "-s", help="Simulate both on it: a name, or a YAML file.")] = "",
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """How much one job behaves like another: distances of distributions, sums, simulated times

    etude likeness run/ job/ --system dgx-h100
    """
    from etude.cost import catalogue
    from etude.sweep.likeness import likeness as compare

    found = compare(open_job(a), open_job(b), catalogue.system(system) if system else None)
    emit(found, json=json, csv=csv, md=md)
