from typing import Annotated

import typer

from etude.cli.app import ANALYSE, app
from etude.cli.inputs import GroupFile, JobPath, Workers
from etude.cli.output import AsCsv, AsJson, AsMarkdown, emit, say
from etude.cli.timed import OnSystem, TimesFile, open_timed, show


@app.command(name="critical-path", rich_help_panel=ANALYSE)
def critical_path(
    path: JobPath,
    each: Annotated[bool, typer.Option("--each", help="Every piece of the path, in order.")] = False,
    system: OnSystem = "",
    timing: TimesFile = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """What the end of the run waited for, over hosts, kernels, ranks and collectives; as long as the run

    etude critical-path run/
    etude critical-path trace.json.gz --json
    """
    from etude.analyse import critical_path as analyse
    from etude.units import format_time

    job, times = open_timed(path, groups, workers, system, timing)
    found = analyse.critical_path(job, times)
    length, kinds = analyse.length_ns(found), analyse.by_kind(found)
    if json:
        emit({"length_ns": length, "by_kind": kinds, "path": found}, json=True)
        return
    show(found if each else analyse.by_name(found), csv=csv, md=md)
    parts = ", ".join(f"{kind} {100 * ns / max(length, 1):.1f}%" for kind, ns in kinds.items())
    say(f"{format_time(length)} over {len(found):,} pieces: {parts}")
