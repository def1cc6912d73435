from pathlib import Path
from typing import Annotated

import typer

from etude.surface.cli.app import MAKE, app
from etude.surface.cli.job_out import Dialect, Files, Force, Format, In, NoWrite, Out, To, shown, write_job
from etude.surface.cli.output import AsJson, emit, say


@app.command("generate learned", rich_help_panel=MAKE)
def generate_learned(
    model: Annotated[Path, typer.Argument(help="The model that `etude learn` wrote.")],
    ranks: Annotated[
        int,
        typer.Option(min=0, help="Number of ranks, a multiple or a part of those learned from; 0: the same number."),
    ] = 0,
    out: Out = None,
    to: Format = To.PARQUET,
    dialect: In = Dialect.PLAIN,
    steps: Annotated[int, typer.Option(min=0, help="Number of steps; 0: as many as were learned from.")] = 0,
    depth: Annotated[float, typer.Option(help="Factor of the number of layers or micro-batches.")] = 1.0,
    compute: Annotated[float, typer.Option(help="Factor of compute.")] = 1.0,
    traffic: Annotated[float, typer.Option(help="Factor of the bytes that are sent.")] = 1.0,
    spread: Annotated[
        float, typer.Option(min=0.0, help="How much ranks and steps differ: 1 is as learned, 0 is not at all.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed; the same seed gives the same bytes.")] = 0,
    name: Annotated[str, typer.Option(help="Name of the job.")] = "learned",
    force: Force = False,
    no_write: NoWrite = False,
    json: AsJson = False,
) -> None:
    """A job of any size that behaves like those a model was learned from

    etude generate learned model.json --ranks 512 --steps 2 -o job/

    etude generate learned model.json --spread 0 --no-write --json

    etude similarity run/ job/ --system dgx-h100
    """
    from etude.make.synth import MakeOptions, make, read
    from etude.model.totals import totals

    factors = {"depth": depth, "compute": compute, "traffic": traffic, "spread": spread}
    learned = read(model)
    job = make(learned, MakeOptions(ranks=ranks, steps=steps, **factors, seed=seed, name=name))
    if len(job) > max(t.ranks for t in learned.templates) and not any(t.grows for t in learned.templates):
        say(
            "the learned jobs have no communication between similar ranks: added ranks are copies that do not "
            "communicate"
        )
    limits = write_job(job, Files(out=out, to=to, dialect=dialect, force=force, no_write=no_write))
    emit(totals(job) | limits if json else shown(totals(job)), json=json)
