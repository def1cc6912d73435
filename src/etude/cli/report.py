import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from etude.cli.app import LOOK, app
from etude.cli.edits_given import WhatIfEdits, edits_of, run_times
from etude.cli.inputs import GroupFile, Workers, open_job
from etude.cli.output import progress, say
from etude.cli.runs import OnSystem, RanOn, TimesFile, grown, open_run

if TYPE_CHECKING:
    import pyarrow as pa

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
    from etude import __version__
    from etude.errors import UsageError
    from etude.files import writing
    from etude.report import PARTS, comparison, device_of
    from etude.report import report as compose
    from etude.view.page import MARKS, render

    if any((path / "fleet.json").is_file() for path in paths):
        _fleet(paths, out, title, force=force)
        return
    if any((path / "served.json").is_file() for path in paths):
        _served(paths, out, title, force=force)
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
    by = f"Etude {__version__}"
    with writing(out, force=force) as place, progress(f"writing {out}", PARTS) as advance:
        if len(runs) == 2:
            together, pair = named_apart(runs)
            page = comparison(*pair, title=title or together, made_by=by)
        else:
            run, name = runs[0]
            on = device_of(run.job, ran_on, system)
            memory = allocated(paths[0]) if not system and timing is None else None
            page = compose(run, name=title or name, device=on, allocated=memory, made_by=by, advance=advance)
        place.write_text(render(page), encoding="utf-8")
    say(page.verdict)
    for told in page.told:
        say(f"{MARKS[told.tone]} {told.what}{f' [{told.cost}]' if told.cost else ''}")
    say(f"wrote {out}: {out.stat().st_size / 1e6:.2f} MB, opens in any browser")


def _served(paths: list[Path], out: Path, title: str, *, force: bool) -> None:
    """The page of a served stream."""
    from etude import __version__
    from etude.errors import UsageError
    from etude.files import writing
    from etude.report import served_page, workflow_page
    from etude.serve.stored import read_served
    from etude.view.page import render

    if len(paths) > 1:
        raise UsageError("a page shows one served stream", hint="etude report served/ -o serve.html")
    found = read_served(paths[0])
    compose = workflow_page if "sessions" in found.tables else served_page
    with writing(out, force=force) as place:
        page = compose(found.record, found.tables, title=title or plain(paths[0]), made_by=f"Etude {__version__}")
        place.write_text(render(page), encoding="utf-8")
    say(page.verdict)
    say(f"wrote {out}: {out.stat().st_size / 1e6:.2f} MB, opens in any browser")


def _fleet(paths: list[Path], out: Path, title: str, *, force: bool) -> None:
    """The page of a fleet; of several, side by side."""
    from etude import __version__
    from etude.errors import UsageError
    from etude.files import writing
    from etude.fleet import read_fleet
    from etude.report.fleet import fleet_page
    from etude.view.page import render

    found = [(plain(path), read_fleet(path)) for path in paths]
    if len({("rounds" in folder.tables, folder.record.get("kind")) for _, folder in found}) > 1:
        raise UsageError("fleets of different kinds cannot be shown on one page", hint="write one page for each")
    with writing(out, force=force) as place:
        runs = [(name, folder.record, folder.tables) for name, folder in found]
        page = fleet_page(runs, title=title or " and ".join(name for name, _ in found), made_by=f"Etude {__version__}")
        place.write_text(render(page), encoding="utf-8")
    say(page.verdict)
    say(f"wrote {out}: {out.stat().st_size / 1e6:.2f} MB, opens in any browser")


def before_and_after(job: "Job", edits: list[str], system: str, name: str) -> "list[tuple[Run, str]]":
    """The job and what edits make of it, both simulated. Without a system recorded times are kept, of communication
    too, and what has none takes that of a DGX H100."""
    from etude.machine import open_system
    from etude.simulate import simulate
    from etude.transform import with_durations
    from etude.transform.edits import apply_edits

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
    runs = []
    for number, path in enumerate(paths):
        as_recorded = number == 0 and len(paths) == 2 and (system or timing is not None) and _has_times(path, workers)
        asked = ("", None) if as_recorded else (system, timing)
        runs.append((open_run(path, groups, workers, *asked), plain(path)))
    return runs


def _has_times(path: Path, workers: int) -> bool:
    from etude.opening import is_profile, is_run, open

    return is_profile(path) or (path.is_dir() and is_run(path)) or open(path, workers=workers).timing is not None


def allocated(path: Path) -> "pa.Table | None":
    """What the allocator did, where the profiler recorded it."""
    from etude.opening import is_profile
    from etude.store import compressed

    if not is_profile(path) or not re.search(rb'"profile_memory":\s*1', compressed.head(path, 1 << 16)):
        return None
    from etude.ingest import allocations, reading

    return allocations.allocations(reading.load_device(path))


def plain(path: Path) -> str:
    """The name of a file or folder without what only says its format."""
    name = path.resolve().name
    for ending in (".gz", ".zst", ".json", ".et", ".pt.trace", ".kineto", "_kineto"):
        name = name.removesuffix(ending)
    return name or str(path)


def named_apart(runs: "list[tuple[Run, str]]") -> "tuple[str, list[tuple[Run, str]]]":
    """A title for two runs, and the runs: two of one name are called by where their times come from, or by order."""
    names = [name for _, name in runs]
    if names[0] != names[1]:
        return f"{names[0]} and {names[1]}", runs
    origins = [run.timing.origin.name.lower() for run, _ in runs]
    places = origins if origins[0] != origins[1] else ["first", "second"]
    apart = [(run, place) for (run, _), place in zip(runs, places, strict=True)]
    return f"{names[0]}: {places[0]} and {places[1]}", apart
