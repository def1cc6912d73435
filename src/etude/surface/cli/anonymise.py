from pathlib import Path
from typing import Annotated

import typer

from etude.surface.cli.app import MAKE, app
from etude.surface.cli.inputs import GroupFile, JobPath, MaxBytes, Workers, open_job
from etude.surface.cli.job_out import Files, Force, Format, Out, To, write_job
from etude.surface.cli.output import AsJson, emit, say
from etude.surface.cli.times_on import TimesOn, with_times


@app.command(rich_help_panel=MAKE)
def anonymise(
    path: JobPath,
    out: Out = None,
    to: Format = To.PARQUET,
    keep_shapes: Annotated[bool, typer.Option("--keep-shapes", help="Keep shapes, types and strides.")] = False,
    drop_times: Annotated[bool, typer.Option("--drop-times", help="Leave out recorded start times.")] = False,
    per_octave: Annotated[
        int,
        typer.Option(
            "--round",
            min=0,
            help="Round times, bytes and FLOPs to this many values per octave (64: within 0.6%, 8: 5%, 1: 42%), and "
            "leave out start times. 0: exact.",
        ),
    ] = 0,
    work: Annotated[
        bool,
        typer.Option(
            "--work", help="Fill in FLOPs and bytes that follow from names and shapes, before they are removed."
        ),
    ] = False,
    times_on: TimesOn = "",
    name: Annotated[str, typer.Option(help="Name of the copy.")] = "anonymous",
    key: Annotated[
        Path | None, typer.Option(help="Write the meaning of each token, as JSON; keep this file private.")
    ] = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    max_bytes: MaxBytes = None,
    force: Force = False,
    json: AsJson = False,
) -> None:
    """A copy of a job with the same simulated times, without names, shapes or code

    Exact sizes and times are kept, and can identify a known model: `--round` makes them coarse, `etude learn` produces
    another job with the same behaviour.

    etude anonymise run/ -o shared/ --to et

    etude anonymise run/ -o shared/ --round 8
    """
    from etude.base.files import writing
    from etude.make.transform import AnonymiseOptions, anonymise, kept

    if out is not None:
        from etude.surface.api.converting import check_place

        check_place(out, force, source=path)
    job = with_times(open_job(path, groups, workers, max_bytes), times_on)
    options = AnonymiseOptions(
        keep_shapes=keep_shapes, keep_times=not drop_times, per_octave=per_octave, work=work, name=name
    )
    copy, hidden = anonymise(job, options)
    write_job(copy, Files(out=out, to=to, force=force))
    if key is not None:
        import msgspec

        with writing(key, force=force) as file:
            file.write_bytes(msgspec.json.format(msgspec.json.encode(hidden.tokens)))
        say(f"wrote {key}: the meaning of each token")
    emit(hidden.rows() + kept(options), json=json)
