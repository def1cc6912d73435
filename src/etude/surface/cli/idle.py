from typing import Annotated

import typer

from etude.surface.cli.app import ANALYSE, app
from etude.surface.cli.inputs import GroupFile, JobPath, Workers
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown
from etude.surface.cli.runs import CountedAs, OnSystem, TimesFile, open_run, show


@app.command(rich_help_panel=ANALYSE)
def idle(
    path: JobPath,
    launches: Annotated[bool, typer.Option("--launches", help="Show durations and delays of launches.")] = False,
    queues: Annotated[bool, typer.Option("--queues", help="Show the depth of the streams' queues.")] = False,
    streams: Annotated[bool, typer.Option("--streams", help="Show the gaps of each stream.")] = False,
    each: Annotated[bool, typer.Option("--each", help="List every gap.")] = False,
    calls: Annotated[
        str, typer.Option("--calls", help="With --launches or --queues, only calls whose names match this pattern.")
    ] = "",
    counted: CountedAs = "etude",
    system: OnSystem = "",
    timing: TimesFile = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """Why devices are idle: the host, synchronisation, launches, communication; launches and queues

    etude idle run/
    etude idle trace.json.gz --launches
    etude idle trace.json.gz --queues --calls '^cudaLaunchKernel'
    """
    from etude.analyse import idle as analyse
    from etude.analyse.counting import counting_of
    from etude.analyse.launches import launches as launch_table
    from etude.analyse.launches import queue_depth
    from etude.base.errors import UsageError

    if launches + queues + streams + each > 1:
        raise UsageError("only one of --launches, --queues, --streams and --each can be given")
    if calls and not launches and not queues:
        raise UsageError("--calls needs --launches or --queues", hint="--launches or --queues")
    counting = counting_of(counted)
    run = open_run(path, groups, workers, system, timing)
    if launches:
        found = launch_table(run, calls or counting.launches)
    elif queues:
        found = queue_depth(run, calls or counting.enqueues)
    elif streams:
        found = analyse.stream_gaps(run, counting)
    else:
        found = (analyse.gaps if each else analyse.idle)(run)
    show(found, json=json, csv=csv, md=md)
