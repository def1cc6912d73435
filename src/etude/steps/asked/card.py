"""The workload card of a job: what `etude card` asks for."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.figures import argument, figure, part, switch
from etude.base.outputs import Printed
from etude.base.parameters import only_one
from etude.base.talk import say
from etude.steps.asked.jobs import JOB_HELP, open_job

if TYPE_CHECKING:
    from etude.model.card import Card


@dataclass(frozen=True, kw_only=True)
class ShowCard:
    """The workload card of a job, as YAML: its model, plan, hardware and software

    etude card job/
    etude card run/ --write
    """

    path: str = argument("path", JOB_HELP, like="job/")
    write: bool = switch("write it into the folder of the job, to be completed by hand", names=("-w",))
    out: str | None = figure("out", "write it to this file instead", None, names=("-o",))
    force: bool = switch("replace an existing card", needs="write|out", names=("-f",))
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class CardInputs:
    path: Path
    own: Path
    """Where the card of the job is, or would be."""
    out: Path | None
    force: bool


def inputs(asked: ShowCard) -> CardInputs:
    from etude.store import cards

    path, how = Path(asked.path), only_one(asked, "write", "out")
    own = path if path.name.endswith(cards.NAME) else cards.place(path)
    out = {"write": own, "out": Path(asked.out or ""), "": None}[how]
    return CardInputs(path, own, out, asked.force)


def run(given: CardInputs) -> "Card":
    from etude.store import cards

    is_made_anew = given.out == given.own and given.force
    found = cards.read(given.own) if given.own.is_file() and not is_made_anew else None
    if found is None:
        source = "its files say" if given.path.is_dir() else "the file itself says"
        say(f"note: this job has no card: the values shown are what {source}")
        found = made(given.path)
    if given.out is not None:
        cards.write(found, given.out, force=given.force)
        say(f"wrote {given.out}")
    return found


def record(found: "Card") -> dict[str, Any]:
    return dict(found.to_dict())


def made(path: Path) -> "Card":
    """A card from what a job or the files of a run say."""
    from etude.capture.ingest import card as cards_of
    from etude.capture.ingest import runs
    from etude.capture.opening import is_run, sniff

    job = open_job(path)
    if sniff(path).holds is is_run:
        return cards_of.card_of_run(job, runs.find_run(path)[1])
    return cards_of.card_of_job(job)


def reads(found: "Card") -> str:
    from etude.store import cards

    return cards.text(found)
