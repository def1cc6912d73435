from typing import Annotated

import typer

from etude.cli.app import ANALYSE, app
from etude.cli.inputs import GroupFile, JobPath, Workers, open_job
from etude.cli.output import AsCsv, AsJson, AsMarkdown, emit, say
from etude.cli.timed import OnSystem, TimesFile, open_maybe_timed, open_timed, show


@app.command(rich_help_panel=ANALYSE)
def stragglers(
    path: JobPath,
    least: Annotated[float, typer.Option("--least", min=0, help="Slow-down from which one is named.")] = 0.06,
    ranks_per_node: Annotated[int, typer.Option("--ranks-per-node", min=1, help="Where nodes begin.")] = 8,
    clocks: Annotated[bool, typer.Option("--clocks", help="How the ranks' clocks differ, instead.")] = False,
    system: OnSystem = "",
    timing: TimesFile = None,
    groups: GroupFile = None,
    workers: Workers = 1,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """Who holds the others up: slow ranks, slow links, late hosts, missing participants; since when, how sure

    etude stragglers run/
    etude stragglers run/ --least 0.1 --json
    etude stragglers nccl_dumps/
    """
    from etude.analyse.clocks import alignment
    from etude.analyse.stragglers import missing_only
    from etude.analyse.stragglers import stragglers as analyse
    from etude.errors import DeadlockError

    if clocks:
        show(alignment(*open_timed(path, groups, workers, system, timing)), json=json, csv=csv, md=md)
        return
    try:
        job, times = open_maybe_timed(path, groups, workers, system, timing)
    except DeadlockError as problem:
        say(f"note: simulated, it stands still: {problem.problem}")
        job, times = open_job(path, groups, workers), None
    if times is None:
        say("note: without times no more than missing participants can be told; --system dgx-h100 simulates")
    found = analyse(job, times, least=least, ranks_per_node=ranks_per_node) if times else missing_only(job)
    if json:
        emit({"findings": found.to_pylist()}, json=True)
        return
    if csv or md or len(found):
        emit(found, csv=csv, md=md)
    say(f"{len(found)} findings" if len(found) else "nobody stands out")
