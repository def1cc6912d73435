from typing import Annotated

import typer

from etude.surface.cli.app import MAKE, app
from etude.surface.cli.job_out import Dialect, Files, Force, Format, In, NoWrite, Out, To, shown, write_job
from etude.surface.cli.output import AsJson, emit


@app.command("generate micro", rich_help_panel=MAKE)
def generate_micro(
    pattern: Annotated[
        str,
        typer.Argument(
            help="A collective (all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, ...) or messages: ring, "
            "shift:K, neighbours, ping_pong, exchange, bisection, incast, outcast, chain, permutation, all_pairs."
        ),
    ],
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of the job.")],
    size: Annotated[
        str, typer.Option("--bytes", help="Input bytes on each rank, `64MB`; several: `1KB,1MB,64MB`.")
    ] = "64MB",
    out: Out = None,
    to: Format = To.PARQUET,
    dialect: In = Dialect.PLAIN,
    repeat: Annotated[int, typer.Option(min=1, help="Number of rounds over all sizes.")] = 1,
    group: Annotated[int, typer.Option(min=0, help="Ranks per group; 0: one group of all.")] = 0,
    stride: Annotated[int, typer.Option(min=1, help="Distance between the ranks of a group.")] = 1,
    compute: Annotated[str, typer.Option(help="Compute before each communication: `1ms`.")] = "0",
    overlap: Annotated[bool, typer.Option(help="The next compute does not wait for the communication.")] = False,
    concurrent: Annotated[bool, typer.Option(help="Communications do not wait for one another.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of `permutation`.")] = 0,
    force: Force = False,
    no_write: NoWrite = False,
    json: AsJson = False,
) -> None:
    """One collective or pattern of messages, with or without concurrent compute

    etude generate micro all_reduce --ranks 64 --bytes 64MB -o job/
    etude generate micro shift:8 --ranks 32 --bytes 1MB,16MB --repeat 4 -o job/
    etude generate micro all_gather --ranks 64 --group 8 --compute 2ms --overlap -o job/
    """
    from etude.base.units import parse_bytes, parse_time
    from etude.make.generate import MicroOptions, micro
    from etude.model.totals import totals

    options = MicroOptions(
        ranks=ranks,
        sizes=tuple(parse_bytes(one) for one in size.split(",")),
        repeat=repeat,
        group=group,
        stride=stride,
        compute_ns=parse_time(compute),
        overlap=overlap,
        concurrent=concurrent,
        seed=seed,
    )
    job = micro(pattern, options)
    limits = write_job(job, Files(out=out, to=to, dialect=dialect, force=force, no_write=no_write))
    emit(totals(job) | limits if json else shown(totals(job)), json=json)
