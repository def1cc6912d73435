from typing import Annotated

import typer

from etude.surface.cli.app import ANALYSE, app
from etude.surface.cli.inputs import GroupFile, JobPath, Workers, open_job
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown, emit, say
from etude.surface.cli.runs import OnSystem, TimesFile, find_run, open_run, show


@app.command(rich_help_panel=ANALYSE)
def stragglers(
    path: JobPath,
    least: Annotated[float, typer.Option("--least", min=0, help="Slowdown from which a rank is reported.")] = 0.04,
    ranks_per_node: Annotated[int, typer.Option("--ranks-per-node", min=1, help="Ranks per node.")] = 8,
    clocks: Annotated[bool, typer.Option("--clocks", help="Show how the ranks' clocks differ instead.")] = False,
    system: OnSystem = "",
    timing: TimesFile = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """Stragglers: slow ranks and links, late hosts, ranks that are missing or disagree; with confidence

    etude stragglers run/
    etude stragglers run/ --least 0.1 --json
    etude stragglers nccl_dumps/
    """
    from etude.analyse.clocks import alignment
    from etude.analyse.stragglers import missing_only
    from etude.analyse.stragglers import stragglers as analyse
    from etude.base.errors import DeadlockError

    if clocks:
        show(alignment(open_run(path, groups, workers, system, timing)), json=json, csv=csv, md=md)
        return
    try:
        job, run = find_run(path, groups, workers, system, timing)
    except DeadlockError as problem:
        say(f"note: its simulation does not complete: {problem.problem}")
        job, run = open_job(path, groups, workers), None
    if run is None:
        say("note: without times only missing participants can be found; --system dgx-h100 simulates")
        found = missing_only(job)
    else:
        found = analyse(run, least=least, ranks_per_node=ranks_per_node)
    if json:
        emit({"findings": found.to_pylist()}, json=True)
        return
    if csv or md or len(found):
        emit(found, csv=csv, md=md)
    say(f"{len(found)} findings" if len(found) else "no straggler found")
