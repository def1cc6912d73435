from typing import Annotated

import typer

from etude.surface.cli.app import ANALYSE, app
from etude.surface.cli.inputs import GroupFile, JobPath, Workers
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown
from etude.surface.cli.runs import CountedAs, OnSystem, TimesFile, open_run, show


@app.command(rich_help_panel=ANALYSE)
def kernels(
    path: JobPath,
    operators: Annotated[bool, typer.Option("--operators", help="Show operators of the hosts instead.")] = False,
    graphs: Annotated[
        bool, typer.Option("--graphs", help="Show replays of CUDA graphs, each with its launch.")
    ] = False,
    patterns: Annotated[bool, typer.Option("--patterns", help="Show repeated sequences of kernels instead.")] = False,
    counters: Annotated[
        bool,
        typer.Option(
            "--counters",
            help="Show hardware counters that CUPTI recorded, summed by kernel; with --operators by operator.",
        ),
    ] = False,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            help="name, kind, module, phase, shapes, types, stack or `stack:3`, step, stream, rank; separated by "
            "commas. With --counters: kernel, operator, module, phase, step, rank.",
        ),
    ] = "",
    top: Annotated[int, typer.Option("--top", min=0, help="Number of rows to show; 0: all.")] = 0,
    counted: CountedAs = "etude",
    system: OnSystem = "",
    timing: TimesFile = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """Kernels by time, or operators by their own time and that of their kernels

    etude kernels run/ --top 20
    etude kernels run/ --by kind,rank
    etude kernels trace.json.gz --operators --by name,shapes
    etude kernels trace.json.gz --by stack:2
    etude kernels trace.json.gz --graphs
    etude kernels trace.json.gz --patterns --top 10
    etude kernels counted.json.gz --counters --operators
    """
    from etude.analyse import operators as analyse
    from etude.analyse.counting import counting_of
    from etude.base.errors import UsageError

    counting = counting_of(counted)
    keys = [name.strip() for name in by.split(",") if name.strip()]
    run = open_run(path, groups, workers, system, timing)
    if graphs + (operators or counters) + patterns > 1:
        raise UsageError("only one of --operators, --graphs, --patterns and --counters can be given")
    if counters:
        from etude.analyse.counters import counters as counted_by

        found = counted_by(run.job, keys or ["operator" if operators else "kernel"])
    elif patterns:
        from etude.analyse.patterns import patterns as repeated

        found = repeated(run, top=top or 50)
    elif graphs:
        from etude.analyse.graphs import graph_replays

        found = graph_replays(run)
    elif operators:
        found = analyse.operators(run, keys or ["name"])
    else:
        found = analyse.kernels(run, keys or ["name", "kind"], counting)
    show(found.slice(0, top) if top else found, json=json, csv=csv, md=md)
