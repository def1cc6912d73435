"""Links the recordings of all ranks of a run into one job; `rank_files` identifies the files."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

from etude.base.errors import FormatError, UsageError
from etude.capture.ingest import causal, host_alone, program_time, reading
from etude.capture.ingest.causal import Linked
from etude.capture.ingest.comm_recorded import read_calls
from etude.capture.ingest.linked import with_notes
from etude.capture.ingest.program_time import WantedTimes
from etude.capture.ingest.rank_files import RankFiles, find_run, hosts_in, is_list, runs_in
from etude.capture.ingest.spill import Spilled, release_memory, spill
from etude.capture.ingest.windows import agreed
from etude.model.job import Job
from etude.store import compressed

__all__ = [
    "RankFiles",
    "Spread",
    "WantedTimes",
    "find_run",
    "host_job",
    "hosts_in",
    "is_list",
    "link_rank",
    "link_run",
    "manifest_of",
    "runs_in",
    "total_report",
    "workers_for",
]

Spread: TypeAlias = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Iterator[Any]]
"""Calls a function with each of these arguments, possibly on other machines, and yields the results as they are
done."""

LARGE: Final = 200_000_000
"""Bytes of JSON from which separate processes are worth starting."""
UNPACKS, TAKES = 14, 4
"""Expansion factor of a compressed trace, and memory that linking a rank takes, as a multiple of its JSON."""


def host_job(path: Path, max_bytes: int | None = None, advance: Callable[[int], None] = lambda amount: None) -> Job:
    """The job of host traces without device traces."""
    found = hosts_in(path)
    if len(found) > 1:
        hint = f"choose one: {path}/{next(iter(found))}"
        raise UsageError(f"several runs in one folder: {', '.join(list(found)[:8])}", where=str(path), hint=hint)
    name, files = next(iter(found.items()))
    parts = []
    for rank, file in sorted(files.items()):
        parts.append(host_alone.convert_host(reading.load_host(file, max_bytes), rank=rank))
        advance(1)
    return host_alone.to_job(name or path.resolve().name, parts)


def link_rank(files: RankFiles, max_bytes: int | None = None) -> Linked:
    """One rank from its files."""
    device = reading.load_device(files.device, max_bytes)
    release_memory()  # the text
    host = reading.load_host(files.host, max_bytes) if files.host else None
    flight, manifest = _json(files.flight, max_bytes), _json(files.manifest, max_bytes)
    device, timed = program_time.timed(device, _json(files.light, max_bytes), manifest, files.times)
    entries, groups = flight.get("entries"), manifest.get("process_groups")
    linked = causal.convert(
        device,
        host,
        rank=files.rank,
        flight=entries if isinstance(entries, list) else (),
        groups=groups if isinstance(groups, list) else (),
        calls=read_calls(files.calls, max_bytes) if files.calls else (),
    )
    del device, host
    release_memory()
    world = manifest.get("world_size")
    step_ns, least_ns = (_unprofiled(manifest, which) for which in ("step_ns", "least_ns"))
    linked = replace(linked, unprofiled_step_ns=step_ns, unprofiled_least_ns=least_ns)
    linked = replace(linked, threads=_threads(manifest), timed=timed)
    linked = with_notes(linked, _incomplete(files, manifest))
    return replace(linked, world_size=max(linked.world_size, world)) if isinstance(world, int) else linked


def _incomplete(files: RankFiles, manifest: Mapping[str, Any]) -> Iterator[str]:
    """What the manifest says is missing, and what it names and is not there."""
    if manifest.get("partial") is True:
        yield f"was recorded only in part: {manifest.get('reason') or 'the manifest does not say why'}"
    steps = manifest.get("steps")
    counts = steps.get("optimizer_steps") if isinstance(steps, Mapping) else None
    if isinstance(counts, list) and len(distinct := sorted({n for n in counts if type(n) is int})) > 1:
        yield f"has steps of {', '.join(map(str, distinct))} optimizer steps: an iteration may be several of them"
    named = manifest.get("files")
    for name in named.values() if isinstance(named, Mapping) else ():
        if isinstance(name, str) and not (files.device.parent / name).exists():
            yield f"has no `{name}`, which its manifest names: it was removed, or the recording was cut off"


def _without_manifest(done: list[Linked], ranks: Sequence[RankFiles]) -> list[Linked]:
    """Among ranks that `etude collect` recorded, one without a manifest is not known to be complete."""
    bare = {files.rank for files in ranks if files.manifest is None}
    if len(bare) == len(ranks):
        return done
    what = "has no manifest, other ranks have one: its files may be those of another run, or incomplete"
    return [with_notes(one, [what]) if one.part.rank in bare else one for one in done]


def _unprofiled(manifest: Mapping[str, Any], which: str) -> int:
    """Time of steps that `etude collect` measured without the profiler; 0: not measured."""
    steps = manifest.get("steps")
    found = steps.get("unprofiled") if isinstance(steps, Mapping) else None
    took = found.get(which) if isinstance(found, Mapping) else None
    return took if isinstance(took, int) and took > 0 else 0


def _threads(manifest: Mapping[str, Any]) -> int:
    """Threads of an operator on the CPU, as `etude collect` saw them; 0: unknown."""
    devices = manifest.get("devices")
    for one in devices if isinstance(devices, list) else ():
        if isinstance(one, Mapping) and isinstance(threads := one.get("threads"), int):
            return max(threads, 0)
    return 0


def manifest_of(files: RankFiles) -> Mapping[str, Any]:
    """The manifest of `etude collect` for a rank; empty if it was recorded otherwise."""
    return _json(files.manifest, None)


def _json(path: Path | None, max_bytes: int | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    import msgspec

    heap, size = compressed.load(path, max_bytes)
    try:
        found = msgspec.json.decode(heap[:size].tobytes())
    except msgspec.DecodeError as problem:
        raise FormatError(f"not JSON: {problem}", path=path) from None
    return found if isinstance(found, dict) else {}


def workers_for(ranks: Sequence[RankFiles]) -> int:
    """Number of worthwhile processes: as many as cores if ranks are large, and no more than half of the memory
    allows."""
    sizes = [
        UNPACKS * f.stat().st_size if f.suffix in (".gz", ".zst") else f.stat().st_size
        for files in ranks
        for f in (files.device, files.host)
        if f is not None
    ]
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
    machines that see the same files. `advance` is called for each that is done. Columns of large ranks lie in files
    without a name, in the folder for temporary ones. Ranks that recorded different parts of the run are cut to what all
    recorded, or refused where that is nothing, unless `any_window`."""
    if len(ranks) == 1 and spread is None:
        done = [link_rank(ranks[0], max_bytes)]
        advance(1)
        return done
    if len(ranks) > 1:  # ranks that wait for one another cannot become faster each on its own
        ranks = [replace(files, times=replace(files.times, estimate=False)) for files in ranks]
    with TemporaryDirectory(prefix="etude-") as folder:
        done = []
        places = [Path(folder) / str(number) for number in range(len(ranks))]
        each = _each(ranks, places, workers, max_bytes) if spread is None else _there(ranks, places, spread, max_bytes)
        for one in each:
            done.append(one.take() if isinstance(one, Spilled) else _sealed(one))
            advance(1)
    found = _without_manifest(_distinct(done), ranks)
    if len({one.timed.kind for one in found}) > 1:  # clocks of a program and of its recording do not mix
        recorded = [replace(files, times=replace(files.times, as_recorded=True)) for files in ranks]
        return link_run(recorded, workers=workers, max_bytes=max_bytes, any_window=any_window, spread=spread)
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
    from concurrent.futures import ProcessPoolExecutor, as_completed

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
    """Like `_each`, for ranks from other machines."""
    for place, packed in zip(
        places, spread(_packed, [(_whole_paths(files), max_bytes) for files in ranks]), strict=True
    ):
        yield spill(pickle.loads(packed), place)
        release_memory()


def _packed(files: RankFiles, max_bytes: int | None) -> bytes:
    """A rank as bytes: arrays of an object store would go with it."""
    return pickle.dumps(link_rank(files, max_bytes), protocol=5)


def _whole_paths(files: RankFiles) -> RankFiles:
    """Absolute paths: other machines have other working folders."""
    paths = {name: getattr(files, name) for name in ("device", "host", "flight", "calls", "manifest", "light")}
    return replace(files, **{name: path and path.resolve() for name, path in paths.items()})


def _spilled(files: RankFiles, place: Path, max_bytes: int | None) -> Linked | Spilled[Linked]:
    found = spill(link_rank(files, max_bytes), place)
    release_memory()
    return found


def _sealed(one: Linked) -> Linked:
    """Makes arrays from another process read-only, by making the trace again."""
    return replace(one, part=replace(one.part, trace=one.part.trace.replace()))


def _distinct(done: list[Linked]) -> list[Linked]:
    done.sort(key=lambda one: one.part.rank)
    for one, other in pairwise(done):
        if one.part.rank == other.part.rank:
            raise UsageError(
                f"two traces claim to be rank {one.part.rank}", hint="name the files `name.rank{N}.kineto.json.gz`"
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
