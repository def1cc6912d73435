"""A folder of what the ranks of a run recorded: which file is what, and all ranks linked into one job.

`etude collect` writes `trace.rank0.et.json.gz` and its like. Other names that are understood, with any of `.json`,
`.json.gz`, `.json.zst`: `ddp_rank0_et` and `ddp_rank0_kineto`, `host.0` and `device.0`, `dlrm.rank3`, `dlrm.3`. A file
without a rank in its name has that of its content (`recordings`), whatever it is called.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

import msgspec

from etude.errors import FormatError, UsageError
from etude.ingest import causal, reading, recordings
from etude.ingest.causal import Linked
from etude.ingest.spill import Spilled, release_memory, spill
from etude.ingest.windows import agreed
from etude.model.job import Job
from etude.store import compressed

Spread: TypeAlias = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Iterator[Any]]
"""Calls a function with each of these arguments, wherever that may be, and gives the results as they are done."""

LARGE: Final = 200_000_000
"""Bytes of JSON from which processes of their own are worth starting."""
UNPACKS, TAKES = 14, 4
"""A packed trace is so many times larger, and linking a rank takes so many times its JSON in memory."""
HOST, DEVICE, FLIGHT, MANIFEST = "host", "device", "flight", "manifest"
_ROLES: Final = {
    "et": HOST,
    "host": HOST,
    "kineto": DEVICE,
    "device": DEVICE,
    "trace": DEVICE,
    "fr": FLIGHT,
    "manifest": MANIFEST,
}
_WORDS: Final = "|".join(_ROLES)
_NAME: Final = re.compile(
    rf"(?P<stem>.*?)(?:(?:^|[._-])(?P<before>{_WORDS})(?=[._-]))?"
    rf"(?:(?:^|[._-])rank[._-]?(?P<rank>\d+)|\.(?P<number>\d+))?(?:(?:^|[._-])(?P<behind>{_WORDS}))?"
)
RECORDING: Final = "recording"
"""What recordings of ranks are called that their names do not tell apart: recording1, recording2."""
_PROCESS: Final = re.compile(r"\.process\d+$")
_ENDINGS: Final = (".json", ".json.gz", ".json.zst")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFiles:
    """The files of one rank. There is a device trace in all of them."""

    rank: int | None
    device: Path
    host: Path | None = None
    flight: Path | None = None
    manifest: Path | None = None


def find_run(path: Path) -> tuple[str, list[RankFiles]]:
    """(name, ranks) of the run in a folder, or of the one that is called `folder/name`."""
    if recordings.is_list(path):
        return _listed(path)
    runs = _jobs(runs_in(path))
    if not runs:
        raise UsageError("no device trace of PyTorch's profiler is in it", where=str(path), hint="`*.kineto.json.gz`")
    if len(runs) > 1:
        shown = ", ".join(f"`{name or '*'}` ({_said(ranks)})" for name, ranks in list(runs.items())[:8])
        first, of_it = next(iter(runs.items()))
        hint = f"name one: {of_it[0].device if len(of_it) == 1 else f'{path}/{first}'}"
        raise UsageError(f"several runs in one folder: {shown}", where=str(path), hint=hint)
    name, ranks = next(iter(runs.items()))
    folder = path if path.is_dir() else path.parent
    return name or folder.resolve().name, ranks


def _said(ranks: Sequence[RankFiles]) -> str:
    if len(ranks) == 1:
        return f"one rank: {ranks[0].device.name}"
    return f"{len(ranks)} ranks: {ranks[0].device.name} to {ranks[-1].device.name}"


def _jobs(runs: dict[str, list[RankFiles]]) -> dict[str, list[RankFiles]]:
    """Less the processes that lie beside the ranks of a job; those are opened by their names."""
    ranks = {name: files for name, files in runs.items() if not _PROCESS.search(name)}
    return ranks or runs


def runs_in(path: Path) -> dict[str, list[RankFiles]]:
    """Name -> ranks of each run in a folder, or of the one that is called `folder/name`."""
    folder, wanted = (path, None) if path.is_dir() else (path.parent, path.name)
    runs = _by_name(folder, wanted)
    if wanted is None or (not runs and wanted.startswith(RECORDING) and folder.is_dir()):
        runs = _by_content(_by_name(folder, None))
        return runs if wanted is None else {name: runs[name] for name in runs if name == wanted}
    return runs


def _by_name(folder: Path, wanted: str | None) -> dict[str, list[RankFiles]]:
    """Runs as file names tell them."""
    found: dict[str, dict[int | None, dict[str, Path]]] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (entry := _place(file)) is None or (wanted is not None and entry[0] != wanted):
            continue
        stem, rank, role = entry
        files = found.setdefault(stem, {}).setdefault(rank, {})
        if role in files:
            raise UsageError(f"two files are the {role} trace of rank {rank}: {files[role].name}, {file.name}",
                             where=str(folder))  # fmt: skip
        files[role] = file
    runs: dict[str, list[RankFiles]] = {}
    for stem, files_of in found.items():
        numbers = sorted((rank for rank in files_of if DEVICE in files_of[rank]), key=lambda rank: rank or 0)
        if numbers:
            runs[stem] = [RankFiles(rank=rank, **files_of[rank]) for rank in numbers]
    return runs


def hosts_in(path: Path) -> dict[str, dict[int, Path]]:
    """Name -> rank -> host trace of each run in a folder of which no device trace is there, or of the one that is
    called `folder/name`; of a file itself."""
    if path.is_file():
        place = _place(path)
        number = place[1] if place is not None else None
        return {reading.stem(path): {number or 0: path}} if _is_host(path) else {}
    folder, wanted = (path, None) if path.is_dir() else (path.parent, path.name)
    found: dict[str, dict[int, Path]] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        place = _place(file)
        if place is not None and place[2] == HOST and wanted in (None, place[0]) and _is_host(file):
            found.setdefault(place[0], {})[place[1] or 0] = file
    return found


def _is_host(file: Path) -> bool:
    """What PyTorch's observer wrote: it says its schema, and has nodes."""
    if not file.name.endswith(_ENDINGS):
        return False
    head = compressed.head(file, 1 << 16)
    return b'"schema"' in head and b'"nodes"' in head and b'"traceEvents"' not in head


def _by_content(runs: dict[str, list[RankFiles]]) -> dict[str, list[RankFiles]]:
    """The same, with files that have no rank in their names put together by the ranks that they say they are."""
    loose = {name: ranks[0] for name, ranks in runs.items()
             if len(ranks) == 1 and ranks[0].rank is None and not _PROCESS.search(name)}  # fmt: skip
    if len(loose) < 2:
        return runs
    found = recordings.by_rank([one.device for one in loose.values()])
    of_file = {one.device: (name, one) for name, one in loose.items()}
    for number, files in enumerate(found, 1):
        for file in files.values():
            del runs[of_file[file][0]]
        name = f"{RECORDING}{number}" if len(found) > 1 or runs else ""
        runs[name] = [replace(of_file[file][1], rank=rank) for rank, file in files.items()]
    return runs


def _listed(path: Path) -> tuple[str, list[RankFiles]]:
    """(Name, ranks) of a list of files; a rank is that of the name of a file, else that of its content."""
    files = recordings.listed(path)
    found: dict[int | None, dict[str, Path]] = {}
    for file in files:
        place = _place(file)
        if place is None:
            hint = "a list is of files of PyTorch's profiler; other formats are opened as a folder or `folder/name`"
            raise UsageError("not a trace of PyTorch's profiler", where=str(file), hint=hint)
        _, rank, role = place
        if rank is None and role == DEVICE and len(files) > 1:
            rank = recordings.said(file).rank
            if rank < 0:
                hint = "a list has one file of each rank; other recordings are opened one by one"
                raise UsageError("does not say which rank it is", where=str(file), hint=hint)
        other = found.setdefault(rank, {}).setdefault(role, file)
        if other is not file:
            hint = "name one of them: a list is the ranks of one recording"
            raise UsageError(f"both are the {role} trace of rank {rank}: {other}, {file}", hint=hint)
    if bare := sorted(str(rank) for rank, roles in found.items() if DEVICE not in roles):
        raise UsageError(f"no device trace of rank {', '.join(bare)} is in the list", where=str(path)[:200])
    ranks = [RankFiles(rank=rank, **found[rank]) for rank in sorted(found, key=lambda rank: rank or 0)]
    return files[0].resolve().parent.name, ranks


def _place(file: Path) -> tuple[str, int | None, str] | None:
    """(stem, rank, role) of a file; None where it is none of a run."""
    ending = next((e for e in sorted(_ENDINGS, key=len, reverse=True) if file.name.endswith(e)), "")
    match = _NAME.fullmatch(file.name.removesuffix(ending)) if ending and file.is_file() else None
    if match is None:
        return None
    number = match["rank"] or match["number"]
    word = match["behind"] or match["before"]
    role = _ROLES[word] if word else DEVICE
    if role in (HOST, DEVICE) and not _holds(file, role):
        return None
    return match["stem"].rstrip("._-"), int(number) if number and len(number) < 8 else None, role


def _holds(file: Path, role: str) -> bool:
    head = compressed.head(file, 1 << 16)
    events = b'"traceEvents"' in head or b'"schemaVersion"' in head
    return events if role == DEVICE else not events


# -- linking -----------------------------------------------------------------------------------------------------------


def link_rank(files: RankFiles, max_bytes: int | None = None) -> Linked:
    """One rank from its files."""
    device = reading.load_device(files.device, max_bytes)
    release_memory()  # the text
    host = reading.load_host(files.host, max_bytes) if files.host else None
    flight, manifest = _json(files.flight, max_bytes), _json(files.manifest, max_bytes)
    entries, groups = flight.get("entries"), manifest.get("process_groups")
    linked = causal.convert(
        device,
        host,
        rank=files.rank,
        flight=entries if isinstance(entries, list) else (),
        groups=groups if isinstance(groups, list) else (),
    )
    del device, host
    release_memory()
    world = manifest.get("world_size")
    linked = replace(linked, unprofiled_step_ns=_unprofiled(manifest), threads=_threads(manifest))
    return replace(linked, world_size=max(linked.world_size, world)) if isinstance(world, int) else linked


def _unprofiled(manifest: Mapping[str, Any]) -> int:
    """Time of a step that `etude collect` measured without the profiler; 0 where it did not."""
    steps = manifest.get("steps")
    found = steps.get("unprofiled") if isinstance(steps, Mapping) else None
    took = found.get("step_ns") if isinstance(found, Mapping) else None
    return took if isinstance(took, int) and took > 0 else 0


def _threads(manifest: Mapping[str, Any]) -> int:
    """Threads of an operator on the CPU, as `etude collect` saw them; 0 where it did not."""
    devices = manifest.get("devices")
    for one in devices if isinstance(devices, list) else ():
        if isinstance(one, Mapping) and isinstance(threads := one.get("threads"), int):
            return max(threads, 0)
    return 0


def manifest_of(files: RankFiles) -> Mapping[str, Any]:
    """What `etude collect` says of a rank; empty where it was not what recorded it."""
    return _json(files.manifest, None)


def _json(path: Path | None, max_bytes: int | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    heap, size = compressed.load(path, max_bytes)
    try:
        found = msgspec.json.decode(heap[:size].tobytes())
    except msgspec.DecodeError as problem:
        raise FormatError(f"not JSON: {problem}", path=path) from None
    return found if isinstance(found, dict) else {}


def workers_for(ranks: Sequence[RankFiles]) -> int:
    """Processes that pay: as many as cores where ranks are large, and no more than half of the memory has room for."""
    sizes = [UNPACKS * f.stat().st_size if f.suffix in (".gz", ".zst") else f.stat().st_size
             for files in ranks for f in (files.device, files.host) if f is not None]  # fmt: skip
    if sum(sizes) < LARGE:
        return 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 8 << 30
    return max(1, min(os.cpu_count() or 1, len(ranks), memory // 2 // (TAKES * max(sizes))))


def link_run(
    ranks: Sequence[RankFiles],
    *,
    workers: int = 1,
    max_bytes: int | None = None,
    any_window: bool = False,
    advance: Callable[[int], None] = lambda amount: None,
    spread: Spread | None = None,
) -> list[Linked]:
    """All ranks, in processes of their own where `workers` says so, or where `spread` calls functions: on other
    machines that see the same files. `advance` is told of each that is done. Columns of large ranks lie in files
    without a name, in the folder for temporary ones. Ranks that recorded different parts of the run are cut to what all
    recorded, or refused where that is nothing, unless `any_window`."""
    if len(ranks) == 1 and spread is None:
        done = [link_rank(ranks[0], max_bytes)]
        advance(1)
        return done
    with TemporaryDirectory(prefix="etude-") as folder:
        done = []
        places = [Path(folder) / str(number) for number in range(len(ranks))]
        each = _each(ranks, places, workers, max_bytes) if spread is None else _there(ranks, places, spread, max_bytes)
        for one in each:
            done.append(one.take() if isinstance(one, Spilled) else _sealed(one))
            advance(1)
    found = _distinct(done)
    if any_window or len(ranks) == 1:
        return found
    said = {files.rank: manifest_of(files) for files in ranks if files.rank is not None and files.manifest is not None}
    return agreed(found, said, str(ranks[0].device.parent))


def _each(
    ranks: Sequence[RankFiles], places: list[Path], workers: int, max_bytes: int | None
) -> Iterator[Linked | Spilled[Linked]]:
    """The ranks as they are done."""
    if workers <= 1:
        for files, place in zip(ranks, places, strict=True):
            yield _spilled(files, place, max_bytes)
        return
    with ProcessPoolExecutor(min(workers, len(ranks))) as pool:
        jobs = [pool.submit(_spilled, files, place, max_bytes) for files, place in zip(ranks, places, strict=True)]
        try:
            for job in as_completed(jobs):
                yield job.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _there(
    ranks: Sequence[RankFiles], places: list[Path], spread: Spread, max_bytes: int | None
) -> Iterator[Linked | Spilled[Linked]]:
    """As `_each`, of ranks that come from other machines."""
    for place, packed in zip(
        places, spread(_packed, [(_whole_paths(files), max_bytes) for files in ranks]), strict=True
    ):
        yield spill(pickle.loads(packed), place)
        release_memory()


def _packed(files: RankFiles, max_bytes: int | None) -> bytes:
    """A rank as bytes: arrays of a store of objects would go with it."""
    return pickle.dumps(link_rank(files, max_bytes), protocol=5)


def _whole_paths(files: RankFiles) -> RankFiles:
    """Machines have other working folders."""
    paths = {name: getattr(files, name) for name in ("device", "host", "flight", "manifest")}
    return replace(files, **{name: path and path.resolve() for name, path in paths.items()})


def _spilled(files: RankFiles, place: Path, max_bytes: int | None) -> Linked | Spilled[Linked]:
    found = spill(link_rank(files, max_bytes), place)
    release_memory()
    return found


def _sealed(one: Linked) -> Linked:
    """Arrays that come from another process can be written to; a trace is made anew, which seals them."""
    return replace(one, part=replace(one.part, trace=one.part.trace.replace()))


def _distinct(done: list[Linked]) -> list[Linked]:
    done.sort(key=lambda one: one.part.rank)
    for one, other in pairwise(done):
        if one.part.rank == other.part.rank:
            raise UsageError(
                f"two traces say that they are rank {one.part.rank}",
                hint="name the files `name.rank{N}.kineto.json.gz`",
            )
    return done


def total_report(name: str, job: Job, done: Sequence[Linked]) -> dict[str, Any]:
    """The coverage of all ranks together, and of each."""
    summed = ("device_ops", "device_ops_linked", "host_ops", "host_ops_timed", "collectives", "p2p")
    report: dict[str, Any] = {key: sum(one.report[key] for one in done) for key in summed}
    reasons: dict[str, int] = {}
    for one in done:
        for entry in one.report["unmatched"]:
            reasons[entry["reason"]] = reasons.get(entry["reason"], 0) + entry["count"]
    report["unmatched"] = [{"reason": reason, "count": count} for reason, count in reasons.items()]
    report["span_ns"] = max(one.report["span_ns"] for one in done)
    report |= {key: sum(one.report[key] for one in done) for key in ("nodes", "dependencies")}
    ranks = [{"rank": one.part.rank, **one.report} for one in done]
    return {"job": name, "world_size": job.world_size, **report, "ranks": ranks}
