from typing import Annotated

import typer

from etude.cli.app import ANALYSE, app
from etude.cli.inputs import GroupFile, JobPath, Workers
from etude.cli.output import AsCsv, AsJson, AsMarkdown
from etude.cli.timed import OnSystem, TimesFile, open_timed, show


@app.command(rich_help_panel=ANALYSE)
def idle(
    path: JobPath,
    launches: Annotated[bool, typer.Option("--launches", help="How long launches take and delay.")] = False,
    queues: Annotated[bool, typer.Option("--queues", help="How deep the streams' queues are.")] = False,
    each: Annotated[bool, typer.Option("--each", help="Every gap.")] = False,
    system: OnSystem = "",
    timing: TimesFile = None,
    groups: GroupFile = None,
    workers: Workers = 1,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """Why devices are idle: the host, synchronisation, launches, communication; launches and queues

    etude idle run/
    etude idle trace.json.gz --launches
    """
    from etude.analyse import idle as analyse
    from etude.analyse.launches import launches as launch_table
    from etude.analyse.launches import queue_depth
    from etude.errors import UsageError

    if launches + queues + each > 1:
        raise UsageError("only one of --launches, --queues and --each can be had at a time")
    job, times = open_timed(path, groups, workers, system, timing)
    table = launch_table if launches else queue_depth if queues else analyse.gaps if each else analyse.idle
    show(table(job, times), json=json, csv=csv, md=md)
