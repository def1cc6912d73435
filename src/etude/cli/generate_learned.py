from pathlib import Path
from typing import Annotated

import typer

from etude.cli.app import MAKE, app
from etude.cli.job_out import Force, Format, NoWrite, Out, To, write_job
from etude.cli.output import AsJson, emit


@app.command("generate learned", rich_help_panel=MAKE)
def generate_learned(
    model: Annotated[Path, typer.Argument(help="What `etude learn` wrote.")],
    ranks: Annotated[int, typer.Option(min=0, help="0: as many as were learned from.")] = 0,
    out: Out = None,
    to: Format = To.PARQUET,
    steps: Annotated[int, typer.Option(min=1, help="The whole program so many times.")] = 1,
    depth: Annotated[float, typer.Option(help="Outermost repeats so many times as often.")] = 1.0,
    compute: Annotated[float, typer.Option(help="Factor of compute.")] = 1.0,
    traffic: Annotated[float, typer.Option(help="Factor of the bytes that are sent.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the sizes that are drawn.")] = 0,
    name: Annotated[str, typer.Option(help="Name of the job.")] = "learned",
    force: Force = False,
    no_write: NoWrite = False,
    json: AsJson = False,
) -> None:
    """A job of any size that behaves like those that were learned

    etude generate learned model.json --ranks 512 --steps 2 -o job/
    etude likeness run/ job/ --system dgx-h100
    """
    from etude.generate.numbers import numbers
    from etude.generate.synth import read
    from etude.generate.synth_make import MakeOptions, make

    options = MakeOptions(ranks=ranks, steps=steps, depth=depth, compute=compute, traffic=traffic, seed=seed, name=name)
    job = make(read(model), options)
    write_job(job, out, to, force=force, no_write=no_write)
    emit(numbers(job), json=json)
