from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from etude.base.errors import UsageError
from etude.surface.cli.app import CONVERT, app
from etude.surface.cli.inputs import GroupFile, JobPath, MaxBytes, Workers, open_job
from etude.surface.cli.job_out import Dialect, In, tell
from etude.surface.cli.output import progress, say


class Target(StrEnum):
    PARQUET = "parquet"
    ET = "et"
    JSON = "json"
    ASTRA = "astra"
    FLOWS = "flows"
    SIMAI = "simai"


class Compression(StrEnum):
    NONE = "none"
    GZ = "gz"
    ZST = "zst"


@app.command(rich_help_panel=CONVERT)
def convert(
    path: JobPath,
    place: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="The folder to write; it appears when it is complete.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write, as an option.")] = None,
    target: Annotated[
        Target,
        typer.Option(
            "--to",
            help="The format to write. `astra`: a folder with all files that ASTRA-sim reads. `flows`: a table of the "
            "messages that collectives consist of, for packet simulators, as CSV or Parquet. `simai`: SimAI's text "
            "workload.",
        ),
    ] = Target.ET,
    system: Annotated[
        str,
        typer.Option(
            "--system",
            help="The system that the written files simulate (`astra`, `flows`), or whose compute times they have "
            "(`simai`).",
        ),
    ] = "",
    dialect: In = Dialect.PLAIN,
    name: Annotated[
        str, typer.Option(help="Name of the job: `NAME.{rank}.et`. By default the name of the input.")
    ] = "",
    compress: Annotated[Compression, typer.Option(help="Compress `.et` and JSON files.")] = Compression.NONE,
    fold: Annotated[bool, typer.Option(help="Let ranks share traces in Parquet; no information is lost.")] = True,
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=1, help="Ranks that run an ASTRA-sim text workload (`w.txt`).")
    ] = None,
    passes: Annotated[
        int | None, typer.Option("--passes", min=1, help="Passes over a text workload's layers. By default 1.")
    ] = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    max_bytes: MaxBytes = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing output.")] = False,
) -> None:
    """A job in another format: Chakra `.et`, JSON, Parquet; all files of ASTRA-sim; flows; also from ASTRA-sim text

    Nodes, edges, attributes, groups and recorded times are the same in each. Parquet also says where a job came from
    and how its times were made; a note lists what `.et` and JSON cannot represent.

    `.et` files hold the job as it is, and a note says what ASTRA-sim would hang or abort on; `--dialect astra` writes
    files that it can run: numbered groups, one size on all members of a collective, one operation for a copy. A job
    that is generated into `.et` files, and one that is generated and then converted, are the same bytes.

    etude convert job/ et/ --dialect astra

    etude convert job/ run/ --to astra --system dgx-h100

    etude convert job/ flows.csv --to flows --system dgx-h100
    """
    from etude.store import cards
    from etude.surface.api.converting import check_place
    from etude.surface.api.converting import convert as converted

    out = _only(place, out)
    check_place(out, force, source=path)
    job = open_job(path, groups, workers, max_bytes, ranks=ranks, passes=passes)
    found = converted(
        job, out, to=target.value, dialect=dialect.value, system=system, name=name, compress=compress.value, fold=fold,
        card=cards.find(path), force=force, progress=progress,
    )  # fmt: skip
    tell(found)
    if found.left_behind:
        say(f"not written, because {target.value} cannot represent it: {'; '.join(found.left_behind)}")


def _only(place: Path | None, out: Path | None) -> Path:
    if (place is None) == (out is None):
        raise UsageError(
            "an output path is needed, and only one", hint="etude convert JOB OUT, or etude convert JOB -o OUT"
        )
    return place or out or Path()
