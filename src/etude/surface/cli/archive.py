from pathlib import Path
from typing import Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.surface.cli.app import LOOK, app
from etude.surface.cli.groups import Group
from etude.surface.cli.inputs import Workers
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown, emit, progress, say
from etude.surface.cli.runs import OnSystem, RanOn, TimesFile, open_run

archive = typer.Typer(
    cls=Group,
    help="Many runs in one place: add runs, list them, query them with SQL, merge their files",
    no_args_is_help=True,
)
app.add_typer(archive, name="archive", rich_help_panel=LOOK)

Into = Annotated[
    Path,
    typer.Option(
        "--into", "--in", envvar="ETUDE_ARCHIVE", help="Folder of the archive; it is created if it does not exist."
    ),
]
In = Annotated[Path, typer.Option("--in", "--into", envvar="ETUDE_ARCHIVE", help="Folder of the archive.")]
LAKE = Path("lake")


@archive.command()
def add(
    paths: Annotated[list[Path], typer.Argument(help="Runs: anything that `etude report` reads.", show_default=False)],
    into: Into = LAKE,
    ran_on: RanOn = "",
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace the rows of a run that is already there.")
    ] = False,
    system: OnSystem = "",
    timing: TimesFile = None,
    workers: Workers = 0,
    json: AsJson = False,
) -> None:
    """Add the metrics, steps, collectives, findings and card of runs to an archive

    etude archive add run/ --into lake/
    etude archive add runs/*/ --into lake/

    The same run is recognised in any format and added once. Several processes may add runs at the same time.
    """
    from etude import __version__
    from etude.tell.archive import TABLES, Lake, entry_of, fingerprint
    from etude.tell.report import device_of

    if timing is not None and len(paths) > 1:
        raise UsageError(f"one file of times for {len(paths)} runs", hint="--timing needs exactly one run")
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
        say(f"{path}: {'added' if new else 'already there'}, run {key}")
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
    from etude.tell.archive import Lake

    emit(Lake(into).query(sql), json=json, csv=csv, md=md)


@archive.command("list")
def list_runs(
    into: In = LAKE,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """The runs of an archive, by the time of their start"""
    from etude.tell.archive import Lake

    wanted = "run, name, origin, start_ns, span_ns, ranks, steps, system, model, path"
    emit(Lake(into).query(f"select {wanted} from runs order by start_ns, run"), json=json, csv=csv, md=md)


@archive.command()
def compact(into: In = LAKE, json: AsJson = False) -> None:
    """Merge the files of many runs into a few, so that queries are fast

    Nothing is lost if it is interrupted. Other processes may add runs and query them meanwhile.
    """
    from dataclasses import asdict

    from etude.tell.archive import TABLES, Lake

    with progress(f"merging the files of {into}", len(TABLES)) as advance:
        done = Lake(into).compact(advance)
    if json:
        emit(asdict(done), json=True)
    say(f"{into}: {done.runs:,} runs merged, {done.files_before:,} files before, {done.files_after:,} now")
