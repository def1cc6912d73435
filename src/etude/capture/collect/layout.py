"""The files of a run: one set per rank in one folder, each set there in full or not at all: it is written into a hidden
folder, and its files get their names when all are complete.

run/trace.rank0.et.json.gz          what ran, in which order, with which tensors (ExecutionTraceObserver)
run/trace.rank0.kineto.json.gz      when, and what it did on the device (torch.profiler)
run/trace.rank0.fr.json.gz          Flight Recorder entries, if there are any
run/trace.rank0.c10d.json.gz        every call of torch.distributed: group, number, peer, bytes, times, if there are any
run/trace.rank0.light.json.gz       when operators ran in a step of the warm-up, recorded with next to nothing else
run/trace.rank0.compiled.json.gz    code that Inductor made, by the name of its graph, if there is any
run/trace.rank0.manifest.json       what the others are, and whether they are all of it
run/trace.process4711....           the same of a process that is not a rank: it lies beside the job, not in it
"""

import contextlib
import gzip
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from etude.base.errors import FormatError, UsageError
from etude.base.files import writing

HOST = "et.json.gz"
DEVICE = "kineto.json.gz"
FLIGHT = "fr.json.gz"
CALLS = "c10d.json.gz"
COMPILED = "compiled.json.gz"
LIGHT = "light.json.gz"
MANIFEST = "manifest.json"

_FILE = re.compile(r".+\.(?:rank(\d+)|process\d+)\.(?:(?:et|kineto|fr|c10d|light|compiled)\.json\.gz|manifest\.json)")
_RECORDING = ".recording-"
_WRITING = ".writing-"
_PROBLEM = ".problem-"
_CLAIM = ".claim-"
_EDGE_BYTES = 1 << 20  # Kineto's own fields stand before and after the events
_HOST_NAME = re.compile(rb'("host_name"\s*:\s*)"(?:[^"\\]|\\.)*"')
_USER_NAME = re.compile(rb'("username"\s*:\s*)"(?:[^"\\]|\\.)*"')
_TRACE_NAME = re.compile(rb'("traceName"\s*:\s*)"(?:[^"\\]|\\.)*"')


def path_of(folder: Path, name: str, who: str, ending: str) -> Path:
    """`who` is `rank3` or `process4711`."""
    return folder / f"{name}.{who}.{ending}"


def files_of_runs(folder: Path) -> list[tuple[int | None, Path]]:
    """Rank (None: not a rank) and path of every file of a run in `folder`, whatever its name starts with."""
    if not folder.is_dir():
        return []
    found = [(_FILE.fullmatch(path.name), path) for path in sorted(folder.iterdir())]
    return [(int(match[1]) if match[1] else None, path) for match, path in found if match]


def make_room(folder: Path, rank: int, world_size: int, *, force: bool) -> None:
    """Makes the folder and refuses an earlier run in it, or removes that with `force`.

    Ranks come here at their own pace, so each looks only at what no other rank of this run can have written: files of
    its own, and those of ranks beyond the world. Where there is no world yet, all is of an earlier run.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError("is a file; a run is a folder", where=str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    earlier = [
        path
        for r, path in files_of_runs(folder)
        if world_size == 0 or (r is not None and (r == rank or r >= world_size))
    ]
    if earlier and not force:
        raise UsageError(
            f"already contains a run (`{earlier[0].name}`)", where=str(folder), hint="use another folder, or force=True"
        )
    for path in earlier:
        path.unlink(missing_ok=True)


def claim(folder: Path, rank: int, pid: int, *, sure: bool) -> bool:
    """Whether process `pid` is this rank. One that is not `sure`, and was first, makes room for one that is."""
    path = folder / f"{_CLAIM}rank{rank}"
    mine = f"{pid} {'sure' if sure else 'perhaps'}"
    try:
        with open(path, "x") as file:
            file.write(mine)
        return True
    except FileExistsError:
        first, _, how = path.read_text().partition(" ")
    if not sure or how != "perhaps":
        return False
    for about in manifests(folder):
        if about["rank"] == rank:
            other = {"name": "a process that is not a rank", "pid": int(first)}
            _rename(folder, about, f"rank{rank}", f"process{first}", {"rank": None, "process": other})
    path.write_text(mine)
    return True


def give_up(folder: Path, rank: int) -> None:
    """Removes the files of a rank, and its claim: another process takes its place."""
    make_room(folder, rank, sys.maxsize, force=True)
    (folder / f"{_CLAIM}rank{rank}").unlink(missing_ok=True)


def recording_folder(folder: Path, pid: int, window: int) -> Path:
    """Where PyTorch writes while it records: on the same disk, hidden."""
    path = folder / f"{_RECORDING}{pid}-{window}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def writing_folder(folder: Path, pid: int) -> Path:
    """Where a process writes its files until all are complete: on the same disk, hidden."""
    path = folder / f"{_WRITING}{pid}"
    path.mkdir(exist_ok=True)
    return path


def publish(folder: Path, pid: int, *, force: bool) -> None:
    """Gives the files of a process their names. The manifest goes first: should the process end between two of them,
    the manifest names files that are not there, which readers notice."""
    hidden = folder / f"{_WRITING}{pid}"
    files = sorted(hidden.iterdir(), key=lambda file: (not file.name.endswith(MANIFEST), file.name))
    there = [file.name for file in files if (folder / file.name).exists()]
    if there and not force:
        raise UsageError("exists already", where=str(folder / there[0]), hint="use another folder, or force=True")
    for file in files:
        os.replace(file, folder / file.name)
    hidden.rmdir()


def abandon(folder: Path, pid: int) -> None:
    """Removes what a process could not complete."""
    shutil.rmtree(folder / f"{_WRITING}{pid}", ignore_errors=True)


def unfinished(folder: Path) -> dict[int, int]:
    """Process -> bytes of the files that it has not completed."""
    found: dict[int, int] = {}
    for path in sorted(folder.glob(f"{_WRITING}*")):
        with contextlib.suppress(FileNotFoundError):  # it has just been completed
            found[int(path.name.removeprefix(_WRITING))] = sum(file.stat().st_size for file in path.iterdir())
    return found


def clear_recordings(folder: Path) -> None:
    """Removes what killed processes have left, and all claims."""
    for path in (*folder.glob(f"{_RECORDING}*"), *folder.glob(f"{_WRITING}*")):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(f"{_CLAIM}*"):
        path.unlink(missing_ok=True)


def note_problem(folder: Path, pid: int, problem: Exception) -> None:
    """For the launcher: a worker's stderr belongs to the program."""
    (folder / f"{_PROBLEM}{pid}").write_text(f"{type(problem).__name__}: {problem}".replace(str(folder), folder.name))


def has_problems(folder: Path) -> bool:
    """Whether a worker has noted one."""
    return next(folder.glob(f"{_PROBLEM}*"), None) is not None


def take_problems(folder: Path) -> list[str]:
    paths = sorted(folder.glob(f"{_PROBLEM}*"))
    found = [path.read_text() for path in paths]
    for path in paths:
        path.unlink()
    return list(dict.fromkeys(found))


def compress(source: Path, target: Path, *, force: bool) -> None:
    """`source` gzipped to `target`. The same bytes every time: no time of day, no name in the header."""
    with (
        writing(target, force=force) as path,
        open(source, "rb") as plain,
        open(path, "wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0) as packed,
    ):
        _copy_without_names(plain, packed, source.stat().st_size, target.name.removesuffix(".gz"))


def _copy_without_names(plain: Any, packed: Any, size: int, shown: str) -> None:
    """Copies JSON without the names of the machine, the user and the folder that Kineto puts around the events."""
    head = plain.read(min(size, _EDGE_BYTES))
    packed.write(_without_names(head, shown))
    middle = max(0, size - len(head) - _EDGE_BYTES)
    while middle:
        piece = plain.read(min(middle, _EDGE_BYTES))
        middle -= len(piece)
        packed.write(piece)
    packed.write(_without_names(plain.read(), shown))


def _without_names(piece: bytes, shown: str) -> bytes:
    piece = _HOST_NAME.sub(rb'\1"redacted"', piece)
    piece = _USER_NAME.sub(rb'\1"redacted"', piece)
    return _TRACE_NAME.sub(rb'\1"' + shown.encode() + b'"', piece)


def write_json(target: Path, value: Any, *, force: bool) -> None:
    text = json.dumps(value, indent=1) + "\n"
    with writing(target, force=force) as path:
        if target.name.endswith(".gz"):
            with open(path, "wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
                packed.write(json.dumps(value, separators=(",", ":")).encode())
        else:
            path.write_text(text)


def manifests(folder: Path) -> list[dict[str, Any]]:
    """The manifests of a run, by rank."""
    found = [(rank, path) for rank, path in files_of_runs(folder) if path.name.endswith(MANIFEST)]
    return [_read(path) for rank, path in sorted((r, path) for r, path in found if r is not None)]


def beside(folder: Path) -> list[dict[str, Any]]:
    """The manifests of processes that are not ranks."""
    return [_read(path) for r, path in files_of_runs(folder) if r is None and path.name.endswith(MANIFEST)]


def promote(folder: Path, about: dict[str, Any]) -> None:
    """Turns a single process into the job: its files become those of rank 0."""
    _rename(folder, about, f"process{about['process']['pid']}", "rank0", {"rank": 0, "process": None})


def _rename(folder: Path, about: dict[str, Any], who: str, to: str, changed: dict[str, Any]) -> None:
    files = {what: file.replace(f".{who}.", f".{to}.") for what, file in about["files"].items()}
    for what, file in about["files"].items():
        os.replace(folder / file, folder / files[what])
    write_json(path_of(folder, about["name"], to, MANIFEST), about | {"files": files} | changed, force=False)
    path_of(folder, about["name"], who, MANIFEST).unlink()


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as problem:
        raise FormatError(f"not JSON: {problem}", path=path) from None
    if not isinstance(value, dict):
        raise FormatError("not a manifest", path=path)
    return value
