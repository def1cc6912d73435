from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.base.units import counted
from etude.surface.cli.app import CONVERT, app
from etude.surface.cli.inputs import MaxBytes
from etude.surface.cli.output import AsJson, emit, progress, say
from etude.surface.cli.runs import tell_absent

if TYPE_CHECKING:
    from etude.model.job import Job


@app.command(rich_help_panel=CONVERT)
def link(
    first: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="The trace that the profiler (Kineto) wrote; if a second file is given, the host trace of "
            "ExecutionTraceObserver. A folder (or `folder/name`, or a list `a.json,b.json`): all ranks of a run.",
        ),
    ],
    second: Annotated[
        Path | None, typer.Argument(metavar="[DEVICE]", help="The profiler's trace of the same run.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="The `.et` file to write (`.et.gz`: compressed), or the folder for a run of several ranks.",
        ),
    ] = Path(),
    as_official: Annotated[
        bool, typer.Option("--as-official", help="Write what Chakra's own linker and converter produce, byte for byte.")
    ] = False,
    workers: Annotated[
        int, typer.Option("--workers", "-j", min=0, help="Number of ranks in parallel; 0: one per core.")
    ] = 0,
    any_window: Annotated[
        bool, typer.Option("--any-window", help="Accept ranks that recorded different parts of the run.")
    ] = False,
    max_bytes: MaxBytes = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing output.")] = False,
    json: AsJson = False,
) -> None:
    """A Chakra trace from what PyTorch recorded: operators, launches, kernels and their dependencies

    etude link host.json.gz kineto.json.gz -o rank0.et

    etude link kineto.json.gz -o rank0.et

    etude link run/ -o job/
    """
    from etude.base.units import parse_bytes

    if out == Path():
        raise UsageError("no output file is given", hint="-o FILE.et")
    limit = parse_bytes(max_bytes) if max_bytes else None
    if as_official:
        emit(_official(first, second, out, limit, force), json=json)
        say(f"wrote {out}")
        return
    _causal(first, second, out, {"max_bytes": limit, "workers": workers, "any_window": any_window}, force, json)


def _causal(first: Path, second: Path | None, out: Path, options: dict[str, Any], force: bool, json: bool) -> None:
    """Links one rank, or the folder of a run, and writes the result."""
    from etude.base.files import writing
    from etude.capture.ingest import reading, runs
    from etude.store import cards, chakra
    from etude.surface.api.linking import is_run, linked

    run = is_run(first, second)
    total = len(runs.find_run(first)[1]) if run else None
    with writing(out, force=force) as path:
        with progress(f"linking {second or first}", total) as advance:
            found = linked(first, second, name="" if run else reading.stem(out), advance=advance, **options)
        if run:
            path.mkdir()
            chakra.write_job(found.job, path)
            if found.card is not None:
                cards.write(found.card, path / cards.NAME)
        else:
            _write(found.job, path)
    if not run:
        emit(found.report, json=json)
        say(f"wrote {out}")
        return
    _tell_run(found.report, found.job, json=json)
    say(f"wrote {counted(len(found.report['ranks']), 'rank')} to {out}")


def _tell_run(report: dict[str, Any], job: "Job", *, json: bool) -> None:
    if json:
        emit(report, json=True)
    else:
        emit([{key: row[key] for key in row if key != "unmatched"} for row in report["ranks"]])
        for entry in report["unmatched"]:
            say(f"not linked: {entry['count']:,} x {entry['reason']}")
    tell_absent(job)
    for note in job.notes:
        say(f"note: rank {note.rank}: {note.what}")


def _write(job: "Job", path: Path) -> None:
    from etude.capture.ingest import reading
    from etude.store import chakra

    found, _, _ = chakra.for_rank(job, int(job.ranks[0]), chakra.world_to_say(job, has_group_file=False))
    with open(path, "wb") as file:
        for piece in reading.packed(found, path):
            file.write(piece)


def _official(host: Path, device: Path | None, out: Path, limit: int | None, force: bool) -> dict[str, Any]:
    from etude.base.files import writing
    from etude.capture.ingest import official, reading

    with writing(out, force=force) as path, progress(f"linking {host}"):
        device_trace = reading.load_device(device, limit) if device else None
        decoded, report = official.convert(reading.load_host(host, limit), device_trace)
        with open(path, "wb") as file:
            for piece in reading.packed(decoded, path):
                file.write(piece)
    return report
