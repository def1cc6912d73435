"""Many runs in one place: what the verbs of `etude archive` ask for."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, switch, text
from etude.base.outputs import Printed, Tabled
from etude.base.talk import progress, say
from etude.steps.asked.runs import RAN_ON_HELP, SYSTEM_HELP, TIMING_HELP, WORKERS_HELP, RunSource
from etude.steps.asked.times import TimesInput, TimesWanted, times_wanted

if TYPE_CHECKING:
    import pyarrow as pa


LAKE = "lake"
FOLDER = f"folder of the archive; by default $ETUDE_ARCHIVE, or `{LAKE}`"
LISTED = "run, name, origin, start_ns, span_ns, ranks, steps, system, model, path"


@dataclass(frozen=True, kw_only=True)
class InArchive:
    """The parameter of what is about one archive."""

    into: str | None = figure("path", FOLDER, None, names=("--in",))


@dataclass(frozen=True, kw_only=True)
class AddRuns(TimesInput):
    """Add the metrics, steps, collectives, findings and card of runs to an archive

    etude archive add run/ --into lake/
    etude archive add runs/a/ runs/b/ --into lake/

    The same run is recognised in any format and added once. Several processes may add runs at the same time.
    """

    paths: tuple[str, ...] = argument("paths", "runs: anything that `etude report` reads")
    into: str | None = figure("out", f"{FOLDER}; it is created if it does not exist", None, names=("--in",))
    ran_on: str = text(RAN_ON_HELP, names=("--device",), like="h100")
    force: bool = switch("replace the rows of a run that is already there", names=("-f",))
    system: str = text(SYSTEM_HELP, names=("-s",), like="dgx-h100")
    timing: str | None = figure("path", TIMING_HELP, None)
    workers: int = figure("count", WORKERS_HELP, 0, names=("-j",))
    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class QueryRuns(InArchive):
    """SQL over all runs: runs, metrics, steps, collectives, findings, cards

    etude archive query "select name, value from metrics join runs using (run) where metric = 'step time'"
    """

    sql: str = argument("text", "tables: runs, metrics, steps, collectives, findings, cards", like="select 1")
    output: Tabled = part(Tabled)


@dataclass(frozen=True, kw_only=True)
class ListRuns(InArchive):
    """The runs of an archive, by the time of their start

    etude archive list --in lake/
    """

    output: Tabled = part(Tabled)


@dataclass(frozen=True, kw_only=True)
class ChangedRuns(InArchive):
    """Where the step time of archived runs changed, its cause, and the commit or setting that differs

    etude archive changes --in lake/
    etude archive changes --in lake/ --least 0.05
    """

    least: float = figure("number", "smallest change of the step time, as a fraction", 0.03)
    output: Tabled = part(Tabled)


@dataclass(frozen=True, kw_only=True)
class CompactArchive(InArchive):
    """Merge the files of many runs into a few, so that queries are fast

    etude archive compact --in lake/

    Nothing is lost if it is interrupted. Other processes may add runs and query them meanwhile.
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class AddInputs:
    paths: tuple[Path, ...]
    into: Path
    force: bool
    ran_on: str
    system: str
    timing: Path | None
    workers: int
    times: TimesWanted = None


def folder_of(into: str | None) -> Path:
    return Path(into or os.environ.get("ETUDE_ARCHIVE") or LAKE)


def add_inputs(asked: AddRuns) -> AddInputs:
    timing = None if asked.timing is None else Path(asked.timing)
    if timing is not None and len(asked.paths) > 1:
        raise UsageError(f"one file of times for {len(asked.paths)} runs", hint="--timing needs exactly one run")
    paths = tuple(map(Path, asked.paths))
    into, wanted = folder_of(asked.into), times_wanted(asked)
    return AddInputs(paths, into, asked.force, asked.ran_on, asked.system, timing, asked.workers, wanted)


def add(given: AddInputs) -> list[dict[str, Any]]:
    from etude import __version__
    from etude.tell.archive import TABLES, Lake, entry_of, fingerprint
    from etude.tell.report import device_of

    lake, rows = Lake(given.into), []
    for path in given.paths:
        run = RunSource(path, given.system, given.timing, workers=given.workers, times=given.times).open()
        key = fingerprint(run)
        new = given.force or key not in lake
        if new:
            with progress(f"analysing {path}", len(TABLES)) as advance:
                device = device_of(run.job, given.ran_on, given.system)
                made = entry_of(run, path=str(path), version=__version__, device=device, advance=advance)
            new = lake.add(made, force=given.force)
        rows.append({"run": key, "path": str(path), "added": new})
        say(f"{path}: {'added' if new else 'already there'}, run {key}")
    return rows


def query_inputs(asked: QueryRuns) -> tuple[Path, str]:
    return folder_of(asked.into), asked.sql


def query(given: tuple[Path, str]) -> "pa.Table":
    from etude.tell.archive import Lake

    folder, sql = given
    return Lake(folder).query(sql)


def list_inputs(asked: ListRuns) -> tuple[Path, str]:
    return folder_of(asked.into), f"select {LISTED} from runs order by start_ns, run"


def changes_inputs(asked: ChangedRuns) -> tuple[Path, float]:
    return folder_of(asked.into), asked.least


def changes(given: tuple[Path, float]) -> "pa.Table":
    from etude.tell.archive import QUERIES, Lake, run_changes

    folder, least = given
    lake = Lake(folder)
    found = run_changes({name: lake.query(sql) for name, sql in QUERIES.items()}, least)
    if not len(found):
        say(f"{len(lake):,} runs; no step time differs from that of the run before by {100 * least:g}% or more")
    return found


def compact_inputs(asked: CompactArchive) -> Path:
    return folder_of(asked.into)


def compact(into: Path) -> dict[str, int]:
    from etude.tell.archive import TABLES, Lake

    with progress(f"merging the files of {into}", len(TABLES)) as advance:
        done = Lake(into).compact(advance)
    say(f"{into}: {done.runs:,} runs merged, {done.files_before:,} files before, {done.files_after:,} now")
    return asdict(done)


def nothing(result: Any) -> None:
    """All is said already."""
