from pathlib import Path
from typing import Annotated

import typer

from etude.cli.app import CONVERT, app
from etude.cli.inputs import MaxBytes
from etude.cli.output import AsJson, emit, progress, say
from etude.errors import UsageError


@app.command(rich_help_panel=CONVERT)
def link(
    host: Annotated[Path, typer.Argument(help="What ExecutionTraceObserver wrote: `.json`, `.json.gz`.")],
    device: Annotated[Path | None, typer.Argument(help="What the profiler (Kineto) wrote of the same run.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The `.et` file to write; `.et.gz` packs it.")] = Path(),
    as_official: Annotated[
        bool, typer.Option("--as-official", help="What Chakra's own linker and converter make of it, byte for byte.")
    ] = False,
    max_bytes: MaxBytes = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace what is there.")] = False,
    json: AsJson = False,
) -> None:
    """A Chakra trace from what PyTorch recorded: host and device tied together, with a report of what was"""
    from etude.units import parse_bytes

    if not as_official:
        raise UsageError("the causal graph is not built yet", hint="--as-official gives what Chakra's own tools give")
    if out == Path():
        raise UsageError("no file to write is given", hint="-o FILE.et")
    report = _official(host, device, out, parse_bytes(max_bytes) if max_bytes else None, force)
    emit(report, json=json)
    say(f"wrote {out}")


def _official(host: Path, device: Path | None, out: Path, limit: int | None, force: bool) -> dict[str, object]:
    from etude.files import writing
    from etude.ingest import official, reading

    with writing(out, force=force) as path, progress(f"linking {host}"):
        device_trace = reading.load_device(device, limit) if device else None
        decoded, report = official.convert(reading.load_host(host, limit), device_trace)
        with open(path, "wb") as file:
            for piece in reading.packed(decoded, path):
                file.write(piece)
    return report
