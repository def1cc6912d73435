"""All ranks on one clock: what `etude timeline` asks for, and `etude.timeline`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from etude.base.errors import UsageError
from etude.base.figures import figure, text
from etude.base.outputs import OutputPlace, Written
from etude.base.talk import progress, say
from etude.base.units import counted
from etude.steps.asked.ranks import RANKS_HELP, ranks_of
from etude.steps.asked.runs import RunInput, RunSource

if TYPE_CHECKING:
    from etude.model.run import Run
    from etude.tell.view.slices import Slices


DRAWN = "What is drawn"
ENDINGS = (".pftrace", ".perfetto-trace", ".json", ".json.gz")
"""What a timeline may be called."""


@dataclass(frozen=True, kw_only=True)
class TimelineOf(RunInput, Written):
    """All ranks on one clock, for ui.perfetto.dev: lanes, flows, counters, the critical path

    etude timeline run/ -o run.pftrace
    etude timeline run/ --system dgx-h100 --ranks 0-3 -o run.json.gz
    """

    out: str = figure(
        "out", "the file to write: `run.pftrace` (Perfetto) or `run.json[.gz]` (Chrome)", names=("-o",), like="t.json"
    )
    ranks: str = text(RANKS_HELP, panel=DRAWN, like="0-3,7")
    flows: bool = figure("flag", "draw arrows between lanes and ranks", True, panel=DRAWN)
    critical_path: bool = figure("flag", "draw the critical path on its own track", True, panel=DRAWN)
    counters: bool = figure("flag", "draw counters of what runs at a time", True, panel=DRAWN)


@dataclass(frozen=True, slots=True)
class TimelineInputs:
    source: RunSource
    place: OutputPlace
    ranks: str
    flows: bool
    critical_path: bool
    counters: bool


def timeline(
    run: Run, out: str | os.PathLike[str], *, ranks: Sequence[int] | None = None, flows: bool = True,
    counters: bool = True, critical: bool = True, force: bool = False,
) -> Slices:  # fmt: skip
    """Writes all ranks on one clock for Perfetto: `.pftrace`, or Chrome's `.json`, `.json.gz`.

    etude.timeline(run, "run.pftrace", ranks=[0, 1])
    """
    from etude.analyse.clocks import offsets
    from etude.analyse.critical_path import critical_path
    from etude.base.files import writing
    from etude.tell.view.timeline import write_timeline

    place = Path(out)
    if not place.name.endswith(ENDINGS):
        raise UsageError(f"a timeline cannot be written as `{place.suffix}`", where=str(out), hint=", ".join(ENDINGS))
    run = replace(run, timing=replace(run.timing, clock_offset_ns=offsets(run), aligned=True))
    with writing(place, force=force) as file:
        waited = critical_path(run) if critical and run.timing.span() is not None else None
        chosen = None if ranks is None else list(ranks)
        return write_timeline(run, file, ranks=chosen, flows=flows, counters=counters, critical=waited)


def inputs(asked: TimelineOf) -> TimelineInputs:
    place = OutputPlace.of(asked)
    assert place is not None
    if not place.path.name.endswith(ENDINGS):
        problem = f"a timeline cannot be written as `{place.path.suffix}`"
        raise UsageError(problem, where=f"--out {place.path}", hint=", ".join(ENDINGS))
    return TimelineInputs(RunSource.of(asked), place, asked.ranks, asked.flows, asked.critical_path, asked.counters)


def run(given: TimelineInputs) -> tuple[Path, Slices]:
    found, out = given.source.open(), given.place.path
    with progress(f"writing {out}"):
        return out, timeline(
            found, out, ranks=ranks_of(given.ranks, found.job), flows=given.flows, counters=given.counters,
            critical=given.critical_path, force=given.place.force,
        )  # fmt: skip


def show(result: tuple[Path, Slices]) -> None:
    out, written = result
    if not len(written):
        say("note: no node has a time, so the timeline is empty")
    elif written.untimed:
        say(f"note: {written.untimed:,} nodes have no time and are not shown")
    shown = f"{len(written):,} slices of {counted(len(written.ranks), 'rank')}"
    say(f"wrote {out}: {shown}; open it at ui.perfetto.dev or with any viewer")
