"""What commands that make a job have in common: where it goes, and in which format."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.cli.output import progress, say
from etude.errors import UsageError

if TYPE_CHECKING:
    from etude.model.card import Card
    from etude.model.job import Job


class To(StrEnum):
    PARQUET = "parquet"
    ET = "et"
    JSON = "json"


class Dialect(StrEnum):
    PLAIN = "plain"
    ASTRA = "astra"
    STORAGE = "storage"
    MEMORY = "memory"


Out = Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write; it appears when it is complete.")]
Format = Annotated[
    To, typer.Option("--to", help="Write one Parquet folder (ranks share traces), or one file per rank.")
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace existing output.")]
In = Annotated[
    Dialect,
    typer.Option(
        "--dialect",
        help="`plain`: the job as it is. `astra`: files that ASTRA-sim can run: groups are numbers, all members of a "
        "collective have the size of the largest, and a copy is one operation. `storage`: reads of samples, "
        "batches and checkpoints as STORAGE, BATCH and CHECKPOINT nodes of newer Chakra; `memory`: the reverse.",
    ),
]
NoWrite = Annotated[bool, typer.Option("--no-write", help="Numbers only.")]


def in_dialect(job: "Job", to: To, dialect: Dialect) -> tuple["Job", list[str]]:
    """The job as its files are to have it, and what ASTRA-sim cannot run of them. The one place for dialects."""
    if to == To.PARQUET:
        if dialect != Dialect.PLAIN:
            hint = f"`--to et --dialect {dialect.value}` writes one file per rank"
            raise UsageError("a Parquet folder holds the job as it is, without a dialect", hint=hint)
        return job, []
    from etude.transform.dialects import as_memory, as_storage, astra_problems, for_astra

    if dialect == Dialect.STORAGE:
        return as_storage(job), []
    left = 0
    if dialect in (Dialect.ASTRA, Dialect.MEMORY):
        job, left = as_memory(job)
    if dialect == Dialect.ASTRA:
        job = for_astra(job)
    told = [f"{left:,} storage nodes are not reads or writes of known size and are not changed"] if left else []
    return job, [*told, *(astra_problems(job) if to == To.ET else [])]


def tell(problems: list[str], dialect: Dialect) -> None:
    """Says what ASTRA-sim cannot run, and the way out."""
    if problems:
        way_out = "; `--dialect astra` writes files that it can run" if dialect == Dialect.PLAIN else ""
        say(f"note: ASTRA-sim cannot run this job as it is: {'; '.join(problems)}{way_out}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where a job that was made goes, and how."""

    out: Path | None
    to: To
    dialect: Dialect = Dialect.PLAIN
    force: bool = False
    no_write: bool = False


def write_job(job: "Job", files: Files, card: "Card | None" = None) -> dict[str, Any]:
    """Writes a job that was made, with its card if it has one, in full or not at all. What ASTRA-sim cannot run of its
    `.et` files is said, and given back for `--json`."""
    out, to = files.out, files.to
    job, problems = in_dialect(job, to, files.dialect)
    found = {"astra_problems": problems} if to == To.ET else {}
    if files.no_write:
        return found
    if out is None:
        say("nothing written: `-o job/` writes the job")
        return found
    from etude.files import writing
    from etude.model.fold import fold
    from etude.store import cards, chakra, columns
    from etude.store import json as json_store

    check_place(out, files.force)
    with writing(out, force=files.force) as folder, progress(f"writing {out}", len(job)) as advance:
        folder.mkdir()
        if to == To.ET:
            chakra.write_job(job, folder, advance=advance)
        elif to == To.JSON:
            json_store.write_job(job, folder, advance=advance)
        else:
            columns.write_job(fold(job), folder)
        if card is not None:
            cards.write(card, folder / cards.NAME)
    say(f"wrote {out}: {len(job):,} ranks, {job.nodes:,} nodes")
    tell(problems, files.dialect)
    return found


def shown(found: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a job that was made, as people read them."""
    from etude.units import format_bytes, format_count

    sent = {name: format_bytes(size) for name, size in found["comm_bytes_by_type"].items()}
    return {
        "ranks": f"{found['ranks']:,}, {found['distinct_traces']} distinct programs",
        "nodes": f"{found['nodes']:,}",
        "operations": format_count(found["flops"]),
        "communication": sent or "none",
    }


ASTRA_FILES = ("network.yml", "topology.txt", "README.md")
OURS = (".et", ".et.gz", ".et.zst", ".json", ".json.gz", ".json.zst", ".parquet", "card.yaml")


def check_place(out: Path, force: bool, source: Path | None = None) -> None:
    """`--force` replaces a folder that holds nothing but traces, and never the neighbours of what is read."""
    if not force or not out.is_dir():
        return
    target = out.resolve()
    if source is not None and source.resolve() != target and target in source.resolve().parents:
        raise UsageError("contains the input, which would be lost", where=str(out), hint="give another folder")
    known = (*OURS, *ASTRA_FILES) if (out / "network.yml").is_file() else OURS
    others = [entry.name for entry in out.iterdir() if entry.is_dir() or not entry.name.endswith(known)]
    if others:
        hint = "--force only replaces a folder of traces; give another name, or remove it yourself"
        raise UsageError(f"contains files that Etude did not write: {others[0]}", where=str(out), hint=hint)
