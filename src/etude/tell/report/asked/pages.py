"""One HTML page about a run, two runs, a served stream or fleets: what `etude.report` and the command write alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from etude import __version__
from etude.base.errors import UsageError
from etude.base.files import writing
from etude.model.run import Run
from etude.steps.asked.nouns import as_run
from etude.steps.asked.repetitions import allocated as allocated

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.machine import Device
    from etude.tell.report.outcome import OutcomeSubject
    from etude.tell.report.subject import Subject


Named: TypeAlias = tuple[Run, str]
What: TypeAlias = "Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]]"
BY = f"Etude {__version__}"
SIDE_BY_SIDE = ("train", "jobs", "rl", "jobs and rl")
"""Outcomes of fleets whose hours are shown next to each other, whichever of these they are."""
FORMATS = (".gz", ".zst", ".json", ".et", ".pt.trace", ".kineto", "_kineto")


def report(what: What, out: str | os.PathLike[str], *, title: str = "", ran_on: str = "", force: bool = False) -> str:
    """Writes one HTML page about a run, or two that are compared, and gives its verdict, a sentence. A run may be the
    path of one; a folder that `etude serve` or `etude fleet` wrote has a page of its own.

    etude.report(run, "report.html", ran_on="h200")
    """
    several = isinstance(what, Sequence) and not isinstance(what, str)
    given: list[Any] = list(what) if several else [what]  # type: ignore[arg-type]
    paths = [Path(one) for one in given if isinstance(one, str | os.PathLike)]
    if len(paths) == len(given) and is_folder(paths):
        return str(written(lambda: folder_page(paths, title), Path(out), force=force).verdict)
    if not 0 < len(given) < 3:
        raise UsageError("a page shows one run or two", hint='etude.report([a, b], "compare.html")')
    runs = [_opened(one) for one in given]
    memory = allocated(paths[0]) if len(given) == len(paths) == 1 else None
    page = written(lambda: run_page(runs, title=title, ran_on=ran_on, allocated=memory), Path(out), force=force)
    return str(page.verdict)


def _opened(one: Any) -> Named:
    run = as_run("what", one)
    return run, plain(Path(one)) if isinstance(one, str | os.PathLike) else run.job.name


def written(make: Callable[[], Any], out: Path, *, force: bool) -> Any:
    """The page, once it is there. What must not be replaced is refused before the page is made."""
    from etude.tell.view.page import render

    with writing(out, force=force) as place:
        page = make()
        place.write_text(render(page), encoding="utf-8")
    return page


def run_page(
    runs: Sequence[Named], *, title: str = "", ran_on: str = "", system: str = "", allocated: pa.Table | None = None,
    advance: Callable[..., None] | None = None, link_stats: Mapping[str, pa.Table] | None = None,
) -> Any:  # fmt: skip
    """The page of a run, or of two next to each other."""
    from etude.tell.report import comparison
    from etude.tell.report import report as compose

    if len(runs) == 2:
        together, (a, b) = named_apart(runs)
        return comparison(a, b, title=title or together, made_by=BY)
    run, name = runs[0]
    more: dict[str, Any] = {} if advance is None else {"advance": advance}
    on = _device(run, ran_on, system)
    return compose(run, name=title or name, device=on, allocated=allocated, made_by=BY, link_stats=link_stats, **more)


def subject_of(run: Run, *, ran_on: str = "", system: str = "") -> Subject:
    """What a page about this run is made from."""
    from etude.tell.report.subject import Subject

    return Subject(run, run.job.name, device=_device(run, ran_on, system))


def _device(run: Run, ran_on: str, system: str) -> Device | None:
    from etude.tell.report import device_of

    return device_of(run.job, ran_on, system) or (run.system.device if run.system is not None else None)


def is_folder(paths: Sequence[Path]) -> bool:
    """Is one of these what `etude fleet`, `etude serve` or `etude world run` wrote?"""
    return any((path / name).is_file() for path in paths for name in ("fleet.json", "served.json", "outcome.json"))


def folder_page(paths: Sequence[Path], title: str = "") -> Any:
    """The page of what `etude fleet`, `etude serve` or `etude world run` wrote."""
    if any((path / "outcome.json").is_file() for path in paths):
        return _world(paths, title)
    if any((path / "fleet.json").is_file() for path in paths):
        return _fleet(paths, title)
    return _served(paths, title)


def outcome_subject(folder: Path) -> OutcomeSubject:
    """What a page about an outcome is made from."""
    from etude.tell.report.outcome import OutcomeSubject
    from etude.world.fleet import read_fleet
    from etude.world.folder import read_outcome
    from etude.world.serve.stored import read_served

    if (folder / "outcome.json").is_file():
        return OutcomeSubject(*read_outcome(folder))
    found = read_fleet(folder) if (folder / "fleet.json").is_file() else read_served(folder)
    return OutcomeSubject(found.record, found.tables)


def _served(paths: Sequence[Path], title: str) -> Any:
    from etude.tell.report import served_page, workflow_page
    from etude.world.serve.stored import read_served

    if len(paths) > 1:
        raise UsageError("a page shows one served stream", hint="etude report served/ -o serve.html")
    found = read_served(paths[0])
    compose = workflow_page if "sessions" in found.tables else served_page
    return compose(found.record, found.tables, title=title or plain(paths[0]), made_by=BY)


def _world(paths: Sequence[Path], title: str) -> Any:
    from etude.tell.report.world import world_page
    from etude.world.folder import read_outcome

    if len(paths) > 1:
        raise UsageError("a page shows one outcome", hint="etude report out/ -o world.html")
    record, tables = read_outcome(paths[0])
    return world_page(record, tables, title=title or plain(paths[0]), made_by=BY)


def _fleet(paths: Sequence[Path], title: str) -> Any:
    """Of several, side by side."""
    from etude.tell.report.fleet import fleet_page
    from etude.world.fleet import read_fleet

    found = [(plain(path), read_fleet(path)) for path in paths]
    if len({None if folder.outcome in SIDE_BY_SIDE else folder.outcome for _, folder in found}) > 1:
        raise UsageError("fleets of different kinds cannot be shown on one page", hint="write one page for each")
    runs = [(name, folder.record, folder.tables) for name, folder in found]
    return fleet_page(runs, title=title or " and ".join(name for name, _ in found), made_by=BY)


def plain(path: Path) -> str:
    """The name of a file or folder without what only says its format."""
    name = path.resolve().name
    for ending in FORMATS:
        name = name.removesuffix(ending)
    return name or str(path)


def named_apart(runs: Sequence[Named]) -> tuple[str, list[Named]]:
    """A title for two runs, and the runs: two of one name are called by where their times come from, or by order."""
    names = [name for _, name in runs]
    if names[0] != names[1]:
        return f"{names[0]} and {names[1]}", list(runs)
    origins = [run.timing.origin.name.lower() for run, _ in runs]
    places = origins if origins[0] != origins[1] else ["first", "second"]
    apart = [(run, place) for (run, _), place in zip(runs, places, strict=True)]
    return f"{names[0]}: {places[0]} and {places[1]}", apart
