"""Runs in a browser: what `etude studio` asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part
from etude.base.talk import say
from etude.steps.asked.runs import RunInput, RunSource, times_of
from etude.steps.asked.times import times_wanted

if TYPE_CHECKING:
    from etude.tell.studio import StudioServer


@dataclass(frozen=True, kw_only=True)
class Studio:
    """A run in the browser: zoom its timeline, ask its tables, change a knob and see the new step

    etude studio run/
    etude studio job/ --system dgx-h100
    etude studio before/ after/
    etude studio served/
    etude studio run/ --write whatifs/ --no-browser --port 8321

    It is a server of this machine alone: nothing is loaded from elsewhere, and inputs are only read. What-ifs that you
    save go to `--write`. Ctrl-C ends it. Needs `pip install 'etude[studio]'`.
    """

    paths: tuple[str, ...] = argument(
        "paths",
        "a job, a run or a profiler trace; two are compared; or what serve, fleet, world, study or archive wrote",
        like=[["a/", "b/"]],
    )
    port: int = figure("count", "port of the server; 0: a free one", 0, most=65535)
    browser: bool = figure("flag", "open the page in a browser", True)
    write: str | None = figure(
        "path", "folder that saved what-ifs are written to; without it nothing is written", None, names=("-w",)
    )
    reading: RunInput = part(RunInput, but=("path",))


@dataclass(frozen=True, slots=True)
class StudioInputs:
    sources: tuple[RunSource, ...]
    port: int
    browser: bool
    out: Path | None


def inputs(asked: Studio) -> StudioInputs:
    if len(asked.paths) > 2:
        raise UsageError("the studio shows one run or two", hint="etude studio before/ after/")
    reading = asked.reading
    system, timing = times_of(reading)
    groups, times = None if reading.groups is None else Path(reading.groups), times_wanted(reading)
    sources = tuple(RunSource(Path(path), system, timing, groups, reading.workers, times=times) for path in asked.paths)
    out = None if asked.write is None else Path(asked.write)
    return StudioInputs(sources, asked.port, asked.browser, out)


def server_of(given: StudioInputs, *, framed: bool = False) -> StudioServer:
    """The server of these runs, with its indexes; it does not answer yet."""
    from etude.tell.studio import StudioServer, StudioSession
    from etude.tell.studio.server import web_libraries
    from etude.tell.studio.session import open_input

    web_libraries()
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    return StudioServer(StudioSession(tuple(map(open_input, given.sources)), given.out), given.port, framed=framed)


def run(given: StudioInputs) -> str:
    """Serves until Ctrl-C."""
    import webbrowser

    server = server_of(given)
    say(f"the studio is at {server.address}")
    say("Ctrl-C ends it")
    if given.browser:
        webbrowser.open(server.address)
    server.serve()
    return server.address
