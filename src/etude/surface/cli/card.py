from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from etude.surface.cli.app import LOOK, app
from etude.surface.cli.inputs import JobPath, open_job
from etude.surface.cli.output import AsJson, emit, say

if TYPE_CHECKING:
    from etude.model.card import Card


@app.command(rich_help_panel=LOOK)
def card(
    path: JobPath,
    write: Annotated[
        bool, typer.Option("--write", "-w", help="Write it into the folder of the job, to be completed by hand.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace an existing card.")] = False,
    json: AsJson = False,
) -> None:
    """The workload card of a job, as YAML: its model, plan, hardware and software

    etude card job/
    etude card run/ --write
    """
    from etude.store import cards

    place = path if path.name.endswith(cards.NAME) else cards.place(path)
    found = cards.read(place) if place.is_file() and not (write and force) else None
    if found is None:
        say(
            "note: this job has no card: the values shown are what "
            f"{'its files say' if path.is_dir() else 'the file itself says'}"
        )
        found = made(path)
    if write:
        cards.write(found, place, force=force)
        say(f"wrote {place}")
    if json:
        emit(found.to_dict(), json=True)
    else:
        print(cards.text(found), end="")


def made(path: Path) -> "Card":
    """A card from what a job or the files of a run say."""
    from etude.capture.ingest import card as cards_of
    from etude.capture.ingest import runs
    from etude.capture.opening import is_run, sniff

    job = open_job(path)
    if sniff(path).holds is is_run:
        return cards_of.card_of_run(job, runs.find_run(path)[1])
    return cards_of.card_of_job(job)
