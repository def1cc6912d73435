"""`etude fleet ... -o FOLDER`: what every kind of fleet leaves behind."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.cli.output import say

if TYPE_CHECKING:
    import pyarrow as pa


def folder(
    out: Path | None, tables: "dict[str, pa.Table]", record: dict[str, Any], asked: dict[str, Any], *, force: bool
) -> None:  # fmt: skip
    """Written where one is asked for."""
    from etude.fleet import write_fleet

    if out is None:
        return
    write_fleet(tables, record | {"asked": asked}, out, force=force)
    say(f"wrote {out}")


def notes_of(found: Any) -> list[str]:
    """Of jobs that share a cluster: what a reader should know."""
    jobs, notes = found.jobs, list(found.jobs.notes)
    if found.refused:
        names = ", ".join(jobs.name[job] for job in found.refused[:3])
        notes.append(f"{len(found.refused):,} jobs do not fit any node and are left out: {names}")
    if found.stuck:
        notes.append(f"{found.stuck:,} jobs had not ended when the simulation could not progress, or at the horizon")
    return notes
