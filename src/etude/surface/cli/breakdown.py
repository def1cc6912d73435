from typing import Annotated

import typer

from etude.surface.cli.app import ANALYSE, app
from etude.surface.cli.inputs import GroupFile, JobPath, OnRay, Workers
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown, say
from etude.surface.cli.runs import CountedAs, OnSystem, TimesFile, open_run, show


@app.command(rich_help_panel=ANALYSE)
def breakdown(
    path: JobPath,
    overlap: Annotated[
        list[str] | None,
        typer.Option(
            "--overlap",
            help="Show the overlap of two groups instead; give the option twice. compute, communication, memory, "
            "all_reduce, ..., "
            "`name:REGEX`, `module:REGEX`, `phase:REGEX`, `stream:7`, or several with `|` between them.",
        ),
    ] = None,
    types: Annotated[
        bool, typer.Option("--types", help="Show the time in which exactly these classes run, instead.")
    ] = False,
    steps: Annotated[bool, typer.Option("--steps", help="Every step of every rank instead.")] = False,
    variation: Annotated[bool, typer.Option("--variation", help="How much each rank's steps vary instead.")] = False,
    counted: CountedAs = "etude",
    system: OnSystem = "",
    timing: TimesFile = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    ray: OnRay = "",
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """Where each device's time goes: compute, exposed communication, exposed memory, idle

    etude breakdown run/
    etude breakdown trace.json.gz --json
    etude breakdown run/ --overlap compute --overlap all_to_all
    etude breakdown run/ --steps
    etude breakdown run/ --ray auto            read the ranks on a Ray cluster
    etude breakdown trace.json.gz --as hta     count as HTA does
    """
    from etude.analyse import breakdown as analyse
    from etude.analyse.counting import counting_of
    from etude.base.errors import UsageError

    if overlap is not None and len(overlap) != 2:
        raise UsageError(f"an overlap needs two groups, not {len(overlap)}", hint="--overlap compute --overlap memory")
    if steps + variation + types + (overlap is not None) > 1:
        raise UsageError("only one of --steps, --variation, --types and --overlap can be given")
    counting = counting_of(counted)
    run = open_run(path, groups, workers, system, timing, ray=ray)
    if steps or variation:
        from etude.analyse import steps as by_step

        found = by_step.steps(run) if steps else by_step.step_times(run)
        if not len(found):
            say("note: no steps were recorded")
    elif overlap:
        found = analyse.overlap(run, overlap[0], overlap[1], counting)
    else:
        found = (analyse.kernel_types if types else analyse.breakdown)(run, counting)
    show(found, json=json, csv=csv, md=md)
