from pathlib import Path
from typing import Annotated

import typer

from etude.surface.cli.app import MAKE, app
from etude.surface.cli.inputs import GroupFile, MaxBytes, Workers, open_job
from etude.surface.cli.output import AsJson, emit, say
from etude.surface.cli.times_on import TimesOn, with_times


@app.command(rich_help_panel=MAKE)
def learn(
    jobs: Annotated[list[Path], typer.Argument(help="Jobs to learn from, with all their ranks.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The model to write: `.json`.")] = Path("model.json"),
    at_least: Annotated[
        int,
        typer.Option(
            min=1,
            help="Least number of nodes behind every size and time in the model; rarer values are merged, then "
            "rounded.",
        ),
    ] = 1,
    times_on: TimesOn = "",
    groups: GroupFile = None,
    workers: Workers = 0,
    max_bytes: MaxBytes = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing output.")] = False,
    json: AsJson = False,
) -> None:
    """A small model of jobs, without names, shapes or exact sizes, for generating others

    etude learn run/ -o model.json

    etude generate learned model.json --ranks 512 -o job/

    etude similarity run/ job/ --system dgx-h100
    """
    from etude.base.files import writing
    from etude.make.synth import KEPT, about, hidden, write
    from etude.make.synth import learn as learn_from

    opened = [with_times(open_job(path, groups, workers, max_bytes), times_on) for path in jobs]
    learned = learn_from(opened, at_least)
    with writing(out, force=force) as path:
        write(learned, path)
    said, gone = about(learned) | {"bytes": out.stat().st_size}, hidden(opened)
    if json:
        emit(said | {"hidden": gone, "kept": list(KEPT)}, json=True)
    else:
        emit(said)
        print()
        emit([{"what": what, "became": "left out", "count": count} for what, count in gone.items()]
             + [{"what": what, "became": "kept", "count": None} for what in KEPT])  # fmt: skip
    say(f"wrote {out}")
    if not any("duration_ns" in c.sketches for c in learned.classes):
        say(
            "the model has no times, as the jobs had none: `--times-on SYSTEM` computes them from names and shapes "
            "before these are removed"
        )
