from pathlib import Path
from typing import Annotated

import typer

from etude.cli.app import MAKE, app
from etude.cli.inputs import GroupFile, JobPath, MaxBytes, Workers, open_job
from etude.cli.job_out import Files, Force, Format, Out, To, write_job
from etude.cli.output import AsJson, emit, say
from etude.cli.times_on import TimesOn, with_times


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
            help="Round times, bytes and FLOPs to so many numbers to an octave (64: within 0.6%, 8: 5%, 1: 42%), and "
            "leave out start times. 0: exact.",
        ),
    ] = 0,
    work: Annotated[
        bool, typer.Option("--work", help="Fill in FLOPs and bytes that follow from names and shapes, before they go.")
    ] = False,
    times_on: TimesOn = "",
    name: Annotated[str, typer.Option(help="Name of the copy.")] = "anonymous",
    key: Annotated[
        Path | None, typer.Option(help="Write what the tokens stand for, as JSON: keep it to yourself.")
    ] = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    max_bytes: MaxBytes = None,
    force: Force = False,
    json: AsJson = False,
) -> None:
    """A copy of a job that simulates alike and carries no names, shapes or code

    Exact sizes and times stay, and who knows a model can tell it by them: `--round` makes them coarse, `etude learn`
    makes another job of the same behaviour.

    etude anonymise run/ -o shared/ --to et

    etude anonymise run/ -o shared/ --round 8
    """
    from etude.files import writing
    from etude.transform import AnonymiseOptions, anonymise, kept

    if out is not None:
        from etude.api.converting import check_place

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
        say(f"wrote {key}: what the tokens stand for")
    emit(hidden.rows() + kept(options), json=json)
