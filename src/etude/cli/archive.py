from pathlib import Path
from typing import Annotated, Any

import typer

from etude.cli.app import LOOK, app
from etude.cli.groups import Group
from etude.cli.inputs import Workers
from etude.cli.output import AsCsv, AsJson, AsMarkdown, emit, progress, say
from etude.cli.runs import OnSystem, RanOn, TimesFile, open_run
from etude.errors import UsageError

archive = typer.Typer(
    cls=Group,
    help="Many runs in one place: add a run, list them, ask them all by SQL, merge their files",
    no_args_is_help=True,
)
app.add_typer(archive, name="archive", rich_help_panel=LOOK)

Into = Annotated[
    Path, typer.Option("--into", "--in", envvar="ETUDE_ARCHIVE", help="Folder of the archive; a new one is made.")
]
In = Annotated[Path, typer.Option("--in", "--into", envvar="ETUDE_ARCHIVE", help="Folder of the archive.")]
LAKE = Path("lake")


@archive.command()
def add(
    paths: Annotated[list[Path], typer.Argument(help="Runs: whatever `etude report` takes.", show_default=False)],
    into: Into = LAKE,
    ran_on: RanOn = "",
    force: Annotated[bool, typer.Option("--force", "-f", help="Write the rows of a run that is there again.")] = False,
    system: OnSystem = "",
    timing: TimesFile = None,
    workers: Workers = 0,
    json: AsJson = False,
) -> None:
    """Put the figures, steps, collectives, findings and card of runs into an archive

    etude archive add run/ --into lake/
    etude archive add runs/*/ --into lake/

    The same run is recognised, whatever format it is in, and added once. Several may add at a time.
    """
    from etude import __version__
    from etude.archive import TABLES, Lake, entry_of, fingerprint
    from etude.report import device_of

    if timing is not None and len(paths) > 1:
        raise UsageError(f"one file of times for {len(paths)} runs", hint="--timing goes with one run")
    lake = Lake(into)
    rows: list[dict[str, Any]] = []
    for path in paths:
        run = open_run(path, None, workers, system, timing)
        key = fingerprint(run)
        new = force or key not in lake
        if new:
            with progress(f"analysing {path}", len(TABLES)) as advance:
                device = device_of(run.job, ran_on, system)
                made = entry_of(run, path=str(path), version=__version__, device=device, advance=advance)
            new = lake.add(made, force=force)
        rows.append({"run": key, "path": str(path), "added": new})
        say(f"{path}: {'added' if new else 'is there already'}, run {key}")
    if json:
        emit(rows, json=True)


@archive.command()
def query(
    sql: Annotated[
        str, typer.Argument(help="Tables: runs, metrics, steps, collectives, findings, cards.", show_default=False)
    ],
    into: In = LAKE,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """SQL over all runs: runs, metrics, steps, collectives, findings, cards

    etude archive query "select name, value from metrics join runs using (run) where metric = 'step time'"
    """
    from etude.archive import Lake

    emit(Lake(into).query(sql), json=json, csv=csv, md=md)


@archive.command("list")
def list_runs(
    into: In = LAKE,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """The runs of an archive, by the time of their start"""
    from etude.archive import Lake

    wanted = "run, name, origin, start_ns, span_ns, ranks, steps, system, model, path"
    emit(Lake(into).query(f"select {wanted} from runs order by start_ns, run"), json=json, csv=csv, md=md)


@archive.command()
def compact(into: In = LAKE, json: AsJson = False) -> None:
    """Merge the files of many runs into a few, so that queries are fast

    Nothing is lost if it is stopped half-way. Others may add runs and ask meanwhile.
    """
    from dataclasses import asdict

    from etude.archive import TABLES, Lake

    with progress(f"merging the files of {into}", len(TABLES)) as advance:
        done = Lake(into).compact(advance)
    if json:
        emit(asdict(done), json=True)
    say(f"{into}: {done.runs:,} runs merged, {done.files_before:,} files before, {done.files_after:,} now")
