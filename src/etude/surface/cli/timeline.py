from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etude.base.errors import UsageError
from etude.base.figures import figure
from etude.base.outputs import Place, Written
from etude.base.talk import progress, say
from etude.base.units import counted
from etude.steps.asked.runs import RunInput, RunSource
from etude.surface.cli.ranks import RANKS_HELP, ranks_of
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.tell.view.slices import Slices

DRAWN = "What is drawn"


@dataclass(frozen=True, kw_only=True)
class Timeline(RunInput, Written):
    """All ranks on one clock, for ui.perfetto.dev: lanes, flows, counters, the critical path

    etude timeline run/ -o run.pftrace
    etude timeline run/ --system dgx-h100 --ranks 0-3 -o run.json.gz
    """

    out: str = figure(
        "out", "the file to write: `run.pftrace` (Perfetto) or `run.json[.gz]` (Chrome)", names=("-o",), like="t.json"
    )
    ranks: str = figure("text", RANKS_HELP, "", panel=DRAWN, like="0-3,7")
    flows: bool = figure("flag", "draw arrows between lanes and ranks", True, panel=DRAWN)
    critical_path: bool = figure("flag", "draw the critical path on its own track", True, panel=DRAWN)
    counters: bool = figure("flag", "draw counters of what runs at a time", True, panel=DRAWN)


@dataclass(frozen=True, slots=True)
class TimelineInputs:
    source: RunSource
    place: Place
    ranks: str
    flows: bool
    critical_path: bool
    counters: bool


def inputs(asked: Timeline) -> TimelineInputs:
    from etude.surface.api.writing import ENDINGS

    place = Place.of(asked)
    assert place is not None
    if not place.path.name.endswith(ENDINGS):
        problem = f"a timeline cannot be written as `{place.path.suffix}`"
        raise UsageError(problem, where=f"--out {place.path}", hint=", ".join(ENDINGS))
    return TimelineInputs(
        RunSource.of(asked), place, asked.ranks, asked.flows, asked.critical_path, asked.counters
    )  # fmt: skip


def run(given: TimelineInputs) -> "tuple[Path, Slices]":
    from etude.surface.api.writing import timeline

    found, out = given.source.open(), given.place.path
    with progress(f"writing {out}"):
        return out, timeline(
            found, out, ranks=ranks_of(given.ranks, found.job), flows=given.flows, counters=given.counters,
            critical=given.critical_path, force=given.place.force,
        )  # fmt: skip


def show(result: "tuple[Path, Slices]") -> None:
    out, written = result
    if not len(written):
        say("note: no node has a time, so the timeline is empty")
    elif written.untimed:
        say(f"note: {written.untimed:,} nodes have no time and are not shown")
    shown = f"{len(written):,} slices of {counted(len(written.ranks), 'rank')}"
    say(f"wrote {out}: {shown}; open it at ui.perfetto.dev or with any viewer")


VERBS = (Verb(name="timeline", asks=Timeline, inputs=inputs, run=run, show=show),)
