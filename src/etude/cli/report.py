from pathlib import Path
from typing import Annotated

import typer

from etude.cli.app import LOOK, app
from etude.cli.inputs import GroupFile, Workers
from etude.cli.output import progress, say
from etude.cli.timed import OnSystem, TimesFile, open_timed


@app.command(rich_help_panel=LOOK)
def report(
    paths: Annotated[
        list[Path], typer.Argument(help="A job or a profiler trace; two are compared.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Its heading; by default the name of the input.")] = "",
    device: Annotated[str, typer.Option(help="What it ran on, for the roofline: `h100`, `mi300x`, ...")] = "",
    system: OnSystem = "",
    timing: TimesFile = None,
    groups: GroupFile = None,
    workers: Workers = 1,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace what is there.")] = False,
) -> None:
    """One HTML page about a run: what happened, why, and where the time goes; it opens offline

    etude report run/ -o report.html
    etude report trace.json.gz
    etude report run/ --system dgx-h100 -o simulated.html
    """
    from etude import __version__
    from etude.reporting.device import device_of
    from etude.files import writing
    from etude.reporting.compose import report as compose
    from etude.view.page import MARKS, render

    path = paths[0]
    job, times = open_timed(path, groups, workers, system, timing)
    on = device_of(job, device, system)
    with writing(out, force=force) as place, progress(f"writing {out}"):
        page = compose(job, times, name=title or plain(path), device=on, made_by=f"Etude {__version__}")
        place.write_text(render(page), encoding="utf-8")
    say(page.verdict)
    for told in page.told:
        say(f"{MARKS[told.tone]} {told.what}")
    say(f"wrote {out}: {out.stat().st_size / 1e6:.2f} MB, opens in any browser")


def plain(path: Path) -> str:
    """The name of a file or folder without what only says its format."""
    name = path.resolve().name
    for ending in (".gz", ".zst", ".json", ".et", ".pt.trace", ".kineto", "_kineto"):
        name = name.removesuffix(ending)
    return name or str(path)
