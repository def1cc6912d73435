"""Open anything that holds a job, or an algorithm: looks at what is there, then calls the reader for it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base import remote
from etude.base.errors import ClusterError, UsageError, in_file
from etude.model.schema import Collective

if TYPE_CHECKING:
    from etude.capture.ingest import runs
    from etude.cost.schedule import Schedule
    from etude.model.check.findings import Finding
    from etude.model.job import Job
    from etude.model.run import Run


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of input: how to know it and what reads it."""

    name: str
    holds: Callable[[Path], bool]
    read: Callable[..., Job]


def open(
    path: str | os.PathLike[str],
    *,
    groups: str | os.PathLike[str] | None = None,
    workers: int = 1,
    max_bytes: int | None = None,
    ranks: int | None = None,
    passes: int | None = None,
    advance: Callable[[int], None] = lambda amount: None,
    spread: runs.Spread | None = None,
    times: runs.WantedTimes | None = None,
    as_recorded: bool = False,
) -> Job:
    """The job at `path`: a folder of `name.{rank}.et`, one such file, the prefix `folder/name`, JSON, a Parquet folder
    written by Etude, what PyTorch's profiler wrote (`.json`, `.json.gz`), dumps of its Flight Recorder, or a trace of
    another profiler (docs/readers.md). An address (`s3://bucket/run/`, `https://...`) is fetched first
    (`remote.py`). `groups` names a communicator-group file, `max_bytes` bounds what a file may unpack to, `advance`
    is called as ranks are read, `workers` at a time (0: of large recordings as many as there are cores, else one).
    `ranks` and `passes` are for an ASTRA-sim text workload, which does not say how many there are. `spread` links the
    ranks of a recorded run elsewhere: `etude.extend.spread("auto")` on a Ray cluster whose machines see the same
    files. `as_recorded` takes the times under the profiler, of a recording or a Parquet job that has those of the
    program; `times` says in detail whose times a recording gets.

    Recorded times, where there are any, are kept as `job.timing`; `open_run` opens a job together with them, as
    analyses take it. Of a profiler's trace they are those of every operator, call and device activity.

    job = etude.open("job/")
    """
    place = remote.local(path)
    if is_text(place):
        return _read_text(place, ranks, passes)
    if ranks is not None or passes is not None:
        raise UsageError(
            "already has a number of ranks", where=str(path), hint="--ranks applies only to text workloads"
        )
    options: dict[str, Any] = {"groups": groups, "workers": workers, "max_bytes": max_bytes, "advance": advance}
    times = _recorded_times() if as_recorded else times
    kind = sniff(place)
    if spread is not None:
        if kind.read is not _read_run:
            raise UsageError(
                "a cluster can only read runs with a profiler file per rank", where=str(path), hint="leave out --ray"
            )
        options["spread"] = spread
    if times is not None and (kind.read in (_read_run, _read_profile) or not times.is_usual):
        if kind.read not in (_read_run, _read_profile):
            return _stored(kind.read(place, options), times, str(path))
        options["times"] = times
    return kind.read(place, options)


def _recorded_times() -> runs.WantedTimes:
    from etude.capture.ingest import runs

    return runs.WantedTimes(as_recorded=True)


def _stored(job: Job, times: runs.WantedTimes, where: str) -> Job:
    """A job that was stored, with the times that are wanted: it has those it was written with, one set or both."""
    from etude.model.as_recorded import as_recorded

    if times.as_recorded:
        return as_recorded(job, where)
    hint = "--as-recorded applies to stored jobs as well"
    raise UsageError("is no recording of PyTorch's profiler: only a recording is timed anew", where=where, hint=hint)


def open_run(path: str | os.PathLike[str], **options: Any) -> Run:
    """The run at `path`: its job, the times that were recorded, and the card that is stored with it. Options are those
    of `open`. A job without times is refused: `etude.simulate` makes a run of it.

    run = etude.open_run("trace.json.gz")
    """
    from etude.model import run
    from etude.store import cards

    place = remote.local(path)
    return run.recorded(open(place, **options), card=cards.find(place))


def check(path: str | os.PathLike[str], *, complete: bool = False, **options: Any) -> list[Finding]:
    """What is wrong with the job at `path`, as `etude.check` finds it; of many ranks a few are held at a time. Options
    are those of `open`."""
    from etude.model.check.whole import check as check_job
    from etude.store import streamed

    place = remote.local(path)
    read = None if options.get("times") else _rank_by_rank(place, options)
    if read is not None:
        return streamed.check_ranks(read, place, complete=complete, **options)
    return check_job(open(place, **options), complete=complete)


def summary(path: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
    """What is in the job at `path`, in numbers; of many ranks a few are held at a time. Options are those of `open`."""
    from etude.model.summary import summary as summary_of
    from etude.store import chakra, streamed

    place = remote.local(path)
    read = None if options.get("times") else _rank_by_rank(place, options)
    if read is not None:
        return streamed.summarise_ranks(read, place, **options)
    job = open(place, **options)
    return summary_of(job) | {"written_by": chakra.written_by(job)}


def _rank_by_rank(path: Path, options: dict[str, Any]) -> Callable[..., Job] | None:
    """What reads a job rank by rank, where its ranks have traces of their own and a store that can; `options` are
    left with those that it takes."""
    if is_columns(path):
        from etude.store import columns_thin

        refuse_for_columns(path, options.get("groups"), options.get("max_bytes"))
        if not columns_thin.is_unfolded(path):
            return None
        for name in ("groups", "max_bytes", "workers"):
            options.pop(name, None)
        return columns_thin.read_thin
    if not _is_et(path):
        return None
    from etude.store import chakra

    return chakra.read_thin


def is_text(path: Path) -> bool:
    """An ASTRA-sim text workload?"""
    return path.suffix == ".txt" and path.is_file()


def _read_text(path: Path, ranks: int | None, passes: int | None) -> Job:
    from etude.capture.ingest import text

    return text.read_text(path, ranks, passes=1 if passes is None else passes)


def sniff(path: Path) -> Format:
    """What kind of input is at `path`."""
    for kind in FORMATS:
        if kind.holds(path):
            return kind
    if not path.exists():
        raise UsageError(
            "no such file or folder", where=str(path), hint="a folder, a file, or a prefix of `.N.et` files"
        )
    what = "this folder has no trace" if path.is_dir() else "is not a trace in a format that Etude reads"
    raise UsageError(what, where=str(path), hint=f"supported formats: {', '.join([f.name for f in FORMATS] + [TEXT])}")


def _ends(name: str, ending: str) -> bool:
    return name.endswith((ending, f"{ending}.gz", f"{ending}.zst"))


def is_columns(path: Path) -> bool:
    """A folder with the manifest of a Parquet job, or what is left of one."""
    manifest = path / "manifest.json"
    if not manifest.is_file():
        return False
    with manifest.open("rb") as f:
        ours = b'"etude job"' in f.read(512)
    return ours or (path / "nodes.parquet").is_file()


def _read_columns(path: Path, options: dict[str, Any]) -> Job:
    from etude.store import columns

    refuse_for_columns(path, options["groups"], options["max_bytes"])
    return columns.read_job(path)


def refuse_for_columns(path: Path, groups: object, max_bytes: int | None) -> None:
    """What cannot be said of a Parquet job: other groups than its own, and a size below its own."""
    if groups is not None:
        raise UsageError("a Parquet job contains its groups", where=str(path), hint="leave out --groups")
    size = sum(entry.stat().st_size for entry in path.iterdir()) if max_bytes is not None else 0
    if max_bytes is not None and size > max_bytes:
        raise UsageError(f"{size} bytes, more than the limit of {max_bytes}", where=str(path), hint="raise --max-bytes")


def _holds(path: Path, ending: str) -> bool:
    """Is `path` a file with this ending, a folder of `name.{rank}` files with it, or the prefix of such files?"""
    if path.is_file():
        return _ends(path.name, ending)
    folder, stem = (path, "") if path.is_dir() else (path.parent, f"{path.name}.")
    if not folder.is_dir():
        return False
    with os.scandir(folder) as entries:
        return any(_ends(e.name, ending) and e.name.startswith(stem) and _has_rank(e.name, ending) for e in entries)


def _has_rank(name: str, ending: str) -> bool:
    return name[: name.rfind(ending)].rpartition(".")[2].isdigit()


def _read_chakra(path: Path, options: dict[str, Any]) -> Job:
    from etude.store import chakra

    return chakra.read_job(path, **options)


def _is_et(path: Path) -> bool:
    return _holds(path, ".et")


def _is_json(path: Path) -> bool:
    return _holds(path, ".json")


def _read_json(path: Path, options: dict[str, Any]) -> Job:
    from etude.store import json

    return json.read_job(path, **options)


_HEAD = 1 << 16
_EVENTS = re.compile(rb'"traceEvents"|^\s*\[\s*\{[^}]*"ph"')


def is_profile(path: Path) -> bool:
    """A file of PyTorch's profiler: Chrome's JSON, which has its events in the first lines or says so there."""
    if not path.is_file() or not _ends(path.name, ".json"):
        return False
    from etude.store import compressed

    head = compressed.head(path, _HEAD)
    return _EVENTS.search(head) is not None or (b'"schemaVersion"' in head and b'"workload_graph"' not in head)


def is_run(path: Path) -> bool:
    """A folder of what the ranks of a run recorded, the name of one run in it, or a list of files."""
    from etude.capture.ingest import runs

    if runs.is_list(path):
        return not runs.hosts_in(path)
    folder = path if path.is_dir() else path.parent
    if path.is_file() or not folder.is_dir() or not any(_ends(entry.name, ".json") for entry in os.scandir(folder)):
        return False
    return bool(runs.runs_in(path))


def _read_run(path: Path, options: dict[str, Any]) -> Job:
    from etude.capture.ingest import causal, runs

    name, ranks = runs.find_run(path, options.get("times"))
    chosen: dict[str, Any] = {key: options[key] for key in ("max_bytes", "advance", "spread") if key in options}
    chosen["workers"] = options["workers"] or runs.workers_for(ranks)
    return _named(causal.to_job(name, runs.link_run(ranks, **chosen)), options)


def _named(job: Job, options: dict[str, Any]) -> Job:
    """The job; groups that were not recorded are those of the file that was given."""
    from etude.capture.ingest import named_groups

    return job if options["groups"] is None else named_groups.with_named_groups(job, Path(options["groups"]))


def recorded(path: Path, *, workers: int = 1) -> Job:
    """The run that was recorded in a folder, whatever else is there."""
    nothing: dict[str, Any] = {"groups": None, "max_bytes": None, "advance": lambda amount: None}
    return _read_run(path, nothing | {"workers": workers})


def _read_profile(path: Path, options: dict[str, Any]) -> Job:
    from etude.capture.ingest import causal, reading, runs

    times = options.get("times") or runs.WantedTimes()
    linked = runs.link_run([runs.RankFiles(rank=None, device=path, times=times)], max_bytes=options["max_bytes"])
    options["advance"](1)
    return _named(causal.to_job(reading.stem(path), linked), options)


def is_hosts(path: Path) -> bool:
    """What PyTorch's ExecutionTraceObserver wrote, and no device trace next to it?"""
    from etude.capture.ingest import runs

    return bool(runs.hosts_in(path))


def _read_hosts(path: Path, options: dict[str, Any]) -> Job:
    from etude.capture.ingest import runs

    return _named(runs.host_job(path, options["max_bytes"], options["advance"]), options)


def is_other_profile(path: Path) -> bool:
    """A trace of JAX, Nsight Systems or rocprof, or a folder of one?"""
    from etude.capture.ingest import profiles

    return profiles.is_profile(path)


def _read_other_profile(path: Path, options: dict[str, Any]) -> Job:
    from etude.capture.ingest import profiles

    return profiles.read_job(path, options)


def is_dumps(path: Path) -> bool:
    """Dumps of PyTorch's Flight Recorder, and no trace next to them?"""
    from etude.capture.ingest import profiles

    return bool(profiles.dumps_in(path))


def _read_dumps(path: Path, options: dict[str, Any]) -> Job:
    from etude.capture.ingest import profiles

    if options["groups"] is not None:
        raise UsageError("the dumps contain their groups", where=str(path), hint="leave out --groups")
    return profiles.read_dumps(path, max_bytes=options["max_bytes"], advance=options["advance"])


TEXT = "ASTRA-sim text workloads (`.txt`)"
FORMATS = (
    Format("an Etude Parquet folder", is_columns, _read_columns),
    Format("Chakra `.et` files (`name.{rank}.et`, also .gz and .zst)", _is_et, _read_chakra),
    Format(
        "a trace of JAX (`.xplane.pb`), Nsight Systems (`.sqlite`) or rocprof (`.json`)",
        is_other_profile,
        _read_other_profile,
    ),
    Format("a trace of PyTorch's profiler (Kineto `.json`, also .gz and .zst)", is_profile, _read_profile),
    Format(
        "a folder of such traces, one per rank, or a list of them (`a.json,b.json`, `run/*.json`)", is_run, _read_run
    ),
    Format(
        "a host trace of PyTorch's ExecutionTraceObserver, without times (`name.rank0.et.json`)", is_hosts, _read_hosts
    ),
    Format("dumps of PyTorch's Flight Recorder (JSON or pickle, one per rank)", is_dumps, _read_dumps),
    Format("Chakra JSON (`name.{rank}.json`, `workload_graph`)", _is_json, _read_json),
)


# -- algorithms --------------------------------------------------------------------------------------------------------


def is_algorithm_file(text: str) -> bool:
    """Whether a text on the command line names a file or a prefix of one, rather than an algorithm of ours."""
    path = Path(text)
    return path.suffix in (".xml", ".et", ".json") or path.exists() or path.with_name(f"{path.name}.0.et").exists()


def open_algorithm(path: str | os.PathLike[str], collective: str | Collective = Collective.NONE) -> Schedule:
    """A collective algorithm of your own: MSCCL-style XML, an execution plan of MSCCL++ (JSON), or a Chakra job of
    sends and receives."""
    from etude.cost.execution_plans import from_execution_plan, is_execution_plan
    from etude.cost.schedule_files import from_job, from_msccl

    what = Collective.parse(collective) if isinstance(collective, str) else collective
    place = Path(path)
    with in_file(str(place)):
        if place.suffix == ".xml":
            try:
                return from_msccl(place.read_bytes())
            except OSError as problem:
                raise ClusterError(str(problem.strerror or problem).lower()) from None
        if place.suffix == ".json" and place.is_file() and is_execution_plan(plan := place.read_bytes()):
            return from_execution_plan(plan)
        return from_job(open(place), what)
