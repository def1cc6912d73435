from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.surface.cli.app import LOOK, app
from etude.surface.cli.edits_given import WhatIfEdits, edits_of, run_times
from etude.surface.cli.inputs import GroupFile, Workers, open_job
from etude.surface.cli.output import progress, say
from etude.surface.cli.runs import OnSystem, RanOn, TimesFile, grown, open_run

if TYPE_CHECKING:
    from etude.model.job import Job
    from etude.model.run import Run


@app.command(rich_help_panel=LOOK)
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="A job, a profiler trace or a served stream; two runs are compared on one page.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Title of the page; by default the name of the input.")] = "",
    ran_on: RanOn = "",
    system: OnSystem = "",
    timing: TimesFile = None,
    edit: WhatIfEdits = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing output.")] = False,
) -> None:
    """One HTML page about a run: what happened, why, and where the time goes; it opens offline

    etude report run/ -o report.html
    etude report trace.json.gz
    etude report run/ --system dgx-h100 -o simulated.html
    etude report measured/ simulated/ -o compare.html
    etude report run/ run/ --system dgx-h200 -o compare.html
    etude report served/ -o serve.html
    etude report run/ --edit "speed op=aten::mm by=1.3" -o whatif.html
    """
    from etude.base.errors import UsageError
    from etude.surface.api.reporting import allocated, folder_page, is_folder, plain, run_page, written
    from etude.tell.report import PARTS

    if is_folder(paths):
        _tell(written(lambda: folder_page(paths, title), out, force=force), out)
        return
    if len(paths) > 2:
        raise UsageError("a page shows one run or two", hint="etude report measured/ simulated/ -o compare.html")
    if edit and (len(paths) > 1 or timing is not None):
        raise UsageError("--edit shows one job before and after", hint="give one path, and no --timing")
    runs = (
        before_and_after(open_job(paths[0], groups, workers), edit, system, title or plain(paths[0]))
        if edit
        else opened(paths, groups, workers, system, timing)
    )
    memory = allocated(paths[0]) if len(runs) == 1 and not system and timing is None else None
    with progress(f"writing {out}", PARTS) as advance:
        asked: dict[str, Any] = {
            "title": title,
            "ran_on": ran_on,
            "system": system,
            "allocated": memory,
            "advance": advance,
        }
        page = written(lambda: run_page(runs, **asked), out, force=force)
    _tell(page, out)


def _tell(page: Any, out: Path) -> None:
    """Prints the verdict, the findings, and where the page was written."""
    from etude.tell.view.page import MARKS

    say(page.verdict)
    for told in page.told:
        say(f"{MARKS[told.tone]} {told.what}{f' [{told.cost}]' if told.cost else ''}")
    say(f"wrote {out}: {out.stat().st_size / 1e6:.2f} MB, opens in any browser")


def before_and_after(job: "Job", edits: list[str], system: str, name: str) -> "list[tuple[Run, str]]":
    """The job and what edits make of it, both simulated. Without a system recorded times are kept, of communication
    too, and what has none takes that of a DGX H100."""
    from etude.machine import open_system
    from etude.make.transform import with_durations
    from etude.make.transform.edits import apply_edits
    from etude.run.simulate import simulate

    asked, machine = edits_of(edits), system or "dgx-h100"
    if not system:
        say(f"note: no system is given: recorded times are kept, and nodes without a time take that of {machine}")
    times = "modelled" if system else "recorded"
    on = grown(open_system(machine), machine, job.world_size)
    timed = with_durations(job, on.device)
    found = apply_edits(timed, asked, system=on, times=run_times(on, collective_times=times))
    for note in found.notes:
        say(f"note: {note}")
    larger = on if found.job.world_size == job.world_size else on.for_ranks(found.job.world_size)
    before = simulate(timed, on, collective_times=times)
    after = simulate(found.job, larger, collective_times=times)
    return [(before, f"{name} before"), (after, f"{name} after")]


def opened(
    paths: list[Path], groups: Path | None, workers: int, system: str, timing: Path | None
) -> "list[tuple[Run, str]]":
    """The runs with their names. Of two, the first is taken as recorded where it is, and the second as asked for: so
    a recording is compared with its simulation."""
    from etude.surface.api.reporting import plain

    runs = []
    for number, path in enumerate(paths):
        as_recorded = number == 0 and len(paths) == 2 and (system or timing is not None) and _has_times(path, workers)
        asked = ("", None) if as_recorded else (system, timing)
        runs.append((open_run(path, groups, workers, *asked), plain(path)))
    return runs


def _has_times(path: Path, workers: int) -> bool:
    from etude.capture.opening import is_profile, is_run, open

    return is_profile(path) or (path.is_dir() and is_run(path)) or open(path, workers=workers).timing is not None
