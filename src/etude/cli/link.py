from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.cli.app import CONVERT, app
from etude.cli.inputs import MaxBytes
from etude.cli.output import AsJson, emit, progress, say
from etude.errors import UsageError

if TYPE_CHECKING:
    from etude.model.job import Job


@app.command(rich_help_panel=CONVERT)
def link(
    first: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="What the profiler (Kineto) wrote; before a second file, what ExecutionTraceObserver wrote.",
        ),
    ],
    second: Annotated[
        Path | None, typer.Argument(metavar="[DEVICE]", help="What the profiler wrote of the same run.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The `.et` file to write; `.et.gz` packs it.")] = Path(),
    as_official: Annotated[
        bool, typer.Option("--as-official", help="What Chakra's own linker and converter make of it, byte for byte.")
    ] = False,
    max_bytes: MaxBytes = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace what is there.")] = False,
    json: AsJson = False,
) -> None:
    """A Chakra trace from what PyTorch recorded: operators, launches and kernels, and what each waits for

    etude link host.json.gz kineto.json.gz -o rank0.et

    etude link kineto.json.gz -o rank0.et
    """
    from etude.units import parse_bytes

    if out == Path():
        raise UsageError("no file to write is given", hint="-o FILE.et")
    limit = parse_bytes(max_bytes) if max_bytes else None
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


def _write(job: "Job", path: Path) -> None:
    from etude.ingest import reading
    from etude.store import chakra

    found, _, _ = chakra.for_rank(job, int(job.ranks[0]))
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
