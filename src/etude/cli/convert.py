from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from etude.cli.app import CONVERT, app
from etude.cli.inputs import GroupFile, JobPath, MaxBytes, Workers, open_job
from etude.cli.job_out import Dialect, In, To, check_place, in_dialect, tell
from etude.cli.output import progress, say
from etude.errors import UsageError

if TYPE_CHECKING:
    from etude.model.job import Job


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
    from etude.files import writing
    from etude.model.fold import fold as fold_job
    from etude.store import cards, chakra

    out = _only(place, out)
    check_place(out, force, source=path)
    job = open_job(path, groups, workers, max_bytes, ranks=ranks, passes=passes)
    if name:
        job = job.replace(name=name)
    if target in (Target.ASTRA, Target.FLOWS, Target.SIMAI):
        _for_simulators(job, out, target, system, force)
        return
    to = To(target.value)
    behind = chakra.left_behind(job) if to != To.PARQUET else []
    job, problems = in_dialect(job, to, dialect)
    suffix = "" if compress == Compression.NONE else f".{compress.value}"
    with writing(out, force=force) as folder:
        _write(fold_job(job) if fold and to == To.PARQUET else job, folder, to, suffix, str(out))
        if (card := cards.find(path)) is not None:
            cards.write(card, folder / cards.NAME)
    say(f"wrote {out}: {len(job):,} ranks, {job.nodes:,} nodes")
    if behind:
        say(f"not written, because {to.value} cannot represent it: {'; '.join(behind)}")
    tell(problems, dialect)


def _write(job: "Job", folder: Path, to: To, suffix: str, shown: str) -> None:
    from etude.store import chakra, columns
    from etude.store import json as json_store

    folder.mkdir()
    with progress(f"writing {shown}", len(job)) as advance:
        if to == To.ET:
            chakra.write_job(job, folder, suffix=f".et{suffix}", advance=advance)
        elif to == To.JSON:
            json_store.write_job(job, folder, suffix=f".json{suffix}", advance=advance)
        else:
            columns.write_job(job, folder)


def _only(place: Path | None, out: Path | None) -> Path:
    if (place is None) == (out is None):
        raise UsageError(
            "an output path is needed, and only one", hint="etude convert JOB OUT, or etude convert JOB -o OUT"
        )
    return place or out or Path()


def _for_simulators(job: "Job", out: Path, target: Target, system: str, force: bool) -> None:
    from etude.cli.convert_out import write_astra, write_flows, write_simai

    if not system and target != Target.SIMAI:
        raise UsageError(f"`--to {target.value}` needs a system", hint="--system dgx-h100; `etude systems` lists them")
    write = {Target.ASTRA: write_astra, Target.FLOWS: write_flows, Target.SIMAI: write_simai}[target]
    write(job, out, system, force)
