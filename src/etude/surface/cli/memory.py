from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from etude.surface.cli.app import ANALYSE, app
from etude.surface.cli.inputs import GroupFile, JobPath, Workers
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown, say
from etude.surface.cli.runs import CountedAs, OnSystem, TimesFile, open_run, show

if TYPE_CHECKING:
    import pyarrow as pa


@app.command(rich_help_panel=ANALYSE)
def memory(
    path: JobPath,
    copies: Annotated[bool, typer.Option("--copies", help="Show the bandwidth of copies, by direction.")] = False,
    each: Annotated[bool, typer.Option("--each", help="List the memory in use over time, event by event.")] = False,
    counted: CountedAs = "etude",
    system: OnSystem = "",
    timing: TimesFile = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """Memory in use over time and its peaks; bandwidth of copies

    etude memory trace.json.gz                 needs profile_memory=True
    etude memory trace.json.gz --copies
    """
    from etude.analyse.counting import counting_of
    from etude.base.errors import UsageError
    from etude.capture.opening import is_profile

    counting = counting_of(counted)
    if copies and each:
        raise UsageError("only one of --copies and --each can be given")
    if not copies and is_profile(path) and not system and timing is None:
        found = _allocated(path, each)
    else:
        from etude.analyse import memory as analyse

        run = open_run(path, groups, workers, system, timing)
        found = analyse.copies(run, counting) if copies else analyse.levels(run)
        if not copies and not len(found):
            say("note: no memory event is in this job; profile(profile_memory=True) records them, --copies needs none")
        if not copies and not each:
            found = analyse.level_peaks(found)
    show(found, json=json, csv=csv, md=md)


def _allocated(path: Path, each: bool) -> "pa.Table":
    from etude.analyse.memory import peaks
    from etude.base.errors import UsageError
    from etude.capture.ingest import allocations, reading

    found = allocations.allocations(reading.load_device(path))
    if not len(found):
        raise UsageError(
            "no allocation was recorded",
            where=str(path),
            hint="profile(profile_memory=True) records allocations; --copies needs none",
        )
    return found if each else peaks(found)
