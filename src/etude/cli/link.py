from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.cli.app import CONVERT, app
from etude.cli.inputs import MaxBytes
from etude.cli.output import AsJson, emit, progress, say
from etude.cli.runs import tell_absent
from etude.errors import UsageError

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
    from etude.units import parse_bytes

    if out == Path():
        raise UsageError("no output file is given", hint="-o FILE.et")
    limit = parse_bytes(max_bytes) if max_bytes else None
    if second is None and not as_official and not first.is_file():
        _run(first, out, {"max_bytes": limit, "workers": workers, "any_window": any_window}, force, json)
        return
    if as_official:
        report = _official(first, second, out, limit, force)
    else:
        host, device = (first, second) if second is not None else (None, first)
        report = _causal(host, device, out, limit, force)
    emit(report, json=json)
    say(f"wrote {out}")


def _causal(host: Path | None, device: Path, out: Path, limit: int | None, force: bool) -> dict[str, Any]:
    from etude.files import writing
    from etude.ingest import causal, reading

    with writing(out, force=force) as path, progress(f"linking {device}"):
        device_trace = reading.load_device(device, limit)
        linked = causal.convert(device_trace, reading.load_host(host, limit) if host else None)
        _write(causal.to_job(reading.stem(out), [linked]), path)
    return linked.report


def _run(path: Path, out: Path, options: dict[str, Any], force: bool, json: bool) -> None:
    import os

    from etude.files import writing
    from etude.ingest import card, causal, runs
    from etude.store import cards, chakra

    name, ranks = runs.find_run(path)
    with writing(out, force=force) as folder:
        with progress(f"linking {path}", len(ranks)) as advance:
            options["workers"] = options["workers"] or os.cpu_count() or 1
            done = runs.link_run(ranks, advance=advance, **options)
        job = causal.to_job(name, done)
        folder.mkdir()
        chakra.write_job(job, folder)
        cards.write(cards.find(path) or card.card_of_run(job, ranks), folder / cards.NAME)
    report = runs.total_report(name, job, done)
    if json:
        emit(report, json=True)
    else:
        emit([{key: row[key] for key in row if key != "unmatched"} for row in report["ranks"]])
        for entry in report["unmatched"]:
            say(f"not linked: {entry['count']:,} x {entry['reason']}")
    tell_absent(job)
    for note in job.notes:
        say(f"note: rank {note.rank}: {note.what}")
    say(f"wrote {len(done)} ranks to {out}")


def _write(job: "Job", path: Path) -> None:
    from etude.ingest import reading
    from etude.store import chakra

    found, _, _ = chakra.for_rank(job, int(job.ranks[0]), chakra.world_to_say(job, has_group_file=False))
    with open(path, "wb") as file:
        for piece in reading.packed(found, path):
            file.write(piece)


def _official(host: Path, device: Path | None, out: Path, limit: int | None, force: bool) -> dict[str, Any]:
    from etude.files import writing
    from etude.ingest import official, reading

    with writing(out, force=force) as path, progress(f"linking {host}"):
        device_trace = reading.load_device(device, limit) if device else None
        decoded, report = official.convert(reading.load_host(host, limit), device_trace)
        with open(path, "wb") as file:
            for piece in reading.packed(decoded, path):
                file.write(piece)
    return report
