"""What commands that make a job have in common: where it goes, and in which format."""

from collections.abc import Mapping
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


Out = Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write; it appears when it is complete.")]
Format = Annotated[To, typer.Option("--to", help="One Parquet folder (ranks share traces), or a file for each rank.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace what is there.")]
NoWrite = Annotated[bool, typer.Option("--no-write", help="Numbers only.")]


def write_job(
    job: "Job", out: Path | None, to: To, *, force: bool, no_write: bool = False, card: "Card | None" = None
) -> None:
    """Writes a job that was made, with its card if it has one, in full or not at all."""
    if no_write:
        return
    if out is None:
        say("nothing written: `-o job/` writes the job")
        return
    from etude.files import writing
    from etude.model.fold import fold
    from etude.store import cards, chakra, columns
    from etude.store import json as json_store

    check_place(out, force)
    with writing(out, force=force) as folder, progress(f"writing {out}", len(job)) as advance:
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


OURS = (".et", ".et.gz", ".et.zst", ".json", ".json.gz", ".json.zst", ".parquet", "card.yaml")


def check_place(out: Path, force: bool, source: Path | None = None) -> None:
    """`--force` replaces a folder that holds nothing but traces, and never the neighbours of what is read."""
    if not force or not out.is_dir():
        return
    target = out.resolve()
    if source is not None and source.resolve() != target and target in source.resolve().parents:
        raise UsageError("holds the input, which would be lost", where=str(out), hint="give another folder")
    others = [entry.name for entry in out.iterdir() if entry.is_dir() or not entry.name.endswith(OURS)]
    if others:
        hint = "--force replaces a folder of traces alone; give another name, or remove it yourself"
        raise UsageError(f"holds what Etude did not write: {others[0]}", where=str(out), hint=hint)
