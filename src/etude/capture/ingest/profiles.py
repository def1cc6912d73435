"""Traces of profilers other than PyTorch's as jobs: each is read into `Recording`s, one per rank, and linked like a
Kineto trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.capture.ingest import causal
from etude.capture.ingest.flight_dumps import dumps_in
from etude.capture.ingest.flight_dumps import read_job as read_dumps
from etude.capture.ingest.linked import Linked
from etude.capture.ingest.windows import agreed
from etude.capture.link.recording import DeviceRecording, device_trace
from etude.model.job import Job
from etude.store import compressed

__all__ = ["dumps_in", "files_of", "is_profile", "read_dumps", "read_job"]

HEAD: Final = 1 << 16
JAX: Final = "jax profiler"
ENDINGS: Final = (".xplane.pb", ".trace.json")
"""Endings of JAX's files, the preferred one first."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A file format: what wrote it, how to recognise its first bytes, its reader."""

    source: str
    holds: Callable[[bytes], bool]
    read: Callable[[Path, int | None], list[DeviceRecording]]


def is_profile(path: Path) -> bool:
    """Whether a file or folder is of a profiler that is read here."""
    return bool(files_of(path))


def files_of(path: Path) -> list[tuple[Path, Reader]]:
    """(file, its reader) of each host of a run; empty if nothing is recognised."""
    if path.is_file():
        found = _reader(path)
        return [(path, found)] if found is not None else []
    return _folder(path) if path.is_dir() else []


def _reader(path: Path) -> Reader | None:
    head = compressed.head(path, HEAD)
    return next((reader for reader in READERS if reader.holds(head)), None)


def _folder(path: Path) -> list[tuple[Path, Reader]]:
    """The hosts of a folder that JAX or TensorBoard wrote: `plugins/profile/DATE/HOST.xplane.pb`."""
    inside = path / "plugins" / "profile"
    if inside.is_dir():
        runs = sorted(entry for entry in inside.iterdir() if entry.is_dir() and _hosts(entry))
        if len(runs) > 1:
            shown = ", ".join(f"`{run.name}`" for run in runs[:8])
            raise UsageError(f"it has {len(runs)} runs: {shown}", where=str(path), hint=f"choose one: {runs[-1]}")
        return _hosts(runs[0]) if runs else []
    return _hosts(path)


def _hosts(path: Path) -> list[tuple[Path, Reader]]:
    """One file per host: the `.xplane.pb`, which contains more than its JSON."""
    hosts: dict[str, Path] = {}
    for ending in ENDINGS:
        for file in sorted(path.glob(f"*{ending}*")):
            host, _, packed = file.name.rpartition(ending)
            if packed in ("", ".gz", ".zst"):
                hosts.setdefault(host, file)
    found = [(file, _reader(file)) for _, file in sorted(hosts.items())]
    return [(file, reader) for file, reader in found if reader is not None and reader.source == JAX]


# -- readers -----------------------------------------------------------------------------------------------------------


def _is_xplane(head: bytes) -> bool:
    from etude.capture.link import xplane

    return xplane.looks_like(head)


def _read_xplane(path: Path, max_bytes: int | None) -> list[DeviceRecording]:
    from etude.capture.link import xla, xplane

    return xla.recordings(xplane.read_xplane(*compressed.load(path, max_bytes), str(path)))


def _is_xla_json(head: bytes) -> bool:
    from etude.capture.link import xla_json

    return xla_json.looks_like(head)


def _read_xla_json(path: Path, max_bytes: int | None) -> list[DeviceRecording]:
    from etude.capture.link import xla, xla_json

    return xla.recordings(xla_json.read_xla_json(*compressed.load(path, max_bytes), str(path)))


def _is_nsight(head: bytes) -> bool:
    from etude.capture.link import nsight

    return nsight.looks_like(head)


def _read_nsight(path: Path, max_bytes: int | None) -> list[DeviceRecording]:
    from etude.capture.link import nsight

    with path.open("rb") as file:
        is_packed = not nsight.looks_like(file.read(16))
    if is_packed:
        heap, size = compressed.load(path, max_bytes)
        return nsight.read_nsight(str(path), heap[:size].tobytes())
    if max_bytes is not None and path.stat().st_size > max_bytes:
        problem = f"{path.stat().st_size} bytes, more than the limit of {max_bytes}"
        raise UsageError(problem, where=str(path), hint="raise --max-bytes")
    return nsight.read_nsight(str(path))


def _is_rocprof(head: bytes) -> bool:
    from etude.capture.link import rocprof

    return rocprof.looks_like(head)


def _read_rocprof(path: Path, max_bytes: int | None) -> list[DeviceRecording]:
    from etude.capture.link import rocprof

    return rocprof.read_rocprof(*compressed.load(path, max_bytes), str(path))


def _is_rocprof_json(head: bytes) -> bool:
    from etude.capture.link import rocprof_json

    return rocprof_json.looks_like(head)


def _read_rocprof_json(path: Path, max_bytes: int | None) -> list[DeviceRecording]:
    from etude.capture.link import rocprof_json

    return rocprof_json.read_rocprof_json(*compressed.load(path, max_bytes), str(path))


READERS: Final = (
    Reader(JAX, _is_xplane, _read_xplane),
    Reader(JAX, _is_xla_json, _read_xla_json),
    Reader("nsight systems", _is_nsight, _read_nsight),
    Reader("rocprofv3", _is_rocprof, _read_rocprof),
    Reader("rocprof", _is_rocprof_json, _read_rocprof_json),
)


# -- jobs --------------------------------------------------------------------------------------------------------------


def read_job(path: Path, options: Mapping[str, Any]) -> Job:
    """The job of a profiler's file, or of a folder with a file for each host."""
    if options["groups"] is not None:
        raise UsageError("a profiler's trace contains its groups", where=str(path), hint="leave out --groups")
    files = files_of(path)
    ranks: list[Linked] = []
    for file, reader in files:
        ranks += _linked(reader.read(file, options["max_bytes"]), len(ranks), reader.source)
        options["advance"](1)
    name = _stem(files[0][0]) if path.is_file() else path.resolve().name
    job = causal.to_job(name, agreed(ranks, {}, str(path)) if len(ranks) > 1 else ranks)
    return _on_one_clock(job) if len(files) == 1 else job


def _on_one_clock(job: Job) -> Job:
    """A profiler's file is of one machine: times of its ranks are comparable, whatever their collectives show."""
    return job if job.timing is None else job.replace(timing=replace(job.timing, aligned=True))


def _stem(path: Path) -> str:
    name = path.name
    for ending in (".gz", ".zst", *ENDINGS, ".json", ".sqlite"):
        name = name.removesuffix(ending)
    return name or "job"


def _linked(found: Sequence[DeviceRecording], first: int, source: str) -> list[Linked]:
    """The ranks of one file, numbered from `first` on."""
    done = []
    for at, one in enumerate(found):
        linked = causal.convert(device_trace(one), rank=first + (at if one.rank is None else one.rank))
        done.append(replace(linked, world_size=max(linked.world_size, first + len(found)), source=source))
    return done
