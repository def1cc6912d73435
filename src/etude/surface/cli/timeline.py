from pathlib import Path
from typing import Annotated

import typer

from etude.surface.cli.app import LOOK, app
from etude.surface.cli.inputs import GroupFile, JobPath, Workers
from etude.surface.cli.output import progress, say
from etude.surface.cli.ranks import Ranks, ranks_of
from etude.surface.cli.runs import OnSystem, TimesFile, open_run


@app.command(rich_help_panel=LOOK)
def timeline(
    path: JobPath,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The file to write: `run.pftrace` (Perfetto) or `run.json[.gz]` (Chrome)."),
    ],
    system: OnSystem = "",
    timing: TimesFile = None,
    ranks: Ranks = "",
    flows: Annotated[bool, typer.Option("--flows/--no-flows", help="Draw arrows between lanes and ranks.")] = True,
    critical: Annotated[
        bool, typer.Option("--critical-path/--no-critical-path", help="Draw the critical path on its own track.")
    ] = True,
    counters: Annotated[
        bool, typer.Option("--counters/--no-counters", help="Draw counters of what runs at a time.")
    ] = True,
    groups: GroupFile = None,
    workers: Workers = 0,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing output.")] = False,
) -> None:
    """All ranks on one clock, for ui.perfetto.dev: lanes, flows, counters, the critical path

    etude timeline run/ -o run.pftrace
    etude timeline run/ --system dgx-h100 --ranks 0-3 -o run.json.gz
    """
    from etude.surface.api.writing import timeline as write

    run = open_run(path, groups, workers, system, timing)
    with progress(f"writing {out}"):
        written = write(
            run, out, ranks=ranks_of(ranks, run.job), flows=flows, counters=counters, critical=critical, force=force
        )
    if not len(written):
        say("note: no node has a time, so the timeline is empty")
    elif written.untimed:
        say(f"note: {written.untimed:,} nodes have no time and are not shown")
    ranks_shown = len(written.ranks)
    counted = f"{len(written):,} slices of {ranks_shown:,} rank{'s' if ranks_shown != 1 else ''}"
    say(f"wrote {out}: {counted}; open it at ui.perfetto.dev or with any viewer")
