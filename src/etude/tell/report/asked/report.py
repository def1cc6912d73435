"""A page about a run: what `etude report` asks for."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, text
from etude.base.outputs import OutputPlace, Written
from etude.base.talk import progress, say
from etude.steps.asked.edits import before_and_after, edits_of
from etude.steps.asked.repetitions import allocated
from etude.steps.asked.runs import RanOnInput, RunInput, RunSource, times_of
from etude.steps.asked.simulate import link_statistics
from etude.steps.asked.times import times_wanted
from etude.tell.report.asked.pages import folder_page, is_folder, plain, run_page, written

if TYPE_CHECKING:
    from etude.make.transform.edits import Edit
    from etude.model.run import Run


@dataclass(frozen=True, kw_only=True)
class Report(Written, RanOnInput):
    """One HTML page about a run: what happened, why, and where the time goes; it opens offline

    etude report run/ -o report.html
    etude report trace.json.gz
    etude report run/ --system dgx-h100 -o simulated.html
    etude report measured/ simulated/ -o compare.html
    etude report run/ run/ --system dgx-h200 -o compare.html
    etude report served/ -o serve.html
    etude report run/ --edit "speed op=aten::mm by=1.3" -o whatif.html
    """

    paths: tuple[str, ...] = argument(
        "paths", "a job, a profiler trace or a served stream; two runs are compared on one page", like=[["a/", "b/"]]
    )
    out: str = figure("out", "the HTML page to write", "report.html", names=("-o",))
    title: str = text("title of the page; by default the name of the input", like="One day", plain=True)
    edit: tuple[str, ...] = figure(
        "several",
        "apply an edit first: `compress group=dp ratio=2`, or `@FILE`; several are applied in order. See docs/edits.md",
        (),
        like=[["compress group=dp ratio=2"]],
    )
    link_stats: str | None = figure(
        "path",
        "folder of `etude simulate --link-stats`: links over time, and the tails of operations",
        None,
        panel="Input",
    )
    reading: RunInput = part(RunInput, but=("path",))


@dataclass(frozen=True, slots=True)
class ReportInputs:
    paths: tuple[Path, ...]
    place: OutputPlace
    title: str
    sources: tuple[RunSource, ...] = ()
    """Of a page about runs; none where the paths are folders that `etude serve` or `etude fleet` wrote."""
    edits: "tuple[Edit, ...]" = ()
    ran_on: str = ""
    link_stats: Path | None = None


def inputs(asked: Report) -> ReportInputs:
    paths, place, title = (
        tuple(Path(path) for path in asked.paths),
        OutputPlace(Path(asked.out), asked.force),
        asked.title,
    )
    if is_folder(paths):
        return ReportInputs(paths, place, title)
    if len(paths) > 2:
        raise UsageError("a page shows one run or two", hint="etude report measured/ simulated/ -o compare.html")
    edits = tuple(edits_of(list(asked.edit)))
    links = None if asked.link_stats is None else Path(asked.link_stats)
    if links is not None and (edits or len(paths) > 1):
        raise UsageError("--link-stats is for a page of one run", hint="leave out --edit, or the second run")
    if edits and len(paths) > 1:
        raise UsageError("--edit shows one job before and after", hint="PATHS is one job then")
    reading, groups = asked.reading, None if asked.reading.groups is None else Path(asked.reading.groups)
    if edits:
        return ReportInputs(
            paths,
            place,
            title,
            (RunSource(paths[0], reading.system, None, groups, reading.workers, times=times_wanted(reading)),),
            edits,
        )
    system, timing = times_of(reading)
    times = times_wanted(reading)
    sources = tuple(RunSource(path, system, timing, groups, reading.workers, times=times) for path in paths)
    return ReportInputs(paths, place, title, sources, ran_on=asked.ran_on if len(paths) == 1 else "", link_stats=links)


def run(given: ReportInputs) -> Any:
    """The page, once it is written."""
    from etude.tell.report import PARTS

    place, title = given.place, given.title
    if not given.sources:
        return written(lambda: folder_page(given.paths, title), place.path, force=place.force), place.path
    source = given.sources[0]
    if given.edits:
        job = source.job()
        runs = before_and_after(job, given.edits, source.system, title or plain(source.path))
    else:
        runs = opened(given.sources)
    recorded = len(runs) == 1 and not source.system and source.timing is None
    memory = allocated(source.path) if recorded else None
    with progress(f"writing {place.path}", PARTS) as advance:
        more: dict[str, Any] = {
            "ran_on": given.ran_on,
            "system": source.system,
            "allocated": memory,
            "link_stats": None if given.link_stats is None else link_statistics(given.link_stats),
            "advance": advance,
        }
        page = written(lambda: run_page(runs, title=title, **more), place.path, force=place.force)
    return page, place.path


def show(found: Any) -> None:
    """The verdict, the findings, and where the page was written."""
    from etude.tell.view.page import MARKS

    page, out = found
    say(page.verdict)
    for told in page.told:
        say(f"{MARKS[told.tone]} {told.what}{f' [{told.cost}]' if told.cost else ''}")
    say(f"wrote {out}: {out.stat().st_size / 1e6:.2f} MB, opens in any browser")


def record(found: Any) -> dict[str, Any]:
    page, out = found
    findings = [{"what": told.what, "cost": told.cost} for told in page.told]
    return {"verdict": page.verdict, "findings": findings, "written": out.name}


def opened(sources: tuple[RunSource, ...]) -> "list[tuple[Run, str]]":
    """The runs with their names. Of two, the first is taken as recorded where it is, and the second as asked for: so
    a recording is compared with its simulation."""
    runs = []
    for number, source in enumerate(sources):
        asked = source.system or source.timing is not None
        as_recorded = number == 0 and len(sources) == 2 and asked and _has_times(source.path, source.workers)
        found = replace(source, system="", timing=None) if as_recorded else source
        runs.append((found.open(), plain(source.path)))
    return runs


def _has_times(path: Path, workers: int) -> bool:
    from etude.capture.opening import is_profile, is_run, open

    return is_profile(path) or (path.is_dir() and is_run(path)) or open(path, workers=workers).timing is not None
