import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from etude.cli.app import LOOK, app
from etude.cli.inputs import GroupFile, Workers
from etude.cli.output import progress, say
from etude.cli.timed import OnSystem, TimesFile, open_timed

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.model.job import Job
    from etude.model.timing import Timing


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
    etude report measured/ simulated/ -o compare.html
    """
    from etude import __version__
    from etude.errors import UsageError
    from etude.files import writing
    from etude.reporting.comparison import comparison
    from etude.reporting.compose import report as compose
    from etude.reporting.device import device_of
    from etude.view.page import MARKS, render

    if len(paths) > 2:
        raise UsageError("a page is about one run or two", hint="etude report measured/ simulated/ -o compare.html")
    runs = [(*open_timed(path, groups, workers, system, timing), plain(path)) for path in paths]
    by = f"Etude {__version__}"
    with writing(out, force=force) as place, progress(f"writing {out}"):
        if len(runs) == 2:
            page = comparison(*named_apart(runs), title=title, made_by=by)
        else:
            job, times, name = runs[0]
            on = device_of(job, device, system)
            memory = allocated(paths[0]) if not system and timing is None else None
            page = compose(job, times, name=title or name, device=on, allocated=memory, made_by=by)
        place.write_text(render(page), encoding="utf-8")
    say(page.verdict)
    for told in page.told:
        say(f"{MARKS[told.tone]} {told.what}")
    say(f"wrote {out}: {out.stat().st_size / 1e6:.2f} MB, opens in any browser")


def allocated(path: Path) -> "pa.Table | None":
    """What the allocator did, where the profiler recorded it."""
    from etude.opening import is_profile
    from etude.store import compressed

    if not is_profile(path) or not re.search(rb'"profile_memory":\s*1', compressed.head(path, 1 << 16)):
        return None
    from etude.ingest.allocations import allocations
    from etude.ingest.reading import load_device

    return allocations(load_device(path))


def plain(path: Path) -> str:
    """The name of a file or folder without what only says its format."""
    name = path.resolve().name
    for ending in (".gz", ".zst", ".json", ".et", ".pt.trace", ".kineto", "_kineto"):
        name = name.removesuffix(ending)
    return name or str(path)


def named_apart(runs: "list[tuple[Job, Timing, str]]") -> "list[tuple[Job, Timing, str]]":
    """Two runs of one name are called by their order."""
    if runs[0][2] != runs[1][2]:
        return runs
    return [
        (job, times, f"{name} ({place})") for (job, times, name), place in zip(runs, ("first", "second"), strict=True)
    ]
